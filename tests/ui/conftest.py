"""Let the programs of tests/programs/test_hangs.py hang while the tests of the screen and the units run."""

from __future__ import annotations

import importlib.util

import pytest
import textual._wait

# The pilot calls a program idle that did next to nothing for 20 ms, twice for each key: 5 ms tell as much.
textual._wait.SLEEP_GRANULARITY = 0.005
textual._wait.SLEEP_IDLE = 0.001


@pytest.fixture(scope="session", autouse=True)
def _hang_meanwhile(request: pytest.FixtureRequest) -> None:
    """Begin with them where some test will ask, and there is a torch to hang in."""
    asked = any("hung_programs" in getattr(one, "fixturenames", ()) for one in request.session.items)
    if asked and importlib.util.find_spec("torch") is not None:
        request.getfixturevalue("hung_programs")
