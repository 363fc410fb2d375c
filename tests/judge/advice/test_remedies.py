"""The first remedy of each kind of hang, and what no remedy may say: a word to guess, a scheduler that is not there."""

import re
from dataclasses import replace

import pytest

from tests.judge.test_also_try import NAMED
from tpmon.judge.advice.choose import CATALOGUE, REMEDIES, choose, fill_remedy
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.advice.fields import names_all
from tpmon.judge.advice.standing import POOLS, name_lock_file
from tpmon.judge.answers.needs import Need
from tpmon.model.dump import WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.verdict import Kind

UNREAD = RunFacts()
FULL = replace(
    NAMED,
    slurm_job="4711",
    log_path="/tmp/run.log",
    lacking="the pool of tokenizers",
    past="ranks 1-2 are",
    budget_cores=8.0,
)
ACRONYMS = frozenset(
    re.findall(
        r"\S+",
        "A100 V100 AMP BLAS CPU CPUS CUDA DALI DDP FSDP GPU GPUs GC GIL H HDF5 HF I INFO JPEG L MB GB NCCL NFS NVIDIA OMP P2P "
        "PCIe PIL TCP TF32 TFLOPS X POWER PERFORMANCE CLOCK TEMPERATURE UTILIZATION ECC ROW_REMAPPER CONT THAWED NET "
        "FLASH_ATTENTION CUDNN_ATTENTION SHARD_GRAD_OP HYBRID_SHARD NVMe RAM SIGCONT RGB CPUWeight",
    )
)
"""H, L: variables of a shell; the others are names of the field, or words of a command's own."""
VARIABLE = re.compile(
    r"(?:OMP|MKL|OPENBLAS|OPENCV|NUMEXPR|GOMP|KMP|NCCL|TORCH|TORCHINDUCTOR|PYTORCH|PYTHON\w*|CUDA|SRUN|SBATCH|TOKENIZERS)(?:_\w+)?"
    r"|HOME|PWD|PYTHONBREAKPOINT"
)
WORD = re.compile(r"(?<![\w$%-])[A-Z][A-Z0-9_]*(?![\w])")
SCHEDULER = re.compile(
    r"srun|scontrol|sbatch|sacct|squeue|slurm|kubectl|kubernetes|\bpods?\b|resources\.limits", re.IGNORECASE
)


def write(name: str, facts: RunFacts) -> str:
    one = fill_remedy(CATALOGUE[name], frozenset(CATALOGUE[name].needs), facts)
    return f"{one.text}\n{one.paste}\n{one.ceiling}"


@pytest.mark.parametrize("name", sorted(CATALOGUE))
@pytest.mark.parametrize("facts", [FULL, NAMED])
def test_no_remedy_has_a_word_in_capitals_that_a_person_must_guess(name, facts):
    words = set(WORD.findall(write(name, facts))) - ACRONYMS
    assert not {word for word in words if not VARIABLE.fullmatch(word)}


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_what_names_a_thing_of_the_run_is_left_out_where_that_was_not_read(name):
    remedy = CATALOGUE[name]
    things = not names_all(remedy.title, UNREAD) or not names_all(remedy.paste[-1], UNREAD)
    rows = [row for row, names in REMEDIES.items() if name in names]
    said = {one.remedy.id for row in rows for one in choose(*row, frozenset(remedy.needs), UNREAD)}
    assert not things or name not in said
    assert all(not names_all(paste, UNREAD) for paste in remedy.paste[:-1]), "the last would never be taken"


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_scheduler_is_named_only_where_it_runs_the_job(name):
    for job in (NOT_APPLICABLE, UNREAD.slurm_job):
        assert not SCHEDULER.search(write(name, replace(NAMED, slurm_job=job)))


HUNG = [
    ("lock", {Need.LOCK_WAIT, Need.WORKERS_PRESENT, Need.FORKED_WITHOUT_THREADS}, "no-fork-after-threads"),
    ("lock", {Need.LOCK_WAIT, Need.WORKERS_PRESENT}, "look-at-line"),
    ("lock", {Need.LOCK_WAIT, Need.HOLDER_SEEN}, "one-order-of-locks"),
    ("lock", {Need.PROCESS_WAIT, Need.QUEUE_WAIT, Need.THREAD_LEFT, Need.QUEUE_FULL}, "read-before-join"),
    ("lock", {Need.FILE_LOCK_WAIT, Need.LOCK_FILE_LEFT}, "delete-lock-file"),
    ("lock", {Need.FILE_LOCK_WAIT}, "free-file-lock"),
    ("lock", {Need.POOL_FROZEN, Need.LOCK_WAIT, Need.HOLDER_SEEN}, "look-at-pool"),
    ("lock", {Need.POOL_FROZEN, Need.FORKED_WITHOUT_THREADS}, "no-fork-after-threads"),
    ("missing-rank", {Need.ONE_RANK_ALONE, Need.SOCKET_WAIT, Need.PROCESS_WAIT}, "call-on-all-ranks"),
    ("missing-rank", {Need.GRADIENTS_AWAITED, Need.SOCKET_WAIT}, "even-batches"),
    ("missing-rank", {Need.SOCKET_WAIT}, "limit-the-request"),
    ("missing-rank", {Need.INPUT_WAIT}, "no-breakpoint"),
    ("missing-rank", {Need.RANK_GONE}, "restart-from-checkpoint"),
    ("missing-rank", set(), "look-at-missing-rank"),
    ("blocked-io", {Need.QUEUE_FULL}, "read-before-join"),
    ("no-progress", {Need.QUEUE_WAIT}, "look-for-producer"),
    ("no-progress", set(), "look-at-line"),
    ("lost-batch", {Need.QUEUE_WAIT}, "look-for-producer"),
]


