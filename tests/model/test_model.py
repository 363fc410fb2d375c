"""The words of tpmon: codec round trips, honest units, clean text, bounded windows."""

import dataclasses
import json
import math
import random
import re
import types
import unicodedata
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import make_cpu, make_frame, make_gpu, make_loader, make_memory, make_process
from tpmon.model import dump, frame, gpu, host, known, process, units
from tpmon.model.codec import DECIMALS, CodecError, decode, encode, from_plain, to_plain
from tpmon.model.frame import Window, pulse_of
from tpmon.model.host import ShmSample
from tpmon.model.known import NOT_APPLICABLE, Missing, NotApplicable, is_known, known_or, map_known
from tpmon.model.results import doctor as results

WORDS = [
    kind
    for module in (dump, frame, gpu, host, process, results)
    for kind in vars(module).values()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
]


def build(hint: Any, chance: random.Random) -> Any:
    """Build a value of a type annotation that the model uses.

    By chance and not by a strategy of its own: a Frame has some 300 leaves.
    """
    if get_origin(hint) in (Union, types.UnionType):
        return build(chance.choice(get_args(hint)), chance)
    if get_origin(hint) is tuple:
        return tuple(build(get_args(hint)[0], chance) for _ in range(chance.randrange(3)))
    if hint is NotApplicable:
        return NOT_APPLICABLE
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{field.name: build(hints[field.name], chance) for field in dataclasses.fields(hint)})  # type: ignore[operator]
    if issubclass(hint, Enum):
        return chance.choice(list(hint))
    if hint is bool:
        return chance.random() < 0.5
    if hint is int:
        return chance.choice([0, -1, chance.randrange(-(10**18), 10**18)])
    if hint is float:
        return round(chance.choice([0.0, chance.uniform(-1, 1), chance.uniform(-1e12, 1e12)]), DECIMALS)
    if hint is datetime:
        zone = timezone(timedelta(minutes=chance.randrange(-14 * 60, 14 * 60)))
        return datetime.fromtimestamp(chance.randrange(4_000_000_000_000) / 1000, zone)
    assert hint is str
    return "".join(chance.choices('aZ09 "\\/\n\t\x00\x1bé…漢😀{}[],:', k=chance.randrange(12)))


WRITTEN = [kind for kind in WORDS if kind is not results.Update]
"""An Update is handed to sinks: what is written of it is its Frame."""


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.__name__)
@given(chance=st.randoms(use_true_random=True))
def test_every_word_survives_json(kind, chance):
    value = build(kind, chance)
    line = encode(value)
    assert "\n" not in line
    assert decode(kind, line) == value


def test_every_word_is_frozen_and_slotted():
    for kind in WORDS:
        assert kind.__dataclass_params__.frozen, kind  # type: ignore[attr-defined]
        assert "__slots__" in vars(kind), kind


def test_a_frame_is_one_line_with_its_schema_first_missing_is_an_object_and_not_applicable_is_no_key():
    line = encode(make_frame())
    assert json.loads(line)["schema"] == "tpmon.frame/1"
    assert line.startswith('{"schema":"tpmon.frame/1"')
    raw = to_plain(make_cpu(used_cores=Missing("no permission"), pool=NOT_APPLICABLE))
    assert raw["used_cores"] == {"missing": "no permission"}
    assert "pool" not in raw


