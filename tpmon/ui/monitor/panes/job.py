"""Paint everything known of the job as a whole: the CPU pane when it has the screen to itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tpmon.model.frame import Frame
from tpmon.model.host import LoaderSample, NetworkSample, Pool, ShmSample, SocketSample
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import ProcessSample, Role
from tpmon.model.units import format_bytes, format_rate, format_seconds, say_bytes_s, say_pct, say_ratio
from tpmon.ui.kit.table import explain, paint_pairs
from tpmon.ui.monitor.alerts import age_of, is_old
from tpmon.ui.monitor.panes.cpu import list_gauges, paint_gauge, thin
from tpmon.ui.monitor.panes.header import GROUPS
from tpmon.ui.monitor.panes.steps import describe_steps
from tpmon.ui.monitor.state import Ink, Line, ViewState

Pairs = Sequence[tuple[str, str]]
THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""What sizes the pools of torch, numpy and numexpr where the script does not."""


def _number(value: float) -> str:
    return f"{value:.2f}"


def _times(value: float) -> str:
    return f"{value:.2f}x"


def _cpu_pairs(frame: Frame) -> Pairs:
    cpu = frame.cpu
    return [
        ("budget", f"{explain(cpu.budget_cores, lambda v: f'{v:g} CPUs')}  ({cpu.budget_reason})"),
        ("used", explain(cpu.used_cores, lambda v: f"{v:.2f} CPUs")),
        ("runnable", explain(cpu.runnable, lambda v: f"{v:.2f} threads")),
        ("  of them waiting", explain(cpu.waiting, _number)),
        ("runnable / budget", explain(cpu.demand_ratio, _times)),
        ("pools runnable", explain(cpu.pool_runnable, lambda v: f"{v:.2f} threads")),
        ("pools / budget", explain(cpu.oversubscription, _times)),
        ("largest pool", explain(cpu.pool, _pool)),
        ("waiting share", explain(cpu.run_delay_ratio, say_ratio)),
        ("throttled periods", explain(cpu.throttled_ratio, say_ratio)),
        ("throttled CPU s/s", explain(cpu.throttled_s, _number)),
        ("PSI cpu some", explain(cpu.psi_some_pct, say_pct)),
        ("host used", explain(cpu.host_used_cores, lambda v: f"{v:.2f} of {cpu.host_cores} CPUs")),
        ("host steal", explain(cpu.host_steal_pct, say_pct)),
        ("host load", explain(cpu.host_load, _number)),
    ]


def _pool(pool: Pool) -> str:
    owner = f"{pool.role.value} {pool.pid}"
    return (
        f"{pool.threads} busy threads of {owner}, {pool.runnable:.2f} runnable, {explain(pool.library, str)}"
    )


def _memory_pairs(frame: Frame) -> Pairs:
    memory = frame.memory
    shared = "pages shared by forked workers count more than once"
    return [
        ("used", explain(memory.used_bytes, format_bytes)),
        ("limit", f"{explain(memory.limit_bytes, format_bytes)}  ({memory.limit_source})"),
        ("anonymous", f"{explain(memory.anon_bytes, format_bytes)}  ({memory.anon_source})"),
        ("  growth", explain(memory.anon_growth_bytes_s, say_bytes_s)),
        ("sum of RSS", f"{explain(memory.rss_bytes, format_bytes)}  ({shared})"),
        ("swap", explain(memory.swap_bytes, format_bytes)),
        ("OOM kills", explain(memory.oom_kills, str)),
        ("refaults", explain(memory.refault_bytes_s, say_bytes_s)),
        ("major faults", explain(memory.major_faults_s, lambda v: f"{format_rate(v)}/s")),
        ("PSI memory some", explain(memory.psi_some_pct, say_pct)),
        ("host available", explain(memory.host_available_bytes, format_bytes)),
        ("host total", explain(memory.host_total_bytes, format_bytes)),
        ("shared memory", explain(memory.shm, _shm)),
    ]


def _shm(shm: ShmSample) -> str:
    return f"{format_bytes(shm.used_bytes)} of {format_bytes(shm.total_bytes)}  ({shm.path})"


def _loader_pair(loader: LoaderSample) -> tuple[str, str]:
    rank = f"rank {loader.rank}" if is_known(loader.rank) else f"pid {loader.pid}"
    if loader.loader:
        rank += f", loader {loader.loader + 1}"
    idle = sum(is_known(queue.pending_bytes) and queue.pending_bytes == 0 for queue in loader.queues)
    told = [
        explain(loader.ready_batches, lambda v: f"{v:.1f} batches ready"),
        f"empty in {explain(loader.empty_ratio, say_ratio)} of {loader.looks} readings",
        f"{idle} of {loader.workers} workers without work",
    ]
    if loader.births:
        told.append(f"{loader.births} workers born in the last minute")
    if loader.pin_thread:
        told.append("pin-memory thread")
    return rank, ", ".join(told)


