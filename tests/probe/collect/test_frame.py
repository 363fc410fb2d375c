"""Turn the readings of one tick into the parts of a Frame, with what was not read left out of sums."""

from datetime import timedelta

import pytest

from tests.frames import GIB, NOW, make_gpu, make_log_pace, make_output
from tests.frames import make_cpu as cpu_sample
from tests.frames import make_process as sample
from tests.frames import make_worker as worker
from tests.members import made_up
from tpmon.model.gpu import GpuProcess
from tpmon.model.host import NO_LOG, SUMMED_ANON, PoolLibrary, join_log_paces
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Identity, Role, ThreadGroup, ThreadKind
from tpmon.model.waits import Wait, WaitReason
from tpmon.probe.base.procread import StatLine
from tpmon.probe.collect.frame import (
    add_known,
    age_output,
    find_pool,
    has_pin_thread,
    is_pool,
    list_output,
    make_cpu,
    make_memory,
    make_process,
    make_rank_rows,
    name_place,
    withhold_sums,
)
from tpmon.probe.collect.processes import ProcessRates, ProcessReading, Reading
from tpmon.probe.host.cgroup import CgroupReading, CpuBudget
from tpmon.probe.host.machine import HostReading
from tpmon.probe.proc.memory import AnonMemory, Pss
from tpmon.probe.proc.threads import ThreadReading

SECOND = 1_000_000_000
REFUSED = Missing("permission denied")
FIRST = Missing("rates need two readings")
HOST = HostReading(8, 4.0, 0.0, 3.5, 1 << 34, 1 << 35)
BUDGET = CpuBudget(2.0, "affinity")
GROUP = CgroupReading(
    **dict.fromkeys(CgroupReading.__dataclass_fields__, "")
    | {"throttled_ratio": 0.25, "throttled_s": 0.5, "psi_cpu_some_pct": 30.0, "memory_source": "cgroup"}
)


def cpu_of(*processes, budget=BUDGET, libraries=(PoolLibrary.MKL,)):
    return make_cpu(processes, budget, GROUP, HOST, libraries)


def test_a_row_joins_who_it_is_what_it_did_and_its_rationed_pss():
    member = made_up(42, 3, identity=Identity(42, 77), parent=41, local_rank=1, rank_pid=42)
    now = ProcessReading(
        stat=StatLine(42, "python", "S", 40, False, 9, 77, 0, cpu_s=1.5, rss_bytes=1000),
        rates=ProcessRates(98.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
        threads=ThreadReading(1.5, 0.5, 1.0, 1, 20.0, 2.0, (ThreadGroup(ThreadKind.MAIN, 9, 1.5),), 8 * SECOND),
        wchan="futex_do_wait",
        syscall="202",
        waits_for=Wait(WaitReason.LOCK),
        waits_unchanged_s=4.0,
        taken_ns=9 * SECOND,
        state="D",
    )
    row = make_process(Reading(member, now), Pss(600, 6 * SECOND), 10 * SECOND)
    assert (row.pid, row.start_ticks, row.parent) == (42, 77, 40), "the parent is that of now"
    assert row.state == "D", "the state of the thread of the loop"
    assert (row.rank, row.local_rank, row.worker, row.label) == (3, 1, NOT_APPLICABLE, "train.py")
    assert (row.cpu_pct, row.runnable, row.waiting, row.busy_threads, row.switches_s) == (98, 1.5, 0.5, 1, 20)
    assert (row.rss_bytes, row.pss_bytes, row.pss_age_s) == (1000, 600, 4.0)
    assert (row.minor_faults_s, row.major_faults_s, row.read_calls_s) == (1.0, 2.0, 7.0)
    assert (row.asked_read_bytes_s, row.asked_write_bytes_s) == (3.0, 4.0)
    assert (row.device_read_bytes_s, row.device_write_bytes_s) == (5.0, 6.0)
    assert (row.waits_for, row.waits_unchanged_s, row.threads) == (Wait(WaitReason.LOCK), 4.0, 9)
    without = make_process(Reading(member, now), REFUSED, 10 * SECOND)
    assert without.pss_bytes == without.pss_age_s == REFUSED


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("/user.slice/job_17", "control group /user.slice/job_17"),
        ("…slice/job_17", "control group …slice/job_17"),
        ("this container", "this container"),
        ("host", "host"),
        ("", "no control group could be read"),
    ],
)
def test_a_place_of_memory_is_named_in_words(source, words):
    assert name_place(source) == words


def test_sums_leave_out_what_was_not_read_and_are_withheld_where_a_process_was_not():
    cpu = cpu_sample()
    assert withhold_sums(cpu, 0) is cpu
    held = withhold_sums(cpu, 2)
    assert held.used_cores == held.runnable == held.oversubscription
    assert held.used_cores == Missing("2 processes of the job were not read")
    assert (held.budget_cores, held.host_load) == (cpu.budget_cores, cpu.host_load)
    rows = (sample(1, cpu_pct=50.0), sample(2, cpu_pct=REFUSED), sample(3, cpu_pct=25.0))
    assert add_known(rows, lambda row: row.cpu_pct) == 75.0
    assert add_known(rows[1:2], lambda row: row.cpu_pct) == REFUSED
    assert add_known((), lambda row: row.cpu_pct) == Missing("no process")


