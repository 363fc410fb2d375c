"""CPU causes on made-up Windows: thresholds of the sweep, neighbours, masks, and which CPUs are free for more."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from tests.frames import GIB, make_cpu, make_frame, make_gpu, make_memory, make_process, make_rank, make_worker
from tests.judging import advise, make_phases
from tests.starving import COMPUTES, IDLES, WORKER_WAIT, line_up, make_second, starve
from tpmon.judge.advice.context import gather_facts, observe
from tpmon.judge.advice.fields import fill
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features import cpu as features_cpu
from tpmon.judge.features.cpu import Taker, are_taken, find_cores_free, find_cores_spared, find_taker, note_neighbours
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import see
from tpmon.judge.finding import rate_confidence, write_try
from tpmon.judge.hysteresis import Standing, Track, key_of
from tpmon.judge.judge import judge_scene
from tpmon.judge.ranking import find_explained
from tpmon.judge.ranking import rank as rank_tracks
from tpmon.judge.rules import cpu as rules_cpu
from tpmon.judge.rules.cpu import (
    judge_affinity,
    judge_other_tenants,
    judge_oversubscription,
    judge_quota,
    note_tenants,
    parse_cpus,
)
from tpmon.judge.rules.gpu import judge_gpu_compute
from tpmon.judge.rules.loader import judge_cpu_transform, judge_too_few_workers
from tpmon.judge.rules.python import judge_single_thread
from tpmon.judge.stacks.phases import Phase
from tpmon.model.figures import Origin
from tpmon.model.host import Pool, PoolLibrary, Tenant
from tpmon.model.known import Missing, is_known, map_known
from tpmon.model.process import EnvironmentSetting, Role, ThreadGroup, ThreadKind
from tpmon.model.verdict import Confidence, Kind

OPENBLAS, OPENCV, NUMEXPR = PoolLibrary.OPENBLAS, PoolLibrary.OPENCV, PoolLibrary.NUMEXPR
SECOND = 1_000_000_000


def track(kind, cause, weight):
    suspicion = Suspicion(kind, cause, weight, 1.0, frozenset(), "", ())
    return Track(suspicion=suspicion, score=1.0, first_ns=0, seen_after_ns=0)


def in_slurm(process):
    return replace(process, environment=(EnvironmentSetting("SLURM_JOB_ID", "17"),))


def window(processes=None, seconds=12, **cpu):
    frame = make_frame(cpu=make_cpu(**cpu), processes=tuple(processes or (make_process(),)))
    return [replace(frame, taken_ns=frame.taken_ns + i * SECOND) for i in range(seconds)]


# Measured (docs/thresholds.md), one process on 2 CPUs: threads, demand/budget, waiting share, steps/s lost?
SWEEP = [(1, 0.5, 0.0, False), (2, 1.0, 0.03, False), (3, 1.11, 0.31, False), (8, 2.92, 0.69, True)]


@pytest.mark.parametrize(("threads", "pool", "delay", "guilty"), SWEEP)
def test_the_measured_sweep_is_judged_as_it_was_felt(threads, pool, delay, guilty):
    rank = make_process(busy_threads=threads, runnable=2 * pool)
    scene = see(window([rank], budget_cores=2.0, oversubscription=pool, run_delay_ratio=delay))
    answer = judge_oversubscription(scene)
    assert isinstance(answer, Suspicion if guilty else Cleared)
    if guilty:
        assert (answer.kind, answer.cause) == (Kind.OVERSUBSCRIBED, "rank-pool")
        assert answer.margin > 1


def test_pools_that_spin_do_not_wait_and_it_is_told_whose_others_are():
    scene = see(window(oversubscription=4.0, run_delay_ratio=0.1))
    assert isinstance(judge_oversubscription(scene), Cleared)
    rank = make_process(busy_threads=1, runnable=0.5)
    workers = [make_worker(pid, number, busy_threads=4, runnable=4.0) for number, pid in enumerate((901, 902))]
    scene = see(window([rank, *workers], budget_cores=2.0, oversubscription=4.0, run_delay_ratio=0.7))
    assert judge_oversubscription(scene).cause == "worker-pool"
    ranks = [make_process(pid, busy_threads=2, runnable=2.0) for pid in (11, 12, 13)]
    scene = see(window(ranks, budget_cores=2.0, oversubscription=3.0, run_delay_ratio=0.6))
    assert judge_oversubscription(scene).cause == "too-many-ranks"


def test_a_quota_costs_the_cpu_time_that_is_wanted_and_not_given():
    """Measured: a quota of 0.53 of 2 CPUs, threads that want 2.0; without it the program ran 2.9 times as fast."""
    cpu = {"budget_cores": 0.53, "throttled_ratio": 0.9, "host_cores": 2}
    found = judge_quota(see(window(runnable=2.0, used_cores=0.53, **cpu)))
    assert found.share == pytest.approx(1 - 0.53 / 2)
    many = judge_quota(see(window(runnable=24.0, used_cores=0.53, **cpu)))
    assert many.share == found.share, "two CPUs give no more than two"
    beside = judge_quota(see(window(runnable=2.0, used_cores=0.2, **cpu)))
    assert beside.share == found.share, "what a neighbour takes of the quota a larger one does not give back"
    assert not is_known(judge_quota(see(window(runnable=0.5, used_cores=0.5, **cpu))).share)


def test_trainings_that_a_program_started_share_the_cpus_with_each_other():
    """Hogwild: without a process group they are helpers of the one rank, which waits for them."""
    rank = make_process(busy_threads=0, runnable=0.0)
    pools = [make_process(pid, role=Role.HELPER, busy_threads=2, runnable=2.0) for pid in (11, 12, 13)]
    frames = window([rank, *pools], budget_cores=2.0, oversubscription=3.0, run_delay_ratio=0.6)
    answer = judge_oversubscription(see(frames))
    assert answer.cause == "rank-pool"
    assert answer.summary == "thread pools of 3 processes that it started want 3.0 times the CPUs there are"
    facts = gather_facts(see(frames), answer)
    assert (facts.ranks, facts.pools) == (1, 3)
    assert "OMP_NUM_THREADS=1" in fill("{pool_exports}", facts)
    assert "OMP_NUM_THREADS=2" in fill("{pool_exports}", replace(facts, pools=1))


def test_a_quota_is_the_cause_from_a_quarter_of_its_periods_or_fewer_where_it_is_used_up():
    assert isinstance(judge_quota(see(window(throttled_ratio=0.24))), Cleared)
    found = judge_quota(see(window(throttled_ratio=0.5)))
    assert (found.kind, found.cause, found.margin) == (Kind.CPU_THROTTLED, "quota", 2.0)
    beside = {
        "throttled_ratio": 0.2,
        "budget_cores": 0.6,
        "host_cores": 2,
        "host_used_cores": 2.0,
        "run_delay_ratio": 0.7,
        "runnable": 2.0,
    }
    found = judge_quota(see(window(used_cores=0.58, **beside)))
    assert (found.cause, found.margin) == ("quota", pytest.approx(2.0))
    assert isinstance(judge_quota(see(window(used_cores=0.5, **beside))), Cleared)
    # All CPUs of the machine in use is no quota that is used up.
    assert isinstance(judge_quota(see(window(used_cores=1.9, **(beside | {"budget_cores": 2.0})))), Cleared)
    alone = judge_quota(see(window(throttled_ratio=0.9, run_delay_ratio=Missing("not read"))))
    assert alone.origins == {Origin.CGROUP}
    both = judge_quota(see(window(throttled_ratio=0.9, run_delay_ratio=0.5)))
    assert len(both.origins) == 2


def test_what_was_not_read_is_neither_guilt_nor_innocence():
    unread = Missing("no permission")
    assert isinstance(judge_quota(see(window(throttled_ratio=unread))), Unsure)
    assert isinstance(judge_oversubscription(see(window(oversubscription=unread))), Unsure)
    assert isinstance(judge_oversubscription(see(window(oversubscription=2.0, run_delay_ratio=unread))), Unsure)


BESIDE = {
    "budget_cores": 2.0,
    "used_cores": 0.9,
    "runnable": 1.9,
    "run_delay_ratio": 0.53,
    "host_used_cores": 2.0,
    "host_cores": 2,
    "demand_ratio": 0.95,
}
"""The CPUs of a job beside a process that burns one of two; what its rank wants and waits is each test's own."""


