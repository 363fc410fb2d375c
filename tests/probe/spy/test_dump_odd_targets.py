"""Dump what is odd: other Pythons, deleted ones, names that would move the cursor, and what ends meanwhile."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.children import child, started
from tests.members import member
from tests.probe.spy.test_dump_probe import functions, main_of
from tests.waiting import wait_until, wait_until_at_rest
from tests.waits import wait_of
from tpmon.judge.dumps.describe import collapse_frames
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.model.codec import decode, encode
from tpmon.model.dump import Asker, Dump, DumpRequest, DumpRound, ErrorKind
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.process import ThreadKind
from tpmon.probe.base.procread import read_stat
from tpmon.probe.spy.dump import Dumper
from tpmon.probe.spy.failure import explain_deleted, parse_deleted
from tpmon.report.formats import write_collapsed, write_speedscope
from tpmon.report.stacks import write_dump

pytestmark = pytest.mark.usefixtures("sampling_works")

UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What may move the cursor, colour the screen, or turn the text around; \\n ends our own lines."""
NEWEST = 13


@contextmanager
def running(command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[int]:
    """Start a program, wait for its first line, and end it after use."""
    whole = {**os.environ, **(env or {})}
    with started(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=whole) as process:
        assert process.stdout.readline(), f"{command} did not start"
        yield process.pid


def fold(look: DumpRound) -> Dump:
    return fold_rounds([look], DumpOrigin(1, "train.py", 1))


def read_one(pid: int, *, variables: bool = False) -> DumpRound:
    return Dumper([member(pid)], DumpRequest(Asker.KEY, variables=variables)).read_round()


def find_python(minor: int) -> str | None:
    """Find an interpreter of Python 3.``minor`` that runs."""
    name = f"python3.{minor}"
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    # Of another user's home nothing may be listed.
    found = (
        [str(path) for path in sorted(root.glob(f"versions/3.{minor}.*/bin/{name}"))]
        if os.access(root, os.R_OK)
        else []
    )
    for path in (*found, shutil.which(name) or ""):
        if path and subprocess.run([path, "-c", ""], check=False, capture_output=True).returncode == 0:
            return path
    return None


NAPS = """
import threading, time
def nap(seconds):
    print("up", flush=True)
    time.sleep(seconds)
def train(step):
    nap(60)
threading.Thread(target=time.sleep, args=(60,), name="loader", daemon=True).start()
train(7)
"""


@pytest.mark.parametrize("minor", range(10, NEWEST + 1))
def test_each_python_is_read_with_threads_variables_and_no_stop(minor):
    python = find_python(minor)
    if python is None:
        pytest.skip(f"no python3.{minor} here")
    with running([python, "-c", NAPS]) as pid:
        assert wait_until_at_rest(pid)
        look = read_one(pid, variables=True)
        assert (look.errors, look.paused_ms) == ((), 0.0)
        (process,) = look.processes
        main = main_of(process)
        assert functions(main) == ["<module>", "train", "nap"]
        values = {one.name: one.value for frame in main.locals for one in frame.variables if frame.frame}
        assert values == {"step": "7", "seconds": "60"}
        (other,) = [thread for thread in process.threads if thread.name == "loader"]
        if os.confstr("CS_GNU_LIBC_VERSION") and os.uname().machine in ("x86_64", "aarch64"):
            # Python 3.10 tells py-spy no number; glibc keeps it.
            assert is_known(other.tid)
            assert other.tid != pid
            assert other.waits_for in map(wait_of, ("sleep", "poll", "select")), "up to 3.10 time.sleep is a select"


def test_a_python_that_was_replaced_under_the_job_is_read_or_told_how(tmp_path):
    # A copy of this Python: its program, its shared library, and what makes the copy find its modules.
    shared = Path(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "none")
    program = Path(shutil.copy(Path(sys.executable).resolve(), tmp_path / "python3.11"))
    library = Path(shutil.copy(shared, tmp_path)) if shared.is_file() else program
    env = {"PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": str(tmp_path)}
    with running([str(program), "-c", NAPS], env) as pid:
        program.unlink()
        plain = read_one(pid)
        if library != program:
            assert plain.errors == (), "the program alone holds no Python"
            kept = library.read_bytes()
            library.unlink()
            # An upgrade puts another file in its place.
            library.write_bytes(b"another")
            (error,) = read_one(pid).errors
            assert error.kind is ErrorKind.UNKNOWN_PYTHON
            assert error.reason.startswith(f"{library} was deleted or replaced while it runs; as root: cp ")
            assert error.reason == explain_deleted(pid)
            # What the command does, from a copy that is ours.
            Path(f"{library} (deleted)").write_bytes(kept)
            mended = read_one(pid)
            assert (mended.errors, functions(main_of(mended.processes[0]))) == ((), ["<module>", "train", "nap"])


@pytest.mark.parametrize(("folder", "fits"), [("/opt/my env", True), ("/" + "x" * 200, False), ("/opt/\x1b[2J", False)])
def test_a_deleted_python_is_copied_back_into_the_jobs_own_root_by_a_whole_command_or_none(tmp_path, folder, fits):
    """In a container the same name on the host is another file, and py-spy looks inside."""
    (tmp_path / "7").mkdir()
    maps = f"7f000000-7f001000 r-xp 00000000 fe:00 24  {folder}/libpython3.11.so.1.0 (deleted)\n"
    (tmp_path / "7" / "maps").write_text(maps)
    said = explain_deleted(7, str(tmp_path))
    gone, _, command = said.partition("; as root: ")
    assert gone.endswith("/libpython3.11.so.1.0 was deleted or replaced while it runs")
    mapped, root = f"{tmp_path}/7/map_files/7f000000-7f001000", f"{tmp_path}/7/root"
    assert command == (
        f"cp --remove-destination {mapped} '{root}{folder}/libpython3.11.so.1.0 (deleted)'" if fits else ""
    )
    assert "\x1b" not in said


def test_a_deleted_python_is_found_in_the_maps():
    maps = (
        b"00400000-00401000 r-xp 00000000 fe:00 23  /opt/x/bin/python3.11 (deleted)\n"
        b"7f000000-7f001000 r-xp 00000000 fe:00 24  /opt/my lib/libpython3.11.so.1.0 (deleted)\n"
    )
    assert parse_deleted(maps) == ("/opt/my lib/libpython3.11.so.1.0 (deleted)", "7f000000-7f001000")
    program = maps.split(b"\n", 1)[0]
    assert parse_deleted(program) == ("/opt/x/bin/python3.11 (deleted)", "400000-401000")
    assert parse_deleted(b"7f000000-7f001000 r-xp 0 fe:00 24  /opt/libtorch.so (deleted)\n") is None
    assert parse_deleted(b"7f000000-7f001000 rw-p 0 00:00 0\nnonsense\n") is None


EVIL = "\x1b]0;x\x07\x1b[2J\x9b3m\u202eab\tc"
ODD_NAMES = """
import ctypes, os, sys, threading, time
def größe(naïve, 名):
    print("up", flush=True)
    time.sleep(60)
evil = sys.argv[1]
ctypes.CDLL(None).prctl(15, b"\\x1b[2J\\x9b\\xff", 0, 0, 0)
threading.Thread(target=time.sleep, args=(60,), name=evil, daemon=True).start()
threading.Thread(target=time.sleep, args=(60,), name="läd 数", daemon=True).start()
größe(evil, evil)
"""


def test_no_name_of_a_program_reaches_the_terminal_as_it_is(tmp_path):
    folder = tmp_path / f"rün {EVIL}"
    folder.mkdir()
    path = folder / f"träin{EVIL}\n.py"
    path.write_text(ODD_NAMES)
    with running([sys.executable, str(path), EVIL]) as pid:
        look = read_one(pid, variables=True)
        assert look.errors == ()
        (process,) = look.processes
        main = main_of(process)
        assert functions(main)[-1] == "größe"
        assert {"läd 数"} < {thread.name for thread in process.threads}
        dump = fold(look)
        text = write_dump(dump, lambda group: collapse_frames(group.frames) if is_known(group.frames) else ())
        shown = "\n".join(text)
        assert "größe träin" in shown
        assert "naïve = " in shown
        for said in (shown, "\n".join(write_collapsed(dump)), write_speedscope(dump), encode(dump)):
            assert not UNSAFE.search(said), UNSAFE.search(said)
            assert not re.search(r"\\u00(?:0[0-8b-f]|1|7f|8|9)", said)
        assert encode(decode(Dump, encode(dump))) == encode(dump)
        # Not even somebody else's dump may smuggle one in: what is read is what was written.
        assert all(not UNSAFE.search(line) for line in text)


def test_values_that_look_like_secrets_are_hidden_and_long_ones_cut():
    code = """
def train(api_key, password, url, tokens, model, text):
    say("up")
    time.sleep(60)
train("sk-abcdefghijklmnop", "hunter2", "s3://user:geheim@host/x", 4096, object(), "x" * 500)
"""
    with child(code) as one:
        assert wait_until_at_rest(one.pid)
        (process,) = read_one(one.pid, variables=True).processes
        main = main_of(process)
        values = {each.name: each.value for each in main.locals[-1].variables}
        assert values["api_key"] == values["password"] == "***"
        assert "geheim" not in values["url"]
        assert (values["tokens"], values["model"]) == ("4096", "<object>")
        assert len(values["text"]) <= 80


def test_what_ends_while_it_is_read_is_gone_and_never_a_crash():
    chance, command = random.Random(7), [sys.executable, "-c", "import time; time.sleep(60)"]
    code = "say('up')\ntime.sleep(60)\n"
    for _ in range(3):
        with ExitStack() as stack:
            children = [stack.enter_context(started(command)) for _ in range(12)]
            time.sleep(0.3)
            members = [member(one.pid, rank) for rank, one in enumerate(children)]

            def end_some(those=children):
                for one in chance.sample(list(those), 8):
                    time.sleep(chance.random() * 0.02)
                    one.send_signal(signal.SIGKILL)
                    if chance.random() < 0.5:  # the others stay as zombies
                        one.wait()

            ending = threading.Thread(target=end_some)
            ending.start()
            look = Dumper(members).read_round()
            ending.join()
            here = {process.pid for process in look.processes}
            failed = {error.pid: error.kind for error in look.errors}
            assert here | failed.keys() == {one.pid for one in children}
            for pid in failed.keys() - here:
                assert failed[pid] is ErrorKind.GONE
            fold(look)
    with child(code) as one:
        assert read_one(one.pid).errors == ()


def test_a_stopped_process_is_read_and_said_to_be_stopped():
    with child("def train():\n say('up')\n time.sleep(60)\ntrain()\n") as one:
        os.kill(one.pid, signal.SIGSTOP)
        assert wait_until(lambda: read_stat(one.pid).state == "T")
        dump = fold(read_one(one.pid))
        assert dump.groups[0].state == "T"
        assert "stopped by a signal" in dump.summary
        assert is_known(dump.groups[0].frames)
        assert read_stat(one.pid).state == "T", "nobody set it going"


def test_five_hundred_threads_make_few_groups_and_little_text():
    code = """
def work():
    time.sleep(60)
for n in range(500):
    threading.Thread(target=work, name=f"pool-{n}", daemon=True).start()
say("up")
time.sleep(60)
"""
    with child(code) as one:
        look = read_one(one.pid)
        assert look.errors == ()
        dump = fold(look)
        listed = sum(len(group.threads) for group in dump.groups)
        assert listed + dump.idle_threads == 501
        work = [group for group in dump.groups if "work" in group.doing]
        assert [len(group.threads) for group in work] == [500], "each of them has its stack"
        assert len(dump.groups) < 10
        lines = write_dump(dump, lambda _: ())
        assert len(lines) < 40
        kinds = [group.threads[0].kind for group in dump.groups]
        assert (kinds[0], dump.odd_one_out) == (ThreadKind.MAIN, NOT_APPLICABLE)
