"""One reading as text: what it says of a Frame, in which order, what it leaves unsaid; and steps, in the log too."""

from dataclasses import replace
from typing import Any

import pytest

from tests.frames import (
    make_cpu,
    make_frame,
    make_gpu,
    make_loader,
    make_log_pace,
    make_output,
    make_process,
    make_target,
)
from tests.goldens.unreadable_job import without_readings
from tests.paces import make_hook, make_pace, with_hooks
from tests.reports import at, full_frame, said
from tpmon.model.frame import Frame, TargetState
from tpmon.model.host import NetworkSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import EnvironmentSetting, Role
from tpmon.model.text import job_words
from tpmon.report.blocks import write_unread
from tpmon.report.once import write_once
from tpmon.report.plain import FIGURES
from tpmon.view.layout import WIDTH, lay_phrases, to_ascii


@pytest.mark.parametrize(
    "frame",
    [
        make_frame(),
        full_frame(),
        without_readings(full_frame(), Missing("no permission")),
        replace(without_readings(full_frame(), Missing("r" * 190)), gpus=full_frame().gpus),
        make_frame(processes=(), ranks=(), loader=(), output=(), network=Missing("no /sys"), gpus=()),
    ],
    ids=["small", "full", "nothing read", "long reasons", "empty"],
)
def test_once_fits_100_columns_and_has_no_control_characters(frame):
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


def test_once_says_who_and_the_facts_first_and_each_figure_where_it_belongs():
    lines = write_once(full_frame())
    assert lines[:1] == ["verdict  none: not judged"]
    assert (lines[1], lines[2].split()[0][:12]) == ("job      4211", "a_long_name_"), "a long name is not cut"
    assert any(line.startswith("facts    2 workers · 51 % of 8 CPUs") for line in lines[:9])
    text = text_of(full_frame())
    for words in (
        "2 ranks of 8, 12 workers",
        "asked for 4301",
        "6 not on this host",
        "budget 8 CPUs (affinity 0-7), used 4.10 CPUs, runnable 4.20 threads",
        "largest pool 33 busy threads of worker 4300, 14.20 runnable, libgomp.so.1",
        "pools / budget 7.10x",
        "waiting share 82 %",
        "used 2.6G, limit 16.0G (cgroup memory.max)",
        "2 x NVIDIA H100 80GB HBM3, driver 570.124.06, CUDA 12.8",
        "STALE: last answer 14 s ago; Xid 79",
        "others launcher 4200",
        "epoch 3 step 1230 loss 2.151",
    ):
        assert words in text


OMP_4 = make_process(environment=(EnvironmentSetting("NCCL_DEBUG", "INFO"), EnvironmentSetting("OMP_NUM_THREADS", "4")))
UNSET = "MKL_NUM_THREADS not set, OPENBLAS_NUM_THREADS not set, NUMEXPR_NUM_THREADS not set"
VETHS = tuple(NetworkSample(f"veth{n}", "nic", False, 1.0, 1.0, 0.0, 0.0) for n in range(4))
NO_LOADER = replace(
    make_loader(), queues=tuple(replace(one, pending_bytes=Missing("first reading")) for one in make_loader().queues)
)
SAID = {
    "a second loader of a rank": (
        {"loader": (make_loader(), make_loader(loader=1, ready_batches=0.0))},
        ["loader rank 0 3.0 batches ready, empty in", "rank 0, loader 2 0.0 batches ready"],
    ),
    "thread settings": ({"processes": (OMP_4,)}, [f"threads OMP_NUM_THREADS=4 (1 rank), {UNSET}"]),
    "thread settings of two ranks": (
        {"processes": (OMP_4, make_process(4212, rank=1, environment=()))},
        ["threads OMP_NUM_THREADS=4 (1 rank), OMP_NUM_THREADS not set, MKL"],
    ),
    "hidden thread settings": (
        {"processes": (make_process(environment=Missing("Permission denied")),)},
        ["OMP_NUM_THREADS=? Permission denied (1 rank)"],
    ),
    "interfaces of the job first, then the first of the others": (
        {"network": (*VETHS, NetworkSample("ib0", "ib", True, 1.0, 1.0, 0.0, 0.0))},
        ["network ib0 in ", "veth1 in ", "~veth2"],
    ),
    "a card in need, with its memory and PIDs": (
        {"gpus": (make_gpu(0, ecc_uncorrected=3, pids=(4211, 4212, 4213), memory_busy_pct=41.0),)},
        ["! 3 uncorrected memory errors", "4211 4212 4213", "mem busy %"],
    ),
    "a sum of some processes is at least what it says": (
        {"target": make_target(unread=3, local_workers=5)},
        ["(at least: some processes were not read)", "asked read at least ", "1 rank, 5 workers"],
    ),
    "a sum of all": ({}, ["~at least"]),
    "a share of hardly any demand": ({"cpu": make_cpu(runnable=0.4, run_delay_ratio=0.6)}, ["waiting share -, "]),
    "a reason once": (
        {"processes": (make_process(cpu_pct=Missing("first reading"), runnable=Missing("first reading")),)},
        ["not read processes cpu, processes runnable (first reading)"],
    ),
    "no zero in a sum of what was not read": (
        {
            "processes": (make_process(pid=4300, role=Role.WORKER, worker=0, cpu_pct=Missing("first reading")),),
            "loader": (NO_LOADER,),
        },
        ["workers 1, CPU ? together", "~workers without work"],
    ),
    "workers without work": ({"loader": (make_loader(),)}, ["0 of 2 workers without work"]),
    "no GPU, and why": ({}, ["gpus not read: no NVIDIA driver on this machine", "~SM %"]),
    "how the job ended": (
        {"target": make_target(state=TargetState.ENDED, ended="SIGKILL; OOM killer")},
        ["state ended: SIGKILL; OOM killer, read 2026-03-14 03:07:41+00:00"],
    ),
}
"""What a Frame says; after a "~" what it does not."""


