"""The command ``run``: start a program with the hook in it and in all that it starts.

Without ``--attach`` this process becomes the program: same PID, signals, exit code and output, as if
tpmon had never been there. Imports next to nothing, so that a start is hardly later for it.
"""

from __future__ import annotations

import errno
import os
import signal

from tpmon.errors import ExitCode, NoTargetError, NoTerminalError, UsageError, exclude

TYPE_CHECKING = False  # to import typing takes as long as all else here
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from typing import NoReturn

    from tpmon.commands.command import WatchOptions
    from tpmon.probe.job.job import Job

HELP = """\
usage: tpmon run [options] [--] PROGRAM [ARGUMENT...]

Start a training with the hook in it and in all Python processes that it starts (torchrun, accelerate,
workers): exact steps and their split, for some microseconds a step. PROGRAM is what you type without
tpmon: python train.py, torchrun --nproc-per-node 8 train.py, bash job.sh. tpmon becomes that program:
same PID, signals, exit code and output.

options:
  --kineto        let tpmon capture record with kineto, whose export does not pause the loop; it costs one
                  thread of libkineto in each process that imports torch, which asks once a second
  --nsys          start PROGRAM under nsys, for tpmon capture --cuda-profiler: nsys waits, records each
                  requested range, and the run goes on after it
  --allow-stacks  let any process of this user read the stacks of the ranks and their workers (and change
                  them), so that tpmon needs no root where Yama forbids it (kernel.yama.ptrace_scope 1)
  --attach        keep this terminal for the screen: the program runs beside it, in a session of its own,
                  without input; q leaves it running; when it ends, tpmon ends with its exit code, and
                  with that of the screen where it goes on
  --log FILE      with --attach: a new file for what it prints (default: tpmon-run-TIME.log here)
  -h, --help      show this help and end

It puts a folder before PYTHONPATH. What drops PYTHONPATH (python -I, -E, -S; another machine without
tpmon) runs without the hook; tpmon hook export makes a file to take along. docs/hook.md has more."""

BOOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hook", "boot")
"""What goes on PYTHONPATH; tpmon.hook.__main__ finds the same."""

ALLOW_STACKS = "_TPMON_ALLOW_STACKS"
"""Read by ``tpmon_awaits_torch`` in that folder."""

_SWITCHES = ("--allow-stacks", "--attach", "--kineto", "--nsys")
_TRY = "tpmon run -- python train.py"
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")
"""Python ignores them from its start on; a program that takes its place would go on ignoring them."""

