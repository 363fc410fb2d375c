"""One reading as text: what it says of a Frame, in which order, and what it leaves unsaid."""

import dataclasses
import types
from dataclasses import replace
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from tests.frames import make_cpu, make_frame, make_gpu, make_loader, make_process, make_target
from tests.reports import full_frame
from tpmon.model.frame import Frame, TargetState
from tpmon.model.host import NetworkSample
from tpmon.model.known import Missing
from tpmon.model.process import EnvironmentSetting, Role
from tpmon.report.blocks import write_unread
from tpmon.report.once import write_once
from tpmon.view.layout import WIDTH, lay_phrases, to_ascii


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
    assert "2 ranks of 8, 12 workers" in text_of(full_frame())
    assert "asked for 4301" in text_of(full_frame())
    assert any(line.startswith("facts    2 workers · 51 % of 8 CPUs") for line in lines[:9])


def test_a_second_loader_of_a_rank_is_named():
    text = text_of(make_frame(loader=(make_loader(), make_loader(loader=1, ready_batches=0.0))))
    assert "loader rank 0 3.0 batches ready, empty in" in text
    assert "rank 0, loader 2 0.0 batches ready" in text


def test_once_says_what_sizes_the_thread_pools_of_the_ranks():
    one = make_process(
        environment=(EnvironmentSetting("NCCL_DEBUG", "INFO"), EnvironmentSetting("OMP_NUM_THREADS", "4"))
    )
    unset = "MKL_NUM_THREADS not set, OPENBLAS_NUM_THREADS not set, NUMEXPR_NUM_THREADS not set"
    assert f"threads OMP_NUM_THREADS=4 (1 rank), {unset}" in text_of(make_frame(processes=(one,)))
    other = make_process(4212, rank=1, environment=())
    both = "threads OMP_NUM_THREADS=4 (1 rank), OMP_NUM_THREADS not set, MKL"
    assert both in text_of(make_frame(processes=(one, other)))
    hidden = make_process(environment=Missing("Permission denied"))
    assert "OMP_NUM_THREADS=? Permission denied (1 rank)" in text_of(make_frame(processes=(hidden,)))


def test_once_says_the_interfaces_of_the_job_and_the_first_of_the_others():
    others = [NetworkSample(f"veth{n}", "nic", False, 1.0, 1.0, 0.0, 0.0) for n in range(4)]
    text = text_of(make_frame(network=(*others, NetworkSample("ib0", "ib", True, 1.0, 1.0, 0.0, 0.0))))
    assert "network ib0 in " in text
    assert "veth1 in " in text
    assert "veth2" not in text


def test_a_card_in_need_is_marked_and_its_pids_and_memory_are_all_there():
    card = make_gpu(0, ecc_uncorrected=3, pids=(4211, 4212, 4213), memory_busy_pct=41.0)
    text = text_of(make_frame(gpus=(card,)))
    assert "! 3 uncorrected memory errors" in text
    assert "4211 4212 4213" in text
    assert "mem busy %" in text


def test_a_sum_of_some_processes_is_at_least_what_it_says():
    frame = make_frame(target=make_target(unread=3, local_workers=5))
    assert "(at least: some processes were not read)" in text_of(frame)
    assert "asked read at least " in text_of(frame)
    assert "1 rank, 5 workers" in text_of(frame)
    assert "at least" not in text_of(make_frame())


def test_once_says_each_figure_where_it_belongs():
    text = text_of(full_frame())
    assert "6 not on this host" in text
    assert "budget 8 CPUs (affinity 0-7), used 4.10 CPUs, runnable 4.20 threads" in text
    assert "largest pool 33 busy threads of worker 4300, 14.20 runnable, libgomp.so.1" in text
    assert "pools / budget 7.10x" in text
    assert "waiting share 82 %" in text
    assert "used 2.6G, limit 16.0G (cgroup memory.max)" in text
    assert "2 x NVIDIA H100 80GB HBM3, driver 570.124.06, CUDA 12.8" in text
    assert "STALE: last answer 14 s ago; Xid 79" in text
    assert "others launcher 4200" in text
    assert "epoch 3 step 1230 loss 2.151" in text


def test_once_puts_ranks_in_order_and_the_busiest_workers_first():
    lines = write_once(full_frame())
    words = [line.split() for line in lines if len(line.split()) > 3]
    assert [row[:2] for row in words if row[1] in ("4211", "4212")] == [["0", "4211"], ["1", "4212"]]
    busiest = [str(4311 - i) for i in range(8)]
    assert [row[0] for row in words if row[0].startswith("43")] == 2 * busiest, "with the columns that had no room"
    heads = [line for line in lines if line.startswith((" rank ", "     PID "))]
    assert [head for head in ("MHz/max", "thr", "wait %", "RSS", "read/s", "PSS") if head not in " ".join(heads)] == []
    assert "  and 4 more that use no more CPU" in lines


def test_once_shows_a_question_mark_and_says_the_reason_once():
    frame = make_frame(processes=(make_process(cpu_pct=Missing("first reading"), runnable=Missing("first reading")),))
    row = next(line for line in write_once(frame) if line.split()[:2] == ["0", "4211"])
    assert row.split()[4] == "?"
    assert row.split()[6] == "?"
    text = text_of(frame)
    assert text.count("first reading") == 1
    assert "not read processes cpu, processes runnable (first reading)" in text


def test_what_was_not_read_is_no_zero_in_a_sum():
    unread = Missing("first reading")
    worker = make_process(pid=4300, role=Role.WORKER, worker=0, cpu_pct=unread)
    loader = make_loader()
    queues = tuple(replace(one, pending_bytes=unread) for one in loader.queues)
    text = text_of(make_frame(processes=(worker,), loader=(replace(loader, queues=queues),)))
    assert "workers 1, CPU ? together" in text
    assert "workers without work" not in text
    assert "0 of 2 workers without work" in text_of(make_frame(loader=(loader,)))


def test_once_says_in_one_line_why_there_is_no_gpu():
    lines = write_once(make_frame())
    assert "gpus     not read: no NVIDIA driver on this machine" in lines
    assert not any("SM %" in line for line in lines)


def test_once_says_how_the_job_ended():
    frame = make_frame(target=make_target(state=TargetState.ENDED, ended="SIGKILL; OOM killer"))
    assert "state ended: SIGKILL; OOM killer, read 2026-03-14 03:07:41+00:00" in text_of(frame)


def test_phrases_are_not_torn():
    lines = lay_phrases("label", [f"phrase number {i} stays whole" for i in range(8)])
    assert lines[0].startswith("label    phrase number 0 stays whole, phrase")
    assert all(line.rstrip(",").endswith("stays whole") for line in lines)


def test_many_reasons_are_counted():
    cells = tuple(make_process(cpu_pct=Missing(f"reason {i}")) for i in range(20))
    said = " ".join(
        write_unread(make_frame(processes=cells), ("ranks", "steps", "hook", "gpus", "driver", "stacks", "ages_s"))
    )
    assert said.endswith("for 11 more reasons")


def test_hardly_a_thread_has_no_waiting_share():
    row = next(
        line
        for line in write_once(make_frame(processes=(make_process(runnable=0.4, waiting=0.3),)))
        if line.split()[:2] == ["0", "4211"]
    )
    assert row.split()[7] == "-"
    cpu = make_cpu(runnable=0.4, run_delay_ratio=0.6)
    assert "waiting share -, " in text_of(make_frame(cpu=cpu))
