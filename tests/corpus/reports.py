"""What is true of programs that were made after public bug reports, and are kept outside of the project.

A folder of them is recorded with ``make recordings RECORDINGS="--programs DIR"``. Their verdict, whom it blames and
the first thing that it advises are known; ``make rejudge`` measures all three. Those that are kept in the project are
in own_reports.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from tests.corpus.programs import Recorded
from tests.corpus.truth import Truth
from tests.hangs.programs import START_S
from tests.programs.causes.running import SCRATCH, CannotBeMadeError, end_tree
from tests.programs.causes.table import BALANCED, COMPUTE, Label
from tpmon.judge.advice.choose import CATALOGUE
from tpmon.model.known import known_or
from tpmon.model.verdict import Finding, Kind
from tpmon.probe.base.procread import read_table

GROUP = "reports"
SETTLE_S = 3.0
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
STARTERS = {"python": (sys.executable,), "torchrun": TORCHRUN}
SOON = ("--hang-after", "30")
PRINTED_PID = re.compile(r'"pid": (\d+)')
BEGUN = PRINTED_PID.pattern
STEPS = r"step [1-9]\d*0 "
BLAMED = '"event": "hang"'


class Fit(str, Enum):
    """Say how what is advised first fits a program."""

    RIGHT = "right"
    HARMFUL = "harmful"
    BESIDE = "beside the point"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Hold a program and what is true of it.

    ``run`` is what its user types. tpmon attaches to what that starts, or to the PID that it prints
    (``attach_printed``), once its output has ``ready``. ``kind`` is the number of the kind of error that it stands
    for. ``culprit`` says whom a right verdict names; ``place`` is a pattern that its text then has, "" where nobody is
    to blame; ``rank`` is the one that it points at. ``right`` and ``harmful`` are remedies of the catalogue.
    ``group`` stands before the name wherever programs of several groups are listed.
    """

    name: str
    kind: int
    label: Label
    culprit: str
    place: str
    run: str = ""
    also: tuple[Label, ...] = ()
    rank: int | None = None
    right: tuple[str, ...] = ()
    harmful: tuple[str, ...] = ()
    seconds: float = 75.0
    computes: bool = True
    ready: str = STEPS
    attach_printed: bool = False
    flags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    group: str = GROUP

    @property
    def full_name(self) -> str:
        return f"{self.group}/{self.name}"

    @property
    def command(self) -> str:
        return self.run or f"python {self.name}.py"

    @property
    def truth(self) -> Truth:
        return Truth((self.label, *self.also))

    def fits(self, remedy: str) -> Fit:
        if not remedy:
            return Fit.NONE
        return Fit.RIGHT if remedy in self.right else Fit.HARMFUL if remedy in self.harmful else Fit.BESIDE


def data(cause: str) -> Label:
    return Label(Kind.DATA_BOUND, cause)


def hung(cause: str) -> Label:
    return Label(Kind.HUNG, cause)


def hang(name: str, kind: int, cause: str, culprit: str, place: str, **more: Any) -> Reported:
    options = {"computes": False, "ready": BEGUN, **more}
    return Reported(name=name, kind=kind, label=hung(cause), culprit=culprit, place=place, **options)


