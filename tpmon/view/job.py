"""Describe the figures of a job as a whole, each a label with its readings, for text and screen.

Where a reading is missing a screen shows the reason; a text report has all reasons once at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tpmon.model import hook
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.host import SUMMED_ANON, LoaderSample, NetworkSample, Pool
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import ProcessSample, Role
from tpmon.model.text.job_words import (
    RULE_WORDS,
    WAITING_FROM,
    format_ms,
    say_log_pace,
    say_rate,
    say_samples,
    say_split,
    say_times,
)
from tpmon.model.units import (
    count_of,
    format_bytes,
    format_pct,
    format_rate,
    format_seconds,
    say_bytes_s,
    say_pct,
    say_ratio,
)
from tpmon.view.layout import explain, show

GROUPS = ("cpu", "threads", "io", "memory", "gpu", "stacks", "hook")
"""Readings that are read together and have one age."""
THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""They size the pools of torch, numpy and numexpr where the script does not."""
NOT_SET = "not set"
MOST_INTERFACES = 3
"""In a text report."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Hold a label, and words with a place for each reading, and its writer."""

    label: str
    words: str
    readings: tuple[tuple[Applicable[Any], Callable[[Any], str]], ...] = ()
    text: str = ""
    """The phrase of a text report instead."""
    is_minor: bool = False
    """Whether a text report leaves it out."""

    @property
    def pair(self) -> tuple[str, str]:
        """Return label and value for a screen, with the reason for a missing reading."""
        return self.label, self.words.format(*(explain(*one) for one in self.readings))

    @property
    def phrase(self) -> str:
        """Return the phrase of a text report, with "?" for a missing reading."""
        words = f"{self.label} {self.words.format(*(show(*one) for one in self.readings))}"
        return self.text or " ".join(words.split())


@dataclass(frozen=True, slots=True)
class FactGroup:
    """Hold a group of figures, with its heading on a screen and its label in text."""

    heading: str
    label: str
    facts: tuple[Fact, ...]


def _fact(label: str, value: Applicable[Any], write: Callable[[Any], str] = str, after: str = "") -> Fact:
    return Fact(label, "{}" + after.replace("{", "{{").replace("}", "}}"), ((value, write),))


def _said(label: str, text: str) -> Fact:
    return Fact(label, "{}", ((text, str),))


def _ago(seconds: float) -> str:
    return f"{format_seconds(seconds)} ago"


_number = "{:.2f}".format
_times = "{:.2f}x".format
_threads = "{:.2f} threads".format


def describe_steps(pace: hook.StepPace) -> FactGroup:
    """Return every figure of the steps that the hooks count."""
    rank = f"rank {pace.rank}" if is_known(pace.rank) else f"process {pace.pid}"
    samples = say_samples(pace)
    facts = (
        _said("steps", f"{pace.count:,} by {rank}, {say_rate(pace)}"),
        _said("  a step ends", RULE_WORDS[pace.rule]),
        _said("samples", samples) if samples else _fact("samples", pace.samples_hz, "{:.0f}/s".format),
        Fact("step times", f"{say_times(pace) or '?'}  longest {{}}", ((pace.longest_ms, format_ms),)),
        _said("  of", f"{pace.timed} steps of the last minute"),
        _said("last step", _ago(pace.step_age_s)),
        _said("host split", say_split(pace) or "? no training step lately"),
        _fact("data and forward", pace.own_ms, lambda ms: f"{format_ms(ms)} a step"),
        _said("evaluation", f"{pace.eval_count:,} batches, {format_pct(pace.eval_pct)} % of the time"),
    )
    return FactGroup("steps, by the hooks", "steps", facts)


def describe_log_paces(frame: Frame) -> tuple[FactGroup, ...]:
    """Return the pace that each log tells; none where no log does."""
    facts = []
    for one in (log.pace for log in frame.output if is_known(log.pace)):
        total = f" of {one.total:,}" if is_known(one.total) else ""
        told = f"{say_log_pace(one)}, at {one.step:,}{total}"
        if one.loss is not NOT_APPLICABLE:
            told += f", loss {explain(one.loss, '{:.4g}'.format)}"
        told += f", {one.source.value} by lines like: {one.shape}"
        facts.append(_said(f"rank {one.rank}" if is_known(one.rank) else f"pid {one.pid}", told))
    return (FactGroup("steps, by the log", "log", tuple(facts)),) if facts else ()


