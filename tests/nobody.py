"""Be a user who may read no process of root, or root who may trace none."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NOBODY = 65534
AS_NOBODY = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
WITHOUT_PTRACE = ("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace")

needs_setpriv = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"),
    reason="only root can become another user or drop what it may do, with setpriv",
)


@contextmanager
def run_as_nobody(program: str) -> Iterator[str]:
    """Give the words of a shell that run ``program`` as nobody, from a copy that nobody may read."""
    # Not below tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield shlex.join((*AS_NOBODY, shutil.copy(program, folder)))