_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python itself sets LC_CTYPE to (PEP 538); the program is to get what was set before."""

_LOOK_S = 0.25
_ENDS_WITHIN_S = 0.2
"""The screen, once left, ends tpmon within a second, whatever it is doing."""


class RunRequest:
    """Hold what was asked for. No dataclass: to import that takes longer than all else here."""

    __slots__ = ("allow_stacks", "attach", "command", "kineto", "log", "nsys", "wants_help")

    def __init__(self) -> None:
        """Ask for nothing yet."""
        self.command: list[str] = []
        self.allow_stacks = self.attach = self.kineto = self.nsys = self.wants_help = False
        self.log = ""


def parse_request(arguments: Sequence[str]) -> RunRequest:
    """Parse what follows ``tpmon run``; the first word that is no option begins the program.

    Raises:
        UsageError: for an option that is none, and where there is no program.
    """
    request = RunRequest()
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option, rest = rest[0], rest[1:]
        if option == "--":
            break
        if option in ("-h", "--help"):
            request.wants_help = True
            return request
        if option in _SWITCHES:
            setattr(request, option[2:].replace("-", "_"), True)
        elif option == "--log" and rest:
            request.log, rest = rest[0], rest[1:]
        elif option.startswith("--log="):
            request.log = option[len("--log=") :]
        else:
            from tpmon.commands.command import find_near_flag  # for a mistake alone

            near = find_near_flag(option, (*_SWITCHES, "--log"))
            meant = f"; did you mean {near}?" if near else ""
            raise UsageError(f"tpmon run has no option {option}{meant}", "tpmon run --help")
    if not rest:
        raise UsageError("which program? None is given", _TRY)
    if request.log and not request.attach:
        raise UsageError("--log is for --attach alone", "tpmon run --attach --log FILE -- python train.py")
    if request.kineto and request.nsys:
        raise exclude("--kineto and --nsys", ": a GPU has one profiling slot")
    request.command = rest
    return request


def arm(environment: dict[str, str], *, allow_stacks: bool) -> dict[str, str]:
    """Return an environment in which Python processes get the hook once they import torch."""
    before = environment.get("PYTHONPATH", "")
    armed = {**environment, "PYTHONPATH": BOOT + (os.pathsep + before if before else "")}
    if allow_stacks:
        armed[ALLOW_STACKS] = "1"
    return armed


def drop_coerced(environment: dict[str, str], given: Sequence[bytes]) -> dict[str, str]:
    """Return an environment without the LC_CTYPE that this Python set; ``given`` is what it began with."""
    if environment.get("LC_CTYPE") not in _COERCED or not given:
        return environment
    if any(word.startswith(b"LC_CTYPE=") for word in given):
        return environment
    return {name: value for name, value in environment.items() if name != "LC_CTYPE"}


def _read_first_words() -> list[bytes]:
    try:
        with open("/proc/self/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _prepare(request: RunRequest) -> dict[str, str]:
    """Return the environment of the program, and put nsys before it if asked; UsageError if it cannot be."""
    environment = arm(drop_coerced(dict(os.environ), _read_first_words()), allow_stacks=request.allow_stacks)
    if not (request.nsys or request.kineto):
        return environment
    import shutil  # a plain start needs none of these

    nsys = shutil.which("nsys") or ""
    if request.nsys and not nsys:
        raise UsageError(
            "nsys is not in PATH: it comes with Nsight Systems", "tpmon run without --nsys, or set PATH"
        )
    if shutil.which(request.command[0]) is None:
        raise _refuse(request, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    if request.nsys:
        from tpmon.capture.nsys import write_nsys_command

        request.command = write_nsys_command(nsys, request.command)
        return environment
    from tpmon.capture.kineto_window import prepare

    return prepare(environment)


def _take_back(request: RunRequest, environment: dict[str, str]) -> None:
    """Remove what was made for a program that did not start."""
    if request.kineto:
        from tpmon.capture.kineto_window import take_back

        take_back(environment)


def start(arguments: Sequence[str]) -> UsageError | None:
    """Become the program at once, where that is all that is asked for.

    Returns None where there is more to do, else why it cannot be, which is told where all errors are.
    """
    try:
        request = parse_request(arguments)
        if not (request.attach or request.wants_help):
            become(request)
    except UsageError as error:
        return error
    return None


def become(request: RunRequest) -> NoReturn:
    """Replace this process by the program; UsageError when there is no such program."""
    environment = _prepare(request)
    for name in _IGNORED_BY_PYTHON:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(request.command[0], request.command, environment)  # noqa: S606 no shell is wanted
    except OSError as error:
        _take_back(request, environment)
        raise _refuse(request, error) from error


def run(arguments: Sequence[str]) -> int:
    """Do what ``tpmon run`` asks for in the arguments that follow it.

    Raises:
        UsageError: for arguments that cannot be used.
        NoTerminalError: where there is no terminal for a screen; nothing is started then.
    """
    request = parse_request(arguments)
    if request.wants_help:
        from tpmon.report.text import Output

        Output(1, ascii_only=False).write_lines(HELP)
        return ExitCode.OK
    if not request.attach:
        become(request)
    from tpmon.commands.command import WatchOptions, read_choices, read_options
    from tpmon.ui.terminal_io.terminal import require_terminal

    options = read_options(WatchOptions, {}, read_choices({})[1])
    try:
        require_terminal()
    except NoTerminalError as error:
        raise NoTerminalError(
            error.what, "leave --attach out; tpmon attach PID --plain prints lines of text"
        ) from None
    return _run_attached(request, options)


def _run_attached(request: RunRequest, options: WatchOptions) -> int:
    from tpmon.commands.attach import watch_on_screen
    from tpmon.report.text import complain

    environment = _prepare(request)
    try:
        child, path = _start_logged(request, environment)
    except UsageError:
        _take_back(request, environment)
        raise
    complain(f"tpmon: started {child.pid}; what it prints goes to {path}")
    shown: int = ExitCode.OK
    try:
        job = _await_job(child)
        if job is not None:
            shown = watch_on_screen(job, options)
            _wait(child, _ENDS_WITHIN_S)
    finally:
        ended = child.poll()
        if ended is None:
            complain(
                f"tpmon: the training goes on: tpmon attach {child.pid} shows it, kill {child.pid} ends it; "
                f"what it prints goes to {path}"
            )
    if ended is None:
        return shown
    complain(f"tpmon: {request.command[0]} ended {describe_end(ended)}; what it printed: {path}")
    return ended if ended >= 0 else 128 - ended


def _start_logged(request: RunRequest, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], str]:
    """Start the program beside this one, and return the path of its new log; UsageError if it cannot be."""
    import subprocess  # a plain start needs none of these

    log, path = _open_log(request.log)
    try:
        child = subprocess.Popen(
            request.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # ^C and a hang-up of this terminal are not the training's
        )
    except OSError as error:
        os.unlink(path)
        raise _refuse(request, error) from error
    finally:
        os.close(log)
    return child, path


def describe_end(returncode: int) -> str:
    """Say how a child ended, by its exit code or minus the signal."""
    if returncode >= 0:
        return f"with exit code {returncode}"
    try:
        return f"by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"by signal {-returncode}"


def _await_job(child: subprocess.Popen[bytes]) -> Job | None:
    """Wait until there is a training job to watch; None when the program ended before."""
    from tpmon.probe.job.resolve import find_job

    while not _wait(child, _LOOK_S):
        try:
            return find_job(child.pid)
        except NoTargetError:
            continue  # no torch is imported yet
    return None


def _wait(child: subprocess.Popen[bytes], seconds: float) -> bool:
    from subprocess import TimeoutExpired

    try:
        child.wait(seconds)
    except TimeoutExpired:
        return False
    return True


def _open_log(asked: str) -> tuple[int, str]:
    from datetime import datetime

    path = asked or f"tpmon-run-{datetime.now().astimezone():%Y%m%d-%H%M%S}.log"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600), os.path.abspath(path)
    except OSError as error:
        raise UsageError(
            f"cannot make the log {path}: {error.strerror}", "--log with another new file"
        ) from error


def _refuse(request: RunRequest, error: OSError) -> UsageError:
    import shlex  # only who errs pays for it

    name = request.command[0]
    variable, sets, value = name.partition("=")
    if sets and variable.isidentifier():
        from tpmon.model.text.redaction import hide, hide_words

        told = shlex.quote(value) if hide(name) == name else "..."
        rest = shlex.join(hide_words(request.command[1:])) or "PROGRAM"
        return UsageError(
            f"{variable}=... sets a variable and is no program", f"{variable}={told} tpmon run -- {rest}"
        )
    if error.errno == errno.ENOEXEC:
        return UsageError(
            f"cannot run {name}: it has no #! line, for which a shell makes up",
            f"tpmon run -- sh {shlex.quote(name)}",
        )
    if name.endswith(".py"):
        return UsageError(
            f"{name} is not a program that can be run: {error.strerror}", f"tpmon run -- python {name}"
        )
    return UsageError(f"cannot run {name}: {error.strerror}", f"command -v {name}; {_TRY}")
