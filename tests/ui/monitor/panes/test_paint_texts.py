"""Figures carry their bound, their proof and their mark; a reason stands for each that is missing."""

from dataclasses import replace
from typing import Any

import pytest

from tests.frames import (
    GIB,
    MIB,
    NOW_NS,
    make_ages,
    make_cpu,
    make_event,
    make_frame,
    make_gpu,
    make_loader,
    make_memory,
    make_output,
    make_process,
    make_pulses,
    make_rank,
    make_view,
)
from tests.paces import make_hook, make_pace, split_of, with_hooks
from tests.painted import inks_of, join, texts_of
from tpmon.model.frame import EventKind, pulse_of
from tpmon.model.gpu import GpuProcess, MigInstance
from tpmon.model.host import NetworkSample, Pool, ShmSample, SocketSample
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import EnvironmentSetting, Role
from tpmon.ui.kit.keys import KeyHelp, Overlay, paint_help
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.panes.cards import paint_gpus_in_full
from tpmon.ui.monitor.panes.cpu import list_gauges, paint_cpu, paint_cpu_in_full, span_of, thin
from tpmon.ui.monitor.panes.events import newest_log, paint_events_in_full
from tpmon.ui.monitor.panes.header import paint_header
from tpmon.ui.monitor.panes.overlays import HELP_WORDS, paint_details, paint_environment
from tpmon.ui.monitor.panes.steps import paint_steps
from tpmon.ui.monitor.panes.tables import paint_ranks
from tpmon.ui.monitor.state import Pane, ViewState
from tpmon.view.layout import Ink, Size, line_width
from tpmon.view.ranks import split_bar

DENIED = Missing("permission denied")


# CPU and memory


def cpu_lines(frame, width=120, height=12):
    return paint_cpu(make_view(frame), Size(width, height), focused=False)


def all_gauges(frame):
    return paint_cpu_in_full(make_view(frame), 200)[:9]


def cpu_in_full(frame, width=140):
    return paint_cpu_in_full(make_view(frame), width)


