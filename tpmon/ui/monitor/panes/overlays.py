"""Paint what covers the panes: the details and environment of a process, captures, hot functions.

Each returns all its lines; ``layout.py`` shows the part that fits.
"""

from __future__ import annotations

from tpmon.model.frame import Frame
from tpmon.model.known import Applicable, Missing, is_known, known_or
from tpmon.model.process import ProcessSample, RankRow
from tpmon.model.results.capture import (
    CAPTURE_ACTS,
    UNKNOWN,
    CaptureKind,
    CaptureStage,
    CaptureUpdate,
    fewer_steps,
    more_steps,
    next_kind,
)
from tpmon.model.results.sample import HotGroup, HotSample
from tpmon.model.units import (
    clean_text,
    count_cells,
    format_bytes,
    format_moment,
    format_rate,
    format_seconds,
    say_bytes_s,
    say_pct,
)
from tpmon.model.waits import describe_wait
from tpmon.ui.monitor.alerts import age_of, say_ago
from tpmon.ui.monitor.panes.stacks import paint_errors
from tpmon.ui.monitor.requests import has_ended, is_running, say_next_price
from tpmon.ui.monitor.state import ViewState
from tpmon.view import stacks
from tpmon.view.cards import describe_card
from tpmon.view.job import describe_settings, say_device
from tpmon.view.layout import (
    Ink,
    Line,
    Table,
    cut,
    explain,
    fit_line,
    lay_text,
    list_columns,
    pad,
    paint_pairs,
    set_in,
    wrap_all,
    wrap_words,
)
from tpmon.view.ranks import join_ranks, waiting_pct, write_role, write_state

HELP_WORDS = (
    ("sure", "how sure the verdict is: ### high, ##- medium, #-- low", "### high, #-- low"),
    ("thr", "threads", "threads"),
    ("run", "threads that wanted a CPU, on average", "threads that want a CPU"),
    ("wait %", "share of those that waited for one", "share of them that waits"),
    ("S", "R runs, S sleeps, D blocked (disk, driver), T stopped, Z zombie", "D blocked, T stopped"),
    ("for", "how long the wait is unchanged", "wait unchanged for so long"),
    ("! ?", "worth a look; not read, the reason is in the details (enter)", "worth a look; not read"),
)
"""The meaning of short words on the screen, in full and in brief."""


def _chosen(frame: Frame, pid: Applicable[int], width: int) -> ProcessSample | list[Line]:
    """Return the process under the cursor, else lines that say why there is none."""
    if not is_known(pid):
        return [((cut(" no row chosen: move the cursor with j and k first", width), Ink.DIM),)]
    for process in frame.processes:
        if process.pid == pid:
            return process
    text = f"process {pid} is gone; its last reading is no longer kept"
    return set_in(wrap_words(text, max(1, width - 1)), Ink.WARN)


def paint_details(view: ViewState, width: int) -> list[Line]:
    """Paint everything known of the process under the cursor, with reasons for what is missing."""
    frame = view.frame
    if not is_known(frame):
        return []
    process = _chosen(frame, view.cursor_pid, width)
    if isinstance(process, list):
        return process
    heading = f" {write_role(process)}  pid {process.pid}  {process.label}"
    lines: list[Line] = [((cut(heading, width), Ink.STRONG),)]
    row = next((row for row in frame.ranks if row.pid == process.pid), None)
    lines += paint_pairs(describe_process(frame, process, row), width)
    for rank in join_ranks(frame) if row is not None else ():
        if rank.row is row and is_known(rank.card):
            lines.append(((cut(f" GPU {rank.card.index}  {rank.card.name}", width), Ink.STRONG),))
            lines += paint_pairs(describe_card(rank.card, age_of(view, rank.card.age_s)), width)
    return lines


