"""Start once what many tests here only look at, and hide the settings of whoever runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import start_training


@pytest.fixture(scope="session")
def job(sampling_works: None) -> Iterator[int]:
    """Give the PID of a process with torch that waits; every test leaves it as it is."""
    with start_training() as training:
        yield training.pid
        training.kill()


@pytest.fixture
def small_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the settings of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith(("TPMON_", "XDG_", "LC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
