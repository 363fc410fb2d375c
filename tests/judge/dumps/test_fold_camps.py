"""Under a framework one line of the user makes many collectives: ranks are told apart by which one they wait in."""

from tests.dumps import ALL_REDUCE, DECODE, MAIN, NFS, ONCE, SITE, TRAIN, fold, make_rank, rounds
from tests.hanging import conclude, stand
from tpmon.model.stacks import StackFrame

_TORCH, _TRAINER = f"{SITE}/torch", f"{SITE}/transformers/trainer.py"
_HF = (MAIN, TRAIN, StackFrame("train", _TRAINER, 2200), StackFrame("_inner_training_loop", _TRAINER, 2500))
EVALUATE = (
    *_HF,
    StackFrame("evaluate", _TRAINER, 4100),
    StackFrame("evaluation_loop", _TRAINER, 4300),
    StackFrame("gather", f"{SITE}/accelerate/utils/operations.py", 400),
    StackFrame("all_gather", f"{_TORCH}/distributed/distributed_c10d.py", 3500),
)
STEP = (
    *_HF,
    StackFrame("training_step", _TRAINER, 3600),
    StackFrame("forward", f"{_TORCH}/nn/parallel/distributed.py", 1600),
    StackFrame("_sync_buffers", f"{_TORCH}/nn/parallel/distributed.py", 2100),
)


def test_ranks_in_two_collectives_of_one_user_line_are_two_camps():
    dump = fold(make_rank(0, frames=EVALUATE), *[make_rank(rank, frames=STEP) for rank in range(1, 8)])
    assert dump.summary == (
        "7 of 8 ranks wait in broadcast of buffers (ddp forward) train.py:40; rank 0 waits in gather"
        f" (validation) train.py:40, waits for: lock or queue (futex){ONCE}"
    )
    assert dump.odd_one_out.rank == 0


def test_the_verdict_on_two_collectives_of_one_user_line_says_who_is_in_which():
    ranks = [make_rank(rank, frames=EVALUATE if rank == 5 else STEP) for rank in range(8)]
    finding = conclude(stand(*ranks))
    assert finding.cause == "missing-rank"
    assert finding.summary.endswith(
        "in different collectives: ranks 0-4,6-7 in broadcast of buffers (ddp forward) train.py:40,"
        " rank 5 in gather (validation) train.py:40"
    )


def test_one_collective_is_one_camp_wherever_in_its_library_the_ranks_are():
    spins = (*ALL_REDUCE, StackFrame("_spin", f"{_TORCH}/distributed/distributed_c10d.py", 90))
    without = tuple(frame for frame in ALL_REDUCE if frame.function != "wrapper")
    stacks = (ALL_REDUCE, spins, without, ALL_REDUCE)
    dump = fold(*[make_rank(rank, frames=frames) for rank, frames in enumerate(stacks)])
    assert dump.summary.startswith("all 4 ranks wait in all_reduce train.py:40; none is outside of it")
    bare = [tuple(frame for frame in frames if frame.file.startswith(SITE)) for frames in stacks]
    dump = fold(*[make_rank(rank, frames=frames) for rank, frames in enumerate(bare)])
    assert dump.summary.startswith("all 4 ranks wait in all_reduce; none is outside of it")


def test_who_waits_for_its_card_is_not_the_odd_one_beside_one_that_reads():
    sync = (MAIN, TRAIN, StackFrame("synchronize", f"{_TORCH}/cuda/__init__.py", 950))
    reads = make_rank(7, frames=DECODE, state="D", waits_for="NFS", waits_on=NFS)
    ranks = [make_rank(rank, frames=sync) for rank in range(1, 7)]
    job = [make_rank(0), *ranks, reads]
    dump = rounds(job, job, job, world=8)
    assert dump.odd_one_out.rank == 7
    assert "not there either" not in dump.summary
