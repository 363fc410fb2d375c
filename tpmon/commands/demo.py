"""The command ``demo``: start a small training as a process of its own, and watch it; or a recording.

It runs with the Python that has torch. Imports neither torch nor the demo: it names the programs by
their files. The training ends with its own time limit, with ``DemoJob.stop``, or when the process that
started it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tpmon.commands.command import Subcommand, WatchOptions, flag, setting, write_ending
from tpmon.errors import ExitCode, NoTargetError, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.model.units import clean_text
from tpmon.report.text import Output, complain
from tpmon.settings import MOST_DEMO_RANKS, MOST_DEMO_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpmon.model.frame import Frame
    from tpmon.model.results.doctor import Update
    from tpmon.model.results.recording import Moment, VerdictSpan
    from tpmon.model.verdict import Finding
    from tpmon.probe.job.job import Job
    from tpmon.record.recording import Recording
    from tpmon.ui.terminal_io.terminal import ScreenResult

VERDICT_S = 15.0
"""How long a verdict is waited for without a screen or a form, from when the bottleneck can be seen."""
BEFORE_VERDICT_NS = 5_000_000_000
"""A recording begins on the screen so long before its first verdict."""

_PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "demo")
RECORDINGS = os.path.join(_PROGRAMS, "recordings")
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_FIRST_STEP = "epoch 0 step 1 "
_FIRST_STEP_WITHIN_S = 180.0
_SOCKET_PATH_BYTES = 107
_LIFE_AFTER_TRAINING_S = _FIRST_STEP_WITHIN_S + 30.0
"""The training counts its time from its first step. If it hangs, its keeper ends it this much later."""

_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",  # all ranks are on this machine, and not every host name resolves
    "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",  # torch without it is enough here
}
_PLACE = re.compile(
    r"((LOCAL_|GROUP_|ROLE_|NODE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|MPI_LOCALRANKID|ROLE_NAME"
    r"|(MASTER|TORCHELASTIC|PET|OMPI|PMIX?|SLURM)_.*)"
)
"""Variables that place a training in a run: a shell in a pod or a Slurm step has those of the run there."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Name one thing that ``tpmon demo --bottleneck`` can do wrong, and say what it is."""

    name: str
    summary: str
    ranks: int = 1
    """The fewest ranks that it can be seen with, and the number started when none is asked for."""
    seen_after_s: float = 0.0
    """How long the training does well, or nobody can tell."""


BOTTLENECKS = (
    Bottleneck("none", "healthy: compute-bound, loader queues full"),
    Bottleneck("slow-transform", "every image is rotated and blurred at 512 x 512 in the workers"),
    Bottleneck("no-workers", "num_workers=0: the training loop itself prepares every image"),
    Bottleneck("slow-storage", "every image comes from a server that waits 25 ms before it answers"),
    Bottleneck("oversubscribed", "16 compute threads a rank on the two CPUs that the job may use"),
    Bottleneck("straggler", "rank 1 computes three times as much in each step; the others wait", ranks=2),
    Bottleneck("python-bound", "the loop visits every pixel of a batch in pure Python"),
    Bottleneck("memory-leak", "every batch is kept for ever, up to 1 GiB a rank", seen_after_s=60.0),
    Bottleneck(
        "hang",
        "after 20 s, or a quarter of --seconds, rank 1 waits for a lock that nobody releases",
        ranks=2,
        seen_after_s=50.0,
    ),
)
NAMES = tuple(one.name for one in BOTTLENECKS)


@dataclass(frozen=True, slots=True)
class DemoOptions(WatchOptions):
    """Hold what is trained, and how it is watched; None where the bottleneck decides."""

    ranks: int | None = setting("demo.ranks")
    workers: int | None = setting("demo.workers")
    bottleneck: str = setting("demo.bottleneck")
    seconds: float = setting("demo.seconds")
    once: bool = setting("once", help="print the verdict as soon as there is one, and end")
    json: bool = setting("json")
    plain: bool = setting("plain")
    recorded: bool = flag("--recorded", "replay a recording of it, as is done where no Python has torch")