def test_unknown_keys_of_a_newer_schema_are_ignored_and_an_absent_key_is_named():
    raw = to_plain(make_frame()) | {"added_later": {"x": 1}}
    assert from_plain(frame.Frame, raw) == make_frame()
    del raw["cpu"]["used_cores"]
    with pytest.raises(CodecError, match=re.escape("Frame.cpu.used_cores: the key is absent")):
        from_plain(frame.Frame, raw)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"interval_s": "1"}, "Frame.interval_s: expected float, found str"),
        ({"interval_s": True}, "Frame.interval_s: expected float, found bool"),
        ({"taken": "yesterday"}, "Frame.taken"),
        ({"taken": "2026-11-22T10:00:00"}, "Frame.taken: a time without its offset from UTC"),
        ({"interval_s": json.loads("1e999")}, "Frame.interval_s: expected a finite number"),
        ({"interval_s": -(10**400)}, "Frame.interval_s: expected a finite number"),
        ({"processes": {}}, "Frame.processes: expected a list"),
        ({"processes": [{}]}, "Frame.processes[0].pid: expected int, found nothing"),
        ({"verdict": "balanced"}, "Frame.verdict: expected an object"),
        ({"hook": "armed"}, "Frame.hook: expected a list"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_path(change, path):
    raw = to_plain(make_frame()) | change
    with pytest.raises(CodecError, match=re.escape(path)):
        from_plain(frame.Frame, raw)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_has_no_nan(value):
    with pytest.raises(ValueError, match="JSON"):
        encode(make_cpu(used_cores=value))


def test_zero_is_known_and_missing_is_not_and_has_no_truth_value():
    with pytest.raises(TypeError):
        bool(Missing("not read"))
    assert is_known(0)
    assert not is_known(Missing("x"))
    assert not is_known(NOT_APPLICABLE)
    assert known_or(0, 7) == 0
    assert known_or(Missing("x"), 7) == 7
    assert map_known(lambda value: value + 1, 0) == 1
    assert map_known(lambda value: value + 1, Missing("x")) == Missing("x")
    assert known.NOT_APPLICABLE is NOT_APPLICABLE


BYTES = {0: "0B", 1023: "1023B", 1024: "1.0K", 1536: "1.5K", 44_238_000_000: "41.2G", -2048: "-2.0K", 102_400: "100K"}
RATES = {0: "0", 433: "433", 1_000: "1.0k", 9_960: "10k", 91_000: "91k", 1_240_000: "1.2M"}
SECONDS = {0.31: "0.3 s", 42: "42 s", 59.7: "1m00s", 250: "4m10s", 11_520: "3h12m", 183_600: "2d03h", -42: "-42 s"}
NUMBERS = {0: "0", 0.0098: "0.01", 0.0004: "<0.01", 0.0331: "0.03", 1.94: "1.94", 2.0: "2", 12.34: "12.3", 250.4: "250"}
SHARES = {0: "0", 7.26: "7.3", 9.96: "10", 41.2: "41"}


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (units.format_bytes, BYTES),
        (units.format_rate, RATES),
        (units.format_seconds, SECONDS),
        (units.format_pct, SHARES),
        (units.format_number, NUMBERS),
    ],
)
def test_numbers_as_a_person_reads_them(write, texts):
    assert {value: write(value) for value in texts} == texts


@given(st.floats(0, 1e15, allow_nan=False))
def test_a_larger_number_of_bytes_never_reads_smaller(value):
    def read(text):
        return float(text[:-1]) * {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[text[-1]]

    assert read(units.format_bytes(value)) == pytest.approx(value, rel=0.06, abs=0.5)


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)
BIDI_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(ANY_TEXT, st.integers(2, 200))
def test_clean_text_leaves_nothing_that_steers_a_terminal(text, limit):
    cleaned = units.clean_text(text, limit)
    assert len(cleaned) <= limit
    cleaned.encode()
    for char in cleaned:
        assert unicodedata.category(char) not in {"Cc", "Cs", "Zl", "Zp"}
        assert unicodedata.bidirectional(char) not in BIDI_CONTROLS
    assert units.clean_text(cleaned, limit) == cleaned


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=50))
def test_clean_text_keeps_ordinary_text(text):
    assert units.clean_text(text) == text


UNPRINTABLE = ("\u061c", "\u00ad", "\u180e", "\U000e0041", "\u202e", "\ue000", "\ud800")


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("abcdef", 4, "abc…"),
        ("\x1b]0;title\x07\x9b2J", 200, "?]0;title??2J"),
        *((f"a{char}b", 200, "a?b") for char in UNPRINTABLE),
    ],
)
def test_clean_text_shows_that_it_cut_and_what_unicode_does_not_print(text, limit, shown):
    assert units.clean_text(text, limit) == shown


