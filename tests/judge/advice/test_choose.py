"""The catalogue of remedies: complete, consistent, and never harmful to a starved loader."""

import dataclasses
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import make_cpu, make_frame, make_memory, make_process
from tests.judging import scene_of
from tests.starving import line_up
from tpmon.errors import UsageError
from tpmon.judge.advice.choose import CATALOGUE, EXPLANATIONS, choose
from tpmon.judge.advice.context import gather_facts, observe
from tpmon.judge.advice.facts import RunFacts, fill_paste, propose_workers
from tpmon.judge.advice.verdict_page import write_page
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.snapshot import see
from tpmon.judge.rules.cpu import judge_quota
from tpmon.model.host import ShmSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import EnvironmentSetting
from tpmon.model.verdict import TABLE, Kind
from tpmon.probe.records.dump_files import read_dumps

ROWS = [(row.kind, cause) for row in TABLE for cause in (row.causes or (NOT_APPLICABLE,))]
GIB = 1 << 30
SUSPECT = Suspicion(Kind.OVERSUBSCRIBED, "rank-pool", 0.5, 2.0, frozenset(("a",)), "text", ())

numbers = st.one_of(st.just(Missing("not read")), st.floats(0, 1e4), st.integers(0, 1 << 40))
texts = st.one_of(st.just(Missing("not read")), st.just(NOT_APPLICABLE), st.just("OpenMP"))


def facts_of(draw_number, draw_text):
    draws = {"Applicable[str]": draw_text, "Known[str]": draw_text.filter(lambda one: one is not NOT_APPLICABLE)}
    return st.builds(RunFacts, **{f.name: draws.get(str(f.type), draw_number) for f in dataclasses.fields(RunFacts)})


def test_every_row_of_the_table_has_its_entry_and_no_other():
    assert set(EXPLANATIONS) == set(ROWS)
    assert {name for one in EXPLANATIONS.values() for name in one.remedies} == set(CATALOGUE)
    assert len(set(CATALOGUE)) == len(CATALOGUE), "two areas have a remedy of that name"


def test_one_thread_of_python_is_not_told_to_use_more_threads_first():
    """Threads do not help Python; what torchrun sets comes after what is Python's own."""
    seen = {Need.ONE_THREAD_SET, Need.CORES_FREE, Need.ONE_THREAD_BUSY, Need.LOGGING_IN_STACK}
    row = (Kind.PYTHON_BOUND, "single-thread")
    assert EXPLANATIONS[row].remedies == ("log-rarely", "profile-python", "start-workers", "use-all-cores")
    ids = [one.remedy.id for one in choose(*row, frozenset(seen), RunFacts(cores_free=7.0))]
    assert ids == ["log-rarely", "profile-python", "use-all-cores"]
    ids = [one.remedy.id for one in choose(*row, frozenset(seen - {Need.LOGGING_IN_STACK}), RunFacts(cores_free=7.0))]
    assert ids[0] == "profile-python"


def test_workers_are_advised_for_certain_only_where_torch_s_loader_was_seen():
    seen = frozenset((Need.NO_WORKERS, Need.CORES_FREE, Need.MEMORY_FREE, Need.WORKERS_CPU_BOUND))
    facts = RunFacts(workers_per_rank=0)
    own = choose(Kind.DATA_BOUND, "no-workers", seen, facts)
    assert not any(one.certain for one in own)
    assert own[0].text.startswith("if the batches come from torch's DataLoader: load in the background")
    torch_s = choose(Kind.DATA_BOUND, "no-workers", seen | {Need.TORCH_LOADER}, facts)
    assert (torch_s[0].remedy.id, torch_s[0].certain) == ("start-workers", True)


def test_collating_is_given_to_more_workers_where_cores_are_free():
    """A collate function that tokenises has no lists to get rid of."""
    row = (Kind.DATA_BOUND, "collate")
    free = {Need.COLLATE_IN_STACK, Need.TORCH_LOADER, Need.CORES_FREE, Need.MEMORY_FREE}
    few = frozenset(free | {Need.WORKERS_PRESENT, Need.WORKERS_CPU_BOUND})
    seen = [(one.remedy.id, one.certain) for one in choose(*row, few, RunFacts())]
    assert seen == [("collate-arrays", True), ("more-workers", True), ("transform-once", True)]
    none = frozenset(free | {Need.NO_WORKERS})
    assert [one.remedy.id for one in choose(*row, none, RunFacts())][:2] == ["start-workers", "collate-arrays"]
    full = few - {Need.CORES_FREE} | {Need.CORES_FULL}
    assert "more-workers" not in {one.remedy.id for one in choose(*row, full, RunFacts())}