def _describe_cpu(frame: Frame) -> tuple[Fact, ...]:
    cpu = frame.cpu
    idle = (
        is_known(cpu.runnable) and cpu.runnable < WAITING_FROM
    )  # of so little demand no share is worth telling
    return (
        _fact("budget", cpu.budget_cores, "{:g} CPUs".format, f"  ({cpu.budget_reason})"),
        _fact("used", cpu.used_cores, "{:.2f} CPUs".format),
        _fact("runnable", cpu.runnable, _threads),
        _fact("  of them waiting", cpu.waiting, _number),
        _fact("runnable / budget", cpu.demand_ratio, _times),
        _fact("pools runnable", cpu.pool_runnable, _threads),
        _fact("pools / budget", cpu.oversubscription, _times),
        _fact("largest pool", cpu.pool, _say_pool),
        _fact("waiting share", NOT_APPLICABLE if idle else cpu.run_delay_ratio, say_ratio),
        _fact("throttled periods", cpu.throttled_ratio, say_ratio),
        _fact("throttled CPU s/s", cpu.throttled_s, _number),
        _fact("PSI cpu some", cpu.psi_some_pct, say_pct),
        _fact("host used", cpu.host_used_cores, _number, f" of {cpu.host_cores} CPUs"),
        _fact("host steal", cpu.host_steal_pct, say_pct),
        _fact("host load", cpu.host_load, _number),
    )


def _say_pool(pool: Pool) -> str:
    owner = f"{pool.role.value} {pool.pid}"
    library = explain(pool.library, str)
    return f"{pool.threads} busy threads of {owner}, {pool.runnable:.2f} runnable, {library}"


def _describe_memory(frame: Frame) -> tuple[Fact, ...]:
    memory = frame.memory
    shared = "  (pages shared by forked workers count more than once)"
    unread = "  (at least: some processes were not read)" if frame.target.unread else shared
    used = "used" if is_known(memory.limit_bytes) else "used by its control group"
    of_group = "" if memory.anon_source == SUMMED_ANON else " of the control group"
    return (
        _fact(used, memory.used_bytes, format_bytes),
        _fact("limit", memory.limit_bytes, format_bytes, f"  ({memory.limit_source})"),
        _fact("anonymous", memory.anon_bytes, format_bytes, f"  ({memory.anon_source})"),
        _fact(f"  growth{of_group}", memory.anon_growth_bytes_s, say_bytes_s),
        _fact("sum of RSS", memory.rss_bytes, format_bytes, unread),
        _fact("swap", memory.swap_bytes, format_bytes),
        _fact("OOM kills", memory.oom_kills),
        _fact("refaults", memory.refault_bytes_s, say_bytes_s),
        _fact("major faults", memory.major_faults_s, lambda rate: f"{format_rate(rate)}/s"),
        _fact("PSI memory some", memory.psi_some_pct, say_pct),
        _fact("host available", memory.host_available_bytes, format_bytes),
        _fact("host total", memory.host_total_bytes, format_bytes),
        _fact(
            "shared memory",
            memory.shm,
            lambda one: f"{format_bytes(one.used_bytes)} of {format_bytes(one.total_bytes)}  ({one.path})",
        ),
    )


def describe_io(frame: Frame) -> FactGroup:
    """Return the bytes that the job asks for and those that devices move, summed over what was read."""

    def add(name: str) -> Known[float]:
        values = [getattr(process, name) for process in frame.processes]
        read = [value for value in values if is_known(value)]
        first: Known[float] = values[0] if values else 0.0
        return sum(read) if read or not values else first

    least = " at least" if frame.target.unread else ""
    names = ("asked_read", "asked_write", "device_read", "device_write")
    facts = [_fact(f"{name.replace('_', ' ')}{least}", add(f"{name}_bytes_s"), say_bytes_s) for name in names]
    return FactGroup("bytes moved", "io", tuple(facts))


def _describe_loader(loader: LoaderSample) -> Fact:
    rank = f"rank {loader.rank}" if is_known(loader.rank) else f"pid {loader.pid}"
    if loader.loader:
        rank += f", loader {loader.loader + 1}"
    pending = [queue.pending_bytes for queue in loader.queues if is_known(queue.pending_bytes)]
    words = f"{{}}, empty in {{}} of {loader.looks} readings"
    words += f", {pending.count(0)} of {len(pending)} workers without work" if pending else ""
    if loader.births:
        words += f", {loader.births} workers born in the last minute"
    words += ", pin-memory thread" if loader.pin_thread else ""
    ready = (loader.ready_batches, "{:.1f} batches ready".format)
    return Fact(rank, words, (ready, (loader.empty_ratio, say_ratio)))


def _describe_network(frame: Frame) -> tuple[Fact, ...]:
    facts = [_fact("interfaces", frame.network)]
    if is_known(frame.network):
        used = sorted(frame.network, key=lambda one: not known_or(one.used_by_job, False))
        facts = [
            _describe_interface(one, is_minor=place >= MOST_INTERFACES) for place, one in enumerate(used)
        ]
    sockets = frame.sockets
    if not is_known(sockets) or not sockets.connections:
        return (*facts, _fact("TCP connections", sockets, lambda _sockets: "none"))
    readings = (
        (sockets.last_send_s, _ago),
        (sockets.last_receive_s, _ago),
        (sockets.retransmits, str),
        (sockets.unsent_bytes, format_bytes),
    )
    words = f"{sockets.connections}, sent {{}}, received {{}}, retransmits {{}}, unsent {{}}"
    return (*facts, Fact("TCP connections", words, readings))