def describe_process(
    frame: Frame, process: ProcessSample, row: RankRow | None = None
) -> list[tuple[str, str]]:
    """Return everything known of one process, and of its rank where it is one, as labels and values."""
    owner = f", belongs to rank process {process.rank_pid}" if is_known(process.rank_pid) else ""
    groups = {
        f"  {one.kind.value}": f"{one.count}, runnable {explain(one.runnable, '{:.2f}'.format)}"
        for one in process.thread_groups
    }
    pss_age = f", read {explain(process.pss_age_s, format_seconds)} ago"
    of_rank = (
        ()
        if row is None
        else (
            ("GPU", explain(row.gpu, str)),
            ("step", explain(row.step, str)),
            ("  age", explain(row.step_age_s, format_seconds)),
        )
    )
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
        *groups.items(),
        ("switches", explain(process.switches_s, lambda v: f"{format_rate(v)}/s")),
        ("RSS", format_bytes(process.rss_bytes)),
        ("PSS", explain(process.pss_bytes, lambda size: f"{format_bytes(size)}{pss_age}")),
        ("read(2)", explain(process.asked_read_bytes_s, lambda v: f"{say_bytes_s(v)}, with page cache")),
        ("write(2)", explain(process.asked_write_bytes_s, say_bytes_s)),
        ("from disks", explain(process.device_read_bytes_s, say_bytes_s)),
        ("to disks", explain(process.device_write_bytes_s, say_bytes_s)),
        ("minor faults", explain(process.minor_faults_s, lambda v: f"{format_rate(v)}/s")),
        ("major faults", explain(process.major_faults_s, lambda v: f"{format_rate(v)}/s")),
        *of_rank,
    ]


def _paint_hook_settings(frame: Frame, pid: int, width: int) -> list[Line]:
    """Paint the present settings of a process as its hook reads them; nothing without a hook."""
    hook = next((one for one in known_or(frame.hook, ()) if one.pid == pid), None)
    if hook is None:
        return []
    put_in = hook.put_in
    by_hand = (
        f", put in by hand at {format_moment(put_in.at, frame.taken)} by tpmon {put_in.by}"
        if is_known(put_in)
        else ""
    )
    lines: list[Line] = [((cut(f" settings of now, by its hook{by_hand}", width), Ink.STRONG),)]
    if not is_known(hook.settings):
        return [*lines, ((cut(f" ? {hook.settings.reason}", width), Ink.DIM),)]
    pairs = describe_settings(hook.settings)
    device = say_device(hook.device) if is_known(hook.device) else ""
    return lines + paint_pairs([*pairs, ("device", device)] if device else pairs, width)


def paint_environment(view: ViewState, width: int) -> list[Line]:
    """Paint the variables that affect speed, as the process under the cursor was started with them."""
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


_TEXT_CHARS = 4_000
_NONE = "no capture yet: t says what one of a few steps costs, and asks nothing of the run"
_FORBIDDEN = "no capture: it has the training record itself, and --readonly forbids that"
_QUESTIONS = {
    CaptureStage.ASKED: "esc leaves; nothing is asked of the run yet",
    CaptureStage.HOOKLESS: "t or Enter asks once more; esc leaves, nothing is written",
    CaptureStage.HOOKING: "t or Enter writes it into the process now; esc leaves, nothing is written",
    CaptureStage.PLANNED: "t or Enter profiles one step and says the price; esc leaves",
    CaptureStage.SIZING: "t or esc cancels it",
    CaptureStage.PRICED: "t or Enter records them at this price; esc leaves, nothing is recorded",
    CaptureStage.DEAR: "t or Enter records them all the same; esc leaves, nothing is recorded",
    CaptureStage.RECORDING: "t or esc cancels it: no file is left then; 8 leaves it to go on",
}
_UNSIZED = {
    CaptureKind.SNAPSHOT: {CaptureStage.PLANNED: "t or Enter records them and writes the file; esc leaves"},
    CaptureKind.NSYS_RANGE: {
        CaptureStage.PLANNED: "t or Enter opens the range for nsys; esc leaves",
        CaptureStage.RECORDING: "t or esc ends the range before its steps are done; 8 leaves it to go on",
    },
}
"""Questions where no step is profiled first: the plan says all that is known."""
_FIRST = 2
"""Lines of a plan before the question: what is recorded, and how long."""
_LABEL = 7
_VALUE = 20


