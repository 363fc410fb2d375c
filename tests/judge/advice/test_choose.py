"""The catalogue of remedies: complete, consistent, never harmful to a starved loader, true in what it pastes."""

import dataclasses
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import make_cpu, make_frame, make_gpu, make_memory, make_process
from tests.judge.verdict_page import ABOUT, AT_MOST, NOT_WHEN, PAGE, VERDICTS, write_page
from tests.judging import scene_of
from tests.starving import line_up
from tpmon.errors import UsageError
from tpmon.judge.advice import fields as advice_fields
from tpmon.judge.advice.choose import CATALOGUE, REMEDIES, Chosen, Risk, choose, fill_remedy
from tpmon.judge.advice.context import deny, gather_facts, observe
from tpmon.judge.advice.facts import RunFacts, size_loader
from tpmon.judge.advice.fields import fill_paste, write_thaw
from tpmon.judge.advice.hot import CALLS, HotSpot
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.snapshot import see
from tpmon.judge.finding import write_ceiling, write_try
from tpmon.judge.rules.cpu import judge_quota
from tpmon.model.host import BudgetBy, PoolLibrary, ShmSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import EnvironmentSetting, Freezer
from tpmon.model.verdict import TABLE, Kind, pick_code
from tpmon.probe.records.dump_files import read_dumps

ROWS = [(row.kind, cause) for row in TABLE for cause in (row.causes or (NOT_APPLICABLE,))]
GIB = 1 << 30
SUSPECT = Suspicion(Kind.OVERSUBSCRIBED, "rank-pool", 0.5, 2.0, frozenset(("a",)), "text", ())

numbers = st.one_of(st.just(Missing("not read")), st.floats(0, 1e4), st.integers(0, 1 << 40))
texts = st.one_of(st.just(Missing("not read")), st.just(NOT_APPLICABLE), st.just("text"))


def facts_of(draw_number, draw_text):
    draws = {"Applicable[str]": draw_text, "Known[str]": draw_text.filter(lambda one: one is not NOT_APPLICABLE)}
    draws |= {f"Applicable[{name}]": st.just(NOT_APPLICABLE) for name in ("Freezer", "Tracer")}
    draws["Applicable[HotSpot]"] = st.sampled_from([NOT_APPLICABLE, HotSpot(CALLS["sleep"], "")])
    draws["Applicable[tuple[PoolLibrary, ...]]"] = st.just((PoolLibrary.IOMP, PoolLibrary.OPENCV))
    return st.builds(RunFacts, **{f.name: draws.get(str(f.type), draw_number) for f in dataclasses.fields(RunFacts)})


def test_every_row_of_the_table_has_its_entry_of_four_parts_and_every_fault_a_remedy():
    assert set(REMEDIES) == set(ROWS)
    assert {name for names in REMEDIES.values() for name in names} == set(CATALOGUE)
    assert len(set(CATALOGUE)) == len(CATALOGUE), "two areas have a remedy of that name"
    faults = {row.kind for row in TABLE if row.exit_code >= 10} - {Kind.NOT_ENOUGH_EVIDENCE}
    assert all(names or kind not in faults for (kind, _), names in REMEDIES.items())


def test_the_page_explains_every_verdict_and_no_other_and_only_remedies_that_there_are():
    assert VERDICTS.keys() == {(kind.value, cause) for kind, cause in ROWS}
    assert ABOUT.keys() | AT_MOST.keys() | NOT_WHEN.keys() <= set(CATALOGUE)
    for (kind, cause), one in VERDICTS.items():
        assert all(said.endswith(".") for said in (one.means, one.sees, one.confused_with) if said)
        assert bool(REMEDIES[Kind(kind), cause]) != one.what_to_do.endswith("."), "remedies, or a sentence"
    assert all(said.endswith(".") for said in (*ABOUT.values(), *NOT_WHEN.values()))


