"""Which CPUs are free for more threads of the job, beside quiet and busy neighbours, on made-up Windows."""

from types import MappingProxyType

import pytest

from tests.frames import GIB, make_memory
from tests.judging import make_phases
from tests.starving import COMPUTES, WORKER_WAIT, line_up, make_second, starve
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.context import gather_facts, observe
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared
from tpmon.judge.features.cpu import are_taken, find_cores_free, find_cores_had, find_cores_spared, say_free
from tpmon.judge.features.snapshot import see
from tpmon.judge.finding import rate_confidence
from tpmon.judge.rules.loader import judge_cpu_transform, judge_too_few_workers
from tpmon.judge.rules.python import judge_single_thread
from tpmon.judge.stacks.profile import Phase
from tpmon.model.known import Missing
from tpmon.model.verdict import Confidence

ROOM = {"memory": make_memory(limit_bytes=256 * GIB, host_available_bytes=256 * GIB)}


def few(host_used, budget=16.0, cores=16):
    """See two workers that compute, on a machine of which so many cores are in use."""
    cpu = {"budget_cores": budget, "host_cores": cores, "host_used_cores": host_used, "run_delay_ratio": 0.06}
    return starve(0.6, [COMPUTES] * 2, cpu=cpu, frame=ROOM)


def free_and_had(scene):
    free = find_cores_free(scene)
    return free, find_cores_had(free, scene)


def advise(scene):
    found = judge_too_few_workers(scene)
    chosen = choose(found.kind, found.cause, observe(scene, found), gather_facts(scene, found))
    return found, [one.text for one in chosen]


def test_cores_that_others_use_are_not_called_free_nor_given_to_workers():
    """13 of 16 CPUs are others': the workers still are too few, and there is no room for three more."""
    scene = few(15.4)
    assert free_and_had(scene)[1] == pytest.approx(0.6)
    found, texts = advise(scene)
    assert found.cause == "too-few-workers"
    assert "13.6 of its CPUs are not used by this job, but others leave 0.6" in found.summary
    assert rate_confidence(found, 60.0) is not Confidence.HIGH
    assert {one.name: one.value for one in found.evidence}["CPUs free"] == pytest.approx(0.6)
    assert any("raise num_workers from 2 to 3" in text for text in texts)


def test_where_others_leave_nothing_no_workers_are_proposed():
    found, texts = advise(few(16.0))
    assert not found.observed & {Need.CORES_FREE, Need.CORES_FULL}
    assert not any("num_workers" in text for text in texts)


@pytest.mark.parametrize("host_used", [2.5, 5.0, Missing("masked")])
def test_quiet_neighbours_change_nothing(host_used):
    scene = few(host_used)
    assert not are_taken(*free_and_had(scene))
    found, texts = advise(scene)
    assert "always have work, 13.6 CPUs are free" in found.summary
    assert rate_confidence(found, 60.0) is Confidence.HIGH
    assert any("raise num_workers from 2 to 5" in text for text in texts)


def test_cores_beyond_the_budget_may_be_busy():
    """Of 128 cores 100 are others': the 8 of this job may be free all the same."""
    assert say_free(*free_and_had(few(102.4, budget=8.0, cores=128))) == "5.6 CPUs are free"


def test_beside_a_neighbour_the_workers_that_always_compute_say_what_the_job_wants():
    """Read beside one busy process: the rank wants 0.55 CPUs and runs 0.28."""
    found, texts = advise(beside())
    assert find_cores_free(beside()) == pytest.approx(0.41)
    assert "0.6 of its CPUs are not used by this job, but others leave 0.1" in found.summary
    assert rate_confidence(found, 60.0) is not Confidence.HIGH
    assert {one.name: one.value for one in found.evidence}["CPUs free"] == pytest.approx(0.1)
    assert type(judge_cpu_transform(beside())) is Cleared
    assert not any("num_workers" in text for text in texts)
    assert any("transform" in text for text in texts)


def test_where_nobody_says_what_others_use_one_more_worker_is_proposed():
    found, texts = advise(beside(host_used=Missing("masked")))
    assert "always has work, 0.6 CPUs are free" in found.summary
    assert rate_confidence(found, 60.0) is not Confidence.HIGH
    assert found.observed & {Need.CORES_FREE, Need.CORES_FULL} == {Need.CORES_FREE}
    assert Need.CORES_FULL not in observe(beside(host_used=Missing("masked")), found)
    assert any("raise num_workers from 1 to 2" in text for text in texts)


