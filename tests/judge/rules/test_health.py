"""The healthy ends on made-up Windows: they must see work, and whoever waits is not called healthy."""

import pytest

from tests.frames import make_cpu, make_frame, make_gpu, make_process, make_worker
from tests.judging import make_looks, make_phases, said, scene_of
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.finding import rate_confidence
from tpmon.judge.rules import comms as rules_comms
from tpmon.judge.rules import gpu as rules_gpu
from tpmon.judge.rules import health as rules_healthy
from tpmon.judge.rules import lifecycle as rules_progress
from tpmon.judge.rules.health import judge_balanced, judge_cpu_compute
from tpmon.judge.stacks.phases import Phase
from tpmon.model.figures import Origin
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role
from tpmon.model.verdict import EXIT_CODES, Confidence, Kind

UNREAD = Missing("not permitted")
TRAINS = {Phase.FORWARD: 0.4, Phase.BACKWARD: 0.4, Phase.OPTIMIZER: 0.1, Phase.DATA_WAIT: 0.1}


def cpu_job(demand, budget=2.0, pool=1.0, phases=TRAINS, where=None, **frame):
    rank = make_process(runnable=demand, busy_threads=2)
    plain = {"processes": (rank,), "loader": (), "cpu": make_cpu(budget_cores=budget, oversubscription=pool)}
    place = {"where": where} if where else {}
    return scene_of(make_frame(**{**plain, **frame}), [make_phases(phases, **place)] if phases else [])


CPU = [
    ("as many threads as CPUs", 2.0, 1.0, TRAINS, (Kind.COMPUTE_BOUND, "cpu")),
    ("just enough", 1.62, 0.8, TRAINS, (Kind.COMPUTE_BOUND, "cpu")),
    ("one thread of two CPUs", 1.0, 0.0, TRAINS, Cleared),
    ("pools fight", 5.8, 2.9, TRAINS, Cleared),
    ("loads its data itself", 2.0, 1.0, {Phase.DATA_WAIT: 0.6, Phase.FORWARD: 0.4}, Cleared),
    ("no stacks", 2.0, 1.0, None, (Kind.COMPUTE_BOUND, "cpu")),
    ("demand not read", UNREAD, 1.0, TRAINS, Unsure),
    ("pool not read", 2.0, UNREAD, TRAINS, (Kind.COMPUTE_BOUND, "cpu")),
]


@pytest.mark.parametrize(("name", "demand", "pool", "phases", "wanted"), CPU, ids=[row[0] for row in CPU])
def test_cores_that_compute_are_healthy(name, demand, pool, phases, wanted):
    answer = judge_cpu_compute(cpu_job(demand, pool=pool, phases=phases))
    assert said(answer) == wanted


def test_cores_that_compute_are_told_by_stacks_too_and_not_without_a_budget_or_beside_cards():
    assert judge_cpu_compute(cpu_job(2.0)).origins == {Origin.PROC, Origin.STACKS}
    assert judge_cpu_compute(cpu_job(2.0, phases=None)).origins == {Origin.PROC}
    rank = make_process(runnable=2.0)
    frame = make_frame(processes=(rank,), cpu=make_cpu(budget_cores=2.0))
    few = make_phases({Phase.DATA_WAIT: 1.0}, samples=3)
    assert judge_cpu_compute(scene_of(frame, [few])).origins == {Origin.PROC}
    assert type(judge_cpu_compute(cpu_job(2.0, budget=UNREAD))) is Unsure
    assert type(judge_cpu_compute(cpu_job(2.0, budget=0.0))) is Unsure
    assert type(judge_cpu_compute(scene_of(make_frame(processes=())))) is Unsure
    assert type(judge_cpu_compute(cpu_job(2.0, gpus=(make_gpu(),)))) is Cleared
    hidden = Missing("GPUs not visible from this shell (container or Slurm step)")
    assert type(judge_cpu_compute(cpu_job(2.0, gpus=hidden))) is Unsure


def above(*children, parent=0.01, phases=None, **frame):
    """Make a scene of a process that rests above others, which want so much each."""
    rank = make_process(4211, runnable=parent, busy_threads=0)
    role = {"role": Role.HELPER, "rank": NOT_APPLICABLE, "parent": 4211, "rank_pid": 4211}
    below = (make_process(4300 + n, runnable=one, **role) for n, one in enumerate(children))
    plain = {"processes": (rank, *below), "loader": (), "cpu": make_cpu(budget_cores=4.0)}
    return scene_of(make_frame(**{**plain, **frame}), [make_phases(phases or {Phase.OTHER: 1.0})])


