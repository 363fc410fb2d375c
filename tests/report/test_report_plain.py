"""The log of a session as text: what it says at once, when it repeats itself, and what it holds back."""

from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from tests.any_windows import make_slice
from tests.collectives import make_record, reading
from tests.dumps import make_round
from tests.frames import (
    GIB,
    NOW,
    make_cpu,
    make_event,
    make_evidence,
    make_finding,
    make_frame,
    make_gpu,
    make_loader,
    make_memory,
    make_process,
    make_target,
)
from tests.reports import at, full_frame, said
from tpmon.model.frame import EventKind, TargetState
from tpmon.model.gpu import GpuProcess
from tpmon.model.known import NOT_APPLICABLE, Missing, known_or
from tpmon.model.process import Freezer, Outcome, ProcessEnd, Role, Tracer
from tpmon.model.text.job_words import say_since, say_value, shorten
from tpmon.model.verdict import Kind, SinceIs
from tpmon.report.once import write_check, write_once, write_verdict
from tpmon.report.plain import HEARTBEAT_S, HOLD_S, MOST_EVENTS, QUIET_S, PlainReport, Sparse, write_status


def test_plain_says_who_and_the_facts_at_once_or_once_there_are_rates():
    first, facts = said([at(0)])
    assert first == (
        "03:07:41 attached: 4211 train.py, 1 rank, 2 workers, user usr, host node-07, up 12m00s, 2026-03-14"
    )
    assert facts == "03:07:41 facts: 2 workers, 51 % of 8 CPUs, 4.2 runnable on 8 CPUs"
    nothing = make_cpu(used_cores=Missing("first reading"), runnable=Missing("first reading"))
    attached, facts = said([at(0, cpu=nothing), at(1), at(2)])
    assert (attached.split()[1], facts[:15]) == ("attached:", "03:07:42 facts:")


def test_plain_says_nothing_while_nothing_changes_but_a_heartbeat_a_minute_and_a_new_day():
    lines = said([at(i) for i in range(300)])
    beats = [line for line in lines if "no change" in line]
    assert len(lines) == 2 + len(beats)
    assert [line.split()[0] for line in beats] == ["03:08:41", "03:09:41", "03:10:41", "03:11:41"]
    assert "03:07:36 date: 2026-03-15" in said([at(0), at(86_400 - 5)])


@pytest.mark.parametrize(
    ("fields", "seconds", "changes"),
    [
        (lambda i: {"cpu": make_cpu(used_cores=4.1 + (i % 5) * 0.4, runnable=4.0 + (i % 3))}, 50, []),
        (lambda i: {"cpu": make_cpu(used_cores=0.1 if 35 < i < 34 + int(HOLD_S) else 4.1)}, 55, []),
        (
            lambda i: {"cpu": make_cpu(used_cores=0.8 if i >= 40 else 4.1)},
            90,
            ["03:08:26 CPU used of the budget fell from 51 % to 10 %"],
        ),
        (
            lambda i: {"gpus": (make_gpu(0),) if i < 40 else Missing("NVML does not answer")},
            60,
            ["03:08:26 GPU busy no longer read, NVML does not answer"],
        ),
    ],
    ids=["noise", "what passes within the hold", "a change that stays", "a figure that can no longer be read"],
)
def test_plain_says_once_what_changes_and_stays(fields, seconds, changes):
    lines = said([at(i, **fields(i)) for i in range(seconds)])[2:]
    assert [line.split(". Now")[0] for line in lines if "no change" not in line] == changes


