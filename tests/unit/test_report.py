"""The text outputs: what they say of a Frame, what they leave unsaid, and how they are written."""

from __future__ import annotations

import dataclasses
import os
import types
from dataclasses import replace
from datetime import timedelta
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from tests.frames import (
    GIB,
    NOW,
    NOW_NS,
    make_cpu,
    make_driver,
    make_event,
    make_finding,
    make_frame,
    make_gpu,
    make_loader,
    make_memory,
    make_process,
    make_rank,
    make_target,
    make_worker,
)
from tpmon.errors import UsageError
from tpmon.model.frame import EventKind, Frame, TargetState
from tpmon.model.gpu import GpuState
from tpmon.model.host import Pool
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role, Setting
from tpmon.model.results import JobList, JobState, JobSummary
from tpmon.model.verdict import Kind
from tpmon.report.jobs import write_jobs
from tpmon.report.once import write_once
from tpmon.report.plain import HEARTBEAT_S, HOLD_S, MOST_EVENTS, QUIET_S, PlainReport, write_status
from tpmon.report.table import WIDTH, Reading, lay_columns, lay_phrases
from tpmon.report.write import Output, ReaderGone, to_ascii


def at(seconds: float, **fields: Any) -> Frame:
    """Build a Frame ``seconds`` after the first, with no event unless one is given."""
    return make_frame(
        **{
            "taken": NOW + timedelta(seconds=seconds),
            "taken_ns": NOW_NS + int(seconds * 1e9),
            "events": (),
            **fields,
        }
    )


def without_readings(value: Any, reason: str) -> Any:
    """Replace every reading that may be missing, all the way down, by Missing."""
    if isinstance(value, tuple):
        return tuple(without_readings(item, reason) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, Missing):
        return value
    changed = {}
    for name, hint in get_type_hints(type(value)).items():
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
        inner = getattr(value, name)
        changed[name] = Missing(reason) if Missing in options else without_readings(inner, reason)
    return replace(value, **changed)


def full_frame() -> Frame:
    """Build a Frame in which every group has something to say, with long names."""
    ranks = [make_process(4211 + i, rank=i, local_rank=i, label="train.py") for i in range(2)]
    workers = [make_worker(4300 + i, i, cpu_pct=float(i)) for i in range(12)]
    pool = Pool(pid=4300, role=Role.WORKER, library="libgomp.so.1", threads=33, runnable=14.2)
    return make_frame(
        target=make_target(
            world_size=8, local_ranks=2, local_workers=12, asked_pid=4301, script="a_long_name_" * 12
        ),
        processes=(make_process(4200, role=Role.LAUNCHER, rank=NOT_APPLICABLE), *ranks, *workers),
        ranks=(make_rank(4212, rank=1, gpu=1), make_rank(4211, rank=0, gpu=0, where="w" * 150)),
        gpus=(
            make_gpu(0),
            make_gpu(1, state=GpuState.STALE, age_s=14.0, throttle=("power cap",), xids=(79,)),
        ),
        driver=make_driver(),
        cpu=make_cpu(pool=pool, oversubscription=7.1, run_delay_ratio=0.82),
        notes=("NCCL_DEBUG=INFO: NCCL logs while it runs " * 4,),
        loader=(make_loader(ready_batches=Missing("no batch seen in the loader pipe")),),
    )


@pytest.mark.parametrize(
    "frame",
    [
        make_frame(),
        full_frame(),
        without_readings(full_frame(), "no permission"),
        replace(without_readings(full_frame(), "r" * 190), gpus=full_frame().gpus),
        make_frame(processes=(), ranks=(), loader=(), output=(), network=Missing("no /sys"), gpus=()),
    ],
    ids=["small", "full", "nothing read", "long reasons", "empty"],
)
def test_once_fits_100_columns_and_has_no_control_characters(frame: Frame):
    lines = write_once(frame)
    assert max(len(line) for line in lines) <= WIDTH
    text = "".join(lines)
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in text)
    assert not any(0x2500 <= ord(char) < 0x2600 for char in text)
    assert to_ascii(text).isascii()
    assert "Missing" not in text
    assert "NotApplicable" not in text


