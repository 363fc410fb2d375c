"""Jobs of which ranks here wait: for one that is not with them, for one elsewhere or lost, for each other."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.collectives import make_group, make_record, reading
from tests.dumps import fold, make_native, make_rank, make_round, odd_pid, rounds
from tests.frames import make_process, set_all
from tests.hanging import Change, Job, beside, conclude, job, number_here, said, stand
from tests.judge.hang.test_activity import END, ends
from tests.judge.hang.test_devices import AT_REST, OBJECTS, SPINS, cards, spins
from tests.stacks import ALL_REDUCE, BACKWARD, BROADCAST, DECODE, IN_LOCK, MAIN, PIPE, READS, RUNNING, TRAIN, stack_of
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.judge.watch.tracker import WatchedTime, observe
from tpmon.model.dump import OtherEnd, ProcessLook, WaitKind
from tpmon.model.frame import Frame
from tpmon.model.host import NetworkSample, SocketSample
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import EnvironmentSetting, Role, ThreadGroup, ThreadKind
from tpmon.model.results.collectives import CollectivesReading, RasReport
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Finding, Kind, SinceIs

FIRST = stack_of(
    "main > train > main_process_first accelerate/accelerator.py:900"
    " > _goes_first accelerate/state.py:400 > wait_for_everyone accelerate/state.py:380"
)
INIT = stack_of(
    "main > init_process_group torch/distributed/distributed_c10d.py:1700"
    " > _create_c10d_store torch/distributed/rendezvous.py:190"
)
SAVE = stack_of(
    "main > train > _save_state_dict torch/distributed/checkpoint/state_dict_saver.py:300"
    " > gather_object torch/distributed/distributed_c10d.py:2900"
)
RECEIVES = (MAIN, TRAIN, StackFrame("recv_forward", "/w/megatron/core/pipeline_parallel/p2p_communication.py", 400))
BARRIER = stack_of("main > train > barrier torch/distributed/distributed_c10d.py:4000")
GLOO = make_native(9001, "pt_gloo_runloop")
DEAD = RasReport("2.27.5", 4, 4, (), (), 1, 0)
SILENT = SocketSample(6, 380.0, 390.0, 0, 0)
MEANWHILE = SocketSample(6, 20.0, 30.0, 0, 0)
ASKED = {"asked_s": 30.0}
BOTH = [make_rank(0), make_rank(1)]
ELSEWHERE = {310: "remote-rank"}
UNTOLD = Missing("no WORLD_SIZE in the start environment")


def two(frames: tuple[StackFrame, ...] = ALL_REDUCE, first: int = 0) -> list[ProcessLook]:
    """Make two ranks, from number ``first`` on, that wait in one place."""
    return [make_rank(first + rank, replace(GLOO, tid=9000 + rank), frames=frames) for rank in (0, 1)]


def turn(demand: float = 1.0, threads: int = 1, waiting: float = 0.0) -> Change:
    """Let threads that talk to other ranks take a CPU in each process."""
    comm = (ThreadGroup(ThreadKind.MAIN, 1, 0.0), ThreadGroup(ThreadKind.COMM, threads, demand))
    ran = {"thread_groups": comm, "runnable": demand + waiting, "waiting": waiting}
    return lambda frames: [set_all(one, **ran) for one in number_here(frames)]


def tell(told: CollectivesReading, then: Change = number_here) -> Change:
    """Let the records of the job be read with each look."""
    return lambda frames: [
        replace(one, collectives=told) if is_known(one.rounds) else one for one in then(list(frames))
    ]


def wait(name: str, frames: tuple[StackFrame, ...], says: dict[int, str], first: int = 0, **more: Any) -> Any:
    """Make a row of two ranks of four."""
    return job(name, *two(frames, first), says=says, **({"world_size": 4, "change": number_here} | more))


@pytest.mark.parametrize(
    "job",
    [
        *(
            wait(f"what one elsewhere does alone: {name}", frames, {60: "", **ELSEWHERE}, rank=NOT_APPLICABLE)
            for name, frames in (
                ("first", FIRST),
                ("start", INIT),
                ("a save", SAVE),
                ("objects", OBJECTS),
                ("out of a step", ALL_REDUCE),
                ("the next step", BACKWARD),
                ("a barrier", BARRIER),
            )
        ),
        *(
            wait(f"twice the longest pause: {name}", frames, {310: ""}, watch={"longest_s": 200.0})
            for name, frames in (("a save", SAVE), ("the next step", BACKWARD))
        ),
        # Of what one does alone an old log tells less than silent connections.
        *(
            wait(f"{name}: {what}", frames, {12: cause}, **fields)
            for name, frames in (("a save", SAVE), ("the next step", BACKWARD))
            for what, cause, fields in (
                ("an old log", "", {"log_age_s": 400.0}),
                ("connections that speak", "", {"log_age_s": 400.0, "sockets": MEANWHILE}),
                ("silent connections", "remote-rank", {"log_age_s": 400.0, "sockets": SILENT}),
                ("silent connections and no log", "remote-rank", {"sockets": SILENT}),
                ("a very old log", "remote-rank", {"log_age_s": 1900.0}),
            )
        ),
        # The log of rank 0 counts where that waits with the others.
        wait("the log of rank 0 in a step", BACKWARD, {40: "remote-rank"}, log_age_s=400.0),
        wait("the log of rank 0 in a save", SAVE, {40: ""}, log_age_s=400.0),
        wait("the log after a pause", BACKWARD, {40: ""}, log_age_s=420.0, watch={"longest_s": 200.0}),
        wait("after it", BACKWARD, {410: "remote-rank"}, log_age_s=790.0, watch={"longest_s": 200.0}),
        *(
            wait(f"no rank 0 here: {name}", frames, {12: "", 40: "", 200: "", **ELSEWHERE}, first=2, log_age_s=7200.0)
            for name, frames in (("a save", SAVE), ("the next step", BACKWARD))
        ),
        wait("ten minutes at most", BACKWARD, {610: "remote-rank"}, watch={"longest_s": 1200.0}),
        wait("as the user says", BACKWARD, {60: "remote-rank"}, watch=ASKED),
        wait("a save, as the user says", SAVE, {60: ""}, watch=ASKED),
        # Of a dead process no thread that turns makes a wait.
        wait("threads of gloo turn", FIRST, {60: ""}, change=turn()),
        wait("NCCL knows a dead process", FIRST, {60: "remote-rank"}, change=tell(reading(ras=[DEAD]))),
        wait("both", FIRST, {60: "remote-rank"}, change=tell(reading(ras=[DEAD]), turn())),
        job("the log of ranks that are all here", *two(), says={45: ""}, log_age_s=420.0, change=turn()),
        job("as its user says", *two(), says={45: ""}, log_age_s=420.0, change=turn(), watch={"asked_s": 35.0}),
        job("a large tensor over gloo", *two(), says={60: ""}, world_size=2, change=turn(0.6)),
        job("a small one", *two(), says={60: "no-progress"}, world_size=2, change=turn(0.02)),
        job("the ticks of five groups", *two(), says={60: "no-progress"}, world_size=2, change=turn(0.12, 15)),
        *(
            job(
                f"threads of NCCL turn beside {name}",
                make_rank(0),
                make_rank(1),
                says={60: cause},
                world_size=2,
                change=turn(),
                gpus=gpus,
            )
            for name, gpus, cause in (
                ("no card", (), ""),
                ("cards that spin", cards(SPINS, SPINS), "no-progress"),
                ("idle cards", cards(AT_REST, AT_REST), ""),
            )
        ),
        job("all in a save of theirs", *two(SAVE), says={60: "", 310: "no-progress"}, world_size=2),
        job("all in one collective", *BOTH, says={40: "no-progress"}, words="none is outside of it", world_size=2),
        job(
            "in different ones",
            make_rank(0),
            make_rank(1, frames=BROADCAST),
            says={40: "missing-rank"},
            words="different collectives: rank 0 in all_reduce train.py:40, rank 1 in broadcast",
            world_size=2,
        ),
        job(
            "in transfers and collectives",
            *(make_rank(rank, frames=RECEIVES if rank < 6 else ALL_REDUCE) for rank in range(8)),
            says={45: "no-progress"},
            words="ranks 0-5 in recv_forward train.py:40, ranks 6-7 in all_reduce",
            rank=NOT_APPLICABLE,
            world_size=8,
        ),
        job(
            "rank 0 alone at a barrier",
            make_rank(0, frames=BARRIER),
            *map(spins, (1, 2, 3)),
            says={60: "missing-rank"},
            rank=0,
            world_size=4,
            gpus=cards(*[SPINS] * 4),
        ),
        job(
            "one that was seen to end",
            *BOTH,
            says={45: "missing-rank"},
            words="rank 2 has ended (exit 1)",
            world_size=3,
            change=ends(replace(END, pid=4030, role=Role.RANK, rank=2, how="exit 1", signal=NOT_APPLICABLE)),
        ),
        job("a third that may save alone", *BOTH, says={45: ""}, world_size=3),
    ],
)
def test_ranks_that_wait_for_others(job):
    job.check()


def test_the_rank_that_is_not_in_the_collective_is_named_with_its_line_and_what_it_waits_for():
    ranks = (*map(make_rank, (0, 1, 2)), make_rank(3, frames=DECODE, **READS))
    finding = Job(ranks, {40: "missing-rank"}, fields={"log_age_s": 1560.0}).check()
    assert finding.summary.startswith(
        "3 of 4 ranks wait in all_reduce train.py:40; rank 3 is in decode data.py:88 (data wait), "
        "blocked in a read of /data/7.bin on NFS (/data)"
    )
    assert finding.since_is is SinceIs.LOWER_BOUND
    assert finding.since_source.startswith("last log write")
    # Since when stands beside the verdict, and nowhere a second time.
    assert "at least" not in finding.summary
    assert not any("log" in row.name for row in finding.evidence)
    assert any("(4030)" in row.name and "decode data.py:88" in row.text for row in finding.evidence)


def test_a_rank_that_moves_excuses_those_that_wait_for_it():
    slow = make_rank(1, frames=DECODE, **RUNNING)
    moved = make_rank(1, frames=(*DECODE[:-1], StackFrame("resize", "/run/data.py", 120)), **RUNNING)
    frames = stand(make_rank(0), slow, moved=(make_rank(0), moved), seconds=120, log_age_s=400.0)
    assert said(frames)[0] is not Kind.HUNG


def test_who_waits_for_a_rank_elsewhere_is_told_to_look_there():
    finding = conclude(stand(make_rank(0), make_rank(1), world_size=4, log_age_s=400.0), **ASKED)
    assert (finding.kind, finding.cause) == (Kind.HUNG, "remote-rank")
    assert "of ranks 2-3" in finding.summary
    assert "tpmon dump --job --json there" in finding.summary
    assert "tpmon fold" in finding.try_
    without_0 = number_here(stand(*two(BACKWARD, 2), world_size=4, seconds=310, log_age_s=7200.0))
    assert "log" not in conclude(without_0).since_source, "rank 0 writes it"


def named(finding: Finding) -> list[str]:
    """Return the rows of evidence about ranks, by their names."""
    return [row.name for row in finding.evidence if row.name.startswith("rank ")]


def test_all_ranks_in_one_collective_accuse_none_of_them():
    finding = Job(tuple(map(make_rank, range(8))), {40: "no-progress"}, fields={"world_size": 8}).check()
    assert not any(map(is_known, (finding.rank, finding.pid, finding.where)))
    assert "tpmon dump 4211 " in finding.try_, "of the job: none of them is named"
    assert len(named(finding)) == len(set(named(finding))) == 4


@pytest.mark.parametrize(("apart", "rank"), [(4, NOT_APPLICABLE), (1, 7), (3, 5)])
def test_of_two_collectives_the_smaller_part_is_named_and_of_equal_ones_none(apart, rank):
    ranks = tuple(make_rank(n, frames=ALL_REDUCE if n < 8 - apart else BROADCAST) for n in range(8))
    finding = Job(ranks, {40: "missing-rank"}, rank=rank, fields={"world_size": 8}).check()
    assert finding.pid == (4000 + 10 * rank if is_known(rank) else NOT_APPLICABLE)
    assert len(named(finding)) == len(set(named(finding))) == 4
    assert ("which the others wait for" in finding.try_) is (is_known(rank) and apart > 1)
    assert ("is reached by rank 7 alone" in finding.try_) is (apart == 1)


REDUCES, STORE = (
    stack_of("main > validate /run/train.py:19 > reduce torch/distributed/distributed_c10d.py:3398"),
    (MAIN, replace(TRAIN, line=61)),
)


def at_store(rank: int, of: int) -> ProcessLook:
    """Make a rank that asks the store, which another rank has."""
    others = (OtherEnd(4000 + 10 * of, NOT_APPLICABLE, f"rank {of}"),)
    return make_rank(rank, frames=STORE, waits_for="poll", waits_on=replace(PIPE, kind=WaitKind.SOCKET, others=others))


@pytest.mark.parametrize("last", [1, 3])
@pytest.mark.parametrize("alone", [0, 1])
@pytest.mark.parametrize("frames", [REDUCES, BARRIER, BROADCAST, ALL_REDUCE, SAVE])
def test_who_calls_a_collective_alone_while_the_others_are_in_backward_is_named_with_its_line(frames, alone, last):
    ranks = tuple(two_part(n, BACKWARD if n != alone else frames) for n in range(last + 1))
    finding = Job(ranks, {40: "missing-rank"}, rank=alone, fields={"world_size": last + 1}).check()
    assert f"is reached by rank {alone} alone" in finding.try_


def two_part(number: int, frames: tuple[StackFrame, ...]) -> ProcessLook:
    return make_rank(number, replace(GLOO, tid=9000 + number), frames=frames)


def test_of_two_ranks_in_different_collectives_the_one_at_a_barrier_is_not_the_one_that_is_alone():
    ranks = (two_part(0, BARRIER), two_part(1, BROADCAST))
    finding = Job(ranks, {40: "missing-rank"}, rank=1, fields={"world_size": 2}).check()
    assert "is reached by rank 1 alone" in finding.try_


@pytest.mark.parametrize(
    ("past", "words"),
    [
        ((at_store(1, 0),), "rank 1 is past the last one"),
        ((at_store(1, 0), at_store(2, 0)), "ranks 1-2 are past the last one"),
        ((two_part(1, BARRIER), two_part(2, BARRIER)), "ranks 1-2 are past the last one"),
    ],
)
def test_ranks_that_are_past_the_backward_of_the_others_had_fewer_batches(past, words):
    ranks = (two_part(0, BACKWARD), *past)
    finding = conclude(stand(*ranks, world_size=len(ranks), seconds=60))
    assert (finding.kind, finding.cause) == (Kind.HUNG, "missing-rank")
    assert f"give all ranks the same number of batches: {words}" in finding.try_


@pytest.mark.parametrize("frames", [IN_LOCK, DECODE])
def test_a_rank_that_stands_elsewhere_had_not_fewer_batches(frames):
    finding = conclude(stand(two_part(0, BACKWARD), make_rank(1, frames=frames), world_size=2, seconds=60))
    assert (finding.kind, finding.cause) == (Kind.HUNG, "missing-rank")
    assert "batches" not in finding.try_


# --- ranks that have ended ---

LAUNCHER = make_process(900, role=Role.LAUNCHER, rank=NOT_APPLICABLE, local_rank=NOT_APPLICABLE)


def lived(*ranks: int) -> Change:
    """Let other ranks have been there in the first Frame."""
    return lambda frames: [
        *beside(*(make_process(4000 + 10 * n, rank=n, local_rank=n) for n in ranks))(frames[:1]),
        *frames[1:],
    ]


@pytest.mark.parametrize(
    ("ended", "words", "rank"), [((2,), "rank 2 has ended", 2), ((2, 3), "ranks 2-3 have ended", NOT_APPLICABLE)]
)
def test_of_ranks_that_wait_for_one_that_ended_that_one_is_named_and_each_other_shown_once(ended, words, rank):
    ranks, fields = (make_rank(0), make_rank(1)), {"world_size": 2 + len(ended)}
    finding = Job(ranks, {40: "missing-rank"}, (words,), rank, change=lived(*ended), fields=fields).check()
    assert named(finding) == ["rank 0 (4000)", "rank 1 (4010)"]
    assert not is_known(finding.pid), "it is no more"


def test_a_job_that_goes_on_with_fewer_ranks_does_not_miss_those_that_it_had():
    three = stand(make_rank(0), make_rank(1), make_rank(2), world_size=3)
    Job((make_rank(0), make_rank(1)), {40: "no-progress"}, change=lived(2), fields={"world_size": 2}).check()
    old = three[0].processes
    for here in (replace(three[0], processes=()), three[0]):
        anew = [replace(one, start_ticks=7, pid=one.pid + 500) for one in old]
        watch = observe(observe(WatchedTime(), three[0]), replace(here, processes=()))
        assert watch.numbers == {0, 1, 2}
        assert observe(watch, replace(here, processes=tuple(anew[:2]))).numbers == {0, 1}


def started(parents: Sequence[int], *, launcher: bool = False, size: str = "") -> Change:
    """Let the ranks be children of these, and say how many were started here."""
    local = {"environment": (EnvironmentSetting("LOCAL_WORLD_SIZE", size),)} if size else {}

    def change(frames: list[Frame]) -> list[Frame]:
        ranks = [
            tuple(replace(one, parent=parent, **local) for one, parent in zip(frame.processes, parents, strict=True))
            for frame in frames
        ]
        above = (LAUNCHER,) if launcher else ()
        return [replace(frame, processes=(*above, *those)) for frame, those in zip(frames, ranks, strict=True)]

    return change


GONE, THERE = {60: "missing-rank"}, {60: "", 310: "remote-rank"}


@pytest.mark.parametrize(
    "job",
    [
        job(name, *map(make_rank, numbers), says=says, words=words, world_size=world, change=started(*parents, **how))
        for name, numbers, world, parents, how, says, words in (
            # A gap in the numbers is one only among ranks that one process started.
            ("a container each", (3,), 4, ([1],), {}, {60: ""}, ""),
            ("two containers", (0, 3), 4, ([70, 80],), {}, {60: ""}, ""),
            ("of who knows whom", (0, 3), 4, ([1, 1],), {}, {60: ""}, ""),
            ("a launcher", (0, 3), 4, ([70, 80],), {"launcher": True}, GONE, "have ended"),
            ("a step of Slurm", (0, 3), 4, ([70, 70],), {}, GONE, "have ended"),
            ("the first rank", (0, 3), 4, ([70, 4000],), {}, GONE, "have ended"),
            ("a gap below a launcher", (0, 2), 3, ([900, 900],), {"launcher": True}, GONE, "rank 1 has ended"),
            # The last ones are missed where a launcher says how many it started.
            ("as a launcher says", (0, 1), 4, ([1, 1],), {"launcher": True, "size": "3"}, GONE, "rank 2 has ended"),
            ("no launcher", (0, 1), 4, ([1, 1],), {"size": "3"}, THERE, "elsewhere"),
            ("more than the job has", (0, 1), 4, ([1, 1],), {"launcher": True, "size": "9"}, THERE, "elsewhere"),
            ("no number", (0, 1), 4, ([1, 1],), {"launcher": True, "size": "nonsense"}, THERE, "elsewhere"),
            # Orphans of a launcher miss a rank where they say that all were started here.
            ("orphans: a gap", (0, 2), 3, ([1, 1],), {"size": "3"}, GONE, "rank 1 has ended; "),
            ("orphans: the last", (0, 1), 3, ([1, 1],), {"size": "3"}, GONE, "rank 2 has ended; "),
            ("orphans: of two machines", (0, 2), 3, ([1, 1],), {"size": "2"}, THERE, "elsewhere"),
            ("orphans: nobody says it", (0, 2), 3, ([1, 1],), {}, THERE, "elsewhere"),
            ("orphans: a container", (2,), 3, ([1],), {"size": "3"}, THERE, "elsewhere"),
        )
    ],
)
def test_ranks_that_have_ended_are_known_by_who_started_them(job):
    job.check()


# --- how many there are is not known ---

LOOPBACK = NetworkSample("lo", "nic", True, 0.0, 0.0, 0.0, 0.0)
PORT = NetworkSample("mlx5_0/1", "ib", True, 0.0, 0.0, 0.0, 0.0)
ODD = [make_rank(number, frames=ALL_REDUCE if number < 3 else BROADCAST) for number in range(4)]
HERE, MAY_BE = {60: "no-progress"}, {60: "", 310: "no-progress"}
OR_ELSEWHERE = "or one elsewhere is missing"


def nic(*, used: object) -> tuple[NetworkSample, ...]:
    return (NetworkSample("eth0", "nic", used, 0.0, 0.0, 0.0, 0.0), LOOPBACK)


def members(*numbers: int) -> CollectivesReading:
    return reading(*(make_record(rank, make_group(3, 4, ranks=numbers)) for rank in (0, 1)))


IN_USE = {"network": nic(used=True)}


def unsized(name: str, says: dict[int, str], *looks: ProcessLook, **more: Any) -> Any:
    """Make a row of ranks of which nobody says how many there are, as a program has that starts them itself."""
    return job(name, *(looks or map(make_rank, (0, 1))), says=says, world_size=UNTOLD, **more)


@pytest.mark.parametrize(
    "job",
    [
        unsized("no network read", MAY_BE, words=OR_ELSEWHERE, rank=NOT_APPLICABLE),
        unsized("one in use", MAY_BE, words=OR_ELSEWHERE, rank=NOT_APPLICABLE, **IN_USE),
        unsized("one not read", MAY_BE, words=OR_ELSEWHERE, rank=NOT_APPLICABLE, network=nic(used=UNTOLD)),
        unsized("every connection ends here", HERE, rank=NOT_APPLICABLE, network=nic(used=False)),
        unsized("no interface", HERE, rank=NOT_APPLICABLE, network=(LOOPBACK,)),
        # Which of them writes the log is not known either.
        unsized("an old log", {12: ""}, log_age_s=1900.0),
        unsized("silent connections", {12: "no-progress"}, words=OR_ELSEWHERE, sockets=SILENT),
        # NCCL holds a port of InfiniBand open on any host that has one.
        unsized("a port of InfiniBand", {40: "missing-rank"}, *ODD, rank=3, network=(PORT, LOOPBACK)),
        unsized("of others nothing was read", {60: ""}, *ODD, network=(PORT,)),
        unsized("one in another collective", {60: "", 310: "missing-rank"}, *ODD, words=OR_ELSEWHERE, rank=3, **IN_USE),
        unsized("the same, with an old log", {12: ""}, *ODD, log_age_s=1900.0),
        unsized("one in a lock", {40: "missing-rank"}, make_rank(0), make_rank(1, frames=IN_LOCK), rank=1),
        unsized("one alone waits for others, elsewhere", {60: ""}, make_rank(0)),
        unsized("cards", {60: "", 310: "gpu-wait"}, spins(0), spins(1), words=OR_ELSEWHERE, gpus=cards(SPINS, SPINS)),
        # What counts as many ranks as run here leaves none elsewhere.
        *(
            unsized(name, {40: cause}, change=tell(told, list), **IN_USE)
            for name, told, cause in (
                ("a record", members(0, 1), "no-progress"),
                ("a record of two machines", members(0, 1, 2, 3), ""),
                ("NCCL", reading(ras=[replace(DEAD, processes=2, dead=0)]), "no-progress"),
                ("NCCL of two machines", reading(ras=[replace(DEAD, processes=4, dead=0)]), ""),
                ("an empty record", reading(), ""),
            )
        ),
    ],
)
def test_ranks_whose_number_nobody_says_may_wait_for_one_elsewhere(job):
    finding = job.check()
    assert finding.kind is not Kind.HUNG or (OR_ELSEWHERE in finding.summary) is (OR_ELSEWHERE in job.words)


# --- dumps ---


def test_a_dump_names_no_rank_that_waits_where_others_are_elsewhere():
    pipeline = [make_rank(rank, frames=RECEIVES if rank < 6 else ALL_REDUCE) for rank in range(8)]
    dump = rounds(pipeline, pipeline, pipeline, world=16)
    assert odd_pid(dump) == 0
    assert "ranks 0-5 in recv_forward train.py:40, ranks 6-7 in all_reduce train.py:40" in dump.summary
    assert "elsewhere, of ranks 8-15" in dump.summary
    assert odd_pid(fold(*pipeline, world=8)) == 0, "nor do transfers that all wait in"


def test_a_dump_names_those_that_stand_outside_of_a_collective_though_they_are_the_most():
    blocked = [make_rank(rank, frames=DECODE, **READS) for rank in range(5)]
    job = [*blocked, *map(make_rank, (5, 6, 7))]
    dump = rounds(job, job, job, world=8)
    assert odd_pid(dump) == 4000
    assert dump.summary.startswith("3 of 8 ranks wait in all_reduce train.py:40; rank 0 is in decode data.py:88")
    assert "ranks 1-4 not there either" in dump.summary


@pytest.mark.parametrize(
    ("size", "words"), [(2, "or the backend itself"), (UNTOLD, "how many ranks there are is not known")]
)
def test_a_dump_of_ranks_of_an_unknown_number_looks_elsewhere_too(size, words):
    dump = fold_rounds([make_round(make_rank(0), make_rank(1))], DumpOrigin(1, "train.py", size))
    assert f"{words} (seen once" in dump.summary