def test_a_ceiling_that_no_verdict_shows_stands_on_the_page_alone():
    """What a verdict costs is said of it by itself; of a hang and of a healthy run no gain is told."""
    slow = [row for row in ROWS if row[0] is not Kind.HUNG and pick_code(*row)]
    shown = {name for row in slow for name in REMEDIES[row]}
    own = {name for name, remedy in CATALOGUE.items() if remedy.ceiling != "{gain}"}
    assert own <= shown
    assert [name for name in own if "{gain}" in CATALOGUE[name].ceiling] == []


def test_one_thread_of_python_is_not_told_to_use_more_threads_first_nor_on_the_cores_of_its_workers():
    """Threads do not help Python; what torchrun sets comes after what is Python's own."""
    seen = {Need.ONE_THREAD_SET, Need.CORES_FREE, Need.ONE_THREAD_BUSY}
    row = (Kind.PYTHON_BOUND, "single-thread")
    assert REMEDIES[row] == ("mend-hot-call", "log-rarely", "profile-python", "start-workers", "use-all-cores")
    free = RunFacts(cores_free=7.0, pid=4211)
    ids = [one.remedy.id for one in choose(*row, frozenset(seen | {Need.LOGGING_IN_STACK}), free)]
    assert ids == ["log-rarely", "profile-python", "use-all-cores"]
    assert choose(*row, frozenset(seen), free)[0].remedy.id == "profile-python"

    def texts(facts, *more):
        return [one.text for one in choose(*row, frozenset({*seen, *more}), facts)]

    some = RunFacts(ranks=1, budget_cores=8.0, cores_free=2.9)
    assert "let the rank use its cores: OMP_NUM_THREADS=4" in texts(some)
    assert not any("threads" in text for text in texts(replace(some, cores_free=0.6)))
    assert not any("threads" in text for text in texts(some, Need.GPU_PRESENT))


def list_ids(kind: Kind, cause: str, *needs: Need) -> list[str]:
    return [one.remedy.id for one in choose(kind, cause, frozenset(needs), RunFacts(pid=4211, card=0))]


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
    few = free | {Need.WORKERS_PRESENT, Need.WORKERS_CPU_BOUND}
    seen = [(one.remedy.id, one.certain) for one in choose(*row, frozenset(few), RunFacts())]
    assert seen == [("collate-arrays", True), ("more-workers", True), ("transform-once", True)]
    assert list_ids(*row, *free, Need.NO_WORKERS)[:2] == ["start-workers", "collate-arrays"]
    assert "more-workers" not in list_ids(*row, *(few - {Need.CORES_FREE}), Need.CORES_FULL)


@pytest.mark.parametrize("remedy", CATALOGUE.values(), ids=list(CATALOGUE))
def test_a_remedy_says_all_that_it_must(remedy):
    assert CATALOGUE[remedy.id] is remedy
    for text in (remedy.title, remedy.ceiling, *remedy.paste):
        assert text.strip()
    assert not set(remedy.needs) & set(remedy.never_with)


def test_dumps_of_several_hosts_are_of_a_step_beside_the_job_with_a_task_a_host_in_files_or_with_labels():
    """srun mixes what its tasks print.

    Without the job a login node asks for a new one; a step holds all that is there; -n is the shell's else.
    """
    pasted = fill_paste(CATALOGUE["look-on-other-hosts"].paste, RunFacts(slurm_job="4711"))
    told = [line for line in pasted.splitlines() if "tpmon dump" in line]
    dumps = [line for line in told if "srun" in line]
    assert len(dumps) == 1
    for line in dumps:
        in_files = " --output=dump-%N-%t.json " in line and "|" not in line
        assert in_files or " --label " in line.partition("|")[0]
    assert "srun --jobid=4711 " in pasted
    with pytest.raises(UsageError) as raised:
        read_dumps([__file__])
    steps = [part for line in (*told, raised.value.try_this) for part in line.split("srun --jobid")[1:]]
    assert len(steps) == 3
    for step in steps:
        assert re.match(r"=(4711|\$SLURM_JOB_ID) --overlap -N ?(\$?\w+) -n ?\2 ", step), step


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
        "ranks": 1,
        "workers_per_rank": 2,
        "needed_ratio": 3.0,
        "cores_free": 8.0,
        "memory_free_bytes": 64 * GIB,
        "worker_rss_bytes": GIB,
        "worker_busy_ratio": 1.0,
        "budget_cores": 16.0,
    }
    return size_loader(RunFacts(**{**values, **changes}))