def text_of(frame: Frame) -> str:
    """Join the lines of ``--once`` with single spaces, so that wrapping does not matter."""
    return " ".join(" ".join(write_once(frame)).split())


def test_once_says_who_and_the_facts_first():
    lines = write_once(full_frame())
    assert lines[:1] == ["verdict  none: not judged"]
    assert lines[1].startswith("job      4211 a_long_name_")
    assert "2 ranks of 8, 12 workers" in text_of(full_frame())
    assert "asked for 4301" in text_of(full_frame())
    assert any(line.startswith("facts    2 workers · 51 % of 8 CPUs") for line in lines[:9])


@pytest.mark.parametrize(
    ("ratio", "looks", "words"),
    [
        (0.0, 1, "some ready at the only look"),
        (1.0, 1, "none ready at the only look"),
        (0.5, 2, "none ready at 1 of 2 looks"),
        (0.15, 20, "none ready at 3 of 20 looks"),
    ],
)
def test_looks_at_the_queue_are_counted(ratio: float, looks: int, words: str):
    assert words in text_of(make_frame(loader=(make_loader(empty_ratio=ratio, looks=looks),)))


def test_a_second_loader_of_a_rank_is_named():
    text = text_of(make_frame(loader=(make_loader(), make_loader(loader=1, ready_batches=0.0))))
    assert "rank 0 (4211): 2 workers, 3.0 batches ready" in text
    assert "rank 0 (4211), its loader number 2: 2 workers, 0.0 batches ready" in text


def test_once_says_what_sizes_the_thread_pools_of_the_ranks():
    one = make_process(environment=(Setting("NCCL_DEBUG", "INFO"), Setting("OMP_NUM_THREADS", "4")))
    unset = "MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS not set"
    assert f"threads OMP_NUM_THREADS=4, {unset}" in text_of(make_frame(processes=(one,)))
    other = make_process(4212, rank=1, environment=())
    assert f"threads OMP_NUM_THREADS=4 (1 rank), {unset}" in text_of(make_frame(processes=(one, other)))
    hidden = make_process(environment=Missing("Permission denied"))
    text = text_of(make_frame(processes=(hidden,)))
    assert "NUM_THREADS" not in text
    assert "thread settings (Permission denied)" in text


def test_a_sum_of_some_processes_is_at_least_what_it_says():
    frame = make_frame(target=make_target(unread=3, local_workers=5))
    assert "memory RSS at least " in text_of(frame)
    assert "asked for at least " in text_of(frame)
    assert "1 rank, 5 workers" in text_of(frame)
    assert "at least" not in text_of(make_frame())


def test_once_says_each_figure_where_it_belongs():
    text = text_of(full_frame())
    assert "6 not on this host" in text
    assert "budget 8 CPUs (affinity 0-7), used 4.10, runnable 4.2" in text
    assert "worker 4300, libgomp.so.1, 33 threads, 14.2 runnable; all pools 7.1x the budget" in text
    assert "waiting for a CPU 82 % of thread time" in text
    assert "used 2.6G of 16.0G (cgroup memory.max)" in text
    assert "2 x NVIDIA H100 80GB HBM3, driver 570.124.06, CUDA 12.8" in text
    assert "GPU 1: stale, read 14 s ago, clocks held down by power cap, Xid 79" in text
    assert "others launcher 4200" in text
    assert "epoch 3 step 1230 loss 2.151" in text


def test_once_puts_ranks_in_order_and_the_busiest_workers_first():
    lines = write_once(full_frame())
    rank_rows = [
        line.split()[:2]
        for line in lines
        if line.startswith("     ") and line.split()[1:2] in (["4211"], ["4212"])
    ]
    assert rank_rows == [["0", "4211"], ["1", "4212"]]
    rows = [line.split() for line in lines if len(line.split()) > 3 and line.split()[2].startswith("43")]
    assert [row[2] for row in rows] == [str(4311 - i) for i in range(8)]
    assert "  and 4 more that use no more CPU" in lines


def test_once_shows_a_question_mark_and_says_the_reason_once():
    frame = make_frame(
        processes=(make_process(cpu_pct=Missing("first reading"), runnable=Missing("first reading")),)
    )
    row = next(line for line in write_once(frame) if line.split()[:2] == ["0", "4211"])
    assert row.split()[3] == "?"
    assert row.split()[5] == "?"
    text = text_of(frame)
    assert text.count("first reading") == 1
    assert "not read CPU, runnable threads (first reading); steps (no hook in the training process)" in text


