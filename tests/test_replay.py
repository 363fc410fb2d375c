"""The player: pace, moves, jumps, what is handed out; the end of a finished recording, and of one still written."""

import threading
from dataclasses import replace

import pytest

from tests.frames import later, make_event
from tests.goldens import dump_views
from tests.playbacks import END_NS, SECOND_NS, Reel, make_frames, make_span
from tests.recordings import judge_steps, run_seconds, write_recording
from tests.waiting import wait_until
from tpmon import replay
from tpmon.errors import UsageError
from tpmon.model.results.replay import SPEEDS, JumpTo, JumpToFrame, TimeMove
from tpmon.model.verdict import Kind
from tpmon.record.recording import Recording
from tpmon.replay import Player
from tpmon.view.events import keep_newest

BACK = (TimeMove.FRAME_BACK, TimeMove.SECONDS_BACK, TimeMove.CHANGE_BACK)
ON = (TimeMove.FRAME_ON, TimeMove.SECONDS_ON, TimeMove.CHANGE_ON)


def make_reel(count=40, **told):
    spans = (make_span(1, 19, Kind.STARTING, (0, 0)), make_span(20, 40, Kind.HUNG, (0, 0)))
    frames = make_frames(count, n1="attached", n15="epoch respawn: 4 workers of rank 0 replaced", n30="rank 1 gone")
    return Reel(frames, verdicts=spans, **told)


def make_player(reel=None, at=1, *, paused=True, speed=1.0):
    reel = reel or make_reel()
    player = Player(reel, reel.moment(at), speed=speed, paused=paused)
    player._refresh(anew=True)
    return player


def play_until(reel, holds, at=1, speed=60.0, **options):
    """Play in this thread until an Update is what is waited for, and return all."""
    seen = []
    player = Player(reel, reel.moment(at), speed=speed, **options)

    def take(update):
        seen.append(update)
        if holds(update):
            player.stop()

    threading.Timer(20.0, player.stop).start()
    player.run([take])
    assert reel.closed
    return seen


MOVES = (
    (1, (TimeMove.FRAME_ON,), 2),
    (5, (TimeMove.FRAME_ON, TimeMove.FRAME_ON, TimeMove.FRAME_BACK), 6),
    (1, (TimeMove.FRAME_BACK,), 1),
    (40, (TimeMove.FRAME_ON,), 40),
    (5, (TimeMove.SECONDS_ON,), 15),
    (35, (TimeMove.SECONDS_ON,), 40),
    (15, (TimeMove.SECONDS_BACK,), 5),
    (5, (TimeMove.SECONDS_BACK,), 1),
    (1, (TimeMove.CHANGE_ON,), 20),
    (1, (TimeMove.CHANGE_ON, TimeMove.CHANGE_ON), 30),
    (30, (TimeMove.CHANGE_ON,), 40),
    (40, (TimeMove.CHANGE_BACK, TimeMove.CHANGE_BACK), 20),
    (20, (TimeMove.CHANGE_BACK,), 1),
    (1, (TimeMove.CHANGE_BACK,), 1),
    (7, (TimeMove.BEGIN,), 1),
    (7, (TimeMove.END,), 40),
    (7, (JumpToFrame(33),), 33),
    (7, (JumpTo(END_NS - 9 * SECOND_NS), TimeMove.FRAME_ON), 32),
)


@pytest.mark.parametrize(("at", "orders", "shown"), MOVES)
def test_a_move_leads_there(at, orders, shown):
    player = make_player(at=at)
    for order in orders:
        player.ask(order)
    assert player._obey() is (shown != at)
    assert player._shown.n == shown


def make_gap(frames, at, seconds):
    """Take the Frames from ``at`` on so much later."""
    return [*frames[:at], *(later(one, seconds) for one in frames[at:])]


def test_a_move_leaves_a_hole_and_never_stays():
    reel = Reel(make_gap(make_frames(6), 3, 3000))
    for orders, shown in (((TimeMove.SECONDS_ON,), 4), ((TimeMove.SECONDS_ON, TimeMove.SECONDS_BACK), 3)):
        player = make_player(reel, at=3)
        for order in orders:
            player.ask(order)
        player._obey()
        assert player._shown.n == shown


