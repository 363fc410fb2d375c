"""Keep the files of a request in a private folder, below the root that the target has."""

from __future__ import annotations

import contextlib
import os
import stat
import time

from tpmon.foreign_file import FOLDER, NEW_FILE, Owner, hand_over, open_foreign
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.probe.base.procread import PROC

_PLACES = ("tmp", "var/tmp", "dev/shm")
_PREFIX = ".tpmon-"
FILES = ("hook", "run.py", "answer", "answer.part")
_ANSWER_BYTES = 4096
_STALE_S = 600.0


class PrivateFolder:
    """Hold the folder: its path for the target, and descriptors for this process."""

    def __init__(self, pid: int, owner: Owner, data: bytes, proc: str = PROC) -> None:
        """Make it with ``data`` in it, for the target's user alone; RefusedError where none can be made.

        Where a place is full, the next is tried.
        """
        self._owner = owner
        self._name = f"{_PREFIX}{os.getpid()}-{_name_space()}-{os.urandom(6).hex()}"
        why = ""
        for place in _PLACES:
            try:
                self._above = _open_below(f"{proc}/{pid}/root", place)
            except OSError as error:
                why = f"/{place}: {error.strerror}"
                continue
            try:
                os.mkdir(self._name, 0o700, dir_fd=self._above)
                self._folder = os.open(self._name, FOLDER | os.O_NOFOLLOW, dir_fd=self._above)
            except OSError as error:
                why = f"/{place}: {error.strerror}"
                os.close(self._above)
                continue
            self.path = f"/{place}/{self._name}"
            try:
                self.write("hook", data)
            except RefusedError as error:
                self.remove()
                why = str(error.__cause__)
                continue
            return
        raise RefusedError(RefusalReason.NO_PLACE, why)

    def write(self, name: str, data: bytes) -> None:
        """Write a new file, readable for the target's user alone."""
        try:
            descriptor = os.open(name, NEW_FILE, 0o600, dir_fd=self._folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                hand_over(descriptor, self._owner)
        except OSError as error:
            raise RefusedError(RefusalReason.NO_PLACE, f"{self.path}: {error.strerror}") from error

    def open_up(self) -> None:
        """Give the folder to the target's user, once all is in it."""
        hand_over(self._folder, self._owner)

    def read_answer(self) -> tuple[str, str] | None:
        """Return word and detail of what the target answered; None before."""
        try:
            descriptor = open_foreign("answer", self._owner, _ANSWER_BYTES, folder=self._folder)
        except OSError:
            return None
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            word, _, detail = file.read(_ANSWER_BYTES).partition("\n")
        return word, detail

    def has_begun(self) -> bool:
        """Tell whether the script has begun: it makes the file of its answer first."""
        return any(name.startswith("answer") for name in os.listdir(self._folder))

    def forget_answer(self) -> None:
        """Remove an answer, before the same is asked again."""
        for name in ("answer", "answer.part"):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._folder)

    def remove(self) -> None:
        """Remove all of it."""
        for name in FILES:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._folder)
        with contextlib.suppress(OSError):
            os.rmdir(self._name, dir_fd=self._above)
        self._sweep()
        os.close(self._folder)
        os.close(self._above)

    def _sweep(self) -> None:
        """Remove folders of the same user that a killed tpmon left."""
        for name in os.listdir(self._above):
            if not name.startswith(_PREFIX):
                continue
            with contextlib.suppress(OSError):
                found = os.stat(name, dir_fd=self._above, follow_symlinks=False)
                old = time.time() - found.st_mtime > _STALE_S
                if (
                    not (old or _has_ended(name))
                    or found.st_uid != self._owner.uid
                    or not stat.S_ISDIR(found.st_mode)
                ):
                    continue
                folder = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=self._above)
                try:
                    for one in FILES:
                        with contextlib.suppress(OSError):
                            os.unlink(one, dir_fd=folder)
                finally:
                    os.close(folder)
                os.rmdir(name, dir_fd=self._above)


def _has_ended(name: str) -> bool:
    """Tell whether the tpmon that made a folder is not there any more, by the PID in its name.

    False for one in another PID namespace, whose PIDs mean nothing here.
    """
    pid, space, _ = (*name[len(_PREFIX) :].split("-"), "", "")[:3]
    return space == _name_space() and not os.path.exists(f"{PROC}/{pid}")


def _name_space() -> str:
    """Return the number of the PID namespace in which this process counts."""
    return str(os.stat(f"{PROC}/self/ns/pid").st_ino)


def _open_below(root: str, path: str) -> int:
    """Open a folder below a root, following no link: one could lead out of a container."""
    folder = os.open(root, FOLDER)
    for name in path.split("/"):
        try:
            inner = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder
