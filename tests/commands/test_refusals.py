"""What cannot be done is refused with what is wrong, what to try, and its exit code: 2 of the call, 3 of the job."""

import os
import subprocess
import sys

import pytest

from tests.command_line import call

pytestmark = pytest.mark.usefixtures("small_environment")


CALLS = [
    (["frobnicate"], {}, "frobnicate is no command", "tpmon --help"),
    (["atach", "1"], {}, "atach is no command", "tpmon attach 1"),
    (["help", "diagnos"], {}, "diagnos is no command", "tpmon diagnose --help"),
    (["hok", "export", "f"], {}, "hok is no command", "tpmon hook export f"),
    (["48213"], {}, "48213 is no command", "tpmon attach 48213"),
    (["--frobnicate"], {}, "tpmon has no --frobnicate", "tpmon --help"),
    (["ps"], {"TPMON_JSON": "perhaps"}, "TPMON_JSON: expected true or false", "tpmon"),
    (["diagnose", "1", "--plain"], {}, "diagnose has no --plain", "tpmon diagnose --help"),
    (["dump", "1", "--rounds"], {}, "argument --rounds: expected one", "tpmon dump --help"),
    (["attach"], {}, "which job? PID is missing", "tpmon ps lists the training jobs"),
    (["attach", "-5"], {}, "a PID is a number, found '-5'", "tpmon ps"),
    (["attach", "1", "--on"], {}, "attach has no --on", "tpmon attach --help"),
    (["attach", "1", "-i", "0.1"], {}, "--interval: expected a number from 0.5 to 10", "tpmon"),
    (["attach", "1", "--json", "--plain"], {}, "json and plain exclude each other", "leave one"),
    (["bundle", "1", "--seconds", "1"], {}, "--seconds: expected a number from 2 to 600", "tpmon"),
    (["demo", "--bottleneck", "gremlins"], {}, "--bottleneck: 'gremlins' is no bottleneck", "one of: none, slow"),
    (["dump", "1", "--rounds", "0"], {}, "--rounds: expected a whole number from 1 to 100", "tpmon"),
    (["dump", "1", "--format", "svg"], {}, "--format: 'svg' is no format", "one of: text, json"),
    (["dump", "1", "--json", "--format", "collapsed"], {}, "--json and --format collapsed", "leave"),
    (["dump", "1", "--pid", "9" * 5000], {}, "--pid: a PID is a number, found '999", "tpmon dump PID"),
    (["dump", "1", "--tree", "--json"], {}, "--tree is text, and json was asked for", "leave one"),
    (["fold", "-", "--tree", "--format", "collapsed"], {}, "--tree is text, and collapsed", "leave one"),
    (["dump", "1", "--rank", "x"], {}, "--rank: 'x' is no rank", "tpmon dump PID --rank 3"),
    (["dump", "1", "--rank", "3-1"], {}, "--rank: '3-1' is no rank", "tpmon dump PID --rank 3"),
    (["dump", "1", "--rank", "0-99999999"], {}, "--rank: '0-99999999' is no rank", "tpmon dump"),
    (["dump", "1", "--pid", "train"], {}, "--pid: a PID is a number", "tpmon dump PID --pid"),
    (["dump", "1", "--block", "--readonly"], {}, "--block stops processes of the job", "leave one"),
    (["dump", "1", "--native"], {"TPMON_READONLY": "1"}, "--native stops processes", "leave one"),
    (["fold"], {}, "the following arguments are required: FILE", "tpmon fold --help"),
    (["fold", "/no/such/file"], {}, "/no/such/file: No such file or directory", "tpmon dump PID --json"),
    (["fold", "-"], {}, "standard input: no dump in it", "tpmon dump PID --json"),
    (["sample", "1", "--seconds", "0"], {}, "--seconds: expected a number from 1 to 3600", "tpmon"),
    (["sample", "1", "--rate", "51"], {}, "--rate: expected a whole number from 5 to 50", "tpmon"),
    (["sample", "1", "--no-stacks"], {}, "no-stacks is set, and sample", "tpmon sample --stacks"),
    (["sample", "1"], {"TPMON_NO_STACKS": "1"}, "no-stacks is set, and sample", "tpmon sample --stacks"),
    (["sample", "1", "--rank", "x"], {}, "--rank: a rank is a number", "tpmon sample PID --rank 0"),
    (["sample", "1", "--seconds", "9" * 4000], {}, "--seconds: expected a number from 1", "tpmon"),
    (["sample", "1", "--rate", "9" * 4000], {}, "--rate: expected a whole number from 5", "tpmon"),
    (["sample", "1", "--rank", "0", "--all"], {}, "--rank and --all exclude", "leave one"),
    (["sample", "1", "--out", "/"], {}, "--out: / is there already", "name a file"),
    (["sample", "1", "--json", "--format", "collapsed"], {}, "--json and --format", "leave"),
    (["doctor", "1", "2"], {}, "doctor has no 2", "tpmon"),
    (["doctor", "--job"], {}, "doctor has no --job", "tpmon"),
]
JOBS = [
    (["dump", "1", "--json"], {"TPMON_DUMP_FORMAT": "collapsed"}, "process 1", ""),
    (["dump", "1", "--format", "collapsed"], {"TPMON_JSON": "1"}, "process 1", ""),
    (["dump", "1"], {"TPMON_DUMP_BLOCK": "1"}, "process 1", ""),
    (["sample", "1", "--stacks"], {"TPMON_NO_STACKS": "1"}, "process 1", ""),
]
GONE = [
    (["attach", "99999999"], {}, "no process 99999999", "tpmon ps"),
    (["attach", "99999999", "--json", "--once"], {}, "no process 99999999", "tpmon ps"),
    (["doctor", "99999999"], {}, "no process 99999999", "tpmon ps"),
    (["dump", "99999999"], {}, "no process 99999999", "tpmon ps"),
]


@pytest.mark.parametrize(
    ("codes", "arguments", "environment", "what", "hint"),
    [*(((2,), *row) for row in CALLS), *(((3, 4), *row) for row in JOBS), *(((3,), *row) for row in GONE)],
)
def test_wrong_calls_say_what_and_what_to_try(codes, arguments, environment, what, hint):
    done = call(*arguments, env={**os.environ, **environment})
    assert done.returncode in codes
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith(f"tpmon: {what}")
    assert second.startswith(f"Try: {hint}")


def test_no_standard_input_is_an_empty_one():
    tpmon = f"exec {sys.executable} -m tpmon fold - <&-"
    done = subprocess.run(["sh", "-c", tpmon], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tpmon: standard input: no dump in it\nTry: ")