def test_plain_gathers_changes_into_few_lines():
    frames = [at(i, cpu=make_cpu(used_cores=0.5 if i // 10 % 2 else 7.5)) for i in range(300)]
    changes = [line for line in said(frames)[2:] if "no change" not in line]
    assert 1 <= len(changes) <= 300 / QUIET_S


CONTEXT, WORK = (GpuProcess(4211, used * GIB, Missing("no sample"), True) for used in (1, 60))
STRAY = make_gpu(0, sm_pct=96.0, processes=(CONTEXT,))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": (make_gpu(0, sm_pct=12.0),)}, "GPU busy fell from 96 % to 12 %"),
        ({"gpus": (STRAY, make_gpu(3, sm_pct=12.0, processes=(WORK,)))}, "GPU busy fell from 96 % to 12 %"),
        ({"cpu": make_cpu(runnable=14.2)}, "threads runnable rose from 4.2 to 14.2"),
        ({"cpu": make_cpu(run_delay_ratio=0.82)}, "thread time waiting for a CPU rose from 2.0 % to 82 %"),
        ({"loader": (make_loader(empty_ratio=0.9),)}, "readings without a ready batch rose from 0 % to 90 %"),
        ({"memory": make_memory(used_bytes=15 * GIB)}, "memory used of its limit rose from 16 % to 94 %"),
    ],
)
def test_plain_follows_each_figure(fields, words):
    before = {"gpus": (make_gpu(0),)}
    frames = [at(i, **(before if i < 31 else {**before, **fields})) for i in range(40)]
    assert any(line.split(" ", 1)[1].startswith(words) for line in said(frames)[2:])


def test_plain_says_events_notes_and_states_and_the_end_once():
    stopped = make_target(state=TargetState.STOPPED)
    ended = make_target(state=TargetState.ENDED, ended="exit 0")
    lines = said(
        [
            at(0, events=(make_event("attached to pid 4211", 0, EventKind.ATTACH),)),
            at(1, events=(make_event("worker 4221 of rank 0 ended"),)),
            at(2, notes=("CUDA_LAUNCH_BLOCKING=1: every kernel launch waits",)),
            at(3, target=stopped),
            at(4),
            at(7),
            at(8, target=ended),
        ]
    )
    assert [line.split(" ", 1)[1].split(",")[0] for line in lines[2:]] == [
        "process: worker 4221 of rank 0 ended",
        "note: CUDA_LAUNCH_BLOCKING=1: every kernel launch waits",
        "stopped: no process of the job may run until SIGCONT",
        "running again: 2 workers",
        "no longer: CUDA_LAUNCH_BLOCKING=1: every kernel launch waits",
        "ended: exit 0",
    ]
    event = make_event("the job ended: exit 0", 0, EventKind.ENDED)
    assert said([at(0), at(1, target=ended, events=(event,))])[2:] == ["03:07:41 ended: the job ended: exit 0"]


FROZEN = Freezer(1, "/train", "/sys/fs/cgroup/freezer/train")


@pytest.mark.parametrize(
    ("fields", "until"),
    [
        ({"state": "T"}, "SIGCONT"),
        ({"state": "D", "frozen": FROZEN}, "it is thawed (frozen by control group /train)"),
        ({"state": "t", "tracer": Tracer(913, "gdb", "gdb -p 4211")}, "it is let go (held by a debugger, gdb (913))"),
    ],
)
def test_plain_says_what_lets_a_stopped_job_go_on(fields, until):
    held = {"target": make_target(state=TargetState.STOPPED), "processes": (make_process(**fields),)}
    lines = said([at(0), at(1, **held)])
    assert any(line.endswith(f"stopped: no process of the job may run until {until}") for line in lines)


def test_plain_counts_a_crowd_of_events():
    frames = [at(i, events=tuple(make_event(f"worker {n} born") for n in range(100))) for i in range(11)]
    lines = [line for line in said(frames) if " process: " in line]
    assert len([line for line in lines if "born" in line]) == 2 * MOST_EVENTS
    assert f"process: {1000 - MOST_EVENTS} more events, not named" in lines[MOST_EVENTS]


def test_plain_is_words_alone():
    for line in said([full_frame(), at(1, events=(make_event("x"),)), at(HEARTBEAT_S + 2)]):
        assert line[:8].replace(":", "").isdigit()
        assert "·" not in line
        assert not any(0x2500 <= ord(char) < 0x2600 or ord(char) < 0x20 for char in line)


@pytest.mark.parametrize("word", ["also", "may be"])
def test_a_note_that_becomes_the_verdict_does_not_go_away(word):
    late = make_finding(kind=Kind.COMMS_BOUND, cause="straggler")
    note = f"{word} comms-bound (straggler): rank 1 is in a wait"
    frames = [at(i, verdict=make_finding(), notes=(note,)) for i in range(5)]
    lines = said(frames + [at(5 + i, verdict=late) for i in range(10)])
    assert any(f"note: {note}" in line for line in lines)
    assert any("verdict: comms-bound (straggler)" in line for line in lines)
    assert not any("no longer" in line for line in lines)
    gone = said(frames + [at(5 + i, verdict=make_finding()) for i in range(10)])
    assert sum(f"no longer: {word} comms-bound (straggler)" in line for line in gone) == 1


def test_once_begins_with_the_verdict_and_what_to_try_and_in_full_nothing_is_left_out():
    finding = make_finding(
        try_="do this:\nfirst  # two blanks",
        evidence=tuple(make_evidence(f"reading {n}") for n in range(7)),
        against=(make_evidence("prefetch", value=Missing(""), text="3 of 4", age_s=Missing("never")),),
        ruled_out=tuple(f"cause number {n} (looked at)" for n in range(12)),
        unknown=("NCCL wait (no hook)",),
    )
    lines = write_once(make_frame(verdict=finding))
    assert lines[:6] == [
        "verdict  DATA-BOUND, cpu-transform, confidence high, since 03:02 (5 min), onset in the history,",
        "         costs 58 % (54 to 62)",
        "         the loop waits for a batch 58 % of the time while 4 workers compute transforms",
        "try      do this:",
        "         first  # two blanks",
        "         Ceiling: 2.4x if all of it goes away",
    ]
    text = "\n".join(lines)
    assert "evidence reading 0: 82 % (loader pipes, 200 looks, 0.1 s old)" in text
    assert "         and 2 more" in text
    assert "against  prefetch: 3 of 4 (loader pipes, 200 looks, age ? never)" in text
    assert "(+10 more)" in text
    assert "unknown  NCCL wait (no hook)" in text
    unsure = make_frame(verdict=replace(finding, ceiling=Missing("the share is not known")))
    text = " ".join(" ".join(write_verdict(unsure)).split())
    assert [words for words in (*finding.ruled_out, *(f"reading {n}:" for n in range(7))) if words not in text] == []
    assert "Ceiling: ? the share is not known" in text
    assert "more" not in text
    assert "Ceiling" not in "".join(write_verdict(unsure, full=False))


@pytest.mark.parametrize(
    ("finding", "line"),
    [
        (Missing("not judged"), "no verdict: not judged"),
        (
            make_finding(try_=NOT_APPLICABLE, summary="it waits"),
            "data-bound (cpu-transform), confidence high, since 03:02 (5 min), onset in the history: it waits",
        ),
        (
            make_finding(
                kind=Kind.HUNG,
                cause="lock",
                since=NOW - timedelta(hours=3, minutes=12),
                since_is=SinceIs.LOWER_BOUND,
                since_source="last log write 23:55:41",
                summary="it waits",
                try_="dump it:\nfor one in all:\n    dump(one)\ntpmon fold",
            ),
            (
                "hung (lock), confidence high, at least 3h12m (last log write 23:55:41): it waits. "
                "Try: dump it: for one in all: dump(one); tpmon fold"
            ),
        ),
        (
            make_finding(kind=Kind.NOT_ENOUGH_EVIDENCE, cause=NOT_APPLICABLE, summary="looking", try_=NOT_APPLICABLE),
            "not-enough-evidence: looking",
        ),
    ],
)
def test_a_verdict_in_one_line(finding, line):
    assert write_check(make_frame(verdict=finding)) == line


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (58.0, "%", "58 %"),
        (1.94, "CPUs", "1.94 CPUs"),
        (14.23, "threads", "14.2 threads"),
        (1500.0, "files/s", "1500 files/s"),
        (7.05, "x", "7.05x"),
        (3 << 30, "bytes", "3.0G"),
        (2.5e6, "bytes/s", "2.4M/s"),
        (94.0, "s", "1m34s"),
        (3.0, "", "3"),
        (Missing("no driver"), "%", "? no driver"),
    ],
)
def test_evidence_carries_its_unit(value, unit, words):
    assert say_value(make_evidence(value=value, unit=unit)) == words


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (timedelta(seconds=7), "since 03:07:34 (7 s)"),
        (timedelta(seconds=47), "since 03:06:54 (40 s)"),
        (timedelta(minutes=26, seconds=50), "since 02:40 (26 min)"),
        (timedelta(hours=3, minutes=12), "since Mar 13 23:55 (3h12m)"),
        (timedelta(seconds=-2), "since 03:07:43"),
    ],
)
def test_since_is_a_time_of_day_and_a_coarse_span(ago, words):
    assert say_since(make_finding(since=NOW - ago), NOW) == words
    other_zone = (NOW - ago).astimezone(timezone(timedelta(hours=9)))
    assert say_since(make_finding(since=other_zone), NOW) == words


