"""Paint what lies over the panes: help, the details of one process, its start environment.

Each returns all its lines; ``panes`` shows the part that fits and scrolls.
"""

from __future__ import annotations

from tpmon.model.frame import Frame
from tpmon.model.known import Applicable, Missing, is_known, known_or
from tpmon.model.process import ProcessSample, RankRow, ThreadGroup
from tpmon.model.units import format_bytes, format_moment, format_rate, format_seconds, say_bytes_s, say_pct
from tpmon.model.waits import describe_wait
from tpmon.ui.monitor.alerts import age_of
from tpmon.ui.monitor.state import ViewState
from tpmon.view.cards import describe_card
from tpmon.view.job import describe_settings, say_device
from tpmon.view.layout import Ink, Line, cut, explain, fit_line, pad, paint_pairs, wrap_words
from tpmon.view.ranks import join_ranks, waiting_pct, write_role, write_state

HELP_WORDS = (
    ("thr", "threads", "threads"),
    ("run", "threads that wanted a CPU, on average", "threads that want a CPU"),
    ("wait %", "share of those that waited for one", "share of them that waits"),
    ("S", "R runs, S sleeps, D blocked (disk, driver), T stopped, Z zombie", "D blocked, T stopped"),
    ("for", "how long the wait is unchanged", "wait unchanged for so long"),
    ("act %", "SM active: share of cycles with work on the SMs", "SM cycles with work"),
    ("! ?", "worth a look; not read, the reason is in the details (enter)", "worth a look; not read"),
)
"""What the short words of the screen mean, in full and in brief."""


def _chosen(frame: Frame, pid: Applicable[int], width: int) -> ProcessSample | list[Line]:
    """Return the process under the cursor, else the lines that say why there is none."""
    if not is_known(pid):
        return [((cut(" no row chosen: move the cursor with j and k first", width), Ink.DIM),)]
    for process in frame.processes:
        if process.pid == pid:
            return process
    text = f"process {pid} is gone; its last reading is no longer kept"
    return [((f" {line}", Ink.WARN),) for line in wrap_words(text, max(1, width - 1))]


def paint_details(view: ViewState, width: int) -> list[Line]:
    """Paint everything known of the process under the cursor, a reason for all that is missing."""
    frame = view.frame
    if not is_known(frame):
        return []
    process = _chosen(frame, view.cursor_pid, width)
    if isinstance(process, list):
        return process
    heading = f" {write_role(process)}  pid {process.pid}  {process.label}"
    lines: list[Line] = [((cut(heading, width), Ink.STRONG),)]
    row = next((row for row in frame.ranks if row.pid == process.pid), None)
    pairs = describe_process(frame, process)
    if row is not None:
        pairs += _describe_row(row)
    lines += paint_pairs(pairs, width)
    for rank in join_ranks(frame) if row is not None else ():
        if rank.row is row and is_known(rank.card):
            lines.append(((cut(f" GPU {rank.card.index}  {rank.card.name}", width), Ink.STRONG),))
            lines += paint_pairs(describe_card(rank.card, age_of(view, rank.card.age_s)), width)
    return lines


