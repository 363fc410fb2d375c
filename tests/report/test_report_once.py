"""One reading as text: what it says of a Frame, in which order, and what it leaves unsaid."""

from dataclasses import replace

import pytest

from tests.frames import make_cpu, make_frame, make_gpu, make_loader, make_process, make_target
from tests.goldens.unreadable_job import without_readings
from tests.reports import full_frame
from tpmon.model.frame import Frame, TargetState
from tpmon.model.host import NetworkSample
from tpmon.model.known import Missing
from tpmon.model.process import EnvironmentSetting, Role
from tpmon.report.blocks import write_unread
from tpmon.report.once import write_once
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


def test_once_says_who_and_the_facts_first():
    lines = write_once(full_frame())
    assert lines[:1] == ["verdict  none: not judged"]
    assert (lines[1], lines[2].split()[0][:12]) == ("job      4211", "a_long_name_"), "a long name is not cut"
    assert any(line.startswith("facts    2 workers · 51 % of 8 CPUs") for line in lines[:9])


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


def test_once_says_each_figure_where_it_belongs():
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
        ({"runnable": 0.4, "waiting": 0.3}, {7: "-"}),
    ],
    ids=["not read", "hardly a thread has no waiting share"],
)
def test_a_cell_is_a_sign_where_there_is_no_figure(fields, cells):
    lines = write_once(make_frame(processes=(make_process(**fields),)))
    row = next(line.split() for line in lines if line.split()[:2] == ["0", "4211"])
    assert {place: row[place] for place in cells} == cells


def test_phrases_are_not_torn():
    lines = lay_phrases("label", [f"phrase number {i} stays whole" for i in range(8)])
    assert lines[0].startswith("label    phrase number 0 stays whole, phrase")
    assert all(line.rstrip(",").endswith("stays whole") for line in lines)


def test_many_reasons_are_counted():
    cells = tuple(make_process(cpu_pct=Missing(f"reason {i}")) for i in range(20))
    apart = ("ranks", "steps", "hook", "gpus", "driver", "stacks", "ages_s")
    assert " ".join(write_unread(make_frame(processes=cells), apart)).endswith("for 11 more reasons")
