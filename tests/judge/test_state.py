"""The judge of a job is its Standing: nothing else remembers a job, and no other job changes its verdicts."""

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests import judging
from tests.judge.scenes import SCENES
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hysteresis import Standing
from tpmon.judge.watch.tracker import WatchedTime
from tpmon.model.frame import Frame
from tpmon.model.known import Known
from tpmon.model.stacks import StackSlice
from tpmon.model.verdict import Finding

NAMES = ("workers compute", "one worker is slow", "late rank", "a rank in a lock", "steps")


def follow(frames: Sequence[Frame]) -> Iterator[Known[Finding]]:
    """Judge Frames one by one, and say each time what the verdict is."""
    return (one.frame.verdict for one in judging.follow(frames, Standing(watch=WatchedTime(may_ask=True))))


def test_jobs_that_are_judged_in_turns_get_the_verdicts_of_each_alone():
    alone = {name: list(follow(SCENES[name]())) for name in NAMES}
    together = {name: follow(SCENES[name]()) for name in NAMES}
    told: dict[str, list[Known[Finding]]] = {name: [] for name in NAMES}
    while together:
        for name in list(together):
            verdict = next(together[name], None)
            if verdict is None:
                del together[name]
            else:
                told[name].append(verdict)
    assert told == alone


def test_jobs_that_are_judged_in_threads_get_the_verdicts_of_each_alone():
    alone = {name: list(follow(SCENES[name]())) for name in NAMES}
    with ThreadPoolExecutor(len(NAMES)) as pool:
        told = dict(zip(NAMES, pool.map(lambda name: list(follow(SCENES[name]())), NAMES), strict=True))
    assert told == alone


def test_nothing_of_a_job_is_kept_when_its_standing_is_gone():
    frames = SCENES["late rank"]()
    mine = {id(one) for frame in frames for one in (frame.stacks if isinstance(frame.stacks, tuple) else ())}
    assert mine
    before = {id(one) for one in gc.get_objects() if type(one) is Scene}  # isinstance would run code of other tests
    list(follow(frames))
    del frames
    gc.collect()
    left = [one for one in gc.get_objects() if type(one) in (Scene, StackSlice)]
    assert not [one for one in left if id(one) in mine or (type(one) is Scene and id(one) not in before)]