def test_oversubscription_counts_pools_and_not_single_threaded_workers():
    """Two ranks of eight threads each beside four busy loader workers, on two CPUs."""
    ranks = [sample(i, runnable=6.5, waiting=5.5, busy_threads=8) for i in (1, 2)]
    loaders = [worker(10 + i, i, runnable=0.8, waiting=0.6, busy_threads=1) for i in range(4)]
    cpu = cpu_of(*ranks, *loaders)
    sums = (cpu.runnable, cpu.pool_runnable, cpu.oversubscription, cpu.demand_ratio)
    assert sums == pytest.approx((16.2, 13.0, 6.5, 8.1))
    assert cpu.run_delay_ratio == pytest.approx((2 * 5.5 + 4 * 0.6) / 16.2)
    assert is_known(cpu.budget_cores)
    assert (cpu.pool.pid, cpu.pool.role, cpu.pool.threads, cpu.pool.runnable) == (1, Role.RANK, 8, 6.5)
    assert (cpu.pool.library, cpu.pool.libraries) == ("MKL", ("mkl",))


def test_one_busy_thread_a_process_is_no_pool_and_the_largest_is_named_or_the_lower_pid_of_equals():
    cpu = cpu_of(*(worker(i, i, runnable=1.0, waiting=0.5, busy_threads=1) for i in range(8)))
    assert (cpu.pool_runnable, cpu.oversubscription, cpu.demand_ratio, cpu.pool) == (0.0, 0.0, 4.0, NOT_APPLICABLE)
    assert find_pool(()) is None
    rows = [sample(i, runnable=demand, busy_threads=2) for i, demand in ((5, 3.0), (3, 3.0), (9, 2.9))]
    assert find_pool(rows).pid == 3
    assert is_pool(rows[0])
    assert not is_pool(sample(busy_threads=REFUSED))
    assert not is_pool(sample(busy_threads=1))


def test_an_idle_job_waits_for_nothing_and_before_the_second_reading_nothing_is_zero():
    cpu = cpu_of(sample(runnable=0.0, waiting=0.0, busy_threads=0, cpu_pct=0.0))
    assert (cpu.run_delay_ratio, cpu.used_cores, cpu.demand_ratio) == (0.0, 0.0, 0.0)
    cpu = cpu_of(sample(cpu_pct=FIRST, runnable=FIRST, waiting=FIRST, busy_threads=FIRST))
    assert cpu.used_cores == cpu.runnable == cpu.waiting == cpu.demand_ratio == FIRST
    assert cpu.pool_runnable == cpu.oversubscription == cpu.run_delay_ratio == FIRST


@pytest.mark.parametrize("cores", [REFUSED, 0.0])
def test_ratios_without_a_budget_are_missing(cores):
    cpu = cpu_of(sample(runnable=3.0, busy_threads=3), budget=CpuBudget(cores, "?"))
    assert not is_known(cpu.demand_ratio)
    assert not is_known(cpu.oversubscription)
    assert cpu.runnable == 3.0


def test_what_groups_and_host_said_is_carried_over():
    cpu = cpu_of(sample())
    assert (cpu.throttled_ratio, cpu.throttled_s, cpu.psi_some_pct) == (0.25, 0.5, 30.0)
    assert (cpu.host_cores, cpu.host_used_cores, cpu.host_load, cpu.budget_reason) == (8, 4.0, 3.5, "affinity")


def test_rank_rows_come_by_rank_with_the_card_that_lists_them():
    rows = (
        sample(30, rank=Missing("not told")),
        sample(20, rank=1, waits_for="sleep", waits_unchanged_s=9.0),
        worker(21, rank_pid=20),
        sample(10, rank=0),
    )
    cards = (make_gpu(4, pids=(99,)), make_gpu(5, pids=(10, 99)), make_gpu(6, pids=REFUSED))
    ranks = make_rank_rows(rows, cards)
    assert [row.pid for row in ranks] == [10, 20, 30]
    assert [row.gpu for row in ranks] == [5, *[Missing("no card lists this process")] * 2]
    one_open = (make_gpu(7, pids=(20,), pids_are_visible_only=True),)
    both_open = tuple(make_gpu(i, pids=(10, 20), pids_are_visible_only=True) for i in (2, 3))
    assert make_rank_rows(rows, one_open)[1].gpu == 7
    unknown = Missing("it holds several cards; which one it uses is not known")
    assert [row.gpu for row in make_rank_rows(rows, both_open)[:2]] == [unknown] * 2
    assert (ranks[1].where, ranks[1].where_unchanged_s) == ("sleep", 9.0)
    assert not is_known(ranks[0].step)
    for none in (REFUSED, ()):
        assert [row.gpu for row in make_rank_rows(rows, none)] == [NOT_APPLICABLE] * 3


UNTOLD = Missing("no sample of this process")


