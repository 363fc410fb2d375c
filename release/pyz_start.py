"""The first file of a tpmon.pyz: lay the file out in the cache, once for each build, and run tpmon there.

Laid out, its modules are compiled once instead of at each start, and the NVML child, the hook and py-spy are
files. Any Python 3 can read this, to be told which it needs.
"""

import os
import stat
import sys
import time

BUILD = "unbuilt"
"""A digest of what is packed: release/pyz.py puts it here."""
PACKED = "packed.zip"
"""All that is laid out, in a zip of its own: Python reads the directory of the outer one at each start."""
SHARED = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108  # a folder in them is used if it is this user's alone
TMP_KEPT_S = 5 * 86400
"""Cleaners of /tmp take files away after 10 days: what lies there is laid out anew before that."""


def is_own(folder: str) -> bool:
    """Tell whether a folder is there and this user's, and nobody else may write into it."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def list_places() -> list:
    """Return the folders in which it may be laid out, best first, each with the name that it has there."""
    user = os.geteuid()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    places = [(os.path.join(cache, "tpmon"), BUILD)] if os.path.isabs(cache) and belongs(cache, user) else []
    aged = f"{BUILD}-{int(time.time() // TMP_KEPT_S)}"
    places += [
        (os.path.join(base, f"tpmon-{user}"), aged)
        for base in (os.environ.get("TMPDIR", ""), *SHARED)
        if os.path.isabs(base)
    ]
    return places


def belongs(folder: str, user: int) -> bool:
    """Tell whether a folder, or where it is to be made, is this user's: sudo may keep the HOME of another."""
    while not os.path.exists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return os.stat(folder).st_uid == user


def lay_out(archive: str, place: str, name: str) -> str:
    """Lay out the packed files in a folder, whole or not at all, and return where they are; raise OSError."""
    import shutil
    import tempfile
    import zipfile

    os.makedirs(place, 0o700, exist_ok=True)
    if not is_own(place):
        raise OSError(0, "somebody else may write into it", place)
    folder, part = os.path.join(place, name), tempfile.mkdtemp(dir=place)
    try:
        with zipfile.ZipFile(archive) as whole, whole.open(PACKED) as inner, zipfile.ZipFile(inner) as packed:
            for one in packed.infolist():
                path = os.path.join(part, one.filename)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "xb") as file:
                    file.write(packed.read(one))
                if one.external_attr >> 16 & stat.S_IXUSR:
                    os.chmod(path, 0o700)
        try:
            os.rename(part, folder)
        except OSError:
            if not is_own(folder):  # of another start that was faster
                raise
        return folder
    finally:
        shutil.rmtree(part, ignore_errors=True)


def find_layout(archive: str) -> str:
    """Return the folder in which this build is laid out, now or before; end where there is none for it."""
    places = list_places()
    for place, name in places:
        folder = os.path.join(place, name)
        if is_own(place) and is_own(folder):
            return folder
    refused = []
    for place, name in places:
        try:
            return lay_out(archive, place, name)
        except OSError as error:
            refused.append(f"{place}: {error.strerror or error}")
    sys.stderr.write(
        "tpmon: no folder to lay out {}: {}\n"
        "Try: XDG_CACHE_HOME=FOLDER, one that can be written, before it\n".format(archive, "; ".join(refused))
    )
    raise SystemExit(2)


def main() -> int:
    """Run the tpmon that is packed in this file."""
    if sys.version_info < (3, 10):  # this is what tells it
        sys.stderr.write(
            f"tpmon: needs Python 3.10 or newer, this is {sys.version.split()[0]}\n"
            f"Try: python3.12 {sys.argv[0]}\n"
        )
        return 2
    archive = os.path.abspath(sys.argv[0])
    sys.path[0] = find_layout(archive)
    sys.dont_write_bytecode = False  # that wish is for other folders
    import tpmon
    from tpmon.__main__ import main as run_tpmon

    tpmon.archive = archive
    return run_tpmon()


if __name__ == "__main__":
    raise SystemExit(main())
