"""Make what ``tpmon run --kineto`` puts into the environment: a folder to ask in, and how often."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping

from tpmon.capture.kineto_daemon import LONGEST_FOLDER
from tpmon.capture.kineto_target import OURS, parse_sockets
from tpmon.errors import UsageError

SYSTEM_CONFIG = "/etc/libkineto.conf"
CONFIG = "conf"
_EVERY_S = 1
_UNUSED_S = 86_400.0
"""A folder in which nobody asks for so long is one of a run that ended."""


def prepare(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which libkineto asks tpmon, and say its price on standard error.

    Raises:
        UsageError: where the run asks somebody else already, or the folder cannot be made.
    """
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
    """Remove the folder of a run that did not start: nobody will ever ask in it."""
    shutil.rmtree(environment["KINETO_IPC_SOCKET_DIR"], ignore_errors=True)


def sweep(base: str) -> None:
    """Remove the folders of this user's runs that ended: nobody asks in them any more."""
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
