"""Figures carry their bound, their proof and their mark; a reason stands for each that is missing."""

from dataclasses import replace

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
from tpmon.model.frame import EventKind
from tpmon.model.gpu import GpuProcess, MigInstance
from tpmon.model.host import NetworkSample, Pool, ShmSample, SocketSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import EnvironmentSetting, Role
from tpmon.ui.kit.keys import KeyHelp, Overlay, paint_help
from tpmon.ui.monitor.layout import page_of, paint_screen
from tpmon.ui.monitor.panes.cpu import list_gauges, paint_cpu, paint_cpu_in_full, span_of, thin
from tpmon.ui.monitor.panes.events import newest_log, paint_events, paint_events_in_full
from tpmon.ui.monitor.panes.overlays import HELP_WORDS, paint_details, paint_environment
from tpmon.ui.monitor.panes.tables import paint_gpus_in_full
from tpmon.ui.monitor.state import Pane
from tpmon.view.layout import Ink, Size

DENIED = Missing("permission denied")


def texts_of(lines):
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def inks_of(lines, words):
    return {ink for line in lines for text, ink in line if words in text}


# CPU and memory


def cpu_lines(frame, width=120, height=12):
    return paint_cpu(make_view(frame), Size(width, height), focused=False)


def test_oversubscription_shows_its_proof_and_whose_pool_it_is():
    cpu = make_cpu(
        budget_cores=2.0,
        runnable=14.2,
        oversubscription=7.05,
        run_delay_ratio=0.82,
        pool=Pool(4211, Role.RANK, "OpenMP (libgomp: torch)", 16, 7.2),
    )
    lines = cpu_lines(make_frame(cpu=cpu))
    text = "\n".join(texts_of(lines))
    assert "! 14.2 on 2 CPUs   82 % waiting   pools 7.0x" in text
    assert "16 threads of rank 0 (4211)   OpenMP (libgomp: torch)" in text
    assert inks_of(lines, "! 14.2 on") == {Ink.WARN}


def test_many_threads_that_do_not_wait_have_no_mark():
    lines = cpu_lines(make_frame(cpu=make_cpu(oversubscription=7.0, run_delay_ratio=0.1, runnable=56.0)))
    assert "!" not in "".join(texts_of(lines))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (make_frame(cpu=make_cpu(throttled_ratio=0.6)), "! 60 % of quota periods"),
        (make_frame(cpu=make_cpu(host_steal_pct=12.0)), "steal 12 %"),
        (make_frame(memory=make_memory(used_bytes=15 * GIB + 700 * MIB)), "! 15.7G of 16.0G   98 %"),
        (make_frame(memory=make_memory(oom_kills=2)), "2 killed by the OOM killer"),
        (make_frame(memory=make_memory(shm=ShmSample("/dev/shm", 49 * MIB, 64 * MIB))), "next batch may not fit"),
    ],
)
def test_a_figure_worth_a_look_stays_in_the_lowest_pane(frame, words):
    lines = texts_of(cpu_lines(frame, height=4))
    assert len(lines) == 4
    assert words in "\n".join(lines)
    assert "!" in "\n".join(lines)


def test_a_low_pane_keeps_use_demand_memory_and_loader():
    labels = [line.split()[0] for line in texts_of(cpu_lines(make_frame(), height=5))[1:]]
    assert labels == ["used", "runnable", "memory", "loader"]


def test_marked_figures_that_do_not_fit_are_counted():
    memory = make_memory(oom_kills=1, shm=ShmSample("/dev/shm", 49 * MIB, 64 * MIB))
    frame = make_frame(cpu=make_cpu(throttled_ratio=0.5), memory=memory)
    assert "! 2 more, key 2" in texts_of(cpu_lines(frame, height=3))[0]
    assert "more" not in texts_of(cpu_lines(frame, height=12))[0]


def test_missing_figures_give_their_reason():
    cpu = make_cpu(budget_cores=DENIED, used_cores=DENIED, runnable=DENIED, run_delay_ratio=DENIED, pool=DENIED)
    memory = make_memory(used_bytes=DENIED, limit_bytes=NOT_APPLICABLE, shm=Missing("no mount"))
    frame = make_frame(cpu=cpu, memory=memory, loader=(make_loader(ready_batches=DENIED),))
    text = "\n".join(texts_of(cpu_lines(frame)))
    assert text.count("? permission denied") == 5
    assert "? no mount" in text
    assert "RSS 3.0G   no limit, host 32.0G" in text


def test_the_loader_line_shows_the_rank_with_the_fewest_batches():
    loaders = (make_loader(1, ready_batches=9.0), make_loader(2, rank=1, ready_batches=0.0, empty_ratio=0.92))
    text = "\n".join(texts_of(cpu_lines(make_frame(loader=loaders))))
    assert "0 batches ready   fewest of 2: rank 1   empty in 92 % of 20 readings" in text
    assert "no loader queue seen" in "\n".join(texts_of(cpu_lines(make_frame(loader=()))))


