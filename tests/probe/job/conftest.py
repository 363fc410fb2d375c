"""Give a /proc that a test fills."""

import pytest

from tests.fake_proc import FakeProc


@pytest.fixture
def fake(tmp_path):
    return FakeProc(tmp_path / "proc")
