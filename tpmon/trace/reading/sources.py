"""Where traces lie: files of this machine, and of object stores with the optional extra ``cloud``.

Nothing of fsspec is imported before a path names a store. Its own client finds the credentials.
"""

from __future__ import annotations

import errno
import glob
import importlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from typing import Any, Protocol

from tpmon.errors import NotPermittedError, TpmonError, UsageError

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "az")
SNAPSHOT_ENDINGS = (".pickle", ".pkl")
_TRACE_ENDINGS = (".json", ".json.gz")
MOST_FILES = 4096
PACKED = 10
"""A packed trace takes a tenth to a fifteenth of its JSON."""
_BLOCK_BYTES = 8 << 20
_TRY_FILE = "tpmon trace FILE..."
_TRY_EXTRA = "install tpmon with its extra: pip install '.[cloud]' in its checkout"
_TRY_STORE = "check the name, the credentials and the network with the store's own client"


class Readable(Protocol):
    """Give the bytes of a file, one part after the other."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most ``size`` bytes, none at the end."""


def estimate_json_bytes(path: str) -> int:
    """Estimate the bytes of a trace unpacked; 0 where it cannot be told, or only a store tells it."""
    try:
        size = os.path.getsize(path)
    except OSError:
        return 0
    return size * PACKED if path.endswith(".gz") else size


def is_remote(path: str) -> bool:
    """Tell whether a path names an object store."""
    return path.partition("://")[0] in SCHEMES and "://" in path


def is_snapshot(path: str) -> bool:
    """Tell whether a file is named, or begins, like a pickle: a memory snapshot."""
    if path.endswith(SNAPSHOT_ENDINGS) or is_remote(path):
        return path.endswith(SNAPSHOT_ENDINGS)
    try:
        with _open_file(path) as file:
            first = file.read(2)
    except (OSError, UsageError):
        return False
    return len(first) == 2 and first[0] == 0x80 and first[1] <= 5


@contextmanager
def open_bytes(path: str) -> Iterator[tuple[Readable, int]]:
    """Open what lies at ``path`` for reading, and tell its size in bytes.

    UsageError where there is no file or its extra is missing; NotPermittedError where it may not be read.
    """
    if is_remote(path):
        store = _find_store(path)
        file = _ask(path, lambda: store.open(path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead"))
        try:
            yield _Remote(path, file), int(file.size or 0)
        finally:
            file.close()
        return
    try:
        local = _open_file(path)
    except PermissionError as error:
        raise NotPermittedError(f"{path} may not be read", f"ls -l {path}") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", _TRY_FILE) from error
    with local:
        yield local, os.fstat(local.fileno()).st_size


def _open_file(path: str) -> FileIO:
    """Open a file of this machine; a FIFO is refused, as it would wait for a writer that never comes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return FileIO(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    device = "a device" if stat.S_ISCHR(kind) or stat.S_ISBLK(kind) else "of another kind"
    what = "a FIFO" if stat.S_ISFIFO(kind) else device
    raise UsageError(f"{path}: it is no regular file but {what}", _TRY_FILE)


def _find_remote(path: str) -> list[str]:
    """Return the files of a store that ``path`` names: one, those of a directory, or those of a pattern."""
    store = _find_store(path)
    if any(sign in path for sign in "*?["):
        found = [store.unstrip_protocol(name) for name in _ask(path, lambda: sorted(store.glob(path)))]
        if not found:
            raise UsageError(f"nothing matches {path}", _TRY_FILE)
        return found
    if path.endswith(_TRACE_ENDINGS):
        return [path]
    names = sorted(_ask(path, lambda: store.ls(path, detail=False)))
    found = [store.unstrip_protocol(name) for name in names if name.endswith(_TRACE_ENDINGS)]
    if found:
        return found
    if names == [path.partition("://")[2].rstrip("/")]:
        return [path]
    raise UsageError(f"{path} holds no trace (*.json, *.json.gz)", _TRY_FILE)


def _find_store(path: str) -> Any:
    scheme = path.partition("://")[0]
    try:
        core = importlib.import_module("fsspec.core")
        return _ask(path, lambda: core.url_to_fs(path)[0])
    except ImportError as error:
        raise UsageError(f"reading {scheme}:// needs the extra cloud: {error}", _TRY_EXTRA) from error


def _ask(path: str, call: Any) -> Any:
    """Ask a store; each of them has errors of its own, which all become one line."""
    try:
        return call()
    except (ImportError, TpmonError):
        raise
    except FileNotFoundError as error:
        raise UsageError(f"{path}: No such file", _TRY_STORE) from error
    except PermissionError as error:
        raise NotPermittedError(f"{path} may not be read: {error}", _TRY_STORE) from error
    except Exception as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}", _TRY_STORE) from error


class _Remote:
    """Read an object; an error of the store is told as one."""

    def __init__(self, path: str, file: Any) -> None:
        self._path = path
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        data: bytes = _ask(self._path, lambda: self._file.read(size))
        return data


def find_files(given: Sequence[str]) -> list[str]:
    """Return the files that paths, directories of traces and patterns name; UsageError where one has none."""
    found: list[str] = []
    for one in given:
        if is_remote(one):
            files = [one] if one.endswith(SNAPSHOT_ENDINGS) else _find_remote(one)
        elif os.path.isdir(one):
            names = sorted(name for name in os.listdir(one) if name.endswith(_TRACE_ENDINGS))
            files = [path for path in (os.path.join(one, name) for name in names) if os.path.isfile(path)]
            if not files:
                raise UsageError(f"{one} holds no trace (*.json, *.json.gz)", _TRY_FILE)
        elif not os.path.exists(one) and glob.has_magic(one):
            files = sorted(glob.glob(one))
            if not files:
                raise UsageError(f"nothing matches {one}", _TRY_FILE)
        else:
            files = [one]
        found += files
    if len(found) > MOST_FILES:
        raise UsageError(f"{len(found)} files are too many, {MOST_FILES} at most", "name fewer")
    return list(dict.fromkeys(found))


def are_snapshots(files: Sequence[str]) -> bool:
    """Tell whether the files are memory snapshots; UsageError where only some are."""
    found = [path for path in files if is_snapshot(path)]
    if found and len(found) < len(files):
        raise UsageError(f"{found[0]} is a memory snapshot beside traces", "give them in two calls")
    return bool(found)
