"""The verdict does not flicker: causes rise, fall, and change places slowly."""

import itertools
import random
from dataclasses import replace

import pytest

from tests.starving import COMPUTES, IDLES, SOCKET, line_up, make_looks, make_second, starve
from tpmon.judge import hysteresis
from tpmon.judge.advice.choose import CATALOGUE, REMEDIES
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Key, Suspicion
from tpmon.judge.finding import find
from tpmon.judge.hysteresis import RISE_S, Standing, Track, follow, is_settled, is_shaken, leave_out_own, note_rules
from tpmon.judge.ranking import EXPLAINS, find_explained, find_rivals, rank, weigh
from tpmon.model.figures import Origin
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.verdict import TABLE, Confidence, Kind

SECOND = 1_000_000_000
DATA: Key = (Kind.DATA_BOUND, "cpu-transform")
COLLATE: Key = (Kind.DATA_BOUND, "collate")
POOL: Key = (Kind.OVERSUBSCRIBED, "rank-pool")
COMPUTE: Key = (Kind.COMPUTE_BOUND, "cpu")
PYTHON: Key = (Kind.PYTHON_BOUND, "single-thread")
HUNG: Key = (Kind.HUNG, "no-progress")
STARTING: Key = (Kind.STARTING, "import")


def suspect(key: Key, weight: float = 0.5) -> Suspicion:
    kind, cause = key
    return Suspicion(kind, cause, weight, 2.0, frozenset(("a", "b")), "summary", ())


def run(seconds: list[list[Suspicion]], standing: Standing | None = None) -> tuple[list[Key | None], Standing]:
    """Judge one list of suspicions a second; return what was stated after each."""
    standing = standing or Standing()
    stated = []
    now_ns = standing.judged_ns or 100 * SECOND
    for suspicions in seconds:
        now_ns += SECOND
        standing = follow(standing, suspicions, now_ns)
        ranked = rank(standing.tracks, standing.stated)
        decided = hysteresis.state(
            standing, ranked, {hysteresis.key_of(one.suspicion): weigh(one) for one in ranked}, now_ns
        )
        standing = hysteresis.damp(standing, decided, now_ns)
        stated.append(standing.stated)
    return stated, standing


def changes(stated: list[Key | None]) -> list[Key | None]:
    return [new for old, new in itertools.pairwise(stated) if new != old]


def test_a_cause_must_stay_before_it_is_stated_and_a_glimpse_is_never_stated():
    stated, _ = run([[suspect(DATA)]] * 10)
    assert stated.index(DATA) == RISE_S
    assert set(stated[: int(RISE_S)]) == {None}
    stated, standing = run(([[suspect(DATA)]] * 2 + [[]] * 8) * 5)
    assert set(stated) == {None}
    assert standing.tracks == ()


def test_a_stated_cause_stays_for_a_while_after_it_was_last_seen_until_another_is_but_a_hang_does_not():
    stated, _ = run([[suspect(DATA)]] * 10 + [[]] * 20)
    gone = stated[10:].index(None)
    assert gone == pytest.approx(hysteresis.FALL_S + hysteresis.LINGER_S, abs=1)
    stated, _ = run([[suspect(HUNG)]] * 10 + [[]] * 20)
    assert stated[10:].index(None) == pytest.approx(hysteresis.FALL_S, abs=1)
    stated, _ = run([[suspect(DATA)]] * 20 + [[]] * 10 + [[suspect(POOL)]] * 10)
    assert changes(stated) == [DATA, POOL]


def test_a_heavier_cause_takes_over_once_it_stays_ahead_and_equals_do_not_take_turns():
    both = [suspect(DATA, 0.3), suspect(PYTHON, 0.6)]
    stated, _ = run([[suspect(DATA, 0.3)]] * 8 + [both] * 12)
    change = stated[8:].index(PYTHON)
    assert RISE_S <= change <= RISE_S + hysteresis.SWITCH_S + 2
    draw = random.Random(7)
    seconds = [
        [suspect(DATA, 0.4 + draw.uniform(-0.04, 0.04)), suspect(PYTHON, 0.4 + draw.uniform(-0.04, 0.04))]
        for _ in range(300)
    ]
    stated, _ = run(seconds)
    named = [one for one in stated if one is not None]
    assert len(set(named)) == 1


