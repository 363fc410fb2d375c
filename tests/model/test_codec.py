"""Every way to write a value writes the same JSON, and what is written exactly is read as the same value."""

import contextlib
import json
import math
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import make_rank as make_look
from tests.dumps import make_round, make_thread
from tests.frames import make_cpu, make_frame, make_process, make_rank
from tests.goldens.states import STATES
from tests.model.test_model import WRITTEN, build
from tpmon.model import codec
from tpmon.model.codec import CodecError, EncoderTable, decode, decode_fast, encode, encode_exact, encode_fast
from tpmon.model.dump import OtherEnd, ThreadLook, WaitKind, WaitTarget
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Missing, Why
from tpmon.model.process import LoopThread, ProcessSample
from tpmon.model.waits import Wait, WaitReason

GOLDENS = sorted((Path(__file__).parents[1] / "goldens" / "frames").glob("*.json"))


class Compiled(EncoderTable):
    """Compile every dataclass when it is first met."""

    def _make_fields(self, kind):
        return self._compile(kind)


TABLES = {exact: (EncoderTable(exact=exact), Compiled(exact=exact)) for exact in (False, True)}


def write(table: EncoderTable, value: object) -> str:
    return json.dumps(table.encode(value), ensure_ascii=False)


@pytest.fixture(autouse=True)
def never_compile(monkeypatch):
    """Let only ``Compiled`` compile: what is compared is not the same code."""
    monkeypatch.setattr(codec, "COMPILE_AFTER", 0)


@cache
def golden(state: str) -> Frame:
    return STATES[state][0]()


def check(kind, value):
    """Hold the ways to write a value against each other."""
    for slow, compiled in TABLES.values():
        assert write(compiled, value) == write(slow, value)
    line = encode(value)
    assert encode_fast(value) == line.encode()
    assert decode_fast(kind, line.encode()) == decode(kind, line)
    exact = encode_exact(value)
    assert decode(kind, exact.decode()) == decode_fast(kind, exact) == value


@pytest.mark.parametrize("state", STATES)
def test_every_encoder_agrees_on_every_golden_frame_and_what_is_exact_is_read_as_the_same(state):
    check(Frame, golden(state))


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_every_encoder_writes_a_golden_file_again(path):
    check(Frame, decode(Frame, path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.__name__)
@given(chance=st.randoms(use_true_random=True))
def test_every_encoder_agrees_on_every_word(kind, chance: random.Random):
    check(kind, build(kind, chance))


LOOK = make_thread(4211, waits_for=Wait(WaitReason.LOCK))
TARGET = WaitTarget("read", 3, WaitKind.PIPE, "pipe:[1]", *(NOT_APPLICABLE,) * 3, others=(OtherEnd(1, 2, "x"),))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ProcessSample, make_process(runnable=Missing("refused"), rank=Missing("unset", Why.PENDING))),
        (ProcessSample, make_process(rank=NOT_APPLICABLE, loop=LoopThread(7, 'a "loop"\n\x00\x7f\u2028😀'))),
        (ProcessSample, make_process(waits_for=Missing("refused", Why.ABSENT))),
        (ThreadLook, LOOK),
        (ThreadLook, replace(LOOK, waits_for=Wait(WaitReason.OTHER, "do_something"), waits_on=TARGET)),
        (ThreadLook, replace(LOOK, waits_for=Missing("refused"), tid=Missing("refused"), locals=())),
        (Frame, make_frame(rounds=(make_round(make_look(0, LOOK)),), ends=(), gpus=(), stacks=Missing("off"))),
    ],
    ids=["missing", "not applicable", "no wait", "wait", "wait in words", "nothing", "trailing underscore"],
)
def test_every_encoder_agrees_on_what_is_no_plain_value(kind, value):
    check(kind, value)


