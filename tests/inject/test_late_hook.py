"""The hook goes into a running Python and out again, and leaves it as it was: a real process of every version."""

from __future__ import annotations

import glob
import os
import sys
import time
from dataclasses import replace

import pytest

from tests.hook.test_hook_install import OWN, find_pythons
from tests.hooks import list_pages
from tests.inject.killed import POINTS
from tests.inject.killed import run as kill_and_try_again
from tests.inject.targets import LOOP, LOOP_ENDS, find, looping, refuse, require_mounts, running
from tests.waiting import wait_until
from tpmon.inject import late_hook
from tpmon.inject.late_hook import LateHook, install_everywhere
from tpmon.inject.memory import TargetMemory
from tpmon.inject.payload import make_payload
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.model.process import Identity
from tpmon.model.results.late import LatePlan, LateResult, LateState, LateWay
from tpmon.model.text.late_words import describe_plan, describe_result
from tpmon.probe.base.procread import read_stat, read_table

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")

ALARM = """
import os, select, signal, sys
class Alarm(Exception): pass
def ring(*_):
    raise Alarm("rings", 7)
signal.signal(signal.SIGALRM, ring)
left = ["tpmon.hook.steps", "tpmon.hook.installation"]
def audit(event, arguments):
    if event == "import" and arguments[0] in left:
        left.remove(arguments[0])
        os.kill(os.getpid(), signal.SIGALRM)
sys.addaudithook(audit)
print("ready", flush=True)
def train():
    while not select.select([0], [], [], 0)[0]:
        sum(range(1000))
caught = []
while True:
    try:
        train()
        break
    except Alarm as alarm:
        caught.append(alarm.args)
print(caught, flush=True)
"""
"""Its alarm rings twice while the hook's modules are imported."""

RINGS = ALARM.replace("import os", "import _thread, os").replace(
    "left = [", "main, left = _thread.get_ident(), [3, 4, "
)
RINGS = RINGS.replace("left.remove(arguments[0])", "left.pop()").replace(
    'event == "import" and arguments[0] in left',
    'event == "open" and "/answer" in str(arguments[0]) and left and _thread.get_ident() == main',
)
"""Its alarm rings as soon as a script begins, four times."""


FRAMES = """
import gc, select, weakref
class Held: pass
gc.disable()
kept = []
def turn():
    held = Held()
    kept.append(weakref.ref(held))
    for _ in range(2000):
        held = held
print("ready", flush=True)
alive = 0
while not select.select([0], [], [], 0)[0]:
    turn()
    alive += kept.pop()() is not None
print(alive, flush=True)
"""


LOSES = """
import sys
left = [1]
def audit(event, arguments):
    if event == "open" and "/.tpmon-" in str(arguments[0]) and left:
        left.pop()
        raise RuntimeError("not now")
sys.addaudithook(audit)
"""


COMPILES = """
import sys
from types import SimpleNamespace
asked, before = [], object()
def turn(callback):
    asked.append(callback is before)
    return before
sys.modules["torch._dynamo"] = SimpleNamespace()
sys.modules["torch._C._dynamo.eval_frame"] = SimpleNamespace(set_eval_frame=turn)
from select import select
print("ready", flush=True)
while not select([0], [], [], 0)[0]:
    sum(range(1000))
print(asked, flush=True)
"""


@pytest.fixture(params=[pytest.param(one, marks=() if one == OWN else pytest.mark.long) for one in VERSIONS])
def python(request):
    found = sys.executable if request.param == OWN else find_pythons().get(request.param)
    return found or pytest.skip(f"no Python {request.param} here")


def list_files() -> list[str]:
    return sorted(glob.glob(f"/tmp/.tpmon-{os.getpid()}-*"))


def test_it_goes_in_and_out_and_leaves_nothing(python):
    with looping(python) as job:
        process = find(job)
        files = list_files()
        descriptors = set(os.listdir(f"/proc/{job.pid}/fd"))
        for _ in range(5):
            assert LateHook(process).install().state is LateState.INSTALLED
            assert LateHook(process).remove().state is LateState.REMOVED
        assert LateHook(process).remove().state is LateState.ABSENT
        assert set(os.listdir(f"/proc/{job.pid}/fd")) == descriptors
        assert len(os.listdir(f"/proc/{job.pid}/task")) == 1
        assert list_files() == files
        assert job.communicate(timeout=60) == (LOOP_ENDS, "")
    assert job.returncode == 0


@pytest.mark.long
def test_a_thousand_requests_leave_the_queue_whole(python):
    """A count that was written a moment too late once broke the queue of 3.13 after some forty requests."""
    with looping(python) as job:
        process = find(job)
        for _ in range(500):
            assert LateHook(process).install().state is LateState.INSTALLED
            assert LateHook(process).remove().state is LateState.REMOVED
        LateHook(process).check()
        assert job.communicate(timeout=60) == (LOOP_ENDS, "")


class SlowMemory(TargetMemory):
    """Lose the CPU between the pieces of a write."""

    def write(self, *pieces):
        for number, one in enumerate(pieces):
            time.sleep(0.1 if number else 0)
            super().write(one)


def test_a_call_that_is_asked_for_before_the_last_one_returned_leaves_the_queue_whole(python, tmp_path):
    """The main thread looks for calls at any moment of the write then."""
    script, answer = tmp_path / "run.py", tmp_path / "answer"
    script.write_text(f"open({str(answer)!r}, 'a').write('x')\n__import__('time').sleep(0.03)\n")
    with looping(python) as job:
        hook, memory = LateHook(find(job)), SlowMemory(job.pid)
        target = hook.check()
        for asked in range(1, 4):
            request = hook._open(memory, target.python)
            assert request.check()
            request.place(str(script))
            assert wait_until(lambda asked=asked: answer.exists() and answer.read_text() == "x" * asked)
            request.clean()
        assert wait_until(request.is_taken)
        assert hook.install().state is LateState.INSTALLED
        assert hook.remove().state is LateState.REMOVED
        assert job.communicate(timeout=60) == (LOOP_ENDS, "")