POOLS = {"oversubscription": 7.05, "run_delay_ratio": 0.82, "runnable": 14.2, "budget_cores": 2.0}
FULL_SHM = ShmSample("/dev/shm", 49 * MIB, 64 * MIB)
LOADERS = (make_loader(1, ready_batches=9.0), make_loader(2, rank=1, ready_batches=0.0, empty_ratio=0.92))
UNREAD = make_frame(
    cpu=make_cpu(budget_cores=DENIED, used_cores=DENIED, runnable=DENIED, run_delay_ratio=DENIED, pool=DENIED),
    memory=make_memory(used_bytes=DENIED, limit_bytes=NOT_APPLICABLE, shm=Missing("no mount")),
    loader=(make_loader(ready_batches=DENIED),),
)
SETTINGS = [
    (EnvironmentSetting("OMP_NUM_THREADS", "16"), EnvironmentSetting("MKL_NUM_THREADS", "4")),
    (EnvironmentSetting("OMP_NUM_THREADS", "16"),),
    DENIED,
]
SOURCES = make_frame(
    ages_s=make_ages(io=DENIED, gpu=14.0),
    cpu=make_cpu(psi_some_pct=Missing("PSI is off"), pool=Pool(7, Role.WORKER, DENIED, 4, 3.9)),
    network=(NetworkSample("ib0", "ib", True, 1e9, 2e9, 0.0, DENIED),),
    sockets=SocketSample(6, 26.0, DENIED, 3, 0),
)
SAID = {
    "what is used, wanted and waited for in one line": (
        cpu_lines,
        make_frame(cpu=make_cpu(**POOLS, pool=Pool(4211, Role.RANK, "OpenMP (libgomp: torch)", 16, 7.2))),
        [" CPUs", "14.2 threads want 2 CPUs, 82 % of that waits   pools 7.0x"],
    ),
    "the proof of oversubscription, and whose pool it is": (
        all_gauges,
        make_frame(cpu=make_cpu(**POOLS, pool=Pool(4211, Role.RANK, "OpenMP (libgomp: torch)", 16, 7.2))),
        ["! 14.2 on 2 CPUs   82 % waiting   pools 7.0x", "16 threads of rank 0 (4211)   OpenMP (libgomp: torch)"],
    ),
    "no mark for threads that do not wait": (
        cpu_lines,
        make_frame(cpu=make_cpu(oversubscription=7.0, run_delay_ratio=0.1, runnable=56.0)),
        ["~!"],
    ),
    "no waiting share of hardly a thread": (
        cpu_lines,
        make_frame(cpu=make_cpu(runnable=0.3, run_delay_ratio=0.8)),
        ["~80 %", "hardly a thread wants a CPU"],
    ),
    "the reason of what is missing": (
        all_gauges,
        UNREAD,
        ["? permission denied", "? no mount", "RSS 3.0G   no limit, host 32.0G"],
    ),
    "the rank with the fewest batches": (
        cpu_lines,
        make_frame(loader=LOADERS),
        ["0 batches ready   fewest of 2: rank 1   empty in 92 % of 20 readings"],
    ),
    "no loader": (all_gauges, make_frame(loader=()), ["no loader queue seen"]),
    "no line for a loader that is not there": (cpu_lines, make_frame(loader=()), ["~loader"]),
    "what is normal in one line": (
        cpu_lines,
        make_frame(),
        [" normal    memory ", "shm 3 %, disk 0B/s, no throttling, pools, GPUs ?", "(2: all figures)"],
    ),
    "the thread settings of the ranks": (
        cpu_in_full,
        make_frame(processes=tuple(make_process(pid, environment=one) for pid, one in enumerate(SETTINGS, 1))),
        [
            " OMP                16 in 2 ranks, ? permission denied in 1 rank",
            " MKL                4 in 1 rank, not set in 1 rank, ? permission denied in 1 rank",
            " OPENBLAS           not set in 2 ranks",
            " NUMEXPR            not set in 2 ranks",
        ],
    ),
    "no rank": (cpu_in_full, make_frame(processes=()), ["no rank process seen"]),
    "every source and reason": (
        cpu_in_full,
        SOURCES,
        [
            "io                 ? permission denied",
            "gpu                ! 14 s old, from NVML",
            "hook               ? no hook in the training process",
            "PSI cpu some       ? PSI is off",
            "4 busy threads of worker 7, 3.90 runnable, ? permission denied",
            "in 954M/s, out 1.9G/s, errors 0/s, drops ? permission denied/s (the job's)",
            "6, sent 26 s ago, received ? permission denied, retransmits 3",
        ],
    ),
}
"""What a pane says of a Frame; after a "~" what it does not."""


@pytest.mark.parametrize(("paint", "frame", "words"), SAID.values(), ids=SAID)
def test_the_pane_says(paint, frame, words):
    text = join(paint(frame))
    assert [word for word in words if (word.lstrip("~") in text) is word.startswith("~")] == []


def test_what_is_worth_a_look_has_a_warning_ink():
    assert inks_of(all_gauges(make_frame(cpu=make_cpu(**POOLS))), "! 14.2 on") == {Ink.WARN}
    assert inks_of(cpu_lines(make_frame(cpu=make_cpu(**POOLS))), "14.2 threads") == {Ink.WARN}
    assert inks_of(cpu_in_full(SOURCES), "14 s old") == {Ink.WARN}
    assert join(all_gauges(UNREAD)).count("? permission denied") == 5


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (make_frame(cpu=make_cpu(throttled_ratio=0.6)), "! 60 % of quota periods"),
        (make_frame(cpu=make_cpu(host_steal_pct=12.0)), "steal 12 %"),
        (make_frame(memory=make_memory(used_bytes=15 * GIB + 700 * MIB)), "! 15.7G of 16.0G   98 %"),
        (make_frame(memory=make_memory(oom_kills=2)), "2 killed by the OOM killer"),
        (make_frame(memory=make_memory(shm=FULL_SHM)), "next batch may not fit"),
        (make_frame(gpus=Missing("the NVIDIA driver has not answered for 9 s")), "driver has not answered"),
    ],
)
def test_a_figure_worth_a_look_stays_in_the_lowest_pane(frame, words):
    lines = texts_of(cpu_lines(frame, height=4))
    assert len(lines) == 4
    assert words in "\n".join(lines)
    assert "!" in "\n".join(lines)


