"""The tables of a recording (docs/recording.md), and how its SQLite file is opened and checked."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tpmon.errors import UsageError
from tpmon.foreign_file import NEW_FILE
from tpmon.record.pulses import COLUMNS

APPLICATION_ID = 0x74706D6E
""""tpmn", in the header of the file."""
VERSION = 1
PAGE_BYTES = 8192
"""Two lines of a large job fit into a page, of 4,096 bytes only one: 12.3 in place of 15.3 MB an hour."""
SUFFIX = ".tpmon"
FLEET = "tpmon-fleet-"
"""How the name of a folder begins that has a recording of each node of a fleet."""

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE frame (n INTEGER PRIMARY KEY, mono_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL,
                    key INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX frame_wall ON frame (wall_ns);
CREATE TABLE memory (n INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE pulse (n INTEGER PRIMARY KEY, mono_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL,
                    verdict_id INTEGER, PULSE_COLUMNS);
CREATE TABLE verdict (id INTEGER PRIMARY KEY, from_n INTEGER NOT NULL, to_n INTEGER NOT NULL,
                      from_ns INTEGER NOT NULL, to_ns INTEGER NOT NULL,
                      kind TEXT, cause TEXT, confidence TEXT, summary TEXT NOT NULL);
CREATE TABLE event (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, wall_ns INTEGER NOT NULL, time TEXT NOT NULL,
                    kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE hole (id INTEGER PRIMARY KEY, from_ns INTEGER NOT NULL, to_ns INTEGER NOT NULL,
                   reason TEXT NOT NULL);
CREATE TABLE artifact (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, kind TEXT NOT NULL,
                       body BLOB NOT NULL);
CREATE VIEW timeline AS
    SELECT datetime(p.wall_ns / 1000000000, 'unixepoch', 'localtime') AS time, v.kind, v.cause, p.*
    FROM pulse p LEFT JOIN verdict v ON v.id = p.verdict_id ORDER BY p.n;
CREATE VIEW verdicts AS
    SELECT datetime(from_ns / 1000000000, 'unixepoch', 'localtime') AS time,
           (to_ns - from_ns) / 1000000000 AS seconds, kind, cause, confidence, summary
    FROM verdict ORDER BY id;
"""
TABLES = frozenset(("meta", "frame", "memory", "pulse", "verdict", "event", "hole", "artifact"))
QUERY_S = 10.0
"""A file made by somebody else may hold what a query never comes to the end of."""
_MAGIC = b"SQLite format 3\0"
_STEPS = 100_000
"""Instructions of SQLite between two looks at the clock."""
_READ_TRIES = "the file is no recording, or a damaged one; an earlier copy"

NETWORK_FILE_SYSTEMS = {
    0x6969: "NFS",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0xFF534D42: "SMB",
    0xFE534D42: "SMB",
    0x517B: "SMB",
    0x00C36400: "Ceph",
    0x01021997: "9p",
    0x19830326: "BeeGFS",
}
"""By f_type of statfs(2) (linux/magic.h, stat.c of coreutils): the log of SQLite needs shared memory,
which these do not keep in step."""