@pytest.mark.parametrize(
    ("demand", "waiting", "cpu", "cost"),
    [
        (1.9, 1.0, {}, 0.53),  # a pool of two is late together
        (1.0, 0.6, {}, 0.55),  # no more than they use
        (0.6, 0.3, {}, 0.3),
        (0.4, 0.2, {}, None),  # a note: it loses a fifth
        (1.9, 1.0, {"oversubscription": 1.5}, None),  # it wants more than there is
        # Two workers that wake often wait each time, and seem to want most of a CPU each.
        (2.0, 1.5, {"demand_ratio": 1.7, "runnable": 3.4, "run_delay_ratio": 0.8, "used_cores": 0.7}, 0.65),
        (1.9, 1.0, {"throttled_ratio": 0.3}, None),
        (1.9, 1.0, {"host_used_cores": 1.0}, None),  # nobody else runs: a binding
        (1.9, 0.1, {"run_delay_ratio": 0.05}, None),
    ],
)
def test_other_tenants_are_the_verdict_where_they_take_a_quarter_of_the_time(demand, waiting, cpu, cost):
    rank = make_process(runnable=demand, waiting=waiting)
    found = judge_other_tenants(see(window([rank], **(BESIDE | cpu))))
    assert isinstance(found, Cleared if cost is None else Suspicion)
    if cost is not None:
        assert (found.kind, found.cause, found.weight) == (
            Kind.OVERSUBSCRIBED,
            "other-tenants",
            pytest.approx(cost, abs=0.01),
        )
        assert f"up to {1 / (1 - found.weight):.1f}x the steps" in found.summary