def test_every_fault_has_a_remedy():
    faults = {row.kind for row in TABLE if row.exit_code >= 10} - {Kind.NOT_ENOUGH_EVIDENCE}
    assert all(one.remedies for (kind, _), one in EXPLANATIONS.items() if kind in faults)


@pytest.mark.parametrize("remedy", CATALOGUE.values(), ids=list(CATALOGUE))
def test_a_remedy_says_all_that_it_must(remedy):
    assert CATALOGUE[remedy.id] is remedy
    for text in (remedy.title, remedy.applies, remedy.not_when, remedy.ceiling, remedy.proof):
        assert text.strip()
    assert not set(remedy.needs) & set(remedy.never_with)


def test_the_dumps_of_several_hosts_come_in_files_or_with_labels_for_srun_mixes_what_its_tasks_print():
    pasted = fill_paste(CATALOGUE["look-on-other-hosts"].paste, RunFacts(slurm_job="4711"))
    lines = pasted.splitlines()
    lines += (Path(__file__).parents[3] / "docs" / "guide.md").read_text(encoding="utf-8").splitlines()
    dumps = [line for line in lines if "srun" in line and "tpmon dump" in line]
    assert len(dumps) == 3
    for line in dumps:
        in_files = " --output=dump-%N-%t.json " in line and "|" not in line
        assert in_files or " --label " in line.partition("|")[0]
    assert "srun --jobid=4711 " in pasted


def test_a_step_beside_the_job_names_the_job_shares_its_cores_and_has_a_task_a_host():
    """Without the job a login node asks for a new one; a step holds all that is there; -n is the shell's else."""
    pasted = fill_paste(CATALOGUE["look-on-other-hosts"].paste, RunFacts(slurm_job="4711"))
    guide = (Path(__file__).parents[3] / "docs" / "guide.md").read_text(encoding="utf-8")
    told = [line for line in (*pasted.splitlines(), *guide.splitlines()) if "tpmon dump" in line]
    with pytest.raises(UsageError) as raised:
        read_dumps([__file__])
    steps = [part for line in (*told, raised.value.try_this) for part in line.split("srun --jobid")[1:]]
    assert len(steps) == 5
    for step in steps:
        assert re.match(r"=(4711|\$SLURM_JOB_ID) --overlap -N ?(\w+) -n ?\2 ", step), step


@pytest.mark.parametrize("job", [NOT_APPLICABLE, Missing("no environment was read")])
def test_outside_of_slurm_no_command_of_it_is_advised(job):
    facts = RunFacts(slurm_job=job)
    for name in ("look-on-other-hosts", "restart-from-checkpoint", "find-killer"):
        pasted = fill_paste(CATALOGUE[name].paste, facts)
        assert not any(word in pasted for word in ("srun", "sacct", "JOBID", "{"))
    assert "> dump-$(hostname).json" in fill_paste(CATALOGUE["look-on-other-hosts"].paste, facts)
    ended = fill_paste(CATALOGUE["find-killer"].paste, RunFacts(slurm_job="4711"))
    assert ended.endswith("; sacct -j 4711")


@given(row=st.sampled_from(ROWS), observed=st.frozensets(st.sampled_from(list(Need))), facts=facts_of(numbers, texts))
def test_any_run_gets_its_remedies_certain_ones_first(row, observed, facts):
    chosen = choose(*row, observed, facts)
    certain = [one.certain for one in chosen]
    assert certain == sorted(certain, reverse=True)
    for one in chosen:
        assert one.certain == set(one.remedy.needs).issubset(observed)
        assert one.text.startswith("if ") != one.certain
        assert not observed.intersection(one.remedy.never_with)
        assert "{" not in one.text


@given(row=st.sampled_from(ROWS), facts=facts_of(numbers, texts))
def test_a_loader_that_is_short_of_cores_is_never_given_more_workers(row, facts):
    observed = frozenset((Need.WORKERS_CPU_BOUND, Need.WORKERS_PRESENT, Need.CORES_FULL))
    assert not any(one.remedy.adds_workers for one in choose(*row, observed, facts))