def refuse_file(
    path: str, what: str, try_this: str = "tpmon record --list names the recordings here"
) -> UsageError:
    """Return the error for a file that is no recording that can be read."""
    return UsageError(f"{path}: {what}", try_this)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Raise UsageError, in one line, for what SQLite or the file system says of a recording."""
    try:
        yield
    except (sqlite3.Error, ValueError) as error:  # ValueError: what SQLite says of a damaged file is no UTF-8
        raise refuse_file(path, f"cannot be read: {error}", _READ_TRIES) from error
    except OSError as error:
        raise refuse_file(path, error.strerror or str(error)) from error


def create_file(path: str) -> int:
    """Make the file of a new recording, mode 0600, and return its descriptor, which holds the writer's lock.

    Raises:
        UsageError: when something is there already, also a link, or nothing can be made.
    """
    try:
        return os.open(path, (NEW_FILE & ~os.O_WRONLY) | os.O_RDWR, 0o600)
    except FileExistsError as error:
        raise UsageError(
            f"{path} is there already, and nothing is written over", "another name for --out"
        ) from error
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}", "--out with a place that you may write to"
        ) from error


def connect_writer(path: str) -> sqlite3.Connection:
    """Open a recording to write; commits are explicit."""
    base = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    base.execute("PRAGMA synchronous = OFF")  # of tables without a Frame nothing is lost
    return base


def make_tables(base: sqlite3.Connection) -> None:
    """Make the tables of a new recording, in the file itself: its head tells what it is from the first on."""
    base.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    base.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    base.execute(f"PRAGMA user_version = {VERSION}")
    base.executescript(f"BEGIN; {SCHEMA.replace('PULSE_COLUMNS', ', '.join(COLUMNS))} COMMIT;")


def list_columns(base: sqlite3.Connection) -> frozenset[str]:
    """Return the columns of the main figures that a recording has: one of an older tpmon has fewer."""
    return frozenset(name for _at, name, *_rest in base.execute("PRAGMA table_info(pulse)"))


def add_columns(base: sqlite3.Connection) -> None:
    """Add the columns of the main figures that a recording of an older tpmon lacks."""
    for name in COLUMNS:
        if name not in list_columns(base):
            base.execute(f"ALTER TABLE pulse ADD COLUMN {name}")  # our own names


def write_ahead(base: sqlite3.Connection) -> None:
    """Write into a log beside the file from now on, which readers see at once."""
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("PRAGMA synchronous = NORMAL")
    base.execute("PRAGMA wal_autocheckpoint = 256")


def connect_reader(path: str) -> tuple[sqlite3.Connection, int]:
    """Open a recording to read, and return the connection with a descriptor of the file.

    The descriptor is to be closed after the connection: closing it drops locks of this process.

    Raises:
        UsageError: for what is no recording, or that of a newer version.
    """
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_head(path, descriptor)
            return _connect_checked(path), descriptor
        except BaseException:
            os.close(descriptor)
            raise


def _check_head(path: str, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise refuse_file(path, "no plain file")
    head = os.pread(descriptor, 100, 0)
    if head[:16] != _MAGIC or int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise refuse_file(path, "no recording of tpmon")
    version = int.from_bytes(head[60:64], "big")
    if version > VERSION:
        raise refuse_file(
            path,
            f"of version {version}, and this tpmon reads up to {VERSION}",
            "a newer tpmon: pip install -U tpmon",
        )


def _connect_checked(path: str) -> sqlite3.Connection:
    base = _open_uri(path, "mode=ro")
    try:
        try:
            base.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            # A folder that cannot be written to: there the shared index of the log cannot be made.
            if os.access(os.path.dirname(os.path.abspath(path)), os.W_OK) or os.path.exists(f"{path}-wal"):
                raise
            base.close()
            base = _open_uri(path, "mode=ro&immutable=1")
        found = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not found >= TABLES:
            raise refuse_file(path, f"no whole recording: it has no table {min(TABLES - found)}")
    except BaseException:
        base.close()
        raise
    return base


def _open_uri(path: str, how: str) -> sqlite3.Connection:
    quoted = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    base = sqlite3.connect(f"file:{quoted}?{how}", uri=True, isolation_level=None, check_same_thread=False)
    base.execute("PRAGMA trusted_schema = OFF")
    base.execute("PRAGMA query_only = ON")
    base.text_factory = lambda data: data.decode("utf-8", "replace")
    return base


@contextmanager
def limited(base: sqlite3.Connection) -> Iterator[None]:
    """Interrupt queries that take longer than ``QUERY_S``."""
    end_s = time.monotonic() + QUERY_S
    base.set_progress_handler(lambda: time.monotonic() > end_s, _STEPS)
    try:
        yield
    finally:
        base.set_progress_handler(None, 0)


def check_local(path: str, try_this: str) -> None:
    """Raise UsageError for a path on a network file system, or in a folder that cannot be read."""
    folder = os.path.dirname(os.path.abspath(path))
    with naming(path):
        network = name_network(folder)
    if network:
        raise UsageError(f"{folder} is on {network}, where a live recording cannot be kept whole", try_this)


def name_network(folder: str) -> str:
    """Return the name of the network file system that a folder lies on; "" for none that is known."""
    return NETWORK_FILE_SYSTEMS.get(read_file_system(folder), "")


def read_file_system(folder: str) -> int:
    """Return f_type of statfs(2), which Python has no call for; OSError where it fails."""
    import ctypes  # noqa: PLC0415  # only what starts to record asks

    library = ctypes.CDLL(None, use_errno=True)
    answer = ctypes.create_string_buffer(256)
    if library.statfs(os.fsencode(folder), answer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), folder)
    return int.from_bytes(answer.raw[: ctypes.sizeof(ctypes.c_long)], "little") & 0xFFFFFFFF


def is_full(error: sqlite3.Error) -> bool:
    """Tell whether SQLite says that the disk is full: by its code, which Python 3.10 has in words alone."""
    return getattr(error, "sqlite_errorname", str(error)) in ("SQLITE_FULL", "database or disk is full")
