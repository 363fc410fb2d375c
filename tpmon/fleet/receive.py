"""What a node runs that has no tpmon: take tpmon.pyz from standard input, once for each build, or run it.

``tpmon fleet --agent ship`` sends this text as an argument of python3 there; so it needs the standard library
alone, and any Python 3.7 or newer can read it: tpmon.pyz itself says which it needs.
"""

import contextlib
import hashlib
import os
import stat
import sys


def find_folder() -> str:
    """Return this user's folder for it, where nobody else may write; end where somebody else made it."""
    folder = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"tpmon-ship-{os.geteuid()}")  # noqa: S108  # own
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SystemExit(f"{folder} is not this user's alone")
    return folder


def main(digest: str, verb: str, *words: str) -> None:
    """Put the file there, unless it is, or run it with these words."""
    path = os.path.join(find_folder(), f"{digest}.pyz")
    if verb == "run":
        os.execv(sys.executable, [sys.executable, path, *words])  # noqa: S606  # it becomes the agent
    if os.path.exists(path):
        return
    data = sys.stdin.buffer.read(int(words[0]))
    if hashlib.sha256(data).hexdigest() != digest:
        raise SystemExit(f"{len(data)} of {words[0]} bytes came whole")
    part = f"{path}.{os.getpid()}"
    try:
        with open(part, "xb") as file:
            file.write(data)
        os.rename(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise SystemExit(f"{os.path.dirname(path)}: {error.strerror}") from None


if __name__ == "__main__":
    main(*sys.argv[1:])
