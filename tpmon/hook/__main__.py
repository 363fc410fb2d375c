"""Run a program with the hook in it and in what it starts: ``python -m tpmon.hook train.py ARGUMENT...``.

Also ``python -m tpmon.hook -m package.module``. This process becomes the program: same PID, same
exit code, same signals, and the flags that this Python was started with.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_HERE = os.path.dirname(os.path.abspath(__file__))
_USAGE = "usage: python -m tpmon.hook [-m MODULE | FILE] [ARGUMENT...]\n"


def find_boot() -> str:
    """Return the entry for PYTHONPATH: the folder ``boot``, or the zip that this file is in."""
    folder = os.path.join(_HERE, "boot")
    return folder if os.path.isdir(folder) else os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


def read_flags() -> list[str]:
    """Return the flags of this Python, without ``-m tpmon.hook`` and what follows."""
    given = getattr(sys, "orig_argv", None)
    if given is None:  # before Python 3.10
        from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined] # noqa: PLC0415

        flags: list[str] = _args_from_interpreter_flags()
        return flags
    return leave_module_out(given[1 : len(given) - len(sys.argv[1:])])


def leave_module_out(before: list[str]) -> list[str]:
    """Drop what named this module: ``-m`` and a word, or one word; other flags may stand before the m."""
    if before[-1].startswith("-"):  # -mtpmon.hook, -umtpmon.hook
        kept, cluster = before[:-1], before[-1].split("m", 1)[0]
    elif len(before) > 1 and before[-2].startswith("-") and before[-2].endswith("m"):
        kept, cluster = before[:-2], before[-2][:-1]
    else:
        return before[:-1]  # this file, by its path
    return [*kept, cluster] if len(cluster) > 1 else kept


def become(arguments: list[str]) -> NoReturn:
    """Replace this process by a Python of its kind, with the hook on its path."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = find_boot() + (os.pathsep + before if before else "")
    os.execv(sys.executable, [sys.executable, *read_flags(), *arguments])  # noqa: S606 no shell is wanted


def main() -> int:
    """Become the program; return 2 where none is named, or where Python's flags would keep the hook out."""
    arguments = sys.argv[1:]
    if sys.flags.ignore_environment or sys.flags.no_site:
        os.write(2, b"tpmon.hook: -E, -I and -S keep the hook out\nTry: leave them out\n")
        return 2
    if not arguments or arguments[0] in ("-h", "--help"):
        os.write(2, f"{__doc__}\n{_USAGE}".encode())
        return 0 if arguments else 2
    become(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
