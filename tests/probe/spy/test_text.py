"""What py-spy prints becomes typed stacks; what others wrote into it can neither raise nor flood."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import make_rank, rounds
from tests.stacks import RUNNING
from tpmon.judge.stacks.classify import is_library
from tpmon.model.dump import Local, Motion
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.stacks import StackFrame
from tpmon.probe.spy.text import (
    MAX_FRAMES,
    MAX_STACKS,
    MAX_THREADS,
    MOST_LOCALS,
    NATIVE_CHARS,
    OUTER_FRAMES,
    VALUE_CHARS,
    DumpedStack,
    Refusal,
    Sampled,
    is_torn,
    parse_complaint,
    parse_dump,
    parse_raw,
    shorten_native,
)

# py-spy 0.4.3 record --nonblocking --idle --threads --full-filenames --format raw, to a pipe
RAW = """\
py-spy> Sampling process 13 times a second for 2 seconds. Press Control-C to exit.

thread (41): MainThread;<module> (/train/odd dir;x/od (d) 3;é.py:17);A.run (/train/odd dir;x/od (d) 3;é.py:12);A.run.<locals>.<listcomp> (/train/odd dir;x/od (d) 3;é.py:12) 25
thread (43): Thread-1 (outer);Thread._bootstrap (/usr/lib/python3.11/threading.py:1002);outer (/train/a.py:8);<module> (<string; (a:1)> 12:4);f (<string; (a:1)> 12:3) 24
thread (44): na;me (x) 5: \x1b[31m;Thread._bootstrap (/usr/lib/python3.11/threading.py:1002);spin_semi (/train/a.py:3) 25
py-spy> Wrote raw flamegraph data to '/dev/stdout'. Samples: 75 Errors: 0
py-spy> You can use the flamegraph.pl script from https://github.com/brendangregg/flamegraph to generate a SVG
"""


def test_raw_stacks_with_names_that_hold_what_separates_them():
    sampled = parse_raw(RAW.encode(), 41)
    assert (sampled.samples, sampled.lost) == (25, 0)
    main, *others = sampled.stacks
    assert (main.tid, main.thread, main.samples) == (41, "MainThread", 25)
    assert main.frames[0] == StackFrame("<module>", "/train/odd dir;x/od (d) 3;é.py", 17)
    assert [frame.function for frame in main.frames] == ["<module>", "A.run", "A.run.<locals>.<listcomp>"]
    by_tid = {stack.tid: stack for stack in others}
    assert (by_tid[43].thread, by_tid[43].samples) == ("Thread-1 (outer)", 24)
    assert by_tid[43].frames[-2:] == (
        StackFrame("<module>", "<string; (a:1)> 12", 4),
        StackFrame("f", "<string; (a:1)> 12", 3),
    )
    assert by_tid[44].thread == "na;me (x) 5: ?[31m", "an escape sequence never reaches the terminal"
    assert [frame.function for frame in by_tid[44].frames] == ["Thread._bootstrap", "spin_semi"]


@pytest.mark.parametrize(
    ("header", "is_main"),
    [
        ("thread (7)", True),
        ("thread (7): renamed", True),
        ("thread (0x7F8643E2FB80): MainThread", True),  # Python before 3.11: no kernel number
        ("thread (12): MainThread", True),  # a container's own number
        ("thread (12): Thread-1", False),
        ("thread (0x7F8643E2FB80)", False),
    ],
)
def test_the_main_thread_has_the_number_of_its_process(header, is_main):
    sampled = parse_raw(f"{header};<module> (/a.py:1) 3\n".encode(), 7)
    assert (sampled.stacks[0].tid == 7, sampled.samples) == (is_main, 3 if is_main else 0)


def test_a_thread_that_only_calls_itself_main_is_not_taken_for_it():
    raw = b"thread (7): x;<module> (/a.py:1) 3\nthread (8): MainThread;f (/a.py:2) 5\n"
    sampled = parse_raw(raw, 7)
    assert sampled.samples == 3
    assert [stack.tid for stack in sampled.stacks] == [7, 8]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("f (lib.so)", StackFrame("f", "lib.so", 0)),
        ("f (/a b/c (1).py:9)", StackFrame("f", "/a b/c (1).py", 9)),
        ("f (/a.py:99999999999)", StackFrame("f", "/a.py:99999999999", 0)),
        ("bare", StackFrame("bare", "", 0)),
        ("f\x1b[2J (/a\x07.py:3)", StackFrame("f?[2J", "/a?.py", 3)),
    ],
)
def test_odd_frames(frame, expected):
    (stack,) = parse_raw(f"thread (1): n;<module> (/m.py:1);{frame} 2\n".encode(), 1).stacks
    assert stack.frames == (StackFrame("<module>", "/m.py", 1), expected)


def test_a_deep_stack_keeps_both_ends_and_a_long_path_its_last():
    frames = ";".join(f"f{number} (/a.py:{number})" for number in range(1, 501))
    (stack,) = parse_raw(f"thread (1);{frames} 2\n".encode(), 1).stacks
    assert len(stack.frames) == MAX_FRAMES
    assert [stack.frames[0].line, stack.frames[OUTER_FRAMES - 1].line] == [1, OUTER_FRAMES]
    assert [stack.frames[OUTER_FRAMES].line, stack.frames[-1].line] == [451, 500]
    (stack,) = parse_raw(f"thread (1);f ({'/very' * 100}/train.py:3) 2\n".encode(), 1).stacks
    assert len(stack.frames[0].file) <= 240
    assert stack.frames[0].file.endswith("/train.py")


def test_stacks_beyond_the_bound_stay_counted():
    lines = [f"thread (1): MainThread;f (/a.py:{n}) 1" for n in range(1, 151)]
    lines += [f"thread (2): other;f (/a.py:{n}) 5" for n in range(1, 151)]
    sampled = parse_raw("\n".join(lines).encode(), 1)
    assert (sampled.samples, len(sampled.stacks)) == (150, MAX_STACKS + 1)
    assert all(stack.tid == 1 for stack in sampled.stacks[:150]), "the main thread comes first"
    rest = sampled.stacks[-1]
    assert (rest.tid, rest.thread, rest.frames, rest.samples) == (2, "other", (), 500)


@pytest.mark.parametrize("name", ["a\nb", "a 5\nb", "\n", "a\n\n7"])
def test_a_line_break_in_a_name_costs_no_stack(name):
    lines = f"py-spy> Sampling\n\nthread (1): {name};{name} (/a.py:1) 4\nthread (1): c;f (/a.py:1) 2\npy-spy> Wrote\n"
    sampled = parse_raw(lines.encode(), 1)
    assert (sampled.samples, sampled.lost) == (6, 0)
    assert {stack.frames for stack in sampled.stacks} == {
        (StackFrame(name.replace("\n", " "), "/a.py", 1),),
        (StackFrame("f", "/a.py", 1),),
    }


@given(st.binary(max_size=400), st.integers(0, 2**22))
def test_no_bytes_make_a_parser_raise(data, pid):
    for parse in (parse_raw, parse_dump):
        assert isinstance(parse(data, pid), Sampled)
    assert isinstance(parse_complaint(data)[0], Refusal)


@given(st.lists(st.sampled_from([";", " (", ")", ":1)", "/a", "thread (1)", ": ", "x", " 3", "\n", "0x"])))
def test_no_arrangement_of_the_separators_makes_the_parser_raise(pieces):
    raw = ("thread (1): MainThread;" + "".join(pieces) + " 2\n").encode()
    sampled = parse_raw(raw, 1)
    for frame in (frame for stack in sampled.stacks for frame in stack.frames):
        assert frame.function.isprintable()
        assert frame.file.isprintable()


def test_a_dump_is_one_sample_of_each_thread_outermost_first():
    frames = [
        {"name": "inner", "filename": "/a.py", "line": 3, "short_filename": "a.py", "locals": None},
        {"name": "<module>", "filename": "/a.py", "line": 9, "short_filename": "a.py", "locals": None},
    ]
    threads = [
        {"pid": 5, "thread_id": 140, "thread_name": "Thread-1", "os_thread_id": 6, "frames": frames[:1]},
        {"pid": 5, "thread_id": 141, "thread_name": None, "os_thread_id": 5, "frames": frames},
    ]
    sampled = parse_dump(json.dumps(threads).encode(), 5)
    assert sampled.samples == 1
    main, other = sampled.stacks
    assert (main.tid, main.thread, main.samples) == (5, "", 1)
    assert main.frames == (StackFrame("<module>", "/a.py", 9), StackFrame("inner", "/a.py", 3))
    assert (other.tid, other.thread) == (6, "Thread-1")


NOT_PERMITTED = (
    b"Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'\n"
)
NO_PROCESS = b"Error: Failed to get process executable name. Check that the process is running.\n\nCaused by:\n"
NO_PYTHON = b"Error: Failed to find python version from target process\n"


@pytest.mark.parametrize(
    ("errors", "refusal", "text"),
    [
        (NOT_PERMITTED, Refusal.PERMISSION, "Permission Denied"),
        (NO_PROCESS, Refusal.GONE, "Failed to get process executable name"),
        (NO_PYTHON, Refusal.UNKNOWN_PYTHON, "Failed to find python version"),
        (b"Error: something else\n", Refusal.OTHER, "something else"),
        (b"", Refusal.OTHER, "no reason given"),
    ],
)
def test_complaints(errors, refusal, text):
    found, words = parse_complaint(errors)
    assert found is refusal
    assert words.startswith(text)


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


def dumped(name: str, variables: object = None, module: object = None) -> dict[str, object]:
    return {"name": name, "filename": "/run/a.py", "line": 3, "locals": variables, "module": module}


def parse_one(*frames: dict[str, object], **more: object) -> DumpedStack:
    thread = {"thread_name": "MainThread", "os_thread_id": 7, "frames": list(frames), **more}
    (stack,) = parse_dump(json.dumps([thread]).encode(), 7).stacks
    assert isinstance(stack, DumpedStack)
    return stack


def variable(name: str, value: object) -> dict[str, object]:
    return {"name": name, "addr": 1, "arg": True, "repr": value}


def test_variables_belong_to_their_frame_and_only_where_there_are_some():
    stack = parse_one(dumped("inner", [variable("x", "3")]), dumped("middle", []), dumped("outer", None))
    assert [one.function for one in stack.frames] == ["outer", "middle", "inner"]
    assert [(one.frame, one.variables) for one in stack.locals] == [(2, (Local("x", "3"),))]
    assert parse_one(dumped("alone")).locals is NOT_APPLICABLE
    assert parse_one(dumped("alone"), owns_gil=True).holds_gil is True
    assert parse_one(dumped("alone"), owns_gil="yes").holds_gil is NOT_APPLICABLE


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
    assert not is_torn([parse_one(dumped("alone"), **told)])


def test_of_more_threads_than_are_kept_the_main_one_and_the_loop_are_kept_wherever_they_are_listed():
    def thread(number):
        name = "MainThread" if number == 7 else f"t{number}"
        return {"thread_name": name, "os_thread_id": number, "frames": [dumped("work")]}

    others = [thread(number) for number in range(1000, 1000 + 600)]
    sampled = parse_dump(json.dumps([*others, thread(9), thread(7)]).encode(), 7, loop_tid=9)
    assert [one.tid for one in sampled.stacks if one.frames][:2] == [7, 9]
    assert sum(bool(one.frames) for one in sampled.stacks) == MAX_THREADS
    assert (sampled.samples, sampled.lost) == (1, 0)
    assert len({one.tid for one in sampled.stacks}) == 602, "the rest stays counted, without its frames"
    without = parse_dump(json.dumps([*others, {**thread(7), "os_thread_id": None}]).encode(), 7)
    assert without.samples == 1, "before Python 3.11 its name tells"


def test_variables_of_a_deep_stack_stay_with_their_frames_and_of_many_some_are_kept():
    frames = [dumped(f"f{number}", [variable("depth", str(number))]) for number in range(200)]
    stack = parse_one(*frames)
    assert len(stack.frames) == MAX_FRAMES
    for one in stack.locals:
        assert stack.frames[one.frame].function == f"f{one.variables[0].value}"
    assert stack.locals[OUTER_FRAMES - 1].variables[0].value == str(200 - OUTER_FRAMES)
    stack = parse_one(dumped("f", [variable(f"v{number}", "1") for number in range(500)]))
    assert len(stack.locals[0].variables) == MOST_LOCALS


def test_the_place_where_a_deep_stack_was_cut_says_how_many_frames_are_gone():
    stacks = [parse_one(*[dumped("walk")] * depth).frames for depth in (MAX_FRAMES, 200, 250)]
    assert [len(one) for one in stacks] == [MAX_FRAMES] * 3
    assert [one[OUTER_FRAMES].function for one in stacks] == ["walk", "[121 frames left out]", "[171 frames left out]"]
    assert is_library(stacks[1][OUTER_FRAMES].file)


def test_a_recursion_that_goes_on_is_not_frozen():
    depths = [parse_one(dumped("leaf"), *[dumped("walk")] * depth).frames for depth in (200, 250, 300)]
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
        ("url", '"s3://user:geheim@host/x"', '"s3://user:***@host/x"'),
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
    stack = parse_one(dumped("f", [variable(name, value)]))
    assert stack.locals[0].variables == (Local(name, shown),)


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
