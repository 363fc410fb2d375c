"""A model that is compiled again while it trains is told of: once a rise, for all ranks, not at the start."""

from dataclasses import replace

import pytest

from tests.frames import NOW
from tests.paces import make_hook
from tests.view.test_hook import make_settings
from tpmon.model.frame import EventKind
from tpmon.model.hook import NO_SETTINGS, CompileCounts, HookSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.probe.hooked.step_pace import AGAIN_S, GATHER_S, TRAINED_STEPS, CompileTracker

SECOND = 1_000_000_000
WAIT_S = round(GATHER_S)


def hook_of(frames: int, limit_hits: int = 0, rank: int = 0, steps: int = 500, graphs: int = 2) -> HookSample:
    compiled = CompileCounts(frames + limit_hits, frames, graphs, 0, limit_hits)
    hook = make_hook(4211 + rank, rank=rank, settings=make_settings(age_s=0.5, compiled=compiled))
    return replace(hook, counts=replace(hook.counts, steps=steps))


class Job:
    """Read hooks second by second."""

    def __init__(self) -> None:
        self.teller = CompileTracker()
        self.now_s = 1000

    def read(self, *hooks: HookSample, seconds: int = 1) -> list[str]:
        texts = []
        for _ in range(seconds):
            self.now_s += 1
            events = self.teller.tell(NOW, self.now_s * SECOND, hooks)
            assert all(one.kind is EventKind.COMPILE for one in events)
            texts += [one.text for one in events]
        return texts


@pytest.fixture
def job():
    return Job()


def test_a_rise_is_told_once(job):
    assert job.read(hook_of(12), seconds=60) == []
    assert job.read(hook_of(14, 3), seconds=200) == ["rank 0 compiled again: 14 frames, 3 at the recompile limit"]
    assert job.read(hook_of(14, 4), seconds=200) == ["rank 0 compiled again: 14 frames, 4 at the recompile limit"]


def test_what_was_compiled_before_tpmon_came_or_in_the_first_steps_is_no_news(job):
    assert job.read(hook_of(14, 3), seconds=60) == []
    young = Job()
    assert young.read(hook_of(1, steps=1), hook_of(1, steps=1, rank=1), seconds=9) == []
    assert young.read(hook_of(5, steps=TRAINED_STEPS), seconds=60) == []


def test_a_reading_of_the_first_steps_that_is_still_there_later_counts_for_nothing(job):
    old = hook_of(1, steps=400)
    assert job.read(replace(old, settings=replace(old.settings, age_s=4.5)), seconds=3) == []
    assert job.read(hook_of(6), seconds=60) == []


def test_ranks_that_compile_together_are_told_together(job):
    ranks = range(4)
    job.read(*(hook_of(12, rank=rank) for rank in ranks), seconds=9)
    assert job.read(hook_of(13), *(hook_of(12, rank=rank) for rank in ranks[1:]), seconds=3) == []
    texts = job.read(*(hook_of(13 + rank // 3, rank=rank) for rank in ranks), seconds=WAIT_S)
    assert texts == ["ranks 0-3 compiled again: 13 to 14 frames"]


def test_a_loop_that_compiles_all_the_time_is_told_once_a_minute(job):
    job.read(hook_of(10), seconds=9)
    texts = [text for more in range(300) for text in job.read(hook_of(11 + more))]
    assert len(texts) == 1 + (300 - WAIT_S - 1) // round(AGAIN_S)


def test_counters_that_are_not_read_for_a_while_or_were_cleared_are_no_rise(job):
    job.read(hook_of(12), seconds=9)
    unread = replace(hook_of(12), settings=NO_SETTINGS)
    assert job.read(unread, seconds=9) == []
    assert job.teller.tell(NOW, 0, Missing("no hook")) == []
    assert job.read(hook_of(12), seconds=30) == []
    assert job.read(hook_of(0, graphs=0), seconds=30) == []
    assert job.read(hook_of(3), seconds=WAIT_S + 1) == ["rank 0 compiled again: 3 frames"]
    assert job.read(seconds=3) == []
    assert job.read(hook_of(9), seconds=30) == [], "another run of the same PID"


def test_whole_graphs_and_processes_without_a_rank_have_their_own_words(job):
    whole = replace(hook_of(0), rank=NOT_APPLICABLE)
    job.read(whole, seconds=9)
    more = replace(hook_of(0, graphs=3), rank=NOT_APPLICABLE)
    assert job.read(more, seconds=WAIT_S + 1) == ["process 4211 compiled again: 3 graphs"]
    both = [replace(hook_of(2, graphs=4, rank=rank), rank=NOT_APPLICABLE) for rank in (0, 1)]
    job.read(*both, seconds=round(AGAIN_S) + 9)
    again = [replace(hook_of(3, graphs=5, rank=rank), rank=NOT_APPLICABLE) for rank in (0, 1)]
    assert job.read(*again, seconds=80) == ["processes 4211-4212 compiled again: 3 frames"]
