"""Write one Frame as text: what ``--once`` prints. At most 100 columns but for what is to be pasted."""

from __future__ import annotations

from collections import Counter

from tpmon.model.frame import Frame, TargetState
from tpmon.model.gpu import GpuSample, name_several
from tpmon.model.host import LoaderSample
from tpmon.model.known import Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, RankRow, Role
from tpmon.model.text.job_words import (
    RULE_WORDS,
    format_ms,
    is_stalled,
    say_rate,
    say_samples,
    say_split,
    say_times,
)
from tpmon.model.units import (
    count_of,
    format_bytes,
    format_clock,
    format_pct,
    format_seconds,
    say_bytes_s,
    say_pct,
)
from tpmon.model.waits import describe_wait
from tpmon.report.machine import (
    write_card_cells,
    write_cpu,
    write_gpus,
    write_io,
    write_memory,
    write_network,
)
from tpmon.report.text import (
    WIDTH,
    TextReading,
    cut,
    lay_columns,
    lay_paragraph,
    lay_phrases,
    sum_known,
    write_runnable,
)
from tpmon.report.verdict import write_verdict
from tpmon.view.hook import say_device, say_settings

MOST_RANKS = 32
MOST_WORKERS = 8
MOST_EVENTS = 5
THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def describe_target(frame: Frame) -> str:
    """Say who the job is in a few words: 48213 train.py, 2 ranks, 4 workers."""
    target = frame.target
    ranks = count_of(target.local_ranks, "rank")
    if is_known(target.world_size) and target.world_size != target.local_ranks:
        ranks += f" of {target.world_size}"
    return f"{target.pid} {target.script}, {ranks}, {count_of(target.local_workers, 'worker')}"


def _write_who(frame: Frame, reading: TextReading) -> list[str]:
    target = frame.target
    up_s = (frame.taken - target.start).total_seconds()
    words = [
        describe_target(frame),
        f"user {target.user}",
        f"host {target.host}",
        f"up {format_seconds(up_s)}",
        f"torch {reading.show('torch version', target.torch_version)}",
        f"Python {reading.show('Python version', target.python_version)}",
    ]
    if target.asked_pid != target.pid:
        words.append(f"asked for {target.asked_pid}")
    state = target.state.value
    if target.state is TargetState.ENDED:
        state = f"ended: {reading.show('how it ended', target.ended)}"
    lines = lay_phrases("job", words)
    lines += lay_paragraph("state", f"{state}, read {frame.taken.isoformat(sep=' ', timespec='seconds')}")
    lines += lay_paragraph("facts", frame.facts)
    for note in frame.notes:
        lines += lay_paragraph("note", note)
    return lines


def _cards(frame: Frame) -> dict[int, GpuSample]:
    return {card.index: card for card in frame.gpus} if is_known(frame.gpus) else {}


def _write_ranks(frame: Frame, reading: TextReading) -> list[str]:
    processes = {p.pid: p for p in frame.processes}
    cards = _cards(frame)
    headers = ["rank", "PID", "S", "CPU %", "threads", "runnable", "RSS"]
    if cards:
        headers += ["GPU", "SM %", "W", "MHz"]
    has_steps = any(is_known(row.step) for row in frame.ranks)
    if has_steps:
        headers += ["step", "ended", "p50", "own"]
    headers += ["since", "where its main thread is"]
    rows = []
    shown = sorted(frame.ranks, key=_rank_order)
    for row in shown[:MOST_RANKS]:
        process = processes.get(row.pid)
        cells = [reading.show("rank", row.rank), str(row.pid), *_process_cells(process, reading)]
        if cards:
            card = cards.get(row.gpu) if is_known(row.gpu) else None
            several = name_several(row.pid, tuple(cards.values()))
            cells.append(several or reading.show("GPU of the rank", row.gpu))
            cells += write_card_cells(card, reading) if card else ["-", "-", "-"]
        if has_steps:
            cells += [
                reading.show("step of the rank", row.step),
                reading.show("step of the rank", row.step_age_s, _write_ago),
                reading.show("time of a step", row.step_ms, format_ms),
                reading.show("own time of a step", row.step_own_ms, format_ms),
            ]
        cells.append(reading.show("since when it waits", row.where_unchanged_s, format_seconds))
        cells.append(reading.show("what it waits for", row.where))
        rows.append(cells)
    known_size = frame.target.world_size
    elsewhere = known_size - frame.target.local_ranks if is_known(known_size) else 0
    title = f"ranks    {frame.target.local_ranks} here"
    if elsewhere > 0:
        title += f", {elsewhere} not on this host"
    lines = [
        f"{title} (rank numbers: {frame.target.rank_source})",
        *lay_columns(headers, rows, (headers[-1],), 2),
    ]
    if len(shown) > MOST_RANKS:
        lines.append(f"  and {count_of(len(shown) - MOST_RANKS, 'more rank')}")
    return lines + _write_steps(frame, reading) + _write_settings(frame, reading)


