"""What py-spy prints becomes typed stacks; what others wrote into it can neither raise nor flood."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpmon.model.stacks import StackFrame
from tpmon.probe.spy.text import (
    MAX_FRAMES,
    MAX_STACKS,
    OUTER_FRAMES,
    Refusal,
    Sampled,
    parse_complaint,
    parse_dump,
    parse_raw,
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
    assert (sampled.stacks[0].tid == 7) == is_main
    assert sampled.samples == (3 if is_main else 0)


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


def test_the_end_of_a_long_path_stays():
    (stack,) = parse_raw(f"thread (1);f ({'/very' * 100}/train.py:3) 2\n".encode(), 1).stacks
    assert len(stack.frames[0].file) <= 240
    assert stack.frames[0].file.endswith("/train.py")


def test_a_deep_stack_keeps_both_ends():
    frames = ";".join(f"f{number} (/a.py:{number})" for number in range(1, 501))
    (stack,) = parse_raw(f"thread (1);{frames} 2\n".encode(), 1).stacks
    assert len(stack.frames) == MAX_FRAMES
    assert [stack.frames[0].line, stack.frames[OUTER_FRAMES - 1].line] == [1, OUTER_FRAMES]
    assert [stack.frames[OUTER_FRAMES].line, stack.frames[-1].line] == [451, 500]


def test_stacks_beyond_the_bound_stay_counted():
    lines = [f"thread (1): MainThread;f (/a.py:{n}) 1" for n in range(1, 151)]
    lines += [f"thread (2): other;f (/a.py:{n}) 5" for n in range(1, 151)]
    sampled = parse_raw("\n".join(lines).encode(), 1)
    assert sampled.samples == 150
    assert len(sampled.stacks) == MAX_STACKS + 1
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


@pytest.mark.parametrize(
    ("errors", "refusal", "text"),
    [
        (
            b"Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'\n",
            Refusal.PERMISSION,
            "Permission Denied",
        ),
        (
            b"Error: Failed to get process executable name. Check that the process is running.\n\nCaused by:\n",
            Refusal.GONE,
            "Failed to get process executable name",
        ),
        (
            b"Error: Failed to find python version from target process\n",
            Refusal.UNKNOWN_PYTHON,
            "Failed to find python version",
        ),
        (b"Error: something else\n", Refusal.OTHER, "something else"),
        (b"", Refusal.OTHER, "no reason given"),
    ],
)
def test_complaints(errors, refusal, text):
    found, words = parse_complaint(errors)
    assert found is refusal
    assert words.startswith(text)