@pytest.mark.parametrize(
    ("scene", "wanted"),
    [
        (above(2.0), (Kind.COMPUTE_BOUND, "cpu")),
        (above(1.0, 1.0, 0.0), (Kind.COMPUTE_BOUND, "cpu")),
        (above(2.0, 2.0, 2.0), (Kind.COMPUTE_BOUND, "cpu")),
        (above(0.4, 0.4), Cleared),  # they wait themselves
        (above(), Cleared),
        (above(2.0, parent=0.5), Cleared),
        (above(2.0, phases={Phase.LOAD: 1.0}), Cleared),
        (above(2.0, phases={Phase.OTHER: 0.3, Phase.FORWARD: 0.7}), Cleared),
        (above(2.0, gpus=(make_gpu(),)), Cleared),
        (above(2.0, cpu=make_cpu(budget_cores=UNREAD)), Unsure),
    ],
)
def test_a_parent_that_only_waits_for_processes_that_compute_is_healthy(scene, wanted):
    assert said(judge_cpu_compute(scene)) == wanted


def one_thread(*, used=1.0, demand=1.0, threads=1, phases=TRAINS, **looks):
    rank = make_process(runnable=demand, busy_threads=threads)
    cpu = make_cpu(budget_cores=2.0, used_cores=1.0, runnable=demand, host_used_cores=used, host_cores=2)
    frame = make_frame(processes=(rank,), loader=(), cpu=cpu, main_threads=(make_looks(**looks),))
    return scene_of(frame, [make_phases(phases)])


@pytest.mark.parametrize(
    ("scene", "wanted"),
    [
        (one_thread(), (Kind.COMPUTE_BOUND, "cpu")),
        (one_thread(demand=1.23), (Kind.COMPUTE_BOUND, "cpu")),  # and gloo's threads wake up beside it
        (one_thread(used=1.9), Cleared),  # others have the other CPU
        (one_thread(demand=1.4, threads=2), Cleared),
        (one_thread(other=5), Cleared),  # it sleeps half of the time
        (one_thread(phases={Phase.FORWARD: 0.5, Phase.OTHER: 0.5}), Cleared),
    ],
)
def test_one_thread_that_computes_beside_idle_cpus_is_what_holds_the_run(scene, wanted):
    answer = judge_cpu_compute(scene)
    assert said(answer) == wanted
    if type(answer) is Suspicion:
        assert answer.summary.startswith("one thread of the rank computes, and ")
        assert answer.summary.endswith("of 2.0 CPUs are idle")


def looked(**parts):
    return cpu_job(1.0, main_threads=(make_looks(**parts),), phases=None)


BALANCED = [
    ("trains", cpu_job(1.0), {Origin.STACKS}),
    ("runs, and nothing tells what", looked(), Unsure),
    ("runs mostly, and nothing tells what", looked(lock=2, batch_wait=1), Unsure),
    ("waits for batches", looked(batch_wait=4), Cleared),
    ("waits for reads", looked(io=3), Cleared),
    ("sleeps", looked(other=8), Cleared),
    ("waits for data", cpu_job(1.0, phases={Phase.DATA_WAIT: 0.3, Phase.FORWARD: 0.7}), Cleared),
    ("waits for ranks", cpu_job(1.0, phases={Phase.COMMS: 0.3, Phase.FORWARD: 0.7}), Cleared),
    ("logs", cpu_job(1.0, phases={Phase.LOGGING: 0.25, Phase.FORWARD: 0.75}), Cleared),
    ("does something else", cpu_job(1.0, phases={Phase.OTHER: 0.7, Phase.FORWARD: 0.3}), Cleared),
    ("nothing read", cpu_job(1.0, phases=None), Unsure),
    ("GPU trains", cpu_job(1.0, gpus=(make_gpu(),)), {Origin.STACKS, Origin.DRIVER}),
    ("GPU waits", cpu_job(1.0, gpus=(make_gpu(sm_pct=50.0),)), Cleared),
    ("GPU hollow", cpu_job(1.0, gpus=(make_gpu(sm_active_pct=5.0, power_w=130.0),)), Cleared),
    ("GPU not read", cpu_job(1.0, gpus=(make_gpu(sm_pct=UNREAD),)), Unsure),
    ("no rank", scene_of(make_frame(processes=())), Unsure),
]


@pytest.mark.parametrize(("name", "scene", "origins"), BALANCED, ids=[row[0] for row in BALANCED])
def test_balanced_needs_work_to_be_seen_and_no_wait(name, scene, origins):
    answer = judge_balanced(scene)
    if isinstance(answer, Suspicion):
        assert (answer.kind, answer.origins) == (Kind.BALANCED, origins)
    else:
        assert type(answer) is origins


EVERY_RULE = (*rules_gpu.RULES, *rules_comms.RULES, *rules_progress.RULES, *rules_healthy.RULES)

