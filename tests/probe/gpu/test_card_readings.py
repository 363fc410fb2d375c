"""Ages, states and events of the cards, on lines and times: no process, no clock."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.fake_nvml import SECOND_NS
from tests.probe.gpu.test_rates import FAST, make_line
from tpmon.model.gpu import NOT_VISIBLE, Driver, GpuSample, GpuState
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, Why, is_known
from tpmon.probe.gpu.bounds import DriverCard, Listed
from tpmon.probe.gpu.card_readings import NOT_YET, PASSING_S, Board, GpuReading
from tpmon.probe.gpu.nvml import blank_fast
from tpmon.probe.gpu.wire import (
    CardIdentity,
    CardLine,
    CardProcessReading,
    DriverLine,
    FailureLine,
    Line,
    NoteLine,
    XidLine,
)

IDENTITY = CardIdentity("H100", 0, 1980.0, 2619.0, 5, 16, 87.0, True)


class Story:
    """A board, and the time that passes around it; of ``cards`` that the driver lists those ``answering`` do."""

    def __init__(self, cards: int | None = None, answering: Sequence[int] = ()) -> None:
        self.board = Board(0)
        self.second = 0.0
        if cards is not None:
            self.driver(cards)
        for index in answering:
            self.card(index)

    def driver(self, cards: int) -> None:
        self.board.on_line(Line(driver=DriverLine("580.65.06", "13.0", cards)), self._now())

    def failure(self, code: int, reason: str = "reason") -> None:
        self.board.on_line(Line(failure=FailureLine(code, reason)), self._now())

    def card(self, index: int, **changes: object) -> None:
        given = {"uuid": f"GPU-{index}", "index": index, "identity": replace(IDENTITY, minor=index)}
        line: CardLine = make_line(self.second, **{**given, **changes})
        self.board.on_line(Line(card=line), self._now())

    def note(self, text: str, *, passing: bool) -> None:
        self.board.on_line(Line(note=NoteLine(text, passing)), self._now())

    def lose(self, index: int, **changes: object) -> None:
        self.card(index, fast=blank_fast("GPU is lost"), lost="GPU is lost", next_s=30.0, **changes)

    def end(self, how: str = "SIGKILL", retry_s: float = 1.0) -> None:
        self.board.on_end(how, self._now(), retry_s)

    def start(self) -> None:
        self.board.on_start(self._now())

    def refuse(self, code: int, reason: str = "reason") -> None:
        """Let the child end because NVML could not be opened."""
        self.failure(code, reason)
        self.end("exit 1", 30.0)

    def read(
        self,
        job: dict[int, int] | None = None,
        held: dict[int, Known[tuple[int, ...]]] | None = None,
        driver_cards: Listed = (),
    ) -> GpuReading:
        return self.board.read(job or {}, held or {}, True, self._now(), driver_cards=driver_cards)

    def cards(self) -> tuple[GpuSample, ...]:
        gpus = self.read().gpus
        assert is_known(gpus)
        return gpus

    def _now(self) -> int:
        return int(self.second * SECOND_NS)


def test_a_wedged_card_ages_and_the_others_stay_live():
    story = Story(3)
    for second in range(10):
        story.second = second
        for index in range(3):
            if index != 1 or second < 2:
                story.card(index)
    story.second = 9.5
    first, wedged, third = story.cards()
    assert (first.state, first.age_s, first.sm_pct) == (GpuState.OK, 0.5, 50.0)
    assert (third.state, third.age_s) == (GpuState.OK, 0.5)
    assert (wedged.state, wedged.age_s, wedged.name) == (GpuState.STALE, 8.5, "H100")
    assert wedged.sm_pct == Missing("the card does not answer")
    story.second = 10
    story.card(1)
    assert story.cards()[1].state is GpuState.OK


def test_a_card_is_not_stale_before_its_line_is_due():
    story = Story(1)
    story.card(0, next_s=10.0)
    story.second = 11.5
    assert story.cards()[0].state is GpuState.OK
    story.second = 12.5
    assert story.cards()[0].state is GpuState.STALE


def test_versions_that_come_late_change_nothing_but_driver_and_source():
    story = Story()
    story.board.on_line(Line(driver=DriverLine(Missing("late"), Missing("late"), 2)), 0)
    story.card(0)
    story.note("Xid events are not watched", passing=False)
    story.driver(2)
    reading = story.read()
    assert reading.driver == Driver("580.65.06", "13.0")
    assert (reading.events, reading.notes) == ((), ("Xid events are not watched",))
    story.second = 2
    story.card(1)
    story.second = 2.5
    reading = story.read()
    assert (reading.source, reading.age_s) == ("NVML, driver 580.65.06", 0.5)


def test_a_card_that_gives_nothing_but_refusals_is_refused_and_not_ok():
    story = Story(1)
    story.card(0, fast=blank_fast("no permission"), next_s=30.0)
    assert (story.cards()[0].state, story.read().events) == (GpuState.REFUSED, ())
    story.second = 40
    assert story.cards()[0].state is GpuState.STALE


def test_a_card_that_never_answers_is_missed_within_a_second_where_another_answers_and_has_an_age():
    assert Story(2, (0,)).read().gpus == NOT_YET  # one look must not take one card for all
    story = Story(2)
    story.second = 1
    assert story.read().gpus == NOT_YET
    story.card(0)
    assert [card.state for card in story.cards()] == [GpuState.OK, GpuState.STALE]
    story.second = 5
    story.card(0)
    silent = story.cards()[1]
    assert (silent.index, silent.state, silent.age_s) == (1, GpuState.STALE, 5.0)
    assert silent.sm_pct == Missing("the card has not answered yet")


def test_a_lost_card_says_so_once_and_counts_from_its_last_answer():
    story = Story(1, (0,))
    story.second = 4
    story.lose(0)
    reading = story.read()
    assert reading.events == ("GPU 0 (H100) is lost: GPU is lost",)
    assert (reading.gpus[0].state, reading.gpus[0].age_s) == (GpuState.LOST, 4.0)
    story.lose(0)
    assert story.read().events == ()
    story.second = 34
    story.card(0)
    reading = story.read()
    assert (reading.events, reading.gpus[0].state) == (("GPU 0 (H100) answers again",), GpuState.OK)


def test_a_lost_card_without_a_uuid_keeps_its_place_and_gets_its_uuid_when_it_comes_back():
    story = Story(2, (0, 1))
    story.end()
    story.start()
    story.driver(2)
    story.card(0)
    story.lose(1, uuid="", identity=replace(IDENTITY, minor=1))
    story.lose(1, uuid="")
    assert [(card.uuid, card.state) for card in story.cards()] == [("GPU-0", GpuState.OK), ("GPU-1", GpuState.LOST)]
    story = Story(1)
    story.lose(0, uuid="")
    assert story.cards()[0].uuid == "card-0"
    story.card(0)
    assert [card.uuid for card in story.cards()] == ["GPU-0"]


def test_the_gap_of_a_restart_is_an_event_and_the_cards_stay():
    story = Story(1, (0,))
    story.second = 1
    story.end("SIGKILL", 1.0)
    assert story.read().events == ("GPU child ended (SIGKILL); next try in 1 s",)
    story.second = 5
    story.start()
    assert story.cards()[0].state is GpuState.STALE
    story.second = 6
    story.driver(1)
    story.card(0)
    reading = story.read()
    assert (reading.events, reading.gpus[0].state) == (("GPU child restarted after SIGKILL, gap 6 s",), GpuState.OK)


def test_a_card_that_a_new_driver_does_not_list_is_lost():
    story = Story(2, (0, 1))
    story.end()
    story.start()
    story.driver(1)
    # Index 1 has moved to 0: cards are known by UUID.
    story.card(0, uuid="GPU-1")
    states = {card.uuid: card.state for card in story.cards()}
    assert states == {"GPU-0": GpuState.LOST, "GPU-1": GpuState.OK}


@pytest.mark.parametrize(
    ("code", "text", "may_hide"),
    [
        (12, "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)", True),
        (9, "the NVIDIA driver is not loaded", True),
        (4, "no permission to use the NVIDIA driver", True),
        (18, "the NVIDIA driver was replaced while in use (library and kernel module differ)", False),
        (0, "the nvidia-ml-py package is not installed", False),
    ],
)
def test_no_driver_is_one_clear_line_or_hides_the_cards_that_a_job_holds(code, text, may_hide):
    story = Story()
    story.refuse(code, "the nvidia-ml-py package is not installed")
    reading = story.read()
    why = Missing(f"{text} (doctor: nvml)", Why.ABSENT if code == 12 else Why.UNREAD)
    assert (reading.gpus, reading.driver, reading.age_s) == (why, why, Missing("no GPU reading yet"))
    assert (reading.events, reading.source) == ((), "NVML")
    hidden = Missing(f"{NOT_VISIBLE} (doctor: cards)")
    assert story.read({10: 1}, {10: (3,)}).gpus == (hidden if may_hide else why)


FREE: dict[int, Known[tuple[int, ...]]] = {10: ()}
REFUSED: dict[int, Known[tuple[int, ...]]] = {10: Missing("permission denied")}
HOLDS: dict[int, Known[tuple[int, ...]]] = {10: (0,)}
NOT_LOADED = "the NVIDIA driver is not loaded"
LIBRARY = "libnvidia-ml.so.1 not found, though the kernel has a driver"


@pytest.mark.parametrize(
    ("code", "has_driver", "held", "text"),
    [
        (9, False, FREE, f"no NVIDIA driver on this machine ({NOT_LOADED})"),
        (9, False, REFUSED, f"no NVIDIA driver on this machine ({NOT_LOADED})"),
        (12, False, FREE, "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)"),
        (9, Missing("denied"), FREE, f"{NOT_LOADED} (doctor: nvml)"),
        (9, True, FREE, f"the job holds no NVIDIA card open ({NOT_LOADED})"),
        (12, True, FREE, f"the job holds no NVIDIA card open ({LIBRARY})"),
        (12, True, REFUSED, f"{LIBRARY} (doctor: nvml)"),
        (12, True, {}, f"{LIBRARY} (doctor: nvml)"),
        (9, True, REFUSED, f"{NOT_LOADED} (doctor: nvml)"),
        *((code, True, HOLDS, None) for code in (0, 9, 12, 18, 999)),
    ],
)
def test_no_card_is_told_from_a_card_that_is_not_read(code, has_driver, held, text):
    story = Story()
    story.refuse(code)
    reading = story.board.read({10: 1}, held, True, SECOND_NS, has_driver)
    assert text is None or reading.of_job.reason == text
    assert (reading.of_job.why is Why.ABSENT) is ("no NVIDIA" in (text or "")), "one that holds a card has one"
    assert held == HOLDS or reading.gpus == story.read().gpus


def test_no_card_listed_is_no_card_unless_the_job_holds_one_and_one_that_is_not_listed_is_a_note():
    story = Story(0)
    assert story.read({10: 1}, {10: ()}).gpus == ()
    assert story.read({10: 1}, {10: (3,)}).gpus == Missing(f"{NOT_VISIBLE} (doctor: cards)")
    story = Story(1, (0,))
    reading = story.read({10: 1}, {10: (0, 5)})
    assert (reading.notes, reading.unlisted) == ((f"{NOT_VISIBLE}: the job holds /dev/nvidia5",), ("/dev/nvidia5",))
    reading = story.read({10: 1}, {10: (0,)})
    assert (reading.notes, reading.unlisted) == ((), NOT_APPLICABLE)


def test_a_driver_that_does_not_answer_is_said_with_its_wait_and_a_child_that_dies_before_it_does():
    story = Story()
    story.start()
    assert story.read().gpus == NOT_YET
    story.second = 12
    assert story.read().gpus == Missing("the NVIDIA driver has not answered for 12 s (doctor: nvml)")
    story = Story()
    story.end("SIGSEGV")
    assert story.read().gpus == Missing("the GPU child ended before it answered (SIGSEGV) (doctor: nvml)")
    assert story.read().events == ()
    story.start()
    story.driver(0)
    reading = story.read()
    assert (reading.gpus, reading.events) == ((), ("NVIDIA driver answers",))


def test_xids_are_events_and_stay_with_the_card_and_a_driver_that_goes_away_is_one():
    story = Story(1, (0,))
    story.board.on_line(Line(xid=XidLine("GPU-0", 79)), 0)
    story.board.on_line(Line(xid=XidLine("GPU-unknown", 13)), 0)
    reading = story.read()
    assert (reading.events, reading.gpus[0].xids) == (("Xid 79 on GPU 0 (H100)", "Xid 13 on GPU GPU-unknown"), (79,))
    story.card(0)
    assert story.cards()[0].xids == (79,)
    story.failure(18)
    assert not story.board.refused
    assert story.read().events[0].startswith("NVIDIA driver went away: the NVIDIA driver was replaced")


def test_the_jobs_processes_are_marked_on_their_card():
    story = Story(1)
    story.card(0, fast=replace(FAST, processes=(CardProcessReading(42, 20, 40.0), CardProcessReading(43, 1, 0.0))))
    gpus = story.read({42: 1}).gpus
    assert gpus[0].pids == (42,)
    assert [one.of_job for one in gpus[0].processes] == [True, False]


def test_everything_that_a_child_can_pile_up_is_bounded():
    story = Story(10_000)
    for index in range(200):
        story.card(index)
        story.note(f"note {index}", passing=False)
        story.board.on_line(Line(xid=XidLine("GPU-0", index)), 0)
    story.second = 10
    reading = story.read()
    assert is_known(reading.gpus)
    assert len(reading.gpus) == 64
    assert (len(reading.notes), len(reading.events)) == (20, 100)
    assert reading.notes[-1] == "note 199"
    story = Story(1)
    for _ in range(1000):
        story.card(0)
    assert len(story.board._slots["GPU-0"].track.window) == 64


def test_a_passing_note_goes_when_it_comes_no_more_and_another_stays():
    story = Story(1)
    story.note("Xid events are not watched: not supported", passing=False)
    story.note("reading card 0 failed", passing=True)
    story.second = 100
    story.note("reading card 0 failed", passing=True)
    story.second = 100 + PASSING_S
    assert len(story.read().notes) == 2
    story.second += 1
    assert story.read().notes == ("Xid events are not watched: not supported",)
    story.end()
    story.start()
    assert len(story.read().notes) == 1
    story.driver(1)
    assert story.read().notes == (), "the new child says anew what it cannot do"


@pytest.mark.parametrize("crashes", [(), (1.0, 4.0, 12.0)], ids=["it hangs", "it crashes"])
def test_an_nvml_that_never_answers_is_the_silence_of_the_cards_that_the_job_holds(crashes):
    story = Story()
    for second in crashes:
        story.second = second
        story.end("SIGSEGV")
        story.start()
    story.second = 12
    named = (DriverCard(0, "GPU-a", "H100"), DriverCard(1, "GPU-b", "H100"))
    reading = story.read({10: 1}, {10: (1,)}, named)
    told = [(one.index, one.uuid, one.name, one.state, one.age_s, one.pids) for one in reading.gpus]
    assert told == [(0, "GPU-a", "H100", GpuState.STALE, 12.0, ()), (1, "GPU-b", "H100", GpuState.STALE, 12.0, (10,))]
    assert all(is_known(one.unheard) for one in reading.gpus)
    held = story.read({10: 1}, {10: (1,)}, Missing("not read")).gpus
    assert [one.pids for one in held] == [(10,)]
    for nothing in ({10: ()}, {}):
        assert isinstance(story.read({10: 1}, nothing).gpus, Missing)
    story.refuse(9)
    assert isinstance(story.read({10: 1}, {10: (1,)}).gpus, Missing), "NVML says why it does not answer"


def test_cards_are_unheard_while_the_child_is_gone_and_silent_while_it_answers():
    story = Story(1, (0,))
    story.second = 9
    assert not is_known(story.cards()[0].unheard)
    story.end()
    assert is_known(story.cards()[0].unheard)


def test_a_card_that_nvml_does_not_list_and_the_driver_has_is_silent_and_held():
    story = Story(1, (0,))
    story.second = 1
    named = (DriverCard(0, "GPU-0", "H100"), DriverCard(1, "GPU-b", "H100"))
    reading = story.read({10: 1}, {10: (0, 1)}, named)
    assert [(one.index, one.uuid, one.state) for one in reading.gpus] == [
        (0, "GPU-0", GpuState.OK),
        (1, "GPU-b", GpuState.STALE),
    ]
    assert (reading.gpus[1].pids, reading.gpus[1].pids_are_visible_only) == ((10,), True)
    assert reading.notes == (f"{NOT_VISIBLE}: the job holds /dev/nvidia1",)
    seen = story.read({10: 1}, {10: (0, 1)}).gpus
    assert is_known(seen)
    assert len(seen) == 1
