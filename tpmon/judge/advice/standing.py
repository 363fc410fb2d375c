"""Say what the stacks of a hang show about its remedies: who is alone, what a fork lacks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.dumps.outlier import ThreadSeen
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.knowledge import LazyTable, make_row, read_table
from tpmon.judge.stacks.classify import classify, find_users, last_name, package_of
from tpmon.judge.stacks.phases import Phase
from tpmon.model.dump import WaitKind, WaitTarget
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import LOCK_CALLS
from tpmon.model.verdict import Kind
from tpmon.model.waits import WaitReason


@dataclass(frozen=True, slots=True)
class ForkedPool:
    """Name the threads that a library has, and what a program does where a fork would lose them."""

    words: str
    switch: str


_TABLE = "catalogue/pools.toml"
POOLS = LazyTable(
    (partial(read_table, __file__, _TABLE),), lambda name, row: make_row(ForkedPool, f"{_TABLE}: {name}", row)
)
"""The libraries with threads of their own, by package."""


def _mains(scene: Scene) -> list[ThreadSeen]:
    picture = scene.watch.picture
    found = [picture.main_of(rank.process.pid) for rank in scene.ranks] if picture is not None else []
    return [one for one in found if one is not None and one.frames]


def _accused(scene: Scene, suspicion: Suspicion) -> ThreadSeen | None:
    picture, pid = scene.watch.picture, suspicion.pid
    return picture.main_of(pid) if picture is not None and is_known(pid) else None


def _meets(seen: ThreadSeen) -> bool:
    return seen.doing.wait is WaitReason.COLLECTIVE


def _in_backward(seen: ThreadSeen) -> bool:
    return any(frame.file.endswith("/torch/autograd/graph.py") for frame in seen.frames) or (
        classify(seen.frames)[0] is Phase.BACKWARD
    )


def _at_barrier(seen: ThreadSeen) -> bool:
    return any("barrier" in last_name(frame.function) for frame in seen.frames[find_users(seen.frames) + 1 :])


def find_alone(scene: Scene, suspicion: Suspicion) -> ThreadSeen | None:
    """Return the one rank in a collective that the others do not reach, where they wait in another one.

    Of two ranks that is the one that is not in a barrier, else the lower.
    """
    mains = _mains(scene)
    if suspicion.kind is not Kind.HUNG or suspicion.cause != "missing-rank" or len(mains) < 2:
        return None
    if not all(map(_meets, mains)) or any(map(_in_backward, mains)):
        return None
    sites = Counter(one.doing.site for one in mains)
    if len(sites) != 2 or min(sites.values()) > 1:
        return None
    alone = [one for one in mains if sites[one.doing.site] == 1]
    return min(alone, key=lambda one: (_at_barrier(one), mains.index(one)))


def _await_gradients(scene: Scene, suspicion: Suspicion) -> bool:
    """Tell whether the accused rank waits for the others outside of backward, and they for it within."""
    mains = _mains(scene)
    accused = next((one for one in mains if one.thread.pid == suspicion.pid), None)
    others = [one for one in mains if one.thread.pid != suspicion.pid]
    if suspicion.cause != "missing-rank" or accused is None or not others:
        return False
    return _meets(accused) and not _in_backward(accused) and all(map(_in_backward, others))


def observe_standing(scene: Scene, suspicion: Suspicion) -> Iterator[Need]:
    """Yield what the newest picture of all stacks shows about the accused process of a hang."""
    accused = _accused(scene, suspicion)
    if suspicion.kind is not Kind.HUNG or len(_mains(scene)) < max(len(scene.ranks), 1):
        return
    yield Need.STACKS_TOLD
    if find_alone(scene, suspicion) is not None:
        yield Need.ONE_RANK_ALONE
    if accused is None or not accused.frames:
        return
    picture = scene.watch.picture
    others = picture.threads_of(accused.thread.pid) if picture is not None else ()
    if any(one is not accused and find_users(one.frames) >= 0 for one in others):
        yield Need.HOLDER_SEEN
    if _await_gradients(scene, suspicion):
        yield Need.GRADIENTS_AWAITED
    if Need.FILE_LOCK_WAIT in suspicion.observed and not _holds_kernel_lock(accused.thread.waits_on):
        yield Need.LOCK_FILE_LEFT


def _holds_kernel_lock(target: Applicable[WaitTarget]) -> bool:
    return is_known(target) and target.call in LOCK_CALLS


def name_lock_file(target: Applicable[WaitTarget]) -> Applicable[str]:
    """Return the path of a lock file that is polled; a lock of the kernel has a holder that frees it."""
    if (
        not is_known(target)
        or _holds_kernel_lock(target)
        or target.kind not in (WaitKind.FILE, WaitKind.LOCK)
    ):
        return NOT_APPLICABLE
    return target.name


def name_place(frames: Sequence[StackFrame]) -> Applicable[str]:
    """Return the innermost line of the program's own code: "train.py:14"."""
    index = find_users(frames)
    if index < 0:
        return NOT_APPLICABLE
    return f"{frames[index].file.rpartition('/')[2]}:{frames[index].line}"


def find_pool(scene: Scene, suspicion: Suspicion) -> Applicable[ForkedPool]:
    """Return the pool of the library that the accused process is in, by its innermost known frame."""
    accused = _accused(scene, suspicion)
    names = [package_of(frame.file) for frame in reversed(accused.frames)] if accused is not None else []
    return next((POOLS[name] for name in names if name in POOLS), NOT_APPLICABLE)