class Thinned(Reel):
    """Keep every tenth Frame alone."""

    def moment(self, n):
        return self.place(n // 10 * 10)

    def step(self, n, by):
        return self.place((n // 10 + by) * 10)


def test_a_change_whose_frame_was_thinned_away_is_gone_to_and_passed():
    reel = Thinned(make_frames(40, n25="gone"))
    player = make_player(reel, at=10)
    for shown in (30, 40, 40):
        player.ask(TimeMove.CHANGE_ON)
        player._obey()
        assert player._shown.n == shown
    for shown in (30, 20, 1):
        player.ask(TimeMove.CHANGE_BACK)
        player._obey()
        assert player._shown.n == shown


def test_while_it_plays_a_change_that_was_just_passed_is_not_gone_back_to():
    for paused, speed, shown in ((True, 1.0, 20), (False, 1.0, 1), (False, 4.0, 1)):
        player = make_player(at=21, paused=paused, speed=speed)
        player.ask(TimeMove.CHANGE_BACK)
        player._obey()
        assert player._shown.n == shown
    player = make_player(at=27, paused=False, speed=4.0)
    player.ask(TimeMove.CHANGE_BACK)
    player._obey()
    assert player._shown.n == 1, "two seconds of the one who looks, not of the recording"


def test_speed_goes_through_its_steps_and_stops_at_both_ends():
    player = make_player(speed=3.0)
    assert [(player.ask(TimeMove.FASTER), player._obey(), player._speed)[2] for _ in SPEEDS][-3:] == [60.0] * 3
    assert [(player.ask(TimeMove.SLOWER), player._obey(), player._speed)[2] for _ in SPEEDS][-2:] == [0.25] * 2
    slow = make_player(speed=3.0)
    slow.ask(TimeMove.SLOWER)
    assert slow._obey()
    assert slow._speed == 2.0
    assert not slow._obey(), "nothing was asked"


def test_a_step_pauses_and_the_key_of_pausing_turns_it():
    player = make_player(at=9, paused=False)
    for order, paused in (
        (TimeMove.PLAY, True),
        (TimeMove.PLAY, False),
        (TimeMove.SECONDS_ON, False),
        (TimeMove.FRAME_ON, True),
        (TimeMove.FRAME_BACK, True),
        (TimeMove.END, True),
    ):
        player.ask(order)
        player._obey()
        assert player._paused is paused, order


PACES = (
    ("as it was", {"speed": 1.0}, 2, 1.0),
    ("slower", {"speed": 0.25}, 2, 4.0),
    ("faster", {"speed": 8.0}, 2, 0.125),
    ("faster than an eye", {"speed": 60.0}, 8, 7 / 60),
)


@pytest.mark.parametrize(
    ("speed", "n", "wait_s"), [(one[1]["speed"], *one[2:]) for one in PACES], ids=[one[0] for one in PACES]
)
def test_the_pace_is_that_of_the_recording_times_the_speed(speed, n, wait_s):
    following, seconds = make_player(paused=False, speed=speed)._plan()
    assert (following.n, seconds) == (n, pytest.approx(wait_s))


@pytest.mark.parametrize("gap_s", [300.0, -5000.0, 0.0])
def test_a_hole_another_boot_and_a_clock_that_stood_pass_like_an_interval(gap_s):
    shifted = make_gap(make_frames(4), 2, gap_s - 1)
    following, seconds = make_player(Reel(shifted), at=2, paused=False)._plan()
    assert (following.n, seconds) == (3, 1.0)
    sparse = Reel(make_gap(make_frames(4), 2, 29), every_s=30.0)
    assert make_player(sparse, at=2, paused=False)._plan()[1] == 30.0, "where Frames are kept so far apart"


def test_it_plays_every_frame_in_order_and_pauses_at_the_end(monkeypatch):
    monkeypatch.setattr(replay, "UPDATES_HZ", 1000.0)
    seen = play_until(make_reel(), lambda update: update.playback.paused)
    assert [update.frame.facts for update in seen] == [*(f"Frame {n}" for n in range(1, 41)), "Frame 40"]
    assert [update.playback.shown.n for update in seen] == [*range(1, 41), 40]
    assert seen[-1].playback.is_over
    assert {len(update.pulses) for update in seen} == {1, 2, 3}


def test_events_are_those_up_to_what_is_shown_also_of_frames_left_out():
    seen = play_until(make_reel(), lambda update: update.playback.paused)
    assert len(seen) < 20
    for update in seen:
        n = update.playback.shown.n
        expected = [text for at, text in ((1, "attached"), (15, "epoch respawn"), (30, "rank 1 gone")) if at <= n]
        assert [event.text.partition(":")[0] for event in update.events] == expected
    assert [one.n for one in seen[0].playback.events] == [1, 30], "everyday ones are no change"
    back = play_until(make_reel(), lambda _update: True, at=16, paused=True)
    assert [event.text.partition(":")[0] for event in back[0].events] == ["attached", "epoch respawn"]


def test_of_many_events_those_are_kept_that_a_screen_keeps():
    everyday = [make_event("epoch respawn: 4 workers of rank 0 replaced", n) for n in range(900)]
    others = [make_event(f"rank {n} gone", n) for n in range(300)]
    told = [*others[:200], *everyday[:700], *others[200:], *everyday[700:]]
    frames = [replace(one, events=tuple(told[100 * n : 100 * n + 100])) for n, one in enumerate(make_frames(12))]
    player = make_player(Reel(frames))
    for n in range(1, 13):
        assert player._list_events(n) == keep_newest(told[: 100 * n])


def test_at_the_end_of_a_file_that_is_written_it_follows_until_that_ends(monkeypatch):
    monkeypatch.setattr(replay, "REFRESH_S", 0.01)
    reel = make_reel(3)
    reel.live, more = True, make_frames(9)

    def take(update):
        playback = update.playback
        if playback.follows and len(reel.all) < 9:
            reel.coming = more[len(reel.all) : len(reel.all) + 2]
        elif len(reel.all) >= 9:
            reel.live = False
        return playback.paused

    seen = play_until(reel, take, at=3)
    assert [update.playback.shown.n for update in seen] == [3, 5, 7, 9, 9]
    assert [update.playback.follows for update in seen] == [True, True, True, True, False]
    assert (seen[-1].playback.live, seen[-1].playback.is_over) == (False, True)


def test_what_is_shown_stays_while_the_file_grows_and_the_end_is_followed_when_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(replay, "REFRESH_S", 0.01)
    reel = make_reel(3)
    reel.live, reel.coming = True, make_frames(5)[3:]
    seen = play_until(reel, lambda update: update.playback.end.n == 5, at=2, paused=True)
    assert {update.playback.shown.n for update in seen} == {2}
    player = make_player(reel, at=2)
    player.ask(TimeMove.END)
    player._obey()
    assert (player._shown.n, player._paused) == (5, False)


def test_the_nearest_dump_is_handed_out_once_and_again_when_another_is_nearer():
    early, late = dump_views.hung_once(), dump_views.hung_three_looks()
    reel = make_reel(dumps={5: early, 35: late})
    got, player = [], Player(reel, reel.moment(1), paused=True)
    player.start(pytest.fail, [lambda _update: None], [got.append])
    for n, expected in ((1, [early]), (9, [early]), (30, [early, late]), (40, [early, late])):
        player.ask(JumpToFrame(n))
        assert wait_until(lambda n=n: player._frame and player._frame[0] == n)
        assert wait_until(lambda expected=expected: got == expected)
    player.stop()
    assert wait_until(lambda: reel.closed)


def test_a_frame_that_its_writer_thins_away_meanwhile_gives_way_to_the_one_before():
    class Gone(Reel):
        def frame(self, n):
            if n == 12:
                raise UsageError("it has no Frame 12", "")
            return super().frame(n)

        def moment(self, n):
            return self.place(11 if n == 12 else n)

    reel = Gone(make_frames(40))
    player = Player(reel, reel.place(12), paused=True)
    assert player._read_frame().facts == "Frame 11"
    assert player._shown.n == 11


def test_an_error_ends_it_and_is_told():
    reel, told = make_reel(), []
    reel.frame = None
    Player(reel, reel.moment(1)).start(told.append, [])
    assert wait_until(lambda: told and reel.closed)
    assert isinstance(told[0], TypeError)


def test_it_plays_a_real_recording(tmp_path):
    frames = [replace(one, interval_s=1.0) for one in run_seconds(90)]
    path = write_recording(tmp_path / "a.tpmon", judge_steps(frames))
    recording = Recording(str(path))
    expected = {moment.n: recording.frame(moment.n) for moment in map(recording.moment, range(1, 91))}
    seen, player = [], Player(recording, recording.first, speed=60.0)
    player.start(pytest.fail, [seen.append])
    assert wait_until(lambda: seen and seen[-1].playback.is_over)
    for order, n in ((TimeMove.BEGIN, 1), (JumpTo(recording.last.wall_ns), 90), (TimeMove.CHANGE_BACK, None)):
        count = len(seen)
        player.ask(order)
        assert wait_until(lambda count=count: len(seen) > count)
        assert n in (None, seen[-1].playback.shown.n)
    player.stop()
    for update in seen:
        assert update.frame == expected[update.playback.shown.n]
        assert update.pulses[-1].taken_ns == update.frame.taken_ns
    assert seen[-1].playback.verdicts == Recording(str(path)).verdicts()