def paint_capture(view: ViewState, width: int) -> list[Line]:
    """Paint all lines of a capture."""
    update = view.capture
    if not is_known(update) or (update.stage is CaptureStage.ENDED and not update.line):
        return _wrapped(_FORBIDDEN if view.readonly else _NONE, Ink.DIM, width)
    if update.stage is CaptureStage.ENDED:
        return _paint_end(update, width)
    question = _UNSIZED.get(update.choice.kind, {}).get(update.stage, _QUESTIONS[update.stage])
    asked = _wrapped(update.line, Ink.WARN, width) + _wrapped(question, Ink.STRONG, width)
    choice = _paint_choice(update, width)
    what = [line for said in update.plan[:_FIRST] for line in _wrapped(said, Ink.PLAIN, width)]
    known: list[Line] = []
    unknown: list[Line] = []
    for said in update.plan[_FIRST:]:
        (unknown if said.startswith(UNKNOWN) else known).extend(_wrapped(said, Ink.PLAIN, width))
    known += _paint_memory(view, width) if what else []
    if update.price:  # the unknowns of the plan are known now
        price = [line for said in update.price for line in _wrapped(said, Ink.STRONG, width)]
        return [*price, (), *asked, (), *choice, *what, *known]
    known += unknown
    # The question is visible even where not everything fits.
    return [*choice, *what, *([()] if what else []), *asked, *([()] if known else []), *known]


def _paint_choice(update: CaptureUpdate, width: int) -> list[Line]:
    """Paint the choice with the keys that change it, and why others are impossible; nothing once it acts."""
    choice, offers = update.choice, update.offers
    if not is_known(offers) or update.stage in CAPTURE_ACTS:
        return []
    kind, fewer, more = next_kind(choice, offers), fewer_steps(choice, offers), more_steps(choice, offers)
    to_kind = f"c {kind.kind.value}" if kind != choice else ""
    steps = [f"{key} {to.steps:,}" for key, to in (("-", fewer), ("+", more)) if to != choice]
    every = f"all {offers.ranks} here"
    to_ranks = "" if offers.every else f"a {offers.who} alone" if choice.every else f"a {every}"
    lines = _paint_row("what", choice.kind.value, to_kind, width)
    for refused, why in offers.refused:
        lines += _paint_below(f"no {refused.value}: {why}", Ink.DIM, width)
    lines += _paint_row("steps", f"{choice.steps:,}", ", ".join(steps), width)
    lines += _paint_row("ranks", every if choice.every else offers.who, to_ranks, width)
    if offers.every:
        lines += _paint_below(f"not all: {offers.every}", Ink.DIM, width)
    return [*lines, ()]


def _paint_row(label: str, value: str, keys: str, width: int) -> list[Line]:
    head = (f" {pad(label, _LABEL)}", Ink.DIM)
    shown = clean_text(value, _VALUE)
    if not keys or _LABEL + count_cells(shown) + 3 + count_cells(keys) > width:
        return [fit_line((head, (shown, Ink.STRONG)), width), *_paint_below(keys, Ink.PLAIN, width)]
    if _LABEL + 1 + _VALUE + count_cells(keys) <= width:
        shown = pad(shown, _VALUE - 2)
    return [fit_line((head, (f"{shown}  ", Ink.STRONG), (keys, Ink.PLAIN)), width)]


def _paint_below(text: str, ink: Ink, width: int) -> list[Line]:
    texts = wrap_all(clean_text(text, _TEXT_CHARS), max(1, width - _LABEL - 2))
    return set_in(texts, ink, " " * (_LABEL + 1))


def _paint_end(update: CaptureUpdate, width: int) -> list[Line]:
    """Paint the result of a capture; lines that fit are kept as they are, for tables."""
    if not update.report:
        return _wrapped(update.line, Ink.WARN, width)
    lines: list[Line] = []
    for said in update.report:
        cleaned = clean_text(said, _TEXT_CHARS)
        fits = count_cells(cleaned) < width
        lines += set_in([cleaned]) if said and fits else _wrapped(said, Ink.PLAIN, width) or [()]
    opens = ", o opens it" if update.trace else ""
    return [*lines, (), *_wrapped(f"y copies all of it{opens}, esc closes", Ink.DIM, width)]


