"""What a bench says of the processes that run beside it."""

from __future__ import annotations

import subprocess
import sys

from tests.budget.measure import say_neighbours


def test_a_process_that_burns_a_core_is_named_and_a_sleeping_one_is_not() -> None:
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        said = say_neighbours(2.0)
    finally:
        for one in (burning, sleeping):
            one.kill()
            one.wait()
    assert said.startswith("beside: ")
    assert f"({burning.pid})" in said
    assert f"({sleeping.pid})" not in said
