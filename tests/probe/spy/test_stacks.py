"""Sample real small Python programs: who is sampled, what is said when that cannot be, what is left behind."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.children import Child, child, started
from tests.exact import find_misfits
from tests.nobody import NOBODY, needs_setpriv, run_as_nobody
from tests.spying import spies_of
from tests.waiting import wait_until
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Identity
from tpmon.model.results.doctor import drop_pointers
from tpmon.model.stacks import StackSlice
from tpmon.probe.base.procread import read_stat
from tpmon.probe.base.worker import Pace
from tpmon.probe.proc import access as stack_refusal
from tpmon.probe.proc.access import (
    CAP_SYS_PTRACE,
    AccessStanding,
    Caller,
    RuntimeKind,
    explain_refusal,
    judge_refusal,
    parse_capability,
    parse_tracer,
    read_standing,
)
from tpmon.probe.spy import plan as stack_plan
from tpmon.probe.spy import pool as stack_child
from tpmon.probe.spy import stacks
from tpmon.probe.spy.failure import SpyOutcome, find_spy, install_spy
from tpmon.probe.spy.plan import SpySubject
from tpmon.probe.spy.pool import SpyChild, dump_arguments, record_arguments
from tpmon.probe.spy.stacks import OFF, StackSampler

INSIDE = Caller(1000, RuntimeKind.ENGINE, root_may=False)
NAP = """
def nap():
    time.sleep(60)
def train():
    nap()
threading.Thread(target=nap, name="loader; (x) \\x1b[2J", daemon=True).start()
say("up")
train()
"""


def subject(pid: int, rank: int = 0) -> SpySubject:
    return SpySubject(Identity(pid, read_stat(pid).start_ticks), rank)


@contextmanager
def sampling(*subjects: SpySubject) -> Iterator[StackSampler]:
    sampler = StackSampler()
    sampler.watch(subjects)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()
        assert wait_until(lambda: sampler_threads() == 0)


def collect(sampler: StackSampler, slices: list[StackSlice]) -> list[StackSlice]:
    taken = sampler.take()
    if is_known(taken):
        slices.extend(taken)
    return slices


def sampler_threads() -> int:
    return sum(thread.name == "tpmon-stacks" for thread in threading.enumerate())


@pytest.mark.usefixtures("sampling_works")
def test_a_dump_tells_where_every_rank_is_and_a_slice_follows():
    with child(NAP) as one, child(NAP) as two, sampling(subject(one.pid), subject(two.pid, 1)) as sampler:
        slices: list[StackSlice] = []
        assert sampler.take() == ()
        assert not is_known(sampler.age_s(time.monotonic_ns()))
        assert wait_until(lambda: len(collect(sampler, slices)) >= 3)
        assert [(one.pid, two.pid)[number] for number in (0, 1, 0)] == [piece.pid for piece in slices]
        dump, other, piece = slices[:3]
        assert (dump.rank, dump.samples, dump.seconds, dump.rate_hz) == (0, 1, 0.0, 0.0)
        assert (other.rank, other.samples) == (1, 1)
        assert [misfit for one in slices for misfit in find_misfits(StackSlice, one)] == []
        for stack in (dump.stacks[0], piece.stacks[0]):
            assert stack.tid == one.pid
            assert [frame.function for frame in stack.frames] == ["<module>", "train", "nap"]
        nap = next(stack for stack in piece.stacks if stack.tid != one.pid)
        assert nap.thread == "loader; (x) ?[2J"
        assert piece.samples == piece.stacks[0].samples > 10
        assert piece.rate_hz == 20
        assert 0 < piece.seconds < 15
        assert sampler.age_s(time.monotonic_ns()) < 20
        assert sampler.source() == stacks.SOURCE
        cpu_s, _ = sampler.cost()
        assert cpu_s > 0


@pytest.mark.usefixtures("sampling_works")
def test_stopping_kills_the_slice_that_runs_and_leaves_nothing():
    with child(NAP) as one:
        held = len(os.listdir("/proc/self/fd"))
        with sampling(subject(one.pid)) as sampler:
            assert wait_until(lambda: sampler.age_s(time.monotonic_ns()) != Missing("no stack was sampled yet"))
            assert wait_until(lambda: len(spies_of(os.getpid())) == 1)
            assert sampler_threads() == 1
        assert spies_of(os.getpid()) == []
        assert len(os.listdir("/proc/self/fd")) == held
        assert wait_until(lambda: read_stat(one.pid).state == "S")


SAMPLE_ALONE = """
sys.path[:0] = sys.argv[2:]
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_stat
from tpmon.probe.spy.plan import SpySubject
from tpmon.probe.spy.stacks import StackSampler
pid = int(sys.argv[1])
sampler = StackSampler()
sampler.watch([SpySubject(Identity(pid, read_stat(pid).start_ticks), 0)])
sampler.start()
while not sampler.take():
    time.sleep(0.02)