def _write_ago(seconds: float) -> str:
    return f"{format_seconds(seconds)} ago"


def _write_steps(frame: Frame, reading: TextReading) -> list[str]:
    """Say how the steps go where a hook tells: rates, times, and the split of the host's time."""
    pace = frame.steps
    if isinstance(pace, Missing):
        reading.miss("steps", pace)
        return []
    longest = reading.show("the longest step", pace.longest_ms, format_ms)
    whose = f"rank {pace.rank}" if is_known(pace.rank) else f"process {pace.pid}"
    words = [
        f"{pace.count:,} by {whose}",
        say_rate(pace),
        "" if is_stalled(pace) else say_samples(pace),
        *say_times(pace).split("  "),
        f"longest {longest} of {pace.timed}",
        f"last {format_seconds(pace.step_age_s)} ago",
    ]
    lines = lay_phrases("steps", [word for word in words if word])
    split = say_split(pace)
    if split:
        lines += lay_phrases("host", [*split.split(", "), "of a step's time on the host"])
    lines += lay_paragraph("a step", f"ends at: {RULE_WORDS[pace.rule]}")
    hook = next((one for one in known_or(frame.hook, ()) if one.pid == pace.pid), None)
    if hook is not None and is_known(hook.settings):
        lines += lay_phrases("settings", say_settings(hook.settings))
    if hook is not None and is_known(hook.device) and (device := say_device(hook.device)):
        lines += lay_paragraph("device", device)
    return lines


def _write_settings(frame: Frame, reading: TextReading) -> list[str]:
    """Say what sizes the thread pools of the ranks: the variables that they were started with."""
    ranks = [process for process in frame.processes if process.role is Role.RANK]
    told: Counter[str] = Counter()
    unset: list[str] = []
    for name in THREAD_SETTINGS:
        values = Counter(
            setting.value
            for process in ranks
            for setting in known_or(process.environment, ())
            if setting.name == name
        )
        told.update({f"{name}={value}": count for value, count in values.items()})
        if not values:
            unset.append(name)
    unread = [process.environment for process in ranks if isinstance(process.environment, Missing)]
    for missing in unread:
        reading.miss("thread settings", missing)
    if len(unread) == len(ranks):
        return []
    some = len(ranks) > 1
    words = [f"{text} ({count_of(count, 'rank')})" if some else text for text, count in told.items()]
    if unset:
        words.append(f"{' '.join(unset)} not set")
    return lay_phrases("threads", words)


def _rank_order(row: RankRow) -> tuple[int, int]:
    return known_or(row.rank, 1 << 30), row.pid


def _process_cells(process: ProcessSample | None, reading: TextReading) -> list[str]:
    if process is None:
        return ["-", "-", "-", "-", "-"]
    return [
        process.state,
        reading.show("CPU", process.cpu_pct, format_pct),
        str(process.threads),
        reading.show("runnable threads", process.runnable, write_runnable),
        format_bytes(process.rss_bytes),
    ]


def _write_loader(loader: LoaderSample, reading: TextReading) -> list[str]:
    ready = reading.show("ready batches", loader.ready_batches, "{:.1f}".format)
    pending = [queue.pending_bytes for queue in loader.queues]
    idle = sum(1 for waiting in pending if is_known(waiting) and waiting == 0)
    unread = [waiting for waiting in pending if isinstance(waiting, Missing)]
    for missing in unread:
        reading.miss("work queue", missing)
    whose = f"rank {reading.show('rank', loader.rank)} ({loader.pid})"
    if loader.loader:
        whose += f", its loader number {loader.loader + 1}"
    words = [
        f"{whose}: {count_of(loader.workers, 'worker')}",
        f"{ready} batches ready",
        reading.show("empty readings", loader.empty_ratio, lambda ratio: _write_empty(ratio, loader.looks)),
    ]
    if len(unread) < len(pending):
        words.append(f"{idle} of {len(pending) - len(unread)} workers without work")
    if loader.births:
        words.append(f"{count_of(loader.births, 'worker')} born in the last minute")
    if loader.pin_thread:
        words.append("pins memory")
    return lay_phrases("loader", words)