SECOND = 1_000_000_000
REFUSED = Missing("permission denied")


def at(seconds: float, **fields):
    return make_frame(taken_ns=int(seconds * SECOND), **fields)


def test_frames_are_kept_for_a_minute_and_pulses_for_ten():
    window = Window()
    for second in range(700):
        window.append(at(second))
    assert [frame.taken_ns for frame in window] == [s * SECOND for s in range(639, 700)], "what the judge sees"
    assert [pulse.taken_ns for pulse in window.pulses()] == [s * SECOND for s in range(99, 700)]
    assert len(window) == 61
    assert window.last().taken_ns == 699 * SECOND


@given(st.lists(st.floats(0.5, 200), min_size=1, max_size=60))
def test_the_spans_are_time_and_not_a_number_of_frames(gaps):
    window = Window()
    now = 0.0
    for gap in gaps:
        now += gap
        window.append(at(now))
        pulses = window.pulses()
        assert window.last().taken_ns - next(iter(window)).taken_ns <= 60 * SECOND
        assert pulses[-1].taken_ns - pulses[0].taken_ns <= 600 * SECOND
        assert [p.taken_ns for p in pulses] == sorted(p.taken_ns for p in pulses)
        assert len(window) == sum(pulses[-1].taken_ns - p.taken_ns <= 60 * SECOND for p in pulses)
    assert window.last().taken_ns == int(now * SECOND)


def test_a_pulse_takes_the_figures_of_its_frame():
    frame = at(
        5,
        cpu=make_cpu(used_cores=1.5, runnable=2.5, run_delay_ratio=0.4),
        memory=make_memory(used_bytes=700, shm=ShmSample("/dev/shm", 30, 120)),
        loader=(make_loader(ready_batches=3.0), make_loader(4300, ready_batches=1.0)),
        processes=(make_process(device_read_bytes_s=5.0), make_process(2, device_read_bytes_s=7.0)),
        gpus=(make_gpu(0, sm_pct=11.0), make_gpu(1, sm_pct=REFUSED)),
    )
    pulse = pulse_of(frame)
    assert (pulse.used_cores, pulse.runnable, pulse.run_delay_ratio) == (1.5, 2.5, 0.4)
    assert (pulse.memory_bytes, pulse.shm_ratio) == (700, 0.25)
    assert pulse.ready_batches == 1.0, "the rank that has fewest waits next"
    assert pulse.device_read_bytes_s == 12.0
    assert pulse.gpu_pct == (11.0, REFUSED)


def test_a_pulse_of_what_could_not_be_read_is_missing_and_not_zero():
    frame = at(
        5,
        cpu=make_cpu(used_cores=REFUSED),
        memory=make_memory(used_bytes=REFUSED, rss_bytes=900, shm=REFUSED),
        loader=(make_loader(ready_batches=REFUSED),),
        processes=(make_process(device_read_bytes_s=REFUSED),),
        gpus=REFUSED,
    )
    pulse = pulse_of(frame)
    assert pulse.used_cores == REFUSED
    assert pulse.memory_bytes == 900, "without a control group the processes' own sum"
    for figure in (pulse.shm_ratio, pulse.ready_batches, pulse.device_read_bytes_s):
        assert isinstance(figure, Missing)
    assert pulse.gpu_pct == ()
    empty = replace(frame, memory=make_memory(shm=ShmSample("/dev/shm", 0, 0)))
    assert isinstance(pulse_of(empty).shm_ratio, Missing)


def test_values_are_one_figure_of_every_pulse_and_a_stop_of_an_hour_leaves_the_new_frame_alone():
    window = Window()
    assert (len(window), window.pulses(), list(window)) == (0, (), [])
    with pytest.raises(IndexError):
        window.last()
    for second in range(3):
        window.append(at(second, cpu=make_cpu(runnable=float(second) if second else REFUSED)))
    assert window.values(lambda pulse: pulse.runnable) == (REFUSED, 1.0, 2.0), "oldest first"
    window.append(at(3601))
    assert len(window) == len(window.pulses()) == 1
