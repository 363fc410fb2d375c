"""Steps read from outside: whose page it is, what is new since the last look, what cannot be read."""

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

from tests.children import Child
from tests.hooks import find_page
from tpmon.capture.bus import NoHookError
from tpmon.commands import capture as capture_command
from tpmon.hook.bus import wire
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.bus.headroom import ends_at_limit
from tpmon.hook.bus.pages import Pages
from tpmon.hook.capture import trace_file as capture_file
from tpmon.hook.capture.trace_file import CaptureFile
from tpmon.model.hook import HookPatch, HookState, LoopNow, LoopPhase, PhaseTimes, StepReading, StepRule
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_stat
from tpmon.probe.hooked import page as hook
from tpmon.probe.hooked.page import NO_HOOK, NO_SCALER, PageSeen, StepReader, explain_absence, parse_reading

MS = 1_000_000
DRIVEN = """
import os, sys
from tpmon.hook.steps import Steps
steps = Steps(lambda: None)
steps.patches = 7

class Batches:
    pass

def train(number):
    for _ in range(number):
        steps.data_begins()
        steps.data_ended(Batches())
        steps.backward_begins()
        steps.backward_ended(True)
        steps.optimizer_stepped(None, (), {})
        steps.published_ns = steps.due_ns = 0
"""
SERVE = """
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Driven(Child):
    """Drive a process that has a hook, line by line."""

    def __init__(self, program: str, environment: dict[str, str]) -> None:
        super().__init__(f"os.environ.update({environment})\n{program}{SERVE}")
        self.identity = identity(self.pid)

    def do(self, line: str) -> None:
        self.say(line)
        assert self.hear() == "done"


def identity(pid: int) -> Identity:
    return Identity(pid, read_stat(pid).start_ticks)


@contextmanager
def drive(program: str = DRIVEN, steps: int = 0, **environment: str) -> Iterator[Driven]:
    with closing(Driven(program, environment)) as driven:
        driven.do(f"train({steps})" if steps else "pass")
        yield driven


@pytest.fixture
def reader(monkeypatch):
    monkeypatch.setattr(hook, "_FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(hook, "_CHECK_S", 0.0)
    reader = StepReader()
    yield reader
    reader.close()


def read(reader: StepReader, process: Identity) -> StepReading:
    reading = reader.read_steps([process])[process]
    assert is_known(reading), reading
    return reading


def test_steps_are_read_as_they_are_counted(reader):
    with drive(RANK="3", WORLD_SIZE="8", LOCAL_RANK="1") as job:
        assert reader.read_steps([job.identity]) == {job.identity: NO_HOOK}
        job.do("train(5)")
        first = read(reader, job.identity)
        assert (first.counts.steps, first.counts.batches, first.counts.updates) == (4, 4, 4)
        assert [span.steps for span in first.spans] == [1] * 4
        assert (first.rank, first.world_size, first.local_rank) == (3, 8, 1)
        assert (first.state, first.error, first.rule) == (HookState.RUNNING, "", StepRule.BATCH_AFTER_UPDATE)
        assert first.patches == (HookPatch.DATA, HookPatch.BACKWARD, HookPatch.OPTIMIZER)
        assert first.batch_size == Missing("the DataLoader does not say it")
        assert first.now.phase is LoopPhase.OTHER
        assert first.counts.skipped_updates == NO_SCALER  # patches 7: no GradScaler
        job.do("train(3)")
        second = read(reader, job.identity)
        assert second.counts.steps == 7
        assert [span.steps for span in second.spans] == [1] * 3
        assert second.lost_records == 0
        for before, after in zip(second.spans, second.spans[1:], strict=False):
            assert after.train.total_ns == after.ended_ns - before.ended_ns
        third = read(reader, job.identity)
        assert (third.spans, third.counts, third.lost_records, third.ended) == ((), second.counts, 0, second.ended)
        job.do("steps.data_begins()")
        assert is_known(now := read(reader, job.identity).now)
        assert now.phase is LoopPhase.DATA


def test_what_was_overwritten_between_two_looks_is_said_and_stays_in_the_totals(reader):
    with drive(steps=10) as job:
        read(reader, job.identity)
        job.do("train(3000)")
        reading = read(reader, job.identity)
        assert reading.counts.steps == 3009
        assert len(reading.spans) + reading.lost_records == 3000
        assert len(reading.spans) == hook._MOST_RECORDS - 1


FORKED = textwrap.dedent("""
    train(3)
    import time
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(10)
    held = open(f"/proc/{child}/comm")