@pytest.mark.parametrize(
    "number",
    [0.0, -0.0, 0.00004, -0.00004, 1e-7, 0.1 + 0.2, 1e14 / 3, 1e15, -1e15, 1e16, 1.5e22, 123456789012345678.0, 1e299],
)
def test_every_encoder_writes_a_float_as_json_does_and_the_exact_one_all_its_digits(number):
    value = make_cpu(used_cores=number)
    assert encode_fast(value) == encode(value).encode()
    assert json.loads(encode(value))["used_cores"] == round(number, codec.DECIMALS)
    assert math.copysign(1, json.loads(encode(value))["used_cores"]) == math.copysign(1, number)
    assert decode(type(value), encode_exact(value).decode()).used_cores == number
    for slow, compiled in TABLES.values():
        assert write(compiled, value) == write(slow, value)


@pytest.mark.parametrize(
    "fields",
    [{"pid": 2**64}, {"pid": -(2**63) - 1}, {"where": "half \ud800 of a pair"}, {"where": float("1e17")}, {"pid": 1.5}],
)
def test_what_msgspec_does_not_write_or_does_not_fit_its_type_is_written_all_the_same(fields):
    value = make_rank(**{"pid": 1, **fields})
    assert encode_fast(value) == encode(value).encode("utf-8", "replace")
    (name,) = fields
    assert json.loads(encode_exact(value))[name] == fields[name]
    for slow, compiled in TABLES.values():
        assert write(compiled, value) == write(slow, value)


@pytest.mark.parametrize("write_line", [encode, encode_fast, encode_exact])
@pytest.mark.parametrize("table", [EncoderTable, Compiled])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_encoder_writes_what_is_no_number(write_line, table, value, monkeypatch):
    monkeypatch.setattr(codec, "_ROUNDED", table(exact=False))
    monkeypatch.setattr(codec, "_EXACT", table(exact=True))
    with pytest.raises(ValueError, match="JSON"):
        write_line(make_cpu(used_cores=value))


def test_an_encoder_is_compiled_after_so_many_values_and_its_lines_stay_the_same(monkeypatch):
    monkeypatch.setattr(codec, "COMPILE_AFTER", 3)
    table, frame = EncoderTable(exact=False), golden("two-ranks")
    lines, encoders = set(), []
    for _ in range(5):
        lines.add(write(table, frame))
        encoders.append(table[Frame])
    assert lines == {json.dumps(json.loads(encode(frame)), ensure_ascii=False)}
    assert [one is encoders[0] for one in encoders] == [True, True, False, False, False]
    assert encoders[2:] == [table[Frame]] * 3


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"tid":' * 100_000,
        b"\xff",
        b'"\xff"',
        b'{"tid":NaN,"name":""}',
        b'{"tid":1e999,"name":""}',
        b'{"tid":1} 2',
        b'{"tid":"1","name":""}',
        b'{"tid":1}',
        b'{"tid":1,"name":"\\ud800"}',
        b'{"tid":1,"name":"\x01"}',
        b'{"tid":%s,"name":""}' % (b"9" * 5000),
        b"null",
    ],
)
def test_hostile_bytes_are_refused_or_read_as_json_reads_them(line):
    def read(how):
        try:
            return how()
        except CodecError as error:
            return str(error)

    found = read(lambda: decode_fast(LoopThread, line))
    try:
        text = line.decode()
    except UnicodeDecodeError:
        assert "not JSON" in found
        return
    assert found == read(lambda: decode(LoopThread, text))


@given(st.integers(0, 2**32), st.binary(max_size=6))
def test_a_damaged_frame_is_refused_or_read_and_nothing_else(at, noise):
    whole = encode_exact(make_frame())
    at %= len(whole)
    for line in (whole[:at], whole[:at] + noise + whole[at + len(noise) :]):
        with contextlib.suppress(CodecError):
            assert isinstance(decode_fast(Frame, line), Frame)


def test_without_msgspec_the_lines_say_the_same(monkeypatch):
    frame = make_frame()
    fast, exact = encode_fast(frame), encode_exact(frame)
    read = decode_fast(Frame, exact)
    monkeypatch.setattr(codec, "_find_fast", lambda: None)
    assert encode_fast(frame) == fast
    assert json.loads(encode_exact(frame)) == json.loads(exact)
    assert decode_fast(Frame, encode_exact(frame)) == read
