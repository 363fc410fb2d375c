"""Pickles of plain containers are read; whatever else a pickle can ask for is refused, and cheaply."""

import contextlib
import os
import pickle
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpmon.model.text.unpickle import Limits, PlainError, load_plain

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

_atoms = st.none() | st.booleans() | st.integers(-(2**600), 2**600) | st.floats(allow_nan=False) | st.text(max_size=300)
_keys = st.text(max_size=20) | st.integers() | st.booleans() | st.none()
_plain = st.recursive(
    _atoms,
    lambda inner: (
        st.lists(inner, max_size=5) | st.lists(inner, max_size=5).map(tuple) | st.dictionaries(_keys, inner, max_size=5)
    ),
    max_leaves=40,
)
_since_4 = st.recursive(
    _atoms | st.binary(max_size=400) | st.sets(_keys, max_size=5) | st.frozensets(_keys, max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.binary(max_size=9), inner, max_size=4),
    max_leaves=30,
)


@given(_plain, st.sampled_from(PROTOCOLS))
def test_what_python_wrote_comes_back(value, protocol):
    found = load_plain(pickle.dumps(value, protocol))
    assert found == value
    assert repr(found) == repr(value), "True is not 1"


@given(_since_4, st.sampled_from([4, 5]))
def test_bytes_and_sets_come_back(value, protocol):
    assert load_plain(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_long_texts_and_many_values_come_back_and_shared_parts_stay_shared(protocol):
    value = {"text": "é" * 70_000, "numbers": list(range(-70_000, 70_000, 7)), "nested": [[(1, 2, 3, 4)]]}
    if protocol == 0:
        value["text"] = "é" * 1000
    assert load_plain(pickle.dumps(value, protocol)) == value
    first, second = load_plain(pickle.dumps([value["nested"]] * 2, protocol))
    assert first is second


class Harm:
    def __reduce__(self):
        return os.system, ("touch /nowhere/at/all",)


REFUSED = {
    "a call": pickle.dumps(Harm(), 2),
    "a call in a list": pickle.dumps([1, Harm()], 4),
    "a class": pickle.dumps(subprocess.Popen, 0),
    "a class by its name on the stack": pickle.dumps(subprocess.Popen, 4),
    "an instance": b"(cos\nsystem\nS'true'\no.",
    "an instance of protocol 0": b"(S'true'\nios\nsystem\n.",
    "a new object": b"cos\nsystem\n)\x81.",
    "a state": b"}}b.",
    "a persistent thing": b"Pname\n.",
    "a persistent thing on the stack": b"NQ.",
    "an extension": b"\x82\x01.",
    "a buffer": b"\x97.",
    "a byte array": pickle.dumps(bytearray(b"xy"), 5),
    "no opcode": b"\xff.",
}


@pytest.mark.parametrize("name", REFUSED)
def test_more_than_plain_containers_is_refused_by_name(name):
    with pytest.raises(PlainError, match=r"^\w+( 0xff)? in it: more than plain containers$"):
        load_plain(REFUSED[name])


def laughs(make: bytes, levels: int) -> bytes:
    """Return a list that holds the one before twice, and so on: 2 ** levels values in a few bytes."""
    data = b"]q\x000"
    for level in range(levels):
        get = b"j" + struct.pack("<I", level)
        data += make.replace(b"@", get) + b"r" + struct.pack("<I", level + 1) + b"0"
    return b"\x80\x02" + data + b"j" + struct.pack("<I", levels) + b"."


def nested(levels: int) -> bytes:
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


HOSTILE = {
    "a billion laughs of lists": (laughs(b"(@@l", 64), "written out"),
    "a billion laughs of tuples": (laughs(b"@@\x86", 64), "written out"),
    "a billion laughs of texts": (
        b"\x80\x02X" + struct.pack("<I", 100_000) + b"x" * 100_000 + b"q\x000(" + b"h\x00" * 100_000 + b"l.",
        "written out",
    ),
    "tuples as a key": (laughs(b"@@\x86", 64)[:-1] + b"0}j" + struct.pack("<I", 64) + b"Ns.", "as a key"),
    "a deep tuple as a key": (b"\x80\x02})" + b"\x85" * 300_000 + b"Ns.", "as a key"),
    "deep nesting": (nested(300_000), "deep"),
    "a list in itself": (b"\x80\x02]q\x00h\x00a.", "contains itself"),
    "a dict in itself": (b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.", "contains itself"),
    "a huge text": (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.", "cut"),
    "a huge bytes": (b"\x80\x04\x8e" + struct.pack("<Q", (1 << 64) - 1) + b"x.", "cut"),
    "a huge number": (b"\x80\x02\x8b" + struct.pack("<i", 600) + b"\1" * 600 + b".", "a number of 600 bytes"),
    "a huge number that is not there": (b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"\0.", "cut"),
    "a number of negative length": (b"\x80\x02\x8b" + struct.pack("<i", -4) + b"\0.", "cut"),
    "many digits": (b"I" + b"9" * 60_000 + b"\n.", "number should be"),
    "a huge place in memory": (b"\x80\x02]r\xff\xff\xff\xff.", ""),
    "a place that is empty": (b"\x80\x02h\x05.", "not in it"),
    "a huge frame": (b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"].", ""),
    "many values": (b"\x80\x02(" + b"N" * 3_000_000 + b"l.", "more than 2000000 values"),
    "many remembered values": (b"\x80\x04]" + b"\x94" * 3_000_000 + b".", "more than 2000000 values"),
    "keys that collide": (
        b"\x80\x02}(" + b"".join(b"J" + struct.pack("<i", i << 10) + b"N" for i in range(20_000)) + b"u.",
        "keys that are no text",
    ),
    "a new protocol": (b"\x80\x09].", "protocol 9"),
    "nothing": (b"", "cut"),
    "no end": (b"\x80\x02]", "cut"),
    "no value": (b".", "missing"),
    "two values": (b"NN.", "one value"),
    "a mark as the value": (b"(.", "missing"),
    "a mark below the value": (b"(N.", "one value"),
    "an append to nothing": (b"Na.", "no list"),
    "an append to a text": (b"\x80\x02X\x01\x00\x00\x00aNa.", "no list"),
    "a key without a value": (b"}(Nu.", "without a value"),
    "items without a mark": (b"]Ne.", "mark"),
    "a set of lists": (b"\x80\x04\x8f(]\x90.", "in a set"),
    "broken text": (b"\x80\x02X\x02\x00\x00\x00\xff\xfe.", "UTF-8"),
    "a text where a number should be": (b"Iabc\n.", "number should be"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_end_in_one_clear_error(name):
    data, words = HOSTILE[name]
    if not words:
        assert load_plain(data) == []
        return
    with pytest.raises(PlainError, match=words):
        load_plain(data)


def test_limits_are_held():
    data = pickle.dumps([[[1, 2]], {3, 4}], 4)
    assert load_plain(data, Limits(depth=3)) == [[[1, 2]], {3, 4}]
    for limits, words in (
        (Limits(file_bytes=10), "at most 10 are read"),
        (Limits(values=5), "more than 5 values"),
        (Limits(depth=2), "more than 2 deep"),
        (Limits(written_out=4), "written out"),
        (Limits(loose_keys=1), "no text"),
    ):
        with pytest.raises(PlainError, match=words):
            load_plain(data, limits)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_refused(data, begins_well):
    with contextlib.suppress(PlainError):
        load_plain(b"\x80\x02" + data + b"." if begins_well else data)


@given(_plain, st.sampled_from(PROTOCOLS), st.randoms(use_true_random=False))
def test_a_damaged_pickle_is_read_or_refused(value, protocol, chance):
    data = bytearray(pickle.dumps(value, protocol))
    for _ in range(3):
        data[chance.randrange(len(data))] = chance.randrange(256)
    with contextlib.suppress(PlainError):
        load_plain(bytes(data))


@given(_plain, st.sampled_from(PROTOCOLS), st.data())
def test_a_cut_pickle_is_refused(value, protocol, data):
    whole = pickle.dumps(value, protocol)
    with pytest.raises(PlainError):
        load_plain(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_the_pickle_module_is_never_asked_to_load():
    code = (
        "import pickle; from tpmon.model.text.unpickle import load_plain;"
        "pickle.Unpickler = pickle.loads = pickle.load = pickle._Unpickler = None;"
        "assert load_plain(pickle.dumps({'a': [1]}, 2)) == {'a': [1]}"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
