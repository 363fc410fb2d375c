"""Ranks that no signal reaches: killed with a thread stuck in the kernel, or asleep in a driver of cards."""

import pytest

from tests.frames import make_frame
from tests.judging import said, scene_of
from tests.quiet_jobs import quiet_rank
from tests.waits import wait_of
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion
from tpmon.judge.hang.attribution import find_ended
from tpmon.judge.hang.causes import need_of_wait
from tpmon.judge.hang.rules import judge_blocked_io
from tpmon.judge.rules.lifecycle import judge_finished
from tpmon.model.verdict import Kind

KILLED = "killed, but thread 4290 is stuck in nvidia_ioctl (D) and holds its cards"


def test_a_killed_rank_that_cannot_die_is_blocked_and_not_the_end_of_the_job():
    scene = scene_of(make_frame(processes=(quiet_rank(state="D", waits_for=KILLED),), output=()))
    answer = judge_blocked_io(scene)
    assert said(answer) == (Kind.HUNG, "blocked-io")
    assert isinstance(answer, Suspicion)
    assert answer.summary == f"rank 0 has been blocked for 90 s: {KILLED}"
    assert type(judge_finished(scene)) is Cleared
    assert find_ended(scene) == []


@pytest.mark.parametrize("words", ["nvidia_ioctl", "uvm_down_read", "_nv041234rm", "os_acquire_mutex"])
def test_a_rank_asleep_in_the_driver_is_told_with_its_function_and_asks_for_the_card(words):
    answer = judge_blocked_io(scene_of(make_frame(processes=(quiet_rank(state="D", waits_for=words),))))
    assert said(answer) == (Kind.HUNG, "blocked-io")
    assert isinstance(answer, Suspicion)
    assert words in answer.summary
    assert answer.observed == {Need.GPU_WAIT}


@pytest.mark.parametrize("words", ["nvme_queue_rq", "NFS", "killed, but thread 7 is stuck in rpc_wait (D)"])
def test_a_disk_and_a_file_system_are_no_driver_of_cards(words):
    assert need_of_wait(wait_of(words)) is Need.BLOCKED_READ
