"""Open a line of the job's code in the user's editor. Knows nothing of textual.

The path comes from another process, so it is checked before the screen is lent; that may hang on a dead mount
and belongs into a thread.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from tpmon.foreign_file import open_foreign, own
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.trace_tables import CodePlace
from tpmon.model.stacks import StackFrame
from tpmon.model.units import clean_text

VARIABLES = ("VISUAL", "EDITOR")
COMMON = ("vi", "vim", "nano")
"""What is tried where neither is set, as by git and crontab; each takes +LINE before the file."""
_NOT_THEIRS = (
    "ESCDELAY",
    "TEXTUAL_ANIMATIONS",
    "TEXTUAL_DISABLE_KITTY_KEY",
    "TEXTUAL_SMOOTH_SCROLL",
    "OPENBLAS_NUM_THREADS",
)
"""The screen sets these for itself: an editor on a slow line needs its own ESCDELAY."""


@dataclass(frozen=True, slots=True)
class EditorCall:
    """Hold the command that shows a line, and a name for that line."""

    command: tuple[str, ...]
    place: str


def plan_edit(
    frame: StackFrame, environ: Mapping[str, str], pid: Applicable[int] = NOT_APPLICABLE, proc: str = "/proc"
) -> Known[EditorCall]:
    """Return the command that opens the file of ``frame`` at its line, or why it cannot be opened.

    ``pid`` is the process that names the path, maybe in a container; not applicable for our own paths.
    """
    place = clean_text(f"{frame.file}:{frame.line}")
    command = find_editor(environ)
    if not is_known(command):
        return Missing(f"{command.reason}; the line is {place}")
    if not os.path.isabs(frame.file):
        return Missing(f"{place} is no file: its code came from somewhere else")
    path = f"{_find_root(pid, proc)}{frame.file}" if is_known(pid) else frame.file
    try:
        os.close(open_foreign(path, own(), follows=True))
    except OSError as error:
        return Missing(f"cannot open {place} here: {error.strerror or error}")
    return EditorCall((*command, f"+{max(1, frame.line)}", path), place)


def _find_root(pid: int, proc: str) -> str:
    """Return the root of a process in another mount namespace (proc(5)), "" in ours."""
    try:
        apart = os.readlink(f"{proc}/{pid}/ns/mnt") != os.readlink(f"{proc}/self/ns/mnt")
    except OSError:
        return ""  # no permission, or it ended
    return f"{proc}/{pid}/root" if apart else ""


def plan_place(place: CodePlace, beside: str, environ: Mapping[str, str]) -> Known[EditorCall]:
    """Return the command for a line whose file a trace cuts at an entry of sys.path.

    The file is searched in the folders that the trace names, else in the present one and in ``beside``.
    """
    if os.path.isabs(place.file):
        return plan_edit(StackFrame(place.function, place.file, place.line), environ)
    folders = place.folders or tuple(dict.fromkeys((os.getcwd(), beside)))
    for folder in folders:
        path = os.path.join(folder, place.file)
        if os.path.isfile(path):
            return plan_edit(StackFrame(place.function, path, place.line), environ)
    said = clean_text(f"{place.file}:{place.line}")
    if place.folders:
        return Missing(
            f"{said} is in none of the {len(folders)} folders of the run's sys.path on this machine"
        )
    return Missing(
        f"{said} is not below {clean_text(folders[0], 80)}: start tpmon trace where the run was started"
    )


def find_editor(environ: Mapping[str, str]) -> Known[tuple[str, ...]]:
    """Return the command of $VISUAL, else of $EDITOR, without a shell, else an editor that is here."""
    name = next((name for name in VARIABLES if environ.get(name, "").strip()), "")
    if not name:
        here = next((one for one in COMMON if shutil.which(one, path=environ.get("PATH", ""))), "")
        return (here,) if here else Missing("$EDITOR is not set: try export EDITOR=vim before tpmon")
    try:
        command = tuple(shlex.split(environ[name]))
    except ValueError as error:
        return Missing(f"${name} cannot be read: {error}")
    if not command or shutil.which(command[0]) is None:
        return Missing(f"${name} names no program that is here: {clean_text(environ[name], 60)}")
    return command


def run_editor(command: Sequence[str]) -> str:
    """Run an editor on the terminal until it ends; return what went wrong, "" for nothing."""
    theirs = {name: value for name, value in os.environ.items() if name not in _NOT_THEIRS}
    try:
        status = subprocess.run(command, env=theirs, check=False).returncode
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror or error}"
    return f"{command[0]} ended with {status}" if status else ""