def test_another_cause_takes_over_within_twenty_seconds_and_one_of_the_same_kind_at_once():
    stated, _ = run([[suspect(DATA)]] * 10 + [[suspect(COLLATE)]] * 10)
    assert stated[10:].index(COLLATE) == RISE_S
    stated, _ = run([[suspect(DATA)]] * 10 + [[suspect(PYTHON)]] * 10)
    assert RISE_S < stated[10:].index(PYTHON) <= hysteresis.FALL_S, "another kind waits until it has fallen"
    stated, _ = run([[suspect(DATA)]] * 30 + [[suspect(DATA)]] * 7 + [[suspect(POOL)]] * 13)
    assert stated[29] == DATA
    assert stated[49] == POOL
    assert changes(stated) == [DATA, POOL]


@pytest.mark.parametrize("weight", [0.2, 0.5, 0.9])
def test_a_cause_at_its_threshold_beside_another_of_its_kind_does_not_flicker(weight):
    draw = random.Random(13)
    other = suspect(COLLATE, weight)
    stated, _ = run([[suspect(DATA), other] if draw.random() < 0.5 else [other] for _ in range(300)])
    assert len(changes(stated)) <= 4


def test_a_pause_of_tpmon_itself_is_not_evidence():
    _, standing = run([[suspect(DATA)]])
    late = follow(standing, [suspect(DATA)], standing.judged_ns + 3600 * SECOND)
    assert late.tracks[0].score < 1


HOT: Key = (Kind.GPU_THROTTLED, "thermal")
LINK: Key = (Kind.GPU_THROTTLED, "pcie")
LATE: Key = (Kind.COMMS_BOUND, "straggler")
TRANSFER: Key = (Kind.COMMS_BOUND, "transfer")
NOISE: Key = (Kind.COMMS_BOUND, "unknown")
STORE: Key = (Kind.DATA_BOUND, "network-store")
FEW: Key = (Kind.DATA_BOUND, "too-few-workers")


@pytest.mark.parametrize(
    ("suspected", "stated"),
    [
        ({STARTING: 0.5}, STARTING),
        ({DATA: 1.0, HUNG: 0.1}, HUNG),
        ({COMPUTE: 1.0, PYTHON: 0.15}, PYTHON),
        ({DATA: 0.9, POOL: 0.4}, POOL),  # a shadow is not stated beside its cause
        ({HOT: 0.1, LATE: 0.5}, LATE),
        ({LINK: 0.04, COMPUTE: 0.9}, COMPUTE),  # a throttle that costs next to nothing
        ({LINK: 0.06, COMPUTE: 0.9}, LINK),
    ],
)
def test_what_is_stated_of_several(suspected, stated):
    assert run([[suspect(key, weight) for key, weight in suspected.items()]] * 10)[0][-1] == stated


def test_what_a_process_does_right_now_is_said_at_once_and_never_settled():
    for key in (STARTING, HUNG):
        stated, standing = run([[suspect(key)]] * 100)
        assert (stated[-1], is_settled(standing, standing.judged_ns)) == (key, False)
    assert run([[suspect(STARTING)]])[0] == [STARTING]
    assert run([[suspect(DATA)]] * 10 + [[suspect(DATA), suspect(HUNG, 0.1)]] * 6)[0][9::6] == [DATA, HUNG]


