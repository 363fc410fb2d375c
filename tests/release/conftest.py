"""One tpmon.pyz for all tests, as make pyz builds it, and the Pythons that run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from release.pyz import build

from tests.hook.test_hook_install import find_pythons

SYSTEM = "/usr/bin/python3"
OLDEST = (3, 10)


def list_pythons() -> list[str]:
    """Return the Pythons here that are new enough, that of the system first, and none of a venv."""
    versions = [one for one in find_pythons() if tuple(map(int, one.split("."))) >= OLDEST]
    asked = [[find_pythons()[one], "-c", "import sys; print(sys.executable)"] for one in versions]  # no shim of pyenv
    others = [subprocess.run(one, capture_output=True, text=True, check=True).stdout.strip() for one in asked]
    return list(dict.fromkeys([*([SYSTEM] if os.path.exists(SYSTEM) else []), *others])) or [sys.executable]


@pytest.fixture(scope="session")
def pyz(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pyz") / "tpmon.pyz"
    build(path)
    return path


@pytest.fixture(scope="session")
def cold_home(tmp_path_factory) -> Path:
    """An empty home, in which the first start lays the file out and the others find it."""
    return tmp_path_factory.mktemp("home")
