"""Workers that inherited a mask of few CPUs, on made-up Windows."""

import pytest

from tests.judging import make_phases
from tests.starving import COMPUTES, IDLES, line_up, make_second, starve
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.context import gather_facts, observe
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import see
from tpmon.judge.finding import rate_confidence
from tpmon.judge.hysteresis import Standing, key_of
from tpmon.judge.judge import judge_scene
from tpmon.judge.ranking import find_explained
from tpmon.judge.rules.cpu import judge_worker_affinity, parse_cpus
from tpmon.judge.rules.loader import judge_too_few_workers
from tpmon.judge.stacks.profile import Phase
from tpmon.model.known import Missing, is_known
from tpmon.model.verdict import Confidence, Kind

GONE = Missing("permission denied")
CPU = {
    "budget_cores": 16.0,
    "host_cores": 16,
    "used_cores": 1.3,
    "host_used_cores": 1.4,
    "runnable": 8.2,
    "demand_ratio": 0.51,
    "run_delay_ratio": 0.85,
}
CROWDED = {**COMPUTES, "waiting": 0.875, "cpu_pct": 12.5}


def share(cpus, count=8, kind=CROWDED, **cpu):
    return starve(0.8, [{**kind, "allowed_cpus": cpus}] * count, cpu=CPU | cpu)


def test_workers_that_share_the_one_cpu_of_their_parent_are_not_too_few():
    scene = share("0")
    found = judge_worker_affinity(scene)
    assert (found.kind, found.cause) == (Kind.DATA_BOUND, "worker-affinity")
    assert "its 8 workers may run on one CPU only (CPU 0) and wait for that 88 %" in found.summary
    assert rate_confidence(found, 60.0) is Confidence.HIGH
    few = (Kind.DATA_BOUND, "too-few-workers")
    assert find_explained({key_of(found), few}) == {few}
    chosen = choose(found.kind, found.cause, observe(scene, found), gather_facts(scene, found))
    assert [one.remedy.id for one in chosen] == ["unbind-workers"]
    assert chosen[0].certain
    _, _, notes = judge_scene(scene, Standing())
    assert not any("other-tenants" in note or "too-few" in note for note in notes)


FETCHES = make_phases({Phase.DATA_WAIT: 0.8, Phase.FORWARD: 0.2})


def test_workers_that_wait_for_cpus_which_nobody_uses_are_not_said_to_be_too_few():
    """Their masks were not read; whatever keeps them from the free CPUs would keep more of them too."""
    assert isinstance(judge_too_few_workers(share(GONE)), Unsure)
    beside = share(GONE, host_used_cores=15.0)
    assert isinstance(judge_too_few_workers(beside), Suspicion)
    assert isinstance(judge_too_few_workers(share("0-15", kind=COMPUTES)), Suspicion)


ELSEWHERE = {
    "they may run everywhere": (share("0-15"), Cleared),
    "the whole job is bound": (share("0", budget_cores=1.0), Cleared),
    "each has a CPU of its own": (share("0-7", kind=COMPUTES), Cleared),
    "they have nothing to do": (starve(0.0, [{**IDLES, "allowed_cpus": "0"}] * 2), Cleared),
    "there are none": (see(line_up([make_second(0.8, [], cpu=CPU)] * 20), {4211: FETCHES}), Cleared),
    "masks not read": (share(GONE), Unsure),
    "no list": (share("all"), Unsure),
    "the budget was not read": (share("0", budget_cores=GONE), Unsure),
}


@pytest.mark.parametrize(("scene", "expected"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_is_no_mask_of_few_cpus(scene, expected):
    assert type(judge_worker_affinity(scene)) is expected


def test_a_list_of_cpus_is_that_of_the_kernel():
    assert parse_cpus("0-2,8") == {0, 1, 2, 8}
    assert parse_cpus("5") == {5}
    for text in ("", "0-", "a-b", "-1", "1-2-3", "0-99999999999999999999"):
        assert not is_known(parse_cpus(text))
