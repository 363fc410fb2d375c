"""Bound a capture before it begins, and write its file: ``.part`` until whole, 0600, never over another.

The size of a step is known from a probe: one step that was profiled, measured and thrown away.
"""

from __future__ import annotations

import errno
import os
import re

from tpmon.hook.bus import wire_capture
from tpmon.hook.bus.headroom import ends_at_limit, read_disk_left, read_file_limit, read_memory_left
from tpmon.hook.capture.recorder import PART, TEMPORARY, Recorder, rename_cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tpmon.hook.bus.wire_capture import Progress, Request
    from tpmon.hook.capture.recorder import MemoryRecorder, Range

_DISK_SPARE = 64 << 20
"""Bytes of disk that stay free for the run's log and the beginning of its next checkpoint."""

_LARGEST = 4 << 30
"""Larger than any file within the bounds of time and memory; before a probe no size is known."""

_MIB = 1 << 20
_ODD = re.compile(r'[\x00-\x1f\x7f"\\]|://')


class CaptureFile:
    """Hold where a capture is written and how large it may get.

    ``sizes`` is what probes found: by options, events and bytes in so many steps or ns.
    """

    def __init__(self, request: Request, sizes: dict[int, tuple[int, int, int]]) -> None:
        self._request = request
        self._sizes = sizes
        self._part = ""

    def refuse(self) -> str:
        """Make the folder; say why the file would not fit or cannot be written, "" when it can."""
        request = self._request
        folder = request.folder
        if not _can_write_to(folder):
            return "torch cannot write to a path with a quote, a backslash, :// or a control character in it"
        events = size = 0
        if request.kind == wire_capture.KIND_SNAPSHOT:
            size = request.entries * wire_capture.ENTRY_BYTES
        if request.kind == wire_capture.KIND_CAPTURE:
            told = self._sizes.get(request.options)
            if told is None:
                return "no step was probed with these options"
            asked = request.longest_ns if request.is_timed else request.steps
            events, size = told[0] * asked // told[2], told[1] * asked // told[2]
        if events > request.most_events:
            return f"about {events:,} events, more than {request.most_events:,}: ask for fewer steps"
        if size > request.most_bytes:
            return f"about {size // _MIB} MiB, more than {request.most_bytes // _MIB}: ask for fewer steps"
        memory = wire_capture.reckon_memory(request.options, events) or size
        shortage = wire_capture.name_shortage(memory, read_memory_left())
        if shortage:
            return shortage
        try:
            if not os.path.isdir(folder):
                _make(folder)
            if not os.access(folder, os.W_OK | os.X_OK):
                return f"{folder} is not writable for the training"
            left = read_disk_left(folder)
        except OSError as error:
            return f"{folder}: {error.strerror or error}"
        most, deadly = read_file_limit(), ends_at_limit()
        if (_LARGEST if deadly else size) > most:
            end = ", and the kernel would end the program at it (SIGXFSZ)" if deadly else ""
            return f"the training may write files of {most / _MIB:.1f} MiB at most (ulimit -f){end}"
        if size + _DISK_SPARE > left:
            return f"needs {(size + _DISK_SPARE) // _MIB} MiB of disk, {left // _MIB} are left in {folder}"
        return ""

    def exceeds(self, steps: int) -> bool:
        """Tell whether so many steps exceed events or bytes, by what the probe found."""
        told = self._sizes.get(self._request.options)
        return told is not None and (
            told[0] * steps > self._request.most_events or told[1] * steps > self._request.most_bytes
        )

    def write_window(self, recorder: Recorder | MemoryRecorder | Range, told: Progress, *, cut: bool) -> None:
        """Write the file of a window and note its size; ``cut``: its last step did not end.

        Raises:
            OSError: when it is not whole, or its name is taken; then it is removed.
        """
        request = self._request
        name = wire_capture.file_name(request.name, told.rank - 1, told.first_step, recorder.ending)
        path = os.path.join(request.folder, name)
        _try_writing(path + PART)
        self._part = path + PART  # from here on it is ours to remove
        try:
            recorder.save(self._part)
            if cut and request.kind == wire_capture.KIND_CAPTURE:
                rename_cut(self._part, told.first_step + told.steps_done)
            os.chmod(self._part, 0o600)
            _unlink(self._part + TEMPORARY)  # where torch wrote none
            size = os.stat(self._part).st_size
            if request.kind == wire_capture.KIND_PROBE:
                with open(self._part, "rb") as file:
                    told.events, _ = wire_capture.count_events(file.fileno())
                per = told.ended_ns - told.began_ns if request.is_timed else 1
                self._sizes[request.options] = (max(told.events, 1), max(size, 1), per)
                self.remove()
            else:
                _publish(self._part, path)
        except BaseException:
            self.remove()
            raise
        told.bytes = size

    def remove(self) -> None:
        """Remove the partial files."""
        if self._part:
            _unlink(self._part)
            _unlink(self._part + TEMPORARY)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


def _can_write_to(folder: str) -> bool:
    """Tell whether torch writes to this path: it drops some characters of paths, and writes elsewhere."""
    try:
        folder.encode()
    except UnicodeEncodeError:
        return False
    return _ODD.search(folder) is None


def _make(folder: str) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):  # another rank may have been first
            raise


def _try_writing(path: str) -> None:
    """Raise OSError where nothing can be written: torch would print that on the run's standard error."""
    if read_disk_left(os.path.dirname(path)) < _DISK_SPARE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    # torch writes into the temporary file, through a link too, and with a mode that lets others read it.
    made: dict[str, int] = {}
    try:
        for one in (path + TEMPORARY, path):
            made[one] = os.open(one, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except BaseException:
        for one in made:
            _unlink(one)
        raise
    finally:
        for descriptor in made.values():
            os.close(descriptor)


def _publish(part: str, path: str) -> None:
    """Give a file its name by a link, which, unlike a rename, fails where the name is taken."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.rename(part, path)
    else:
        os.unlink(part)
