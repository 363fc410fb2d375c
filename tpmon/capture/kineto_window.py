"""Lead one window that kineto records by itself, and make the environment of ``tpmon run --kineto``.

kineto records whole updates of the optimizer and writes in a thread of its own, without the GIL: the loop
goes on. An order cannot be taken back; where nobody wants it any more, its folder is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

from tpmon.capture.bus import name_end, read_image
from tpmon.capture.dialog import STAYS_SLOWER, UNWANTED, CaptureAsker, WindowLead, say_plan_of_kineto
from tpmon.capture.files import MOST_READ, hold, make_anew, name_part
from tpmon.capture.kineto_daemon import (
    LONGEST_FOLDER,
    OURS,
    Daemon,
    KinetoClient,
    Order,
    TakenError,
    is_sayable,
    parse_sockets,
)
from tpmon.capture.plan import say_count, size_window
from tpmon.errors import UsageError
from tpmon.foreign_file import FOLDER, hand_over, open_foreign, own, read_owner
from tpmon.hook.bus import wire_capture
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.model.results.capture import CaptureAsked, CaptureStage, CaptureState

_LISTEN_S = 0.1
_ASKS_S = 20.0
"""kineto asks every second under ``tpmon run --kineto``, else every five."""

_WAIT_S = 600.0
_SPARE_S = 120.0
_SETTLES_S = 10.0
"""How long after kineto is free again its file may be missing: it renames it last."""

_UNTOLD = Missing("kineto does not say it")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Hold how an order ended; a verified one has its file open as ``source``."""

    state: CaptureState
    reason: str
    source: int = -1