def test_gauges_are_the_same_for_every_frame_and_a_low_pane_counts_marks():
    labels = [line.split()[0] for line in texts_of(cpu_lines(make_frame(), height=12))[1:]]
    assert labels == ["CPUs", "loader", "normal"]
    unread = make_frame(cpu=make_cpu(runnable=DENIED, pool=DENIED), loader=())
    assert [one.label for one in list_gauges(unread, [])] == [one.label for one in list_gauges(make_frame(), [])]
    frame = make_frame(cpu=make_cpu(throttled_ratio=0.5), memory=make_memory(oom_kills=1, shm=FULL_SHM))
    assert "! 2 more, key 2" in texts_of(cpu_lines(frame, height=3))[0]
    assert [line.split()[0] for line in texts_of(cpu_lines(frame))[1:-1]] == [
        "CPUs",
        "loader",
        "memory",
        "shm",
        "throttled",
    ]
    assert "more" not in texts_of(cpu_lines(frame, height=12))[0]


def test_a_history_spans_a_minute_however_narrow_and_its_columns_keep_their_pulses():
    pulses = make_pulses(make_frame(), 300)
    for cells in (6, 15, 40, 60):
        groups = thin(pulses, cells)
        assert len(groups) == cells
        assert span_of(groups) >= 50
    assert thin(pulses, 0) == []
    assert [len(group) for group in thin(pulses[-3:], 60)] == [1, 1, 1]
    before = {group[0].taken_ns: tuple(group) for group in thin(pulses[:-1], 10)[1:-1]}
    after = {group[0].taken_ns: tuple(group) for group in thin(pulses, 10)[:-1]}
    assert all(after.get(start, group) == group for start, group in before.items())
    assert len(set(before) & set(after)) >= 7


def test_a_long_reason_goes_on_in_the_next_line():
    frame = make_frame(cpu=make_cpu(psi_some_pct=Missing("a reason that is longer than the pane is wide")))
    assert "? a reason that is longer than the pane is wide" in " ".join(join(cpu_in_full(frame, 40)).split())


# Cards


def test_a_card_in_full_gives_reasons_and_instances():
    card = make_gpu(
        0,
        sm_active_pct=Missing("GPM needs Hopper or newer"),
        power_w=DENIED,
        throttle_known=DENIED,
        mig=True,
        mig_instances=(MigInstance("MIG-1", 3, 2 * GIB, 10 * GIB, 44.0),),
        processes=(GpuProcess(4211, 2 * GIB, 40.0, True), GpuProcess(99, DENIED, DENIED, False)),
        pids_are_visible_only=True,
    )
    text = join(paint_gpus_in_full(make_view(make_frame(gpus=(card,))), 100))
    for words in (
        "SM active (GPM)    ? GPM needs Hopper or newer",
        "power              ? permission denied, at most 700 W",
        "held down by       ? permission denied",
        "instance 3       2.0G of 10.0G, SM active 44 %",
        "4211 2.0G, 99 (not this job) ?",
        "4211 (visible)",
        "driver             ? no NVIDIA driver",
    ):
        assert words in text


# Events and logs


def test_the_newest_log_is_the_one_shown():
    outputs = (
        make_output(1, path="/a", last_write_age_s=50.0),
        make_output(2, path="/b", last_write_age_s=3.0),
        make_output(3, path="/c", last_write_age_s=Missing("gone")),
    )
    newest = newest_log(make_frame(output=outputs))
    assert newest.path == "/b"
    assert newest_log(make_frame(output=())) is None


def test_events_in_full_hold_notes_logs_and_all_events():
    frame = make_frame(notes=("a debug setting",), output=(make_output(1), make_output(2)))
    events = (make_event("attached", 9, EventKind.ATTACH), make_event("words " * 30, 1, EventKind.PROBE))
    lines = texts_of(paint_events_in_full(make_view(frame, events=events), 60))
    assert lines[0] == " ! a debug setting"
    assert sum("train.log" in line for line in lines) == 1
    assert " ".join(lines).count("words") == 30
    assert lines[-1].endswith("attached")


# Overlays


ENVIRONMENT = (EnvironmentSetting("OMP_NUM_THREADS", "16"), EnvironmentSetting("NCCL_DEBUG", ""))


def of_rank(**fields):
    return make_frame(processes=(make_process(**fields),), ranks=(make_rank(gpu=3),), gpus=(make_gpu(3),))


