"""Whatever the Frame, the view and the size: the screen has its size and painting never raises."""

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, get_args, get_type_hints

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests import frames
from tests.goldens import dump_views, sample_views
from tests.playbacks import make_moment, make_playback, make_recorded, make_span
from tpmon.model.dump import Asker
from tpmon.model.figures import HISTORIES
from tpmon.model.frame import Frame, TargetState
from tpmon.model.gpu import GpuProcess, GpuState, MigInstance, ThrottleShare
from tpmon.model.host import NetworkSample, Pool, ShmSample
from tpmon.model.known import NOT_APPLICABLE, Missing, NotApplicable
from tpmon.model.process import EnvironmentSetting, Role
from tpmon.model.results.replay import SPEEDS
from tpmon.model.units import clean_text
from tpmon.model.verdict import Confidence, Evidence, Kind, SinceIs
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.layout import page_of, paint_screen, rows_of
from tpmon.ui.monitor.state import OTHER_THREADS, Pane, SortBy, StackRow, StacksView
from tpmon.view.layout import Size

TEXTS = st.one_of(
    st.sampled_from(["", "train.py", "\u8a13\u7df4.py", "e\u0301\u0301 accents", "\U0001f525 fire", "x" * 300]),
    st.text(max_size=40),
).map(clean_text)
REASONS = st.builds(Missing, TEXTS)
DUMPS = (
    NOT_APPLICABLE,
    dump_views.hung_once(),
    dump_views.hung_recorded(),
    dump_views.hung_three_looks(Asker.WATCH),
    dump_views.hung_running(),
    dump_views.hung_waiting(),
    dump_views.denied(),
    dump_views.torn(),
    dump_views.one_worker(),
    dump_views.make_update(refused="no process to read"),
)
SAMPLES = (sample_views.running(), sample_views.ended(), sample_views.denied(), sample_views.refused())
NUMBERS = st.floats(0, 1e15) | st.sampled_from([0.0, 0.5, 99.96, 1e4])
COUNTS = st.integers(0, 1 << 50)
OFFERS = {NotApplicable: st.just(NOT_APPLICABLE), float: NUMBERS, int: COUNTS, str: TEXTS, bool: st.booleans()}


def _shaken(draw: st.DrawFn, value: Any) -> Any:
    """Replace some Known and Applicable numbers and texts of a dataclass by others or by reasons."""
    changes: dict[str, Any] = {}
    hints = get_type_hints(type(value))
    for one in fields(value):
        options = get_args(hints[one.name])
        if Missing not in options or draw(st.integers(0, 3)) != 0:
            continue
        changes[one.name] = draw(st.one_of(REASONS, *(OFFERS[kind] for kind in options if kind in OFFERS)))
    return replace(value, **changes)


@st.composite
def processes(draw):
    plain = frames.make_process(
        draw(st.integers(1, 1 << 22)),
        role=draw(st.sampled_from(Role)),
        state=draw(st.sampled_from("RSDTtZXI?")),
        label=draw(TEXTS),
        name=draw(TEXTS),
        threads=draw(st.integers(0, 10**6)),
        rss_bytes=draw(COUNTS),
        environment=draw(st.one_of(REASONS, st.tuples(st.builds(EnvironmentSetting, TEXTS, TEXTS)))),
    )
    return _shaken(draw, plain)


@st.composite
def cards(draw, index):
    plain = frames.make_gpu(
        index,
        name=draw(TEXTS),
        state=draw(st.sampled_from(GpuState)),
        age_s=draw(st.floats(0, 1e6)),
        throttle=tuple(draw(st.lists(TEXTS, max_size=2))),
        throttle_shares=tuple(draw(st.lists(st.builds(ThrottleShare, TEXTS, NUMBERS, TEXTS), max_size=2))),
        xids=tuple(draw(st.lists(st.integers(0, 200), max_size=5))),
        mig_instances=tuple(
            draw(st.lists(st.builds(MigInstance, TEXTS, st.integers(0, 9), COUNTS, REASONS, NUMBERS), max_size=2))
        ),
        pids=draw(st.one_of(REASONS, st.lists(st.integers(1, 9999), max_size=20).map(tuple))),
        processes=draw(
            REASONS | st.lists(st.builds(GpuProcess, st.integers(1, 9), COUNTS, REASONS, st.booleans())).map(tuple)
        ),
    )
    return _shaken(draw, plain)