def beside(worker=MappingProxyType({}), rank=MappingProxyType({}), host_used=1.9, wanted=1.59, **more):
    """See one worker that always computes, and its rank, on two CPUs beside a busy process."""
    kind = {**COMPUTES, "runnable": 1.04, "waiting": 0.25, **worker}
    cpu = {"budget_cores": 2.0, "host_cores": 2, "host_used_cores": host_used, "run_delay_ratio": 0.33, **more}
    own = {"runnable": 0.55, "waiting": 0.27, "busy_threads": 1, **rank}
    return starve(0.5, [kind], rank=own, cpu={**cpu, "runnable": wanted}, frame=ROOM)


SPARED = {
    "as read": (beside(), 2.0 - 1.04 - 0.28 * 1.04 / 0.79),
    "the worker waits longer than the rank": (
        beside({"runnable": 1.0, "waiting": 0.5}, {"runnable": 0.4, "waiting": 0.05}, wanted=1.4),
        0.3,
    ),
    "another rank wants one": (beside(wanted=2.59), 0.0),
    "one thread runs on one CPU": (
        beside(
            {"runnable": 1.0, "waiting": 0.7},
            {"runnable": 0.7, "waiting": 0.15},
            wanted=1.7,
            budget_cores=4.0,
            host_cores=4,
        ),
        4.0 - 2.0,
    ),
    "a quota stops them": (beside(budget_cores=2.0, host_cores=64, throttled_ratio=0.4), 0.41),
    "the worker rests a little": (beside({"runnable": 0.8}), 0.41),
    "the worker waits for work": (beside({"waits_for": WORKER_WAIT}), 0.41),
    "the worker has a pool": (beside({"busy_threads": 4}), 0.41),
    "the rank has a pool": (beside(rank={"busy_threads": 2}), 0.41),
    "the worker never ran": (beside({"waiting": 1.04}), 0.41),
    "its wait was not read": (beside({"waiting": Missing("denied")}), 0.41),
    "the rank's wait was not read": (beside(rank={"waiting": Missing("denied")}), 0.41),
}


@pytest.mark.parametrize(("scene", "spared"), SPARED.values(), ids=SPARED)
def test_what_the_job_would_leave_alone(scene, spared):
    assert find_cores_spared(scene.ranks[0], scene) == pytest.approx(spared)


def test_what_all_cpus_of_the_machine_do_says_nothing_of_the_few_that_are_the_jobs():
    found, texts = advise(beside(host_cores=64, host_used=3.0))
    assert {one.name: one.value for one in found.evidence}["CPUs free"] == pytest.approx(0.41)
    assert "0.6 of its CPUs are not used by this job, but others leave 0.4" in found.summary
    assert not any("num_workers" in text for text in texts)


def test_a_difference_that_two_readings_have_is_nobody():
    assert are_taken(0.6, 0.45)
    assert not are_taken(0.52, 0.47)
    assert not are_taken(8.0, 6.5)


def test_workers_that_fill_the_cpus_themselves_leave_none():
    """Read without a neighbour: two workers and their rank on two CPUs."""
    worker = {**COMPUTES, "waiting": 0.12}
    cpu = {"budget_cores": 2.0, "host_cores": 2, "host_used_cores": 2.0, "run_delay_ratio": 0.17}
    rank = {"runnable": 0.35, "waiting": 0.17, "busy_threads": 1}
    scene = starve(0.7, [worker] * 2, rank=rank, cpu={**cpu, "runnable": 2.35}, frame=ROOM)
    assert judge_cpu_transform(scene).cause == "cpu-transform"
    wide = starve(0.7, [worker] * 2, rank=rank, cpu={**cpu, "budget_cores": 3.0, "runnable": 2.35}, frame=ROOM)
    assert find_cores_spared(wide.ranks[0], wide) == pytest.approx(1.0 - 0.18 / 0.88)


def test_a_single_thread_is_told_what_others_leave():
    second = make_second(0.0, [], cpu={"host_used_cores": 8.0})
    scene = see(line_up([second] * 12), {4211: make_phases({Phase.OTHER: 0.8, Phase.FORWARD: 0.2})})
    found = judge_single_thread(scene)
    assert "7.0 of its CPUs are not used by this job, but others leave 0.0" in found.summary
    assert rate_confidence(found, 60.0) is not Confidence.HIGH