def test_workers_are_sized_by_need_cores_and_memory_and_readers_that_only_wait_by_the_machine():
    """Workers behind a socket want no cores, and memory is there: 20 times as many would be proposed."""
    assert propose() == 6
    assert propose(cores_free=1.0) == 3
    assert propose(memory_free_bytes=GIB * 2) == 3
    assert propose(cores_free=0.0) == 2
    waits = {"workers_per_rank": 8, "needed_ratio": 20.0, "worker_busy_ratio": 0.05, "cores_free": 90.0}
    room = {"memory_free_bytes": 900 * GIB, "worker_rss_bytes": GIB // 2}
    assert propose(**waits, **room, budget_cores=96.0) == 32
    assert propose(**waits, **room, budget_cores=12.0) == 24, "eight ranks share the machine"
    assert propose(**waits, **room, budget_cores=2.0) == 16, "beyond the cores it doubles"
    assert propose(**(waits | {"workers_per_rank": 2}), **room, budget_cores=2.0) == 4
    assert propose(**waits, **room, budget_cores=96.0, shm_room=20.0) == 16
    assert propose(**waits, **room, budget_cores=96.0, shm_room=0.0) == 8
    for unread in ("cores_free", "budget_cores"):
        assert isinstance(propose(**{unread: Missing("no budget")}), Missing)


def test_batches_that_new_workers_queue_must_fit_into_shared_memory():
    sizes = [1.0, 1.5, 1.5]
    frames = [make_frame(memory=make_memory(shm=ShmSample("/dev/shm", int(size * GIB), 8 * GIB))) for size in sizes]
    facts = gather_facts(see(line_up(frames)), SUSPECT)
    assert facts.shm_room == pytest.approx(6.5 / 0.5)
    assert isinstance(gather_facts(see(line_up(frames[1:])), SUSPECT).shm_room, Missing)


def test_raising_a_quota_is_certain_where_the_rule_saw_it_throttle():
    frame = make_frame(cpu=make_cpu(throttled_ratio=0.9, budget_by=BudgetBy.QUOTA))
    scene = see([frame] * 2)
    found = judge_quota(scene)
    first = choose(found.kind, found.cause, observe(scene, found), gather_facts(scene, found))[0]
    assert (first.remedy.id, first.certain) == ("raise-quota", True)


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


def test_the_page_is_of_today_and_every_section_says_what_to_do():
    page = PAGE.read_text(encoding="utf-8")
    assert page == write_page(), "make docs"
    rows, _, _ = page.partition("# Remedies")
    points = re.findall(r"^\* Try: (.*)$", rows, re.MULTILINE)
    assert len(points) == len(VERDICTS)
    assert all(said.endswith(".") for said in points)


def test_a_verdict_that_an_explanation_names_is_one_of_the_table():
    known = {row.kind.value for row in TABLE}.union(*(row.causes for row in TABLE))
    for one in VERDICTS.values():
        said = f"{one.means} {one.sees} {one.confused_with}"
        assert set(re.findall(r"\(([a-z]+(?:-[a-z]+)*)\)", said)) <= known, said


# what a remedy tells a person to paste


def fill(name: str, facts: RunFacts | None = None) -> Chosen:
    remedy = CATALOGUE[name]
    return fill_remedy(remedy, frozenset(remedy.needs), facts or RunFacts())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # Into the parameters that the optimizer has.
        ("map-the-checkpoint", "mmap=True"),
        ("accumulate-no-sync", "set_requires_gradient_sync(micro == accumulation - 1)"),
        ("fsdp-keep-parameters", "bytes of all parameters free"),
        # An accumulation of one is not halved to none.
        ("bigger-micro-batch", "accumulation = max(1, accumulation // 2)"),
        ("reseat-card", "--query-gpu=pcie.link.gen.current,pcie.link.gen.max,"),
        # A loss is read after fifty steps have added to it.
        ("sync-rarely", "if (step + 1) % 50 == 0:"),
        # Cores of Slurm reach the steps of srun.
        ("more-cores", "docker run --cpus=... "),
        *((name, "OMP_PROC_BIND=false torchrun") for name in ("widen-affinity", "unbind-workers")),
    ],
)
def test_what_is_pasted_is_right_and_takes_no_cpus_that_the_job_was_not_given(name, words):
    paste = fill(name).paste
    assert words in paste
    assert [word for word in ("assign", "nproc", "cpu_count") if word in paste] == []