def test_once_says_in_one_line_why_there_is_no_gpu():
    lines = write_once(make_frame())
    assert "gpus     not read: no NVIDIA driver on this machine" in lines
    assert not any("SM %" in line for line in lines)


def test_once_says_how_the_job_ended():
    frame = make_frame(target=make_target(state=TargetState.ENDED, ended="SIGKILL; OOM killer"))
    assert "state ended: SIGKILL; OOM killer, read 2026-03-14 03:07:41+00:00" in text_of(frame)


def test_columns_are_aligned_and_cut():
    lines = lay_columns(("PID", "WHAT"), [("1", "a"), ("48213", "b" * 200)], ("WHAT",))
    assert lines[0] == "  PID  WHAT"
    assert lines[1] == "    1  a"
    assert len(lines[2]) == WIDTH
    assert lines[2].endswith("b…")


def test_phrases_are_not_torn():
    lines = lay_phrases("label", [f"phrase number {i} stays whole" for i in range(8)])
    assert lines[0].startswith("label    phrase number 0 stays whole, phrase")
    assert all(line.rstrip(",").endswith("stays whole") for line in lines)


def test_many_reasons_are_counted():
    reading = Reading()
    for i in range(20):
        reading.show(f"name {i}", Missing(f"reason {i}"))
    assert reading.missed().endswith("name 11 (reason 11); and for 8 more reasons")


def test_hardly_a_thread_has_no_waiting_share():
    assert "waiting for a CPU - of" in text_of(make_frame(cpu=make_cpu(runnable=0.4, run_delay_ratio=0.8)))


# plain


def said(frames: list[Frame]) -> list[str]:
    """Return all lines of a session that saw ``frames``."""
    report = PlainReport()
    return [line for frame in frames for line in report.read(frame)]


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


def test_plain_does_not_say_noise():
    frames = [at(i, cpu=make_cpu(used_cores=4.1 + (i % 5) * 0.4, runnable=4.0 + (i % 3))) for i in range(50)]
    assert len(said(frames)) == 2


def test_plain_does_not_say_what_passes_within_the_hold():
    short = int(HOLD_S) - 1
    frames = [at(i, cpu=make_cpu(used_cores=0.1 if 35 < i < 35 + short else 4.1)) for i in range(55)]
    assert len(said(frames)) == 2


def test_plain_says_a_change_that_stays_and_says_it_once():
    frames = [at(i, cpu=make_cpu(used_cores=0.8 if i >= 40 else 4.1)) for i in range(90)]
    changes = [line for line in said(frames)[2:] if "no change" not in line]
    assert len(changes) == 1
    assert changes[0].startswith("03:08:26 CPU used of the budget fell from 51 % to 10 %. Now 2 workers,")


