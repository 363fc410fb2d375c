"""What can be typed after ``tpmon capture``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

from tpmon import settings

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def add_capture(
    commands: argparse._SubParsersAction[Parser],
    add_setting: Callable[[argparse.ArgumentParser, settings.Setting], None],
    epilog: str,
) -> Parser:
    """Add the command with its flags, and return its parser; ``add_setting`` adds one of the table."""
    capture = commands.add_parser(
        "capture",
        usage="tpmon capture PID | --job [options]",
        description=(
            "Have torch.profiler record some steps inside a run that has the hook (tpmon run, or\n"
            "import tpmon.hook). One step is profiled first to size the rest; the price is said before the\n"
            "window begins, and steps, seconds, events, bytes, disk and memory are bounded. The files are\n"
            "verified and summed up. In a run of tpmon run --kineto, or with KINETO_USE_DAEMON=1, kineto\n"
            "records instead where it can: it does not stop the loop. With neither: says what is\n"
            "possible, and touches nothing."
        ),
        epilog=epilog,
    )
    own: dict[str, Any] = {"default": argparse.SUPPRESS}
    switch: dict[str, Any] = {"action": "store_true", **own}
    capture.add_argument("pid", metavar="PID", nargs="?", help="a process of the job; tpmon ps lists jobs")
    rank_help = "that rank (default: the rank that PID belongs to, else the lowest here)"
    capture.add_argument("--rank", metavar="K", help=rank_help, **own)
    capture.add_argument("--all-ranks", help="the same steps of every rank on this machine", **switch)
    steps_help = "steps to record (default: 5; with --seconds alone as many as end in it, 1000 at most)"
    capture.add_argument("--steps", metavar="N", help=steps_help, **own)
    seconds_help = "end the window after so long (default: 60, or more where the steps need it)"
    capture.add_argument("--seconds", metavar="S", help=seconds_help, **own)
    at_help = (
        "begin when this step begins, counted since this process began, as tpmon shows: within ten minutes"
    )
    capture.add_argument("--at", metavar="STEP", help=at_help, **own)
    capture.add_argument("--stacks", dest="with_stacks", help="with Python stacks: larger, slower", **switch)
    capture.add_argument(
        "--shapes", dest="with_shapes", help="with the shapes of tensors: larger, slower", **switch
    )
    capture.add_argument("--memory", dest="with_memory", help="with allocations: larger, slower", **switch)
    capture.add_argument("--snapshot", help="the CUDA allocator's history over the steps instead", **switch)
    capture.add_argument(
        "--cuda-profiler", help="open a range for the nsys in front of the run instead", **switch
    )
    capture.add_argument(
        "--out",
        metavar="DIR",
        help="folder for the files (default: a new one here, named after the job)",
        **own,
    )
    capture.add_argument("--yes", help="also where the loop stands still for more than 2 s", **switch)
    for setting in (settings.JOB_SETTING, settings.READONLY_SETTING):
        add_setting(capture, setting)
    for setting in settings.OUTPUT_SETTINGS:
        if setting.key in ("json", "ascii"):
            add_setting(capture, setting)
    return capture