def test_what_is_seen_says_what_changes_the_science_of_a_run_and_a_title_that_ends_with_its_paste_once():
    assert write_try(fill("exchange-less-often")).splitlines()[0].endswith(" (changes the experiment):")
    assert " (changes the numerics): torch.set_float32" in write_try(fill("tf32"))
    assert "changes the" not in write_try(fill("pin-off"))
    assert {fill(name).remedy.risk for name in ("exchange-less-often", "tf32", "pin-off")} == set(Risk)
    assert write_try(fill("set-to-none")).count("zero_grad") == 1
    said = "keep the workers between epochs: persistent_workers=True,  # argument of DataLoader"
    assert write_try(fill("persistent-workers")).startswith(said)
    other = fill("dump-stacks", RunFacts(pid=4211))
    assert write_try(other).startswith(f"{other.text}: tpmon dump 4211")


def test_no_sync_is_advised_only_where_the_model_may_have_it():
    assert "exchange-less-often" not in list_ids(Kind.COMMS_BOUND, "transfer", Need.TRANSFER_SEEN, Need.FSDP_IN_STACK)
    seen = frozenset((Need.TRANSFER_SEEN,))
    chosen = {one.remedy.id: one for one in choose(Kind.COMMS_BOUND, "transfer", seen, RunFacts())}
    assert not chosen["exchange-less-often"].certain
    assert "accumulate-no-sync" in list_ids(Kind.COMMS_BOUND, "transfer", Need.FSDP_IN_STACK)


def test_a_full_network_gathers_no_parameters_further_ahead_and_keeps_shards_within_a_machine():
    assert "blocks[i + 1 : i + 3]" in fill("fsdp-prefetch").paste
    transfer, seen = (Kind.COMMS_BOUND, "transfer"), (Need.FSDP_IN_STACK, Need.GPU_MEMORY_FREE)
    assert "fsdp-prefetch" in list_ids(Kind.COMMS_BOUND, "unknown", *seen)
    full = list_ids(*transfer, *seen, Need.TRANSFER_SEEN)
    assert "fsdp-prefetch" not in full
    assert "fsdp-hybrid" not in full
    assert "fsdp-hybrid" in list_ids(*transfer, *seen, Need.TRANSFER_SEEN, Need.RANKS_ELSEWHERE)
    assert "(world // 8, 8)" in fill("fsdp-hybrid", RunFacts(ranks=8)).paste


@pytest.mark.parametrize(("world", "workers"), [(2, 3), (1, 1)])
def test_each_worker_of_each_rank_reads_shards_of_its_own(world, workers):
    paste = fill("read-in-order").paste
    assert "world * info.num_workers" in paste
    taken = [
        shard
        for rank in range(world)
        for worker in range(workers)
        for shard in range(rank * workers + worker, 24, world * workers)
    ]
    assert sorted(taken) == list(range(24))


def test_workers_on_a_small_shared_memory_are_told_of_it_in_the_paste():
    unread = Missing("shared memory was not seen to grow")
    small = RunFacts(shm_total_bytes=64 << 20, shm_room=unread)
    for name in ("start-workers", "more-workers"):
        paste = fill(name, small).paste
        assert "# /dev/shm here is 64" in paste
        assert "--shm-size=8g or --ipc=host" in paste
        assert "shm" not in fill(name, replace(small, shm_room=9.0)).paste
        assert "shm" not in fill(name, replace(small, shm_total_bytes=8 << 30)).paste
        assert "shm" not in fill(name).paste