@pytest.mark.parametrize("point", POINTS)
def test_tpmon_killed_at_any_write_harms_nothing_and_makes_room_for_the_next(python, point):
    assert kill_and_try_again(python, point) == ""


def test_errors_of_the_programs_signal_handler_reach_the_program(python):
    """Those that it raises while the script runs are raised again after it, and the script is run again."""
    with looping(python, ALARM) as job:
        process = find(job)
        result = LateHook(process).install()
        assert (result.state, result.tries) == (LateState.INSTALLED, 3)
        assert LateHook(process).remove().state is LateState.REMOVED
        assert job.communicate(timeout=120) == ("[('rings', 7), ('rings', 7)]\n", "")


def test_a_request_that_was_taken_and_lost_is_asked_again(python):
    """3.14 cannot open a script within the constructor of a namedtuple, and says so on standard error."""
    with looping(python, LOSES + LOOP) as job:
        result = LateHook(find(job)).install()
        assert (result.state, result.tries) == (LateState.INSTALLED, 2)
        assert LateHook(find(job)).remove().state is LateState.REMOVED
        out, said = job.communicate(timeout=60)
        assert out == LOOP_ENDS.replace("['_', ", "['_', 'audit', 'left', ").replace("'sqrt', ", "'sqrt', 'sys', ")
        assert said == "" or python.endswith(("3.14", "3.15"))


def test_who_loses_every_request_is_asked_three_times():
    with looping(program=LOSES.replace("left = [1]", "left = [1] * 9") + LOOP) as job:
        assert refuse(find(job)) is RefusalReason.NOT_RUN
        assert job.communicate(timeout=60)[0].startswith("0 1 ['_', 'audit', 'left', ")


def test_torch_compile_does_not_look_at_what_is_ours(python):
    """At a safe point within a compiled call it traced functions of ours, for 0.3 s."""
    with looping(python, COMPILES) as job:
        assert LateHook(find(job)).install().state is LateState.INSTALLED
        assert job.communicate(timeout=60) == ("[False, True]\n", "")


def test_errors_come_in_turn_where_each_answer_meets_one(python):
    with looping(python, RINGS) as job:
        assert LateHook(find(job)).install().state is LateState.INSTALLED
        assert LateHook(find(job)).remove().state is LateState.REMOVED
        assert job.communicate(timeout=120) == (f"{[('rings', 7)] * 4}\n", "")


def test_no_variable_of_the_program_lives_longer_for_it(python):
    """A frame that was kept in a cycle had a collection clear a DataLoader's buffers under it: SIGSEGV."""
    with looping(python, FRAMES) as job:
        process = find(job)
        for _ in range(10):
            LateHook(process).install()
            LateHook(process).remove()
        assert job.communicate(timeout=60) == ("0\n", "")


def test_a_container_gets_it_through_its_own_root():
    require_mounts()
    command = (
        f"mount --make-rprivate / && mount -t tmpfs none /tmp && exec {os.path.realpath(sys.executable)} -c '{LOOP}'"
    )
    with running(["unshare", "-mp", "--fork", "--kill-child", "sh", "-c", command]) as job:
        (pid,) = [one.pid for one in read_table().values() if one.parent == job.pid]
        process = Identity(pid, read_stat(pid).start_ticks)
        assert LateHook(process).install().state is LateState.INSTALLED
        assert LateHook(process).remove().state is LateState.REMOVED
        assert os.listdir(f"/proc/{pid}/root/tmp") == []


def test_where_one_of_several_refuses_none_keeps_it():
    with looping() as first, looping(TPMON_NO_LATE_HOOK="1") as second:
        with pytest.raises(RefusedError) as caught:
            install_everywhere([LateHook(find(one)) for one in (first, second)])
        assert caught.value.reason is RefusalReason.TURNED_OFF
        assert LateHook(find(first)).remove().state is LateState.ABSENT


def test_the_hook_of_another_tpmon_is_replaced(monkeypatch):
    with looping() as job:
        process = find(job)
        assert LateHook(process).install().state is LateState.INSTALLED
        with monkeypatch.context() as patch:
            patch.setattr(late_hook, "make_payload", lambda *asked: replace(make_payload(*asked), mark="another"))
            for _ in range(2):
                assert LateHook(process).install().state is LateState.INSTALLED
        assert LateHook(process).remove().state is LateState.REMOVED
        assert job.communicate(timeout=60) == (LOOP_ENDS, "")


def test_a_hook_that_came_with_the_run_stays():
    hooked = LOOP.replace("import threading", "import threading, tpmon.hook as _", 1)
    with looping(program=hooked, PYTHONPATH=os.getcwd()) as job:
        process = find(job)
        assert LateHook(process).install().state is LateState.PRESENT
        assert LateHook(process).remove().state is LateState.PRESENT
        assert list_pages(job.pid) == []


def test_plan_and_result_in_words():
    plans = [LatePlan(11, "3.11.7", LateWay.PENDING_CALL), LatePlan(12, "3.14.8", LateWay.SCRIPT)]
    said = "\n".join(describe_plan(plans))
    assert "pid 11 (CPython 3.11.7), pid 12 (CPython 3.14.8)" in said
    assert said.count("written into its memory") == 2
    assert "tpmon hook 11 --remove" in said
    assert (
        describe_result(LateResult(11, LateState.INSTALLED, 8.4, 2)) == "pid 11: the hook is in (8 ms, asked 2 times)"
    )