""")


def test_the_page_of_a_parent_is_not_that_of_its_child(reader):
    """The child of this program has no at-fork handler of the hook: it inherits descriptors and pages."""
    with drive(DRIVEN + FORKED) as job:
        with open(f"/proc/{job.pid}/task/{job.pid}/children") as file:
            child = identity(int(file.read()))
        try:
            readings = reader.read_steps([job.identity, child])
            assert is_known(readings[job.identity])
            assert readings[child] == NO_HOOK
        finally:
            os.kill(child.pid, 9)


def test_an_uninstalled_hook_is_said_once_and_found_again_when_it_is_back_and_a_replaced_program_has_none(reader):
    with drive(steps=3) as job:
        read(reader, job.identity)
        job.do("steps.pages.set_status(3, 0, ''); steps.forget()")
        assert read(reader, job.identity).state is HookState.UNINSTALLED
        assert reader.read_steps([job.identity])[job.identity] == NO_HOOK
        job.do("train(4)")
        assert read(reader, job.identity).counts.steps == 3
        other = "import sys; print('done', flush=True); sys.stdin.read()"
        job.do(f"os.execv(sys.executable, [sys.executable, '-c', {other!r}])")
        for _ in range(3):
            last = reader.read_steps([job.identity])[job.identity]
        assert last == NO_HOOK


def test_a_program_that_was_replaced_by_itself_has_the_page_of_its_new_hook(reader):
    with drive(steps=7) as job:
        assert read(reader, job.identity).counts.steps == 6
        page = find_page(job.pid)
        again = DRIVEN + "train(3)\nprint('done', flush=True)" + SERVE
        job.do(f"os.execv(sys.executable, [sys.executable, '-c', {again!r}])")
        assert find_page(job.pid) == page, "the same number, of another page"
        for _ in range(3):
            last = read(reader, job.identity)
        assert last.counts.steps == 2
        job.do("train(2)")
        assert read(reader, job.identity).counts.steps == 4


def test_an_error_of_the_hook_is_read_and_a_page_of_another_start_is_not_believed(reader):
    with drive(steps=3) as job:
        reused = Identity(job.pid, job.identity.start_ticks + 1)
        assert isinstance(reader.read_steps([reused])[reused], Missing)
        job.do("steps.turn_off('ValueError: \\x1b[31mred')")
        reading = read(reader, job.identity)
        assert reading.state is HookState.DISABLED
        assert "ValueError" in reading.error
        assert "\x1b" not in reading.error


OTHERS = textwrap.dedent("""
    import os, sys, fcntl
    def make(data, seal=True):
        fd = os.memfd_create("tpmon", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(fd, data)
        if seal:
            fcntl.fcntl(fd, 1033, 7)
    make(b"")
    make(b"x" * 300000)
    make(bytes(300000))
    os.set_blocking(0, True)
""")


HEADER = wire.pack_header(wire.Header(1))
ANOTHER = HEADER[:8] + b"\x09" + HEADER[9:]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pass", NO_HOOK.reason),
        (f"make({HEADER!r} + bytes(300000), seal=False)", NO_HOOK.reason),
        (f"make({ANOTHER!r} + bytes(300000))", "bus layout 9"),
    ],
    ids=["memfds of that name that are none", "one that its owner could shrink", "another layout"],
)
def test_what_is_no_page_is_not_mapped_and_another_layout_is_named(reader, line, said):
    with drive(OTHERS) as job:
        job.do(line)
        reading = reader.read_steps([job.identity])[job.identity]
    assert isinstance(reading, Missing)
    assert said in reading.reason


def test_a_python_that_does_not_name_the_seals_reads_the_page(reader, monkeypatch):
    for name in [name for name in dir(fcntl) if "SEAL" in name]:
        monkeypatch.delattr(fcntl, name)
    with drive(steps=3) as job:
        assert read(reader, job.identity).state is HookState.RUNNING


def test_a_process_that_ended_is_said_and_forgotten(reader):
    with drive(steps=3) as job:
        gone = job.identity
        read(reader, gone)
    assert is_known(reader.read_steps([gone])[gone])  # the page outlives its process while it is mapped
    for _ in range(2):
        last = reader.read_steps([gone])[gone]
    assert last == Missing("the process is gone")
    before = len(os.listdir("/proc/self/fd"))
    reader.read_steps([])
    assert len(os.listdir("/proc/self/fd")) <= before


def test_processes_without_a_hook_are_looked_at_ever_more_rarely(monkeypatch):
    now = 100.0
    looks: list[float] = []
    monkeypatch.setattr(hook.time, "monotonic", lambda: now)
    monkeypatch.setattr(hook, "_list_links", lambda _: looks.append(now) or [])
    reader = StepReader()
    me = identity(os.getpid())
    for _ in range(100):
        assert reader.read_steps([me]) == {me: NO_HOOK}
        now += 1
    assert looks == [100, 102, *range(106, 200, 4)]


def test_a_reading_names_what_it_does_not_know():
    pages = Pages("1", "2", (-1, -1, -1))
    try:
        me = identity(os.getpid())
        header = wire.parse_header(pages.page)
        reading, seen = parse_reading(me, header, pages.page, PageSeen(), header.created_ns + 5 * MS)
        assert seen.count == 0
        assert (reading.rank, reading.world_size, reading.local_rank) == (NOT_APPLICABLE,) * 3
        assert reading.now == Missing("nothing happened yet")
        assert reading.ended == Missing("no step ended yet")
        assert isinstance(reading.counts.skipped_updates, Missing)
        assert (reading.rule, reading.spans) == (StepRule.NONE, ())
        ended_ns = header.created_ns + 9 * MS
        words = [0, ended_ns, *[1] * 7, 0, 8, 0, *range(1, 9), 0, 8, ended_ns, 0]
        wire.RECORD.pack_into(pages.page, wire.RING_OFFSET, *words)
        pages.live[wire.LIVE_RECORDS] = 1
        pages.live[wire.LIVE_BACKWARD_BEGAN] = header.created_ns
        reading, seen = parse_reading(me, header, pages.page, seen, header.created_ns + 10 * MS)
        assert (seen.count, reading.batch_size, reading.counts.samples) == (1, 8, 8)
        assert (reading.ended.train, reading.ended.evaluation) == (PhaseTimes(1, 2, 3, 4, 5), PhaseTimes(6, 7, 0, 0, 8))
        assert reading.spans == (reading.ended,)
        assert reading.now == LoopNow(LoopPhase.BACKWARD, 0.01)
        assert reading.ended.ended_ns == ended_ns
    finally:
        pages.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_another_user_may_not_read_the_page():
    program = textwrap.dedent("""
        import os, sys
        os.setuid(65534)
        from tpmon.model.process import Identity
        from tpmon.probe.hooked.page import StepReader
        one = Identity(int(sys.argv[1]), int(sys.argv[2]))
        print(StepReader().read_steps([one])[one].reason)
    """)
    with drive(steps=3) as job:
        command = [sys.executable, "-c", program, str(job.pid), str(job.identity.start_ticks)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "PermissionError" in done.stderr or "ModuleNotFoundError" in done.stderr:
        pytest.skip("another user may not read this checkout")
    assert done.stdout.strip() == "descriptors: not permitted (doctor: fd)"


def test_a_child_in_another_pid_namespace_is_known_by_its_inner_pid(reader):
    program = "import ctypes, os, sys\nassert ctypes.CDLL(None).unshare(0x20000000) == 0\n"
    probe = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no new PID namespace for this user")
    program += DRIVEN + textwrap.dedent("""
        child = os.fork()
        if child == 0:
            train(4)
            os.write(1, b"%d\\n" % os.getpid())
            import time
            time.sleep(600)
    """)
    command = [sys.executable, "-c", program + "os.waitpid(child, 0)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "1\n"
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                inner = identity(int(file.read()))
            assert read(reader, inner).counts.steps == 3
        finally:
            os.kill(inner.pid, 9)
            process.kill()


# limits of a process: the hook never runs into one that ends the program, and tpmon outside learns why it is off


MIB = 1 << 20

LOOP = """
import os, resource, signal, sys
from tpmon.hook.steps import Steps
steps = Steps(lambda: None)
{before}
steps.data_begins()
steps.data_ended(object())
{after}
print(steps.problem, flush=True)
sys.stdin.read()
"""

SHORT_FILES = """
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
"""
NO_FILES = """
from tpmon.hook.bus import pages
vars(os).pop("memfd_create", None)
pages._MEMFD_CREATE = {}  # the call fails as a filter of system calls has it fail
"""
CLOSES = "os.closerange(3, 65536)"


@contextmanager
def train(before: str = "", after: str = "") -> Iterator[tuple[Identity, str]]:
    """Run a loop of one batch, and yield its process with what its hook says went wrong."""
    command = [sys.executable, "-c", LOOP.format(before=before, after=after)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        said = process.stdout.readline()
        assert said, "the program ended"
        yield identity(process.pid), said.strip()
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("before", "why"),
    [(SHORT_FILES, "ulimit -f allows 4096"), (NO_FILES, "Function not implemented")],
    ids=["a limit on files, and its signal", "no memfd"],
)
def test_a_hook_that_can_have_no_page_leaves_the_program_alone_and_says_why_outside(before, why):
    with train(before) as (process, problem):
        assert why in problem
        assert why in explain_absence(process.pid)
        with_reader = StepReader().read_steps([process])[process]
        assert isinstance(with_reader, Missing)
        assert with_reader.reason.startswith("the hook turned itself off: OSError")
        assert why in with_reader.reason
        told = capture_command._offer(NoHookError("process 1 has no hook", ""), SimpleNamespace(), process)
    assert why in told.what
    assert "once it trains" not in told.try_this


def test_a_program_that_closed_the_descriptors_of_its_hook_is_told_apart():
    with train(after=CLOSES) as (process, problem):
        assert problem == ""
        assert explain_absence(process.pid).startswith("the program closed the descriptors of its hook")
    with train() as (process, _):
        # A page whose descriptor is there can be found, or is being made: its header comes after its mapping.
        assert explain_absence(process.pid) == ""


def test_a_process_without_a_hook_explains_nothing_and_a_word_is_found_where_its_text_may_not_be_read(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as process:
        assert explain_absence(process.pid) == ""
        process.kill()
    assert explain_absence(1, str(tmp_path)) == ""
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "maps").write_text(
        f"{wire.WORD_ADDRESS:x}-{wire.WORD_ADDRESS + 4096:x} rw-p 00000000 00:00 0 \n"
    )
    assert explain_absence(12, str(tmp_path)) == "its hook turned itself off: why may not be read (ptrace_scope)"


AT_MOST = "the training may write files of 50.0 MiB at most (ulimit -f)"


@pytest.mark.parametrize("kind", [w.KIND_PROBE, w.KIND_CAPTURE, w.KIND_SNAPSHOT])
@pytest.mark.parametrize(
    "limit",
    [
        (1 << 62, False, 0, ""),
        (1 << 62, True, 100 * MIB, ""),
        (50 * MIB, False, 40 * MIB, ""),
        (50 * MIB, False, 60 * MIB, AT_MOST),
        (50 * MIB, True, 0, f"{AT_MOST}, and the kernel would end the program at it (SIGXFSZ)"),
    ],
)
def test_a_file_that_a_limit_forbids_is_refused_before_anything_is_recorded(tmp_path, monkeypatch, limit, kind):
    most, deadly, size, why = limit
    monkeypatch.setattr(capture_file, "read_file_limit", lambda: most)
    monkeypatch.setattr(capture_file, "ends_at_limit", lambda: deadly)
    monkeypatch.setattr(capture_file, "read_memory_left", lambda: 1 << 40)
    bounds = {"most_events": 1 << 40, "most_bytes": 1 << 40, "entries": size // w.ENTRY_BYTES}
    request = w.Request(kind=kind, steps=1, **bounds, folder=str(tmp_path), name="x")
    refusal = CaptureFile(request, {0: (1, size, 1)}).refuse()
    sized = kind != w.KIND_PROBE or deadly
    assert refusal == (why if sized else "")


def test_a_signal_is_deadly_where_nobody_ignores_or_handles_it():
    before = signal.getsignal(signal.SIGXFSZ)
    try:
        for handler, deadly in ((signal.SIG_IGN, False), (lambda *_: None, False), (signal.SIG_DFL, True)):
            signal.signal(signal.SIGXFSZ, handler)
            assert ends_at_limit() == deadly
    finally:
        signal.signal(signal.SIGXFSZ, before)
    assert ends_at_limit("/nowhere")