def describe_process(frame: Frame, process: ProcessSample) -> list[tuple[str, str]]:
    """Return everything known of one process as labels and values."""
    owner = ""
    if is_known(process.rank_pid):
        owner = f", belongs to rank process {process.rank_pid}"
    up = format_seconds((frame.taken - process.started).total_seconds())
    return [
        ("role", f"{process.role.value}, local rank {explain(process.local_rank, str)}{owner}"),
        ("program", f"{process.name}, parent {process.parent}"),
        ("started", f"{format_moment(process.started, frame.taken)}, {up} ago"),
        ("state", write_state(process)),
        ("waits for", explain(process.waits_for, describe_wait)),
        ("  unchanged for", explain(process.waits_unchanged_s, format_seconds)),
        ("  wchan", explain(process.wchan, str)),
        ("  syscall", explain(process.syscall, str)),
        ("CPU", explain(process.cpu_pct, lambda v: f"{say_pct(v)} of one CPU")),
        ("runnable", explain(process.runnable, lambda v: f"{v:.2f} threads")),
        ("  waiting", explain(waiting_pct(process), lambda v: f"{say_pct(v)} of that waits for a CPU")),
        ("threads", f"{process.threads}, busy {explain(process.busy_threads, str)}"),
        *((f"  {group.kind.value}", _describe_group(group)) for group in process.thread_groups),
        ("switches", explain(process.switches_s, lambda v: f"{format_rate(v)}/s")),
        ("RSS", format_bytes(process.rss_bytes)),
        ("PSS", _describe_pss(process)),
        ("read(2)", explain(process.asked_read_bytes_s, lambda v: f"{say_bytes_s(v)}, with page cache")),
        ("write(2)", explain(process.asked_write_bytes_s, say_bytes_s)),
        ("from disks", explain(process.device_read_bytes_s, say_bytes_s)),
        ("to disks", explain(process.device_write_bytes_s, say_bytes_s)),
        ("minor faults", explain(process.minor_faults_s, lambda v: f"{format_rate(v)}/s")),
        ("major faults", explain(process.major_faults_s, lambda v: f"{format_rate(v)}/s")),
    ]


def _describe_group(group: ThreadGroup) -> str:
    return f"{group.count}, runnable {explain(group.runnable, lambda v: f'{v:.2f}')}"


def _describe_pss(process: ProcessSample) -> str:
    if isinstance(process.pss_bytes, Missing):
        return f"? {process.pss_bytes.reason}"
    return f"{format_bytes(process.pss_bytes)}, read {explain(process.pss_age_s, format_seconds)} ago"


def _describe_row(row: RankRow) -> list[tuple[str, str]]:
    return [
        ("GPU", explain(row.gpu, str)),
        ("step", explain(row.step, str)),
        ("  age", explain(row.step_age_s, format_seconds)),
    ]


def _paint_hook_settings(frame: Frame, pid: int, width: int) -> list[Line]:
    """Paint what the hook of a process tells of its settings as they are now; nothing without a hook."""
    hook = next((one for one in known_or(frame.hook, ()) if one.pid == pid), None)
    if hook is None:
        return []
    lines: list[Line] = [((cut(" settings of now, by its hook", width), Ink.STRONG),)]
    if not is_known(hook.settings):
        return [*lines, ((cut(f" ? {hook.settings.reason}", width), Ink.DIM),)]
    pairs = describe_settings(hook.settings)
    device = say_device(hook.device) if is_known(hook.device) else ""
    return lines + paint_pairs([*pairs, ("device", device)] if device else pairs, width)


def paint_environment(view: ViewState, width: int) -> list[Line]:
    """Paint the start environment of the process under the cursor, as far as it changes speed."""
    frame = view.frame
    if not is_known(frame):
        return []
    process = _chosen(frame, view.cursor_pid, width)
    if isinstance(process, list):
        return process
    lines: list[Line] = [
        ((cut(f" start environment of {write_role(process)}  pid {process.pid}", width), Ink.STRONG),),
        ((cut(" what the script sets later with os.environ is not seen here", width), Ink.DIM),),
    ]
    lines = [*_paint_hook_settings(frame, process.pid, width), *lines]
    settings = process.environment
    if isinstance(settings, Missing):
        return [*lines, ((cut(f" ? {settings.reason}", width), Ink.WARN),)]
    if not settings:
        return [*lines, ((cut(" no variable that changes training speed is set", width), Ink.PLAIN),)]
    label_width = min(max(len(setting.name) for setting in settings) + 1, max(8, width // 2))
    for setting in settings:
        head = (" " + pad(setting.name, label_width) + " ", Ink.DIM)
        lines.append(fit_line((head, (setting.value or '""', Ink.PLAIN)), width))
    return lines