def test_a_history_spans_a_minute_however_narrow():
    pulses = make_pulses(make_frame(), 300)
    for cells in (6, 15, 40, 60):
        groups = thin(pulses, cells)
        assert len(groups) == cells
        assert span_of(groups) >= 50
    assert thin(pulses, 0) == []
    assert [len(group) for group in thin(pulses[-3:], 60)] == [1, 1, 1]


def test_history_columns_keep_their_pulses_as_time_goes_on():
    pulses = make_pulses(make_frame(), 120)
    before = {group[0].taken_ns: tuple(group) for group in thin(pulses[:-1], 10)[1:-1]}
    after = {group[0].taken_ns: tuple(group) for group in thin(pulses, 10)[:-1]}
    assert all(after.get(start, group) == group for start, group in before.items())
    assert len(set(before) & set(after)) >= 7


def test_gauges_are_the_same_for_every_frame():
    healthy = [gauge.label for gauge in list_gauges(make_frame(), [])]
    unread = make_frame(cpu=make_cpu(runnable=DENIED, pool=DENIED), loader=())
    assert [gauge.label for gauge in list_gauges(unread, [])] == healthy


def test_the_job_in_full_has_the_thread_settings_of_its_ranks():
    def rank(pid, environment):
        return make_process(pid, environment=environment)

    frame = make_frame(
        processes=(
            rank(1, (EnvironmentSetting("OMP_NUM_THREADS", "16"), EnvironmentSetting("MKL_NUM_THREADS", "4"))),
            rank(2, (EnvironmentSetting("OMP_NUM_THREADS", "16"),)),
            rank(3, Missing("permission denied")),
        )
    )
    text = "\n".join(texts_of(paint_cpu_in_full(make_view(frame), 140)))
    assert " OMP                16 in 2 ranks, ? permission denied in 1 rank" in text
    assert " MKL                4 in 1 rank, not set in 1 rank, ? permission denied in 1 rank" in text
    assert " OPENBLAS           not set in 2 ranks" in text
    assert " NUMEXPR            not set in 2 ranks" in text
    assert "no rank process seen" in "\n".join(texts_of(paint_cpu_in_full(make_view(make_frame(processes=())), 140)))


def test_the_kind_of_an_event_is_said_once():
    events = (make_event("verdict: hung (spin)", 1, EventKind.VERDICT),)
    for paint in (
        lambda width: paint_events(make_view(events=events), Size(width, 5), focused=False),
        lambda width: paint_events_in_full(make_view(events=events), width),
    ):
        line = next(line for line in texts_of(paint(100)) if "hung" in line)
        assert line.split() == ["03:07:40", "verdict", "hung", "(spin)"]
    narrow = texts_of(paint_events(make_view(events=events), Size(40, 5), focused=False))
    assert " 03:07:40 verdict: hung (spin)" in narrow


def test_hardly_a_thread_has_no_waiting_share():
    text = "\n".join(texts_of(cpu_lines(make_frame(cpu=make_cpu(runnable=0.3, run_delay_ratio=0.8)))))
    assert "80 %" not in text
    assert "hardly a thread wants a CPU" in text


def test_the_job_in_full_has_every_source_and_reason():
    frame = make_frame(
        ages_s=make_ages(io=DENIED, gpu=14.0),
        cpu=make_cpu(psi_some_pct=Missing("PSI is off"), pool=Pool(7, Role.WORKER, DENIED, 4, 3.9)),
        network=(NetworkSample("ib0", "ib", True, 1e9, 2e9, 0.0, DENIED),),
        sockets=SocketSample(6, 26.0, DENIED, 3, 0),
    )
    lines = paint_cpu_in_full(make_view(frame), 140)
    text = "\n".join(texts_of(lines))
    assert "io                 ? permission denied" in text
    assert "gpu                ! 14 s old, from NVML" in text
    assert "hook               ? no hook in the training process" in text
    assert "PSI cpu some       ? PSI is off" in text
    assert "4 busy threads of worker 7, 3.90 runnable, ? permission denied" in text
    assert "in 954M/s, out 1.9G/s, errors 0/s, drops ? permission denied/s (the job's)" in text
    assert "6, sent 26 s ago, received ? permission denied, retransmits 3" in text
    assert inks_of(lines, "14 s old") == {Ink.WARN}


def test_a_long_reason_goes_on_in_the_next_line():
    frame = make_frame(cpu=make_cpu(psi_some_pct=Missing("a reason that is longer than the pane is wide")))
    text = " ".join(" ".join(texts_of(paint_cpu_in_full(make_view(frame), 40))).split())
    assert "? a reason that is longer than the pane is wide" in text


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
    text = "\n".join(texts_of(paint_gpus_in_full(make_view(make_frame(gpus=(card,))), 100)))
    assert "SM active (GPM)    ? GPM needs Hopper or newer" in text
    assert "power              ? permission denied, at most 700 W" in text
    assert "held down by       ? permission denied" in text
    assert "instance 3       2.0G of 10.0G, SM active 44 %" in text
    assert "4211 2.0G, 99 (not this job) ?" in text
    assert "4211 (visible)" in text
    assert "driver             ? no NVIDIA driver" in text