def test_lists_are_shortened_honestly():
    texts = ("aaaa", "bbbb", "cccc", "dddd")
    assert shorten(texts, 22) == "aaaa, bbbb, cccc, dddd"
    assert shorten(texts, 19) == "aaaa (+3 more)"
    assert shorten(texts, 21) == "aaaa, bbbb (+2 more)"
    assert shorten(texts, 13) == "aa… (+3 more)"
    assert shorten(texts[:1], 1) == "aaaa"
    assert shorten((), 10) == ""


def test_plain_says_another_kind_or_cause_and_nothing_else_of_the_verdict():
    undecided = make_finding(kind=Kind.NOT_ENOUGH_EVIDENCE, cause=NOT_APPLICABLE, summary="looking")
    event = make_event("verdict: data-bound (cpu-transform)", kind=EventKind.VERDICT)
    frames = [at(0, verdict=Missing("not judged")), at(1, verdict=undecided), at(2, verdict=make_finding())]
    frames += [at(3, verdict=make_finding(summary="another number"), events=(event,))]
    frames += [at(4, verdict=make_finding(cause="pin")), at(5, verdict=undecided)]
    lines = [line for line in said(frames) if "verdict" in line]
    assert [" ".join(line.split()[:4]) for line in lines] == [
        "03:07:43 verdict: data-bound (cpu-transform),",
        "03:07:45 verdict: data-bound (pin),",
        "03:07:46 verdict: not-enough-evidence: looking.",
    ]
    assert lines[0].endswith("for each rank")
    lines = [line for line in said([at(n, verdict=undecided) for n in range(40)]) if "verdict" in line]
    assert [line.split()[0] for line in lines] == ["03:07:56"], "that there is none is said after a while"


