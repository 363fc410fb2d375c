"""Say what the stacks of a hang show about its remedies: who is alone, what a fork lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.dumps.camps import ThreadSeen
from tpmon.judge.dumps.describe import LibraryCall
from tpmon.judge.features.ends import list_ends
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hang import group
from tpmon.judge.knowledge import hold_table
from tpmon.judge.stacks.classify import find_users, name_line, package_of
from tpmon.model.dump import WaitKind, WaitTarget
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Outcome, Role
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import LOCK_CALLS, name_ranks
from tpmon.model.verdict import Kind
from tpmon.model.waits import WaitReason


@dataclass(frozen=True, slots=True)
class ForkedPool:
    """Name the threads that a library has, and what a program does where a fork would lose them."""

    words: str
    switch: str


POOLS = hold_table(ForkedPool, __file__, "catalogue/pools.toml")
"""The libraries with threads of their own, by package."""


def _mains(scene: Scene) -> list[ThreadSeen]:
    found = (
        [scene.watch.picture.main_of(one.process.pid) for one in scene.ranks] if scene.watch.picture else []
    )
    return [one for one in found if one is not None and one.frames]


def find_accused(scene: Scene, suspicion: Suspicion) -> ThreadSeen | None:
    """Return the main thread of the process that a verdict names, in the newest picture of all stacks."""
    picture, pid = scene.watch.picture, suspicion.pid
    return picture.main_of(pid) if picture is not None and is_known(pid) else None


def _meets(seen: ThreadSeen) -> bool:
    return seen.doing.wait is WaitReason.COLLECTIVE


def find_alone(scene: Scene, suspicion: Suspicion) -> ThreadSeen | None:
    """Return the one rank in a collective that the others do not reach, where they wait in another one."""
    mains = _mains(scene)
    is_missing = suspicion.kind is Kind.HUNG and suspicion.cause == "missing-rank"
    return group.find_alone(mains) if is_missing and mains and all(map(_meets, mains)) else None


def _awaits_ranks(seen: ThreadSeen, pids: set[int]) -> bool:
    """Tell whether a rank waits for others: in a collective, at the store of one of them, or at its end."""
    ends = {one.pid for one in seen.ends}
    return _meets(seen) or seen.doing.call is LibraryCall.EXIT or (bool(ends) and ends <= pids)


def name_past(scene: Scene, suspicion: Suspicion) -> Applicable[str]:
    """Say which ranks are past the backward passes in which the others wait: "rank 1 is", "ranks 0-2 are"."""
    mains = _mains(scene)
    past = [one for one in mains if not group.is_in_backward(one)]
    if suspicion.kind is not Kind.HUNG or suspicion.cause != "missing-rank" or len(past) == len(mains):
        return NOT_APPLICABLE
    pids = {one.thread.pid for one in mains}
    if past and all(_awaits_ranks(one, pids) for one in past):
        return f"{name_ranks(one.thread for one in past)} {'is' if len(past) == 1 else 'are'}"
    gone = suspicion.rank
    is_gone = Need.RANK_GONE in suspicion.observed and any(
        end.role is Role.RANK and end.rank == gone and end.outcome is Outcome.WELL
        for _, end in list_ends(scene.history)
    )
    return f"rank {gone} is" if is_gone and not past else NOT_APPLICABLE


def observe_standing(scene: Scene, suspicion: Suspicion) -> Iterator[Need]:
    """Yield what the newest picture of all stacks shows about the accused process of a hang."""
    picture, accused = scene.watch.picture, find_accused(scene, suspicion)
    if suspicion.kind is not Kind.HUNG or len(_mains(scene)) < max(len(scene.ranks), 1):
        return
    yield Need.STACKS_TOLD
    if find_alone(scene, suspicion) is not None:
        yield Need.ONE_RANK_ALONE
    if is_known(name_past(scene, suspicion)):
        yield Need.GRADIENTS_AWAITED
    if accused is None or not accused.frames or picture is None:
        return
    others = picture.threads_of(accused.thread.pid)
    if any(one is not accused and find_users(one.frames) >= 0 for one in others):
        yield Need.HOLDER_SEEN
    if Need.FILE_LOCK_WAIT in suspicion.observed and not _holds_kernel_lock(accused.thread.waits_on):
        yield Need.LOCK_FILE_LEFT


def _holds_kernel_lock(target: Applicable[WaitTarget]) -> bool:
    return is_known(target) and target.call in LOCK_CALLS


def name_lock_file(target: Applicable[WaitTarget]) -> Applicable[str]:
    """Return the path of a lock file that is polled; a lock of the kernel has a holder that frees it."""
    polled = is_known(target) and target.kind in (WaitKind.FILE, WaitKind.LOCK)
    return target.name if is_known(target) and polled and not _holds_kernel_lock(target) else NOT_APPLICABLE


def name_place(frames: Sequence[StackFrame]) -> Applicable[str]:
    """Return the innermost line of the program's own code: "train.py:14"."""
    index = find_users(frames)
    return name_line(frames[index]) if index >= 0 else NOT_APPLICABLE


def find_pool(scene: Scene, suspicion: Suspicion) -> Applicable[ForkedPool]:
    """Return the pool of the library that the accused process has called last, of those that are known."""
    accused = find_accused(scene, suspicion)
    frames = accused.frames if accused is not None else ()
    names = map(package_of, [frame.file for frame in reversed(frames[find_users(frames) + 1 :])])
    return next((POOLS[name] for name in names if name in POOLS), NOT_APPLICABLE)
