"""Say how tpmon itself is called, and how what it needs is installed, as it works on this machine."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import sys
from functools import cache
from importlib.util import find_spec

from tpmon.foreign_file import read_owner

SECURE_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where every sudo looks for a program (secure_path of sudoers(5)); Red Hat leaves /usr/local out."""
_NAME = "tpmon"


@cache
def own_program() -> str:
    """Return the word that starts this tpmon also under sudo, which knows no venv, pipx or uvx."""
    return find_program(sys.argv[0], sys.executable)


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
        return f"{_NAME} {arguments}"
    except KeyError:
        name = f"#{uid}"
    as_user = "" if uid == os.geteuid() else f"sudo -u {shlex.quote(name)} "
    return f"{as_user}{own_program() if as_user else _NAME} {arguments}"


def call_python(statement: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of a Python of its own that runs a statement with this tpmon.

    The working directory is not on its module path, so that a file named like a module cannot take its
    place; the directory that holds tpmon is.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = (
        "import sys; "
        "sys.path[:] = [path for path in sys.path if path]; "
        f"sys.path[len(sys.path):] = [path for path in [{root!r}] if path not in sys.path]; "
        f"{statement}"
    )
    return (sys.executable, "-c", code, *arguments)


def install_command(package: str) -> str:
    """Return the command that installs or updates a package for the Python that runs tpmon."""
    configuration = os.path.join(sys.prefix, "pyvenv.cfg")
    try:
        with open(configuration, encoding="utf-8") as file:
            made_by_uv = any(line.partition("=")[0].strip() == "uv" for line in file)
    except (OSError, ValueError):
        made_by_uv = False
    return choose_install(
        package, sys.executable, sys.prefix, has_pip=find_spec("pip") is not None, made_by_uv=made_by_uv
    )


def choose_install(package: str, python: str, prefix: str, *, has_pip: bool, made_by_uv: bool) -> str:
    """Choose who can install into an environment: its pip, pipx, or uv. Pure.

    What uvx made is never changed: it is built anew with what it is told to add.
    """
    if has_pip:
        return f"{shlex.quote(python)} -m pip install -U {package}"
    if "/pipx/" in prefix:
        return f"pipx runpip {_NAME} install -U {package}"
    if made_by_uv and "/archive-v" in prefix:
        return f"uvx --refresh --with {package} {_NAME}  # and the --from of this call"
    if made_by_uv:
        return f"uv pip install --python {shlex.quote(python)} -U {package}"
    return f"{shlex.quote(python)} -m ensurepip && {shlex.quote(python)} -m pip install -U {package}"
