"""Say how tpmon itself is called, and how what it needs is installed, as it works on this machine."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec

import tpmon
from tpmon.errors import UsageError
from tpmon.foreign_file import read_owner

SECURE_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where every sudo looks for a program (secure_path of sudoers(5)); Red Hat leaves /usr/local out."""
TRACE_NEEDS = {"numpy": "numpy", "msgspec": "msgspec"}
"""Modules that reading a trace needs, and the package of each."""
_NAME = "tpmon"
_COMMAND = re.compile(
    r"(?<![\w./-])tpmon(?= (?:--[a-z]|(?:agent|attach|bundle|capture|completion|demo|diagnose|doctor|dump"
    r"|fleet|fold|hook|ps|record|replay|run|sample|trace)\b))"
)
_FRESH = "~/.venv-tpmon"
"""An environment of its own, where an environment belongs to the distribution (PEP 668)."""


@cache
def own_program() -> str:
    """Return the words that start this tpmon also under sudo, which knows no venv, pipx or uvx."""
    if tpmon.archive:
        return call_archive(tpmon.archive, sys.executable, SECURE_PATH)
    return find_program(sys.argv[0], sys.executable)


@cache
def typed_program() -> str:
    """Return what the caller of this tpmon types: its name, or the words that start its one file."""
    return call_archive(tpmon.archive, sys.executable, os.environ.get("PATH", "")) if tpmon.archive else _NAME


@cache
def called_program() -> str:
    """Return the same, but what starts the module where it runs as one and no tpmon is on the PATH."""
    as_module = sys.argv[0].endswith(f"/{_NAME}/__main__.py") and not shutil.which(_NAME)
    return f"{shlex.quote(sys.executable)} -m {_NAME}" if as_module else typed_program()


def as_typed(text: str) -> str:
    """Return a text in which each command of tpmon begins with the words that its caller types."""
    return _write_program(text, typed_program())


def as_called(text: str) -> str:
    """Return what is to be pasted into a shell, in which each command of tpmon is found."""
    return _write_program(text, called_program())


def _write_program(text: str, program: str) -> str:
    return text if program == _NAME else _COMMAND.sub(lambda _found: program, text)


def call_archive(archive: str, python: str, path: str) -> str:
    """Return the words that start a tpmon.pyz: ``tpmon`` where that is what ``path`` has by this name."""
    found = shutil.which(_NAME, path=path)
    if found and os.path.realpath(found) == os.path.realpath(archive):
        return _NAME
    return f"{shlex.quote(python)} {shlex.quote(archive)}"


def find_program(called: str, python: str, secure: str = SECURE_PATH) -> str:
    """Return ``tpmon`` where sudo finds it, else the whole path of the one that runs, else its Python.

    ``called`` is the first word of the call, ``python`` the interpreter.
    """
    if shutil.which(_NAME, path=secure):
        return _NAME
    beside = os.path.join(os.path.dirname(python), _NAME)
    for found in (called, beside):
        if os.path.basename(found) == _NAME and os.path.isfile(found) and os.access(found, os.X_OK):
            return shlex.quote(os.path.abspath(found))
    return f"{shlex.quote(python)} -m {_NAME}"


def call_as_root(arguments: str) -> str:
    """Return the command that calls tpmon as root; "" for who is root."""
    return f"sudo {own_program()} {arguments}" if os.geteuid() else ""


def call_as_owner(pid: int, arguments: str = "run -- COMMAND", proc: str = "/proc") -> str:
    """Return the command by which tpmon starts the program of a process, as the user whose program it is."""
    try:
        uid = read_owner(pid, proc).uid
        name = pwd.getpwuid(uid).pw_name
    except OSError:
        return f"{typed_program()} {arguments}"
    except KeyError:
        name = f"#{uid}"
    as_user = "" if uid == os.geteuid() else f"sudo -u {shlex.quote(name)} "
    return f"{as_user}{own_program() if as_user else typed_program()} {arguments}"


def call_python(statement: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of a Python of its own that runs a statement with this tpmon.

    The working directory is not on its module path, so that a file named like a module cannot take its
    place; the directory that holds tpmon is. What a tpmon.pyz laid out comes first: nothing of the standard
    library is there, and no other tpmon of that Python is meant.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = "import sys; sys.path[:] = [path for path in sys.path if path]; "
    if tpmon.archive:
        code += f"sys.path[:0] = [{root!r}]; import tpmon; tpmon.archive = {tpmon.archive!r}; "
    else:
        code += f"sys.path[len(sys.path):] = [path for path in [{root!r}] if path not in sys.path]; "
    code += statement
    return (sys.executable, "-c", code, *arguments)


def find_lack(purpose: str, packages: Mapping[str, str]) -> UsageError | None:
    """Return what is told where modules that ``purpose`` needs are not here; ``packages`` by module."""
    lack = [package for module, package in packages.items() if not _is_here(module)]
    if not lack:
        return None
    are = "is" if len(lack) == 1 else "are"
    kept = " beside tpmon.pyz, which cannot hold compiled packages" if tpmon.archive else ""
    return UsageError(
        f"{purpose} needs {' and '.join(lack)}, which {are} not installed{kept}",
        install_command(" ".join(lack)),
    )


def _is_here(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package above is not here either
        return False


def install_command(packages: str) -> str:
    """Return the command that installs or updates packages for the Python that runs tpmon."""
    configuration = os.path.join(sys.prefix, "pyvenv.cfg")
    try:
        with open(configuration, encoding="utf-8") as file:
            made_by_uv = any(line.partition("=")[0].strip() == "uv" for line in file)
    except (OSError, ValueError):
        made_by_uv = False
    return choose_install(
        packages,
        sys.executable,
        sys.prefix,
        has_pip=_is_here("pip"),
        made_by_uv=made_by_uv,
        is_managed=sys.prefix == sys.base_prefix
        and os.path.exists(os.path.join(os.path.dirname(os.__file__), "EXTERNALLY-MANAGED")),
        archive=tpmon.archive,
    )


def choose_install(
    packages: str,
    python: str,
    prefix: str,
    *,
    has_pip: bool,
    made_by_uv: bool,
    is_managed: bool = False,
    archive: str = "",
) -> str:
    """Choose who can install into an environment: its pip, pipx, or uv. Pure.

    What uvx made is never changed: it is built anew with what it is told to add. What belongs to the
    distribution (PEP 668) is not changed either: an environment beside it is made.
    """
    if is_managed:
        made = f"{shlex.quote(python)} -m venv {_FRESH} && {_FRESH}/bin/python -m pip install"
        if archive:
            return f"{made} {packages}  # then {_FRESH}/bin/python {shlex.quote(archive)}"
        return f"{made} {_NAME} {packages}  # then {_FRESH}/bin/{_NAME}"
    if has_pip:
        return f"{shlex.quote(python)} -m pip install -U {packages}"
    if "/pipx/" in prefix:
        return f"pipx runpip {_NAME} install -U {packages}"
    if made_by_uv and "/archive-v" in prefix:
        with_each = " ".join(f"--with {one}" for one in packages.split())
        return f"uvx --refresh {with_each} {_NAME}  # and the --from of this call"
    if made_by_uv:
        return f"uv pip install --python {shlex.quote(python)} -U {packages}"
    return f"{shlex.quote(python)} -m ensurepip && {shlex.quote(python)} -m pip install -U {packages}"
