"""One run of each program of causes/: tpmon says what is true of it, and accuses no healthy one.

Five runs of each, idle and beside a busy core: ``make verdicts``.
"""

from __future__ import annotations

import sys

import pytest

from tests.programs.causes.running import HERE, CannotBeMadeError, Verdict, diagnose, run_program, start_program, watch
from tests.programs.causes.table import ATTACH_S, ROWS, Row, find_row
from tests.verdicts.matrix import find_advice
from tpmon.judge.advice.choose import REMEDIES
from tpmon.model.verdict import TABLE, Kind

pytestmark = [pytest.mark.torch]

LOOKS_S = (8.0, 15.0, 15.0)
"""What others do on the machine of a test may cover a cause for some seconds; the matrix counts each look."""
FAST = ("no_workers",)
LONG = ("rank_pool", "straggler", "lock_hang", "light_workers")
"""Programs whose run is short enough for every ``make test``, and whose cause a crowded machine leaves
as it is; those of ``LONG`` are for make test-long."""


ASKED = [pytest.param(find_row(name), id=name) for name in FAST]
ASKED += [pytest.param(find_row(name), id=name, marks=pytest.mark.long) for name in LONG]


@pytest.mark.parametrize("row", ASKED)
def test_what_tpmon_says_of_a_program_is_true(row: Row) -> None:
    try:
        with run_program(row, 0, seconds=180) as running:
            for look_s in LOOKS_S:
                verdict = diagnose(running.pid, look_s if row.watch_s == ATTACH_S else row.watch_s)
                if row.accepts(verdict.kind, verdict.cause):
                    break
    except CannotBeMadeError as error:
        pytest.skip(str(error))
    assert row.accepts(verdict.kind, verdict.cause), verdict.document
    if row.is_healthy:
        assert not verdict.accuses


def test_each_remedy_that_is_applied_is_one_that_tpmon_has_for_the_cause() -> None:
    for row in ROWS:
        assert bool(row.remedy) == bool(row.advice), row.name
        if row.advice:
            assert row.advice in REMEDIES[row.label.kind, row.label.cause], row.name


def test_advice_is_found_by_its_title_whatever_the_numbers_in_it() -> None:
    said = {
        "try": "raise num_workers from 1 to 3: DataLoader(..., num_workers=3)",
        "also_try": ["if the CPU budget is used up: give the job more cores: --cpus-per-task=4"],
    }
    assert find_advice("more-workers", said) == "try"
    assert find_advice("more-cores", said) == "also"
    assert find_advice("more-memory", said) == "no"


WITHOUT_A_PROGRAM = {
    Kind.COMPUTE_BOUND: {"gpu-compute", "gpu-memory-bandwidth", "gpu"},
    Kind.STARTING: {"autotune"},
    Kind.IDLE: {"ended", "polls"},
    Kind.DATA_BOUND: {"pin", "decode-engine"},
    Kind.LAUNCH_BOUND: {"tiny-kernels", "main-thread"},
    Kind.SYNC_BOUND: {"explicit", "implicit", "allocator"},
    Kind.GPU_THROTTLED: {"thermal", "brake", "odd-cap", "pcie"},
    Kind.MEMORY_PRESSURE: {"gpu"},
    Kind.OVERSUBSCRIBED: {"affinity"},
    Kind.FAILED: {"restarts"},
    Kind.LIMITS: {"threads"},
    Kind.PAUSED: {"checkpoint-share", "validation-share"},
}
"""What needs a card; a limit of processes, which root has not; minutes of a rhythm; a job whose exit status nobody
sees, as on kernels before 6.13 (pidfd_info); and what tests/recordings has jobs of: a launcher's (bound_ranks,
elastic_loop), and one that polls for files (ok_eval_daemon)."""


def test_every_cause_that_a_cpu_can_make_has_a_program() -> None:
    assert [row.name for row in ROWS if not (HERE / row.script).is_file()] == []
    made = {(row.label.kind, row.label.cause) for row in ROWS}
    for kind in TABLE:
        causes = {cause for cause in kind.causes if (kind.kind, cause) not in made}
        if kind.kind is not Kind.HUNG:  # tests/programs/hangs
            assert causes == WITHOUT_A_PROGRAM.get(kind.kind, set()), kind.kind


@pytest.mark.long
@pytest.mark.usefixtures("sampling_works")
@pytest.mark.parametrize("name", ["no_workers", "too_few_workers", "one_slow_worker", "compute"])
def test_a_training_in_a_thread_has_the_verdict_of_any_other(name: str) -> None:
    row = find_row(name)

    def is_right(verdict: Verdict) -> bool:
        return row.accepts(verdict.kind, verdict.cause)

    with start_program((sys.executable, str(HERE / "in_thread.py"), name), 0) as running:
        running.wait_until_ready()
        verdicts, notes = watch(running.pid, 3 * ATTACH_S, is_right)
    assert is_right(verdicts[-1]), [str(one) for one in verdicts]
    assert [note for note in notes if note.startswith("rank 0 trains in its thread trainer (")]