@pytest.mark.parametrize(("fields", "words"), SAID.values(), ids=SAID)
def test_once_says(fields, words):
    text = text_of(make_frame(**fields))
    assert [word for word in words if (word.lstrip("~") in text) is word.startswith("~")] == []
    assert text.count("first reading") <= 1 + len(fields.get("loader", ()))


def test_once_puts_ranks_in_order_and_the_busiest_workers_first():
    lines = write_once(full_frame())
    words = [line.split() for line in lines if len(line.split()) > 3]
    assert [row[:2] for row in words if row[1] in ("4211", "4212")] == [["0", "4211"], ["1", "4212"]]
    busiest = [str(4311 - i) for i in range(8)]
    assert [row[0] for row in words if row[0].startswith("43")] == 2 * busiest, "with the columns that had no room"
    heads = [line for line in lines if line.startswith((" rank ", "     PID "))]
    assert [head for head in ("MHz/max", "thr", "wait %", "RSS", "read/s", "PSS") if head not in " ".join(heads)] == []
    assert "  and 4 more that use no more CPU" in lines


@pytest.mark.parametrize(
    ("fields", "cells"),
    [
        ({"cpu_pct": Missing("first reading"), "runnable": Missing("first reading")}, {4: "?", 6: "?"}),
        ({"runnable": 0.4, "waiting": 0.2}, {7: "-"}),
        ({"runnable": 0.5, "waiting": 0.25}, {7: "50"}),
    ],
    ids=["not read", "hardly a thread has no waiting share", "half a thread has one"],
)
def test_a_cell_is_a_sign_where_there_is_no_figure(fields, cells):
    lines = write_once(make_frame(processes=(make_process(**fields),)))
    row = next(line.split() for line in lines if line.split()[:2] == ["0", "4211"])
    assert {place: row[place] for place in cells} == cells


def test_phrases_are_not_torn_and_many_reasons_are_counted():
    lines = lay_phrases("label", [f"phrase number {i} stays whole" for i in range(8)])
    assert lines[0].startswith("label    phrase number 0 stays whole, phrase")
    assert all(line.rstrip(",").endswith("stays whole") for line in lines)
    cells = tuple(make_process(cpu_pct=Missing(f"reason {i}")) for i in range(20))
    apart = ("ranks", "steps", "hook", "gpus", "driver", "stacks", "ages_s")
    assert " ".join(write_unread(make_frame(processes=cells), apart)).endswith("for 11 more reasons")


def hooked(**fields: Any) -> Frame:
    return with_hooks(make_frame(), make_hook(pace=make_pace(**fields)))


def test_once_says_rates_times_and_split_or_why_there_are_no_steps():
    text = text_of(hooked())
    assert "steps 2,840 by rank 0, 4.00 steps/s, a step ends batch after update, samples 128" in text
    assert "step times p50 248 ms p95 270 ms p99 312 ms longest" in text
    assert "data 20 %, forward 24 %, backward 46 %, optimizer 8.0 %, other 2.0 %" in text
    without = text_of(make_frame())
    assert "steps (no hook in the training process)" in without
    assert "steps/s" not in without


