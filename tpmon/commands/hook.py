"""The command ``hook``: into a running training and out again, or as one file to take along."""

from __future__ import annotations

import os

from tpmon.commands.command import (
    EXIT_CODES,
    Subcommand,
    Wanted,
    agree_to_hook,
    choose_ranks,
    file_argument,
    find_job,
    flag,
    parse_number,
    pid_argument,
    setting,
    write_result,
)
from tpmon.errors import ExitCode, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.report.text import Output, complain

EXPORT = "export"
_WHEN = (2020, 1, 1, 0, 0, 0)
"""Equal hooks make equal files."""


@dataclass(frozen=True, slots=True)
class HookOptions:
    """Hold what ``tpmon hook`` takes, as it was typed."""

    pid: Wanted = pid_argument()
    file: str = file_argument("of export alone: the file to write", may_be_left_out=True)
    rank: str | None = flag(
        "--rank", "that rank (default: the rank that PID belongs to, else the lowest here)", "K"
    )
    all_ranks: bool = flag("--all-ranks", "every rank on this machine, or none where one refuses")
    remove: bool = flag("--remove", "take out the hook that was put in by hand")
    yes: bool = flag("--yes", "without asking")
    job: bool = setting("job")
    readonly: bool = setting("readonly")
    json: bool = setting("json")
    ascii: bool = setting("ascii")


def run(options: HookOptions) -> int:
    """Put the hook in, take it out, or write it into a file; TpmonError where that is refused."""
    output = Output(1, options.ascii)
    if options.pid == EXPORT:
        return _export(options.file, output)
    if options.file:
        raise UsageError(f"tpmon hook PID takes no file, found {options.file!r}", "tpmon hook export FILE")
    if options.readonly:
        raise UsageError(
            "hook writes into the training, and --readonly forbids that", "leave one of the two out"
        )
    if options.rank is not None and options.all_ranks:
        raise exclude("--rank and --all-ranks")
    return _change(options, output)


def _change(options: HookOptions, output: Output) -> int:
    from tpmon.inject.late_hook import LateHook, install_everywhere
    from tpmon.model.text.late_words import describe_plan, describe_result

    said = "--rank: expected a whole number"
    rank: Applicable[int] = NOT_APPLICABLE
    if options.rank is not None:
        rank = parse_number(options.rank, 0, 1_000_000, said, "tpmon hook --help")
    job = find_job(options.pid)
    members = choose_ranks(job, rank, every=options.all_ranks)
    hooks = [LateHook(one.identity, tell=lambda text: complain(f"tpmon: {text}")) for one in members]
    if options.remove:
        results = tuple(one.remove() for one in hooks)
    else:
        if any(one.is_there() for one in hooks):
            raise UsageError("the hook is in it already", "tpmon attach shows what it counts")
        agree_to_hook(describe_plan([one.check().plan() for one in hooks]), yes=options.yes)
        try:
            results = install_everywhere(hooks)
        except KeyboardInterrupt:
            complain(f"tpmon: if it came in meanwhile, tpmon hook {job.asked_pid} --remove takes it out")
            raise
    write_result(output, results, lambda: map(describe_result, results), json=options.json)
    return ExitCode.OK


def _export(path: str, output: Output) -> int:
    if not path:
        raise UsageError("tpmon hook export takes a FILE", "tpmon hook export tpmon-hook.zip")
    where = os.path.abspath(path)
    if os.pathsep in where or not where.isprintable():
        raise UsageError(
            f"PYTHONPATH cannot hold {where!r}: it has a {os.pathsep!r} or a control character in it",
            "tpmon hook export tpmon-hook.zip",
        )
    write_export(path)
    import shlex

    output.write_lines(f"wrote {where}", f"Use: PYTHONPATH={shlex.quote(where)} python train.py")
    return ExitCode.OK


def write_export(path: str) -> None:
    """Write the hook into a new zip, whole or not at all; UsageError where one is there or cannot be."""
    import zipfile

    from tpmon.inject.payload import list_files

    part = f"{path}.{os.getpid()}.part"
    try:
        if os.path.lexists(path):
            raise FileExistsError(path)
        with open(part, "xb") as file:
            try:
                with zipfile.ZipFile(file, "w") as archive:
                    for name, source in list_files():
                        with open(source, "rb") as data:
                            archive.writestr(zipfile.ZipInfo(name, _WHEN), data.read())
                file.flush()
                os.rename(part, path)
            except BaseException:
                os.unlink(part)
                raise
    except FileExistsError as error:
        raise UsageError(f"{path} is there already", "another name, or remove it first") from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "a folder that can be written") from error


COMMAND = Subcommand(
    HookOptions,
    run,
    "hook [PID | NAME] [options]\n       tpmon hook export FILE",
    "Put the hook into a running training that has none, without a stop: exact steps, and captures. It says\n"
    "what it writes and asks first; it refuses whatever is not known to be safe (docs/late-hook.md).\n"
    "CPython 3.10 to 3.15 on x86-64, as the training's user or root. TPMON_NO_LATE_HOOK=1 in a training's\n"
    "environment forbids it.\n\n"
    "hook export FILE writes the hook into one file, a zip. With it on PYTHONPATH every Python process (3.8\n"
    "or newer) gets the hook once it imports torch: on another machine or in a container, without tpmon.\n\n"
    "  tpmon hook 4711\n"
    "  tpmon hook 4711 --remove\n"
    "  tpmon hook export /shared/tpmon-hook.zip\n"
    "  PYTHONPATH=/shared/tpmon-hook.zip torchrun --nproc-per-node 8 train.py",
    EXIT_CODES,
)
