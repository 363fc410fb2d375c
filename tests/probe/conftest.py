"""Give a /proc and control groups that a test fills."""

import pytest

from tests.cgroups import Tree
from tests.fake_proc import FakeProc


@pytest.fixture
def fake(tmp_path):
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)