def test_the_status_is_one_line_and_it_and_the_heartbeat_name_the_verdict():
    assert write_status(make_frame()) == (
        "03:07:41 4211 train.py, 1 rank, 2 workers: 2 workers, 51 % of 8 CPUs, 4.2 runnable on 8 CPUs"
    )
    lines = said([at(n, verdict=make_finding()) for n in range(70)])
    assert "no change: data-bound (cpu-transform); 2 workers" in lines[-1]
    assert "1 rank, 2 workers: data-bound (cpu-transform); 2 workers" in write_status(at(0, verdict=make_finding()))


def test_a_note_is_said_once_whatever_its_figures_do_and_by_check_and_diagnose_too():
    def waits(pct):
        return (f"other-tenants: the job waits {pct} % of 1.{pct % 10} CPUs",)

    frames = [at(n, notes=waits(70 + n % 9) if n % 4 else ()) for n in range(30)]
    frames += [at(30 + n) for n in range(10)]
    lines = [line for line in said(frames) if "other-tenants" in line]
    assert [line.split(": ")[0] for line in lines] == ["03:07:42 note", "03:08:15 no longer"]
    beside = at(0, verdict=make_finding(), notes=("other-tenants: others use the CPUs",))
    assert write_check(beside).endswith(". Note: other-tenants: others use the CPUs")
    assert any("note" in line and "other-tenants" in line for line in write_verdict(beside))


