"""Read how a process was started: wrappers in front of it, and whether with the hook."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence

from tpmon.foreign_file import Owner, open_foreign, read_owner
from tpmon.model.text.redaction import hide, hide_words
from tpmon.own_command import call_as_owner
from tpmon.probe.base.procread import read_table
from tpmon.probe.job.discovery import ancestry

_RUNTIME_11 = re.compile(r"/libcudart(-[0-9a-f]+)?\.so\.11(\.|$)")
"""The runtime of CUDA 11, also as a wheel of torch names the one within it."""


def read_ancestors(pid: int, proc: str = "/proc") -> list[list[str]]:
    """Return the command lines above a process, nearest first."""
    lines = []
    for at in list(ancestry(pid, read_table(proc)))[1:]:
        try:
            with open(f"{proc}/{at}/cmdline", "rb") as file:
                lines.append(file.read().rstrip(b"\0").decode("utf-8", "replace").split("\0"))
        except OSError:
            continue
    return lines


def uses_cuda(pid: int, proc: str = "/proc") -> bool:
    """Tell whether the driver's library is loaded: where it is not, CUDA was not begun with yet."""
    try:
        with open(f"{proc}/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return any("/libcuda.so" in line for line in file)
    except OSError:
        return False  # the hook asks again from within


def runs_cuda_11(pid: int, proc: str = "/proc") -> bool:
    """Tell whether the runtime of CUDA 11 is loaded, by the name of its file."""
    try:
        with open(f"{proc}/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return any(_RUNTIME_11.search(line.rstrip()) for line in file)
    except OSError:
        return False  # kineto of a process that cannot be read is asked for nothing


def stays_slower(pid: int, proc: str = "/proc") -> bool:
    """Tell whether a profile may leave launches slower: with CUDA, where kineto was not told to detach."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            detaches = b"TEARDOWN_CUPTI=1" in file.read().split(b"\0")
    except OSError:
        detaches = False
    return uses_cuda(pid, proc) and not detaches


_EXPORT_MARK = b"PK\x01\x02", b"tpmon_awaits_torch.py"
"""Of the directory at the end of the zip that ``tpmon hook export`` writes: an entry, and the name of one."""
_DIRECTORY_BYTES = 1 << 14
_MOST_PLACES = 64
_RESTART_CHARS = 2000
_GONE_WITH_THE_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
_INTERPRETER = re.compile(r"-?(?:(?:python|pypy)[0-9.]*t?|(?:ba|da|k|z)?sh)")
_NAMES_PROGRAM = re.compile(r"-[A-Za-z]*?[cm](.*)", re.DOTALL)


def is_armed(pid: int, proc: str = "/proc") -> bool:
    """Tell whether a process was started with the hook: by tpmon run, or by the zip of tpmon hook export."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            words = file.read().decode("utf-8", "surrogateescape").split("\0")
        owner = read_owner(pid, proc)
    except OSError:
        return False
    places = [place for word in words if word.startswith("PYTHONPATH=") for place in word[11:].split(":")]
    return any(
        place.endswith("/tpmon/hook/boot") or _is_export(f"{proc}/{pid}/root{place}", owner)
        for place in places[:_MOST_PLACES]
    )


def _is_export(path: str, owner: Owner) -> bool:
    """Tell by the last bytes of a file: a library that reads a zip believes what that claims of itself."""
    try:
        with os.fdopen(open_foreign(os.path.realpath(path), owner), "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _DIRECTORY_BYTES, 0))
            end = file.read(_DIRECTORY_BYTES)
    except (OSError, ValueError):
        return False
    return all(mark in end for mark in _EXPORT_MARK)


def write_restart(pid: int, proc: str = "/proc") -> str:
    """Write the line that starts a process again with the hook: its folder and its own arguments.

    One with a secret or an escape sequence in it is not repeated on a terminal, and hidden words could
    not be pasted: then it is the line without them. A program of another user is started as that user.
    """
    unknown = call_as_owner(pid, proc=proc)
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            words = file.read().rstrip(b"\0").decode("utf-8", "surrogateescape").split("\0")
        folder = os.readlink(f"{proc}/{pid}/cwd")
    except OSError:
        return unknown
    fits = sum(map(len, words)) <= _RESTART_CHARS
    plain = all(word.isprintable() for word in (folder, *words))
    if not (fits and plain) or hide_words(words) != tuple(words) or hide(folder) != folder:
        return unknown
    if not (_is_executable(words[0], folder, f"{proc}/{pid}") and can_start_again(words)):
        return unknown
    return f"cd {shlex.quote(folder)} && {call_as_owner(pid, f'run -- {shlex.join(words)}', proc)}"


def _is_executable(word: str, folder: str, process: str) -> bool:
    """Tell whether the first word of a process can be typed: a program may have put a title in its place."""
    if "/" in word:
        path = os.path.join(folder, word)
        return os.access(path, os.X_OK) or os.access(f"{process}/root{path}", os.X_OK)
    try:
        runs = os.path.basename(os.readlink(f"{process}/exe"))
    except OSError:
        runs = ""
    return bool(word) and (runs.startswith(word) or shutil.which(word) is not None)


def can_start_again(words: Sequence[str]) -> bool:
    """Tell whether a command names its program: not standard input, nor a pipe of the shell that is gone."""
    if any(word.startswith(_GONE_WITH_THE_SHELL) for word in words):
        return False
    if _INTERPRETER.fullmatch(os.path.basename(words[0])) is None:
        return True
    rest = list(words[1:])
    while rest:
        word, rest = rest[0], rest[1:]
        if found := _NAMES_PROGRAM.fullmatch(word):
            return bool(found[1] or rest)
        if not word.startswith("-") or word == "-":
            return word != "-"
        if word in ("-X", "-W"):
            rest = rest[1:]
    return False
