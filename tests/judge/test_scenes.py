"""What must hold of every job: its judge is its Standing, one origin is one source, names decide nothing."""

import ast
import gc
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests import judging
from tests.judge.changing import (
    HOSTILE,
    babble,
    decided,
    permute,
    pick_number,
    rename,
    renumber,
    reverse,
    shift,
    swap_rank,
)
from tests.judge.scenes import SCENES
from tpmon.judge import judge
from tpmon.judge.dumps import outlier
from tpmon.judge.dumps.describe import describe_stack
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hysteresis import Standing, key_of
from tpmon.judge.watch.tracker import WatchedTime
from tpmon.model.frame import Frame
from tpmon.model.known import Known, is_known
from tpmon.model.stacks import StackSlice
from tpmon.model.verdict import Confidence, Finding, Origin

NAMES = ("workers compute", "one worker is slow", "late rank", "a rank in a lock", "steps")


def follow(frames: Sequence[Frame]) -> Iterator[Known[Finding]]:
    """Judge Frames one by one, and say each time what the verdict is."""
    return (one.frame.verdict for one in judging.follow(frames, Standing(watch=WatchedTime(may_ask=True))))


def test_jobs_that_are_judged_in_turns_get_the_verdicts_of_each_alone():
    alone = {name: list(follow(SCENES[name]())) for name in NAMES}
    together = {name: follow(SCENES[name]()) for name in NAMES}
    told: dict[str, list[Known[Finding]]] = {name: [] for name in NAMES}
    while together:
        for name in list(together):
            verdict = next(together[name], None)
            if verdict is None:
                del together[name]
            else:
                told[name].append(verdict)
    assert told == alone


def test_jobs_that_are_judged_in_threads_get_the_verdicts_of_each_alone():
    alone = {name: list(follow(SCENES[name]())) for name in NAMES}
    with ThreadPoolExecutor(len(NAMES)) as pool:
        told = dict(zip(NAMES, pool.map(lambda name: list(follow(SCENES[name]())), NAMES), strict=True))
    assert told == alone


def test_nothing_of_a_job_is_kept_when_its_standing_is_gone():
    frames = SCENES["late rank"]()
    mine = {id(one) for frame in frames for one in (frame.stacks if isinstance(frame.stacks, tuple) else ())}
    assert mine
    before = {id(one) for one in gc.get_objects() if type(one) is Scene}  # isinstance would run code of other tests
    list(follow(frames))
    del frames
    gc.collect()
    left = [one for one in gc.get_objects() if type(one) in (Scene, StackSlice)]
    assert not [one for one in left if id(one) in mine or (type(one) is Scene and id(one) not in before)]


# two readings of one physical origin are one source


@pytest.mark.parametrize("name", SCENES)
def test_no_verdict_is_sure_by_one_origin(name, monkeypatch):
    told: dict[object, frozenset[Origin]] = {}
    judge_scene = judge.judge_scene

    def note(scene, standing):
        found = judge_scene(scene, standing)
        told.update({key_of(one.suspicion): one.suspicion.origins for one in found[1].tracks})
        return found

    monkeypatch.setattr(judge, "judge_scene", note)
    for verdict in follow(SCENES[name]()):
        if verdict.confidence is Confidence.HIGH:
            assert len(told[verdict.kind, verdict.cause]) > 1
    assert all(isinstance(one, Origin) for origins in told.values() for one in origins)


# names, numbers, clocks and words

JUDGE = Path(__file__).parents[2] / "tpmon" / "judge"
TEXTS = frozenset(("text", "waits_for", "detail", "where", "doing", "summary"))
"""Attributes that hold words for eyes alone: of a stack, a wait, evidence."""


ALIKE = {"backward in a lock", "both ranks are stopped"}
"""Scenes whose ranks all stand alike, so that the first of them is named."""


def decide(frames: Sequence[Frame]) -> tuple[object, ...]:
    """Return what the last verdict of a Window decides."""
    (*_, verdict) = follow(frames)
    assert is_known(verdict)
    return decided(verdict)


@cache
def plain(name: str) -> tuple[list[Frame], tuple[object, ...]]:
    """Return the Frames of a scene, and what the verdict on them decides."""
    frames = SCENES[name]()
    return frames, decide(frames)


def assert_names_decide_nothing(name: str, words: Sequence[str]) -> None:
    frames, decision = plain(name)
    for word in words:
        renamed = rename(frames, word)
        assert renamed != frames
        assert decide(renamed) == decision, word


@pytest.mark.parametrize("name", SCENES)
def test_the_names_of_files_functions_threads_and_processes_change_no_verdict(name, request):
    assert_names_decide_nothing(name, HOSTILE[: 1 if request.config.getoption("fast") else 3])


@pytest.mark.long
@pytest.mark.parametrize("name", SCENES)
def test_no_other_name_does(name):
    assert_names_decide_nothing(name, HOSTILE[3:])


@pytest.mark.parametrize(
    "change", [lambda frames: shift(frames, 86_400 * 365), reverse, babble], ids=["clocks", "order", "words"]
)
@pytest.mark.parametrize("name", SCENES)
def test_clocks_order_and_words_change_no_verdict(name, change):
    frames, decision = plain(name)
    assert decide(change(frames)) == decision


@pytest.mark.parametrize("name", sorted(SCENES.keys() - ALIKE))
def test_numbers_of_processes_and_ranks_move_with_the_culprit(name):
    frames, (kind, cause, pid, rank, *rest) = plain(name)
    assert decide(renumber(frames)) == (kind, cause, pick_number(pid), rank, *rest)
    assert decide(permute(frames)) == (kind, cause, pid, swap_rank(rank), *rest)


def test_the_words_of_a_stack_change_no_verdict(monkeypatch):
    decisions = {name: plain(name)[1] for name in SCENES}
    words = random.Random(27)

    def garble(role, kind, frames):
        said = words.choice(("queue.get", "barrier", "threads to end", "waits for it", "data wait: x"))
        return replace(describe_stack(role, kind, frames), text=f"{said} {words.random()}")

    monkeypatch.setattr(outlier, "describe_stack", garble)
    assert {name: decide(build()) for name, build in SCENES.items()} == decisions


def _find_decisions(source: str) -> list[str]:
    """Return the comparisons and searches in words for eyes alone."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("startswith", "endswith", "find", "count", "index"):
                parts = [node.func.value]
            elif node.func.attr in ("search", "match", "fullmatch"):
                parts = list(node.args)
        if any(isinstance(one, ast.Attribute) and one.attr in TEXTS for one in parts):
            found.append(ast.unparse(node))
    return found


def test_judge_compares_no_words_of_waits_stacks_or_evidence():
    # What a place is called decides how its lines are added up, and describe makes the words.
    told = {path: _find_decisions(path.read_text()) for path in JUDGE.rglob("*.py") if path.name != "describe.py"}
    found = {
        (str(path.relative_to(JUDGE)), one)
        for path, those in told.items()
        for one in those
        if "is None" not in one and "is not None" not in one and ".reason" not in one
    }
    assert not found
    assert _find_decisions("a = 'x' in seen.doing.text or process.waits_for.startswith('y')")