@st.composite
def findings(draw):
    evidence = st.builds(
        Evidence, TEXTS | st.sampled_from(sorted(HISTORIES)), REASONS | NUMBERS, TEXTS, TEXTS, TEXTS, REASONS | NUMBERS
    )
    readings = st.lists(evidence, max_size=8).map(tuple)
    texts = st.lists(TEXTS, max_size=9).map(tuple)
    plain = frames.make_finding(
        kind=draw(st.sampled_from(Kind)),
        confidence=draw(st.sampled_from(Confidence)),
        since=frames.NOW - timedelta(seconds=draw(st.integers(-10, 10**6))),
        since_is=draw(st.sampled_from(SinceIs)),
        since_source=draw(TEXTS),
        summary=draw(TEXTS),
        try_=draw(st.lists(TEXTS, max_size=5).map("\n".join)),
        evidence=draw(readings),
        against=draw(readings),
        ruled_out=draw(texts),
        unknown=draw(texts),
    )
    return _shaken(draw, plain)


@st.composite
def any_frame(draw):
    members = draw(st.lists(processes(), max_size=12))
    ranks = [
        _shaken(draw, frames.make_rank(draw(st.sampled_from([p.pid for p in members] + [77])), rank=n))
        for n in range(draw(st.integers(0, 9)))
    ]
    known_cards = tuple(draw(cards(index)) for index in range(draw(st.integers(0, 3))))
    memory = _shaken(draw, frames.make_memory())
    pool = st.builds(Pool, st.integers(1, 9), st.sampled_from(Role), REASONS, st.integers(2, 99), NUMBERS)
    return frames.make_frame(
        taken=frames.NOW + timedelta(seconds=draw(st.integers(-10, 10))),
        target=_shaken(
            draw,
            frames.make_target(
                script=draw(TEXTS),
                host=draw(TEXTS),
                user=draw(TEXTS),
                state=draw(st.sampled_from(TargetState)),
                rank_source=draw(TEXTS),
            ),
        ),
        facts=draw(TEXTS) + " \u00b7 " + draw(TEXTS),
        processes=tuple(members),
        ranks=tuple(ranks),
        ages_s=_shaken(draw, frames.make_ages()),
        cpu=replace(_shaken(draw, frames.make_cpu()), pool=draw(st.one_of(REASONS, st.just(NOT_APPLICABLE), pool))),
        memory=replace(memory, shm=draw(st.one_of(REASONS, st.builds(ShmSample, TEXTS, COUNTS, COUNTS)))),
        loader=tuple(_shaken(draw, frames.make_loader(workers=n, looks=n)) for n in range(draw(st.integers(0, 2)))),
        output=tuple(
            _shaken(draw, frames.make_output(n, path=draw(TEXTS), lines=tuple(draw(st.lists(TEXTS, max_size=3)))))
            for n in range(draw(st.integers(0, 2)))
        ),
        network=draw(
            REASONS
            | st.tuples(st.builds(NetworkSample, TEXTS, TEXTS, st.booleans(), NUMBERS, NUMBERS, REASONS, REASONS))
        ),
        gpus=draw(st.one_of(REASONS, st.just(known_cards))),
        driver=draw(st.one_of(REASONS, st.just(frames.make_driver()))),
        notes=tuple(draw(st.lists(TEXTS, max_size=4))),
        verdict=draw(st.one_of(REASONS, findings(), findings())),
    )


@st.composite
def any_stacks(draw):
    """A dump in any state, with any of its groups open and the cursor anywhere, also where it was once."""
    dump = draw(st.sampled_from(DUMPS))
    marks = [OTHER_THREADS, 77, *(one.mark for one in (dump.stacks if dump is not NOT_APPLICABLE else ()))]
    some = st.frozensets(st.sampled_from(marks))
    times = st.just(NOT_APPLICABLE) | st.just(frames.NOW_NS)
    cursor = st.just(NOT_APPLICABLE) | st.builds(StackRow, st.sampled_from(marks), st.integers(-1, 9))
    return {"dump": dump, "stacks": draw(st.builds(StacksView, cursor, some, some, times, times, times))}


