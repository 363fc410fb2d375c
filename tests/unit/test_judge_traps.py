"""Real jobs that invite a wrong verdict: what was not read, what is on purpose, what belongs to another."""

from __future__ import annotations

import pytest

from tests.frames import make_gpu
from tests.judging import make_phases
from tests.starving import RANK, line_up, make_second
from tpmon.judge.phases import DataPart, Phase
from tpmon.judge.rules_data import judge_no_workers
from tpmon.judge.scene import see
from tpmon.judge.suspicion import Suspicion, Unsure
from tpmon.model.known import Missing

BUSY_ELSEWHERE = make_gpu(pids=(9999,), sm_pct=99.0)
UNSEEN_CARDS = {
    "driver silent": {"gpus": Missing("NVML has not answered yet")},
    "cards of another container": {
        "gpus": (),
        "notes": ("GPUs not visible from this shell (container or Slurm step)",),
    },
    "processes not listed": {"gpus": (make_gpu(pids=Missing("no permission")),)},
    "another rank's card": {"gpus": (BUSY_ELSEWHERE,)},
}


def loads_itself(**frame):
    phases = make_phases({Phase.DATA_WAIT: 0.6, Phase.FORWARD: 0.4}, parts={DataPart.FETCH: 0.6})
    return see(line_up([make_second(0.0, [], frame=frame)] * 12), {RANK: phases})


@pytest.mark.parametrize("name", UNSEEN_CARDS)
def test_a_wait_that_a_card_nobody_read_may_hide_is_no_fault(name):
    answer = judge_no_workers(loads_itself(**UNSEEN_CARDS[name]))
    assert isinstance(answer, Unsure)
    assert "GPU" in answer.text


def test_a_job_without_cards_on_a_machine_with_cards_is_judged_by_its_cpus():
    idle_machine = {"gpus": (make_gpu(pids=(), processes=()),)}
    assert isinstance(judge_no_workers(loads_itself(**idle_machine)), Suspicion)
