"""The settings that a hook tells, in words: on the screen, in --once, in JSON and back."""

import json
from dataclasses import replace
from typing import Any

from tests.frames import make_frame, make_view
from tests.paces import make_hook, with_hooks
from tests.painted import join
from tpmon.model import hook
from tpmon.model.codec import decode, encode
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.report.once import write_once
from tpmon.ui.monitor.panes.overlays import paint_environment
from tpmon.view.job import describe_settings, say_device, say_settings

UNTOLD = Missing("the job does not use it")
MIB = 1 << 20
PHASES = hook.PhaseMemory(400 * MIB, 500 * MIB, UNTOLD, 655 * MIB, 700 * MIB, UNTOLD, UNTOLD, peak_phase="backward")


def make_settings(**fields: Any) -> hook.TrainSettings:
    plain = hook.TrainSettings(
        age_s=2.0,
        matmul_tf32=True,
        cudnn_tf32=True,
        cudnn_benchmark=False,
        cudnn_deterministic=False,
        deterministic=False,
        anomaly=False,
        autocast=True,
        autocast_dtype="bf16",
        sdpa=("flash", "math"),
        threads=8,
        interop_threads=32,
        profiler=False,
        compiled=hook.CompileCounts(12, 11, 4, 3, 0),
        allocator=hook.AllocatorFigures(600 * MIB, 800 * MIB, 40 * MIB, 700 * MIB, 800 * MIB, 2, 0, 650 * MIB, PHASES),
        sizes=hook.StateSizes(100 * MIB, 100 * MIB, 200 * MIB, 3200 * MIB),
        ddp=hook.DdpSettings(25 * MIB, 5, find_unused=True, static_graph=False),
        fsdp=hook.FsdpSettings(1, 13, "off", "BACKWARD_PRE", limit_all_gathers=True),
        loader=hook.LoaderSettings(4, True, 2, False, 32),
    )
    return replace(plain, **fields)


def test_each_setting_that_is_told_has_a_line():
    told = dict(describe_settings(make_settings()))
    assert told["autocast"] == "on, bf16"
    assert told["DataLoader"] == (
        "num_workers 4, pin_memory on, prefetch_factor 2, persistent_workers off, batch_size 32"
    )
    assert told["DDP"] == "5 buckets of at most 25.0M, find_unused on, static_graph off"
    assert told["FSDP"] == "13 units, prefetch forward off, backward BACKWARD_PRE, limit_all_gathers on"
    sharded = hook.FsdpSettings(2, 13, "12 of 13 units", "torch's order", NOT_APPLICABLE)
    told_of_2 = dict(describe_settings(make_settings(fsdp=sharded)))["FSDP"]
    assert told_of_2 == "fully_shard, 13 units, prefetch forward 12 of 13 units, backward torch's order"
    assert told["CUDA allocator"].endswith("! 2 retries, 0 out of memory")
    assert told["sizes"] == "parameters 100M, gradients 100M, optimizer 200M, activations about 3.1G"
    no_estimate = dict(describe_settings(make_settings(sizes=hook.StateSizes(MIB, MIB, MIB, UNTOLD))))
    assert "activations" not in no_estimate["sizes"]
    assert told["cudnn.benchmark"] == "off"
    assert told["torch.compile"] == "11 of 12 frames, 4 graphs, 3 graph breaks"
    whole = dict(describe_settings(make_settings(compiled=hook.CompileCounts(0, 0, 2, 0, 0))))
    assert whole["torch.compile"] == "2 graphs, 0 graph breaks"


def test_memory_is_told_turn_by_turn_and_the_peak_with_its_part():
    told = dict(describe_settings(make_settings()))
    assert "peak 700M (backward)" in told["CUDA allocator"]
    assert told["CUDA memory of a step"] == (
        "400M with a batch, 650M before the backward, 500M after it, forward up to 655M, backward up to 700M"
    )
    figures = make_settings().allocator
    assert not isinstance(figures, Missing)
    for phases in (UNTOLD, NOT_APPLICABLE, replace(PHASES, peak_phase=UNTOLD)):
        told = dict(describe_settings(make_settings(allocator=replace(figures, phases=phases))))
        assert "peak 700M," in told["CUDA allocator"]
        assert ("CUDA memory of a step" in told) == isinstance(phases, hook.PhaseMemory)


def test_what_the_job_does_not_use_has_none_and_phrases_leave_out_what_is_off():
    names = ("compiled", "allocator", "sizes", "ddp", "fsdp", "loader", "sdpa", "autocast", "matmul_tf32")
    told = dict(describe_settings(make_settings(**dict.fromkeys(names, UNTOLD))))
    assert not {"torch.compile", "CUDA allocator", "sizes", "DDP", "FSDP", "DataLoader", "autocast"} & told.keys()
    phrases = say_settings(make_settings())
    assert "TF32 in matmul on" in phrases
    assert not any(phrase.endswith(" off") and "," not in phrase for phrase in phrases)


def test_the_devices_step_is_said_beside_the_hosts():
    times = hook.DeviceTimes(1.0, 10, 50, 0, 2_000_000_000, 500_000_000, 1_000_000_000, 250_000_000, 2_100_000_000)
    words = "200 ms a step (forward 25 %, backward 50 %, optimizer 12 %), host 210 ms, 10 measured"
    assert say_device(times) == words
    assert say_device(replace(times, steps=0)) == ""


def hooked() -> Frame:
    return with_hooks(make_frame(), make_hook(settings=make_settings()))


def test_they_come_back_from_json_those_of_an_older_tpmon_too():
    frame = hooked()
    assert decode(Frame, encode(frame)).hook == frame.hook
    plain = json.loads(encode(frame))
    assert plain["hook"][0]["settings"]["allocator"].pop("phases")["peak_phase"] == "backward"
    del plain["hook"][0]["settings"]["sizes"]["activation_bytes"]
    settings = decode(Frame, json.dumps(plain)).hook[0].settings
    assert settings.allocator.phases is NOT_APPLICABLE
    assert settings.sizes == hook.StateSizes(100 * MIB, 100 * MIB, 200 * MIB)


def test_once_and_the_environment_show_them_and_nothing_without_a_hook():
    text = "\n".join(write_once(hooked()))
    assert "settings TF32 in matmul on" in text
    assert "settings" not in "\n".join(write_once(make_frame()))
    shown = join(paint_environment(make_view(hooked(), cursor_pid=4211), 100))
    assert "settings of now, by its hook" in shown
    assert "find_unused on" in shown
    assert "hook" not in join(paint_environment(make_view(cursor_pid=4211), 100))
