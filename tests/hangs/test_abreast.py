"""Which runs the matrix makes, and how many of them at once; with programs that are not started."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.hangs import abreast
from tests.hangs.abreast import Abreast, Run
from tests.hangs.matrix import choose, plan
from tests.hangs.programs import Trees
from tests.hangs.results import Result
from tests.programs.causes.running import CannotBeMadeError
from tests.programs.hangs.table import ALIVE_ROWS, ROWS, AliveRow, Row

RUNS = 10
TURN_S = 0.02


class NoTrees(Trees):
    """Stand for a program that hangs at once."""

    def __init__(self) -> None:
        """Hold nothing."""

    def wait_until_ready(self) -> None:
        """Be ready."""

    def end(self) -> None:
        """End nothing."""


class Busy:
    """Count how many runs are looked at, at the same time, and of them those that compute."""

    def __init__(self) -> None:
        self.now = self.most = self.burning = self.most_burning = 0
        self.lock = threading.Lock()

    def look(self, row: Row, seed: int, old_s: float, _trees: Trees) -> Result:
        with self.lock:
            self.now += 1
            self.burning += row.burns
            self.most = max(self.most, self.now)
            self.most_burning = max(self.most_burning, self.burning)
        time.sleep(TURN_S)
        with self.lock:
            self.now -= 1
            self.burning -= row.burns
        return Result(row.name, seed, old_s, "", (), 1.0, (), "")


@contextmanager
def start_none(_row: Row | AliveRow, _seed: int, _seconds: float) -> Iterator[Trees]:
    yield NoTrees()


def ask(**more: object) -> argparse.Namespace:
    return argparse.Namespace(**{"seed": 5, "runs": RUNS, "alive_runs": 2, "old": 0.0} | more)


def test_a_group_of_programs_has_a_name_and_nothing_is_chosen_twice():
    assert choose("") == [*ROWS, *ALIVE_ROWS]
    assert choose("hung,lock_held") == list(ROWS)
    assert choose("alive") == list(ALIVE_ROWS)
    with pytest.raises(SystemExit, match="no such program: lock_hold"):
        choose("lock_held,lock_hold")


def test_a_run_whose_result_is_kept_is_not_made_again_and_the_longest_come_first():
    rows = choose("lock_held,regex,slow_step")
    runs = plan(rows, [Result("lock_held", 6, 0.0, "", (), 1.0, (), "")], ask())
    names = [row.name for row, _ in runs]
    assert names[:RUNS] == ["regex"] * RUNS
    assert names.count("slow_step") == 2
    assert sorted(seed for row, seed in runs if row.name == "lock_held") == [5, *range(7, 15)]
    assert {row.name for row, _ in plan(rows, [], ask(old=300.0))} == {"lock_held", "regex"}


@pytest.mark.parametrize("old_s", [0.0, 0.01])
def test_so_many_are_busy_at_once_and_those_that_compute_no_more_than_cpus(monkeypatch, old_s: float):
    busy = Busy()
    monkeypatch.setattr(abreast, "start_trees", start_none)
    monkeypatch.setattr(abreast, "look", busy.look)
    told: list[Result] = []
    runs: list[Run] = [(row, seed) for seed in range(4) for row in choose("lock_held,regex,spin")]
    Abreast(3, 1, 8, old_s, told.append).run(runs)
    assert sorted((one.name, one.seed) for one in told) == sorted((row.name, seed) for row, seed in runs)
    assert busy.most_burning == 1
    assert 1 < busy.most <= 3


def test_what_cannot_be_made_is_told_and_what_broke_is_counted(monkeypatch, capsys):
    @contextmanager
    def start(row: Row | AliveRow, _seed: int, _seconds: float) -> Iterator[Trees]:
        if row.name == "lock_held":
            raise CannotBeMadeError("no locks here")
        raise RuntimeError("did not start")
        yield NoTrees()

    monkeypatch.setattr(abreast, "start_trees", start)
    told: list[Result] = []
    one = Abreast(2, 1, 2, 0.0, told.append)
    one.run([(row, 1) for row in choose("lock_held,stdin")])
    assert [(result.name, result.skipped) for result in told] == [("lock_held", "no locks here")]
    assert one.failed == 1
    assert "stdin seed 1: not looked at: did not start" in capsys.readouterr().err


def test_an_interrupt_ends_all_that_runs_and_starts_nothing_more(monkeypatch):
    ended = threading.Event()

    class Waiting(NoTrees):
        def wait_until_ready(self) -> None:
            assert ended.wait(10)

        def end(self) -> None:
            ended.set()

    started: list[str] = []

    @contextmanager
    def start(row: Row | AliveRow, _seed: int, _seconds: float) -> Iterator[Trees]:
        started.append(row.name)
        if row.name == "stdin":
            raise KeyboardInterrupt
        yield Waiting()

    monkeypatch.setattr(abreast, "start_trees", start)
    monkeypatch.setattr(abreast, "look", Busy().look)
    told: list[Result] = []
    with pytest.raises(KeyboardInterrupt):
        Abreast(2, 1, 2, 0.0, told.append).run([(row, 1) for row in choose("stdin,lock_held,lock_order")])
    assert told == []
    assert ended.is_set() or "lock_held" not in started