@pytest.mark.parametrize(
    ("weights", "explained"),
    [
        # A rank that waits for data explains those that wait for it, not what all ranks send each other.
        ({LATE: 0.5, STORE: 0.5}, {LATE}),
        ({TRANSFER: 0.5, STORE: 0.5}, set()),
        ({TRANSFER: 0.5, POOL: 0.5}, {TRANSFER}),
        # A throttle explains a wait of ranks as far as it costs, of one card no transfer.
        ({HOT: 0.3, LATE: 0.5}, {LATE}),
        ({HOT: 0.1, LATE: 0.5}, set()),
        ({HOT: 0.4, TRANSFER: 0.5}, set()),
        ({LINK: 0.4, TRANSFER: 0.5}, {TRANSFER}),
        # What a hung job waits for is no second cause.
        ({HUNG: 0.5, POOL: 0.5, NOISE: 0.5, FEW: 0.5, PYTHON: 0.5}, {NOISE, FEW, PYTHON}),
    ],
)
def test_what_another_cause_explains(weights, explained):
    assert find_explained(weights, weights) == explained


def test_nothing_explains_itself_or_in_a_circle_and_every_row_of_the_explanations_is_in_the_table():
    rows: list[Key] = [(row.kind, cause) for row in TABLE for cause in (row.causes or (NOT_APPLICABLE,))]
    for key in rows:
        assert find_explained([key]) == frozenset(), key
    for one in rows:
        for other in rows:
            assert len(find_explained([one, other])) < 2, (one, other)
    causes = {row.kind: row.causes for row in TABLE}
    for key in [*EXPLAINS, *(shadow for shadows in EXPLAINS.values() for shadow in shadows)]:
        assert key[1] is NOT_APPLICABLE or key[1] in causes[key[0]], key


def test_a_verdict_that_stands_longer_than_its_cause_is_not_shown_beside_the_word_against_it():
    here, gone, other = suspect(STARTING), Cleared("starting (steps go on)"), Cleared("swap (0 B)")
    standing = note_rules(Standing(), [other, here], 1)
    standing = replace(follow(standing, [here], 1), stated=STARTING)
    later = note_rules(follow(standing, [], SECOND), [other, gone], SECOND)
    assert leave_out_own(later, [other, gone]) == [other]
    assert leave_out_own(later, [other, here]) == [other, here]
    assert leave_out_own(replace(later, stated=DATA), [other, gone]) == [other, gone]
    assert note_rules(replace(later, tracks=()), [other, gone], SECOND).rules == ()


def take_turns(seconds: int, *each: list[Suspicion], turns: int) -> list[list[Suspicion]]:
    return [each[turn % len(each)] for turn in range(turns) for _ in range(seconds)]


def test_a_run_at_two_thresholds_changes_its_verdict_and_back_once_and_at_one_it_does_not_come_and_go():
    data, collate = [suspect(DATA)], [suspect(COLLATE)]
    stated, _ = run(take_turns(20, data, collate, turns=15))
    assert len(changes(stated)) <= 3
    assert set(stated[30:]) == {DATA, COLLATE}
    stated, _ = run(take_turns(25, [suspect(DATA), suspect(COMPUTE)], [suspect(COMPUTE)], turns=12))
    assert len(changes(stated)) <= 4
    draw = random.Random(11)
    stated, _ = run([[suspect(DATA)] if draw.random() < 0.5 else [] for _ in range(300)])
    assert len(changes(stated)) <= 4


def test_changes_a_minute_apart_are_no_flicker_after_one_of_others_neither():
    _, flickered = run(take_turns(20, [suspect(DATA)], [suspect(COLLATE)], turns=4))
    for pair, standing in (((DATA, PYTHON), None), ((PYTHON, POOL), flickered)):
        stated, _ = run(take_turns(60, *([suspect(one)] for one in pair), turns=6), standing)
        for turn in range(6):
            assert stated[60 * turn + 15 : 60 * turn + 60] == [pair[turn % 2]] * 45


def test_what_flickered_is_stated_again_once_it_lasts_and_what_did_not_or_a_hang_as_ever():
    flicker = take_turns(20, [suspect(DATA)], [suspect(COLLATE)], turns=6)
    stated, standing = run([*flicker, *[[suspect(POOL)]] * 15])
    assert stated[-1] == POOL
    assert run([[suspect(HUNG)]] * 2, standing)[0][-1] == HUNG
    _, standing = run(flicker)
    lasting = COLLATE if standing.stated == DATA else DATA
    stated, standing = run([[suspect(lasting)]] * 80, standing)
    assert stated[40] != lasting
    assert stated[-1] == lasting
    after, _ = run([[suspect(lasting)]] * round(hysteresis.CALM_S), standing)
    assert set(after) == {lasting}
    assert hysteresis.DAMPED_S < 80