def test_other_tenants_are_named_and_no_scheduler_is_asked_where_there_is_none():
    tenants = (Tenant(77, "ann", "burn.py", 1, 1.1), Tenant(78, "bob", "make", 3, 0.4))
    rank = make_process(runnable=1.9, waiting=1.0)
    frames = window([rank], **BESIDE, tenants=tenants)
    scene = see(frames)
    found = judge_other_tenants(scene)
    assert [(row.name, row.value) for row in found.shows[-2:]] == [("burn.py of ann", 1.1), ("make of bob", 0.4)]
    said = note_neighbours(scene)
    assert "burn.py (PID 77, user ann) 1.1 and make (3 processes, user bob) 0.4" in said
    advised = "\n".join(map(write_try, advise(scene, found)))
    assert "renice -n 19 -p 77" in advised
    assert "SBATCH" not in advised
    assert "SBATCH --exclusive" in "\n".join(map(write_try, advise(see(window([in_slurm(rank)], **BESIDE)), found)))


def test_what_others_take_is_said_after_what_the_job_does_itself_and_before_that_all_is_well():
    tracks = [track(Kind.OVERSUBSCRIBED, "other-tenants", 0.9), track(Kind.DATA_BOUND, "no-workers", 0.2)]
    assert rank_tracks(tracks, None)[0].suspicion.kind is Kind.DATA_BOUND
    tracks = [track(Kind.OVERSUBSCRIBED, "other-tenants", 0.25), track(Kind.COMPUTE_BOUND, "cpu", 1.0)]
    assert rank_tracks(tracks, None)[0].suspicion.cause == "other-tenants"


def test_neighbours_are_a_note_and_only_when_the_job_itself_wants_little_but_not_next_to_nothing():
    busy = {"budget_cores": 2.0, "run_delay_ratio": 0.53, "used_cores": 0.9, "runnable": 1.9, "host_used_cores": 2.0}
    assert note_neighbours(see(window(demand_ratio=0.98, **busy))).startswith("other-tenants")
    assert note_neighbours(see(window(oversubscription=3.0, **busy))) == ""
    assert note_neighbours(see(window(demand_ratio=0.98, **{**busy, "run_delay_ratio": 0.1}))) == ""
    beside = {
        "budget_cores": 2.0,
        "run_delay_ratio": 0.97,
        "used_cores": 0.0,
        "host_used_cores": 2.0,
        "demand_ratio": 0.5,
    }
    assert note_neighbours(see(window(runnable=0.1, **beside))) == ""
    said = note_neighbours(see(window(runnable=1.0, **beside)))
    assert said.startswith("other-tenants: its threads want 1.0 of 2.0 CPUs and wait 97 % of that time")


BURSTS = {
    "budget_cores": 4.0,
    "host_cores": 16,
    "host_used_cores": 1.9,
    "used_cores": 1.75,
    "runnable": 4.75,
    "demand_ratio": 1.19,
    "run_delay_ratio": 0.63,
}


