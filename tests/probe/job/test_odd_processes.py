"""One odd process costs one row: what looks at another job beside it, or around it, works all the same."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.children import MAP_TORCH, Child, child
from tests.command_line import call
from tests.fake_proc import FakeProc
from tests.members import member
from tests.probe.collect.test_population import member_of
from tests.targets import HOLD_TORCH, place_of_rank, refusal
from tests.waiting import wait_until
from tpmon.errors import NoTargetError
from tpmon.model.dump import ErrorKind
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Identity, Role, ThreadKind
from tpmon.model.waits import Wait, WaitReason
from tpmon.probe.base.procread import (
    date_file,
    each_process,
    has_ended,
    parse_cmdline,
    parse_environ,
    parse_maps,
    read_apart,
    read_stat,
    read_table,
)
from tpmon.probe.collect.processes import Population, ProcessProbe
from tpmon.probe.hooked import page as hook
from tpmon.probe.host import output
from tpmon.probe.host.output import OutputReader
from tpmon.probe.job import discovery as survey
from tpmon.probe.job import process_facts as facts
from tpmon.probe.job.discovery import FactCache, list_jobs
from tpmon.probe.job.exit_status import find_dead
from tpmon.probe.job.job import find_descendants
from tpmon.probe.job.process_facts import find_left, parse_place, read_all_facts
from tpmon.probe.job.resolve import find_job, find_only_job
from tpmon.probe.loader import queues as loader
from tpmon.probe.loader.queues import LoaderProbe, LoaderRank, LoaderWorker
from tpmon.probe.proc.counters import Shares
from tpmon.probe.proc.main_threads import Applicable
from tpmon.probe.proc.threads import Allowance
from tpmon.probe.spy.dump import Dumper
from tpmon.probe.spy.failure import Failure, find_gone
from tpmon.probe.spy.plan import SpySubject
from tpmon.probe.spy.stacks import StackSampler
from tpmon.report.jobs import write_jobs

HUGE = "9" * 5000
BYTES = b"\xff\xfe".decode(errors="surrogateescape")
ESCAPE = "\x1b[31m\x1b]0;x\x07"
LATE, EARLY = 10.0**11, -(10.0**11)
"""Times of files in the years 5138 and -1199."""


@dataclass(frozen=True)
class Odd:
    """Say what is odd about one process; a ``log`` is a file with this time as its standard output."""

    environ: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    first_word: str = ""
    name: str = ""
    thread: str = ""
    folder: str = "torch/lib"
    version: str = ""
    log: float | None = None
    memfds: int = 0


def _place(number: str, size: str = "2", port: str = "29500") -> dict[str, str]:
    return {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "MASTER_ADDR": "h", "MASTER_PORT": port}


_NUMBERS = ("-1", "+3", "\u0663", "\u00b2", "nan", "inf", "1e400", "0x10", "", " 7 ", "1_0", "9" * 12, "\n3", BYTES)
_NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "NODE_RANK", "SLURM_PROCID", "SLURM_STEP_ID"),
    *("SLURM_JOB_ID", "OMP_NUM_THREADS", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "NCCL_RAS_ADDR"),
    *("CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    *("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_WORKER_SERVER_SOCKET", "KMP_BLOCKTIME"),
)

ODD = (
    Odd(environ={"RANK": HUGE}),
    Odd(environ={"RANK": "0", "WORLD_SIZE": HUGE}),
    Odd(environ=_place("0", "9999999999")),
    Odd(environ=_place("999999", "2", HUGE)),
    Odd(environ=_place("1", "2", "29500")),
    Odd(environ=dict.fromkeys(_NAMES, HUGE)),
    *(Odd(environ=dict.fromkeys(_NAMES, number)) for number in _NUMBERS),
    Odd(environ={f"V{number}": "x" * 1000 for number in range(1500)}),
    Odd(environ={f"NCCL_{number}": "x" for number in range(2000)}),
    Odd(environ={"SLURM_PROCID": "0", "SLURM_STEP_ID": "9" * 30, "SLURM_JOB_ID": ESCAPE}),
    Odd(words=("x",) * 100_000),
    Odd(words=("y" * 120_000,)),
    Odd(words=("\n\n", ESCAPE, BYTES, "\u202e", "%s%n")),
    Odd(words=("[" * 5000, '{"a":' * 5000, "-" * 20_000, "://" * 9000)),
    Odd(first_word="\n"),
    Odd(first_word=" "),
    Odd(first_word=BYTES),
    Odd(first_word="torchrun"),
    Odd(first_word="-python"),
    Odd(first_word="python3 " * 1000),
    Odd(first_word="/" * 4000),
    Odd(first_word="slurmstepd: [" + "1" * 4000),
    Odd(name="a) S 1 1 (b"),
    Odd(name="\x1b[2J"),
    Odd(name=BYTES),
    Odd(name="a\nb"),
    Odd(name="pt_data_worker"),
    Odd(name="pt_elastic"),
    Odd(thread="pt_autograd\n)"),
    Odd(thread=BYTES),
    Odd(folder="tor\nch/lib"),
    Odd(folder=f"tor{ESCAPE}ch/torch/lib"),
    Odd(folder=f"{BYTES}/torch/lib"),
    Odd(folder="a (deleted)/torch/lib"),
    Odd(folder=" /" * 200 + "/torch/lib"),
    Odd(folder="v/torch/lib", version=f"__version__ = '{HUGE}.{HUGE}'\n"),
    Odd(folder="w/torch/lib", version="__version__ = '\x1b'\n" * 10_000),
    Odd(log=LATE),
    Odd(log=EARLY, environ={"RANK": "0"}),
    Odd(memfds=300),
)

_ODD = """
import ctypes, mmap, os, sys, threading, time
libc = ctypes.CDLL(None)
library, name, thread, memfds = sys.argv[1:5]
def encode(text):
    return ctypes.c_char_p(text.encode(errors="surrogateescape"))
