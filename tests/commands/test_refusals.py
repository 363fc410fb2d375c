"""What cannot be done is refused with what is wrong, what to try, and its exit code: 2 of the call, 3 of the job."""

import os
import subprocess
import sys

import pytest

from tests.command_line import call

pytestmark = pytest.mark.usefixtures("small_environment")


@pytest.mark.parametrize(
    ("arguments", "environment", "what", "hint"),
    [
        (["dump"], {}, "which job? PID is missing", "tpmon ps"),
        (["dump", "1", "--job"], {}, "PID and --job exclude each other", "leave one"),
        (["dump", "train.py"], {}, "a PID is a number", "tpmon ps"),
        (["dump", "1", "--rounds", "0"], {}, "--rounds: expected a whole number from 1 to 100", "tpmon"),
        (["dump", "1", "--format", "svg"], {}, "--format: 'svg' is no format", "one of: text, json"),
        (["dump", "1", "--json", "--format", "collapsed"], {}, "--json and --format collapsed", "leave"),
        (["dump", "1", "--json"], {"TPMON_DUMP_FORMAT": "collapsed"}, "process 1", ""),
        (["dump", "1", "--format", "collapsed"], {"TPMON_JSON": "1"}, "process 1", ""),
        (["dump", "9" * 5000], {}, "a PID is a number, found '999", "tpmon ps"),
        (["dump", "1", "--pid", "9" * 5000], {}, "--pid: a PID is a number, found '999", "tpmon dump PID"),
        (["dump", "1", "--tree", "--json"], {}, "--tree is text, and json was asked for", "leave one"),
        (["fold", "-", "--tree", "--format", "collapsed"], {}, "--tree is text, and collapsed", "leave one"),
        (["dump", "1"], {"TPMON_DUMP_BLOCK": "1"}, "process 1", ""),
        (["dump", "1", "--rank", "x"], {}, "--rank: 'x' is no rank", "tpmon dump PID --rank 3"),
        (["dump", "1", "--rank", "3-1"], {}, "--rank: '3-1' is no rank", "tpmon dump PID --rank 3"),
        (["dump", "1", "--rank", "0-99999999"], {}, "--rank: '0-99999999' is no rank", "tpmon dump"),
        (["dump", "1", "--pid", "train"], {}, "--pid: a PID is a number", "tpmon dump PID --pid"),
        (["dump", "1", "--block", "--readonly"], {}, "--block stops processes of the job", "leave one"),
        (["dump", "1", "--native"], {"TPMON_READONLY": "1"}, "--native stops processes", "leave one"),
        (["fold"], {}, "the following arguments are required: FILE", "tpmon fold --help"),
        (["fold", "/no/such/file"], {}, "/no/such/file: No such file or directory", "tpmon dump PID --json"),
        (["fold", "-"], {}, "standard input: no dump in it", "tpmon dump PID --json"),
        (["sample"], {}, "which job? PID is missing", "tpmon ps"),
        (["sample", "1", "--job"], {}, "PID and --job exclude each other", "leave one"),
        (["sample", "train.py"], {}, "a PID is a number", "tpmon ps"),
        (["sample", "1", "--seconds", "0"], {}, "--seconds: expected a number from 1 to 3600", "tpmon"),
        (["sample", "1", "--rate", "51"], {}, "--rate: expected a whole number from 5 to 50", "tpmon"),
        (["sample", "1", "--no-stacks"], {}, "no-stacks is set, and sample", "tpmon sample --stacks"),
        (["sample", "1"], {"TPMON_NO_STACKS": "1"}, "no-stacks is set, and sample", "tpmon sample --stacks"),
        (["sample", "1", "--stacks"], {"TPMON_NO_STACKS": "1"}, "process 1", ""),
        (["sample", "1", "--rank", "x"], {}, "--rank: a rank is a number", "tpmon sample PID --rank 0"),
        (["sample", "1", "--rank", "9" * 5000], {}, "--rank: a rank is a number", "tpmon sample PID --rank 0"),
        (["sample", "1", "--seconds", "9" * 4000], {}, "--seconds: expected a number from 1", "tpmon"),
        (["sample", "1", "--rate", "9" * 4000], {}, "--rate: expected a whole number from 5", "tpmon"),
        (["sample", "1", "--rank", "0", "--all"], {}, "--rank and --all exclude", "leave one"),
        (["sample", "1", "--out", "/"], {}, "--out: / is there already", "name a file"),
        (["sample", "1", "--json", "--format", "collapsed"], {}, "--json and --format", "leave"),
        (["sample", "1", "--json"], {"TPMON_SAMPLE_FORMAT": "collapsed"}, "process 1", ""),
        (["sample", "1", "--format", "collapsed"], {"TPMON_JSON": "1"}, "process 1", ""),
        (["doctor", "train.py"], {}, "a PID is a number", "tpmon"),
        (["doctor", "1", "2"], {}, "doctor has no 2", "tpmon"),
        (["doctor", "--job"], {}, "doctor has no --job", "tpmon"),
    ],
)
def test_wrong_calls_say_what_and_what_to_try(arguments, environment, what, hint):
    done = call(*arguments, env={**os.environ, **environment})
    assert done.returncode in (2, 3, 4)
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith(f"tpmon: {what}")
    assert second.startswith(f"Try: {hint}")


@pytest.mark.parametrize("command", ["doctor", "dump"])
def test_a_process_that_is_not_there_is_3(command):
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert call(command, str(gone.pid)).returncode == 3


def test_no_standard_input_is_an_empty_one():
    tpmon = f"exec {sys.executable} -m tpmon fold - <&-"
    done = subprocess.run(["sh", "-c", tpmon], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tpmon: standard input: no dump in it\nTry: ")