def test_the_facts_begin_with_the_steps():
    frame = hooked()
    facts = job_words.state_facts(1, 2, frame.cpu, frame.gpus, steps=frame.steps)
    assert facts.startswith("4.00 steps/s · 128 samples/s · 2 workers")
    stalled = make_pace(step_age_s=840.0)
    assert job_words.state_facts(1, 2, frame.cpu, frame.gpus, steps=stalled).startswith(
        "no step for 14m00s · 2 workers"
    )
    assert "step" not in job_words.state_facts(1, 2, frame.cpu, frame.gpus)


def test_without_a_hook_plain_follows_the_pace_of_the_log_while_it_is_fresh():
    frames = [at(n, pace=make_log_pace(rate_hz=5.1 if n < 40 else 3.2)) for n in range(80)]
    assert any("steps a second fell from 5.1 to 3.2" in line for line in said(frames))
    (rate,) = [one for one in FIGURES if one.name == "steps a second"]
    assert isinstance(rate.read(at(0, pace=make_log_pace(age_s=600.0))), Missing)
    assert rate.read(at(0, pace=make_log_pace(), steps=make_pace(rate_hz=4.0))) == 4.0


def test_once_says_of_each_log_how_its_steps_go():
    logs = (
        make_output(4211, pace=make_log_pace()),
        make_output(4212, pace=make_log_pace(pid=4212, rank=1, total=NOT_APPLICABLE, loss=Missing("the log says nan"))),
        make_output(4200, pace=Missing("no line of the log was seen to count steps")),
    )
    text = " ".join(" ".join(write_once(make_frame(output=logs))).split())
    assert "log rank 0 3.21 steps/s (log), at 1,230 of 5,000, loss 2.151, counted by lines like: epoch #" in text
    assert "rank 1 3.21 steps/s (log), at 1,230, loss ? the log says nan, counted" in text
    assert "output pace (no line of the log was seen to count steps)" in text


def test_plain_says_when_the_rate_of_steps_changes_and_without_a_hook_follows_none():
    frames = [with_hooks(at(n), make_hook(pace=make_pace(rate_hz=4.0 if n < 40 else 2.0))) for n in range(80)]
    assert any("steps a second fell from 4 to 2" in line for line in said(frames))
    figures = [one for one in FIGURES if "step" in one.name]
    assert len(figures) == 2
    assert all(isinstance(one.read(make_frame()), Missing) for one in figures)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rate_hz": 4.0}, "4.00 steps/s"),
        ({"rate_hz": 41.26}, "41.3 steps/s"),
        ({"rate_hz": 1234.0}, "1234 steps/s"),
        ({"rate_hz": 1 / 30, "longest_ms": 31_000.0}, "a step in 30 s"),
        ({"rate_hz": 0.0, "eval_hz": 8.0, "eval_pct": 100.0}, "evaluation, 8 batches/s"),
        ({"rate_hz": 0.0, "step_age_s": 840.0}, "no step for 14m00s"),
    ],
)
def test_a_rate_is_said_as_a_person_says_it(fields, words):
    assert job_words.say_rate(make_pace(**fields)) == words


def test_a_long_step_is_no_stall_where_steps_are_long():
    assert not job_words.is_stalled(make_pace(longest_ms=30_000.0, step_age_s=100.0))
    assert job_words.is_stalled(make_pace(longest_ms=300.0, step_age_s=10.5))
    assert not job_words.is_stalled(make_pace(longest_ms=300.0, step_age_s=9.0))
    assert job_words.is_evaluating(make_pace(eval_pct=60.0))


def test_what_is_not_known_is_left_out():
    assert job_words.say_samples(make_pace(samples_hz=Missing("no"))) == ""
    assert job_words.say_samples(make_pace(samples_hz=256.0, ranks=2)) == "256 samples/s, sum of 2 ranks"
    nothing = dict.fromkeys(("data_pct", "forward_pct", "backward_pct", "optimizer_pct", "other_pct"), Missing("none"))
    assert job_words.say_split(make_pace(**nothing)) == ""


@pytest.mark.parametrize(
    ("ms", "words"), [(0.42, "0.42 ms"), (4.2, "4.2 ms"), (311.4, "311 ms"), (4120.0, "4.1 s"), (64_000.0, "1m04s")]
)
def test_times_are_written_with_two_or_three_figures(ms, words):
    assert job_words.format_ms(ms) == words
