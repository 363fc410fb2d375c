"""The log of a session as text: what it says at once, when it repeats itself, and what it holds back."""

import pytest

from tests.frames import (
    GIB,
    make_cpu,
    make_event,
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
from tpmon.model.known import Missing
from tpmon.model.process import Freezer, Tracer
from tpmon.model.verdict import Kind
from tpmon.report.plain import HEARTBEAT_S, HOLD_S, MOST_EVENTS, QUIET_S, write_status


def test_plain_says_who_and_the_facts_at_once():
    first, facts = said([at(0)])
    assert first == (
        "03:07:41 attached: 4211 train.py, 1 rank, 2 workers, user usr, host node-07, up 12m00s, 2026-03-14"
    )
    assert facts == "03:07:41 facts: 2 workers, 51 % of 8 CPUs, 4.2 runnable on 8 CPUs"


def test_plain_waits_with_the_facts_until_there_are_rates():
    nothing = make_cpu(used_cores=Missing("first reading"), runnable=Missing("first reading"))
    lines = said([at(0, cpu=nothing), at(1), at(2)])
    assert [line.split()[1] for line in lines] == ["attached:", "facts:"]
    assert lines[1].startswith("03:07:42 facts:")


def test_plain_says_nothing_while_nothing_changes_but_a_heartbeat_a_minute():
    lines = said([at(i) for i in range(300)])
    beats = [line for line in lines if "no change" in line]
    assert len(lines) == 2 + len(beats)
    assert [line.split()[0] for line in beats] == ["03:08:41", "03:09:41", "03:10:41", "03:11:41"]


@pytest.mark.parametrize(
    ("used", "seconds"),
    [
        (lambda i: {"used_cores": 4.1 + (i % 5) * 0.4, "runnable": 4.0 + (i % 3)}, 50),
        (lambda i: {"used_cores": 0.1 if 35 < i < 34 + int(HOLD_S) else 4.1}, 55),
    ],
    ids=["noise", "what passes within the hold"],
)
def test_plain_does_not_say(used, seconds):
    assert len(said([at(i, cpu=make_cpu(**used(i))) for i in range(seconds)])) == 2


@pytest.mark.parametrize(
    ("fields", "seconds", "words"),
    [
        (
            lambda i: {"cpu": make_cpu(used_cores=0.8 if i >= 40 else 4.1)},
            90,
            "03:08:26 CPU used of the budget fell from 51 % to 10 %",
        ),
        (
            lambda i: {"gpus": (make_gpu(0),) if i < 40 else Missing("NVML does not answer")},
            60,
            "03:08:26 GPU busy no longer read, NVML does not answer",
        ),
    ],
    ids=["a change that stays", "a figure that can no longer be read"],
)
def test_plain_says_once(fields, seconds, words):
    lines = said([at(i, **fields(i)) for i in range(seconds)])[2:]
    assert [line.split(". Now")[0] for line in lines if "no change" not in line] == [words]


def test_plain_gathers_changes_into_few_lines():
    frames = [at(i, cpu=make_cpu(used_cores=0.5 if i // 10 % 2 else 7.5)) for i in range(300)]
    changes = [line for line in said(frames)[2:] if "no change" not in line]
    assert 1 <= len(changes) <= 300 / QUIET_S


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": (make_gpu(0, sm_pct=12.0),)}, "GPU busy fell from 96 % to 12 %"),
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


def test_plain_leaves_the_card_of_a_stray_context_to_its_users():
    context, work = (GpuProcess(4211, used * GIB, Missing("no sample"), True) for used in (1, 60))
    stray = make_gpu(0, sm_pct=96.0, processes=(context,))
    own = (make_gpu(3, sm_pct=96.0, processes=(work,)), make_gpu(3, sm_pct=12.0, processes=(work,)))
    lines = said([at(i, gpus=(stray, own[i >= 31])) for i in range(40)])
    assert any("GPU busy fell from 96 % to 12 %" in line for line in lines)


def test_plain_says_events_notes_and_states():
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


@pytest.mark.parametrize(
    ("fields", "until"),
    [
        ({"state": "T"}, "SIGCONT"),
        (
            {"state": "D", "frozen": Freezer(1, "/train", "/sys/fs/cgroup/freezer/train")},
            "it is thawed (frozen by control group /train)",
        ),
        ({"state": "t", "tracer": Tracer(913, "gdb", "gdb -p 4211")}, "it is let go (held by a debugger, gdb (913))"),
    ],
)
def test_plain_says_what_lets_a_stopped_job_go_on(fields, until):
    held = {"target": make_target(state=TargetState.STOPPED), "processes": (make_process(**fields),)}
    lines = said([at(0), at(1, **held)])
    assert any(line.endswith(f"stopped: no process of the job may run until {until}") for line in lines)


def test_plain_says_the_end_once():
    event = make_event("the job ended: exit 0", 0, EventKind.ENDED)
    ended = at(1, target=make_target(state=TargetState.ENDED, ended="exit 0"), events=(event,))
    assert said([at(0), ended])[2:] == ["03:07:41 ended: the job ended: exit 0"]


def test_plain_counts_a_crowd_of_events():
    frames = [at(i, events=tuple(make_event(f"worker {n} born") for n in range(100))) for i in range(11)]
    lines = [line for line in said(frames) if " process: " in line]
    assert len([line for line in lines if "born" in line]) == 2 * MOST_EVENTS
    assert f"process: {1000 - MOST_EVENTS} more events, not named" in lines[MOST_EVENTS]


def test_plain_says_a_new_day():
    later = 86_400 - 5
    lines = said([at(0), at(later)])
    assert "03:07:36 date: 2026-03-15" in lines


def test_plain_is_words_alone():
    for line in said([full_frame(), at(1, events=(make_event("x"),)), at(HEARTBEAT_S + 2)]):
        assert line[:8].replace(":", "").isdigit()
        assert "·" not in line
        assert not any(0x2500 <= ord(char) < 0x2600 or ord(char) < 0x20 for char in line)


def test_plain_once_is_one_line():
    assert write_status(make_frame()) == (
        "03:07:41 4211 train.py, 1 rank, 2 workers: 2 workers, 51 % of 8 CPUs, 4.2 runnable on 8 CPUs"
    )


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