def test_plain_gathers_changes_into_few_lines():
    frames = [at(i, cpu=make_cpu(used_cores=0.5 if i // 10 % 2 else 7.5)) for i in range(300)]
    changes = [line for line in said(frames)[2:] if "no change" not in line]
    assert 1 <= len(changes) <= 300 / QUIET_S


def test_plain_says_when_a_figure_can_no_longer_be_read():
    card = (make_gpu(0),)
    frames = [at(i, gpus=card if i < 40 else Missing("NVML does not answer")) for i in range(60)]
    changes = [line for line in said(frames)[2:] if "no change" not in line]
    assert [line.split(". Now")[0] for line in changes] == [
        "03:08:26 GPU busy no longer read, NVML does not answer"
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": (make_gpu(0, sm_pct=12.0),)}, "GPU busy fell from 96 % to 12 %"),
        ({"cpu": make_cpu(runnable=14.2)}, "threads runnable rose from 4.2 to 14.2"),
        ({"cpu": make_cpu(run_delay_ratio=0.82)}, "thread time waiting for a CPU rose from 2.0 % to 82 %"),
        ({"loader": (make_loader(empty_ratio=0.9),)}, "looks without a ready batch rose from 0 % to 90 %"),
        ({"memory": make_memory(used_bytes=15 * GIB)}, "memory used of its limit rose from 16 % to 94 %"),
    ],
)
def test_plain_follows_each_figure(fields: dict[str, Any], words: str):
    before = {"gpus": (make_gpu(0),)}
    frames = [at(i, **(before if i < 31 else {**before, **fields})) for i in range(40)]
    assert any(line.split(" ", 1)[1].startswith(words) for line in said(frames)[2:])


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


def test_plain_says_the_end_once():
    ended = at(
        1,
        target=make_target(state=TargetState.ENDED, ended="exit 0"),
        events=(make_event("the job ended: exit 0", 0, EventKind.ENDED),),
    )
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


# jobs


def test_jobs_are_listed_longest_running_first():
    jobs = (
        JobSummary(4211, "usr", JobState.STOPPED, "train.py", "--lr 0.1", 1, 2, 0, 720.0),
        JobSummary(
            48213, "grace", JobState.RUNNING, "pretrain.py", "", 8, 16, Missing("another user's"), 11_520.0
        ),
    )
    assert write_jobs(JobList("", jobs, 0)) == [
        "  PID  USER   STATE    RANKS  WORKERS  GPUS  UPTIME  SCRIPT",
        "48213  grace  running      8       16     ?   3h12m  pretrain.py",
        " 4211  usr    stopped      1        2     0  12m00s  train.py --lr 0.1",
        "not read GPUs (another user's)",
    ]


def test_what_of_other_users_could_not_be_read_is_said():
    hidden = Missing("this user may not read a process of the job")
    cards = Missing("Permission denied")
    jobs = (JobSummary(48213, "grace", hidden, "pretrain.py", "--big", hidden, hidden, cards, 11_520.0),)
    assert write_jobs(JobList("", jobs, 3)) == [
        "  PID  USER   STATE  RANKS  WORKERS  GPUS  UPTIME  SCRIPT",
        "48213  grace  ?          ?        ?     ?   3h12m  pretrain.py --big",
        "not read state, ranks, workers (this user may not read a process of the job); GPUs (Permission",
        "         denied)",
        "3 Python processes of other users could not be read (sudo tpmon ps shows them)",
    ]
    assert write_jobs(JobList("", (), 1)) == [
        "no training job on this machine that this user may read",
        "1 Python process of other users could not be read (sudo tpmon ps shows them)",
    ]


def test_no_job_is_said_in_words():
    what, hint = write_jobs(JobList("", (), 0))
    assert what.startswith("no training job on this machine")
    assert hint.startswith("Try: tpmon demo")


# writing


def test_output_writes_whole_lines():
    read, write = os.pipe()
    Output(write, ascii_only=False).write_lines("GPU 41 % busy · 4 workers", "")
    Output(write, ascii_only=True).write_lines("GPU 41 % busy · 4 wörkers…")
    Output(write, ascii_only=True).write_json('{"script":"träin.py"}')
    os.close(write)
    with open(read, "rb") as file:
        assert file.read().decode() == (
            'GPU 41 % busy · 4 workers\n\nGPU 41 % busy | 4 w?rkers~\n{"script":"träin.py"}\n'
        )


def test_output_says_quietly_that_the_reader_has_gone():
    read, write = os.pipe()
    output = Output(write, ascii_only=False)
    output.check_reader()
    os.close(read)
    with pytest.raises(ReaderGone):
        output.check_reader()
    with pytest.raises(ReaderGone):
        output.write_lines("nobody reads this")
    os.close(write)
    with pytest.raises(ReaderGone):
        output.write_lines("nor this")


def test_output_waits_for_a_full_pipe_that_does_not_block():
    read, write = os.pipe()
    os.set_blocking(write, False)
    text = "x" * 300_000
    received = bytearray()

    import threading

    def take() -> None:
        while len(received) < len(text) + 1:
            received.extend(os.read(read, 65536))

    reader = threading.Thread(target=take)
    reader.start()
    Output(write, ascii_only=False).write_lines(text)
    reader.join(10)
    assert received.decode() == text + "\n"
    os.close(read)
    os.close(write)


def test_output_names_a_disk_that_is_full():
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(UsageError, match="No space left"):
        Output(descriptor, ascii_only=False).write_lines("x")
    os.close(descriptor)


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