class KinetoWindow(WindowLead[Recorded]):
    """Lead one capture of one process."""

    def __init__(
        self,
        client: KinetoClient,
        asked: CaptureAsked,
        asker: CaptureAsker,
        *,
        memory_left: Callable[[], Known[int]],
        stays_slower: bool = False,
        hooked: bool = False,
    ) -> None:
        """Take the daemon's place; ``memory_left`` reads how many bytes the process may still take.

        ``hooked``: a hook can write its conditions.

        Raises:
            TakenError: where the place is taken, or kineto cannot be given the folder's name.
        """
        super().__init__(asked, asker, stays_slower=stays_slower)
        self._client = client
        self._memory_left = memory_left
        self._hooked = hooked
        self._image = read_image(client.process.pid)
        self._opened = contextlib.ExitStack()
        self._held = self.folder = -1
        self.waited_ns = (0, 0)
        """From when to when the last order was waited for: the steps between are bare."""
        self.owner = own()
        self._folder = os.path.join(asked.folder, name_part(client.process.pid))
        if not is_sayable(self._folder):
            raise TakenError(
                f"kineto cannot be given this folder: {asked.folder!r}",
                "tpmon capture --out FOLDER, a plain one",
            )
        self._daemon = Daemon(client)

    def run(self) -> Recorded:
        """Record one update to size the rest, then as many as fit; UsageError where none does."""
        try:
            if shortage := self._name_shortage(0):
                return Recorded(CaptureState.REFUSED, shortage)
            plan = say_plan_of_kineto(
                self.asked, self._client.process.pid, hooked=self._hooked, stays_slower=self._stays_slower
            )
            if declined := self._await_yes(CaptureStage.PLANNED, plan):
                return declined
            self._make_folder()
            if self._stays_slower:
                self._say(STAYS_SLOWER)
            self._say("asking kineto for one update first, to size the rest")
            probe = self._record(1, "probe")
            if probe.state is not CaptureState.VERIFIED:
                return probe
            events, size = wire_capture.count_events(probe.source)
            price = self.price = size_window(self.asked, [(events, size, 0.0)])
            if not price.steps:
                raise UsageError(
                    f"one update has {events:,} events: more than one window may have",
                    "leave --stacks, --shapes and --memory out",
                )
            if shortage := self._name_shortage(price.memory_bytes):
                return Recorded(CaptureState.REFUSED, shortage)
            left = os.statvfs(self._folder)
            if price.bytes * 2 > left.f_bavail * left.f_frsize:
                return Recorded(CaptureState.REFUSED, f"too little space in {self.asked.folder}")
            said = (
                f"{say_count(price.steps, 'update')}: about {price.memory_bytes / 2**20:.1f} MiB of memory"
                f" for a while and {price.bytes / 2**20:.1f} MiB of disk; the loop goes on while kineto"
                " writes"
            )
            self._say(said)
            if declined := self._await_yes(CaptureStage.PRICED, (said,)):
                return declined
            return self._record(price.steps, "trace")
        except OSError as error:
            return Recorded(CaptureState.FAILED, f"{error.strerror or error}: {self.asked.folder}")

    def close(self) -> None:
        """Give the daemon's place back, and remove kineto's folder."""
        self._daemon.close()
        if self._held >= 0:
            with contextlib.suppress(OSError):
                for entry in os.listdir(self._held):
                    os.unlink(entry, dir_fd=self._held)
                os.rmdir(os.path.basename(self._folder), dir_fd=self.folder)
        self._opened.close()
        self._held = self.folder = -1

    def _name_shortage(self, size: int) -> str:
        left = self._memory_left()
        if isinstance(left, Missing):
            return f"how much memory is left could not be read: {left.reason}"
        return wire_capture.name_shortage(size, left)

    def _find_ended(self) -> Recorded | None:
        end = name_end(self._client.process, self._image)
        return Recorded(CaptureState.GONE, end) if end else None

    def _end_all(self, state: CaptureState, reason: str) -> Recorded:
        return Recorded(state, reason)

    def _pause(self) -> None:
        self._daemon.listen(_LISTEN_S)

    def _make_folder(self) -> None:
        """Make the folder that kineto writes into, and give it to the user of the process."""
        pid = self._client.process.pid
        self.owner = read_owner(pid)
        if made := self.asked.anew or not os.path.isdir(self.asked.folder):
            make_anew(self.asked.folder, (pid,))
        # By descriptors from here on: who may write beside a folder can replace it by a link.
        self.folder = self._open(self.asked.folder, FOLDER | (os.O_NOFOLLOW if made else 0))
        name = os.path.basename(self._folder)
        os.mkdir(name, 0o700, dir_fd=self.folder)
        self._held = self._open(name, FOLDER | os.O_NOFOLLOW, self.folder)
        hold(self._held)
        hand_over(self._held, self.owner)

    def _open(self, path: str, flags: int, folder: int | None = None) -> int:
        opened = os.open(path, flags, dir_fd=folder)
        self._opened.callback(os.close, opened)
        return opened

    def _record(self, updates: int, name: str) -> Recorded:
        asked = self.asked
        pid = self._client.process.pid
        path = os.path.join(self._folder, f"{name}.json")
        self._daemon.orders[pid] = Order(path, updates, asked.stacks, asked.shapes, asked.memory)
        began = time.monotonic()
        began_ns = time.monotonic_ns()
        ordered = busy = freed = 0.0
        while True:
            heard = self._daemon.listen(_LISTEN_S)
            now = time.monotonic()
            if heard is not None and heard.pid == pid and not heard.registers:
                if heard.ordered:
                    ordered = now
                    self.waited_ns = began_ns, time.monotonic_ns()
                elif ordered and not heard.free:
                    busy, freed = busy or now, 0.0
                elif ordered and (busy or self._has_begun(name)):
                    freed = freed or now  # a profiler of the program does not make it busy
            if (written := self._find_whole(name)) >= 0:
                return Recorded(CaptureState.VERIFIED, "", written)
            if ended := self._find_ended():
                return ended
            if self._asker.stopped():
                return Recorded(CaptureState.CANCELLED, UNWANTED)
            if not ordered and now - began > _ASKS_S:
                return Recorded(CaptureState.REFUSED, "kineto did not ask: is it busy with another profile?")
            if freed and now - freed > _SETTLES_S:
                return Recorded(
                    CaptureState.YIELDED,
                    "kineto gave it up: the program began a profile of its own, or disk full",
                )
            if ordered and not busy and now - ordered > _WAIT_S:
                return Recorded(CaptureState.EXPIRED, "the loop came to no update of an optimizer")
            if busy and now - busy > asked.seconds + _SPARE_S:
                return Recorded(CaptureState.EXPIRED, "the updates took too long")
            self._say_state(updates, ordered, busy, name)

    def _say_state(self, updates: int, ordered: float, busy: float, name: str) -> None:
        what = "one update" if name == "probe" else f"{updates} updates"
        armed = f"recording {what}, or writing them" if busy else f"armed: {what} from the next one on"
        self._say_waiting(armed if ordered else "waiting until kineto asks")

    def _find_whole(self, name: str) -> int:
        """Return the trace, open, once it is whole, else -1; OSError where something else has its name."""
        for entry in os.listdir(self._held):
            if entry.startswith(name) and entry.endswith(".json"):
                with contextlib.suppress(FileNotFoundError):
                    found = open_foreign(entry, self.owner, MOST_READ, folder=self._held)
                    if wire_capture.is_whole(found):
                        self._opened.callback(os.close, found)
                        return found
                    os.close(found)
        return -1

    def _has_begun(self, name: str) -> bool:
        """Tell whether kineto opened the file: from the first update of the window on."""
        with contextlib.suppress(OSError):
            return any(entry.startswith(name) for entry in os.listdir(self._held))
        return False