def _describe_interface(one: NetworkSample, *, is_minor: bool) -> Fact:
    used = "  (the job's)" if is_known(one.used_by_job) and one.used_by_job else ""
    moved = ((one.receive_bytes_s, say_bytes_s), (one.send_bytes_s, say_bytes_s))
    lost = ((one.errors_s, format_rate), (one.drops_s, format_rate))
    words = f"in {{}}, out {{}}, errors {{}}/s, drops {{}}/s{used}"
    return Fact(one.interface, words, (*moved, *lost), is_minor=is_minor)


def _describe_settings(frame: Frame) -> tuple[Fact, ...]:
    ranks = [process for process in frame.processes if process.role is Role.RANK]
    facts = []
    for name in THREAD_SETTINGS:
        told = Counter(_say_setting(process, name) for process in ranks)
        counts = {text: count_of(count, "rank") for text, count in told.items()}
        words = ", ".join(f"{text} in {count}" for text, count in counts.items())
        phrases = (
            f"{name} {text}" if text == NOT_SET else f"{name}={text} ({count})"
            for text, count in counts.items()
        )
        facts.append(Fact(name.removesuffix("_NUM_THREADS"), "{}", ((words, str),), ", ".join(phrases)))
    return tuple(facts) if ranks else (_said("settings", "no rank process seen"),)


def _say_setting(process: ProcessSample, name: str) -> str:
    if isinstance(process.environment, Missing):
        return f"? {process.environment.reason}"
    values = [setting.value for setting in process.environment if setting.name == name]
    return values[0] or '""' if values else NOT_SET


def _describe_readings(frame: Frame, say_age: Callable[[float, str], str]) -> tuple[Fact, ...]:
    facts = []
    for group in GROUPS:
        age, source = getattr(frame.ages_s, group), getattr(frame.sources, group)
        told = f"{say_age(age, group)} old, from {source}" if is_known(age) else ""
        facts.append(_said(group, told) if is_known(age) else _fact(group, age))
    facts.append(_said("ranks known from", frame.target.rank_source))
    if isinstance(frame.steps, Missing):
        facts.append(_fact("steps", frame.steps))
    return tuple(facts)


def _describe_own(frame: Frame) -> tuple[Fact, ...]:
    own = frame.self_
    return (
        _fact("CPU", own.cpu_pct, say_pct, f" of one core, {own.tick_ms:.1f} ms for this reading"),
        _fact("memory", own.rss_bytes, format_bytes, f", children {format_bytes(own.children_rss_bytes)}"),
        _fact("descriptors", own.descriptors),
        _said("job paused by us", f"{own.target_paused_ms:.0f} ms in all"),
        _said("over budget", "! yes: thread rates are halved" if own.shedding else "no"),
    )


def describe_job(
    frame: Frame, say_age: Callable[[float, str], str] = lambda age_s, _group: format_seconds(age_s)
) -> list[FactGroup]:
    """Return everything known of the job as a whole; ``say_age`` writes the age of a group of readings."""
    loaders = [_describe_loader(loader) for loader in frame.loader]
    settings = "thread settings of the ranks, at their start (..._NUM_THREADS)"
    return [
        *([describe_steps(frame.steps)] if is_known(frame.steps) else []),
        *describe_log_paces(frame),
        FactGroup("CPU", "cpu", _describe_cpu(frame)),
        FactGroup(settings, "threads", _describe_settings(frame)),
        FactGroup("memory", "memory", _describe_memory(frame)),
        FactGroup("loader", "loader", tuple(loaders) or (_said("queues", "no loader queue seen"),)),
        FactGroup("network", "network", _describe_network(frame)),
        FactGroup("readings", "ages", _describe_readings(frame, say_age)),
        FactGroup("tpmon", "tpmon", _describe_own(frame)),
    ]


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"


def _say_loader(one: hook.LoaderSettings) -> str:
    words = [f"num_workers {one.workers}", f"pin_memory {_on(one.pin_memory)}"]
    if is_known(one.prefetch_factor):
        words.append(f"prefetch_factor {one.prefetch_factor}")
    words.append(f"persistent_workers {_on(one.persistent_workers)}")
    if is_known(one.batch_size):
        words.append(f"batch_size {one.batch_size}")
    return ", ".join(words)