CPU = {
    "budget_cores": 16.0,
    "host_cores": 16,
    "used_cores": 1.3,
    "host_used_cores": 1.4,
    "runnable": 8.2,
    "demand_ratio": 0.51,
    "run_delay_ratio": 0.85,
}


def test_what_a_quota_stops_or_a_mask_keeps_from_free_cpus_is_not_laid_to_other_processes():
    """16 threads in bursts under a quota of 4 of 16 CPUs: throttled time counts as waiting."""
    scene = see(window(throttled_ratio=0.2, **BURSTS))
    assert note_neighbours(scene) == note_tenants(scene) == ""
    assert features_cpu.say_got(scene) == "its threads get 1.8 of the 4.8 CPUs that they want"
    assert find_taker(scene) is Taker.QUOTA
    found = judge_quota(scene)
    assert (found.cause, found.margin) == ("quota", pytest.approx(2.0))
    assert Origin.PROC in found.origins
    beside = see(window(throttled_ratio=0.2, **(BURSTS | {"host_used_cores": 15.0})))
    assert isinstance(judge_quota(beside), Cleared)
    # Eight workers that are bound to one of 16 CPUs.
    scene = see(window(**CPU))
    assert note_neighbours(scene) == note_tenants(scene) == ""
    assert find_taker(scene) is Taker.ITSELF
    hidden = see(window(**CPU | {"host_used_cores": Missing("masked")}))
    assert "other processes use them" in note_neighbours(hidden)


def test_others_on_the_cpus_of_the_job_are_a_note_before_they_harm():
    fine = {"run_delay_ratio": 0.02, "runnable": 1.0, "demand_ratio": 0.5, "used_cores": 1.0}
    alone = fine | {"host_cores": 2, "budget_cores": 2.0, "host_used_cores": 1.1}
    assert note_tenants(see(window(**alone))) == ""
    beside = alone | {"host_used_cores": 2.0}
    assert note_tenants(see(window(**beside))) == (
        "other-tenants: other processes use 1.0 of the 2 CPUs of this machine"
    )
    # 100 of 128 CPUs may all be others than the 8 that this job may use; 124 may not.
    large = fine | {"host_cores": 128, "budget_cores": 8.0}
    assert note_tenants(see(window(**large, host_used_cores=101.0))) == ""
    assert "use 124.0 of the 128" in note_tenants(see(window(**large, host_used_cores=125.0)))
    assert note_tenants(see(window(**beside | {"host_used_cores": Missing("masked")}))) == ""
    assert "wait 53 %" in note_tenants(see(window(**beside | {"run_delay_ratio": 0.53, "used_cores": 0.9})))


def test_single_threaded_workers_beyond_the_budget_are_a_note_and_one_of_a_kind_is_written_as_one():
    workers = [make_worker(900 + i, i, busy_threads=1, runnable=0.9) for i in range(4)]
    small, large = (see(window([make_process(), *workers], budget_cores=cores)) for cores in (2.0, 4.0))
    assert "4 workers want 3.6" in rules_cpu.note_single_threaded_workers(small)
    assert rules_cpu.note_single_threaded_workers(large) == ""
    lone = see(window([make_process(busy_threads=8, runnable=8.0)], oversubscription=4.0, run_delay_ratio=0.7))
    assert judge_oversubscription(lone).summary.startswith("thread pools of the rank want")
    worker = make_worker(4221, 0, busy_threads=1, runnable=1.0)
    note = rules_cpu.note_single_threaded_workers(see(window([make_process(), worker], budget_cores=0.5)))
    assert "one worker wants 1.0 CPUs" in note


def test_a_scene_is_made_of_medians_over_ten_seconds_of_which_half_were_read_and_needs_no_rank_table():
    frames = window(oversubscription=1.0, run_delay_ratio=0.5)
    frames[-1] = replace(frames[-1], cpu=make_cpu(oversubscription=9.0, run_delay_ratio=0.9))
    scene = see(frames)
    assert (scene.pool_ratio, scene.delay_ratio) == (1.0, 0.5)
    assert (scene.span_s, scene.history_s) == (10.0, 11.0)
    gone = Missing("gone")
    assert median_known([1.0, 3.0, gone]) == 2.0
    assert median_known([1.0, gone, gone]) == gone
    assert not is_known(median_known([]))
    with pytest.raises(ValueError):
        see([])
    scene = see([make_frame(ranks=(make_rank(),), processes=())])
    assert scene.ranks == ()