@st.composite
def playbacks(draw):
    """A recording of any length, whose parts need not lie in it, nor in their order."""
    ago_s = st.integers(-10_000, 10_000)
    spans = st.builds(make_span, st.just(1), st.just(9), st.sampled_from(Kind) | optional, st.tuples(ago_s, ago_s))
    return make_playback(
        **{name: make_moment(n, draw(ago_s)) for n, name in enumerate(("begin", "shown", "end"))},
        speed=draw(st.sampled_from(SPEEDS)),
        paused=draw(st.booleans()),
        live=draw(st.booleans()),
        verdicts=tuple(draw(st.lists(spans, max_size=9))),
        events=tuple(make_recorded(1, "gone", draw(ago_s)) for _ in range(draw(st.integers(0, 3)))),
    )


optional = st.just(NOT_APPLICABLE)


@st.composite
def any_view(draw):
    frame = draw(st.one_of(REASONS, any_frame(), any_frame(), any_frame()))
    pids = [0] + ([p.pid for p in frame.processes] if isinstance(frame, Frame) else [])
    return frames.make_view(
        frame,
        pulses=frames.make_pulses(frame, draw(st.integers(0, 90))) if isinstance(frame, Frame) else (),
        events=tuple(frames.make_event(text, n) for n, text in enumerate(draw(st.lists(TEXTS, max_size=8)))),
        now_ns=frames.NOW_NS + draw(st.integers(-(10**9), 10**12)),
        interval_s=draw(st.sampled_from([0.5, 1.0, 10.0])),
        paused_ns=draw(optional | st.just(frames.NOW_NS)),
        zoom=draw(optional | st.sampled_from(Pane)),
        focus=draw(st.sampled_from(Pane)),
        cursor_pid=draw(optional | st.sampled_from(pids)),
        scroll=draw(st.integers(0, 200)),
        sort=draw(st.sampled_from(SortBy)),
        sort_reversed=draw(st.booleans()),
        filter_text=draw(st.sampled_from(["", "!", "rank", "!w0"]) | TEXTS),
        overlay=draw(st.sampled_from(Overlay)),
        message=draw(TEXTS),
        ascii_only=draw(st.booleans()),
        readonly=draw(st.booleans()),
        behind=draw(st.sampled_from([Overlay.NONE, Overlay.STACKS, Overlay.SAMPLE])),
        sample=draw(optional | st.sampled_from(SAMPLES)),
        offered_ns=draw(optional | st.just(frames.NOW_NS)),
        playback=draw(optional | playbacks()),
        time_text=draw(TEXTS),
        **draw(any_stacks()),
    )


@given(any_view(), st.integers(1, 250), st.integers(1, 80))
def test_any_view_fills_any_size_and_no_line_is_too_wide(view, width, height):
    size = Size(width, height)
    keys = keys_shown(view)

    lines = paint_screen(view, size, keys)

    assert len(lines) == height
    texts = ["".join(text for text, _ in line) for line in lines]
    assert max(cell_len(text) for text in texts) <= width
    if view.ascii_only:
        assert all(text.isascii() for text in texts)
    page, limit = page_of(view, size, keys)
    assert page >= 1
    assert limit >= 0
    rows = rows_of(view)
    if isinstance(view.frame, Frame):
        known = {process.pid for process in view.frame.processes} | {row.pid for row in view.frame.ranks}
        assert set(rows) <= known
    else:
        assert rows == ()


@given(any_view(), st.integers(30, 120), st.integers(8, 40))
def test_the_last_page_of_a_long_text_is_full(view, width, height):
    view = replace(view, overlay=Overlay.HELP)
    size = Size(width, height)
    keys = keys_shown(view)
    _, limit = page_of(view, size, keys)

    last = paint_screen(replace(view, scroll=limit), size, keys)
    beyond = paint_screen(replace(view, scroll=limit + 7), size, keys)

    assert last == beyond