def stay():
    libc.prctl(15, encode(thread), 0, 0, 0)
    time.sleep(60)
if thread:
    threading.Thread(target=stay, daemon=True).start()
held = [os.memfd_create("tpmon") for _ in range(int(memfds))]
with open(library, "rb") as file:
    torch = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if name:
    libc.prctl(15, encode(name), 0, 0, 0)
os.write(3, b".")
os.close(3)
time.sleep(60)
"""

_STARTER = """
import json, os, sys
for executable, words, environ, log in json.load(sys.stdin):
    out = os.open(log or os.devnull, os.O_WRONLY)
    moved = (int(sys.argv[1]), 3), (out, 1), (out, 2)
    actions = [(os.POSIX_SPAWN_DUP2, *pair) for pair in moved]
    print(os.posix_spawn(executable, words, environ, file_actions=actions))
    os.close(out)
"""


def _map_library(folder: Path, odd: Odd) -> str:
    place = folder / odd.folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "libtorch_cpu.so").write_bytes(bytes(4096))
    if odd.version:
        (place.parent / "version.py").write_text(odd.version)
    return str(place / "libtorch_cpu.so")


def _make_log(folder: Path, number: int, odd: Odd) -> str:
    if odd.log is None:
        return ""
    log = folder / f"{number}\n.log"
    log.write_bytes(b"\xff\x00\x1b[2J 99%|" + b"9" * 5000 + b"\n\n")
    os.utime(log, (odd.log, odd.log))
    return str(log)


@contextmanager
def start_odd(folder: Path, odd: tuple[Odd, ...] = ODD) -> Iterator[list[int]]:
    """Start them beside each other, each an orphan and so a job of its own, and end them; yields their PIDs."""
    asked = [
        (
            sys.executable,
            [
                one.first_word or sys.executable,
                *("-S", "-I", "-c", _ODD, _map_library(folder, one), one.name, one.thread, str(one.memfds)),
                *one.words,
            ],
            one.environ,
            _make_log(folder, number, one),
        )
        for number, one in enumerate(odd)
    ]
    ready, begun = os.pipe()
    pids: list[int] = []
    try:
        starter = subprocess.run(
            [sys.executable, "-S", "-c", _STARTER, str(begun)],
            input=json.dumps(asked),
            pass_fds=(begun,),
            capture_output=True,
            text=True,
            check=True,
        )
        os.close(begun)
        pids = [int(line) for line in starter.stdout.split()]
        told = b""
        while len(told) < len(pids) and (more := os.read(ready, 4096)):
            told += more
        assert len(told) == len(pids), "one of them ended at once"
        yield pids
    finally:
        os.close(ready)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def odd_folder():
    """Give a folder in memory, where a file can have any time, if there is one."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def victim(odd_folder):
    """Run one sound rank among the odd ones."""
    assert len(ODD) >= 40
    with start_odd(odd_folder):
        with patch.dict(os.environ, place_of_rank(0)):  # its other ranks are looked for on all the machine
            one = Child(HOLD_TORCH, str(odd_folder))
        with closing(one):
            assert one.hear() == "ready"
            yield one.pid