def test_cpus_that_full_gpus_do_not_wait_for_are_no_fault():
    frames = window(oversubscription=4.0, run_delay_ratio=0.6, throttled_ratio=0.9)
    full = see([replace(frame, gpus=(make_gpu(sm_pct=98.0),)) for frame in frames])
    idle = see([replace(frame, gpus=(make_gpu(sm_pct=50.0),)) for frame in frames])
    hollow = see([replace(frame, gpus=(make_gpu(sm_active_pct=4.0, power_w=150.0),)) for frame in frames])
    for rule in (judge_quota, judge_oversubscription):
        found, cards = rule(full), judge_gpu_compute(full)
        assert find_explained({key_of(found), key_of(cards)}) == {key_of(found)}
        for scene in (idle, hollow):
            assert isinstance(rule(scene), Suspicion)
            assert not isinstance(judge_gpu_compute(scene), Suspicion)


@pytest.mark.parametrize(
    ("role", "libraries", "begins", "cap"),
    [
        (Role.WORKER, (OPENBLAS,), "OpenBLAS pools in 2 loader workers want", "threadpool_limits(1)"),
        (Role.WORKER, (OPENCV,), "OpenCV pools in 2 loader workers want", "cv2.setNumThreads(0)"),
        (Role.WORKER, (NUMEXPR,), "numexpr pools in 2 loader workers want", "numexpr.set_num_threads(1)"),
        (Role.WORKER, (NUMEXPR, OPENBLAS), "thread pools of 2 loader workers want", "threadpool_l"),
        (Role.WORKER, (OPENCV, OPENBLAS), "thread pools of 2 loader", "cv2.setNumThreads(0)"),
        (Role.WORKER, (OPENCV, OPENBLAS), "thread pools of 2 loader", "threadpool_limits(1)"),
        (Role.WORKER, Missing("no known pool library is mapped"), "thread pools of 2 loader", "where cv2 is"),
        (Role.RANK, (OPENCV,), "thread pools of 2 loader workers want", "cv2.setNumThreads(0)"),
    ],
)
def test_whose_pool_it_is_where_it_is_told(role, libraries, begins, cap):
    workers = [make_worker(pid, pid - 21, busy_threads=4, runnable=4.0) for pid in (21, 22)]
    pool = Pool(21, role, library := map_known(PoolLibrary.name_all, libraries), 4, 4.0, libraries)
    frames = window([make_process(), *workers], budget_cores=2.0, oversubscription=4.0, run_delay_ratio=0.7, pool=pool)
    answer = judge_oversubscription(see(frames))
    assert answer.summary.startswith(begins)
    told = [one.text for one in answer.shows if one.name == "library"]
    assert told == ([library] if is_known(library) and role is Role.WORKER else [])
    assert cap in fill("{worker_cap}", gather_facts(see(frames), answer))


def test_a_thread_setting_that_is_no_number_of_threads_is_no_evidence():
    for value in ("9" * 5000, "4,2", "-1", "\u0664", ""):
        rank = make_process(busy_threads=8, environment=(EnvironmentSetting("OMP_NUM_THREADS", value),))
        scene = see(window([rank], budget_cores=8.0, oversubscription=4.0, run_delay_ratio=0.7))
        assert judge_oversubscription(scene).origins == {Origin.PROC}


GONE = Missing("permission denied")
CROWDED = {**COMPUTES, "waiting": 0.875, "cpu_pct": 12.5}


def share(cpus, count=8, kind=CROWDED, **cpu):
    return starve(0.8, [{**kind, "allowed_cpus": cpus}] * count, cpu=CPU | cpu)


def test_workers_that_share_the_one_cpu_of_their_parent_are_not_too_few():
    scene = share("0")
    found = rules_cpu.judge_worker_affinity(scene)
    assert (found.kind, found.cause) == (Kind.DATA_BOUND, "worker-affinity")
    assert "its 8 workers may run on one CPU only (CPU 0) and wait for that 88 %" in found.summary
    assert rate_confidence(found, 60.0) is Confidence.HIGH
    few = (Kind.DATA_BOUND, "too-few-workers")
    assert find_explained({key_of(found), few}) == {few}
    assert [(one.remedy.id, one.certain) for one in advise(scene, found)] == [("unbind-workers", True)]
    _, _, notes = judge_scene(scene, Standing())
    assert not any("other-tenants" in note or "too-few" in note for note in notes)
    # Their masks were not read; whatever keeps them from the free CPUs would keep more of them too.
    assert isinstance(judge_too_few_workers(share(GONE)), Unsure)
    beside = share(GONE, host_used_cores=15.0)
    assert isinstance(judge_too_few_workers(beside), Suspicion)
    assert isinstance(judge_too_few_workers(share("0-15", kind=COMPUTES)), Suspicion)


