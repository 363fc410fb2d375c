"""Say the settings that a hook tells, and the device's time of a step; what is not known is left out."""

from __future__ import annotations

from collections.abc import Iterator

from tpmon.model.hook import DeviceTimes, TrainSettings
from tpmon.model.known import Known, is_known
from tpmon.model.text.job_words import format_ms
from tpmon.model.units import format_bytes, format_pct


def _switches(settings: TrainSettings) -> Iterator[tuple[str, Known[bool]]]:
    yield "TF32 in matmul", settings.matmul_tf32
    yield "TF32 in cuDNN", settings.cudnn_tf32
    yield "cudnn.benchmark", settings.cudnn_benchmark
    yield "cudnn.deterministic", settings.cudnn_deterministic
    yield "deterministic algorithms", settings.deterministic
    yield "anomaly detection", settings.anomaly
    yield "a torch profiler of the program", settings.profiler


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"


def _autocast(settings: TrainSettings) -> str:
    if not is_known(settings.autocast):
        return ""
    if not settings.autocast:
        return "off in the backward; of the forward the hook does not know"
    return f"on, {settings.autocast_dtype}" if is_known(settings.autocast_dtype) else "on"


def _loader(settings: TrainSettings) -> str:
    one = settings.loader
    if not is_known(one):
        return ""
    words = [f"num_workers {one.workers}", f"pin_memory {_on(one.pin_memory)}"]
    if is_known(one.prefetch_factor):
        words.append(f"prefetch_factor {one.prefetch_factor}")
    words.append(f"persistent_workers {_on(one.persistent_workers)}")
    if is_known(one.batch_size):
        words.append(f"batch_size {one.batch_size}")
    return ", ".join(words)


def _ddp(settings: TrainSettings) -> str:
    one = settings.ddp
    if not is_known(one):
        return ""
    buckets = f"{one.buckets} buckets of at most {format_bytes(one.bucket_cap_bytes)}"
    return f"{buckets}, find_unused {_on(one.find_unused)}, static_graph {_on(one.static_graph)}"


def _fsdp(settings: TrainSettings) -> str:
    one = settings.fsdp
    if not is_known(one):
        return ""
    told = f"{'fully_shard, ' if one.version > 1 else ''}{one.units} units"
    told += f", prefetch forward {one.forward}, backward {one.backward}"
    if is_known(one.limit_all_gathers):
        told += f", limit_all_gathers {_on(one.limit_all_gathers)}"
    return told


def _compiled(settings: TrainSettings) -> str:
    one = settings.compiled
    if not is_known(one) or not (one.frames or one.graphs):
        return ""
    frames = (
        f"{one.frames_ok} of {one.frames} frames, " if one.frames else ""
    )  # not counted of fullgraph=True
    told = f"{frames}{one.graphs} graphs, {one.graph_breaks} graph breaks"
    return f"{told}, ! {one.limit_hits} at the recompile limit" if one.limit_hits else told


def _allocator(settings: TrainSettings) -> str:
    one = settings.allocator
    if not is_known(one):
        return ""
    told = f"{format_bytes(one.allocated_bytes)} of {format_bytes(one.reserved_bytes)} reserved"
    told += f", peak {format_bytes(one.peak_allocated_bytes)}"
    if is_known(one.phases) and is_known(one.phases.peak_phase):
        told += f" ({one.phases.peak_phase})"
    told += f", inactive in splits {format_bytes(one.inactive_split_bytes)}"
    mark = "! " if one.alloc_retries or one.ooms else ""
    return f"{told}, {mark}{one.alloc_retries} retries, {one.ooms} out of memory"


def _step_memory(settings: TrainSettings) -> str:
    one = settings.allocator
    if not is_known(one) or not is_known(one.phases):
        return ""
    phases = one.phases
    turns = (
        ("with a batch", phases.after_batch_bytes),
        ("before the backward", one.allocated_at_backward_bytes),
        ("after it", phases.after_backward_bytes),
        ("after the update", phases.after_update_bytes),
    )
    peaks = (
        ("forward", phases.forward_peak_bytes),
        ("backward", phases.backward_peak_bytes),
        ("optimizer", phases.optimizer_peak_bytes),
        ("other", phases.other_peak_bytes),
    )
    told = [f"{format_bytes(size)} {name}" for name, size in turns if is_known(size)]
    told += [f"{name} up to {format_bytes(size)}" for name, size in peaks if is_known(size)]
    return ", ".join(told)


def _sizes(settings: TrainSettings) -> str:
    one = settings.sizes
    if not is_known(one):
        return ""
    sizes = (
        ("parameters", one.parameter_bytes),
        ("gradients", one.gradient_bytes),
        ("optimizer", one.optimizer_bytes),
    )
    told = [f"{name} {format_bytes(size)}" for name, size in sizes]
    if is_known(one.activation_bytes):
        told.append(f"activations about {format_bytes(one.activation_bytes)}")
    return ", ".join(told)


def describe_settings(settings: TrainSettings) -> list[tuple[str, str]]:
    """Return label and words of each setting that the hook tells."""
    told = [(name, _on(is_on)) for name, is_on in _switches(settings) if is_known(is_on)]
    told.append(("autocast", _autocast(settings)))
    if is_known(settings.sdpa):
        told.append(("attention", ", ".join(settings.sdpa) or "no back end allowed"))
    if is_known(settings.threads):
        inter = (
            f", {settings.interop_threads} between operators" if is_known(settings.interop_threads) else ""
        )
        told.append(("torch threads", f"{settings.threads}{inter}"))
    told += [
        ("DataLoader", _loader(settings)),
        ("DDP", _ddp(settings)),
        ("FSDP", _fsdp(settings)),
        ("torch.compile", _compiled(settings)),
        ("CUDA allocator", _allocator(settings)),
        ("CUDA memory of a step", _step_memory(settings)),
        ("sizes", _sizes(settings)),
    ]
    return [(name, words) for name, words in told if words]


def say_settings(settings: TrainSettings) -> list[str]:
    """Return the settings as phrases: "autocast on, bf16"; switches that are off are left out."""
    return [f"{name} {words}" for name, words in describe_settings(settings) if words != "off"]


def say_device(device: DeviceTimes) -> str:
    """Say the device's time of a step: "device 212 ms a step (forward 31 %, ...), host 214 ms"."""
    if not device.steps or device.step_ns <= 0:
        return ""
    parts = (
        ("forward", device.forward_ns),
        ("backward", device.backward_ns),
        ("optimizer", device.optimizer_ns),
    )
    shares = ", ".join(f"{name} {format_pct(100 * ns / device.step_ns)} %" for name, ns in parts)
    device_ms, host_ms = (ns / device.steps / 1e6 for ns in (device.step_ns, device.host_ns))
    return f"{format_ms(device_ms)} a step ({shares}), host {format_ms(host_ms)}, {device.steps} measured"
