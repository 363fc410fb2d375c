"""Dump real trainings: the rank that holds the others is named, workers are told apart, nothing is stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.command_line import call
from tests.programs.conftest import TORCHRUN, Program, run_program
from tests.programs.test_harmless import sampling
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.model.codec import decode, encode
from tpmon.model.dump import Dump, Motion, StackGroup
from tpmon.model.known import is_known
from tpmon.model.process import ThreadKind
from tpmon.model.verdict import Kind
from tpmon.probe.job.resolve import find_job
from tpmon.probe.spy.dump import Dumper, dumpable

pytestmark = [pytest.mark.usefixtures("sampling_works"), pytest.mark.torch, needs_torch]


def dump(pid: int, *arguments: str) -> Dump:
    return decode(Dump, call("dump", str(pid), "--json", *arguments, code=0).stdout)


def main_groups(one: Dump) -> list[StackGroup]:
    return [group for group in one.groups if group.threads[0].kind is ThreadKind.MAIN]


@contextmanager
def hung(folder: Path, ranks: int) -> Iterator[Program]:
    """Run a job until its last rank sits in a lock, and is named."""
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", str(ranks), "rank_hang.py", "--ready", "{ready}")
    with run_program((*command, "--culprit", str(ranks - 1)), folder, ranks) as program:
        assert wait_until(lambda: is_known(dump(program.pid).odd_one_out))
        yield program


@pytest.mark.long
def test_the_rank_that_sits_in_a_lock_is_named_and_looks_over_half_a_minute_call_it_hung(tmp_path):
    with hung(tmp_path, 2) as program:
        with sampling(list(program.trainers)) as tracers:
            found = dump(program.pid, "--rounds", "3", "--every", "0.3")
        assert found.world_size == 2
        assert found.errors == ()
        assert found.paused_ms == 0.0
        odd = found.odd_one_out
        assert (odd.rank, odd.motion) == (1, Motion.FROZEN)
        assert odd.doing.startswith("hold rank_hang.py:")
        assert odd.waits == "waits for: lock or queue (futex)"
        assert found.summary.startswith("1 of 2 ranks waits in a collective of backward rank_hang.py:")
        first, second = main_groups(found)
        assert [thread.rank for thread in first.threads] == [1]
        assert [thread.rank for thread in second.threads] == [0]
        text = call("dump", str(program.pid)).stdout
        assert text.index("rank 1: hold") < text.index("rank 0: a collective")
        # Looking left nothing behind: nobody traced a rank, and none was stopped.
        assert set(tracers.tracers) == {"0"}
        assert set(tracers.states) <= {"R", "S", "D"}
        once = dump(program.pid).verdict
        assert (once.kind, once.rank) == (Kind.NOT_ENOUGH_EVIDENCE, 1)
        # What it says to try decides it.
        said = call(*once.try_.split()[1:])
        assert (said.returncode, said.stderr) == (0, "")
        assert "\nverdict  hung (missing-rank), confidence low: 1 of 2 ranks" in said.stdout
        assert "rank 1 is in hold rank_hang.py:" in " ".join(said.stdout.split())


@pytest.mark.long
def test_each_rank_is_named_by_a_fold_of_two_dumps_and_by_none_of_them(tmp_path):
    """Each half of the job as the dump of a host of its own: only both together accuse a rank."""
    with hung(tmp_path, 3) as program:
        job = find_job(program.pid)
        paths = []
        for number, ranks in enumerate(((0, 1), (2,))):
            members = [one for one in dumpable(job) if one.rank in ranks]
            half = fold_rounds([Dumper(members).read_round()], DumpOrigin(job.root.pid, job.script, 3))
            assert half.world_size == 3
            assert not is_known(half.odd_one_out)
            path = tmp_path / f"{number}.json"
            path.write_text(encode(half).replace(os.uname().nodename, f"host-{number}"))
            paths.append(str(path))
        folded = decode(Dump, call("fold", *paths, "--json", code=0).stdout)
        odd, verdict = folded.odd_one_out, folded.verdict
        assert (odd.rank, odd.host) == (2, "host-1")
        assert (verdict.kind, verdict.rank) == (Kind.NOT_ENOUGH_EVIDENCE, 2)
        assert verdict.summary.endswith("if it stays so, hung (missing-rank: rank 2)")
        assert "(rank 2 is on host-1)" in folded.summary