SYSTEM_CONFIG = "/etc/libkineto.conf"
CONFIG = "conf"
_EVERY_S = 1
_UNUSED_S = 86_400.0
"""A folder in which nobody has asked for so long belongs to a run that ended."""


def prepare(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment where libkineto asks tpmon, print its price; UsageError where it cannot be."""
    if environment.get("KINETO_USE_DAEMON"):
        raise UsageError(
            "KINETO_USE_DAEMON is set already: this run asks for profiles as it is",
            "tpmon run without --kineto; tpmon capture then uses what it asks",
        )
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) + len(f"/{OURS}xxxxxxxx") > LONGEST_FOLDER:
        base = "/tmp"  # noqa: S108 what libkineto has room for
    sweep(base)
    try:
        folder = tempfile.mkdtemp(prefix=OURS, dir=base)
        armed = {"KINETO_LOG_LEVEL": "99", **environment}
        if "KINETO_CONFIG" not in environment and not os.path.exists(SYSTEM_CONFIG):
            armed["KINETO_CONFIG"] = os.path.join(folder, CONFIG)
            with open(armed["KINETO_CONFIG"], "x", encoding="ascii") as file:
                file.write(f"ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS={_EVERY_S}\n")
    except OSError as error:
        raise UsageError(
            f"no folder for kineto in {base}: {error.strerror or error}", "tpmon run without --kineto"
        ) from error
    sys.stderr.write(
        "tpmon: --kineto: each process that imports torch has one more thread, of libkineto, which asks once"
        f" a second in {folder}\n"
    )
    return {**armed, "KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": folder}


def take_back(environment: Mapping[str, str]) -> None:
    """Remove the folder of a run that did not start."""
    shutil.rmtree(environment["KINETO_IPC_SOCKET_DIR"], ignore_errors=True)


def sweep(base: str) -> None:
    """Remove the folders of this user's runs that ended."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            used = {os.path.dirname(one.name) for one in parse_sockets(file.read())}
        names = [name for name in os.listdir(base) if name.startswith(OURS)]
    except OSError:
        return
    for name in names:
        path = os.path.join(base, name)
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            old = time.time() - found.st_mtime > _UNUSED_S
            if path not in used and old and found.st_uid == os.geteuid():
                shutil.rmtree(path)