REFUSED = Missing("refused")


def make_end(pid):
    return ProcessEnd(pid, Role.WORKER, 0, 1, Outcome.FAILED, "SIGKILL", "SIGKILL")


def sparse(frames, every_s=10.0):
    written = []
    one = Sparse(written.append, every_s)
    for frame in frames:
        one.take(frame)
    return written


def test_a_sparse_stream_is_the_newest_reading_at_its_time_whatever_the_jitter_and_the_end_at_once():
    jitter = (0.0, 0.2, -0.2, 0.1)
    seconds = [i + jitter[i % 4] for i in range(35)]
    ended = at(35, target=make_target(state=TargetState.ENDED, ended="exit 0"))
    frames = [at(one, cpu=make_cpu(used_cores=one)) for one in seconds] + [ended]
    assert sparse(frames) == [frames[i] for i in (0, 10, 20, 30)] + [ended]
    assert sparse(frames, 1.0) == frames


def test_a_sparse_stream_tells_once_what_happened_between_two_frames_in_its_order():
    events = [tuple(make_event(f"event {i} {n}") for n in range(i % 3)) for i in range(30)]
    rounds = {4: (make_round(at_s=4),), 9: (make_round(at_s=8), make_round(at_s=9)), 17: (make_round(at_s=17),)}
    slices = [() if i % 3 else (make_slice(4211, i, {}),) for i in range(30)]
    ends = {5: (make_end(4211),), 7: (make_end(4212), make_end(4213)), 27: (make_end(4214),)}
    reads = {3: reading(make_record(0)), 6: reading(make_record(1)), 8: REFUSED, 12: REFUSED}
    frames = [
        at(
            i,
            events=events[i],
            stacks=Missing("late") if i == 20 else slices[i],
            rounds=rounds.get(i, NOT_APPLICABLE),
            ends=ends.get(i, NOT_APPLICABLE),
            collectives=reads.get(i, NOT_APPLICABLE),
        )
        for i in range(30)
    ]
    written = sparse(frames)
    assert [one.taken for one in written] == [frames[i].taken for i in (0, 10, 20)]
    spans = ((0, 1), (1, 11), (11, 21))
    for one, (first, last) in zip(written, spans, strict=True):
        span = frames[first:last]
        assert one.events == tuple(event for frame in span for event in frame.events)
        assert one.stacks == tuple(piece for frame in span for piece in known_or(frame.stacks, ()))
    assert [known_or(one.rounds, ()) for one in written] == [(), rounds[4] + rounds[9], rounds[17]]
    assert [known_or(one.ends, ()) for one in written] == [(), ends[5] + ends[7], ()]
    assert [one.collectives for one in written] == [NOT_APPLICABLE, reads[6], REFUSED]
    quiet = [at(i, stacks=Missing("stacks are off")) for i in range(11)]
    assert sparse(quiet) == [quiet[0], quiet[10]]


def test_a_sparse_stream_in_words_says_each_event():
    report, lines = PlainReport(), []
    one = Sparse(lambda frame: lines.extend(report.read(frame)), 10.0)
    for i in range(21):
        one.take(at(i, events=(make_event(f"worker {i} ended"),) if i in (3, 7) else ()))
    assert [line.split(" ", 1)[1] for line in lines if "process:" in line] == [
        "process: worker 3 ended",
        "process: worker 7 ended",
    ]


@pytest.mark.parametrize(
    ("cause", "summary", "words"),
    [
        ("failed", "the job has ended: killed by SIGKILL", "FAILED, confidence high"),
        ("finished", "the job has ended: exit 0", "ENDED, finished"),
        ("polls", "its ranks sleep", "IDLE, polls"),
    ],
)
def test_what_is_over_is_not_called_idle(cause, summary, words):
    finding = make_finding(kind=Kind.IDLE, cause=cause, summary=summary)
    text = "\n".join(write_verdict(make_frame(verdict=finding)))
    assert text.startswith(f"verdict  {words}")
    assert summary in text
