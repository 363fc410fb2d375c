"""Write the files of a bundle into a folder or a tar file, private, and never over existing files."""

from __future__ import annotations

import gzip
import os
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Union

from tpmon.errors import UsageError
from tpmon.model.frame import Pulse
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.text.job_words import name_verdict
from tpmon.model.units import count_of, format_bytes, format_seconds
from tpmon.model.verdict import Finding
from tpmon.probe.base.worker import read_within
from tpmon.record.step import JudgedFrame
from tpmon.view.layout import lay_paragraph

README = "README.txt"
PART_S = 10.0
"""How long one part may take to be written."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PACKED = (".gz", ".tgz")
_END = bytes(2 * tarfile.BLOCKSIZE)  # of a tar file


def _hand_over(fd: int) -> None:
    """Give a new file or folder to the user who called sudo: only root could read it else."""
    words = [os.environ.get(name, "") for name in ("SUDO_UID", "SUDO_GID")]
    if os.geteuid() or not all(word.isascii() and word.isdecimal() and len(word) <= 10 for word in words):
        return
    with suppress(OSError, OverflowError):  # a server that squashes root, or no such number: it stays root's
        os.fchown(fd, int(words[0]), int(words[1]))


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


class FolderSink:
    """Write a bundle into a folder of its own, of mode 0700."""

    def __init__(self, path: str) -> None:
        """Make the folder; UsageError where it is there already, or cannot be made."""
        self.path = path
        self._failed = False
        try:
            os.mkdir(path, 0o700)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise _refuse(path, error, "--out") from error
        _hand_over(self._folder)

    def add(self, name: str, data: bytes) -> None:
        """Write one new file of mode 0600; OSError where that fails."""
        fd = os.open(name, _NEW, 0o600, dir_fd=self._folder)
        try:
            _hand_over(fd)
            _write_all(fd, data)
        except BaseException:
            self._failed = True
            os.unlink(name, dir_fd=self._folder)
            raise
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the folder; remove it where nothing could be written."""
        os.close(self._folder)
        if self._failed:
            with suppress(OSError):
                os.rmdir(self.path)


class TarSink:
    """Write a bundle into one new tar file of mode 0600, packed when its name ends with .gz or .tgz.

    Each member is packed by itself and cut off again if unfinished: the others stay readable.
    """

    def __init__(self, path: str) -> None:
        """Make the file; UsageError where it is there already, or cannot be made."""
        self.path = path
        try:
            self._file = os.open(path, _NEW, 0o600)
        except OSError as error:
            raise _refuse(path, error, "--tar") from error
        self._is_packed = path.endswith(_PACKED)
        self._size = 0
        _hand_over(self._file)
        self._folder = os.path.basename(path).split(".tar")[0].removesuffix(".tgz") or "bundle"
        folder = self._head(self._folder)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o700
        try:
            self._append(_to_blocks(folder, b""))
        except OSError as error:
            os.close(self._file)
            os.unlink(path)
            raise _refuse(path, error, "--tar") from error

    def _head(self, name: str) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.mtime = int(time.time())
        info.mode = 0o600
        return info

    def add(self, name: str, data: bytes) -> None:
        """Append one file; OSError where that fails."""
        info = self._head(f"{self._folder}/{name}")
        info.size = len(data)
        self._append(_to_blocks(info, data))

    def _append(self, blocks: bytes) -> None:
        packed = gzip.compress(blocks) if self._is_packed else blocks
        try:
            _write_all(self._file, packed)
            self._size += len(packed)
        except BaseException:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise

    def close(self) -> None:
        """Write the end of the tar file; remove one that cannot be finished."""
        try:
            try:
                self._append(_END)
            finally:
                os.close(self._file)
        except OSError:
            with suppress(OSError):
                os.unlink(self.path)
            raise


Sink = Union[FolderSink, TarSink]


def _to_blocks(info: tarfile.TarInfo, data: bytes) -> bytes:
    """Return a member of a tar file: head, data, and zeros up to the end of a block."""
    return info.tobuf() + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _refuse(path: str, error: OSError, flag: str) -> UsageError:
    if isinstance(error, FileExistsError):
        return UsageError(f"{path} is there already, and nothing is written over", f"another name for {flag}")
    return UsageError(f"{path}: {error.strerror or error}", f"{flag} with a place that you may write to")


_HIDDEN = (
    "passwords, tokens and keys in command lines, environment and logs are replaced by ***, as far"
    " as their names or forms tell; of the environment only what changes training speed was read."
    " Names of hosts, users, files and functions, and network addresses, are in it: read it before"
    " you send it."
)