class DemoJob:
    """Hold a running demo training; ``pid`` is its root, the process to attach to."""

    def __init__(self, pid: int, log_path: str, keeper: subprocess.Popen[bytes]) -> None:
        self.pid = pid
        self.log_path = log_path
        self._keeper = keeper

    def stop(self, wait_s: float = 0.0) -> bool:
        """End the training and everything it started; tell whether all was gone after ``wait_s``.

        The end does not depend on waiting for it: the keeper sees to it within some 4 s.
        """
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(wait_s)
        return self._keeper.returncode is not None


def find_python() -> str:
    """Return the first Python with torch: $PYTHON, this one, those on PATH; NoTargetError without one."""
    looked_at: list[str] = []
    for name in (os.environ.get("PYTHON", ""), sys.executable, "python3", "python"):
        found = shutil.which(name) if name else None
        path = os.path.abspath(found) if found else ""
        if path and path not in looked_at:
            looked_at.append(path)
            if _has_torch(path):
                return path
    raise NoTargetError(
        f"no Python with torch for the demo (tried {', '.join(looked_at)})",
        "pip install torch, or PYTHON=/path/to/python-with-torch tpmon demo",
    )


def _has_torch(python: str) -> bool:
    try:  # from the root directory, where no folder named torch passes for it
        asked = subprocess.run(
            [python, "-c", _HAS_TORCH], cwd="/", capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def _find_kind(name: str) -> Bottleneck:
    return next(one for one in BOTTLENECKS if one.name == name)


def _training_command(python: str, options: DemoOptions) -> list[str]:
    kind = _find_kind(options.bottleneck)
    ranks = kind.ranks if options.ranks is None else options.ranks
    most = 0 if kind.name == "no-workers" else MOST_DEMO_WORKERS
    workers = min(2, most) if options.workers is None else options.workers
    if ranks < kind.ranks:
        raise UsageError(
            f"bottleneck {kind.name} cannot run with {ranks} ranks",
            f"--ranks from {kind.ranks} to {MOST_DEMO_RANKS}",
        )
    if workers > most:
        raise UsageError(
            f"bottleneck {kind.name} cannot run with {workers} workers", f"--workers from 0 to {most}"
        )
    command = [python, "-u"]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [os.path.join(_PROGRAMS, "train.py"), "--workers", str(workers)]
    return [*command, "--bottleneck", kind.name, "--seconds", f"{options.seconds:g}"]


def start_demo(options: DemoOptions, python: str = "") -> DemoJob:
    """Start the training, with the first Python that can, and return once it logged its first step.

    Raises:
        UsageError: for options that do not fit together.
        NoTargetError: when no Python has torch, or the training ended or stalled before a step.
    """
    command = _training_command(python or find_python(), options)
    directory = _make_directory()
    log_path = os.path.join(directory, "train.log")
    keeper = subprocess.Popen(
        [sys.executable, "-I", os.path.join(_PROGRAMS, "keeper.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    # With a place in a run the demo would join it, or wait for it.
    kept = {name: value for name, value in os.environ.items() if not _PLACE.fullmatch(name)}
    order = {
        "command": command,
        "environment": {**_ENVIRONMENT, **kept, "TMPDIR": directory},
        "directory": directory,
        "log": log_path,
        "seconds": options.seconds + _LIFE_AFTER_TRAINING_S,
    }
    try:
        pid = _hand_over(keeper, order)
        _wait_for_first_step(keeper, log_path)
    except BaseException:
        if keeper.stdin is not None:
            keeper.stdin.close()
        raise
    return DemoJob(pid, log_path, keeper)


def _make_directory() -> str:
    """Make the private folder of a training; it is also its $TMPDIR.

    The workers put a socket pymp-xxxxxxxx/listener-xxxxxxxx there, and the path of a socket has at
    most 107 bytes (unix(7)). Beyond that they would send no batch, and say nothing.
    """
    base = tempfile.gettempdir()
    length = len(os.fsencode(base)) + len("/tpmon-demo-xxxxxxxx/pymp-xxxxxxxx/listener-xxxxxxxx")
    return tempfile.mkdtemp(prefix="tpmon-demo-", dir=base if length <= _SOCKET_PATH_BYTES else "/tmp")  # noqa: S108


def _hand_over(keeper: subprocess.Popen[bytes], order: dict[str, object]) -> int:
    if keeper.stdin is None or keeper.stdout is None:
        raise ValueError("the keeper needs pipes")
    keeper.stdin.write(json.dumps(order).encode() + b"\n")
    keeper.stdin.flush()
    with keeper.stdout as answer:
        line = answer.readline()
    if not line:
        raise NoTargetError("the demo training could not be started", "tpmon demo again, or report this")
    return int(line)


def _wait_for_first_step(keeper: subprocess.Popen[bytes], log_path: str) -> None:
    deadline = time.monotonic() + _FIRST_STEP_WITHIN_S
    while True:
        ended = keeper.poll() is not None
        log = ""
        with contextlib.suppress(OSError), open(log_path, encoding="utf-8", errors="replace") as file:
            log = file.read(1 << 20)  # it is not there before the start, and after the end of the keeper
        if _FIRST_STEP in log:
            return
        last = clean_text(log.rstrip().rpartition("\n")[2])
        if ended:
            raise NoTargetError(f"the demo training ended before its first step: {last}", f"read {log_path}")
        if time.monotonic() > deadline:
            raise NoTargetError(
                f"the demo training made no step in {_FIRST_STEP_WITHIN_S:g} s: {last}", "a quieter machine"
            )
        time.sleep(0.1)


def run(options: DemoOptions) -> int:
    """Show one bottleneck, and on a screen the next one as often as that is asked for."""
    from tpmon.ui.terminal_io.terminal import has_terminal

    python = _choose_python(options)
    show = partial(show_training, python) if python else show_recorded
    is_stream = (options.json or options.plain) and not options.once
    on_screen = not (options.once or is_stream) and has_terminal()
    while True:
        result = show(options, on_screen=on_screen, is_stream=is_stream)
        code = write_ending(result, Output(1, options.ascii))
        if not result.asks_next:
            return code
        # with the ranks and the workers that it needs
        options = replace(options, bottleneck=result.asks_next, ranks=None, workers=None)


def _choose_python(options: DemoOptions) -> str:
    """Return the Python that trains, "" where a recording is shown.

    Raises:
        UsageError: for options that do not fit together.
        NoTargetError: when no Python has torch, and what is asked for was not recorded.
    """
    _training_command("", options)  # what cannot be is refused before anything is looked for
    asked = [f"--{name}" for name in ("ranks", "workers") if getattr(options, name) is not None]
    if options.recorded:
        if asked:
            raise exclude(f"--recorded and {asked[0]}")
        return ""
    try:
        return find_python()
    except NoTargetError as error:
        if asked:
            raise
        complain(f"tpmon: no Python with torch, so a recording is shown; live: {error.try_this}")
        return ""


def find_next(names: Sequence[str], bottleneck: str) -> str:
    """Return the bottleneck after one, the first after the last."""
    return names[(names.index(bottleneck) + 1) % len(names)]


def list_recorded() -> list[str]:
    """List the bottlenecks of which there is a recording."""
    return [one.name for one in BOTTLENECKS if os.path.exists(_place_recording(one.name))]


def _place_recording(bottleneck: str) -> str:
    return os.path.join(RECORDINGS, f"{bottleneck}.tpmon")


def show_training(python: str, options: DemoOptions, *, on_screen: bool, is_stream: bool) -> ScreenResult:
    """Start the training, watch it, and end it."""
    from tpmon.commands.attach import watch_as_text
    from tpmon.probe.job.resolve import find_job
    from tpmon.ui.terminal_io.terminal import ScreenResult

    complain(f"tpmon: starting the demo training ({options.bottleneck}); its first step takes some seconds")
    demo = start_demo(options, python)
    try:
        complain(f"tpmon: demo training {demo.pid} runs; its log, until it ends: {demo.log_path}")
        job = find_job(demo.pid)
        if on_screen:
            from tpmon.commands.screen import show_job

            return show_job(job, options, following=find_next(NAMES, options.bottleneck))
        if is_stream:
            watch_as_text(job, options, once=False, json=options.json, plain=options.plain)
        else:
            _pick_form(options, is_stream=is_stream)(_await_verdict(job, options))
        return ScreenResult(ExitCode.OK, "", "")
    finally:
        demo.stop()


def show_recorded(options: DemoOptions, *, on_screen: bool, is_stream: bool) -> ScreenResult:
    """Show the recording of the same training, made elsewhere."""
    from tpmon.record import require_sqlite
    from tpmon.ui.terminal_io.terminal import ScreenResult

    require_sqlite()
    from tpmon.record.recording import Recording

    recorded = list_recorded()
    if options.bottleneck not in recorded:
        raise UsageError(
            f"there is no recording of {options.bottleneck}",
            f"a Python with torch, or one of: {', '.join(recorded)}",
        )
    complain(f"tpmon: the demo training ({options.bottleneck}), recorded, not live")
    recording = Recording(_place_recording(options.bottleneck))
    if on_screen:
        from tpmon.commands.recordings.replay import show_recording

        following = find_next(recorded, options.bottleneck)
        return show_recording(recording, find_begin(recording), ascii_only=options.ascii, following=following)
    with recording:
        write = _pick_form(options, is_stream=is_stream)
        if not is_stream:
            write(recording.frame(recording.last.n))
            return ScreenResult(ExitCode.OK, "", "")
        output = Output(1, options.ascii)
        for frame in recording.frames(recording.first.n, recording.last.n):
            output.check_reader()
            write(frame)
    return ScreenResult(ExitCode.OK, "", "")


def find_verdict(recording: Recording) -> VerdictSpan:
    """Return when a recording first has the verdict with which it ends."""
    spans = recording.verdicts()
    last = spans[-1]
    return next(one for one in spans if (one.kind, one.cause) == (last.kind, last.cause))


def find_begin(recording: Recording) -> Moment:
    """Return the second of a recording to begin with: a little before the verdict with which it ends."""
    return recording.find(find_verdict(recording).from_ns - BEFORE_VERDICT_NS)


def _pick_form(options: DemoOptions, *, is_stream: bool) -> Callable[[Frame], None]:
    from tpmon.report.plain import pick_form

    return pick_form(Output(1, options.ascii), once=not is_stream, json=options.json, plain=options.plain)


def shows(finding: Finding, bottleneck: str) -> bool:
    """Tell whether a verdict is what a bottleneck is started for: a fault, or that there is none."""
    from tpmon.model.verdict import Kind, pick_code

    if finding.kind in (Kind.NOT_ENOUGH_EVIDENCE, Kind.STARTING):
        return False
    return bottleneck == BOTTLENECKS[0].name or pick_code(finding.kind, finding.cause) != 0


def _await_verdict(job: Job, options: DemoOptions) -> Frame:
    """Watch until the verdict is there, at most so long as one may take, and return that second."""
    from tpmon.commands.command import open_session
    from tpmon.model.frame import TargetState
    from tpmon.model.known import is_known

    most_s = VERDICT_S + _find_kind(options.bottleneck).seen_after_s
    complain(f"tpmon: watching it until there is a verdict, at most {most_s:.0f} s")
    end_s = time.monotonic() + most_s

    def sink(update: Update) -> None:
        finding = update.frame.verdict
        ended = update.frame.target.state is TargetState.ENDED
        if ended or (is_known(finding) and shows(finding, options.bottleneck)) or time.monotonic() >= end_s:
            session.stop()

    session = open_session(job, options, sink)
    last = session.run()
    if last is None:
        raise ValueError("a session ended before its first Frame")
    if not (is_known(last.verdict) and shows(last.verdict, BOTTLENECKS[0].name)):
        complain(f"tpmon: no verdict within {most_s:.0f} s; on a quieter machine it comes sooner")
    return last


COMMAND = Subcommand(
    DemoOptions,
    run,
    "demo [options]",
    "Start a small real training (torch on the CPU) and watch it; it ends with tpmon. Where no Python has\n"
    "torch: a recording of it. On the screen n goes on to the next bottleneck. Without a terminal, or\n"
    "asked for one reading: its verdict as text, as soon as there is one. The exit code is 0 in any case.",
    "\n".join(("bottlenecks:", *(f"  {one.name:<16} {one.summary}" for one in BOTTLENECKS))),
)