# Events and logs


def test_events_stand_newest_first_and_the_log_keeps_its_newest_lines():
    events = tuple(make_event(f"event {n}", 100 - n) for n in range(9))
    frame = make_frame(output=(make_output(lines=("one", "two", "three")),))
    lines = texts_of(paint_events(make_view(frame, events=events), Size(90, 5), focused=False))
    assert [line.split()[-1] for line in lines[1:]] == ["8", "7", "two", "three"]
    assert "log written 2.2 s ago  /home/usr/runs/17/train.log" in lines[0]


def test_a_wide_screen_puts_the_log_beside_the_events():
    view = make_view(events=(make_event("began", 3),))
    lines = texts_of(paint_events(view, Size(160, 4), focused=False))
    assert "began" in lines[1]
    assert "step 1210" in lines[1]


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


def test_details_of_a_rank_have_its_row_its_card_and_reasons():
    frame = make_frame(
        processes=(make_process(pss_bytes=Missing("larger than 1 GiB"), asked_read_bytes_s=DENIED),),
        ranks=(make_rank(gpu=3),),
        gpus=(make_gpu(3),),
    )
    text = "\n".join(texts_of(paint_details(make_view(frame, cursor_pid=4211), 100)))
    assert "PSS                ? larger than 1 GiB" in text
    assert "read(2)            ? permission denied" in text
    assert "step               ? no hook in the training process" in text
    assert " GPU 3  NVIDIA H100" in text
    assert "tensor cores       47 %" in text


def test_an_overlay_says_when_its_process_is_gone_or_not_chosen():
    assert "process 9 is gone" in texts_of(paint_details(make_view(cursor_pid=9), 80))[0]
    assert "process 9 is gone" in texts_of(paint_environment(make_view(cursor_pid=9), 80))[0]
    assert "no row chosen" in texts_of(paint_details(make_view(), 80))[0]


def test_the_environment_is_shown_or_its_reason():
    settings = (EnvironmentSetting("OMP_NUM_THREADS", "16"), EnvironmentSetting("NCCL_DEBUG", ""))
    frame = make_frame(processes=(make_process(environment=settings),))
    lines = texts_of(paint_environment(make_view(frame, cursor_pid=4211), 80))
    assert lines[2:] == [" OMP_NUM_THREADS  16", ' NCCL_DEBUG       ""']
    denied = make_frame(processes=(make_process(environment=DENIED),))
    assert texts_of(paint_environment(make_view(denied, cursor_pid=4211), 80))[2] == " ? permission denied"
    nothing = make_frame(processes=(make_process(environment=()),))
    assert "no variable" in texts_of(paint_environment(make_view(nothing, cursor_pid=4211), 80))[2]


def test_help_shows_every_key_in_any_number_of_columns():
    keys = [KeyHelp((chr(97 + n), f"F{n}"), f"does thing {n} to it", f"Part {n % 3}", "", 0) for n in range(12)]
    for width in (30, 80, 200):
        text = " ".join("\n".join(texts_of(paint_help(keys, Size(width, 50), HELP_WORDS))).split())
        for n in range(12):
            assert f"{chr(97 + n)} F{n}" in text
    narrow = " ".join("\n".join(texts_of(paint_help(keys, Size(30, 50), HELP_WORDS))).split())
    assert "run threads that wanted a CPU, on average" in narrow


def test_long_texts_scroll_and_say_where_they_are():
    view = make_view(zoom=Pane.CPU, focus=Pane.CPU)
    size = Size(80, 24)
    page, limit = page_of(view, size)
    first = texts_of(paint_screen(view, size))
    assert f"lines 1 to {page} of {page + limit}" in first[2]
    last = texts_of(paint_screen(replace(view, scroll=limit), size))
    assert f"lines {limit + 1} to {page + limit} of {page + limit}" in last[2]
    assert last[-2].startswith(" over budget")
    assert page_of(replace(view, zoom=Pane.WORKERS), size)[1] == 0


def test_a_small_screen_still_shows_what_a_key_asked_for():
    keys = [KeyHelp(("q",), "quit", "tpmon", "quit", 1)]
    tiny = Size(20, 5)
    assert "q" in texts_of(paint_screen(make_view(overlay=Overlay.HELP), tiny, keys))[2]
    assert texts_of(paint_screen(make_view(overlay=Overlay.FILTER, filter_text="w1"), tiny))[0].startswith(" /w1_")
    assert texts_of(paint_screen(make_view(message="copied"), tiny))[0].startswith(" copied")
    assert "used" in texts_of(paint_screen(make_view(zoom=Pane.CPU), tiny))[1]


def test_a_stalled_session_shows_on_the_smallest_screen():
    late = make_view(now_ns=NOW_NS + 41 * 10**9)
    assert texts_of(paint_screen(late, Size(20, 5)))[0].startswith(" LATE 41 s")