COMMANDS = [("ps",), ("attach", "--once"), ("attach", "--once", "--json"), ("dump",), ("doctor",)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_on_another_job_works_beside_odd_processes(victim, command):
    name, *flags = command
    done = call(name, *([] if name == "ps" else [str(victim)]), *flags)
    assert "bug" not in done.stderr
    assert done.returncode in ((0, 4) if name == "doctor" else (0,)), done.stderr
    assert name == "dump" or str(victim) in done.stdout
    assert (done.stdout + done.stderr).replace("\n", "").isprintable()


def test_every_odd_process_has_its_row(victim):
    listed = json.loads(call("ps", "--json").stdout)
    assert len(listed["jobs"]) + listed["unanswered"] > len(ODD) * 0.8, "the rest stands below a launcher"
    assert victim in {job["pid"] for job in listed["jobs"]}


def test_a_sound_rank_beside_odd_ones_of_its_own_job_is_told(fake):
    fake.add_torchrun(100)
    for pid, odd in enumerate([{"RANK": HUGE}, {"LOCAL_RANK": HUGE}, {"RANK": "\u00b2"}, {"WORLD_SIZE": HUGE}], 150):
        fake.add(pid, 100, ("python", "train.py"), environ=odd, torch=True)
    found = {one.identity.pid: one.rank for one in find_job(101, fake.proc).members}
    assert (found[101], found[102]) == (0, 1)
    assert set(found) >= {150, 151, 152, 153}


@pytest.fixture
def beside(fake):
    """Give a sound job (100) and an odd one (200)."""
    fake.add(100, 1, ("python", "sound.py"), torch=True)
    fake.add(200, 1, ("python", "odd.py"), torch=True)
    return fake


def fail(*_: object) -> None:
    raise IndexError("x" * 9999)


def test_what_the_reading_of_one_process_raises_is_its_reason(beside, monkeypatch):
    whole = facts.identify
    monkeypatch.setattr(facts, "identify", lambda name, argv: fail() if "odd.py" in argv else whole(name, argv))
    read = read_all_facts(read_table(beside.proc).values(), beside.proc)
    assert is_known(read[100].environ)
    assert isinstance(read[200].environ, Missing)
    assert read[200].environ.reason.startswith("IndexError: xxx")
    assert len(read[200].environ.reason) < 200
    listed = list_jobs(beside.proc)
    assert [one.pid for one in listed.jobs] == [100]
    assert "1 Python process could not be read and may be jobs too: IndexError" in " ".join(write_jobs(listed))


def test_a_job_that_cannot_be_put_together_has_a_row_and_a_process_without_a_place_is_counted(beside, monkeypatch):
    whole, root = survey.summarize, survey.choose_root
    monkeypatch.setattr(survey, "summarize", lambda job, proc: fail() if job.root.pid == 200 else whole(job, proc))
    sound, odd = list_jobs(beside.proc).jobs
    assert (sound.pid, sound.script, odd.pid, odd.script) == (100, "sound.py", 200, "odd.py")
    assert odd.ranks.reason.startswith("IndexError: ")
    monkeypatch.setattr(survey, "choose_root", lambda pid, sight: fail() if pid == 200 else root(pid, sight))
    listed = list_jobs(beside.proc)
    assert [one.pid for one in listed.jobs] == [100]
    assert (listed.unanswered, listed.unanswered_why[0][:11]) == (1, "IndexError:")


def test_the_only_job_is_found_beside_what_has_ended(beside):
    beside.remove(200)
    (beside.path / "300").mkdir()
    (beside.path / "300" / "stat").write_text("300 (x")
    (beside.path / "300" / "status").write_text("Name:")
    assert find_only_job(beside.proc).root.pid == 100


def test_each_process_keeps_the_reason_of_one_and_leaves_out_what_is_gone():
    def read(pid):
        return 6 // pid if pid < 5 else int(os_error())

    def os_error():
        raise ProcessLookupError(3, "gone")

    assert each_process((3, 0, 9), read) == {3: 2, 0: Missing("ZeroDivisionError: integer division or modulo by zero")}
    assert read_apart(os_error) == Missing("gone")


PLACES = ["\u0663", "\u00b2", HUGE, "-1", "+1", "1_0", "", " 1", "nan", "1e3", "1000000", "4294967295"]


@pytest.mark.parametrize("text", PLACES)
def test_what_is_no_number_of_a_rank_tells_no_place(text):
    assert parse_place({"RANK": text}) is None
    assert parse_place({"SLURM_PROCID": "0", "SLURM_STEP_ID": text}) is None


def test_text_of_others_is_bounded_where_it_enters():
    assert len(parse_cmdline(b"x\0" * 50_000)) <= 4096
    environ = parse_environ(b"RANK=" + b"1" * 500_000 + b"\0" + b"\0".join(b"NCCL_%d=1" % n for n in range(5000)))
    assert len(environ["RANK"]) <= 4096
    assert len(environ) <= 512


def test_a_file_of_any_year_has_a_time_or_a_reason():
    for modified_s in (1e11, -1e11, 1e400, float("nan"), 2.0**62):
        assert isinstance(date_file(modified_s), Missing) or modified_s == 1e11
    assert is_known(date_file(1.7e9))


def test_maps_with_thousands_of_odd_paths_are_gone_through_once():
    """Backtracking from each of 2,000 starts of 2,000 lines would take a minute and hold all threads."""
    line = b"7f00-7f01 r-xp 0 08:01 2  " + b" /" * 2000 + b"x\n"
    last = b"7f00-7f01 r-xp 00000000 08:01 2     /a /b/torch/lib/libtorch_cpu.so (deleted)\n"
    mapped = parse_maps(line * 2000 + last)
    assert (mapped.torch, mapped.replaced) == ("/a /b/torch/lib", True)


ABSENT, SOUND = 1 << 22, os.getpid()


def fail_in_words(*_: object, **__: object) -> None:
    raise IndexError("text of others")


WHY = "IndexError: text of others"


def test_the_words_or_the_time_of_one_log_cost_no_other_log(tmp_path, monkeypatch):
    memory = Path("/dev/shm")
    log = (memory if memory.is_dir() else tmp_path) / f"tpmon-test-{os.getpid()}.log"
    sound = tmp_path / "sound.log"
    sound.write_text("step 3\n")
    log.write_text("step 4\n")
    try:
        with (
            child(f"import os; os.dup2(os.open({str(log)!r}, 1), 2); say('up'); hear()") as odd,
            child(f"import os; os.dup2(os.open({str(sound)!r}, 1), 2); say('up'); hear()") as other,
        ):
            with monkeypatch.context() as broken:
                broken.setattr(output, "parse_tail", fail_in_words)
                (unread,) = OutputReader().read((other.pid,))
            assert unread.size_bytes == Missing(f"not understood: {WHY}")
            os.utime(log, (1e12, 1e12))
            if os.stat(log).st_mtime < 1e12:
                pytest.skip("no file system in memory: this one has no such year")
            read = {one.pid: one for one in OutputReader().read((odd.pid, other.pid))}
    finally:
        log.unlink()
    assert read[odd.pid].last_write == Missing("the file has the time of no year that there is")
    assert read[odd.pid].lines == ("step 4",)
    assert is_known(read[other.pid].last_write)


def test_the_queues_of_one_rank_cost_no_other_rank(monkeypatch):
    def read(pid):
        return {} if pid == SOUND else fail_in_words()

    monkeypatch.setattr(loader, "read_queue_pipes", read)
    probe = LoaderProbe()
    ranks = [LoaderRank(n, pid, (LoaderWorker(0, pid, 5),), False) for n, pid in enumerate((ABSENT, SOUND))]
    probe.watch(tuple(ranks), 0)
    probe.look(1)
    odd, sound = probe.latest()
    assert odd.ready_bytes == Missing(WHY)
    assert sound.ready_bytes != odd.ready_bytes


def test_the_page_of_one_hook_costs_no_other_rank(monkeypatch):
    processes = [Identity(ABSENT, 1), Identity(SOUND, 2)]
    reader = hook.StepReader()
    whole = reader._find
    monkeypatch.setattr(reader, "_find", lambda one, now: fail_in_words() if one.pid == ABSENT else whole(one, now))
    read = reader.read_steps(processes)
    assert read[processes[0]] == Missing(WHY)
    assert read[processes[1]] == hook.NO_HOOK


def test_thousands_of_memfds_of_that_name_are_not_all_looked_at(monkeypatch):
    looks: list[str] = []

    def look(link, *_):
        looks.append(link)
        raise OSError

    monkeypatch.setattr(hook, "_map", look)
    code = f"import os; held = [os.memfd_create({hook.wire.TELEMETRY_NAME!r}) for _ in range(300)]"
    with child(f"{code}; say(held[-1]); hear()") as one:
        process = Identity(one.pid, member_of(one.pid).identity.start_ticks)
        assert hook.StepReader().read_steps([process]) == {process: hook.NO_HOOK}
        newest = max(map(int, os.listdir(f"/proc/{one.pid}/fd")))
    assert len(looks) == 64
    assert looks[0].endswith(f"/{newest}"), "ours lie high"


def test_the_sampler_refuses_one_rank_and_goes_on(monkeypatch):
    taken: list[int] = []

    def take(_sampler, turn, *_):
        taken.append(turn.subject.identity.pid)
        if turn.subject.identity.pid == ABSENT:
            fail_in_words()
        return Failure(ErrorKind.FAILED, "sound")

    monkeypatch.setattr(StackSampler, "_take_turn", take)
    sampler = StackSampler(enabled=True)
    ranks: list[Applicable[int]] = [0, 1]
    sampler.watch([SpySubject(Identity(pid, 1), rank) for pid, rank in zip((ABSENT, SOUND), ranks, strict=True)])
    sampler.start()
    try:
        assert wait_until(lambda: {ABSENT, SOUND} <= set(taken))
        assert wait_until(lambda: f"rank 0: failed: {WHY}" in sampler.source())
        assert "rank 1: sound" in sampler.source()
    finally:
        sampler.stop()


def test_one_member_that_cannot_be_read_is_counted_with_its_reason(monkeypatch):
    whole = ProcessProbe.read

    with child("say('up'); hear()") as one, child("say('up'); hear()") as other:
        members = [member(one.pid), member(other.pid)]

        def read(self, *given, **named):
            return fail_in_words() if self.pid == one.pid else whole(self, *given, **named)

        monkeypatch.setattr(ProcessProbe, "read", read)
        with closing(Population(shares=Shares(10, 10, 10, 1024))) as population:
            readings = population.read(members, skip_threads=False)
    assert [reading.member.identity.pid for reading in readings] == [other.pid]
    assert (population.left_out, population.unreadable, population.why) == (1, 1, WHY)


NUMBER = {"x86_64": 60, "aarch64": 93}.get(os.uname().machine, 0)
needs_exit = pytest.mark.skipif(
    not (sys.platform == "linux" and NUMBER), reason="the number of the system call is known of two machines"
)
END_MAIN = f"""
threading.Thread(target=time.sleep, args=(50,)).start()
say("ready")
hear()
ctypes.CDLL(None).syscall({NUMBER}, 0)
"""
STUCK = 701
TID = STUCK * 100
STUCK_IN = f"killed or ended, but thread {TID} is still in"
HEADLESS = f"its main thread has ended; thread {TID}"


@pytest.fixture
def headless(tmp_path):
    """Run a child with torch whose main thread ends alone."""
    with child(MAP_TORCH + END_MAIN, str(tmp_path)) as one:
        one.say("end")
        assert wait_until(lambda: read_stat(one.pid).state == "Z")
        yield one


@pytest.fixture
def stuck(fake):
    """Hold a rank that was killed and has a thread that is stuck in the driver."""
    fake.add(STUCK, 1, (), name="pt_main_thread", threads=("pt_main_thread",), state="Z")
    set_thread(fake, "D", "nvidia_ioctl", pending=0x100)
    return fake


def set_thread(fake: FakeProc, state: str, wchan: str, *, pending: int = 0, flags: int = 0) -> None:
    """Write what the kernel tells of the thread that is left."""
    folder = fake.path / str(STUCK) / "task" / str(TID)
    folder.mkdir(exist_ok=True)
    fields = [state, 1, 0, 0, 0, -1, flags, *[0] * 43]
    (folder / "stat").write_text(f"{TID} (pt_main_thread) {' '.join(map(str, fields))}\n")
    (folder / "wchan").write_text(wchan)
    (folder / "syscall").write_text("16 0x5 0x0 0x0 0x0 0x0 0x0 0x0 0x0\n")
    (folder / "status").write_text(f"SigPnd:\t{pending:016x}\n")


@pytest.mark.parametrize(
    ("state", "threads", "ended"),
    [("Z", 1, True), ("Z", 0, True), ("X", 2, True), ("Z", 2, False), ("D", 1, False), ("S", 9, False)],
)
def test_a_zombie_whose_threads_live_has_not_ended(state, threads, ended):
    assert has_ended(state, threads) is ended


def test_a_killed_rank_that_cannot_die_is_told_with_its_thread(stuck):
    words = f"killed, but thread {TID} is stuck in nvidia_ioctl (D)"
    error = refusal(STUCK, stuck.proc)
    assert isinstance(error, NoTargetError)
    assert error.what == f"process {STUCK} (pt_main_thread): {words}"
    files = stuck.path / str(STUCK) / "task" / str(TID) / "fd"
    files.mkdir()
    (files / "5").symlink_to("/dev/nvidia3")
    left = find_left(STUCK, proc=stuck.proc)
    assert left.stuck == Wait(WaitReason.KILLED_IN_DRIVER, f"{words} and holds its cards")
    assert STUCK in find_descendants(1, read_table(stuck.proc))
    failure = find_gone(Identity(STUCK, read_stat(STUCK, stuck.proc).start_ticks), stuck.proc)
    assert (failure.kind, failure.reason) == (ErrorKind.FAILED, left.stuck.detail)


@pytest.mark.parametrize(
    ("thread", "words"),
    [
        ({"state": "D", "wchan": "rpc_wait", "flags": 0x4}, f"{STUCK_IN} rpc_wait (D)"),
        ({"state": "D", "wchan": "0", "pending": 0x100}, f"killed, but thread {TID} is stuck in the kernel (D)"),
        ({"state": "D", "wchan": "folio_wait"}, f"{HEADLESS} goes on"),
        ({"state": "S", "wchan": "futex_do_wait"}, f"{HEADLESS} goes on"),
        ({"state": "R", "wchan": "0", "flags": 0x4}, f"{HEADLESS} is just ending"),
    ],
)
def test_only_a_thread_that_was_told_to_end_and_sleeps_is_stuck(stuck, thread, words):
    set_thread(stuck, **thread)
    left = find_left(STUCK, proc=stuck.proc)
    assert left.words == words


@needs_exit
def test_a_process_without_its_main_thread_stays_in_its_job_and_is_read_and_looked_at_by_one_that_lives(headless):
    job = find_job(headless.pid)
    assert [one.identity.pid for one in job.members if one.role is Role.RANK] == [headless.pid]
    assert headless.pid not in {one.pid for one in find_dead({os.getpid()})}
    fact = FactCache(read_table(), "/proc").get(headless.pid)
    assert (fact.stat.pid, fact.python, fact.torch) == (headless.pid, True, True)
    tid = next(int(one) for one in os.listdir(f"/proc/{headless.pid}/task") if one != str(headless.pid))
    with closing(ProcessProbe(headless.pid, lambda _: ThreadKind.OTHER, Allowance(100))) as probe:
        reading = probe.read(Role.RANK, skip_threads=False)
    assert (reading.stat.state, reading.state) == ("Z", "S")
    assert "zombie" not in f"{reading.waits_for} {reading.threads}"
    look = Dumper([member(headless.pid)]).read_round()
    assert [one.reason for one in look.errors] == [f"its main thread has ended; thread {tid} goes on"]
    assert [one.threads[0].tid for one in look.processes] == [tid]
