"""Descriptors, threads, disks and inodes that run out, and those that do not."""

from dataclasses import replace

import pytest

from tests.frames import NOW_NS, make_frame, make_process
from tests.judging import SECOND, said, scene_of
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure
from tpmon.judge.rules import limits
from tpmon.model.host import DescriptorGroup, LimitSample, Resource
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.verdict import Kind, pick_code

RULES = dict(zip(Resource, limits.OTHER_RULES, strict=True))
MB = 1_000_000


def judge(resource: Resource, used: list[float], limit: int, groups: tuple[DescriptorGroup, ...] = ()) -> Answer:
    """Judge a use of a limit by the second."""
    pid = 4211 if resource is Resource.DESCRIPTORS else NOT_APPLICABLE
    frames = [
        replace(
            make_frame(processes=(make_process(),)),
            taken_ns=NOW_NS - (len(used) - 1 - number) * SECOND,
            limits=(LimitSample(resource, int(value), limit, "it", pid, groups),),
        )
        for number, value in enumerate(used)
    ]
    return RULES[resource](replace(scene_of(frames[-1]), history=tuple(frames)))


def ramp(first: float, per_s: float, seconds: int) -> list[float]:
    return [first + per_s * second for second in range(seconds)]


CASES = {
    "a leak that ends soon": (Resource.DESCRIPTORS, ramp(150, 15, 14), 1024, True),
    "a leak that ends within half an hour": (Resource.DESCRIPTORS, ramp(100, 0.6, 60), 1024, True),
    "a leak that ends tomorrow": (Resource.DESCRIPTORS, ramp(100, 0.6, 60), 1 << 20, False),
    "a start": (Resource.DESCRIPTORS, ramp(20, 8, 14), 1024, False),
    "workers that came at once": (Resource.DESCRIPTORS, [100.0] * 20 + [400.0] * 20, 1024, False),
    "batches that come and go": (Resource.DESCRIPTORS, [300.0, 420.0] * 30, 1024, False),
    "nearly full": (Resource.DESCRIPTORS, [1010.0] * 5, 1024, True),
    "threads that never end": (Resource.THREADS, ramp(400, 5, 20), 1000, True),
    "a pool": (Resource.THREADS, [700.0] * 60, 1000, False),
    "a cache fills a disk": (Resource.DISK, ramp(94_000 * MB, 60 * MB, 60), 100_000 * MB, True),
    "a checkpoint that takes half a minute": (Resource.DISK, ramp(50_000 * MB, 1_000 * MB, 30), 100_000 * MB, False),
    "a long checkpoint with room for it": (Resource.DISK, ramp(50_000 * MB, 1_000 * MB, 60), 1_000_000 * MB, False),
    "a disk that has been full for long": (Resource.DISK, [98_500.0 * MB] * 60, 100_000 * MB, False),
    "a disk without room": (Resource.DISK, [99_900.0 * MB] * 60, 100_000 * MB, True),
    "one checkpoint": (Resource.DISK, [9e9] * 30 + [15e9] * 30, 100_000 * MB, False),
    "one file a sample": (Resource.INODES, ramp(900_000, 1_000, 60), 1_000_000, True),
}


@pytest.mark.parametrize("case", CASES)
def test_what_grows_in_every_window_and_ends_soon_is_a_finding(case):
    resource, used, limit, found = CASES[case]
    answer = judge(resource, used, limit)
    assert isinstance(answer, Suspicion if found else Cleared)
    if found:
        assert said(answer) == (Kind.LIMITS, resource.value)
        assert pick_code(answer.kind, answer.cause) == 10


@pytest.mark.parametrize("scale", [1, 7])
def test_the_time_until_it_is_full_is_told_whatever_the_numbers_are(scale):
    answer = judge(Resource.DESCRIPTORS, ramp(400 * scale, 10 * scale, 20), 1000 * scale)
    assert "full in about 41 s" in answer.summary
    assert answer.pid == 4211


@pytest.mark.parametrize(
    ("target", "need", "first"),
    [
        ("/dev/shm", Need.DESCRIPTORS_SHARED, "copy-what-is-kept"),
        ("socket", Need.DESCRIPTORS_OWN, "close-what-is-opened"),
        ("/data/rows", Need.DESCRIPTORS_OWN, "close-what-is-opened"),
    ],
)
def test_the_remedy_fits_what_the_descriptors_lead_to_and_a_higher_limit_comes_after_it(target, need, first):
    groups = (DescriptorGroup(target, 380), DescriptorGroup("pipe", 9))
    answer = judge(Resource.DESCRIPTORS, ramp(400, 10, 20), 1000, groups)
    assert need in answer.observed
    assert f"most lead to {target}" in answer.summary
    remedies = [one.remedy.id for one in choose(answer.kind, answer.cause, answer.observed, RunFacts(pid=4211))]
    assert remedies == [first, "raise-descriptor-limit"]


def test_a_limit_that_was_not_read_is_unsure_and_of_an_older_tpmon_nothing_is_said():
    frame = make_frame()
    assert type(limits.OTHER_RULES[0](scene_of(replace(frame, limits=Missing("no answer"))))) is Unsure
    assert type(limits.OTHER_RULES[0](scene_of(frame))) is Cleared
