"""The command ``hook export``: the hook as one file, for machines and containers without tpmon."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from tpmon.commands.command import await_files
from tpmon.errors import ExitCode, UsageError
from tpmon.report.text import Output

HELP = """\
usage: tpmon hook export FILE

Write the hook into one file, a zip. With it on PYTHONPATH every Python process (3.8 or newer) gets the
hook once it imports torch: on another machine or in a container, without tpmon.

  tpmon hook export /shared/tpmon-hook.zip
  PYTHONPATH=/shared/tpmon-hook.zip torchrun --nproc-per-node 8 train.py

tpmon attach reads it from outside as usual. With tpmon at hand, tpmon run does the same without a file."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_WHEN = (2020, 1, 1, 0, 0, 0)
"""Equal hooks make equal files."""


def run(arguments: Sequence[str]) -> int:
    """Do what ``tpmon hook`` asks for; UsageError for anything but ``export`` and a FILE that can be."""
    output = Output(1, ascii_only=False)
    await_files(arguments[1:2])
    if {"-h", "--help"} & set(arguments) or not arguments:
        output.write_lines(HELP)
        return ExitCode.OK if arguments else ExitCode.USAGE
    if len(arguments) != 2 or arguments[0] != "export" or arguments[1].startswith("-"):
        raise UsageError("tpmon hook takes: export FILE", "tpmon hook export tpmon-hook.zip")
    path = arguments[1]
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


def list_files() -> Iterator[tuple[str, str]]:
    """Return each file's name in the zip and where it is here.

    The package lies below ``lib``: a tpmon of the same Python is not hidden by it.
    """
    yield "lib/tpmon/__init__.py", os.path.join(_PACKAGE, "__init__.py")
    for folder in ("boot/", "", "bus/", "capture/"):
        place = "" if folder == "boot/" else f"lib/tpmon/hook/{folder}"
        for name in sorted(os.listdir(os.path.join(_PACKAGE, "hook", folder))):
            if name.endswith(".py"):
                yield f"{place}{name}", os.path.join(_PACKAGE, "hook", folder, name)
