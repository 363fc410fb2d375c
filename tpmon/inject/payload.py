"""Make what the target runs: the modules of the hook, and the script that puts them in or takes them out."""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache

from tpmon.foreign_file import Owner
from tpmon.model.frozen import dataclass
from tpmon.probe.base.procread import PROC

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_COMPILE_S = 20.0
_NOWHERE = "/proc/self/nowhere"
"""No program: in a container the target compiles itself."""

_PYTHON = re.compile(r"python(3(\.\d+)?)?")

_FORMAT = 4
"""marshal's, the same from Python 3.4 to 3.13."""

_COMPILE = """\
import importlib.util, marshal, sys
told = marshal.load(sys.stdin.buffer)
done = [marshal.dumps(compile(source, name, "exec", dont_inherit=True)) for name, source in told]
for one in [importlib.util.MAGIC_NUMBER, *done]:
    sys.stdout.buffer.write(len(one).to_bytes(4, "little") + one)
"""


@dataclass(frozen=True, slots=True)
class Payload:
    """Hold the modules as one file, and what tells them from those of another tpmon."""

    data: bytes
    mark: str


def list_files() -> Iterator[tuple[str, str]]:
    """Return each file of ``tpmon hook export``: its name in the zip and where it is here.

    The package lies below ``lib``: a tpmon of the same Python is not hidden by it.
    """
    yield "lib/tpmon/__init__.py", os.path.join(_PACKAGE, "__init__.py")
    for folder in ("boot/", "", "bus/", "capture/"):
        place = "" if folder == "boot/" else f"lib/tpmon/hook/{folder}"
        for name in sorted(os.listdir(os.path.join(_PACKAGE, "hook", folder))):
            if name.endswith(".py"):
                yield f"{place}{name}", os.path.join(_PACKAGE, "hook", folder, name)


def make_payload(pid: int, minor: tuple[int, int], owner: Owner, proc: str = PROC) -> Payload:
    """Return the modules of the hook, compiled for that Python where that can be done outside of the target.

    By this Python where it is the same version, else by a child of the target's own program, as its user,
    if that is named as a Python is: another that holds one, such as a frozen training, would train.
    Otherwise the target compiles them itself, which takes its main thread some 60 ms once.
    """
    if minor == sys.version_info[:2]:
        return _pack("", owner)
    try:
        outside = os.readlink(f"{proc}/{pid}/ns/mnt") == os.readlink(f"{proc}/self/ns/mnt")
        program = os.readlink(f"{proc}/{pid}/exe")
        is_python = _PYTHON.fullmatch(os.path.basename(program)) is not None
        return _pack(program if outside and is_python else _NOWHERE, owner)
    except OSError:
        return _pack(_NOWHERE, owner)


@lru_cache(maxsize=8)
def _pack(program: str, owner: Owner) -> Payload:
    """Return the modules compiled by a program, "" for this Python; ranks of a job share one."""
    sources: dict[str, tuple[bool, bytes]] = {}
    for name, path in list_files():
        if name.startswith("lib/"):
            module = name[4:-3].replace("/", ".").removesuffix(".__init__")
            with open(path, "rb") as file:
                sources[module] = (name.endswith("/__init__.py"), file.read())
    asked = [(_describe(name, one[0]), one[1]) for name, one in sources.items()]
    if program:
        magic, codes = _compile_there(program, owner, asked)
    else:
        magic = importlib.util.MAGIC_NUMBER
        codes = [marshal.dumps(compile(source, name, "exec", dont_inherit=True)) for name, source in asked]
    modules = {
        name: (*one, codes[number] if codes else b"") for number, (name, one) in enumerate(sources.items())
    }
    mark = hashlib.sha256(b"".join(source for _, source in sources.values())).hexdigest()[:16]
    return Payload(marshal.dumps((modules, magic), _FORMAT), mark)


def _describe(name: str, is_package: bool) -> str:
    return "/tpmon-by-hand/" + name.replace(".", "/") + ("/__init__.py" if is_package else ".py")


def _compile_there(program: str, owner: Owner, asked: list[tuple[str, bytes]]) -> tuple[bytes, list[bytes]]:
    """Compile with the target's own program, as its user; return nothing where that fails."""
    user = {} if os.geteuid() == owner.uid else {"user": owner.uid, "group": owner.gid, "extra_groups": ()}
    try:
        done = subprocess.run(
            [program, "-I", "-S", "-c", _COMPILE],
            input=marshal.dumps(asked, _FORMAT),
            capture_output=True,
            timeout=_COMPILE_S,
            check=True,
            cwd="/",
            **user,  # type: ignore[call-overload]
        )
    except (OSError, subprocess.SubprocessError):
        return b"", []
    parts = list(parse_parts(done.stdout))
    return (parts[0], parts[1:]) if len(parts) == len(asked) + 1 else (b"", [])


def parse_parts(data: bytes) -> Iterator[bytes]:
    """Parse pieces with their length before each: what the target's program wrote is not trusted."""
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


_SCRIPT = """\
import marshal, posix
from _frozen_importlib_external import MAGIC_NUMBER
def load(path):
    file = posix.open(path, posix.O_RDONLY | posix.O_NOFOLLOW)
    try:
        modules, magic = marshal.loads(posix.read(file, posix.fstat(file).st_size))
    finally:
        posix.close(file)
    _, source, code = modules["tpmon.hook.late"]
    return marshal.loads(code) if code and magic == MAGIC_NUMBER else compile(source, "late.py", "exec")
exec(load({path!r}))
main({call})
"""


def make_script(folder: str, verb: str, at_ns: int, version: str, mark: str) -> bytes:
    """Return the script, which calls ``hook/late.py``; ``folder`` as the target sees it.

    It is short: what a signal handler of the program raises while Python compiles it nobody raises again.
    """
    call = f"{folder!r}, {verb!r}, {(at_ns, version)!r}, {mark!r}"
    return _SCRIPT.format(path=f"{folder}/hook", call=call).encode()