MORE_WORKERS = ("more-workers", "more-readers", "more-sleepers", "start-workers")
LOST_BATCH = ("bigger-shm", "shorter-queue", "time-limit-for-batches")
IDLE, UNDECIDED = Label(Kind.IDLE), Label(Kind.NOT_ENOUGH_EVIDENCE)
REPORTS = (
    hang(
        "executor_fork",
        1,
        "lock",
        "a forked worker at a future in __getitem__, for which no thread of it works",
        r"executor_fork\.py:28",
        right=("no-fork-after-threads",),
        harmful=("one-order-of-locks", *LOST_BATCH),
    ),
    hang(
        "map_num_proc",
        2,
        "lock",
        "processes of the pool of map() in encode_batch, whose threads did not survive the fork",
        r"encode|map_num_proc\.py:22",
        right=("no-fork-after-threads", "look-at-pool"),
        harmful=("find-dead-worker", "stage-on-nvme", "map-the-checkpoint", "cache-in-ram", *LOST_BATCH),
        seconds=120.0,
        needs=("datasets", "tokenizers"),
    ),
    hang(
        "rendezvous_missing",
        3,
        "remote-rank",
        "rank 0 in init_process_group, for 1 of 2 ranks that has not joined",
        r"init_process_group",
        also=(UNDECIDED,),  # it may still join; but the place is known
        right=("look-on-other-hosts",),
        harmful=("check-mount", "one-order-of-locks"),
        seconds=120.0,
    ),
    Reported(
        name="slow_batch_sampler",
        kind=4,
        label=data("sampler"),
        culprit="the main thread in the batch sampler's __iter__; the workers have nothing to do",
        place=r"slow_batch_sampler\.py:3\d",
        run="python slow_batch_sampler.py --n 60000",
        right=("choose-at-once",),
        harmful=(*MORE_WORKERS, "prefetch-factor", "gpu-transforms", "transform-once", "one-loader"),
    ),
    Reported(
        name="one_shard",
        kind=5,
        label=data("uneven-workers"),
        culprit="3 of 4 workers have ended, as there is one shard",
        place=r"\b[13] of (its |the )?4\b|(few|fewer|more) shards",
        right=("more-shards",),
        harmful=MORE_WORKERS,
        needs=("datasets",),
    ),
    Reported(
        name="http_429",
        kind=6,
        label=data("network-store"),
        culprit="the workers sleep in urllib3's Retry.sleep: the server refuses",
        place=r"retry|refuse|http_429\.py:48",
        ready=r"step \d",
        computes=False,
        right=("fewer-requests", "stage-on-nvme", "cache-in-ram", "shard-files"),
        harmful=(*MORE_WORKERS, "prefetch-factor", "fetch-many"),
        needs=("requests", "urllib3"),
    ),
    hang(
        "fsdp_rank0_save",
        7,
        "missing-rank",
        "rank 0 alone in the all-gather of get_model_state_dict, at save(); rank 1 in the barrier after it",
        r"get_model_state_dict|fsdp_rank0_save\.py:(14|36)\b",
        run="torchrun --nproc-per-node 2 fsdp_rank0_save.py",
        ready="step 50",
        right=("call-on-all-ranks",),
        harmful=("restart-from-checkpoint", "check-mount"),
    ),
    hang(
        "uneven_ddp",
        7,
        "missing-rank",
        "rank 1, past its epoch, waits at the store; rank 0 in the all-reduce of backward",
        r"uneven_ddp\.py:33",
        rank=1,
        right=("even-batches",),
        harmful=("limit-the-request", "look-at-other-process", "restart-from-checkpoint"),
        ready="step 350",
        seconds=120.0,
    ),
    hang(
        "stale_baton",
        8,
        "lock",
        "the main thread at a lock file that nobody holds, in FileBaton.wait below cpp_extension.load",
        r"baton|stale_baton\.py:21",
        right=("delete-lock-file", "find-lock-file"),
        harmful=("one-order-of-locks", "find-endless-loop", "compile-cache"),
        seconds=120.0,
        ready="step 50",
        flags=SOON,
        needs=("ninja",),
    ),
    Reported(
        name="orphan_workers",
        kind=9,
        label=Label(Kind.IDLE, "left-over"),
        also=(Label(Kind.IDLE, "ended"),),
        culprit="workers whose rank has ended",
        place=r"left over|rank (has )?ended",
        harmful=("dump-stacks", "look-for-producer"),
        seconds=60.0,
        computes=False,
        ready='"label": "orphans"',
        attach_printed=True,
    ),
    Reported(
        name="bound_ranks",
        kind=10,
        label=Label(Kind.OVERSUBSCRIBED, "affinity"),
        culprit="both ranks may run on CPU 0 alone, while others are idle",
        place=r"\bbound\b|binding|affinity|may run on",
        run="torchrun --nproc-per-node 2 bound_ranks.py",
        right=("unbind-ranks", "widen-affinity"),
        harmful=("fewer-ranks", "cap-rank-threads", "cap-threads-in-script", "more-cores"),
    ),
    hang(
        "queue_join",
        11,
        "lock",
        "the main process in join() of a child, whose feeder thread writes a pipe that only the parent reads",
        r"join|queue_join\.py:31",
        also=(hung("blocked-io"),),
        right=("read-before-join",),
        harmful=("end-left-thread", "look-for-producer", "one-order-of-locks"),
    ),
    Reported(
        name="gc_collect",
        kind=12,
        label=Label(Kind.PYTHON_BOUND, "single-thread"),
        culprit="gc.collect() in each step",
        place=r"gc_collect\.py:19",
        right=("mend-hot-call",),
        harmful=("find-unused-off", "ddp-buckets", "start-workers"),
    ),
    Reported(
        name="omp1_torchrun",
        kind=13,
        label=COMPUTE,
        also=(Label(Kind.PYTHON_BOUND),),
        culprit="the rank computes on one thread, as OMP_NUM_THREADS=1 says; other CPUs are idle",
        place=r"OMP_NUM_THREADS|one thread|1 thread",
        run="OMP_NUM_THREADS=1 torchrun --nproc-per-node 1 omp1_torchrun.py",
        right=("use-all-cores", "others-give-way"),
        harmful=("more-cores", "cap-rank-threads"),
    ),
    Reported(
        name="elastic_loop",
        kind=13,
        label=Label(Kind.FAILED, "restarts"),
        culprit="rank 1 ends with an error some seconds into each attempt",
        place=r"rank 1\b.*(ended|error|exit)|restart",
        run="torchrun --nproc-per-node 2 --max-restarts 100 elastic_loop.py",
        right=("read-last-words",),
        harmful=("local-environment",),
        seconds=90.0,
        ready='"restart": "2"',
    ),
    Reported(
        name="spawn_pickle",
        kind=13,
        label=data("respawn"),
        culprit="the main thread in Process.start, which pickles the data set for each worker of each epoch",
        place=r"spawn_pickle\.py:29|pickle",
        right=("persistent-workers",),
        harmful=MORE_WORKERS,
        seconds=90.0,
        ready="epoch 0",
    ),
    Reported(
        name="fd_leak",
        kind=14,
        label=Label(Kind.LIMITS, "descriptors"),
        culprit="open descriptors grow towards their limit",
        place=r"descriptor",
        run="python fd_leak.py --limit 2048",
        right=("copy-what-is-kept", "others-give-way", "larger-cpu-weight"),
        harmful=("bigger-shm",),
    ),
    Reported(
        name="small_operators",
        kind=17,
        label=Label(Kind.PYTHON_BOUND, "small-operators"),
        culprit="operators of microseconds, called from Python; the pool's second thread spins",
        place=r"operator|spin",
        ready="steps/s",
        right=("one-thread",),
        harmful=("more-cores", "use-all-cores"),
    ),
    Reported(
        name="ok_sweep_parent",
        kind=19,
        label=COMPUTE,
        also=(BALANCED,),
        culprit="nobody: the parent waits for a trial that computes",
        place="",
        ready=r"2\.\d",
        right=("more-cores",),  # the trial keeps all of them busy
        harmful=("dump-stacks",),
    ),
    Reported(
        name="ok_eval_daemon",
        kind=21,
        label=IDLE,
        also=(UNDECIDED, Label(Kind.PAUSED, "validation")),
        culprit="nobody: it polls for a file of another job every 10 s",
        place="",
        seconds=320.0,
        computes=False,
        ready="evaluated",
        flags=("--interval", "2"),  # half the Frames of five minutes
    ),
    Reported(
        name="ok_realtime_robot",
        kind=21,
        label=BALANCED,
        also=(IDLE, UNDECIDED),
        culprit="nobody: the clock of the robot sets the pace on purpose",
        place="",
        ready='"steps"',
        computes=False,
        harmful=("call-aside", "log-rarely"),
    ),
    hang(
        "hang_asyncio",
        24,
        "lost-batch",
        "the main thread in the event loop: a coroutine awaits a queue that nobody feeds",
        r"hang_asyncio\.py:(2[5-9])|await",
        also=(hung("lock"), hung("no-progress")),
        right=("look-for-producer",),
        harmful=("no-breakpoint", "limit-the-request"),
        seconds=120.0,
        ready=BLAMED,
    ),
    hang(
        "hang_barrier_input",
        24,
        "missing-rank",
        "rank 1 at input(), rank 0 in the barrier",
        r"hang_barrier_input\.py:2[34]",
        rank=1,
        right=("look-at-missing-rank", "no-breakpoint"),
        harmful=("restart-from-checkpoint",),
        ready=BLAMED,
    ),
)