def test_a_large_shared_memory_is_looked_into_before_it_is_made_larger():
    assert fill("bigger-shm", RunFacts(shm_total_bytes=64 << 20)).paste.startswith("docker run --shm-size=8g")
    large = fill("bigger-shm", RunFacts(shm_total_bytes=8 << 30)).paste
    assert large.startswith("du -ah /dev/shm")
    # How large it is does not tell a container from a machine of its own.
    assert "docker run --shm-size=16g" in large
    assert "# without a container: sudo mount -o remount,size=16g" in large


def test_no_paste_stats_what_a_descriptor_is_open_on_or_starts_a_second_training():
    """A coloured ls asks the file behind each link: on a dead mount it hangs, too."""
    pastes = ["\n".join(remedy.paste) for remedy in CATALOGUE.values()]
    assert not [paste for paste in pastes if "ls -l /proc" in paste]
    assert sum("readlink /proc/" in paste for paste in pastes) == 5
    assert "{script}" not in "".join(CATALOGUE["local-environment"].paste)


def test_what_was_seen_of_a_cause_decides_what_comes_first():
    transfer, cap = (Kind.COMMS_BOUND, "transfer"), (Kind.GPU_THROTTLED, "odd-cap")
    assert list_ids(*transfer, Need.TRANSFER_SEEN, Need.NCCL_PATH_OFF)[0] == "nccl-paths-on"
    assert "nccl-paths-on" not in list_ids(*transfer, Need.TRANSFER_SEEN)
    assert list_ids(*cap, Need.CARD_SICK)[0] == "check-card", "clocks that nobody set are not set back"
    assert list_ids(*cap, Need.CARD_CAPPED)[0] == "reset-caps"
    assert fill("check-card", RunFacts(card=3)).paste.endswith("-d PERFORMANCE,POWER,TEMPERATURE -i 3")
    leak = (Kind.MEMORY_PRESSURE, "leak")
    assert list_ids(*leak, Need.ANON_GROWS)[0] == "detach-history"
    assert list_ids(*leak, Need.ANON_GROWS, Need.GPU_PRESENT)[0] == "find-leak", "it keeps no graphs on the host"


def test_data_are_brought_near_before_they_are_written_anew_and_decoded_on_a_gpu_if_they_are_jpegs():
    near = choose(Kind.DATA_BOUND, "storage-bandwidth", frozenset((Need.WORKERS_IO_WAIT,)), RunFacts())
    ids = [one.remedy.id for one in near]
    assert ids.index("stage-on-nvme") < ids.index("denser-format")
    assert not any(one.certain for one in near)
    assert "only what is not random can be stored" in fill("transform-once").text
    row = (Kind.DATA_BOUND, "cpu-transform")
    assert "decode-on-gpu" not in list_ids(*row, Need.WORKERS_CPU_BOUND)
    seen = frozenset((Need.WORKERS_CPU_BOUND, Need.GPU_PRESENT))
    decode = next(one for one in choose(*row, seen, RunFacts()) if one.remedy.id == "decode-on-gpu")
    assert decode.text.startswith("if the workers decode JPEGs: ")
    assert "after 120 s" in ABOUT["time-limit-for-batches"], "a loader that stands names no worker"


@pytest.mark.parametrize("need", [Need.AFFINITY_BELOW_HOST, Need.QUOTA_BELOW_AFFINITY])
def test_cores_that_the_machine_has_and_the_job_has_not_come_first(need):
    row = (Kind.DATA_BOUND, "cpu-transform")
    full = (Need.WORKERS_PRESENT, Need.TORCH_LOADER, Need.WORKERS_CPU_BOUND, Need.CORES_FULL)
    assert list_ids(*row, *full)[0] == "transform-once"
    assert list_ids(*row, *full, need)[0] == "more-cores"
    assert list_ids(*row, *full, need, Need.POOL_IN_WORKERS)[0] == "cap-worker-threads"
    assert list_ids(*row, *(set(full) - {Need.CORES_FULL}), need)[0] == "transform-once"


MORE = RunFacts(
    ranks=1,
    workers_per_rank=2,
    needed_ratio=4.0,
    cores_free=1.0,
    memory_free_bytes=1 << 34,
    worker_rss_bytes=1 << 28,
    worker_busy_ratio=1.0,
    budget_cores=4.0,
    waiting_ratio=0.75,
)


