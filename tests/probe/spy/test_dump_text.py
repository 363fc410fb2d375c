"""Parse what py-spy says in JSON: native frames, variables, and anything at all without raising."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import RUNNING, make_rank, rounds
from tpmon.judge.stacks.classify import is_library
from tpmon.model.dump import Local, Motion
from tpmon.model.known import NOT_APPLICABLE
from tpmon.probe.spy.text import (
    MAX_FRAMES,
    MAX_THREADS,
    MOST_LOCALS,
    NATIVE_CHARS,
    OUTER_FRAMES,
    VALUE_CHARS,
    DumpedStack,
    Sampled,
    is_torn,
    parse_dump,
    shorten_native,
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("0x7fec4cea3f16", "?"),
        ("pthread_cond_wait", "pthread_cond_wait"),
        ("c10d::Work::wait", "c10d::Work::wait"),
        ("std::vector<std::pair<int, char>, a<b> >::push_back(int const&)", "std::vector::push_back"),
        ("pybind11::f<bool, {lambda(x<y>&)#1}>(int)::{lambda(z&)#3}::_FUN", "pybind11::f"),
        ("operator<", "operator<"),
        ("c10d::(anonymous namespace)::work(int)", "c10d::work"),
        ("<" * 100, "<" * (NATIVE_CHARS - 1) + "…"),
        ("", ""),
    ],
)
def test_native_names_lose_what_differs_and_what_nobody_reads(name, short):
    assert shorten_native(name) == short


def frame(name: str, variables: object = None, module: object = None) -> dict[str, object]:
    return {"name": name, "filename": "/run/a.py", "line": 3, "locals": variables, "module": module}


def parse_one(*frames: dict[str, object], **more: object) -> DumpedStack:
    thread = {"thread_name": "MainThread", "os_thread_id": 7, "frames": list(frames), **more}
    (stack,) = parse_dump(json.dumps([thread]).encode(), 7).stacks
    assert isinstance(stack, DumpedStack)
    return stack


def variable(name: str, value: object) -> dict[str, object]:
    return {"name": name, "addr": 1, "arg": True, "repr": value}


def test_variables_belong_to_their_frame_and_only_where_there_are_some():
    stack = parse_one(frame("inner", [variable("x", "3")]), frame("middle", []), frame("outer", None))
    assert [one.function for one in stack.frames] == ["outer", "middle", "inner"]
    assert [(one.frame, one.variables) for one in stack.locals] == [(2, (Local("x", "3"),))]
    assert parse_one(frame("alone")).locals is NOT_APPLICABLE
    assert parse_one(frame("alone"), owns_gil=True).holds_gil is True
    assert parse_one(frame("alone"), owns_gil="yes").holds_gil is NOT_APPLICABLE


@pytest.mark.parametrize(
    ("told", "torn"),
    [
        ({"owns_gil": True, "active": True}, True),
        ({"owns_gil": True}, True),
        ({"owns_gil": True, "active": False}, False),
        ({"owns_gil": False, "active": True}, False),
        ({"active": True}, False),
    ],
)
def test_a_stack_is_lost_where_who_runs_with_the_interpreters_lock_has_none(told, torn):
    assert is_torn([parse_one(**told)]) is torn
    assert not is_torn([parse_one(frame("alone"), **told)])


def test_of_more_threads_than_are_kept_the_main_one_and_the_loop_are_kept_wherever_they_are_listed():
    def thread(number):
        name = "MainThread" if number == 7 else f"t{number}"
        return {"thread_name": name, "os_thread_id": number, "frames": [frame("work")]}

    others = [thread(number) for number in range(1000, 1000 + 600)]
    sampled = parse_dump(json.dumps([*others, thread(9), thread(7)]).encode(), 7, loop_tid=9)
    assert [one.tid for one in sampled.stacks if one.frames][:2] == [7, 9]
    assert sum(bool(one.frames) for one in sampled.stacks) == MAX_THREADS
    assert (sampled.samples, sampled.lost) == (1, 0)
    assert len({one.tid for one in sampled.stacks}) == 602, "the rest stays counted, without its frames"
    without = parse_dump(json.dumps([*others, {**thread(7), "os_thread_id": None}]).encode(), 7)
    assert without.samples == 1, "before Python 3.11 its name tells"


def test_variables_of_a_deep_stack_stay_with_their_frames():
    frames = [frame(f"f{number}", [variable("depth", str(number))]) for number in range(200)]
    stack = parse_one(*frames)
    assert len(stack.frames) == MAX_FRAMES
    for one in stack.locals:
        assert stack.frames[one.frame].function == f"f{one.variables[0].value}"
    assert stack.locals[OUTER_FRAMES - 1].variables[0].value == str(200 - OUTER_FRAMES)


def test_the_place_where_a_deep_stack_was_cut_says_how_many_frames_are_gone():
    stacks = [parse_one(*[frame("walk")] * depth).frames for depth in (MAX_FRAMES, 200, 250)]
    assert [len(one) for one in stacks] == [MAX_FRAMES] * 3
    assert [one[OUTER_FRAMES].function for one in stacks] == ["walk", "[121 frames left out]", "[171 frames left out]"]
    assert is_library(stacks[1][OUTER_FRAMES].file)


def test_a_recursion_that_goes_on_is_not_frozen():
    depths = [parse_one(frame("leaf"), *[frame("walk")] * depth).frames for depth in (200, 250, 300)]
    looks = [[make_rank(0, frames=one, **RUNNING)] for one in depths]
    assert rounds(*looks, world=1).groups[0].motion is Motion.MOVING


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("model", "<Net at 0x7fec330c7570>", "<Net>"),
        ("batch", "(<Tensor at 0x7f01>, <Tensor at 0x7f02>)", "(<Tensor>, <Tensor>)"),
        ("path", '"/data/a at 0x12"', '"/data/a at 0x12"'),
        ("api_key", '"abcdef"', "***"),
        ("HF_TOKEN", '"hf_abcdefghijk"', "***"),
        ("text", '"hf_abcdefghijklmnop"', '"***"'),
        ("tokenizer", "<Tokenizer at 0x1f>", "<Tokenizer>"),
        ("max_tokens", "4096", "4096"),
        ("password", "4096", "***"),
        ("db_pass", "'hunter2'", "***"),
        ("pwd", "'hunter2'", "***"),
        ("passphrase", "'hunter2'", "***"),
        ("authorization", "'hunter2'", "***"),
        ("forward_pass", "3", "3"),
        ("author", "'me'", "'me'"),
        ("key", "None", "None"),
        ("name", '"a\x1b[2Jb"', '"a?[2Jb"'),
        ("long", "x" * 500, "x" * (VALUE_CHARS - 1) + "…"),
        ("odd", 7, ""),
    ],
)
def test_a_value_is_cleaned_cut_and_hidden(name, value, shown):
    stack = parse_one(frame("f", [variable(name, value)]))
    assert stack.locals[0].variables == (Local(name, shown),)


def test_of_many_variables_some_are_kept():
    stack = parse_one(frame("f", [variable(f"v{number}", "1") for number in range(500)]))
    assert len(stack.locals[0].variables) == MOST_LOCALS


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
_KEYS = st.sampled_from(
    [
        *("name", "filename", "line", "locals", "module", "frames", "repr"),
        *("thread_name", "os_thread_id", "owns_gil", "active"),
    ]
)
_ANY = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5), max_leaves=15
)
_FRAMES = st.lists(st.dictionaries(_KEYS, _ANY, max_size=5) | _ANY, max_size=3)


_THREADS = st.fixed_dictionaries({"frames": _FRAMES | _ANY}, optional={"thread_name": _ANY, "os_thread_id": _ANY})


@given(st.lists(_THREADS | _ANY, max_size=3) | _ANY)
def test_no_answer_of_py_spy_raises(threads):
    assert isinstance(parse_dump(json.dumps(threads).encode(), 7), Sampled)