def test_a_verdict_is_settled_once_it_has_stood_for_a_minute_and_so_is_that_there_is_none():
    _, standing = run([[suspect(DATA)]] * int(RISE_S + hysteresis.SETTLED_S))
    assert not is_settled(standing, standing.judged_ns)
    _, standing = run([[suspect(DATA)]] * 3, standing)
    assert is_settled(standing, standing.judged_ns)
    _, standing = run([[suspect(DATA, 0.9), suspect(PYTHON, 0.2)]] * 70)
    assert (standing.stated, is_settled(standing, standing.judged_ns)) == (DATA, True)
    _, standing = run([[]] * 50)
    assert not is_settled(standing, standing.judged_ns)
    _, standing = run([[]] * 20, standing)
    assert is_settled(standing, standing.judged_ns)
    _, standing = run([[suspect(DATA)]], standing)
    assert not is_settled(standing, standing.judged_ns)


@pytest.mark.parametrize(
    "next_second",
    [[suspect(DATA, 0.9), suspect(COLLATE, 0.2)], [], [suspect(HUNG)]],
    ids=["another cause appears", "the cause is gone", "it hangs"],
)
def test_whatever_begins_to_speak_against_it_unsettles_it_at_once(next_second):
    _, standing = run([[suspect(DATA, 0.9)]] * 70)
    assert is_settled(standing, standing.judged_ns)
    _, later = run([next_second], standing)
    assert not is_settled(later, later.judged_ns)
    dropped = hysteresis.drop(standing, {DATA}, standing.judged_ns)  # because the run stands still
    assert (dropped.stated, is_settled(dropped, standing.judged_ns)) == (None, False)


# changes that are no chance

LIGHT = {**IDLES, "runnable": 0.18}
RESTING = {**IDLES, "runnable": 0.02}


def seconds(*parts):
    """Line up (wait, kinds, count) one after the other."""
    return line_up([make_second(wait, kinds) for wait, kinds, count in parts for _ in range(count)])


def test_chance_does_not_shake():
    draw = random.Random(3)
    frames = line_up(
        [make_second(0.3, [{**COMPUTES, "runnable": 0.9 + draw.uniform(-0.1, 0.1)}] * 2) for _ in range(300)]
    )
    shaken = sum(is_shaken(frames[:end]) for end in range(20, 300))
    assert shaken <= 6


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((0.7, [COMPUTES] * 2), (0.0, [COMPUTES] * 2)),
        ((0.0, [COMPUTES] * 2), (0.7, [COMPUTES] * 2)),
        ((0.0, [LIGHT] * 2), (0.0, [RESTING] * 2)),
        ((0.7, [COMPUTES] * 2), (0.7, [SOCKET] * 2)),
    ],
    ids=["waits no more", "begins to wait", "its workers have less to do", "its workers wait for a store"],
)
def test_a_change_shakes_within_three_readings_and_is_over_when_it_is_the_rule(before, after):
    frames = seconds((*before, 30), (*after, 30))
    first = next(end for end in range(20, 61) if is_shaken(frames[:end]))
    assert 31 <= first <= 33
    assert not is_shaken(frames)


@pytest.mark.parametrize(
    "frames",
    [
        seconds((0.7, [COMPUTES] * 2, 40)),
        seconds((0.3, [COMPUTES] * 2, 30), (0.5, [LIGHT] * 2, 1), (0.3, [COMPUTES] * 2, 2)),
        seconds((0.7, [COMPUTES], 5), (0.0, [COMPUTES], 3)),
        line_up([make_second(0.5, [], frame={"main_threads": Missing("not read")})] * 30),
    ],
    ids=["it goes on as before", "one second of another kind", "few readings", "no looks"],
)
def test_what_does_not_shake(frames):
    assert not is_shaken(frames)