say("sampling")
hear()
"""


@pytest.mark.usefixtures("sampling_works")
def test_the_kernel_ends_the_slice_of_a_tpmon_that_was_killed():
    with child(NAP) as one:
        with closing(Child(SAMPLE_ALONE, str(one.pid), *sys.path)) as tpmon:
            assert tpmon.hear() == "sampling"
            assert wait_until(lambda: len(spies_of(tpmon.pid)) == 1)
            (spy,) = spies_of(tpmon.pid)
            begun = read_stat(spy).start_ticks

        def gone():
            try:
                stat = read_stat(spy)
            except OSError:
                return True
            # A container without an init keeps its zombies; they are no process of ours.
            return stat.start_ticks != begun or stat.state == "Z"

        assert wait_until(gone, 3), "it would have ended by itself only after the slice"


@pytest.mark.usefixtures("sampling_works")
def test_a_rank_that_ends_during_its_slice_is_no_error():
    with child(NAP) as one, sampling(subject(one.pid)) as sampler:
        slices: list[StackSlice] = []
        assert wait_until(lambda: len(collect(sampler, slices)) == 1)
        assert wait_until(lambda: len(spies_of(os.getpid())) == 1)
        one.kill()
        assert wait_until(lambda: spies_of(os.getpid()) == [])
        taken = sampler.take()
        assert is_known(taken)
        assert sampler.source() == stacks.SOURCE


@pytest.mark.usefixtures("sampling_works")
def test_a_process_that_is_no_python_is_told_by_rank_and_the_others_go_on():
    with started(["sleep", "60"]) as sleeper, child(NAP) as one:
        subjects = (subject(sleeper.pid), subject(one.pid, 1))
        with sampling(*subjects) as sampler:
            slices: list[StackSlice] = []
            assert wait_until(lambda: len(collect(sampler, slices)) >= 2)
            assert {piece.rank for piece in slices} == {1}
            told = sampler.source()
            assert told.startswith(f"{stacks.SOURCE}; rank 0: py-spy does not know its Python: ")


@pytest.mark.usefixtures("sampling_works")
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_process_that_somebody_else_traces_is_left_alone(monkeypatch):
    monkeypatch.setattr(stack_plan, "HELD_S", 0.1)
    with child(NAP) as one:
        command = ["strace", "-qq", "-e", "trace=none", "-p", str(one.pid)]
        traced = Path(f"/proc/{one.pid}/status")
        with started(command, stderr=subprocess.DEVNULL) as tracer:
            assert wait_until(lambda: parse_tracer(traced.read_bytes()) == tracer.pid)
            with sampling(subject(one.pid)) as sampler:
                held = f"stacks: not sampled while pid {tracer.pid} traces the process"
                assert wait_until(lambda: sampler.take() == Missing(held))
                assert sampler.cost() == (0.0, 0)
                tracer.terminate()
                tracer.wait()
                slices: list[StackSlice] = []
                assert wait_until(lambda: len(collect(sampler, slices)) >= 1)


@pytest.mark.usefixtures("sampling_works")
@needs_setpriv
def test_a_process_of_another_user_is_refused_with_the_reason(monkeypatch, tmp_path):
    spy = find_spy()
    assert is_known(spy)
    fake = tmp_path / "py-spy"
    monkeypatch.setattr(stacks, "find_spy", lambda: str(fake))
    monkeypatch.setattr(
        stack_refusal, "read_standing", lambda _pid, _proc: AccessStanding(Missing("no Yama"), NOBODY, 0, False)
    )
    with run_as_nobody(spy) as command, child(NAP) as one:
        fake.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        fake.chmod(0o755)
        with sampling(subject(one.pid)) as sampler:
            why = f"it is a process of uid 0 (doctor: stacks); sudo tpmon attach {one.pid}"
            reason = f"stacks: not permitted: {why}"
            assert wait_until(lambda: sampler.take() == Missing(reason))


USER = AccessStanding(0, 1000, 1000, False)
YAMA = replace(USER, ptrace_scope=1)
ROOT = AccessStanding(0, 0, 0, False, caller=Caller(0))
INNER_ROOT = replace(INSIDE, uid=0)
LIFT = "sysctl kernel.yama.ptrace_scope=0"
ENTER = "docker exec -it --privileged -u 0 CONTAINER tpmon attach 7"
NO_CAPABILITY = ": root without CAP_SYS_PTRACE, and"
DOCKER, SELINUX = "docker-default (enforce)", "system_u:system_r:container_t:s0"
NO_YAMA = Missing("no Yama")
ROOT_YAMA, ROOT_ALONE = replace(ROOT, ptrace_scope=1), replace(ROOT, ptrace_scope=NO_YAMA)
CONFINED = AccessStanding(0, 0, 0, True, confined=SELINUX, caller=INSIDE)
SETPRIV = "setpriv --reuid=1000 --regid=100 --clear-groups tpmon attach 7"
ADD = "docker run --cap-add SYS_PTRACE  # at its next start"


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        (YAMA, f": ptrace_scope 1 (Yama); sudo {LIFT}"),
        (replace(YAMA, caller=INSIDE), f": ptrace_scope 1 (Yama); sudo {LIFT}  # on the host"),
        (replace(ROOT_YAMA, caller=INNER_ROOT), f"{NO_CAPABILITY} ptrace_scope 1 (Yama); {LIFT}  # on the host"),
        (ROOT_YAMA, "and ptrace_scope 1 (Yama)"),
        (replace(USER, ptrace_scope=2), ": ptrace_scope 2 (Yama); sudo tpmon attach 7"),
        (replace(USER, ptrace_scope=2, caller=INSIDE), f"(Yama); {ENTER}  # on the host"),
        (AccessStanding(3, 0, 1000, True), ": ptrace_scope 3: nobody may read until the next start of the machine"),
        (replace(YAMA, uid=1001), ": it is a process of uid 1001; sudo tpmon attach 7"),
        (replace(ROOT_ALONE, uid=1000, gid=100), f"{NO_CAPABILITY} it is a process of uid 1000; {SETPRIV}"),
        (AccessStanding(1, 0, 1000, False, caller=INNER_ROOT), f"it is a process of uid 1000; {ENTER}"),
        (ROOT_ALONE, "(not dumpable)"),
        (replace(USER, dumpable=False), "protects itself (not dumpable); sudo tpmon attach"),
        (replace(USER, dumpable=True, more_capabilities=True), "capabilities that tpmon has not"),
        (replace(USER, call_works=False, caller=INSIDE), f"(seccomp) or a sandbox forbids it; {ADD}"),
        (replace(USER, call_works=False), "a sandbox forbids it"),
        (replace(USER, confined=DOCKER, caller=INSIDE), "apparmor=unconfined  # at its next start"),
        (replace(USER, confined="x (enforce)"), "x (enforce) may forbid it"),
        (CONFINED, f"may forbid it ({SELINUX}); docker run --security-opt label=disable"),
        (replace(USER, deny_ptrace=True), "(deny_ptrace is on); sudo setsebool deny_ptrace off"),
        (AccessStanding(0, 0, 0, True), "although tpmon has CAP_SYS_PTRACE"),
        (AccessStanding(0, 0, 0, True, all_users=False), "outside of tpmon's user namespace: run tpmon outside of it"),
        (replace(USER, uid=Missing("hidden")), "a sandbox forbids it, or the process protects itself"),
    ],
)
def test_the_reason_of_a_refusal_is_found_out(standing, said):
    text = explain_refusal(judge_refusal(standing, 7))
    assert said in drop_pointers(text)
    assert text.startswith("not permitted: ")
    assert text.count(" (doctor: stacks)") == 1
    assert standing.caller.uid or "sudo" not in text


def test_what_decides_is_read_from_the_kernel():
    standing = read_standing(os.getpid())
    assert (standing.own_uid, standing.uid) == (os.geteuid(), os.geteuid())
    gone = read_standing(2**22 + 1)
    assert not is_known(gone.uid)
    assert parse_capability(b"Name:\tx\nCapEff:\t0000000000080000\n", CAP_SYS_PTRACE)
    assert not parse_capability(b"CapEff:\t0000000000040000\n", CAP_SYS_PTRACE)
    assert not parse_capability(b"", CAP_SYS_PTRACE)
    assert parse_tracer(b"State:\tS\nTracerPid:\t77\n") == 77
    assert parse_tracer(b"") == 0


def test_without_py_spy_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with sampling(subject(os.getpid())) as sampler:
        install = install_spy()
        missing = Missing(f"stacks: py-spy is not installed beside tpmon or on PATH (doctor: py-spy): {install}")
        assert wait_until(lambda: sampler.take() == missing)
        assert (sampler.age_s(0), sampler.source()) == (missing, missing.reason)


def test_switched_off_it_starts_nothing_and_says_so_as_it_does_without_a_rank():
    sampler = StackSampler(enabled=False)
    sampler.watch([subject(os.getpid())])
    sampler.start()
    assert sampler_threads() == 0
    assert sampler.take() == sampler.age_s(0) == OFF
    assert (sampler.source(), sampler.cost()) == (OFF.reason, (0.0, 0))
    sampler.stop()
    with sampling() as sampler:
        assert sampler.take() == Missing("stacks: no rank to sample yet")


def test_a_sampler_that_fails_twice_is_off_with_its_reason(monkeypatch):
    def fail():
        raise ValueError("unforeseen")

    monkeypatch.setattr(stacks, "find_spy", fail)
    with sampling(subject(os.getpid())) as sampler:
        assert wait_until(lambda: sampler.take() == Missing("stacks: failed: ValueError: unforeseen"))
        assert wait_until(lambda: sampler_threads() == 0)


def run_shell(script: str, deadline_s: float = 20.0) -> SpyOutcome:
    return SpyChild().run(("/bin/sh", "-c", script), deadline_s)


def test_a_child_that_gives_no_answer_floods_or_burns_is_killed_and_errors_are_capped_without_that(monkeypatch):
    outcome = run_shell("echo begun; sleep 60", 0.3)
    assert (outcome.late, outcome.status, outcome.output) == (True, -signal.SIGKILL, b"begun\n")
    assert outcome.wall_s < 10
    monkeypatch.setattr(stack_child, "MAX_OUTPUT_BYTES", 100_000)
    outcome = run_shell("exec yes")
    assert (outcome.flooded, len(outcome.output), outcome.status) == (True, 100_000, -signal.SIGKILL)
    assert run_shell("while :; do :; done", 60).status == -signal.SIGXCPU
    outcome = run_shell("head -c 100000 /dev/zero >&2; echo done")
    assert (outcome.output, outcome.status, outcome.flooded) == (b"done\n", 0, False)
    assert len(outcome.errors) == stack_child.MAX_ERROR_BYTES


def test_a_child_is_in_a_session_of_its_own_and_steps_back():
    outcome = run_shell("ps -o sid= -o pid= -o ni= -p $$")
    session, pid, niceness = outcome.output.split()
    assert session == pid
    # The niceness may be set a moment after the first look.
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert int(niceness) in (own, min(own + stack_child.NICENESS, 19))


@pytest.mark.parametrize("end", [SpyChild.stop, partial(SpyChild.finish, for_good=True)])
def test_one_run_after_a_stop_or_a_finish_for_good_ends_at_once(end):
    spy = SpyChild()
    spy.finish()
    assert spy.run(("/bin/true",), 20).status == 0, "the next slice is not the one that was to finish"
    end(spy)
    outcome = spy.run(("/bin/sleep", "60"), 20)
    assert (outcome.status, outcome.late) == (-signal.SIGKILL, False)


def test_the_cost_of_ended_children_stays_counted():
    spy = SpyChild()
    busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
    first = spy.run(("/bin/sh", "-c", busy), 30)
    assert first.cpu_s > 0
    second = spy.run(("/bin/sh", "-c", busy), 30)
    assert spy.cost() == (pytest.approx(first.cpu_s + second.cpu_s), 0)


def test_a_program_that_is_not_there_is_refused_without_a_leak_and_a_signal_to_one_that_is_gone_is_no_error():
    held = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        SpyChild().run(("/nonexistent/py-spy",), 1)
    assert len(os.listdir("/proc/self/fd")) == held
    with subprocess.Popen(("/bin/true",)) as gone:
        gone.wait(20)
    stack_child._kill(gone.pid)
    stack_child._kill(gone.pid, signal.SIGINT)


def test_the_commands_never_stop_the_target():
    for arguments in (dump_arguments(7), record_arguments(7, 13, 10)):
        assert "--nonblocking" in arguments
        assert not {"--native", "--subprocesses", "--locals"}.intersection(arguments)


def test_a_child_that_the_kernel_reaps_gives_its_output_and_leaves_no_pid_behind():
    """Where SIGCHLD is ignored, as a shell's trap '' CHLD does, the kernel reaps every child."""
    spy, before = SpyChild(), signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        outcome = spy.run(("/bin/echo", "told"), 20)
        assert (outcome.output, outcome.status, outcome.late) == (b"told\n", 0, False)
        assert spy.run(("/bin/sh", "-c", "exec sleep 60"), 0.3).late
    finally:
        signal.signal(signal.SIGCHLD, before)
    spy.finish()
    spy.stop()
    assert spy.cost() == (0.0, 0)


@pytest.mark.usefixtures("sampling_works")
def test_a_slice_that_began_before_a_settled_verdict_was_shaken_ends_at_once():
    with child(NAP) as one, sampling(subject(one.pid)) as sampler:
        slices: list[StackSlice] = []
        assert wait_until(lambda: len(collect(sampler, slices)) >= 2)  # a dump and the first slice
        sampler.watch([subject(one.pid)], Pace.SETTLED)
        assert wait_until(lambda: bool(spies_of(os.getpid())))
        time.sleep(1.0)
        before = len(slices)
        sampler.watch([subject(one.pid)], Pace.FULL)
        assert wait_until(lambda: len(collect(sampler, slices)) > before, 4.0)
        cut = slices[before]
        assert 0 < cut.seconds < 5
        assert cut.samples > 0
