"""What can be typed after ``tpmon``: commands, flags, help."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tpmon import settings
from tpmon.errors import UsageError
from tpmon.report.text import Output

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
            "import tpmon.hook). One step is profiled first to size the rest; the price comes before the\n"
            "window begins, and steps, seconds, events, bytes, disk and memory have limits. The files are\n"
            "verified and summed up. In a run of tpmon run --kineto, or with KINETO_USE_DAEMON=1, kineto\n"
            "records instead where it can: it does not pause the loop. With neither it says what is\n"
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
    seconds_help = "end the window after so long (default: 60, or more if the steps need it)"
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
        "--cuda-profiler", help="open a range for the nsys that the run was started under instead", **switch
    )
    capture.add_argument(
        "--out",
        metavar="DIR",
        help="folder for the files (default: a new one here, named after the job)",
        **own,
    )
    capture.add_argument("--yes", help="also if the loop pauses for more than 2 s", **switch)
    for setting in (settings.JOB_SETTING, settings.READONLY_SETTING):
        add_setting(capture, setting)
    for setting in settings.OUTPUT_SETTINGS:
        if setting.key in ("json", "ascii"):
            add_setting(capture, setting)
    return capture


DESCRIPTION = "A live monitor that attaches to a running PyTorch training job and changes nothing in it."

COMMANDS = """\
commands:
  ps             list the training jobs of this machine (so does tpmon alone)
  attach PID     watch the job around a process: launcher, rank, worker, any of them
  diagnose PID   watch for a while and print the verdict: what holds the run back, what to do
  dump PID       where every rank, worker and thread is right now, and which one is elsewhere
  fold FILE...   join the dumps of several hosts
  sample PID     hot functions of a rank and its workers over some seconds
  capture PID    a profile of some steps of a run with the hook; its price first
  bundle PID     evidence for a ticket in a folder or tar file: stacks, Frames, verdict, logs, versions
  doctor [PID]   what may be read of a job and what not, why, and the command that changes it
  run -- PROGRAM start a training with the hook in it: exact steps; --attach watches it
  hook export F  the hook as one file, for containers and machines without tpmon
  trace FILE...  what a profiler trace shows: steps, idle gaps and their causes, operators, kernels
  demo           start a small real training and watch it