@pytest.mark.parametrize(
    ("paint", "frame", "pid", "words"),
    [
        (
            paint_details,
            of_rank(pss_bytes=Missing("larger than 1 GiB"), asked_read_bytes_s=DENIED),
            4211,
            [
                "PSS                ? larger than 1 GiB",
                "read(2)            ? permission denied",
                "step               ? no hook in the training process",
                " GPU 3  NVIDIA H100",
                "tensor cores       47 %",
            ],
        ),
        (paint_details, make_frame(), 9, ["process 9 is gone"]),
        (paint_environment, make_frame(), 9, ["process 9 is gone"]),
        (paint_details, make_frame(), NOT_APPLICABLE, ["no row chosen"]),
        (paint_environment, of_rank(environment=ENVIRONMENT), 4211, ['\n OMP_NUM_THREADS  16\n NCCL_DEBUG       ""']),
        (paint_environment, of_rank(environment=DENIED), 4211, ["\n ? permission denied"]),
        (paint_environment, of_rank(environment=()), 4211, ["\n no variable"]),
    ],
    ids=["a rank", "gone", "its environment gone", "none chosen", "environment", "environment denied", "no variable"],
)
def test_an_overlay_says_all_of_a_process_or_why_not(paint, frame, pid, words):
    text = join(paint(make_view(frame, cursor_pid=pid), 100))
    assert [word for word in words if word not in text] == []


def test_help_shows_every_key_in_any_number_of_columns():
    keys = [KeyHelp((chr(97 + n), f"F{n}"), f"does thing {n} to it", f"Part {n % 3}", "", 0) for n in range(12)]
    for width in (30, 80, 200):
        text = " ".join(join(paint_help(keys, Size(width, 50), HELP_WORDS)).split())
        for n in range(12):
            assert f"{chr(97 + n)} F{n}" in text
    narrow = " ".join(join(paint_help(keys, Size(30, 50), HELP_WORDS)).split())
    assert "run threads that wanted a CPU, on average" in narrow


def test_a_small_screen_still_shows_what_a_key_asked_for():
    keys = [KeyHelp(("q",), "quit", "tpmon", "quit", 1)]

    def row(number, **fields):
        return texts_of(paint_screen(make_view(**fields), Size(20, 5), keys))[number]

    assert "q" in row(2, overlay=Overlay.HELP)
    assert row(0, overlay=Overlay.FILTER, filter_text="w1").startswith(" /w1_")
    assert row(0, message="copied").startswith(" copied")
    assert "used" in row(1, zoom=Pane.CPU)
    assert row(0, now_ns=NOW_NS + 41 * 10**9).startswith(" LATE 41 s"), "a stalled session"


def view_of(**fields: Any) -> ViewState:
    return make_view(with_hooks(make_frame(), make_hook(pace=make_pace(**fields))))


def text_of(view: ViewState, width: int, most: int = 4) -> str:
    return join(paint_steps(view, width, most))


def rank_table(width: int, **fields: Any) -> str:
    return join(paint_ranks(replace(view_of(**fields), zoom=Pane.RANKS), Size(width, 6), focused=False))


def test_a_wide_rank_table_tells_the_pace_of_each_rank_before_what_its_threads_do():
    wide = rank_table(200, p95_ms=1270.0, p99_ms=2_310.0, rate_hz=48.31, samples_hz=12_840.0)
    for words in ("p95", "1.3 s", "p99", "2.3 s", "steps/s", "48.3", "12,840", "thr", "wait %", "RSS", "step age"):
        assert words in wide, words
    assert " ? " in rank_table(200, p99_ms=Missing("no step was timed"))
    before = {"p50", "own", "step age", "where"}
    for width, heads in (
        (40, set()),
        (80, {"own", "where"}),
        (119, {*before}),
        (120, {*before, "steps/s"}),
        (136, {*before, "steps/s", "p95", "run"}),
        (145, {*before, "steps/s", "p95", "p99", "run"}),
        (156, {*before, "steps/s", "p95", "p99", "run", "samples/s"}),
    ):
        table = rank_table(width)
        assert all(head in table for head in heads), width
        new = {head for head in ("steps/s", "p95", "p99", "samples/s") if head in table}
        assert new == heads & {"steps/s", "p95", "p99", "samples/s"}, width


