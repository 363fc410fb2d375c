"""The verdict of a job over its ranks: made with known microseconds, named with its cause, or not at all."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command_line import call
from tests.jobs import Plan, Talk, Work, run_pipeline, write
from tests.traces import A100
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.trace import JobVerdict, TraceReport
from tpmon.model.verdict import Kind
from tpmon.report.trace import write_report
from tpmon.trace.analysis import analyze
from tpmon.ui.traces.subject import TraceSubject

LATE_LOADER = Plan(8, lambda rank, _step: Work(loader_us=20_000 if rank == 7 else 500))
EVEN = Plan(8, lambda _rank, _step: Work(), [Talk(moves_us=40_000, elements=25_000_000)])


def judge(plan: Plan, folder: Path, ranks: tuple[int, ...] | None = None) -> JobVerdict:
    job = analyze(write(plan, folder, ranks)).job
    assert is_known(job)
    return job


def waits_for(report: TraceReport) -> list[object]:
    assert is_known(report.ranks)
    return [row.waits_for for row in report.ranks.ranks]


def test_the_page_of_eight_ranks_fits_one_screen_and_says_who_waits_for_whom_and_what_to_do(tmp_path):
    report = analyze(write(LATE_LOADER, tmp_path))
    lines = write_report(report, whole=False)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 120
    text = " ".join(" ".join(lines).split())
    assert "ranks 0 to 6 wait for rank 7, 19.5 ms of a step of 31.5 ms" in text
    assert "rank 7 is data-bound (no-workers): 19.5 ms of a step more than the others" in text
    assert "try on rank 7: " in text
    assert "in waiting for the next batch try" in text, "the loader is no place that says more"
    assert "ceiling 2.6x if rank 7 kept up with the next one" in text
    assert len([line for line in lines if line.split()[1:2] in (["comms-bound"], ["data-bound"])]) == 8
    assert write_report(report)[: len(lines) - 2] == lines[:-2], "with the files behind it the page is the same"


def test_the_first_lines_of_the_command_are_the_page_and_json_has_the_job(tmp_path):
    write(LATE_LOADER, tmp_path)
    text = call("trace", str(tmp_path), "--plain").stdout
    assert "wait for rank 7" in "".join(text.splitlines()[:4])
    assert len(text.splitlines()) <= 40
    every = call("trace", str(tmp_path), "--top", "5").stdout
    assert "wait for rank 7" in "".join(every.splitlines()[:4])
    assert every.count("\nverdict ") == 8
    told = json.loads(call("trace", str(tmp_path), "--json").stdout)["job"]
    assert (told["kind"], told["cause"], told["late"]) == ("comms-bound", "straggler", 7)
    assert told["held"]["longer"][0] == {"name": "data", "ms": pytest.approx(19.5)}
    assert told["waits"][0] | {"group": ""} == {
        "group": "",
        "members": list(range(8)),
        "late": 7,
        "ranks": list(range(7)),
        "most_ms": pytest.approx(19.5),
        "mean_ms": pytest.approx(19.5),
    }


def stacked(rank: int, _step: int) -> Work:
    return Work(python_us=20_000 if rank == 0 else 500, line="train.py(30): log" if rank == 0 else "train.py(9): go")


@pytest.mark.parametrize(
    ("work", "late", "kind", "words"),
    [
        (lambda r, _s: Work(loader_us=20_000 if r == 2 else 500), 2, Kind.DATA_BOUND, ("next batch", "on rank 2: ")),
        (stacked, 0, Kind.PYTHON_BOUND, ("longest in train.py(30): log", "what is in train.py(30): log")),
        (
            lambda r, _s: Work(compute_us=42_000 if r == 1 else 30_000),
            1,
            Kind.COMPUTE_BOUND,
            (
                "12.0 ms of a step more than the others in computation, longest in ampere_sgemm_128x64",
                "look at the card (nvidia-smi -q -d PERFORMANCE,CLOCK) of rank 1: the same work takes longer there",
            ),
        ),
        (
            lambda r, _s: Work(compute_us=45_000 if r == 3 else 30_000, kernels=6 if r == 3 else 4),
            3,
            Kind.COMPUTE_BOUND,
            (
                "15.0 ms of a step more than the others in computation",
                "give the ranks equal work per step: rank 3 runs 6 kernels in a step, the others 4",
            ),
        ),
        # All compute for 80 ms: what is bound is not what makes it late.
        (
            lambda r, _s: Work(loader_us=25_000 if r == 1 else 500, compute_us=80_000),
            1,
            Kind.DATA_BOUND,
            ("24.5 ms of a step more than the others in waiting for the next batch", "on rank 1: look at the workers"),
        ),
    ],
)
def test_what_holds_the_late_rank_is_what_takes_longer_there(work, late, kind, words, tmp_path):
    report = analyze(write(Plan(4, work), tmp_path))
    job = report.job
    assert (job.kind, job.cause, job.late, job.confidence) == (Kind.COMMS_BOUND, "straggler", late, "medium")
    assert job.held.kind is kind
    assert words[0] in job.summary
    assert words[1] in job.try_
    assert [row for row in waits_for(report) if row is not NOT_APPLICABLE] == [late] * 3


def test_what_takes_longer_is_of_the_steps_that_are_judged(tmp_path):
    """The first step takes 3 s of Python on each rank, and is left out."""

    def work(rank: int, step: int) -> Work:
        return Work(loader_us=20_000 if rank == 2 else 500, python_us=3e6 if step == 0 else 500)

    report = analyze(write(Plan(4, work), tmp_path))
    job = report.job
    assert is_known(report.ranks)
    assert [row.step_ms for row in report.ranks.ranks] == pytest.approx(
        [file.overview.step_ms for file in report.files]
    )
    assert max(row.other_ms for row in report.ranks.ranks) < 100
    subject = TraceSubject(report)
    overview = report.files[0].overview
    assert subject.head(0).right[0].text == f"usual {overview.steps - 1} steps of {overview.step_ms:.1f} ms"
    assert "rank 2 is data-bound (no-workers): 19.5 ms of a step more than the others" in job.summary
    assert job.held.longer[0].ms == pytest.approx(19.5, rel=0.01)


def test_ranks_that_are_late_in_turn_accuse_none(tmp_path):
    """Of 8 ms that is computed on average 15 more are computed by one rank in each step, another each time."""
    turns = Plan(4, lambda rank, step: Work(compute_us=20_000 if step % 4 == rank else 5000), steps=8)
    report = analyze(write(turns, tmp_path))
    job = report.job
    assert (job.cause, job.late, job.waits) == ("unknown", NOT_APPLICABLE, ())
    assert "wait for each other in turn" in job.summary
    assert job.share_pct == pytest.approx(100 * 0.75 * 15 / 21.5)
    assert job.try_ == "give the ranks equal work per step"
    assert job.ceiling == "2.1x if no rank waited for another"
    assert {file.verdict.cause for file in report.files} == {"unknown"}
    assert all("in turn" in file.verdict.summary for file in report.files)


@pytest.mark.parametrize("seed", range(4))
def test_ranks_whose_work_varies_by_chance_accuse_none(seed, tmp_path):
    numbers = random.Random(seed)
    times = [[numbers.uniform(5000, 15_000) for _step in range(6)] for _rank in range(8)]
    job = judge(Plan(8, lambda rank, step: Work(compute_us=times[rank][step]), steps=6), tmp_path)
    assert (job.late, job.waits) == (NOT_APPLICABLE, ())


def test_ranks_that_all_move_data_have_a_bus_bandwidth_and_its_remedy(tmp_path):
    report = analyze(write(EVEN, tmp_path))
    job = report.job
    assert (job.kind, job.cause, job.late) == (Kind.COMMS_BOUND, "transfer", NOT_APPLICABLE)
    (rate,) = job.rates
    assert (rate.name, rate.calls, rate.bytes, rate.step_ms) == ("allreduce", 5, 100_000_000, 40)
    assert rate.gb_s == pytest.approx(2 * 7 / 8 * 0.1 / 0.04, rel=1e-6)
    assert (rate.low_gb_s, rate.high_gb_s) == (rate.gb_s, rate.gb_s)
    assert "check which path NCCL takes" in job.try_
    assert "allreduce of 95.4M, bus bandwidth 4.38 GB/s" in report.files[0].verdict.summary
    small = Plan(4, lambda _rank, _step: Work(compute_us=2000), [Talk(moves_us=60, elements=1000)] * 60)
    job = judge(small, tmp_path / "small")
    assert (job.cause, job.try_) == (
        "small-messages",
        "exchange more at once and less often: one large bucket, in every 8th step",
    )


def test_bandwidth_is_that_of_the_rank_that_waits_least_with_its_spread_or_says_why_it_is_not_known(tmp_path):
    talks = [Talk(moves_us=1000 * (1 + number), elements=10_000_000) for number in range(11)]
    late = Plan(4, lambda rank, _step: Work(loader_us=9000 if rank == 1 else 100), talks)
    (rate,) = judge(late, tmp_path / "all").rates
    assert rate.gb_s == pytest.approx(1.5 * 0.04 / 0.006)
    assert (rate.low_gb_s, rate.high_gb_s) == (pytest.approx(1.5 * 4 / 1.0), pytest.approx(1.5 * 4 / 0.2)) or (
        rate.low_gb_s < rate.gb_s < rate.high_gb_s
    )
    unsized = Plan(4, lambda _rank, _step: Work(), [Talk(elements=-1)])
    (rate,) = judge(unsized, tmp_path / "unsized").rates
    assert rate.gb_s == rate.bytes == Missing("the trace does not say sizes and types")
    told = judge(EVEN.but(says_size=False), tmp_path / "untold").rates
    assert told[0].gb_s == pytest.approx(4.375), "all ranks of the job are there"


@pytest.mark.parametrize("says_size", [True, False])
def test_a_rank_without_a_trace_may_be_waited_for(says_size, tmp_path):
    report = analyze(write(LATE_LOADER.but(says_size=says_size), tmp_path, (0, 1, 2, 3, 4, 5, 6)))
    job = report.job
    assert (job.kind, job.cause, job.late, job.confidence) == (Kind.COMMS_BOUND, "unknown", NOT_APPLICABLE, "low")
    assert "no trace of rank 7" in job.summary
    assert job.try_ == "give the traces of rank 7 too (tpmon trace FOLDER)"
    assert isinstance(job.rates[0].gb_s, Missing)
    for file in report.files:
        assert (file.verdict.cause, file.verdict.try_) == ("unknown", job.try_)
    still = judge(LATE_LOADER, tmp_path / "late", (0, 5, 7))
    assert (still.late, still.confidence) == (7, "low")
    assert any("no trace of ranks 1 to 4, 6" in note for note in still.notes)


def test_ranks_in_turn_may_all_wait_for_one_without_a_trace(tmp_path):
    plan = Plan(4, lambda rank, step: Work(loader_us=30_000 if rank == 3 else 20_000 if step % 3 == rank else 500))
    report = analyze(write(plan.but(steps=6), tmp_path, (0, 1, 2)))
    job = report.job
    assert (job.cause, job.late, job.try_) == (
        "unknown",
        NOT_APPLICABLE,
        "give the traces of rank 3 too (tpmon trace FOLDER)",
    )
    assert "among those that are there, the ranks wait for each other in turn" in job.summary
    text = "\n".join(write_report(report))
    assert "6 of 6 collectives are in all traces of their ranks" in text


def test_clocks_that_are_apart_are_said_and_change_nothing(tmp_path):
    apart = LATE_LOADER.but(skew_us=lambda rank: 500_000 if rank > 3 else 0)
    job, same = judge(apart, tmp_path / "apart"), judge(LATE_LOADER, tmp_path / "same")
    assert any("clocks of rank 0 and rank 7 are at least 499.0 ms apart" in note for note in job.notes)
    assert replace(job, notes=()) == same
    assert same.notes == ()


def jitter(seed: int, more_us: float = 500) -> Callable[[int, int], Work]:
    numbers = random.Random(seed)
    times = [numbers.uniform(5000, 15_000) for _step in range(8)]
    return lambda rank, step: Work(compute_us=times[step] + more_us * rank)


def test_files_of_several_runs_or_steps_accuse_none(tmp_path):
    first, second = (write(Plan(2, jitter(seed), steps=8), tmp_path / str(seed)) for seed in (1, 2))
    later = write(Plan(2, jitter(1), steps=8, first_step=20), tmp_path / "later")
    larger = write(Plan(4, jitter(1), steps=8), tmp_path / "larger")
    assert analyze(first).job.kind is Kind.COMPUTE_BOUND
    for paths, why in (
        ([first[0], second[1]], "the collectives of rank 0 and rank 1 cannot be the same ones"),
        ([first[0], later[1]], "rank 0 ProfilerStep#3 to ProfilerStep#10, rank 1 ProfilerStep#20 to"),
        ([first[0], larger[1]], "the files say that there are 2 and 4 ranks"),
        ([*first, *second], "several traces of ranks 0, 1"),
    ):
        report = analyze(paths)
        job = report.job
        assert (job.kind, job.waits, job.late) == (Kind.NOT_ENOUGH_EVIDENCE, (), NOT_APPLICABLE)
        assert why in job.summary
        assert "one trace of each rank, all of one run" in job.try_
        assert set(waits_for(report)) == {NOT_APPLICABLE}
        assert report.ranks.straggler is NOT_APPLICABLE
        assert "straggler" not in {file.verdict.cause for file in report.files}


def test_windows_of_one_rank_in_other_steps_are_of_one_job(tmp_path):
    late = jitter(1, 9000)
    paths = [*write(Plan(2, late), tmp_path / "a"), *write(Plan(2, late, first_step=20), tmp_path / "b")]
    job = analyze(paths).job
    assert (job.cause, job.late) == ("straggler", 1)
    assert [(wait.ranks, wait.mean_ms) for wait in job.waits] == [((0,), pytest.approx(4.5))] * 2


GROUPS = [Talk("tp0", (0, 1)), Talk("tp1", (2, 3)), Talk("dp0", (0, 2)), Talk("dp1", (1, 3))]


@pytest.mark.parametrize("slow", range(4))
def test_of_groups_who_waits_in_which_and_for_whom_in_the_end(slow, tmp_path):
    job = judge(Plan(4, lambda rank, _step: Work(compute_us=20_000 if rank == slow else 8000), GROUPS), tmp_path)
    assert job.late == slow
    waiting = ["1 to 3", "0, 2, 3", "0, 1, 3", "0 to 2"][slow]
    assert f"ranks {waiting} wait for rank {slow}, 12.0 ms" in job.summary
    assert f"tp{slow // 2}" in {wait.group for wait in job.waits}
    assert {round(wait.mean_ms, 3) for wait in job.waits} == {12}
    assert len(job.waits) == 3, "one of its own, and both behind it"
    assert job.ceiling.startswith("2.1x")


def test_each_of_two_groups_has_its_own_late_rank(tmp_path):
    job = judge(Plan(4, lambda rank, _step: Work(compute_us=8000 + 12_000 * (rank % 2)), GROUPS[:2]), tmp_path)
    assert "rank 0 waits for rank 1, 12.0 ms" in job.summary
    assert "rank 2 waits for rank 3" in job.summary
    assert job.ceiling == "2.3x if rank 1 and rank 3 kept up with the next one"


def write_pipeline(stages: list[float], folder: Path, *, together: bool = False) -> list[str]:
    about = {"world_size": len(stages), "backend": "nccl"}
    return [
        trace.write(
            folder / f"rank{rank}.json", {"deviceProperties": [A100], "distributedInfo": {**about, "rank": rank}}
        )
        for rank, trace in enumerate(run_pipeline(stages, together=together))
    ]


def test_the_slowest_stage_of_a_pipeline_waits_least_and_even_ones_accuse_none(tmp_path):
    report = analyze(write_pipeline([2000, 2000, 6000, 2000], tmp_path))
    job = report.job
    assert (job.cause, job.late, job.confidence) == ("straggler", 2, "low")
    assert "the stages of a pipeline wait for rank 2" in job.summary
    assert job.try_ == "move layers from rank 2 to other stages"
    assert waits_for(report) == [2, 2, NOT_APPLICABLE, 2]
    assert report.files[0].verdict.summary.endswith("as a stage of a pipeline it waits for rank 2")
    report = analyze(write_pipeline([2000] * 4, tmp_path))
    assert (report.job.cause, report.job.late) == ("unknown", NOT_APPLICABLE)
    assert "more micro-batches in a step" in report.job.try_
    assert {file.verdict.try_ for file in report.files if file.verdict.kind is Kind.COMMS_BOUND} == {report.job.try_}


def test_the_last_stage_that_waits_for_the_step_to_end_is_not_late(tmp_path):
    """It begins the backward pass and ends it first: what it waits less for receives, it waits there."""
    report = analyze(write_pipeline([2000] * 4, tmp_path, together=True))
    assert (report.job.kind, report.job.cause) == (Kind.COMMS_BOUND, "unknown")
    assert report.job.late is NOT_APPLICABLE
    assert " % in sends and receives, and no stage is late" in report.job.summary
    assert "alike" not in report.job.summary
    assert "more micro-batches in a step" in report.job.try_
    slow = analyze(write_pipeline([2000, 2000, 6000, 2000], tmp_path, together=True)).job
    assert (slow.cause, slow.late) == ("straggler", 2)


def test_what_all_ranks_lose_alike_is_said_once(tmp_path):
    job = judge(Plan(4, lambda rank, _step: Work(loader_us=20_000 + 100 * rank)), tmp_path)
    assert (job.kind, job.cause, job.late) == (Kind.DATA_BOUND, "no-workers", NOT_APPLICABLE)
    assert "all 4 ranks are data-bound (no-workers): 63 to 64 % of the window" in job.summary
    assert job.try_
    busy = judge(Plan(4, lambda _rank, _step: Work(compute_us=50_000)), tmp_path / "busy")
    assert (busy.kind, busy.cause) == (Kind.COMPUTE_BOUND, "gpu")


def test_waits_that_computation_hides_cost_nothing(tmp_path):
    plan = Plan(4, lambda rank, _step: Work(loader_us=3000 if rank == 2 else 500), [Talk(hidden=True)])
    report = analyze(write(plan, tmp_path))
    assert (report.job.kind, report.job.late, report.job.waits) == (Kind.COMPUTE_BOUND, NOT_APPLICABLE, ())
    assert report.ranks.ranks[0].wait_ms == pytest.approx(12.5), "the table counts all of it"


def test_traces_that_name_no_ranks_are_no_job(tmp_path):
    plain = Plan(1, lambda _rank, _step: Work(), (), header={"distributedInfo": {}})
    paths = [write(plain, tmp_path / name)[0] for name in ("one", "two")]
    for path in paths:
        Path(path).rename(Path(path).with_name("trace.json"))
    report = analyze([str(Path(path).with_name("trace.json")) for path in paths])
    assert report.job is NOT_APPLICABLE
    assert "\n".join(write_report(report, whole=False)).count("\nverdict ") == 2


@pytest.mark.parametrize("plan", [LATE_LOADER, EVEN, Plan(4, stacked)])
def test_neither_the_order_of_files_nor_the_unit_of_time_changes_the_verdict(plan, tmp_path):
    paths = write(plan, tmp_path / "once")
    job, turned = analyze(paths).job, analyze(paths[::-1]).job
    assert turned == job

    def twice(rank: int, step: int) -> Work:
        work = plan.work(rank, step)
        times = {"loader_us": 2 * work.loader_us, "python_us": 2 * work.python_us, "compute_us": 2 * work.compute_us}
        return replace(work, **times)

    slower = plan.but(work=twice, talks=[replace(talk, moves_us=2 * talk.moves_us) for talk in plan.talks])
    again = judge(slower, tmp_path / "twice")
    assert (again.kind, again.cause, again.late, again.ceiling) == (job.kind, job.cause, job.late, job.ceiling)
    assert again.share_pct == pytest.approx(job.share_pct, rel=0.01)


def test_a_rank_that_is_late_in_one_step_of_ten_is_said_to_be(tmp_path):
    """It saves a checkpoint while the others wait: nothing is known of the nine other steps by that."""
    plan = Plan(4, lambda rank, step: Work(python_us=150_000 if (rank, step) == (0, 6) else 500), steps=10)
    job = judge(plan, tmp_path)
    assert (job.late, job.confidence) == (0, "low")
    assert any(note.startswith("rank 0: ProfilerStep#9 alone takes") for note in job.notes)
    often = judge(Plan(4, lambda rank, _step: Work(python_us=15_000 if rank == 0 else 500), steps=10), tmp_path / "o")
    assert (often.late, often.confidence) == (0, "medium")
    assert not any("alone takes" in note for note in often.notes)


def test_ranks_that_are_as_late_as_the_one_that_is_waited_for_are_named(tmp_path):
    late = {1: 15_000, 3: 14_800}
    job = judge(Plan(4, lambda rank, _step: Work(python_us=late.get(rank, 500))), tmp_path)
    assert job.late == 1
    assert "rank 3 is nearly as late: rank 1 alone is not enough" in job.notes
    alone = judge(Plan(4, lambda rank, _step: Work(python_us=late[1] if rank == 1 else 500)), tmp_path / "alone")
    assert not any("nearly as late" in note for note in alone.notes)


def test_a_fast_path_between_cards_is_not_to_be_looked_for(tmp_path):
    talk = Talk(moves_us=8000, elements=250_000_000)
    job = judge(Plan(4, lambda _rank, _step: Work(compute_us=2000), [talk]), tmp_path)
    assert (job.cause, job.rates[0].gb_s > 100) == ("transfer", True)
    assert "check which path" not in job.try_
    assert "send gradients as bf16" in job.try_
    half = judge(Plan(4, lambda _rank, _step: Work(compute_us=2000), [replace(talk, dtype="BFloat16")]), tmp_path / "h")
    assert half.cause == "transfer"
    assert "bf16" not in half.try_, "they are"
