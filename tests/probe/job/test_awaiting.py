"""A program that is just starting is waited for, and what is no training job is refused at once."""

from collections.abc import Callable

import pytest

from tests.fake_proc import FakeProc
from tpmon.errors import ExitCode, NoTargetError, StartingError
from tpmon.probe.base.procread import TICKS_PER_S
from tpmon.probe.job import resolve as target
from tpmon.probe.job.job import Job
from tpmon.probe.job.resolve import await_job, find_job


def starts_after(looks: int, fake: FakeProc) -> Callable[[], Job]:
    """Return a search for PID 60 that finds it importing so often, and training from then on."""
    left = iter(range(looks))
    fake.add(60, 1, ("python", "train.py"), start=fake.now)

    def find() -> Job:
        if next(left, None) is None:
            fake.remove(60)
            fake.add(60, 1, ("python", "train.py"), start=fake.now, torch=True)
        return find_job(60, fake.proc)

    return find


def test_a_program_that_imports_is_waited_for_and_it_is_said_once(fake):
    said: list[str] = []
    assert await_job(starts_after(3, fake), said.append, 60.0, every_s=0.0).root.pid == 60
    assert said == ["process 60 (train.py) is Python without torch (yet); waiting for it, at most 1m00s"]


def test_nobody_waits_who_did_not_ask_for_it(fake):
    said: list[str] = []
    with pytest.raises(StartingError) as caught:
        await_job(starts_after(3, fake), said.append, 0.0)
    assert (said, caught.value.exit_code) == ([], ExitCode.NO_TARGET)


def test_what_will_be_no_training_job_is_not_waited_for(fake):
    fake.add(60, 1, ("python", "server.py"))  # started hours ago
    fake.add(61, 1, ("vim", "train.py"))
    fake.add(62, 1, ("sh", "start.sh"), start=fake.now)
    fake.add(63, 1, ("torchrun", "train.py"))
    kinds = {}
    for pid in (60, 61, 62, 63, 64):
        with pytest.raises(NoTargetError) as caught:
            find_job(pid, fake.proc)
        kinds[pid] = isinstance(caught.value, StartingError)
    assert kinds == {60: False, 61: False, 62: True, 63: True, 64: False}


@pytest.mark.parametrize(("argv", "age_s"), [(("python", "train.py"), 700), (("sh", "start.sh"), 60)])
def test_who_is_waited_for_may_grow_old(fake, argv, age_s):
    looks: list[int] = []
    said: list[str] = []
    fake.add(60, 1, argv, start=fake.now)

    def find():
        looks.append(len(looks))
        if len(looks) == 4:
            fake.remove(60)
            fake.add(60, 1, ("python", "train.py"), start=fake.now, torch=True)
        return find_job(60, fake.proc)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "now_ticks", lambda: fake.now + (age_s * TICKS_PER_S if looks[1:] else 0))
        assert await_job(find, said.append, 60.0, every_s=0.0).root.pid == 60
    assert (len(looks), len(said)) == (4, 1)


def test_another_process_under_the_number_is_not_waited_for(fake):
    looks: list[int] = []
    fake.add(60, 1, ("python", "train.py"), start=fake.now)

    def find():
        looks.append(len(looks))
        if len(looks) == 2:
            fake.remove(60)
            fake.add(60, 1, ("python", "server.py"))  # it has run for hours
        return find_job(60, fake.proc)

    with pytest.raises(NoTargetError, match=r"server\.py") as caught:
        await_job(find, lambda _: None, 60.0, every_s=0.0)
    assert not isinstance(caught.value, StartingError)
    assert len(looks) == 2