def holding(pid, *told):
    """Make cards of which each lists one rank with its bytes and SM %; None where a card does not list it."""
    cards = []
    for index, entry in enumerate(told):
        listed = () if entry is None else (GpuProcess(pid, *entry, True),)
        cards.append(make_gpu(index, pids=tuple(one.pid for one in listed), processes=listed))
    return tuple(cards)


@pytest.mark.parametrize(
    ("told", "card"),
    [
        ([(GIB // 2, UNTOLD), None, (60 * GIB, UNTOLD)], 2),
        ([(GIB // 2, 0.0), (60 * GIB, 95.0)], 1),
        ([(GIB // 2, 0.0), (2 * GIB, 95.0)], 1),
        ([(GIB // 2, UNTOLD), (2 * GIB, UNTOLD)], Missing("it uses several cards: 0, 1")),
        ([(40 * GIB, 0.0), (60 * GIB, 95.0)], Missing("it uses several cards: 0, 1")),
        ([(GIB // 2, 40.0), (60 * GIB, 95.0)], Missing("it uses several cards: 0, 1")),
        ([(UNTOLD, UNTOLD), (UNTOLD, UNTOLD)], Missing("it uses several cards: 0, 1")),
    ],
)
def test_a_rank_is_on_the_card_it_works_on_and_not_on_that_of_a_stray_context(told, card):
    rows = (sample(10, rank=0),)
    assert [row.gpu for row in make_rank_rows(rows, holding(10, *told))] == [card]


def test_ranks_that_loaded_a_checkpoint_to_the_first_card_keep_their_own():
    ranks = [sample(10 + i, rank=i) for i in range(4)]
    contexts = tuple(GpuProcess(10 + i, GIB // 2, UNTOLD, True) for i in range(1, 4))
    first = make_gpu(0, pids=(10, 11, 12, 13), processes=(GpuProcess(10, 70 * GIB, 95.0, True), *contexts))
    own = [make_gpu(i, pids=(10 + i,), processes=(GpuProcess(10 + i, 70 * GIB, 95.0, True),)) for i in range(1, 4)]
    assert [row.gpu for row in make_rank_rows(ranks, (first, *own))] == [0, 1, 2, 3]


def test_the_age_of_a_log_grows_with_the_frames_where_it_is_known():
    log = make_output(last_write=NOW, last_write_age_s=3.0)
    assert age_output(log, NOW + timedelta(seconds=8)).last_write_age_s == 8.0
    ahead = Missing("the file's clock is 600 s ahead of ours")
    log = make_output(last_write=NOW + timedelta(seconds=600), last_write_age_s=ahead)
    assert age_output(log, NOW + timedelta(seconds=8)).last_write_age_s == ahead


def test_a_pin_thread_is_told_by_its_kind():
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.1), ThreadGroup(ThreadKind.PIN, 1, 0.1))
    assert has_pin_thread(sample(thread_groups=groups))
    assert not has_pin_thread(sample(thread_groups=groups[:1]))


def test_memory_of_no_process_is_not_known_rather_than_zero_and_its_source_says_who_told_it():
    shm = Missing("not looked at")
    none = make_memory((), GROUP, HOST, shm, AnonMemory(REFUSED, REFUSED, True))
    assert isinstance(none.rss_bytes, Missing)
    assert none.anon_bytes == none.anon_growth_bytes_s == REFUSED
    summed = make_memory((sample(),), GROUP, HOST, shm, AnonMemory(7, 2.0, True))
    assert (summed.rss_bytes, summed.anon_bytes, summed.anon_growth_bytes_s) == (sample().rss_bytes, 7, 2.0)
    assert summed.anon_source == SUMMED_ANON
    assert make_memory((), GROUP, HOST, shm, AnonMemory(1, 0.0, False)).anon_source == "cgroup"


def test_each_log_has_the_rank_of_its_writer_and_the_job_the_first_pace_that_is_not_old():
    logs = (
        make_output(4200, pace=make_log_pace(pid=4200, age_s=900.0, rank=NOT_APPLICABLE)),
        make_output(4212, pace=make_log_pace(pid=4212, rank=NOT_APPLICABLE, rate_hz=3.0)),
        make_output(4211, pace=make_log_pace(rank=NOT_APPLICABLE, rate_hz=3.2)),
        make_output(4213, pace=Missing("no line of the log was seen to count steps")),
    )
    ranks = [sample(4211, rank=0), sample(4212, rank=1), sample(4213, rank=2)]
    listed = list_output(logs, 1.5, ranks, NOW)
    assert [one.pace.rank for one in listed[:3]] == [NOT_APPLICABLE, 1, 0]
    assert [one.pace.age_s for one in listed[:3]] == [901.5, 2.7, 2.7]
    assert listed[3].pace == logs[3].pace
    assert join_log_paces(listed) == listed[2].pace
    assert join_log_paces(listed[:1]) == listed[0].pace, "an old one is still how it went"
    assert join_log_paces(listed[3:]) == listed[3].pace
    assert join_log_paces(()) == NO_LOG