def _paint_memory(view: ViewState, width: int) -> list[Line]:
    """Paint how much memory the job's cgroup has left, where it has a limit."""
    memory = view.frame.memory if is_known(view.frame) else None
    if memory is None or not is_known(memory.limit_bytes) or not is_known(memory.used_bytes):
        return []
    left = format_bytes(max(0, memory.limit_bytes - memory.used_bytes))
    return _wrapped(
        f"memory: {left} left of the limit of {format_bytes(memory.limit_bytes)}", Ink.PLAIN, width
    )


_ERROR_LINES = 6
_ENDED = "the job has ended: no stack is left to sample"


def paint_sample(view: ViewState, width: int) -> list[Line]:
    """Paint all lines of the hot functions."""
    update = view.sample
    if not is_known(update):
        ended = is_known(view.frame) and has_ended(view.frame)
        return _wrapped(_ENDED, Ink.WARN, width) if ended else _paint_price(view, Ink.WARN, width)
    lines: list[Line] = []
    if update.state.refused:
        lines += _wrapped(f"! {update.state.refused}", Ink.WARN, width)
    if is_running(view):
        done = update.hot.seconds if is_known(update.hot) else 0.0
        lines += _wrapped(f"sampling: {done:.0f} of {update.state.request.seconds:g} s", Ink.WARN, width)
    hot = update.hot
    if is_known(hot):
        lines += _paint_told(view, hot, width)
    elif not update.state.refused:
        lines += _wrapped("the first samples come within two seconds", Ink.DIM, width)
    if not is_running(view):
        lines += _paint_price(view, Ink.DIM, width)
    if is_known(hot):
        for group in hot.groups:
            lines += [(), *_paint_group(group, width)]
        lines += [(), *_wrapped(stacks.say_cost(hot), Ink.DIM, width)]
    return lines


def _paint_told(view: ViewState, hot: HotSample, width: int) -> list[Line]:
    lines = _wrapped(f"{stacks.say_what(hot)}{_say_age(view, hot)}", Ink.STRONG, width)
    if hot.lost_samples or hot.behind_s:
        lines += _wrapped(f"! lost: {stacks.say_lost(hot)}", Ink.WARN, width)
    lines += paint_errors(hot.errors, width, _ERROR_LINES, can_stop=False)
    waiting = stacks.count_without_turn(hot)
    if waiting:
        lines += _wrapped(f"no turn for {waiting} more yet", Ink.WARN, width)
    return [*lines, *_wrapped(stacks.say_ended(hot), Ink.WARN, width)] if hot.ended_processes else lines


def _paint_price(view: ViewState, ink: Ink, width: int) -> list[Line]:
    if is_known(view.playback):
        return []
    if view.no_stacks:
        return _wrapped("no stacks are sampled: --no-stacks", ink, width)
    return _wrapped(say_next_price(view), ink, width)


def _say_age(view: ViewState, hot: HotSample) -> str:
    if is_running(view) or not is_known(view.frame):
        return ""
    now_ns = view.paused_ns if is_known(view.paused_ns) else view.now_ns
    age_s = (view.frame.taken - hot.taken).total_seconds() + (now_ns - view.frame.taken_ns) / 1e9
    return f", {say_ago(view, age_s)}"


def _wrapped(text: str, ink: Ink, width: int) -> list[Line]:
    return lay_text(clean_text(text, _TEXT_CHARS), width, ink)


def _paint_group(group: HotGroup, width: int) -> list[Line]:
    if waiting := stacks.say_waiting(group):
        return _wrapped(waiting, Ink.DIM, width)
    lines = _wrapped(stacks.say_group(group), Ink.TITLE, width)
    phases = stacks.say_phases(group)
    if phases:
        lines += [
            ((f"  {text[0][0].strip()}", Ink.PLAIN),) for text in _wrapped(phases, Ink.PLAIN, width - 2)
        ]
    shown, hidden = stacks.pick_shown(group)
    if not shown:
        return lines
    table = Table(list_columns(stacks.FUNCTIONS), width)
    lines.append(table.paint_head())
    lines += [table.paint_row(one, Ink.DIM if one.package else Ink.STRONG) for one in shown]
    return [*lines, ((f"   {hidden} more (tpmon sample --json has them)", Ink.DIM),)] if hidden else lines
