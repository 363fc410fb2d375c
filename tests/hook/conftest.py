"""Give the training loop that tests of the hook play."""

import pytest

from tests.hook_loop import Loop


@pytest.fixture
def loop(monkeypatch):
    """Give a training loop that the hook counts, on a clock that the test holds."""
    loop = Loop(monkeypatch)
    yield loop
    loop.steps.drop_pages()