def _write_empty(ratio: float, looks: int) -> str:
    """Say at how many looks no batch was ready; a share of two looks would say too much."""
    empty = round(ratio * looks)
    if looks == 1:
        return "none ready at the only reading" if empty else "some ready at the only reading"
    return f"none ready at {empty} of {looks} readings"


def _write_workers(frame: Frame, reading: TextReading) -> list[str]:
    workers = [p for p in frame.processes if p.role is Role.WORKER]
    others = [p for p in frame.processes if p.role in (Role.COMPILE, Role.HELPER, Role.LAUNCHER)]
    lines = []
    for loader in frame.loader[:MOST_WORKERS]:
        lines += _write_loader(loader, reading)
    if workers:
        cpu = sum_known([p.cpu_pct for p in workers])
        rss = sum(p.rss_bytes for p in workers)
        lines.append(
            f"workers  {len(workers)}, CPU {reading.show('CPU', cpu, say_pct)} together,"
            f" RSS {format_bytes(rss)} together (shared pages more than once)"
        )
        headers = ("worker", "rank", "PID", "S", "CPU %", "threads", "runnable", "RSS", "read", "waits for")
        busiest = sorted(workers, key=lambda p: (-known_or(p.cpu_pct, 0.0), p.pid))
        rows = [
            (
                reading.show("worker number", p.worker),
                reading.show("rank", p.rank),
                str(p.pid),
                *_process_cells(p, reading),
                reading.show("bytes read", p.asked_read_bytes_s, say_bytes_s),
                reading.show("what it waits for", map_known(describe_wait, p.waits_for)),
            )
            for p in busiest[:MOST_WORKERS]
        ]
        lines += lay_columns(headers, rows, (headers[-1],), 2)
        if len(workers) > MOST_WORKERS:
            lines.append(f"  and {len(workers) - MOST_WORKERS} more that use no more CPU")
    if others:
        names = [f"{p.role.value} {p.pid} {p.label}" for p in others[:MOST_WORKERS]]
        more = len(others) - MOST_WORKERS
        lines += lay_phrases("others", [*names, f"and {more} more"] if more > 0 else names)
    return lines


def _write_output(frame: Frame, reading: TextReading) -> list[str]:
    lines = []
    for output in frame.output:
        age = reading.show("age of the log", output.last_write_age_s, format_seconds)
        lines.append(cut(f"log      {output.path}, last written {age} ago", WIDTH))
        lines += [cut(f"  : {line}", WIDTH) for line in output.lines]
    for event in frame.events[-MOST_EVENTS:]:
        lines += lay_paragraph("event", f"{format_clock(event.time)} {event.kind.value}: {event.text}")
    return lines


def _write_ages(frame: Frame) -> list[str]:
    groups = []
    for name in ("cpu", "threads", "io", "memory", "gpu", "stacks", "hook"):
        age = getattr(frame.ages_s, name)
        if is_known(age):
            groups.append(f"{name} {format_seconds(age)} ({getattr(frame.sources, name)})")
    return lay_phrases("ages", groups)


def write_once(frame: Frame) -> list[str]:
    """Write a Frame as lines of text, its verdict first.

    What was not read stands as "?" and with its reason at the end.
    """
    reading = TextReading()
    lines = write_verdict(frame, full=False)
    lines += _write_who(frame, reading)
    lines += _write_ranks(frame, reading)
    lines += write_cpu(frame, reading)
    lines += write_memory(frame, reading)
    lines += write_io(frame, reading)
    lines += _write_workers(frame, reading)
    lines += write_gpus(frame, reading)
    lines += write_network(frame, reading)
    lines += _write_output(frame, reading)
    lines += _write_ages(frame)
    cost = frame.self_
    rss = map_known(lambda own: own + cost.children_rss_bytes, cost.rss_bytes)
    own = (
        f"tpmon itself: CPU {reading.show('own CPU', cost.cpu_pct, say_pct)} of one core,"
        f" RSS {reading.show('own RSS', rss, format_bytes)},"
        f" target paused {cost.target_paused_ms:.0f} ms"
    )
    lines += lay_paragraph("cost", own)
    if isinstance(frame.stacks, Missing):
        reading.miss("Python stacks", Missing(frame.stacks.reason.removeprefix("stacks: ")))
    missed = reading.missed()
    if missed:
        lines += lay_paragraph("not read", missed)
    return lines