@pytest.mark.parametrize(("cause", "seen", "first"), HUNG)
def test_the_first_remedy_of_a_hang_is_that_of_its_cause(cause, seen, first):
    chosen = choose(Kind.HUNG, cause, frozenset({*seen, Need.STACKS_TOLD}), FULL)
    assert (chosen[0].remedy.id, chosen[0].certain) == (first, True)
    assert "dump-stacks" not in {one.remedy.id for one in chosen}, "they were just read"


WAITS = {need for name in REMEDIES[Kind.HUNG, "lock"] for need in CATALOGUE[name].needs}


@pytest.mark.parametrize("row", [row for row in REMEDIES if row[0] is Kind.HUNG], ids=lambda row: row[1])
def test_what_the_look_at_all_threads_has_excluded_is_no_if(row):
    for need in WAITS:
        seen = frozenset((Need.STACKS_TOLD, need))
        ifs = {one for each in choose(*row, seen, FULL) for one in each.remedy.needs} - seen
        assert not ifs & WAITS, need


@pytest.mark.parametrize("cause", ["lock", "lost-batch", "blocked-io", "missing-rank", "no-progress"])
def test_stacks_are_to_be_read_only_where_they_were_not(cause):
    named = {one.remedy.id for one in choose(Kind.HUNG, cause, frozenset(), FULL)}
    assert "dump-stacks" in named


@pytest.mark.parametrize("cause", ["lock", "lost-batch", "dead-worker", "blocked-io", "missing-rank", "no-progress"])
def test_what_the_stacks_of_all_threads_would_have_shown_is_no_if_of_a_remedy(cause):
    unsaid = {"no-fork-after-threads", "read-before-join", "find-lock-file", "look-at-pool", "call-on-all-ranks"}
    unsaid |= {"even-batches", "restart-from-checkpoint", "end-left-thread", "free-file-lock", "one-order-of-locks"}
    told = {one.remedy.id for one in choose(Kind.HUNG, cause, frozenset((Need.STACKS_TOLD,)), FULL)}
    untold = {one.remedy.id for one in choose(Kind.HUNG, cause, frozenset(), FULL)}
    assert told.isdisjoint(unsaid)
    assert untold & unsaid


def test_a_queue_of_coroutines_is_asked_as_asyncio_does():
    said = write("look-for-producer", replace(FULL, event_loop=True))
    assert "asyncio.wait_for(work.get(), 60)" in said
    assert f"python -m asyncio pstree {FULL.pid}" in said
    assert "asyncio" not in write("look-for-producer", FULL)


def test_without_a_path_the_lock_file_is_to_be_looked_for():
    seen = frozenset((Need.FILE_LOCK_WAIT, Need.LOCK_FILE_LEFT, Need.STACKS_TOLD))
    assert choose(Kind.HUNG, "lock", seen, RunFacts(pid=4211))[0].remedy.id == "find-lock-file"
    polled = WaitTarget(
        "clock_nanosleep", NOT_APPLICABLE, WaitKind.FILE, "/x/a lock", NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE
    )
    assert name_lock_file(polled) == "/x/a lock"
    assert name_lock_file(replace(polled, call="flock")) is NOT_APPLICABLE, "its holder frees it"
    assert "rm '/x/a lock'" in write("delete-lock-file", replace(FULL, lock_file="/x/a lock"))


@pytest.mark.parametrize(
    ("package", "switch"),
    [("tokenizers", "TOKENIZERS_PARALLELISM=false"), ("cv2", "cv2.setNumThreads(0)"), ("numpy", "OMP_NUM_THREADS=1")],
)
def test_a_fork_is_told_the_switch_of_the_library_that_it_stands_in(package, switch):
    pool = POOLS[package]
    said = write("no-fork-after-threads", replace(FULL, lacking=pool.words, fork_switch=pool.switch))
    assert f"{pool.words} has no threads in it" in said
    assert f"# or, for {pool.words}: " in said
    assert switch in said
    assert "or make what needs threads in each process" in write("no-fork-after-threads", NAMED)
