"""What a bench says of the processes that run beside it."""

import subprocess
import sys

from tests.budget import measure


def test_a_process_that_burns_a_core_is_named_and_a_sleeping_one_is_not(monkeypatch):
    monkeypatch.setattr(measure, "BUSY_BESIDE_PCT", 1.0)  # the test shares the machine: a core may be hard to get
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        said = measure.say_neighbours(2.0)
    finally:
        for one in (burning, sleeping):
            one.kill()
            one.wait()
    assert said.startswith("beside: ")
    assert f"({burning.pid})" in said
    assert f"({sleeping.pid})" not in said