def test_of_many_ranks_the_few_looks_at_each_are_told_together():
    """At the pace of a settled verdict eight ranks have ten looks a second between them."""

    def look(waits):
        looks = tuple(make_looks(4211 + rank, 2, batch_wait=waits) for rank in range(8))
        return {"main_threads": looks}

    frames = line_up([make_second(0.5, [], frame=look(waits)) for waits in (0,) * 20 + (2,) * 3])
    assert is_shaken(frames)
    assert not is_shaken(frames[:-3])


PERIODIC: Key = (Kind.DATA_BOUND, "periodic")


def find_last_rivals(seconds, stated):
    _, standing = run(seconds)
    (own,) = (one for one in seconds[-1] if hysteresis.key_of(one) == stated)
    return [hysteresis.key_of(one) for one in find_rivals(own, standing.presences)]


def in_turn(one, other, each=5):
    return ([[one]] * each + [[other]] * each) * 4


RIVALS = {
    "both all the time": ([[suspect(DATA), suspect(COLLATE)]] * 30, [COLLATE]),
    "now the one, now the other": (in_turn(suspect(COLLATE), suspect(DATA)), [COLLATE]),
    "the stated one explains the other, and comes and goes": (in_turn(suspect(DATA), suspect(PERIODIC)), [DATA]),
    "the stated one explains the other": ([[suspect(PERIODIC), suspect(DATA)]] * 30, []),
    "the other costs far less": ([[suspect(DATA), suspect(COLLATE, 0.2)]] * 30, []),
    "the other is of another kind": ([[suspect(DATA), suspect(PYTHON)]] * 30, []),
    "a glimpse of the other": ([[suspect(DATA)]] * 27 + [[suspect(DATA), suspect(COLLATE)]] * 3, []),
    "the run has changed once": ([[suspect(COLLATE)]] * 30 + [[suspect(DATA)]] * 8, []),
    "healthy either way": ([[suspect(COMPUTE), suspect((Kind.COMPUTE_BOUND, "gpu"))]] * 30, []),
    "a hang": ([[suspect(HUNG), suspect((Kind.HUNG, "lock"))]] * 30, []),
}


@pytest.mark.parametrize("name", RIVALS)
def test_causes_within_each_others_noise_are_rivals(name):
    seconds, expected = RIVALS[name]
    assert find_last_rivals(seconds, hysteresis.key_of(seconds[-1][0])) == expected


def test_shares_with_intervals_are_alike_where_these_overlap():
    near = [replace(suspect(key, 0.5), share_low=0.4, share_high=0.6) for key in (DATA, COLLATE)]
    far = [near[0], replace(near[1], share_low=0.61, share_high=0.7)]
    assert find_last_rivals([near] * 30, DATA) == [COLLATE]
    assert find_last_rivals([far] * 30, DATA) == []


def test_a_verdict_with_a_rival_names_it_is_no_surer_than_medium_and_tries_first_what_helps_both():
    scene = starve(0.6, [COMPUTES] * 2, cpu={"budget_cores": 4.0, "runnable": 2.4, "demand_ratio": 0.6})
    own = replace(
        suspect(DATA, 0.6),
        origins=frozenset((Origin.PROC, Origin.PIPES)),
        summary="late: its workers compute",
        observed=frozenset((Need.TRANSFORM_MOVABLE,)),
    )
    other = replace(own, cause="collate", summary="late: they put batches together")
    standing = Track(own, 1.0, 0, 0)
    plain, both = find(standing, [], scene), find(standing, [], scene, (other,))
    assert (plain.confidence, both.confidence) == (Confidence.HIGH, Confidence.MEDIUM)
    assert both.summary == "late: its workers compute; as likely collate: they put batches together"
    shared = set(REMEDIES[DATA]) & set(REMEDIES[COLLATE])
    firsts = [one for one in CATALOGUE if one in shared and both.try_.startswith(CATALOGUE[one].title.split("{")[0])]
    assert firsts, both.try_