tpmon COMMAND --help has the options of a command.
Settings: flags, then TPMON_* variables, then tpmon/config.toml, see --print-config."""

EXIT_CODES = """\
exit codes:
  0 ended well, also when the job ended    3 no training job there
  1 a bug in tpmon, report file named      4 not permitted to read it
  2 wrong arguments or configuration       5 no terminal for the screen
  129 hang-up, 130 interrupt, 143 terminate"""

VERDICT_CODES = f"""\
{EXIT_CODES}
diagnose, and attach with check, end with the verdict (docs/verdicts.md):
  0 nothing is wrong    10 something holds it back    11 not enough evidence    12 hung
  of a job that ended: 0 exit 0, 10 it failed, 11 its exit status is not known"""

PROMISE = """\
Secrets are hidden in every output by name, form and randomness; one that looks like an ordinary word
stays readable: read what you send before you send it."""

DEMO_FRAMES = 3
_PID_DIGITS = 10
_UNTIMED = tuple(setting for setting in settings.LOOK_SETTINGS if setting.key != "interval")
OWN_PARSERS = ("run", "hook")  # what follows is a program's, or nearly nothing (``starting``)


class MainParser(argparse.ArgumentParser):
    """Parse arguments, refuse them in the manner of every other error, write help unbuffered."""

    command_names: tuple[str, ...] = ()
    """What may stand first, for the parser of all commands."""

    def __init__(self, **options: Any) -> None:
        """Take no short form of a flag; what was not given is not in what was parsed."""
        plain = argparse.RawDescriptionHelpFormatter
        super().__init__(
            formatter_class=plain, allow_abbrev=False, argument_default=argparse.SUPPRESS, **options
        )

    def error(self, message: str) -> Any:
        """Refuse the arguments.

        Raises:
            UsageError: always.
        """
        raise UsageError(message, f"{self.prog} --help")

    def print_help(self, file: Any = None) -> None:
        """Write the help to ``file``, by default to standard output without a buffer."""
        if file is not None:
            super().print_help(file)
            return
        Output(1, ascii_only=False).write_lines(self.format_help().rstrip("\n"))


def _add_setting(parser: argparse.ArgumentParser, setting: settings.Setting) -> None:
    options: dict[str, Any] = {"dest": setting.key, "help": setting.help}
    if setting is settings.STACKS_SETTING:
        parser.add_argument(setting.flag, action="store_true", **options)
        parser.add_argument("--stacks", action="store_false", **{**options, "help": "sample them (default)"})
    elif setting.kind is settings.ValueKind.SWITCH:
        parser.add_argument(setting.flag, action=argparse.BooleanOptionalAction, **options)
    else:
        short = ("-i",) if setting.key == "interval" else ()
        parser.add_argument(*short, setting.flag, metavar=setting.metavar, **options)


def _add_settings(parser: argparse.ArgumentParser, *wanted: settings.Setting) -> None:
    for setting in wanted:
        _add_setting(parser, setting)


def _add_pid(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", nargs="?", help="a process of the job; tpmon ps lists jobs")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print every setting and which source won, and end",
    )


def _add_trace(commands: argparse._SubParsersAction[MainParser]) -> MainParser:
    """Add ``tpmon trace`` with its flags, and return its parser."""
    trace = commands.add_parser(
        "trace",
        usage="tpmon trace FILE... [options]",
        description=(
            "Analyse traces of torch.profiler in place, plain or .gz: steps, verdict, and\n"
            "idle time of each device by cause, operators, kernels, memory, ranks side by side.\n"
            "On a terminal it is a screen with a timeline (? shows its keys); in a pipe, and with\n"
            "--plain, --top, --table, --csv or --json it is text. --against is one more tab of the screen.\n"
            "What cannot be read is counted and reported. docs/metrics.md has every formula.\n"
            "Memory snapshots of torch (.pickle): what is alive on the device by stack, now and at the peak."
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
    against_help = "the trace before a change: what got faster or slower in FILE, and whether it helped"
    trace.add_argument("--against", metavar="BEFORE", help=against_help)
    trace.add_argument("--target", metavar="1.5x", help="with --against: the speed-up hoped for")
    slice_help = "write a small trace for Perfetto or a ticket to the new file OUT (.json, .json.gz)"
    trace.add_argument("--slice", metavar="OUT", dest="slice_out", help=slice_help)
    trace.add_argument("--steps", metavar="A-B", help="with --slice: these steps, by their numbers")
    gaps_help = "with --slice: the N longest gaps and what is around them"
    trace.add_argument("--top-gaps", metavar="N", help=gaps_help)
    for setting in settings.OUTPUT_SETTINGS:
        if setting.key in ("json", "ascii"):
            _add_setting(trace, setting)
        elif setting.key == "plain":
            _add_setting(trace, setting._replace(help="print text on a terminal too, instead of the screen"))
    return trace


def build_parser(demo_epilog: str = "") -> MainParser:
    """Build the parser of all commands; each flag of a setting comes from the table in ``config``."""
    json_setting = next(setting for setting in settings.OUTPUT_SETTINGS if setting.key == "json")
    parser = MainParser(
        prog="tpmon",
        usage="tpmon [COMMAND] [PID | FILE...] [options]",
        description=f"{DESCRIPTION}\n\n{COMMANDS}",
        epilog=VERDICT_CODES,
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version and end")
    _add_setting(parser, json_setting)
    _add_common(parser)
    commands = parser.add_subparsers(prog="tpmon", dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    ps = commands.add_parser(
        "ps",
        usage="tpmon ps [options]",
        description="List the training jobs of this machine.",
    )
    _add_setting(ps, json_setting)
    attach = commands.add_parser(
        "attach",
        usage="tpmon attach PID | --job [options]",
        description=(
            "Watch a training job. PID may be any of its processes. Without an output flag: the screen.\n"
            f"{PROMISE}"
        ),
        epilog=VERDICT_CODES,
    )
    _add_pid(attach)
    _add_settings(attach, settings.JOB_SETTING, settings.CHECK_SETTING, settings.BELL_SETTING)
    diagnose = commands.add_parser(
        "diagnose",
        usage="tpmon diagnose PID | --job [options]",
        description="Watch a training job and print the verdict: what holds it back and what to do.",
        epilog=VERDICT_CODES,
    )
    _add_pid(diagnose)
    _add_settings(diagnose, settings.JOB_SETTING, *settings.DIAGNOSE_SETTINGS, *settings.LOOK_SETTINGS)
    dump = commands.add_parser(
        "dump",
        usage="tpmon dump PID | --job [options]",
        description=(
            "Show where every rank, loader worker and thread of a job is right now: equal stacks together,\n"
            "first the one that is not where the others are. Only --block and --native stop processes.\n"
            "The price of an option comes first."
        ),
        epilog=EXIT_CODES,
    )
    _add_pid(dump)
    dump.add_argument(
        "--rank", metavar="K", help="only these ranks and their workers: 3, or 0,2, or 0-3", action="append"
    )
    dump.add_argument(
        "--pid", dest="only_pid", metavar="P", help="only this process of the job", action="append"
    )
    dump.add_argument(
        "--block",
        action="store_true",
        help="stop a process that cannot be read otherwise, for some milliseconds; the time is printed",
    )
    dump.add_argument(
        "--native",
        action="store_true",
        help="with frames of C and C++; stops each process for 0.03 to 1 s; the time is printed",
    )
    dump.add_argument(
        "--locals",
        action="store_true",
        help="with the variables of your own frames; nothing is stopped",
    )
    dump.add_argument(
        "--fr-pipe",
        action="store_true",
        help="make NCCL write its record of collectives now (TORCH_NCCL_DEBUG_INFO_PIPE_FILE)",
    )
    fold = commands.add_parser(
        "fold",
        usage="tpmon fold FILE... | - [options]",
        description=(
            "Join the dumps that tpmon dump made as JSON on several hosts.\n"
            "Several dumps of one host count as one after the other."
        ),
        epilog=EXIT_CODES,
    )
    fold.add_argument(
        "files", metavar="FILE", nargs="+", help="one dump a line, as JSON; - is standard input"
    )
    _add_settings(dump, settings.JOB_SETTING, *settings.DUMP_SETTINGS, settings.READONLY_SETTING)
    _add_setting(fold, settings.DUMP_FORMAT_SETTING)
    for command in (dump, fold):
        command.add_argument(
            "--tree", action="store_true", help="merge the stacks of all threads into a tree"
        )
        _add_settings(command, *_UNTIMED)
    doctor = commands.add_parser(
        "doctor",
        usage="tpmon doctor [PID] [options]",
        description=(
            "Try every source that tpmon reads: of the job around PID, or of all your jobs here, and of\n"
            "this machine. Show what may be read and what not, why, and the one command that changes it.\n"
            "Nothing is stopped. Ends with 4 if something that is needed may not be read or is missing."
        ),
    )
    _add_pid(doctor)
    _add_settings(doctor, *_UNTIMED)
    _add_setting(doctor, settings.STACKS_SETTING)
    sample = _add_sample(commands)
    capture = add_capture(commands, _add_setting, EXIT_CODES)
    bundle = _add_bundle(commands)
    trace = _add_trace(commands)
    demo = commands.add_parser(
        "demo",
        usage="tpmon demo [options]",
        description=(
            "Start a small real training (torch on the CPU) and watch it; it ends with tpmon.\n"
            f"Without a terminal and an output flag: {DEMO_FRAMES} readings as text."
        ),
        epilog=demo_epilog,
    )
    _add_settings(demo, *settings.DEMO_SETTINGS)
    for command in (attach, demo):
        _add_settings(command, *settings.OUTPUT_SETTINGS)
    for command in (attach, diagnose, demo):
        _add_settings(command, settings.STACKS_SETTING, *settings.WATCH_SETTINGS)
    for command in (ps, attach, diagnose, dump, fold, sample, capture, doctor, bundle, trace, demo):
        _add_common(command)
        _add_setting(command, settings.SHOW_SETTING)
    parser.command_names = tuple(commands.choices)
    return parser


def _add_sample(commands: argparse._SubParsersAction[MainParser]) -> MainParser:
    sample = commands.add_parser(
        "sample",
        usage="tpmon sample PID | --job [options]",
        description=(
            "Sample the Python stacks of a rank and its loader workers for some seconds: the functions\n"
            "they are in (self: innermost; total: anywhere in the stack), shown as they come.\n"
            "The price comes first, and nothing is stopped. Ctrl-C ends it early and keeps the result."
        ),
        epilog=EXIT_CODES,
    )
    _add_pid(sample)
    rank_help = "that rank and its workers (default: the rank that PID belongs to, else the lowest here)"
    sample.add_argument("--rank", metavar="K", help=rank_help)
    sample.add_argument("--all", action="store_true", help="every rank, worker and helper of the job")
    sample.add_argument("--out", metavar="FILE", help="write --format to a new file and the table here")
    _add_settings(sample, settings.JOB_SETTING, *settings.SAMPLE_SETTINGS)
    _add_settings(sample, *_UNTIMED)
    _add_setting(sample, settings.STACKS_SETTING)
    return sample


def _add_bundle(commands: argparse._SubParsersAction[MainParser]) -> MainParser:
    bundle = commands.add_parser(
        "bundle",
        usage="tpmon bundle PID | --job [options]",
        description=(
            "Watch a job for some seconds and write evidence for a ticket into a private folder: Frames,\n"
            "verdict, three dumps of all stacks, what may be read, logs, versions.\n"
            "Nothing is stopped, and no file is overwritten.\n"
            f"{PROMISE}"
        ),
        epilog=EXIT_CODES,
    )
    _add_pid(bundle)
    bundle.add_argument("--out", metavar="DIR", help="a new folder (default: named after host, job, time)")
    bundle.add_argument("--tar", metavar="FILE", help="one new tar file instead; .tar.gz is packed")
    shared = [setting for setting in settings.OUTPUT_SETTINGS if setting.key in ("ascii", "interval")]
    _add_settings(bundle, settings.JOB_SETTING, *settings.BUNDLE_SETTINGS, *shared, settings.STACKS_SETTING)
    return bundle


def _list_bottlenecks() -> str:
    from tpmon.commands.demo import bottlenecks

    lines = [f"  {one.name:<16} {one.summary}" for one in bottlenecks()]
    return "\n".join(["bottlenecks:", *lines])


def ask_help(arguments: Sequence[str]) -> list[str]:
    """Return what was typed, with ``help dump`` as ``dump --help``."""
    return [*arguments[1:2], "--help"] if list(arguments[:1]) == ["help"] else list(arguments)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse what was typed; the flags of settings are in the result by their keys, where they were given.

    Raises:
        UsageError: for arguments that are not understood.
        SystemExit: after the help.
    """
    wants_help = "demo" in arguments and not {"-h", "--help"}.isdisjoint(arguments)
    parser = build_parser(_list_bottlenecks() if wants_help else "")
    word = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if word and word not in parser.command_names:
        raise _refuse_command(arguments, parser.command_names)
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        name = given.command or ""
        raise UsageError(
            f"{name or 'tpmon'} has no {' '.join(unknown)}", " ".join(f"tpmon {name} --help".split())
        )
    return given