def list_reports(folder: Path, rows: Iterable[Reported] = REPORTS) -> list[Recorded]:
    """List the programs of a folder whose truth is known; whatever begins with "_" is no program."""
    names = {path.stem for path in folder.glob("*.py")}
    return [
        Recorded(row.full_name, row.truth, row.seconds, row.computes, partial(start_report, row, folder), row.flags)
        for row in rows
        if row.name in names
    ]


def list_unknown(folder: Path) -> list[str]:
    return sorted({path.stem for path in folder.glob("[!_]*.py")} - {row.name for row in REPORTS})


@contextmanager
def start_report(row: Reported, folder: Path, _seed: int) -> Iterator[int]:
    """Start a program as its user does, in a folder of its own, and end all that it started and left.

    Raises:
        CannotBeMadeError: when a package is not here.
        RuntimeError: when it ended, or took too long.
    """
    lacks = [name for name in row.needs if importlib.util.find_spec(name) is None]
    if lacks:
        raise CannotBeMadeError(f"it needs {', '.join(lacks)}")
    settings, command = parse_run(row.command, folder)
    with tempfile.TemporaryDirectory(prefix="tpmon-reports-", dir=SCRATCH) as scratch:
        log = Path(scratch, "output.log")
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {
            "TMPDIR": scratch,
            "HF_HOME": scratch,
            "GLOO_SOCKET_IFNAME": "lo",
            "PATH": tools,
            "PYTHONUNBUFFERED": "1",
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own, **settings},
            )
        try:
            said = _wait_until(row.ready, process, log)
            time.sleep(SETTLE_S)
            yield int(PRINTED_PID.findall(said)[0]) if row.attach_printed else process.pid
        finally:
            end_tree(process)
            _end_left_over(scratch)


