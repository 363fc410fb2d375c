"""Build tpmon.pyz, the one file that a bare Python runs: ``python -m release.pyz FILE``.

It packs tpmon, the pure-Python packages that it needs as they are installed beside this Python, and py-spy, a
static program. numpy, msgspec and zstd are compiled for one Python, so they are not in it.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import stat
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from release.pyz_start import PACKED

ROOT = Path(__file__).parents[1]
START = Path(__file__).with_name("pyz_start.py")
SHEBANG = b"#!/usr/bin/env python3\n"
NOT_PACKED = ("numpy", "msgspec", "backports.zstd", "py-spy")
"""Dependencies that the file does without; py-spy is packed as a program."""
OLDEST = {"python_version": "3.10", "python_full_version": "3.10.0"}
"""What the oldest Python needs is in the file for all."""
LEXERS = ("__init__.py", "_mapping.py", "python.py", "special.py")
"""Of the 250 of pygments, which tpmon never asks for; rich names these."""
WHEN = (2020, 1, 1, 0, 0, 0)
"""Equal contents make equal files."""
PROGRAM, PLAIN = stat.S_IFREG | 0o755, stat.S_IFREG | 0o644


def read_dependencies() -> list[str]:
    """Return what pyproject.toml says that tpmon needs."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return list(toml.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


def list_needs(requirements: Iterable[str], extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """Return the requirements that hold on the oldest Python, with ``extras``."""
    chosen = [{**OLDEST, "extra": extra} for extra in ("", *extras)]
    for one in map(Requirement, requirements):
        if one.marker is None or any(map(one.marker.evaluate, chosen)):
            yield one


def find_distributions() -> dict[str, Distribution]:
    """Return all packages that tpmon needs, also by way of others, by name, without ``NOT_PACKED``."""
    found: dict[str, Distribution] = {}
    asked = list(list_needs(read_dependencies()))
    while asked:
        need = asked.pop()
        name = need.name.lower()
        if name not in NOT_PACKED and (name not in found or need.extras):
            found[name] = distribution(name)
            asked += list_needs(found[name].requires or (), need.extras)
    return found


def list_packed(one: Distribution) -> Iterator[tuple[str, bytes]]:
    """Return the modules of a package, its metadata and licences, each with its name in the file.

    A compiled module stays behind if its source is there too, as in tomli; ValueError if it is not.
    """
    names = {str(path) for path in one.files or ()}
    for path in sorted(names):
        head, _, rest = path.partition("/")
        is_about = head.endswith(".dist-info") and (
            "licen" in rest.lower() or rest in {"METADATA", "COPYING"}
        )
        lexer = path.removeprefix("pygments/lexers/") if path.startswith("pygments/lexers/") else ""
        if path.endswith(".so") and "__mypyc." not in path and path.partition(".")[0] + ".py" not in names:
            raise ValueError(f"{path} of {one.name} is compiled: it is for one Python alone")
        if is_about or (
            path.endswith(".py") and not (lexer and lexer not in LEXERS) and not path.startswith("..")
        ):
            yield path, Path(str(one.locate_file(path))).read_bytes()


def list_own() -> Iterator[tuple[str, bytes]]:
    """Return the modules and tables of tpmon, the recordings of its demo, and the licence."""
    for path in sorted((ROOT / "tpmon").rglob("*")):
        if path.suffix in {".py", ".toml", ".txt", ".tpmon"}:
            yield str(path.relative_to(ROOT)), path.read_bytes()
    yield "tpmon/LICENSE", (ROOT / "LICENSE").read_bytes()


def list_spy() -> Iterator[tuple[str, bytes]]:
    """Return the py-spy that is installed here, for the processor of this machine."""
    files = distribution("py-spy").files or ()
    program = next(path for path in files if path.name == "py-spy")
    yield f"py-spy/{os.uname().machine}/py-spy", Path(str(program.locate())).read_bytes()
    for path in files:
        if "licen" in path.name.lower():
            yield f"py-spy/{path.name}", Path(str(path.locate())).read_bytes()


def write_entry(archive: zipfile.ZipFile, name: str, data: bytes, kind: int = zipfile.ZIP_DEFLATED) -> None:
    """Write one file into a zip."""
    entry = zipfile.ZipInfo(name, WHEN)
    entry.external_attr = (PROGRAM if name.endswith("/py-spy") else PLAIN) << 16
    entry.compress_type = kind
    archive.writestr(entry, data)


def build(path: Path) -> None:
    """Write the file, which the shell can start, too."""
    packed = dict(list_own())
    for one in find_distributions().values():
        packed |= dict(list_packed(one))
    packed |= dict(list_spy())
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", compresslevel=9) as archive:
        for name, data in sorted(packed.items()):
            write_entry(archive, name, data)
    digest = hashlib.sha256(inner.getvalue()).hexdigest()[:16]
    start = START.read_text().replace('BUILD = "unbuilt"', f'BUILD = "{digest}"').encode()
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w", compresslevel=9) as archive:
            write_entry(archive, "__main__.py", start)
            write_entry(archive, PACKED, inner.getvalue(), zipfile.ZIP_STORED)
    part.chmod(0o755)
    part.replace(path)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {len(packed)} files")


if __name__ == "__main__":
    build(Path(*sys.argv[1:2] or ["tpmon.pyz"]))
