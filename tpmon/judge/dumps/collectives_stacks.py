"""Take from the stacks of a dump what the records of collectives are joined with. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tpmon.judge.dumps.describe import Wait, describe_stack
from tpmon.judge.dumps.outlier import IN_COLLECTIVE
from tpmon.judge.stacks.classify import package_of
from tpmon.model.dump import DumpThread, Motion, StackGroup
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import say_wait
from tpmon.model.units import format_seconds

BACKENDS = {"nccl": "NCCL", "gloo": "gloo"}
_THREADS = (("pt_nccl", "nccl"), ("pt_gloo", "gloo"))
"""How torch names the threads of a backend."""
FRAMEWORK_TIMEOUT_S = 1800.0
"""What these frameworks give torch where the job does not say (docs/thresholds.md)."""
_FRAMEWORKS = (
    ("transformers", "/transformers/trainer.py", "transformers.Trainer"),
    ("deepspeed", "", "DeepSpeed"),
    ("lightning", "", "Lightning"),
    ("pytorch_lightning", "", "Lightning"),
    ("lightning_fabric", "", "Lightning"),
)
"""Package, the file that shows the loop is the framework's, and how people call it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Say where the main thread of a rank is by its stack, and what it waits for; "" for not known."""

    doing: str
    waits: str


def find_standings(groups: Sequence[StackGroup]) -> dict[int, Standing]:
    """Return where each rank of a dump is; of a number that several have none: which is recorded is not told.

    Ranks that a program starts itself are numbered by birth, on each host of a job from 0 on.
    """
    found: dict[int, list[Standing]] = {}
    for group, thread in _ranks_of(groups):
        if is_known(thread.rank):
            standing = Standing(group.doing if is_known(group.frames) else "", say_wait(thread))
            found.setdefault(thread.rank, []).append(standing)
    return {rank: those[0] for rank, those in found.items() if len(those) == 1}


@dataclass(frozen=True, slots=True)
class Waits:
    """Hold for how long ranks stand in collectives by their stacks, and the backend by its threads.

    ``framework`` has a default timeout of its own; "" for none that the stacks show. ``by_log``: they were
    seen once, and may have begun to wait with the last line of the log.
    """

    backend: str
    since_s: Known[float]
    framework: str = ""
    by_log: bool = False


def find_waits(
    groups: Sequence[StackGroup], silent_s: Applicable[float] = NOT_APPLICABLE
) -> tuple[Waits, ...]:
    """Return the waits of ranks for other ranks, () where none waits; ``silent_s``: the age of the log."""
    threads = (thread for group in groups for thread in group.threads if thread.kind is ThreadKind.COMM)
    backend = find_backend(thread.name for thread in threads)
    ranks = [group for group, _ in _ranks_of(groups)]
    framework = find_framework(known_or(group.frames, ()) for group in ranks)
    waits = tuple(Waits(backend, group.since_s, framework) for group in ranks if _waits_for_ranks(group))
    if waits and is_known(silent_s) and all(group.motion is Motion.ONCE for group in ranks):
        return (Waits(backend, silent_s, framework, by_log=True),)
    return waits


def find_framework(stacks: Iterable[Sequence[StackFrame]]) -> str:
    """Return the framework in stacks of ranks that gives its process group a timeout; "" for none."""
    files = {frame.file for frames in stacks for frame in frames}
    for package, end, framework in _FRAMEWORKS:
        if any(package_of(file) == package and file.endswith(end) for file in files):
            return framework
    return ""


def find_backend(names: Iterable[str]) -> str:
    """Return the backend whose threads there are, by the names of communication threads; "" for none."""
    there = tuple(names)
    return next((name for start, name in _THREADS if any(one.startswith(start) for one in there)), "")


def may_wait(groups: Sequence[StackGroup]) -> bool:
    """Tell whether any rank waits for other ranks or for its device, or could not be read."""
    return any(
        not is_known(group.frames) or _waits_for_ranks(group) or _wait_of(group) is Wait.DEVICE
        for group, _ in _ranks_of(groups)
    )


def _wait_of(group: StackGroup) -> Wait:
    first = group.threads[0]
    return describe_stack(first.role, first.kind, known_or(group.frames, ())).wait


def _ranks_of(groups: Sequence[StackGroup]) -> Iterator[tuple[StackGroup, DumpThread]]:
    for group in groups:
        for thread in group.threads:
            if thread.role is Role.RANK and thread.kind is ThreadKind.MAIN:
                yield group, thread


def _waits_for_ranks(group: StackGroup) -> bool:
    if not is_known(group.frames):
        return False
    return group.doing.startswith(IN_COLLECTIVE) or _wait_of(group) is Wait.RANKS


def say_assumed_abort(waits: Sequence[Waits], defaults_s: Mapping[str, float]) -> str:
    """Say when the backend gives up if the job left its timeout as it is; "" where nothing tells."""
    known = [one.since_s for one in waits if is_known(one.since_s)]
    if not known or waits[0].backend not in defaults_s:
        return ""
    framework = waits[0].framework
    default_s = FRAMEWORK_TIMEOUT_S if framework else defaults_s[waits[0].backend]
    left_s = default_s - max(known)
    name = BACKENDS[waits[0].backend]
    by_log = any(one.by_log for one in waits)
    if left_s <= 0:
        if by_log:  # the wait may be younger than the last line: nothing follows for the timeout
            return ""
        return (
            f"{name} would have given up by default after {format_seconds(default_s)}: its timeout is longer"
        )
    whose = f"{framework}'s" if framework else "its"
    verb = "aborts this job" if waits[0].backend == "nccl" else "gives up"
    since = " from the last log write on" if by_log else ""
    return f"{name} {verb} in about {format_seconds(left_s)} (assumed: {whose} default timeout{since})"