def test_one_worker_takes_its_time_for_each_batch():
    """A share w in loading: n workers leave the longer of w / n and 1 - w."""
    facts = replace(MORE, workers_per_rank=0, needed_ratio=14.0, budget_cores=2.0, waiting_ratio=0.9)
    assert advice_fields.fill("{workers}: {workers_gain} of {gain}", facts) == "2: 2.2x of 10.0x"
    assert advice_fields.fill("{workers_gain}", replace(facts, cores_free=9.0, worker_busy_ratio=0.1)) == "10.0x"
    on_card = replace(facts, cores_free=0.0, loading_ratio=0.8, waiting_ratio=0.5)
    assert advice_fields.fill("{workers}: {workers_gain}", on_card) == "1: 1.2x"
    assert advice_fields.fill("{workers_gain}", RunFacts()) == "1 / (share of the wait / workers)"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "3: 1.5x"),
        ({"cores_free": 0.5}, "3: 1.4x"),
        ({"cores_free": 9.0}, "8: 4.0x"),
        ({"cores_free": 9.0, "needed_ratio": 1.6}, "4: 1.6x"),
        ({"cores_free": 9.0, "waiting_ratio": 0.4}, "8: 1.7x"),
        ({"cores_free": 0.0, "worker_busy_ratio": 0.05}, "8: 4.0x"),
        ({"cores_free": 2.0, "ranks": 2}, "3: 1.5x"),
        ({"cores_free": 0.0}, "2: 1.0x"),
    ],
)
def test_more_workers_gain_what_their_number_cores_and_the_need_allow(fields, said):
    """Two workers on cores that are nearly used up do not gain all that the wait costs."""
    assert advice_fields.fill("{workers}: {growth_gain}", replace(MORE, **fields)) == said


def test_more_workers_say_in_their_ceiling_what_they_gain_themselves():
    waits = Suspicion(Kind.DATA_BOUND, "cpu-transform", 0.75, 2.0, frozenset(("a",)), "text", (), share=0.75)
    for name in ("more-workers", "more-readers", "more-sleepers"):
        few, many, unread = fill(name, MORE), fill(name, replace(MORE, cores_free=9.0)), fill(name)
        assert write_ceiling(waits, few) == "4.0x if all of it goes away, 1.5x with num_workers=3"
        assert write_ceiling(waits, many) == "4.0x if all of it goes away"
        assert write_ceiling(waits, unread) == "4.0x if all of it goes away"
        open_share = replace(waits, share=Missing("not measured"))
        assert isinstance(write_ceiling(open_share, unread), Missing)


# control groups

ID = "0f3a" * 16


