"""What can be typed after ``tpmon trace``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from tpmon import settings

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def add_trace(
    commands: argparse._SubParsersAction[Parser],
    add_setting: Callable[[argparse.ArgumentParser, settings.Setting], None],
) -> Parser:
    """Add the command with its flags, and return its parser; ``add_setting`` adds one of the table."""
    trace = commands.add_parser(
        "trace",
        usage="tpmon trace FILE... [options]",
        description=(
            "Analyse traces of torch.profiler where they lie, plain or .gz: steps, verdict, and\n"
            "idle time of each device by cause, operators, kernels, memory, ranks side by side.\n"
            "On a terminal it is a screen with a strip of the time (? shows its keys); in a pipe, and with\n"
            "--plain, --top, --table, --csv or --json it is text. --against is one more tab of the screen.\n"
            "What of a file cannot be read is counted and said. docs/metrics.md has every formula.\n"
            "Memory snapshots of torch (.pickle): what lives on the device by stack, now and at the peak."
        ),
    )
    trace.add_argument(
        "files", metavar="FILE", nargs="+", help="traces, patterns, directories; also s3:// gs:// abfs://"
    )
    trace.add_argument("--top", metavar="N", help="rows of each table (default 10)")
    table_help = (
        "one table as CSV: steps, breakdown, gpus, gaps, operators, kernels, copies, memory, patterns, "
        "products, modules, frames, allocations, curve, shapes, lines, ranges, shares, host, idle, "
        "collectives, ranks; beside --against: changes; "
        "of a memory snapshot: devices, live, peak, oom"
    )
    trace.add_argument("--csv", metavar="TABLE", help=table_help)
    alone_help = (
        "one table alone: patterns, products (matmul by type), rates (of kernels), modules, frames (Python), "
        "allocations, ranges (record_function), curve (memory over time), "
        "and on request only: shapes, lines (operators by input shapes, by Python line)"
    )
    trace.add_argument("--table", metavar="TABLE", help=alone_help)
    against_help = "the trace before a change that FILE has: what got faster or slower, and whether it helped"
    trace.add_argument("--against", metavar="BEFORE", help=against_help)
    trace.add_argument("--target", metavar="1.5x", help="the speed-up hoped for, with --against")
    slice_help = "write a small trace for Perfetto or a ticket to the new file OUT (.json, .json.gz)"
    trace.add_argument("--slice", metavar="OUT", dest="slice_out", help=slice_help)
    trace.add_argument("--steps", metavar="A-B", help="of --slice: these steps, as they are numbered")
    gaps_help = "of --slice: the surroundings of the N longest gaps"
    trace.add_argument("--top-gaps", metavar="N", help=gaps_help)
    for setting in settings.OUTPUT_SETTINGS:
        if setting.key in ("json", "ascii"):
            add_setting(trace, setting)
        elif setting.key == "plain":
            add_setting(trace, setting._replace(help="print text on a terminal too, instead of the screen"))
    return trace
