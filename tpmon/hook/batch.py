"""Say which tensors a batch holds: type and shape of each, and nothing of what is in them."""

from __future__ import annotations

import sys

from tpmon.hook.context import is_from_handler
from tpmon.hook.tensors import bypass_functions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_TENSORS = 16
_MOST_PARTS = 64
"""Parts of a batch that are looked at: a batch may be a list of thousands of samples."""

_DEEPEST = 3


def describe_batch(batch: object) -> list[str]:
    """Return "name float32[8, 512]" of each tensor in a batch, the first 16; names where it has keys.

    Only plain tensors, lists, tuples and dictionaries are looked into: what is of another type may run
    code of the user when it is asked.
    """
    found: list[str] = []
    try:
        if "torch" in sys.modules:
            with bypass_functions():
                _collect(batch, "", _DEEPEST, found)
    except Exception as error:
        if is_from_handler(error):
            raise  # a signal handler of the user raised in here
    return found[:_MOST_TENSORS]


def _collect(part: Any, name: str, deeper: int, found: list[str]) -> None:
    torch: Any = sys.modules["torch"]
    kind = type(part)
    if kind is torch.Tensor:
        text = f"{str(part.dtype).partition('.')[2]}{list(part.shape)}"
        found.append(f"{name} {text}" if name else text)
    elif deeper and issubclass(kind, (list, tuple)):
        plain = list if issubclass(kind, list) else tuple
        for one in plain.__getitem__(part, slice(_MOST_PARTS)):
            _collect(one, name, deeper - 1, found)
    elif deeper:
        inner = part if issubclass(kind, dict) else _read_data(part)
        if issubclass(type(inner), dict):
            for at, (key, one) in enumerate(dict.items(inner)):
                if at >= _MOST_PARTS:
                    break
                _collect(one, key[:40] if type(key) is str else "", deeper - 1, found)


def _read_data(part: Any) -> Any:
    """Return the dictionary that batches of transformers keep in an attribute."""
    try:
        return object.__getattribute__(part, "__dict__").get("data")
    except AttributeError:
        return None