def test_without_a_hook_nothing_is_painted_and_a_rank_without_has_no_pace_and_not_a_pace_of_nothing():
    assert paint_steps(make_view(), 200, 4) == []
    assert paint_steps(make_view(Missing("no reading yet")), 200, 4) == []
    frame = make_frame(ranks=(make_rank(4211), make_rank(4212, rank=1)))
    view = make_view(with_hooks(frame, make_hook(4211)), zoom=Pane.RANKS)
    row = next(text for text in texts_of(paint_ranks(view, Size(200, 6), focused=False)) if " 4212 " in text)
    assert row.split().count("?") >= 4
    assert "4.00" not in row
    hooks = [make_hook(4211 + i, rank=i, pace=make_pace(4211 + i, own_ms=own)) for i, own in enumerate((100, 240, 110))]
    frame = make_frame(ranks=(*frame.ranks, make_rank(4213, rank=2)))
    text = join(paint_ranks(make_view(with_hooks(frame, *hooks)), Size(160, 8), focused=False))
    assert "240 ms!" in text, "a rank whose own part is long is marked"
    assert text.count("ms!") == 1


@pytest.mark.parametrize("width", [80, 90, 100, 120])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rate_hz": 102.4, "samples_hz": 1_234_567.0, "p50_ms": 9.8, "p95_ms": 11.2, "p99_ms": 20.4},
        {"rate_hz": 0.07, "samples_hz": 12_840.0, "p50_ms": 13_000.0, "p95_ms": 19_000.0, "p99_ms": 64_000.0},
        {"rate_hz": 3.2, "p50_ms": 308.0, "p95_ms": 402.0, "p99_ms": 4_120.0, "samples_hz": 1_234_567.0},
    ],
)
def test_from_80_columns_on_rate_samples_and_all_percentiles_stand_in_one_line(width, fields):
    view = view_of(**fields)
    assert is_known(view.frame)
    frame = replace(view.frame, steps=replace(make_pace(**fields), ranks=8))
    line = "".join(text for text, _ in paint_steps(replace(view, frame=frame), width, 4)[0])
    assert "samples/s, sum" in line
    header = "".join(text for text, _ in paint_header(replace(view, frame=frame), width))
    assert "steps/s" in header or "a step in" in header
    assert all(share in line for share in ("p50", "95", "99"))
    assert "…" not in line


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize(
    "fields", [{}, {"step_age_s": 840.0}, {"samples_hz": Missing("no"), "data_pct": Missing("no")}, {"rate_hz": 0.004}]
)
def test_no_line_is_wider_than_the_screen(width, fields):
    lines = paint_steps(view_of(**fields), width, 4)
    assert lines
    assert all(line_width(line) <= width for line in lines)


def test_that_ranks_compiled_again_is_said_for_ten_minutes_where_there_is_room():
    again = make_event("rank 0 compiled again: 14 frames", 12, EventKind.COMPILE)
    view = replace(view_of(), events=(again,))
    assert ("! compiled again 12 s ago", Ink.WARN) in paint_steps(view, 120, 4)[0]
    assert "compiled again" not in text_of(view, 40)
    old = make_event("rank 0 compiled again: 14 frames", 700, EventKind.COMPILE)
    assert "compiled again" not in text_of(replace(view, events=(old,)), 200)


def test_the_bar_has_a_cell_for_each_share_and_the_pulse_keeps_the_longest_step():
    bar = split_bar(make_pace(**split_of(50.0)), 20)
    assert len(bar) == 20
    assert bar.count("█") == 10
    assert split_bar(make_pace(data_pct=Missing("no")), 20) == ""

    frame = with_hooks(make_frame(), make_hook(pace=make_pace(slowest_ms=333.0)))
    assert pulse_of(frame).step_ms == 333.0
    assert isinstance(pulse_of(make_frame()).step_ms, Missing)


def test_a_loop_that_takes_no_step_is_marked_and_a_stall_of_the_history_named_with_its_age():
    view = view_of()
    pulses = list(view.pulses)
    pulses[-21] = replace(pulses[-21], step_ms=4_100.0)
    text = text_of(replace(view, pulses=tuple(pulses)), 120)
    assert "! stall 4.1 s, 20 s ago" in text
    assert "stall" not in text_of(view, 120)
    assert ("no step for 14m00s", Ink.WARN) in paint_header(view_of(step_age_s=840.0), 120)