FETCHES = make_phases({Phase.DATA_WAIT: 0.8, Phase.FORWARD: 0.2})


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
    assert type(rules_cpu.judge_worker_affinity(scene)) is expected


def test_a_list_of_cpus_is_that_of_the_kernel():
    assert parse_cpus("0-2,8") == {0, 1, 2, 8}
    assert parse_cpus("5") == {5}
    for text in ("", "0-", "a-b", "-1", "1-2-3", "0-99999999999999999999"):
        assert not is_known(parse_cpus(text))


# which CPUs are free for more threads of the job, beside quiet and busy neighbours

ROOM = {"memory": make_memory(limit_bytes=256 * GIB, host_available_bytes=256 * GIB)}


def few(host_used, budget=16.0, cores=16):
    """See two workers that compute, on a machine of which so many cores are in use."""
    cpu = {"budget_cores": budget, "host_cores": cores, "host_used_cores": host_used, "run_delay_ratio": 0.06}
    return starve(0.6, [COMPUTES] * 2, cpu=cpu, frame=ROOM)


def try_few(scene):
    found = judge_too_few_workers(scene)
    return found, [one.text for one in advise(scene, found)]


def free_and_had(scene):
    free = find_cores_free(scene)
    return free, features_cpu.find_cores_had(free, scene)


def test_cores_that_others_use_are_not_called_free_nor_given_to_workers():
    """13 of 16 CPUs are others': the workers still are too few, and there is no room for three more."""
    scene = few(15.4)
    assert free_and_had(scene)[1] == pytest.approx(0.6)
    found, texts = try_few(scene)
    assert found.cause == "too-few-workers"
    assert "13.6 of its CPUs are not used by this job, but others leave 0.6" in found.summary
    assert rate_confidence(found, 60.0) is not Confidence.HIGH
    assert {one.name: one.value for one in found.evidence}["CPUs free"] == pytest.approx(0.6)
    assert any("raise num_workers from 2 to 3" in text for text in texts)
    found, texts = try_few(few(16.0))
    assert not found.observed & {Need.CORES_FREE, Need.CORES_FULL}
    assert not any("num_workers" in text for text in texts)


@pytest.mark.parametrize("host_used", [2.5, 5.0, Missing("masked")])
def test_quiet_neighbours_change_nothing(host_used):
    scene = few(host_used)
    assert not are_taken(*free_and_had(scene))
    found, texts = try_few(scene)
    assert "always have work, 13.6 CPUs are free" in found.summary
    assert rate_confidence(found, 60.0) is Confidence.HIGH
    assert any("raise num_workers from 2 to 5" in text for text in texts)


def test_beside_a_neighbour_the_workers_that_always_compute_say_what_the_job_wants():
    """Read beside one busy process: the rank wants 0.55 CPUs and runs 0.28."""
    found, texts = try_few(beside())
    assert find_cores_free(beside()) == pytest.approx(0.41)
    assert "0.6 of its CPUs are not used by this job, but others leave 0.1" in found.summary
    assert rate_confidence(found, 60.0) is not Confidence.HIGH
    assert {one.name: one.value for one in found.evidence}["CPUs free"] == pytest.approx(0.1)
    assert type(judge_cpu_transform(beside())) is Cleared
    assert not any("num_workers" in text for text in texts)
    assert any("transform" in text for text in texts)
    # What all CPUs of the machine do says nothing of the few that are the job's.
    found, texts = try_few(beside(host_cores=64, host_used=3.0))
    assert {one.name: one.value for one in found.evidence}["CPUs free"] == pytest.approx(0.41)
    assert "0.6 of its CPUs are not used by this job, but others leave 0.4" in found.summary
    assert not any("num_workers" in text for text in texts)


def test_where_nobody_says_what_others_use_one_more_worker_is_proposed():
    found, texts = try_few(beside(host_used=Missing("masked")))
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