@dataclass(slots=True)
class Contents:
    """Collect what is in a bundle (name, bytes, description) and what is not (name, reason)."""

    files: list[tuple[str, int, str]] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)

    @contextmanager
    def naming(self, name: str, size_bytes: int, what: str) -> Iterator[None]:
        """Name a file while it is written, as a signal may end that at any time; not where it fails."""
        row = name, size_bytes, what
        self.files.append(row)
        try:
            yield
        except Exception:
            self.files.remove(row)
            raise
        except BaseException:
            self.files.remove(row)
            self.failures.append((name, "it was interrupted while this was written"))
            raise

    @property
    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(size for _, size, _ in self.files)


def add_part(
    sink: Sink,
    contents: Contents,
    name: str,
    what: str,
    write: Callable[[], Sequence[str] | bytes],
    *,
    limit_s: float = PART_S,
) -> None:
    """Write one file; one that fails, or takes too long, is named with its reason."""
    try:
        found = read_within(limit_s, write)
        if isinstance(found, Missing):
            contents.failures.append((name, found.reason))
            return
        data = found if isinstance(found, bytes) else to_text(found)
        with contents.naming(name, len(data), what):
            sink.add(name, data)
    except Exception as error:  # noqa: BLE001  # one part fails alone, and README says why
        reason = getattr(error, "strerror", "") or f"{type(error).__name__}: {error}"
        contents.failures.append((name, reason))


def close_bundle(sink: Sink, contents: Contents, head: Iterable[tuple[str, str]]) -> None:
    """Write README.txt, which names all that is there and all that is not, and close the sink."""
    try:
        sink.add(README, to_text(write_readme(head, contents)))
    except OSError as error:
        contents.failures.append((README, error.strerror or str(error)))
    finally:
        sink.close()


def write_readme(head: Iterable[tuple[str, str]], contents: Contents) -> list[str]:
    """Write what is in a bundle, what is not and why, and what was hidden."""
    lines: list[str] = []
    for label, text in head:
        lines += lay_paragraph(label, text)
    lines += ["", "files"]
    lines += [f"  {name:<18} {format_bytes(size):>6}  {what}" for name, size, what in contents.files]
    if contents.failures:
        lines += ["", "not in it"]
        for name, reason in contents.failures:
            lines += lay_paragraph("", f"{name}: {reason}")
    return [*lines, "", *lay_paragraph("hidden", _HIDDEN)]


def check_written(path: str, contents: Contents) -> None:
    """Raise UsageError where no file, or not the README, could be written."""
    failures = dict(contents.failures)
    if contents.files and README not in failures:
        return
    reason = failures.get(README) or next(iter(failures.values()), "nothing could be read")
    verb = "is" if len(contents.files) == 1 else "are"
    there = f"{count_of(len(contents.files), 'file')} of it {verb} there"
    there = there if contents.files else "nothing of it is there"
    raise UsageError(f"{path}: no whole bundle: {reason}; {there}", "--out with a place that has space")


def say_result(path: str, contents: Contents) -> list[str]:
    """Write where a bundle is and what is not in it."""
    count = f"{count_of(len(contents.files), 'file')}, {format_bytes(contents.size_bytes)}"
    lines = lay_paragraph("bundle", f"{path} ({count})")
    if contents.failures:
        names = ", ".join(name for name, _ in contents.failures)
        lines += lay_paragraph("not in it", f"{names}; {README} says why")
    return lines


def to_text(lines: Sequence[str]) -> bytes:
    """Encode lines as a text file."""
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def say_verdict(finding: Known[Finding]) -> str:
    """Write a verdict in a line."""
    return f"{name_verdict(finding)}: {finding.summary}" if is_known(finding) else f"none: {finding.reason}"


def write_versions(versions: Iterable[tuple[str, Known[str]]]) -> list[str]:
    """Write a version a line, or why it is unknown."""
    return [
        f"{name + ':':<20}{f'? {value.reason}' if isinstance(value, Missing) else value}"
        for name, value in versions
    ]


def describe_steps(steps: Sequence[JudgedFrame]) -> str:
    """Describe how far back a recording goes, and how it is read."""
    span_s = (steps[-1].read.taken_ns - steps[0].read.taken_ns) / 1e9 if steps else 0.0
    return f"the last {format_seconds(span_s)} as the screen showed them: tpmon replay recording.tpmon"


def describe_pulses(pulses: Sequence[Pulse]) -> str:
    """Describe how far back the main figures go: much further than the recording of a large job."""
    span_s = (pulses[-1].taken_ns - pulses[0].taken_ns) / 1e9
    return f"the main figures of the last {format_seconds(span_s)}, one reading a line"
