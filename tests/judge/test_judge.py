"""The whole judge over Windows: what it says, what it may never say, and what it costs."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.any_windows import blank
from tests.budget.measure import measure_import, slowness
from tests.frames import make_cpu, make_frame, make_output, make_process, make_target
from tests.judging import SECOND, conclude, follow
from tests.starving import COMPUTES, DISK, SOCKET, line_up, make_second
from tpmon.judge.advice.choose import CATALOGUE, fill_remedy
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.judge.finding import write_try
from tpmon.judge.judge import Judgement, judge
from tpmon.model.frame import EventKind, Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.process import EnvironmentSetting, Outcome, Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackCount, StackFrame, StackSlice
from tpmon.model.verdict import BEFORE_THE_END, Confidence, Kind
from tpmon.report.once import write_verdict

LEVELS = [Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH]
TWO_CPUS = {"budget_cores": 2.0, "host_cores": 2}


def run(frames: Sequence[Frame]) -> list[Judgement]:
    return list(follow(frames))


def pool(seconds: int = 25) -> list[Frame]:
    """Build a rank with 16 threads on 2 CPUs."""
    process = make_process(
        runnable=11.0, waiting=9.3, busy_threads=16, environment=(EnvironmentSetting("OMP_NUM_THREADS", "16"),)
    )
    cpu = make_cpu(
        **TWO_CPUS, used_cores=1.9, runnable=11.0, demand_ratio=5.5, pool_runnable=11.0, oversubscription=5.5,
        run_delay_ratio=0.84,
    )  # fmt: skip
    return line_up([make_frame(processes=(process,), cpu=cpu, loader=())] * seconds)


def starved(kind: dict[str, Any], wait: float = 0.7, workers: int = 2, seconds: int = 25) -> list[Frame]:
    return line_up([make_second(wait, [kind] * workers, cpu=TWO_CPUS)] * seconds)


SITUATIONS: dict[str, tuple[Callable[[], list[Frame]], tuple[Kind, str]]] = {
    "transforms": (lambda: starved(COMPUTES), (Kind.DATA_BOUND, "cpu-transform")),
    "disk": (lambda: starved(DISK), (Kind.DATA_BOUND, "storage-bandwidth")),
    "store": (lambda: starved(SOCKET), (Kind.DATA_BOUND, "network-store")),
    "pool": (pool, (Kind.OVERSUBSCRIBED, "rank-pool")),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_each_situation_is_named_within_fifteen_seconds(name):
    build, expected = SITUATIONS[name]
    judged = run(build())
    keys = [(f.kind, f.cause) for f in (one.frame.verdict for one in judged) if is_known(f)]
    assert keys[14] == expected
    assert set(keys[14:]) == {expected}
    events = [e.text for one in judged for e in one.frame.events if e.kind is EventKind.VERDICT]
    assert len(events) == 1
    assert expected[1] in events[0]


def test_at_first_it_says_that_it_looks():
    frame = run(starved(COMPUTES)[:2])[-1].frame
    finding = frame.verdict
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert "looking" in finding.summary
    assert [note.partition(":")[0] for note in frame.notes] == ["may be data-bound (cpu-transform)"]
    target = make_target(state=TargetState.ENDED, ended="exit 1", outcome=Outcome.FAILED)
    ended = replace(frame, target=target, taken_ns=frame.taken_ns + SECOND, notes=())
    assert run([*starved(COMPUTES)[:2], ended])[-1].frame.notes == (), "nothing else holds what has ended"


def test_where_no_rule_fits_the_place_of_the_main_thread_and_the_next_command_are_said():
    sleeping = make_frame(processes=(make_process(waits_for="sleep", runnable=0.02),), loader=(), stacks=())
    place = StackFrame("log_metrics", "/run/train.py", 6)
    stacks = (StackCount(4211, "MainThread", (StackFrame("<module>", "/run/train.py", 30), place), 40),)
    frames = line_up([sleeping] * 14)
    taken = StackSlice(4211, 0, frames[5].taken, frames[5].taken_ns, 2.0, 20.0, 40, stacks)
    frames[5] = replace(frames[5], stacks=(taken,))
    finding = run(frames)[-1].frame.verdict
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert (finding.evidence[0].name, finding.evidence[0].value) == ("rank 0", 40.0)
    assert "log_metrics" in finding.evidence[0].text
    assert "sleep" in finding.evidence[0].text
    assert "tpmon dump 4211 --rounds 3" in finding.try_


SOURCES = {
    **{name: [("", name)] for name in ("stacks", "main_threads", "network", "sockets")},
    "waits": [("processes", name) for name in ("waits_for", "wchan", "syscall")],
    "io": [("processes", name) for name in ("asked_read_bytes_s", "device_read_bytes_s", "read_calls_s")],
    "environment": [("processes", "environment")],
    "loader": [],
    "pressure": [("cpu", "psi_some_pct"), ("cpu", "throttled_ratio")],
}


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("source", SOURCES)
def test_without_a_source_no_verdict_is_surer(name, source):
    frames = SITUATIONS[name][0]()
    blinded = [replace(one, loader=()) if source == "loader" else one for one in frames]
    for group, field in SOURCES[source]:
        blinded = [blank(one, group, field) for one in blinded]
    whole, blind = conclude(frames), conclude(blinded)
    if (whole.kind, whole.cause) == (blind.kind, blind.cause):
        assert LEVELS.index(blind.confidence) <= LEVELS.index(whole.confidence)
    else:
        assert blind.confidence is not Confidence.HIGH, (blind.kind, blind.cause, blind.summary)


@pytest.mark.parametrize(("workers", "limit_ms"), [(8, 3.0), (128, 12.0)])
def test_a_verdict_costs_few_milliseconds(workers, limit_ms):
    """Promised are 2 ms, and 6 ms for 129 processes, which are judged every third second (ADR 0016).

    They are held at 1.5 times that like every budget, and the large one, whose Window is larger than the
    caches, at twice that; more on a slow machine.
    """
    frames = starved(COMPUTES, workers=workers, seconds=60)
    standing = replace(run(frames)[-1].standing, judged_ns=0)  # so that no verdict stands for this Frame too
    gc.collect()
    costs = []
    for _ in range(30):
        began = time.process_time_ns()
        judged = judge(frames, standing)
        costs.append((time.process_time_ns() - began) / 1e6)
        assert judged.standing.judged_ns == frames[-1].taken_ns
    # The least of them: what others do on the machine only adds to it.
    assert min(costs) <= limit_ms * slowness([measure_import() for _ in range(3)])


def test_a_large_job_is_judged_every_third_second():
    frames = starved(COMPUTES, workers=80, seconds=24)
    judged = run(frames)
    findings = [one.frame.verdict for one in judged]
    assert all(is_known(finding) for finding in findings)
    anew = sum(a is not b for a, b in pairwise(findings))
    assert anew <= len(findings) / 3 + 1
    assert judged[-1].standing.stated == (Kind.DATA_BOUND, "cpu-transform")


def test_a_settled_verdict_is_judged_every_second_second_and_leaves_stacks_half_alone():
    judged = run(starved(COMPUTES, seconds=110))
    settled = [one.settled for one in judged]
    begun = settled.index(True)
    assert 60 <= begun <= 80
    assert all(settled[begun:])
    findings = [one.frame.verdict for one in judged[begun + 1 :]]
    anew = sum(a is not b for a, b in pairwise(findings))
    assert anew == pytest.approx(len(findings) / 2, abs=2)
    assert {is_known(one) and one.cause for one in findings} == {"cpu-transform"}


def test_a_change_after_a_settled_verdict_is_told_as_soon_as_after_any_other():
    frames = line_up([make_second(0.7, [COMPUTES] * 2, cpu=TWO_CPUS)] * 100 + [make_second(0.7, [SOCKET] * 2)] * 25)
    judged = run(frames)
    assert judged[99].settled
    told = next(n for n, one in enumerate(judged) if one.standing.stated == (Kind.DATA_BOUND, "network-store"))
    assert told - 100 <= 20
    assert not judged[told].settled


def test_the_end_of_a_large_job_is_judged_at_once():
    frames = starved(COMPUTES, workers=80, seconds=20)
    ended = replace(frames[-1], target=make_target(state=TargetState.ENDED, ended="exit 0", outcome=Outcome.WELL))
    last = replace(ended, taken_ns=ended.taken_ns + SECOND // 10)
    before, after = [one.frame.verdict for one in run([*frames, last])[-2:]]
    assert after is not before
    assert (after.kind, after.cause) == (Kind.IDLE, "finished")


def test_the_end_of_a_job_keeps_what_was_said_before_it_and_has_the_kernels_word_alone():
    frames = starved(COMPUTES, seconds=20)
    log = (make_output(lines=("step 41", "RuntimeError: no batch", "")),)
    target = make_target(state=TargetState.ENDED, ended="exit 1", outcome=Outcome.FAILED)
    last = replace(frames[-1], target=target, taken_ns=frames[-1].taken_ns + SECOND, output=log)
    finding = conclude([*frames, last])
    assert (finding.kind, finding.cause) == (Kind.IDLE, "failed")
    assert (finding.confidence, finding.since) == (Confidence.MEDIUM, last.taken)
    rows = {row.name: row.text for row in finding.evidence}
    assert rows["the log ends with"] == "RuntimeError: no batch"
    assert rows[BEFORE_THE_END].startswith("DATA-BOUND cpu-transform, confidence high")
    told = "\n".join(write_verdict(replace(last, verdict=finding)))
    assert "at least" not in told.partition("evidence")[0]
    assert (finding.ruled_out, finding.unknown) == ((), ())
    assert "DATA-BOUND cpu-transform" in told


def test_the_end_of_a_job_takes_the_place_of_the_end_of_its_ranks():
    launcher = make_process(4200, role=Role.LAUNCHER, rank=NOT_APPLICABLE)
    target = make_target(outcome=Outcome.UNKNOWN)
    frames = line_up([make_frame()] * 3 + [make_frame(processes=(launcher,), target=target)] * 30)
    assert conclude(frames).cause == "ended"
    ended = make_target(state=TargetState.ENDED, ended="exit 0", outcome=Outcome.WELL)
    last = replace(frames[-1], target=ended, taken_ns=frames[-1].taken_ns + SECOND)
    finding = conclude([*frames, last])
    assert finding.cause == "finished"
    assert BEFORE_THE_END not in {row.name for row in finding.evidence}


def test_a_finding_names_the_process_that_it_points_at_and_says_each_title_and_reading_once():
    finding = conclude(starved(COMPUTES, seconds=25))
    assert (finding.pid, finding.rank) == (4211, 0)
    assert finding.card is NOT_APPLICABLE
    assert not set(finding.evidence) & set(finding.against)
    assert conclude([make_frame(processes=())]).pid is NOT_APPLICABLE
    assert [row.value for row in finding.evidence if not row.text and not is_known(row.value)] == []


def test_a_title_that_ends_as_its_paste_begins_is_said_once():
    chosen = fill_remedy(CATALOGUE["persistent-workers"], frozenset((Need.RESPAWN_SEEN,)), RunFacts())
    said = "keep the workers between epochs: persistent_workers=True,  # argument of DataLoader"
    assert write_try(chosen).startswith(said)
    other = fill_remedy(CATALOGUE["dump-stacks"], frozenset(), RunFacts(pid=4211))
    assert write_try(other).startswith(f"{other.text}: tpmon dump 4211")


def test_a_start_that_is_held_for_some_seconds_is_not_shown_beside_what_its_rule_says_now():
    resting = make_process(thread_groups=(ThreadGroup(ThreadKind.MAIN, 1, 0.0),))
    compiler = make_process(4300, role=Role.COMPILE, rank=NOT_APPLICABLE, runnable=0.9)
    compiling = make_frame(processes=(resting, compiler), loader=())
    frames = line_up([compiling] * 12 + [make_frame(loader=())] * 2)
    held = conclude(frames)
    assert (held.kind, held.cause) == (Kind.STARTING, "compile")
    assert not [text for text in (*held.ruled_out, *held.unknown) if text.startswith("starting")]
    later = conclude(line_up([compiling] * 12 + [make_frame(loader=())] * 20))
    assert later.kind is not Kind.STARTING
    assert [text for text in (*later.ruled_out, *later.unknown) if text.startswith("starting")]