LONG, LATE = {"runnable": 1.0, "waiting": 0.5}, {"runnable": 1.0, "waiting": 0.7}
FOUR = {"budget_cores": 4.0, "host_cores": 4}
SPARED = {
    "as read": (beside(), 2.0 - 1.04 - 0.28 * 1.04 / 0.79),
    "the worker waits longer than the rank": (beside(LONG, {"runnable": 0.4, "waiting": 0.05}, wanted=1.4), 0.3),
    "another rank wants one": (beside(wanted=2.59), 0.0),
    "one thread runs on one CPU": (beside(LATE, {"runnable": 0.7, "waiting": 0.15}, wanted=1.7, **FOUR), 4.0 - 2.0),
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


def test_a_difference_that_two_readings_have_is_nobody_and_cores_beyond_the_budget_may_be_busy():
    assert are_taken(0.6, 0.45)
    assert not are_taken(0.52, 0.47)
    assert not are_taken(8.0, 6.5)
    # Of 128 cores 100 are others': the 8 of this job may be free all the same.
    assert features_cpu.say_free(*free_and_had(few(102.4, budget=8.0, cores=128))) == "5.6 CPUs are free"


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


def bound(rank_cpus="0", launcher_cpus="0-3", *, demand=1.3, used=1.0, launcher=True):
    ranks = [make_process(pid, allowed_cpus=rank_cpus, runnable=demand, waiting=0.6 * demand) for pid in (11, 12)]
    above = [make_process(10, role=Role.LAUNCHER, allowed_cpus=launcher_cpus)] if launcher else []
    return see(window([*above, *ranks], budget_cores=1.0, host_cores=4, host_used_cores=used, used_cores=1.0))


@pytest.mark.parametrize(
    ("scene", "answer"),
    [
        (bound(), Suspicion),
        (bound("0-1", demand=2.0), Suspicion),
        (bound("0-3"), Cleared),
        (bound(launcher_cpus="0"), Cleared),  # a cpuset, or taskset around all of it
        (bound(demand=0.5), Cleared),  # one CPU is enough
        (bound(used=3.8), Suspicion),  # nothing is idle: that it helps is not sure, any cap of threads would be wrong
        (bound(launcher=False), Unsure),
        (bound(Missing("not read")), Unsure),
    ],
)
def test_a_mask_of_the_ranks_is_the_cause_while_other_cpus_idle(scene, answer):
    found = judge_affinity(scene)
    assert type(found) is answer


def test_where_others_use_the_other_cpus_a_binding_is_named_with_low_confidence_and_without_a_gain():
    found = judge_affinity(bound(used=3.8))
    assert found.summary.endswith("while others use the other CPUs")
    assert rate_confidence(found, 60.0) is Confidence.LOW
    assert isinstance(found.share, Missing)


def test_a_thread_that_computes_beside_those_of_its_collectives_is_no_pool():
    def scene(further):
        kinds = (ThreadKind.MAIN, 1.0), (ThreadKind.COMM, 0.8), (ThreadKind.OTHER, further)
        groups = tuple(ThreadGroup(kind, 1, demand) for kind, demand in kinds)
        ranks = [make_process(pid, busy_threads=2, runnable=1.8, thread_groups=groups) for pid in (11, 12)]
        return see(window(ranks, run_delay_ratio=0.6, oversubscription=1.8, budget_cores=2.0))

    alone = judge_oversubscription(scene(0.01))
    assert isinstance(alone, Cleared)
    assert "each rank computes with one thread" in alone.text
    assert Need.POOL_IN_RANK not in observe(scene(0.01), Suspicion(Kind.BALANCED, "", 0, 1, frozenset(), "", ()))
    assert isinstance(judge_oversubscription(scene(1.0)), Suspicion)


def test_a_binding_explains_the_pools_that_do_not_fit_it_and_is_lifted_first():
    scene = bound()
    found = judge_affinity(scene)
    assert (found.kind, found.cause) == (Kind.OVERSUBSCRIBED, "affinity")
    assert "one CPU only (CPU 0)" in found.summary
    assert "3.0 CPUs are idle" in found.summary
    first = write_try(advise(scene, found)[0])
    assert "pgrep -P 10" in first
    assert "taskset -acp 0-3" in first
    keys = [key_of(found), (Kind.OVERSUBSCRIBED, "rank-pool"), (Kind.OVERSUBSCRIBED, "other-tenants")]
    assert find_explained(keys) == set(keys[1:])
