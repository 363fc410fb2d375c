"""How many bytes an element of each number type takes. Pure."""

from __future__ import annotations

_BYTES = {
    "float": 4,
    "float32": 4,
    "double": 8,
    "float64": 8,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "int": 4,
    "long": 8,
    "long int": 8,
    "short": 2,
    "byte": 1,
    "char": 1,
    "unsigned char": 1,
    "signed char": 1,
    "bool": 1,
}


def dtype_bytes(name: str) -> int:
    """Return the bytes of one element, 0 for a type that is not known."""
    short = name.lower().removeprefix("c10::")
    return 1 if short.startswith("float8") else _BYTES.get(short, 0)
