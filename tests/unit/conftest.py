"""Start once what many tests here only look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.test_stacks import may_sample


@pytest.fixture(scope="session")
def sampling_works() -> None:
    """Skip where nobody may look at the stacks of a child."""
    if reason := may_sample():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def job(sampling_works: None) -> Iterator[int]:
    """Give the PID of a process with torch that waits; every test leaves it as it is."""
    from tests.unit.test_cli import start_training

    with start_training() as training:
        yield training.pid
        training.kill()
