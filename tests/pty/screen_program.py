"""Run the real screen on scripted Frames, as the command line would, without a training process.

``python -m tests.pty.screen_program --help`` names the situations that a test can ask for.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib.abc import MetaPathFinder
from pathlib import Path

from tests.frames import (
    make_cpu,
    make_event,
    make_evidence,
    make_finding,
    make_frame,
    make_gpu,
    make_process,
    make_rank,
    make_worker,
)
from tests.goldens.dump_views import hung_three_looks
from tpmon.errors import ExitCode, NoTargetError, TpmonError
from tpmon.model.frame import EventKind, Frame, Window
from tpmon.model.results.doctor import DumpUpdate, Update
from tpmon.model.verdict import Kind


def script_frame(number: int, processes: int = 3, gpus: int = 0) -> Frame:
    """Build the Frame of second ``number``: a job of this size, in which every figure moves."""
    base = make_frame()
    ranks = max(1, gpus)
    rows = [make_process(4211 + rank, rank=rank, local_rank=rank) for rank in range(ranks)]
    rows += [
        make_worker(5000 + i, worker=i // ranks, rank_pid=4211 + i % ranks, rank=i % ranks)
        for i in range(max(0, processes - ranks))
    ]
    moved = tuple(
        replace(
            row,
            cpu_pct=(37 * (i + 1) + 13 * number) % 400 + 0.5,
            runnable=((i + number) % 33) + 0.3,
            rss_bytes=row.rss_bytes + ((i * 7 + number) % 90) * (1 << 20),
            switches_s=float((i * 97 + number * 31) % 6000),
        )
        for i, row in enumerate(rows)
    )
    return replace(
        base,
        taken=base.taken + timedelta(seconds=number),
        taken_ns=time.monotonic_ns(),
        processes=moved,
        ranks=tuple(
            make_rank(4211 + rank, rank=rank, local_rank=rank, gpu=rank, where_unchanged_s=0.1 * (number % 9))
            for rank in range(ranks)
        ),
        cpu=make_cpu(budget_cores=64.0, used_cores=30 + (number * 7) % 30, runnable=60.0 + number % 50, host_cores=64),
        gpus=tuple(
            make_gpu(i, sm_pct=float((41 + 7 * i + 13 * number) % 100), power_w=400.0 + (i + number) % 90)
            for i in range(gpus)
        )
        if gpus
        else base.gpus,
        facts=f"{processes - ranks} workers · second {number}",
        events=(make_event(f"second {number}"),) if number % 5 == 0 else (),
    )


def judge_frame(frame: Frame, number: int) -> Frame:
    """Give a Frame a verdict of which every figure moves."""
    share = 50.0 + number % 9
    finding = make_finding(
        share_pct=share,
        share_low_pct=share - 4,
        share_high_pct=share + 4,
        summary=f"the ranks wait for a batch {share:.0f} % of the time while their workers compute transforms",
        evidence=(
            make_evidence("no batch ready", value=80.0 + number % 7),
            make_evidence("CPUs used", value=frame.cpu.used_cores, unit="CPUs", source="/proc stat"),
            make_evidence("runnable", value=frame.cpu.runnable, unit="threads", source="/proc schedstat"),
            make_evidence("GPU busy", value=40.0 + number % 11, source="NVML, 8 cards", age_s=0.1 * (number % 8)),
            make_evidence("waiting for a CPU", value=2.0 + number % 3, source="/proc schedstat"),
        ),
        against=(make_evidence("batches ready", value=float(number % 4), unit="batches", source="loader pipes"),),
        ruled_out=tuple(f"cause {n} ({(number + n) % 5} % of periods)" for n in range(12)),
        unknown=("copy to the device (no hook in the training process)", "steps (no hook)"),
    )
    return replace(frame, verdict=finding, notes=("power-limited: 5 of 8 cards",))


def turn_bad(frame: Frame, number: int, at: int) -> Frame:
    """Let a job compute until second ``at``, and starve from then on, with the events that the judge writes."""
    if number >= at:
        said = "verdict: data-bound (cpu-transform), was compute-bound (cpu)"
        judged = judge_frame(frame, number)
    else:
        said = "verdict: compute-bound (cpu)"
        judged = replace(frame, verdict=make_finding(kind=Kind.COMPUTE_BOUND, cause="cpu", summary="it computes"))
    told = (make_event(said, kind=EventKind.VERDICT),) if number in (0, at) else ()
    return replace(judged, events=judged.events + told)


def play(sink: Callable[[Update], None], options: argparse.Namespace) -> None:
    """Send Frames as a session thread does; with --stuck it then blocks for ever."""
    window = Window()
    for number in range(options.frames):
        try:
            frame = script_frame(number, options.processes, options.gpus)
            if options.bad_at:
                frame = turn_bad(frame, number, options.bad_at)
            window.append(judge_frame(frame, number) if options.judged else frame)
        except TypeError:
            os._exit(99)  # a builder changed; the screen would hide the traceback
        sink(Update(window.last(), window.pulses()))
        time.sleep(options.every)
    if options.stuck:
        os.read(os.pipe()[0], 1)  # as a read on a dead mount or in a wedged driver


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--judged", action="store_true", help="each Frame has a verdict")
    parser.add_argument("--bad-at", type=int, default=0, help="the verdict turns bad in this second")
    parser.add_argument("--bell", action="store_true", help="ring when it does")
    parser.add_argument("--stuck", action="store_true", help="the session thread never returns")
    parser.add_argument("--crash-at", type=int, default=0, help="the painter raises at this painting")
    parser.add_argument("--crash-input", action="store_true", help="the thread that reads keys raises")
    parser.add_argument("--crash-leave", action="store_true", help="giving the terminal back raises")
    parser.add_argument("--block-at", type=int, default=0, help="the painter never returns from this painting")
    parser.add_argument("--crash-run", action="store_true", help="the loop of the app raises")
    parser.add_argument("--load-s", type=float, default=0.0, help="importing textual takes so much longer")
    parser.add_argument("--wrap", action="store_true", help="what ends importing textual is raised as another error")
    parser.add_argument("--no-target", action="store_true", help="the job ends before it is read")
    parser.add_argument("--no-textual", action="store_true", help="textual cannot be imported")
    parser.add_argument("--ignore-hang-up", action="store_true", help="start as nohup does")
    parser.add_argument("--block-hang-up", action="store_true", help="no SIGHUP reaches the process")
    parser.add_argument("--stop-blocks", action="store_true", help="ending the session never returns")
    parser.add_argument("--ascii", action="store_true")
    parser.add_argument("--thread-file", default="", help="write the thread id of the session here")
    parser.add_argument("--source", nargs=1, default=[], help="the odd rank is in line 3 of this file")
    options = parser.parse_args()
    if options.ignore_hang_up:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if options.block_hang_up:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        return draw(options)
    except TpmonError as error:
        sys.stderr.write(f"tpmon: {error.what}\nTry: {error.try_this}\n")
        return error.exit_code


class SlowTextual(MetaPathFinder):
    """Find textual as late as a slow file system does, or not at all."""

    def __init__(self, seconds: float, *, broken: bool, wraps: bool) -> None:
        self.seconds = seconds
        self.broken = broken
        self.wraps = wraps

    def find_spec(self, fullname, path, target=None):
        if fullname == "textual":
            end = time.monotonic() + self.seconds
            Path(os.environ["XDG_STATE_HOME"], "loads").touch()
            try:
                while time.monotonic() < end:
                    time.sleep(0.02)
            except SystemExit as error:
                raise RuntimeError("Error calling __set_name__") if self.wraps else error from error
            if self.broken:
                raise ImportError("injected: no textual here")


def point_to(update: DumpUpdate, path: str) -> DumpUpdate:
    """Move the innermost line of the first group to line 3 of a file that is there."""
    first, *others = update.stacks
    last = first.lines[-1]
    moved = replace(last, frame=replace(last.frame, file=path, line=3))
    return replace(update, stacks=(replace(first, lines=(*first.lines[:-1], moved)), *others))


def draw(options: argparse.Namespace) -> int:
    """Run the screen with the real painters, or with one that fails when asked to."""
    from tpmon.ui.monitor import layout as panes
    from tpmon.ui.monitor import start as starting
    from tpmon.ui.monitor.controls import Controls, Order, Result, ScreenOptions

    painted = 0
    dumps: list[Callable[[Result], None]] = []

    def paint(view, size, keys):
        nonlocal painted
        painted += 1
        if painted == options.crash_at:
            raise RuntimeError("injected\x1b[31m failure")
        if painted == options.block_at:
            Path(os.environ["XDG_STATE_HOME"], "blocked").touch()
            os.read(os.pipe()[0], 1)
        return panes.paint_screen(view, size, keys)

    def fail(*_arguments: object) -> None:
        raise RuntimeError("injected failure")

    if options.load_s or options.no_textual:
        sys.meta_path.insert(0, SlowTextual(options.load_s, broken=options.no_textual, wraps=options.wrap))
    if options.crash_input or options.crash_leave or options.crash_run:
        from tpmon.ui.monitor import app
    if options.crash_input:
        app.ScreenDriver.run_input_thread = fail
    if options.crash_leave:
        app.ScreenDriver.stop_application_mode = fail
    if options.crash_run:
        app.MonitorApp._shutdown = fail

    def start(sink: Callable[[Update], None], dump_sink: Callable[[Result], None]) -> None:
        if options.no_target:
            raise NoTargetError("the job ended", "start it again")
        dumps.append(dump_sink)
        session = threading.Thread(target=play, args=(sink, options), daemon=True)
        session.start()
        if options.thread_file:
            Path(options.thread_file).write_text(str(session.native_id))

    def stop() -> None:
        if options.stop_blocks:
            os.read(os.pipe()[0], 1)

    def ask(_order: Order) -> None:
        """Answer at once with three looks."""
        update = hung_three_looks()
        for path in options.source:
            update = point_to(update, path)
        dumps[0](update)

    result = starting.run_screen(
        ScreenOptions(interval_s=1.0, ascii_only=options.ascii, bell=options.bell),
        start,
        Controls(lambda _seconds: None, stop, ask, write=str, trace_command=lambda path: ("cat", path)),
        paint,
    )
    if result.text:
        sys.stdout.write(result.text + "\n")
    if result.complaint:
        sys.stderr.write(result.complaint + "\n")
    return result.exit_code


if __name__ == "__main__":
    raise SystemExit(ExitCode(main()))