@pytest.mark.parametrize(
    ("version", "directory", "expected"),
    [
        (1, "/sys/fs/cgroup/freezer/a b", "echo THAWED | sudo tee '/sys/fs/cgroup/freezer/a b/freezer.state'"),
        (2, "/sys/fs/cgroup/train", "echo 0 | sudo tee /sys/fs/cgroup/train/cgroup.freeze"),
        (1, f"/sys/fs/cgroup/freezer/docker/{ID}", "docker unpause 0f3a0f3a0f3a  # or: echo THAWED"),
        (2, f"/sys/fs/cgroup/system.slice/docker-{ID}.scope", "docker unpause 0f3a0f3a0f3a  # or: echo 0"),
        (2, f"/sys/fs/cgroup/user.slice/libpod-{ID}.scope", "podman unpause 0f3a0f3a0f3a  # or: echo 0"),
        (2, "/sys/fs/cgroup/system.slice/train.service", "sudo systemctl thaw train.service  # or: echo 0"),
        (2, "/sys/fs/cgroup/system.slice/train.service/sub", "echo 0 | sudo tee"),
        (1, "/sys/fs/cgroup/freezer/system.slice/train.service", "echo THAWED | sudo tee"),
        (1, "/sys/fs/cgroup/freezer/slurm/uid_7/job_912/step_0", "scontrol resume 912  # or: echo THAWED"),
        (2, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_912", "scontrol resume 912  # or: echo 0"),
    ],
)
def test_the_one_who_froze_it_is_asked_first(version, directory, expected):
    assert write_thaw(Freezer(version, "/x", directory)).startswith(expected)


def test_a_group_out_of_view_has_no_command():
    why = Missing("a group above what can be seen here was frozen: thaw it outside")
    assert write_thaw(Freezer(2, "this container", why)) == why


def test_who_has_no_quota_and_no_limit_is_not_sent_to_a_container():
    facts = RunFacts(budget_cores=2.0, quota_cores=NOT_APPLICABLE, memory_limit_bytes=NOT_APPLICABLE)
    facts = replace(facts, memory_free_bytes=3 << 30)
    cores = choose(Kind.COMPUTE_BOUND, "cpu", frozenset((Need.CORES_FULL,)), facts)[0]
    assert cores.paste.startswith("nproc --all  # no quota, it may use 2 CPUs here")
    memory = next(
        one
        for one in choose(Kind.MEMORY_PRESSURE, "swap", frozenset((Need.MEMORY_LIMIT_NEAR,)), facts)
        if one.remedy.id == "more-memory"
    )
    assert "no limit, 3.0G free here" in memory.paste
    assert "docker" not in cores.paste + memory.paste
    held = choose(Kind.COMPUTE_BOUND, "cpu", frozenset((Need.CORES_FULL,)), replace(facts, quota_cores=2.0))[0]
    assert held.paste.startswith("docker run --cpus=4")


def test_what_was_seen_not_to_be_so_is_no_if():
    row, seen = (Kind.DATA_BOUND, "cpu-transform"), frozenset((Need.WORKERS_PRESENT,))
    maybe = {one.remedy.id for one in choose(*row, seen, RunFacts())}
    assert "more-cores" in maybe
    assert "more-cores" not in {one.remedy.id for one in choose(*row, seen, RunFacts(), frozenset((Need.CORES_FULL,)))}


def test_the_screen_says_keys_where_these_do_what_is_pasted_elsewhere():
    named = {name for name in CATALOGUE if CATALOGUE[name].keys}
    assert named >= {"dump-stacks", "look-at-line", "find-endless-loop", "look-at-missing-rank"}
    for name in named:
        assert CATALOGUE[name].paste[0].startswith("tpmon dump "), name


def test_what_was_not_read_is_denied_by_nobody():
    idle = scene_of(make_frame(cpu=make_cpu(budget_cores=8.0, used_cores=1.0, runnable=1.0)))
    one = Suspicion(Kind.DATA_BOUND, "cpu-transform", 1.0, 1.0)
    assert Need.CORES_FULL in deny(idle, one, observe(idle, one))
    assert Need.CORES_FREE not in deny(idle, one, observe(idle, one)), "it was seen to be so"
    unread = scene_of(make_frame(cpu=make_cpu(budget_cores=Missing("no"), used_cores=Missing("no"))))
    assert not {Need.CORES_FULL, Need.CORES_FREE, Need.AFFINITY_BELOW_HOST} & deny(unread, one, observe(unread, one))


@pytest.mark.parametrize(
    ("card", "denied"),
    [
        ({"memory_used_bytes": 80 << 30, "memory_total_bytes": 80 << 30}, {Need.GPU_MEMORY_FREE}),
        ({"memory_used_bytes": 8 << 30, "memory_total_bytes": 80 << 30}, {Need.GPU_MEMORY_FULL}),
        ({"tensor_pct": 60.0}, {Need.TENSOR_CORES_IDLE}),
        ({}, set()),
    ],
)
def test_what_a_card_was_read_not_to_be_is_denied(card, denied):
    unread = {"memory_used_bytes": Missing("no"), "memory_total_bytes": Missing("no"), "tensor_pct": Missing("no")}
    scene = scene_of(make_frame(gpus=(make_gpu(**unread | card),)))
    asked = {Need.GPU_MEMORY_FREE, Need.GPU_MEMORY_FULL, Need.TENSOR_CORES_IDLE}
    one = Suspicion(Kind.COMPUTE_BOUND, "gpu", 1.0, 1.0)
    assert deny(scene, one, observe(scene, one)) & asked == denied