def _refuse_command(arguments: Sequence[str], names: Sequence[str]) -> UsageError:
    """Refuse a word that is no command, and name what may be meant."""
    import shlex  # these two are needed for a mistake alone
    from difflib import get_close_matches

    word, *rest = arguments
    near = ["attach", word] if word.isdecimal() else get_close_matches(word, (*names, *OWN_PARSERS), 1)
    try_this = shlex.join(("tpmon", *near, *rest)) if near else "tpmon --help"
    return UsageError(f"{word} is no command", try_this)


def parse_pid(text: str) -> int:
    """Read a PID.

    Raises:
        UsageError: when it is no number.
    """
    if not text.isdecimal() or len(text) > _PID_DIGITS:
        raise UsageError(f"a PID is a number, found {text[:40]!r}", "tpmon ps lists the training jobs")
    return int(text)


def check_target(job_is_set: bool, asked: str | None, job_was_asked: bool) -> None:
    """Refuse a PID that is no number, none at all, or one beside --job.

    ``job_is_set`` is the setting, which a file may make; ``job_was_asked`` the flag of this call.

    Raises:
        UsageError: saying which.
    """
    if asked is not None:
        parse_pid(asked)
    if asked is not None and job_was_asked:
        raise UsageError("PID and --job exclude each other", "leave one of the two out")
    if asked is None and not job_is_set:
        raise UsageError(
            "which job? PID is missing", "tpmon ps lists the training jobs, --job takes the only one"
        )