def parse_run(text: str, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the settings and the command of a line that a user types."""
    words = shlex.split(text)
    settings = [word.partition("=") for word in words if "=" in word and word.partition("=")[0].isupper()]
    rest = words[len(settings) :]
    paths = (str(folder.resolve() / word) if word.endswith(".py") else word for word in rest[1:])
    return {name: value for name, _, value in settings}, [*STARTERS[rest[0]], *paths]


def _wait_until(ready: str, process: subprocess.Popen[bytes], log: Path) -> str:
    pattern, deadline = re.compile(ready), time.monotonic() + START_S
    while True:
        ended = process.poll() is not None
        text = log.read_text(errors="replace")
        if pattern.search(text):
            return text
        if ended or time.monotonic() > deadline:
            raise RuntimeError(f"program did not start ({process.poll()}):\n{text[-2000:]}")
        time.sleep(0.1)


def _end_left_over(scratch: str) -> None:
    """Kill whatever was started with this folder and has lost its parent."""
    for pid in read_table():
        with suppress(OSError):
            if f"TMPDIR={scratch}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Advice:
    """Hold what a verdict says of a program beyond its kind: what to try first, and whether it names the culprit."""

    row: Reported
    remedy: str
    names_culprit: bool

    @property
    def fit(self) -> Fit:
        """Say how the remedy fits; one for another rank does not."""
        fit = self.row.fits(self.remedy)
        lost = self.row.rank is not None and not self.names_culprit
        return Fit.BESIDE if lost and fit is Fit.RIGHT else fit


def assess_advice(row: Reported | None, finding: object) -> Advice | None:
    """Compare a verdict with what is known of a program; None where nothing is."""
    if row is None or not isinstance(finding, Finding):
        return None
    return Advice(row, find_first_remedy(finding), names_culprit(row, finding))


def find_first_remedy(finding: Finding) -> str:
    """Return the name of the remedy that is advised first, "" where none is."""
    said = known_or(finding.try_, "")
    found = [name for name in CATALOGUE if _title(CATALOGUE[name].title).search(said)]
    return max(found, key=lambda name: len(CATALOGUE[name].title), default="")


def _title(text: str) -> re.Pattern[str]:
    """Match the title of a remedy, which may say between its words and its paste what it changes."""
    words = re.sub(r"\\\{\w+\\\}", ".*", re.escape(text))
    return re.compile(words.replace(":", r"(?: \(changes the \w+\))?:", 1))


def names_culprit(row: Reported, finding: Finding) -> bool:
    """Tell whether the text of a verdict names the place that is to blame."""
    evidence = " ".join(f"{one.name} {one.value} {one.text}" for one in finding.evidence)
    text = f"{finding.summary} {known_or(finding.where, '')} {evidence}"
    points = row.rank is None or finding.rank == row.rank
    return points and re.search(row.place, text, re.IGNORECASE | re.DOTALL) is not None