HEALTHY = [
    ("CPU", make_frame(processes=(make_process(runnable=2.0), make_worker())), [make_phases(TRAINS)]),
    ("GPU", make_frame(gpus=(make_gpu(),)), [make_phases(TRAINS)]),
    ("full memory", make_frame(gpus=(make_gpu(memory_used_bytes=97, memory_total_bytes=100),)), []),
    ("hidden wait", make_frame(gpus=(make_gpu(),)), [make_phases({Phase.DATA_WAIT: 0.6, Phase.FORWARD: 0.4})]),
    (
        "two ranks",
        make_frame(processes=(make_process(4211), make_process(4212, rank=1)), loader=()),
        [make_phases({Phase.COMMS: 0.1, Phase.FORWARD: 0.9}, pid=pid) for pid in (4211, 4212)],
    ),
]


@pytest.mark.parametrize(("name", "frame", "phases"), HEALTHY, ids=[row[0] for row in HEALTHY])
def test_no_rule_accuses_a_healthy_run(name, frame, phases):
    scene = scene_of(frame, phases, seconds=40)
    guilty = [
        answer for rule in EVERY_RULE if isinstance(answer := rule(scene), Suspicion) and EXIT_CODES[answer.kind] != 0
    ]
    assert guilty == []


TAKEN = {"budget_cores": 2.0, "runnable": 1.0, "demand_ratio": 0.5, "run_delay_ratio": 0.97, "used_cores": 0.03}


def test_a_run_whose_cpus_are_taken_is_no_sure_health():
    fine = judge_balanced(cpu_job(1.0))
    assert (fine.margin > 1, fine.against) == (True, ())
    rank = make_process(runnable=1.0, busy_threads=1)
    frame = make_frame(processes=(rank,), loader=(), cpu=make_cpu(**TAKEN), main_threads=(make_looks(),))
    held = judge_balanced(scene_of(frame, [make_phases(TRAINS)]))
    assert held.summary.startswith("steps go on, but its threads get 0.03 of the 1.0 CPUs that they want")
    assert [row.name for row in held.against] == ["waiting for a CPU"]
    assert "main thread runs or waits for a CPU" in {row.name for row in held.evidence}
    assert rate_confidence(held, 60.0) is Confidence.LOW
    full = make_frame(processes=(make_process(runnable=2.0),), loader=(), cpu=make_cpu(**{**TAKEN, "runnable": 2.0}))
    computes = judge_cpu_compute(scene_of(full, [make_phases(TRAINS)]))
    assert "its threads get 0.06 of the 2.0 CPUs that they want" in computes.summary
    assert rate_confidence(computes, 60.0) is Confidence.LOW


def test_balanced_is_as_sure_as_its_weaker_figure_and_not_where_half_is_the_programs_own_code():
    mixed = {Phase.OTHER: 0.55, Phase.FORWARD: 0.25, Phase.BACKWARD: 0.2}
    looks = {"main_threads": (make_looks(),)}
    mean = {"processes": (make_process(runnable=4.2, busy_threads=8),)}
    one = judge_balanced(cpu_job(4.2, budget=8.0, phases=mixed, **looks, **mean))
    assert [row.name for row in one.against] == ["outside of the step"]
    assert "55 % of the time goes into code outside of the model" in one.summary
    assert rate_confidence(one, 60.0) is Confidence.LOW
    on_gpu = judge_balanced(cpu_job(4.2, budget=8.0, phases=mixed, gpus=(make_gpu(),), **looks))
    assert on_gpu.against == (), "the GPU is busy all the same"
    pool = judge_balanced(cpu_job(4.0, budget=8.0, phases=mixed, **looks))
    assert pool.against == (), "two threads that want 4 CPUs compute all the time"
    plain = judge_balanced(cpu_job(1.0, **looks))
    assert (plain.against, rate_confidence(plain, 60.0)) == ((), Confidence.HIGH)
    barely = {Phase.FORWARD: 0.42, Phase.OTHER: 0.3, Phase.SYNC: 0.15, Phase.COMMS: 0.13}
    one = judge_balanced(cpu_job(1.0, phases=barely, main_threads=(make_looks(),)))
    assert one.margin == pytest.approx(0.42 / 0.4)


@pytest.mark.parametrize(
    ("phase", "words"), [(Phase.CHECKPOINT, "in checkpoints"), (Phase.VALIDATION, "in validations")]
)
def test_pauses_between_steps_are_told_when_the_steps_go_on(phase, words):
    mixed = {phase: 0.27, Phase.FORWARD: 0.3, Phase.BACKWARD: 0.43}
    looks = {"main_threads": (make_looks(io=3),)}
    between = cpu_job(1.0, phases=mixed, where="backward train.py:95", **looks)
    one = judge_balanced(between)
    assert one.summary == f"steps go on, and 27 % of the time is spent {words}"
    assert [row.name for row in one.against] == [words]
    assert rate_confidence(one, 60.0) is Confidence.LOW
    now = judge_balanced(cpu_job(1.0, phases=mixed, where=f"{phase.value} train.py:99", **looks))
    assert "27 %" in now.text, "what it is in right now is a verdict of its own"
    rare = judge_balanced(cpu_job(1.0, phases={phase: 0.1, Phase.FORWARD: 0.9}, main_threads=(make_looks(),)))
    assert rare.against == ()