def propose(**changes):
    values = {
        "workers_now": 2,
        "needed_ratio": 3.0,
        "cores_free": 8.0,
        "memory_free_bytes": 64 * GIB,
        "worker_rss_bytes": GIB,
        "worker_busy_ratio": 1.0,
        "budget_cores": 16.0,
        "shm_room": Missing("shared memory was not seen to grow"),
    }
    return propose_workers(**{**values, **changes})


def test_workers_are_sized_by_need_cores_and_memory():
    assert propose() == 6
    assert propose(cores_free=1.0) == 3
    assert propose(memory_free_bytes=GIB * 2) == 3
    assert propose(cores_free=0.0) == 2
    assert isinstance(propose(cores_free=Missing("no budget")), Missing)


def test_readers_that_only_wait_are_not_proposed_without_end():
    """Workers behind a socket want no cores, and memory is there: 20 times as many would be proposed."""
    waits = {"workers_now": 8, "needed_ratio": 20.0, "worker_busy_ratio": 0.05, "cores_free": 90.0}
    room = {"memory_free_bytes": 900 * GIB, "worker_rss_bytes": GIB // 2}
    assert propose(**waits, **room, budget_cores=96.0) == 32
    assert propose(**waits, **room, budget_cores=12.0) == 24, "eight ranks share the machine"
    assert propose(**waits, **room, budget_cores=2.0) == 16, "beyond the cores it doubles"
    assert propose(**(waits | {"workers_now": 2}), **room, budget_cores=2.0) == 4
    assert propose(**waits, **room, budget_cores=96.0, shm_room=20.0) == 16
    assert propose(**waits, **room, budget_cores=96.0, shm_room=0.0) == 8
    assert isinstance(propose(budget_cores=Missing("no budget")), Missing)


def test_batches_that_new_workers_queue_must_fit_into_shared_memory():
    sizes = [1.0, 1.5, 1.5]
    frames = [make_frame(memory=make_memory(shm=ShmSample("/dev/shm", int(size * GIB), 8 * GIB))) for size in sizes]
    facts = gather_facts(see(line_up(frames)), SUSPECT)
    assert facts.shm_room == pytest.approx(6.5 / 0.5)
    assert isinstance(gather_facts(see(line_up(frames[1:])), SUSPECT).shm_room, Missing)


def _texts(kind: Kind, cause: str, needs: set[Need], facts: RunFacts) -> list[str]:
    return [one.text for one in choose(kind, cause, frozenset(needs), facts)]


def test_a_rank_is_given_no_threads_on_the_cores_of_its_workers():
    needs = {Need.ONE_THREAD_SET, Need.CORES_FREE, Need.ONE_THREAD_BUSY}
    row = (Kind.PYTHON_BOUND, "single-thread")
    some = RunFacts(ranks=1, budget_cores=8.0, cores_free=2.9)
    assert "let the rank use its cores: OMP_NUM_THREADS=4" in _texts(*row, needs, some)
    full = replace(some, cores_free=0.6)
    assert not any("threads" in text for text in _texts(*row, needs, full))
    assert not any("threads" in text for text in _texts(*row, needs | {Need.GPU_PRESENT}, some))


def test_raising_a_quota_is_certain_where_the_rule_saw_it_throttle():
    frame = make_frame(cpu=make_cpu(throttled_ratio=0.9, budget_reason="cgroup quota"))
    scene = see([frame] * 2)
    found = judge_quota(scene)
    chosen = choose(found.kind, found.cause, observe(scene, found), gather_facts(scene, found))
    assert chosen[0].remedy.id == "raise-quota"
    assert chosen[0].certain


def test_threads_that_the_program_asked_for_are_not_capped_from_outside():
    pool = make_process(busy_threads=12, runnable=12.0, environment=(EnvironmentSetting("OMP_NUM_THREADS", "2"),))
    frame = make_frame(processes=(pool,), loader=(), cpu=make_cpu(host_cores=2, budget_cores=2.0))
    scene = scene_of(frame)
    observed = observe(scene, SUSPECT)
    assert Need.THREADS_IN_SCRIPT in observed
    first = choose(Kind.OVERSUBSCRIBED, "rank-pool", observed, gather_facts(scene, SUSPECT))[0]
    assert (first.remedy.id, first.certain) == ("cap-threads-in-script", True)
    assert first.paste.startswith("torch.set_num_threads(2)")
    asked = replace(pool, environment=(EnvironmentSetting("OMP_NUM_THREADS", "12"),))
    by_environment = observe(scene_of(replace(frame, processes=(asked,))), SUSPECT)
    assert Need.THREADS_IN_SCRIPT not in by_environment
    first = choose(Kind.OVERSUBSCRIBED, "rank-pool", by_environment, RunFacts())[0]
    assert (first.remedy.id, first.certain) == ("cap-rank-threads", True)


def test_slow_imports_are_no_matter_of_the_disk_where_others_have_the_cpus():
    waits = make_cpu(
        budget_cores=2.0, runnable=1.0, demand_ratio=0.5, run_delay_ratio=0.97, used_cores=0.03, host_used_cores=2.0
    )
    seen = frozenset((Need.IMPORT_IN_STACK,))
    starved = observe(scene_of(make_frame(cpu=waits)), SUSPECT) | seen
    assert choose(Kind.STARTING, "import", starved, RunFacts()) == ()
    named = choose(Kind.STARTING, "import", seen, RunFacts(script="slow log.py"))[0]
    assert named.paste.startswith("python -X importtime -c 'import torch' 2>")


def test_a_late_rank_is_looked_at_with_tpmon():
    late = choose(Kind.COMMS_BOUND, "straggler", frozenset((Need.RANK_BEHIND,)), RunFacts(pid=31830, rank=2))[0]
    assert late.paste.startswith("tpmon dump 31830 --rank 2")


def test_debug_settings_that_were_looked_for_and_not_found_are_not_advised_against():
    row = (Kind.LAUNCH_BOUND, "tiny-kernels")

    def advised(*environments):
        ranks = tuple(make_process(4211 + i, rank=i, environment=one) for i, one in enumerate(environments))
        observed = observe(scene_of(make_frame(processes=ranks)), SUSPECT)
        return {one.remedy.id: one.certain for one in choose(*row, observed, RunFacts())}

    clean, taxed = (EnvironmentSetting("RANK", "0"),), (EnvironmentSetting("CUDA_LAUNCH_BLOCKING", "1"),)
    assert "debug-taxes-off" not in advised(clean, clean)
    assert advised(clean, taxed)["debug-taxes-off"] is True
    assert advised(clean, Missing("belongs to another user"))["debug-taxes-off"] is False


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ((EnvironmentSetting("RANK", "0"), EnvironmentSetting("SLURM_JOB_ID", "4711")), "4711"),
        ((EnvironmentSetting("SLURM_JOB_ID", "$(reboot)"),), NOT_APPLICABLE),
        ((), NOT_APPLICABLE),
        (Missing("permission denied"), Missing("no environment was read")),
    ],
)
def test_the_job_of_slurm_is_that_of_the_environment_of_a_rank(environment, job):
    scene = scene_of(make_frame(processes=(make_process(environment=environment),)))
    assert gather_facts(scene, Suspicion(Kind.HUNG, "remote-rank", 1.0, 2.0, frozenset(), "", ())).slurm_job == job


# the page

PAGE = Path(__file__).parents[3] / "docs" / "verdicts.md"


def test_the_page_is_of_today():
    assert PAGE.read_text(encoding="utf-8") == write_page(), "make docs"


def test_every_row_of_the_table_is_explained_once():
    rows = [(row.kind, cause) for row in TABLE for cause in (row.causes or (NOT_APPLICABLE,))]
    assert sorted(map(str, rows)) == sorted(map(str, EXPLANATIONS))


def test_every_row_says_all_four_parts():
    for one in EXPLANATIONS.values():
        assert one.means.endswith(".")
        assert one.sees.endswith(".")
        assert one.confused_with.endswith(".")
        assert bool(one.remedies) != one.what_to_do.endswith("."), "remedies, or a sentence"


def test_every_section_of_the_page_has_its_three_points():
    rows, _, _ = PAGE.read_text(encoding="utf-8").partition("# The catalogue of remedies")
    for point in ("How tpmon sees it", "Often confused with", "What to do"):
        points = re.findall(rf"^\* {point}: (.*)$", rows, re.MULTILINE)
        assert len(points) == len(EXPLANATIONS)
        assert all(said.endswith(".") for said in points)