def _say_ddp(one: hook.DdpSettings) -> str:
    buckets = f"{one.buckets} buckets of at most {format_bytes(one.bucket_cap_bytes)}"
    return f"{buckets}, find_unused {_on(one.find_unused)}, static_graph {_on(one.static_graph)}"


def _say_fsdp(one: hook.FsdpSettings) -> str:
    told = f"{'fully_shard, ' if one.version > 1 else ''}{one.units} units"
    told += f", prefetch forward {one.forward}, backward {one.backward}"
    if is_known(one.limit_all_gathers):
        told += f", limit_all_gathers {_on(one.limit_all_gathers)}"
    return told


def _say_compiled(one: hook.CompileCounts) -> str:
    if not (one.frames or one.graphs):
        return ""
    frames = (
        f"{one.frames_ok} of {one.frames} frames, " if one.frames else ""
    )  # none counted of fullgraph=True
    told = f"{frames}{one.graphs} graphs, {one.graph_breaks} graph breaks"
    return f"{told}, ! {one.limit_hits} at the recompile limit" if one.limit_hits else told


def _say_allocator(one: hook.AllocatorFigures) -> str:
    told = f"{format_bytes(one.allocated_bytes)} of {format_bytes(one.reserved_bytes)} reserved"
    told += f", peak {format_bytes(one.peak_allocated_bytes)}"
    if is_known(one.phases) and is_known(one.phases.peak_phase):
        told += f" ({one.phases.peak_phase})"
    told += f", inactive in splits {format_bytes(one.inactive_split_bytes)}"
    mark = "! " if one.alloc_retries or one.ooms else ""
    return f"{told}, {mark}{one.alloc_retries} retries, {one.ooms} out of memory"


def _say_step_memory(one: hook.AllocatorFigures) -> str:
    if not is_known(one.phases):
        return ""
    phases = one.phases
    turns = (
        ("{} with a batch", phases.after_batch_bytes),
        ("{} before the backward", one.allocated_at_backward_bytes),
        ("{} after it", phases.after_backward_bytes),
        ("{} after the update", phases.after_update_bytes),
        ("forward up to {}", phases.forward_peak_bytes),
        ("backward up to {}", phases.backward_peak_bytes),
        ("optimizer up to {}", phases.optimizer_peak_bytes),
        ("other up to {}", phases.other_peak_bytes),
    )
    return ", ".join(words.format(format_bytes(size)) for words, size in turns if is_known(size))


def _say_sizes(one: hook.StateSizes) -> str:
    sizes = {
        "parameters": one.parameter_bytes,
        "gradients": one.gradient_bytes,
        "optimizer": one.optimizer_bytes,
    }
    told = [f"{name} {format_bytes(size)}" for name, size in sizes.items()]
    if is_known(one.activation_bytes):
        told.append(f"activations about {format_bytes(one.activation_bytes)}")
    return ", ".join(told)


def describe_settings(settings: hook.TrainSettings) -> list[tuple[str, str]]:
    """Return label and words of each setting that the hook read."""
    dtype, interop = settings.autocast_dtype, settings.interop_threads
    cast = f"on, {dtype}" if is_known(dtype) else "on"
    uncast = "off in the backward; of the forward the hook does not know"
    between = f", {interop} between operators" if is_known(interop) else ""
    parts: tuple[tuple[str, Known[Any], Callable[[Any], str]], ...] = (
        ("TF32 in matmul", settings.matmul_tf32, _on),
        ("TF32 in cuDNN", settings.cudnn_tf32, _on),
        ("cudnn.benchmark", settings.cudnn_benchmark, _on),
        ("cudnn.deterministic", settings.cudnn_deterministic, _on),
        ("deterministic algorithms", settings.deterministic, _on),
        ("anomaly detection", settings.anomaly, _on),
        ("a torch profiler of the program", settings.profiler, _on),
        ("autocast", settings.autocast, lambda is_on: cast if is_on else uncast),
        ("attention", settings.sdpa, lambda kinds: ", ".join(kinds) or "no back end allowed"),
        ("torch threads", settings.threads, lambda threads: f"{threads}{between}"),
        ("DataLoader", settings.loader, _say_loader),
        ("DDP", settings.ddp, _say_ddp),
        ("FSDP", settings.fsdp, _say_fsdp),
        ("torch.compile", settings.compiled, _say_compiled),
        ("CUDA allocator", settings.allocator, _say_allocator),
        ("CUDA memory of a step", settings.allocator, _say_step_memory),
        ("sizes", settings.sizes, _say_sizes),
    )
    return [(name, words) for name, value, say in parts if is_known(value) and (words := say(value))]


def say_settings(settings: hook.TrainSettings) -> list[str]:
    """Return the settings as phrases ("autocast on, bf16") without the switches that are off."""
    return [f"{name} {words}" for name, words in describe_settings(settings) if words != "off"]


def say_device(device: hook.DeviceTimes) -> str:
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