def _network_pairs(frame: Frame) -> Pairs:
    pairs: list[tuple[str, str]] = []
    if is_known(frame.network):
        pairs += [_interface_pair(one) for one in frame.network]
    else:
        pairs.append(("interfaces", f"? {frame.network.reason}"))
    pairs.append(("TCP connections", explain(frame.sockets, _sockets)))
    return pairs


def _sockets(sockets: SocketSample) -> str:
    if not sockets.connections:
        return "none"
    moved = f"sent {_ago(sockets.last_send_s)}, received {_ago(sockets.last_receive_s)}"
    lost = f"retransmits {explain(sockets.retransmits, str)}"
    return f"{sockets.connections}, {moved}, {lost}, unsent {explain(sockets.unsent_bytes, format_bytes)}"


def _ago(seconds: Known[float]) -> str:
    return explain(seconds, lambda value: f"{format_seconds(value)} ago")


def _interface_pair(one: NetworkSample) -> tuple[str, str]:
    used = "  (the job's)" if is_known(one.used_by_job) and one.used_by_job else ""
    moved = f"in {explain(one.receive_bytes_s, say_bytes_s)}, out {explain(one.send_bytes_s, say_bytes_s)}"
    lost = f"errors {explain(one.errors_s, format_rate)}/s, drops {explain(one.drops_s, format_rate)}/s"
    return one.interface, f"{moved}, {lost}{used}"


def _reading_pairs(view: ViewState, frame: Frame) -> Pairs:
    pairs = []
    for group in GROUPS:
        age, source = getattr(frame.ages_s, group), getattr(frame.sources, group)
        if is_known(age):
            old = is_old(view, age_of(view, age), group)
            told = f"{'! ' if old else ''}{format_seconds(age_of(view, age))} old, from {source}"
        else:
            told = f"? {age.reason}"
        pairs.append((group, told))
    pairs.append(("ranks known from", frame.target.rank_source))
    if isinstance(frame.steps, Missing):
        pairs.append(("steps", f"? {frame.steps.reason}"))
    return pairs


def _setting_pairs(frame: Frame) -> Pairs:
    """Say of each variable that sizes a thread pool what the ranks were started with."""
    ranks = [process for process in frame.processes if process.role is Role.RANK]
    pairs = []
    for name in THREAD_SETTINGS:
        told = Counter(_setting(process, name) for process in ranks)
        pairs.append(
            (name.removesuffix("_NUM_THREADS"), ", ".join(_count_ranks(*one) for one in told.items()))
        )
    return pairs if ranks else [("settings", "no rank process seen")]


def _setting(process: ProcessSample, name: str) -> str:
    if isinstance(process.environment, Missing):
        return f"? {process.environment.reason}"
    values = [setting.value for setting in process.environment if setting.name == name]
    return values[0] or '""' if values else "not set"


def _count_ranks(value: str, count: int) -> str:
    return f"{value} in {count} rank" if count == 1 else f"{value} in {count} ranks"


def _own_pairs(frame: Frame) -> Pairs:
    own = frame.self_
    return [
        ("CPU", f"{explain(own.cpu_pct, say_pct)} of one core, {own.tick_ms:.1f} ms for this reading"),
        (
            "memory",
            f"{explain(own.rss_bytes, format_bytes)}, children {format_bytes(own.children_rss_bytes)}",
        ),
        ("descriptors", explain(own.descriptors, str)),
        ("job paused by us", f"{own.target_paused_ms:.0f} ms in all"),
        ("over budget", "! yes: thread rates are halved" if own.shedding else "no"),
    ]


def describe_job(view: ViewState, frame: Frame) -> list[tuple[str, Pairs]]:
    """Return everything known of the job as a whole: headings with labels and values."""
    loaders = [_loader_pair(loader) for loader in frame.loader] or [("queues", "no loader queue seen")]
    steps = [("steps, by the hooks", describe_steps(frame.steps))] if is_known(frame.steps) else []
    return [
        *steps,
        ("CPU", _cpu_pairs(frame)),
        ("thread settings of the ranks, at their start (..._NUM_THREADS)", _setting_pairs(frame)),
        ("memory", _memory_pairs(frame)),
        ("loader", loaders),
        ("network", _network_pairs(frame)),
        ("readings", _reading_pairs(view, frame)),
        ("tpmon", _own_pairs(frame)),
    ]


def paint_cpu_in_full(view: ViewState, width: int) -> list[Line]:
    """Paint every figure of the job as a whole, with the reason of each that is missing."""
    frame = view.frame
    if not is_known(frame):
        return []
    spark_width = min(120, max(0, width // 3))
    groups = thin(view.pulses, spark_width)
    lines = [paint_gauge(gauge, groups, width, spark_width) for gauge in list_gauges(frame, groups)]
    for heading, pairs in describe_job(view, frame):
        lines.append(((f" {heading}", Ink.STRONG),))
        lines += paint_pairs(pairs, width)
    return lines
