"""What follows from the conditions of a rule: its answer, its evidence, its margin, its origins."""

import pytest

from tests.frames import make_frame
from tests.judging import clears, doubts
from tpmon.judge.answers.result import Suspicion, by_conditions, reading
from tpmon.judge.features.engine import Proof, given, proves, reaches, tells
from tpmon.judge.features.snapshot import see
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.verdict import Kind

SCENE = see([make_frame()])
GONE = Missing("permission denied")


@by_conditions
def judge_made(demand, idle):
    made = Proof("a made cause", SCENE)
    made.at_least(Figure.PIN_THREAD_WANTS, demand, 0.8)
    made.below(Figure.QUEUE_EMPTY, idle, 0.5)
    made.show(Figure.MAIN_IN_COLLATE, 0.3)
    return made.suspect(Kind.DATA_BOUND, "pin", 0.5, "it is made")


def make_row(value, *, must=True, holds=True):
    terms = (
        given(lambda of, scene: holds, "it does not hold"),
        tells(Figure.MAIN_IN_COLLATE, lambda of, scene: 0.3, decides=False),
        reaches(Figure.PIN_THREAD_WANTS, lambda of, scene: 1.0, 0.5),
        reaches(Figure.QUEUE_EMPTY, lambda of, scene: of, 0.5, must=must),
    )

    @proves("a row")
    def judge(proof, scene):
        for take in terms:
            take(proof, value)
        return proof.suspect(Kind.DATA_BOUND, "pin", 0.5, f"it reads {value}")

    return judge


@pytest.mark.parametrize(
    ("demand", "idle", "said"),
    [
        (GONE, 0.1, "a made cause (pin thread wants: permission denied)"),
        (0.4, GONE, "a made cause (pin thread wants 0.4 CPUs, below 0.8 CPUs)"),
        (0.9, GONE, "a made cause (queue empty: permission denied)"),
        (0.9, 0.6, "a made cause (queue empty 60 %, not below 50 %)"),
    ],
)
def test_what_was_not_read_is_unknown_and_the_first_figure_that_does_not_hold_clears(demand, idle, said):
    answer = judge_made(demand, idle)
    assert answer.text == said
    assert (doubts if "denied" in said else clears)(answer, said)


def test_all_that_hold_make_the_evidence_its_origins_and_the_least_margin():
    answer = judge_made(1.6, 0.4)
    assert [row.figure for row in answer.evidence] == [Figure.PIN_THREAD_WANTS, Figure.QUEUE_EMPTY]
    assert [row.value for row in answer.evidence] == [1.6, 40.0]
    assert answer.origins == {Origin.PROC, Origin.PIPES}, "what is only shown makes nothing surer"
    assert [row.figure for row in answer.shows] == [Figure.MAIN_IN_COLLATE]
    assert answer.margin == pytest.approx(1.25)


def test_a_row_answers_as_a_rule_does():
    assert clears(make_row(0.6, holds=False)(SCENE), "it does not hold")
    assert clears(make_row(0.4)(SCENE), "queue empty 40 %, below 50 %")
    assert doubts(make_row(GONE)(SCENE), "queue empty: permission denied")
    found = make_row(0.6)(SCENE)
    assert (found.summary, found.margin) == ("it reads 0.6", pytest.approx(1.2))
    assert [row.figure for row in found.shows] == [Figure.MAIN_IN_COLLATE]


@pytest.mark.parametrize("value", [0.4, GONE])
def test_a_figure_that_need_not_agree_is_evidence_only_where_it_does(value):
    assert make_row(value, must=False)(SCENE).origins == {Origin.PROC}
    assert make_row(0.6, must=False)(SCENE).origins == {Origin.PROC, Origin.PIPES}


def test_a_reading_that_was_not_read_is_from_nowhere_and_one_from_elsewhere_says_so():
    frame = SCENE.frame
    assert reading(Figure.MEMORY_STALLS, GONE, frame).origins == frozenset()
    assert reading(Figure.MEMORY_STALLS, 1.0, frame).origins == {Origin.CGROUP}
    assert reading(Figure.MEMORY_STALLS, 1.0, frame, origins=(Origin.PROC,)).origins == {Origin.PROC}


def test_pressure_of_the_whole_host_beside_another_reading_of_proc_is_one_origin():
    frame = SCENE.frame
    rows = (reading(Figure.POOL_DEMAND, 3.0, frame), reading(Figure.MEMORY_STALLS, 20.0, frame, origins=(Origin.PROC,)))
    assert Suspicion(Kind.BALANCED, NOT_APPLICABLE, 0.0, 1.0, evidence=rows).origins == {Origin.PROC}


def test_each_figure_has_an_origin_and_each_origin_a_figure():
    assert all(one.origins for one in Figure)
    assert {origin for one in Figure for origin in one.origins} == set(Origin)
