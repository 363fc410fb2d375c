"""Events of every day make room for the others."""

from dataclasses import replace

import pytest

from tests.frames import make_event
from tests.members import describe_changes, made_up
from tpmon.model.frame import EventKind
from tpmon.model.process import Role
from tpmon.probe.job.events import Changes, Departure
from tpmon.view.events import EVENT_LIMIT, EVERYDAY_KEPT, is_everyday, keep_newest

WORKERS = tuple(made_up(100 + n, n // 4, role=Role.WORKER, worker=n % 4) for n in range(8))


def _gone(*statuses: int) -> tuple[Departure, ...]:
    return tuple(Departure(member, status) for member, status in zip(WORKERS, statuses, strict=False))


EVERYDAY = (
    Changes(born=WORKERS, gone=_gone(*[0] * 8)),
    Changes(gone=_gone(*[0] * 8)),
    Changes(born=WORKERS[:1]),
    Changes(born=tuple(replace(one, role=Role.COMPILE) for one in WORKERS)),
)
KILLED = (
    Changes(gone=_gone(*[9] * 8)),
    Changes(gone=_gone(9)),
    Changes(gone=(Departure(replace(WORKERS[0], role=Role.COMPILE), 9),)),
)
OTHERS = tuple(
    Changes(born, tuple(Departure(member, 9) for member in gone))
    for members in (
        [replace(one, role=role, label="worker.py") for one in WORKERS] for role in (Role.RANK, Role.LAUNCHER)
    )
    for born, gone in ((members, members), ((), members), ((), members[:1]), (members, ()))
)


@pytest.mark.parametrize(("changes", "everyday"), [(one, one in EVERYDAY) for one in (*EVERYDAY, *KILLED, *OTHERS)])
def test_what_happens_to_workers_is_of_every_day_unless_they_are_killed_or_are_no_workers(changes, everyday):
    lines = describe_changes(changes)
    assert {is_everyday(make_event(line)) for line in lines} == {everyday}


def test_the_newest_of_each_sort_stay_in_their_order():
    everyday = [make_event(f"epoch respawn: {n} workers of rank 0 replaced") for n in range(1000)]
    verdicts = [make_event(f"verdict: {n}", kind=EventKind.VERDICT) for n in range(1000)]
    mixed = [event for pair in zip(verdicts, everyday, strict=True) for event in pair]
    kept = keep_newest(mixed)
    assert [one for one in kept if is_everyday(one)] == everyday[-EVERYDAY_KEPT:]
    assert [one for one in kept if not is_everyday(one)] == verdicts[EVERYDAY_KEPT - EVENT_LIMIT :]
    places = {one.text: number for number, one in enumerate(mixed)}
    assert [places[one.text] for one in kept] == sorted(places[one.text] for one in kept)
    assert keep_newest([*verdicts[:3], *everyday]) == (*verdicts[:3], *everyday[-(EVENT_LIMIT - 3) :])
    assert keep_newest(verdicts) == tuple(verdicts[-EVENT_LIMIT:])
    assert keep_newest(everyday) == tuple(everyday[-EVENT_LIMIT:])
    assert keep_newest([*verdicts, *everyday[:7]])[-7:] == tuple(everyday[:7])
    assert keep_newest(mixed[:EVENT_LIMIT]) == tuple(mixed[:EVENT_LIMIT])
