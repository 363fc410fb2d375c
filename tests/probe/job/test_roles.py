"""Parts of processes told from names, command lines, environments, threads and parentage."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Identity, Role, ThreadKind
from tpmon.probe.base.procread import Mapped, StatLine
from tpmon.probe.job.job import names_workers
from tpmon.probe.job.process_facts import Facts, RankPlace, parse_place
from tpmon.probe.job.programs import identify, parse_command
from tpmon.probe.job.roles import Departed, RolePart, assign_parts, thread_kind

PYTHON = "/usr/bin/python3.11"
TRAIN = (PYTHON, "train.py")
SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4)"
SPAWNED = (PYTHON, "-c", SPAWN, "--multiprocessing-fork")
TRACKER = (PYTHON, "-c", "from multiprocessing.resource_tracker import main;main(5)")
FORKSERVER = (PYTHON, "-c", "from multiprocessing.forkserver import main; main(8, 9)")
GLOO = ("gloo_tcp_loop", "pt_gloo_runloop")
NOW = 1_000_000
OLD, NEW = NOW - 100_000, NOW - 100


def process(
    pid: int,
    parent: int,
    argv: Sequence[str] = TRAIN,
    name: str = "python",
    *,
    environ: Mapping[str, str] | None = None,
    threads: Sequence[str] = (),
    start: int = OLD,
    torch: bool = True,
) -> Facts:
    return Facts(
        stat=StatLine(pid, name, "S", parent, False, len(threads) + 1, start + pid, 0),
        argv=tuple(argv),
        environ=environ or {},
        exe=argv[0],
        mapped=Mapped("/v/torch/lib" if torch else "", False, "3.11"),
        thread_names=tuple(threads),
    )


def cast(
    processes: Iterable[Facts],
    *,
    named: bool = True,
    previous: Mapping[int, RolePart] | None = None,
    departed: Sequence[Departed] = (),
    root: int = 10,
) -> dict[int, RolePart]:
    facts = {fact.stat.pid: fact for fact in processes}
    return assign_parts(facts, root, now_ticks=NOW, named_workers=named, previous=previous, departed=departed)


def told(parts: Mapping[int, RolePart]) -> dict[int, str]:
    """Say who everybody is: "rank 0 of 2", "worker 1 of 20" (the PID of its rank), "helper ffmpeg", "compile"."""

    def say(part: RolePart) -> str:
        rank, size, worker, owner = (
            "?" if isinstance(one, Missing) else one for one in (part.rank, part.world_size, part.worker, part.rank_pid)
        )
        words = {
            Role.RANK: f"rank {rank} of {size}",
            Role.WORKER: f"worker {worker} of {owner}",
            Role.COMPILE: "compile",
        }
        return words.get(part.role) or f"{part.role.value} {part.label}"

    return {pid: say(part) for pid, part in parts.items()}


def worker(pid: int, parent: int, argv: Sequence[str] = TRAIN, **fields: Any) -> Facts:
    return process(pid, parent, argv, "pt_data_worker", **fields)


def place(rank: int, local: int | None = None, size: int = 2, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank if local is None else local), "WORLD_SIZE": str(size), **more}


SWEEP = (PYTHON, "sweep.py")
SEEDED = (PYTHON, "train.py", "--seed", "1")
BOARD = (PYTHON, "/v/bin/tensorboard")
AUTOGRAD = ("pt_autograd_0",)
IN_STEP = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}
OTHERS_PLACE = IN_STEP | {"SLURM_PROCID": "1"}
LAUNCHED = (PYTHON, "/v/bin/torchrun", "train.py")
POOL = (PYTHON, "/v/torch/_inductor/compile_worker/__main__.py", "--pickler=x", "--parent=10")
FIT = (PYTHON, "fit.py")
PMI_ALONE = {"PMI_RANK": "0", "PMI_SIZE": "1"}
POD = {"RANK": "1", "WORLD_SIZE": "2"}
STEP = process(10, 1, ("slurmstepd: [7.0]",), "slurmstepd", torch=False)
SCRIPT = process(11, 10, ("bash", "run.sh"), "bash", environ=IN_STEP, torch=False)
LAUNCHER = process(10, 1, LAUNCHED, "pt_elastic")
BOARD_BESIDE = process(30, 10, BOARD, torch=False, start=NEW)
RANK_IN_STEP = process(13, 11, environ=IN_STEP)
EVALUATION = process(20, 10, (PYTHON, "eval.py"), environ=place(0, size=1))

CASES: dict[str, tuple[list[Facts], dict[int, str]]] = {
    "one that trains and starts ranks is the first of them": (
        [process(10, 1, threads=GLOO), process(20, 10, SPAWNED, threads=GLOO)],
        {10: "rank 0 of ?", 20: "rank 1 of ?"},
    ),
    "a rank that starts another training stays a rank": (
        [process(10, 1), worker(11, 10), process(20, 10, SPAWNED), worker(21, 20, SPAWNED)],
        {10: "rank 0 of 1", 11: "worker 0 of 10", 20: "helper multiprocessing child", 21: "worker 1 of 10"},
    ),
    "one that started only one that trains is no rank": (
        [process(10, 1, SWEEP), process(20, 10, SEEDED), worker(21, 20, SEEDED)],
        {10: "helper sweep.py", 20: "rank 0 of 1", 21: "worker 0 of 20"},
    ),
    "nor by its threads": (
        [process(10, 1, SWEEP), process(20, 10, SEEDED, threads=AUTOGRAD)],
        {10: "helper sweep.py", 20: "rank 0 of 1"},
    ),
    "nor by its group": (
        [process(10, 1, SWEEP), process(20, 10, SEEDED, threads=GLOO)],
        {10: "helper sweep.py", 20: "rank ? of ?"},
    ),
    "nor above ranks that another one started": (
        [process(10, 1, SWEEP), process(20, 10, SEEDED), *(process(30 + n, 20, SPAWNED, threads=GLOO) for n in (0, 1))],
        {10: "helper sweep.py", 20: "launcher train.py", 30: "rank 0 of ?", 31: "rank 1 of ?"},
    ),
    "programs beside one that trains are no ranks": (
        [process(10, 1, SWEEP), process(20, 10, threads=AUTOGRAD), worker(21, 20), BOARD_BESIDE],
        {10: "helper sweep.py", 20: "rank 0 of 1", 21: "worker 0 of 20", 30: "helper tensorboard"},
    ),
    "spawned ranks in an interactive step of Slurm": (
        [process(10, 1, environ=IN_STEP, threads=GLOO), process(20, 10, SPAWNED, environ=IN_STEP, threads=GLOO)],
        {10: "rank 0 of ?", 20: "rank 1 of ?"},
    ),
    "Lightning in an interactive step of Slurm has all its ranks": (
        [
            process(10, 1, (PYTHON, "fit.py"), environ=IN_STEP, threads=GLOO),
            *(
                process(20 + local, 10, (PYTHON, "/abs/fit.py"), environ=IN_STEP | lightning)
                for local in (1, 2, 3)
                for lightning in [{"LOCAL_RANK": str(local), "NODE_RANK": "0", "WORLD_SIZE": "4"}]
            ),
            worker(31, 21, environ=IN_STEP),
        ],
        {10: "rank 0 of 4", 21: "rank 1 of 4", 22: "rank 2 of 4", 23: "rank 3 of 4", 31: "worker 0 of 21"},
    ),
    "the Python of a pod that starts the ranks is their launcher": (
        [
            process(10, 1, (PYTHON, "start.py"), environ=POD),
            *(process(20 + n, 10, environ=place(2 + n, n, 4)) for n in (0, 1)),
        ],
        {10: "launcher start.py", 20: "rank 2 of 4", 21: "rank 3 of 4"},
    ),
    "an evaluation that a rank starts in a world of its own is no rank": (
        [process(10, 1, environ=place(0, size=4)), EVALUATION],
        {10: "rank 0 of 4", 20: "helper eval.py"},
    ),
    "Python without torch beside the ranks is no rank": (
        [STEP, SCRIPT, process(12, 11, BOARD, environ=IN_STEP, torch=False, start=NEW), RANK_IN_STEP],
        {10: "launcher srun step", 12: "helper tensorboard", 13: "rank 0 of 1"},
    ),
    "unless it imports and no other has its number": (
        [
            *(STEP, SCRIPT, RANK_IN_STEP),
            process(14, 11, environ=OTHERS_PLACE, torch=False, start=NEW),
            process(15, 11, (PYTHON, "watch.py"), environ=OTHERS_PLACE, torch=False),
        ],
        {10: "launcher srun step", 13: "rank 0 of 1", 14: "rank 1 of 1", 15: "helper watch.py"},
    ),
    "the first rank of Lightning starts the others": (
        [process(10, 1, FIT, threads=GLOO), process(11, 10, FIT, environ={"LOCAL_RANK": "1", "WORLD_SIZE": "2"})],
        {10: "rank 0 of 2", 11: "rank 1 of 2"},
    ),
    "accelerate with one process has one rank": (
        [process(10, 1, (PYTHON, "/venv/bin/accelerate", "launch", "train.py")), process(11, 10)],
        {10: "launcher accelerate launch", 11: "rank 0 of 1"},
    ),
    "a Python wrapper without torch is not taken for the rank": (
        [
            process(10, 1, ("mpirun", "conda", "run", "python", "train.py"), "mpirun", torch=False),
            process(11, 10, (PYTHON, "/opt/conda/bin/conda", "run"), environ=PMI_ALONE, torch=False),
            process(12, 11, ("bash", "/tmp/conda-run"), "bash", environ=PMI_ALONE, torch=False),
            process(13, 12, environ=PMI_ALONE),
        ],
        {10: "launcher mpirun", 11: "helper conda", 13: "rank 0 of 1"},
    ),
    "a rank that says nothing has no number": ([process(10, 1, threads=GLOO)], {10: "rank ? of ?"}),
    "one alone has the number 0": ([process(10, 1)], {10: "rank 0 of 1"}),
    "a launcher in a pod that carries RANK is no rank": (
        [
            process(10, 1, LAUNCHED, "pt_elastic", environ=POD),
            process(11, 10, environ=place(3, 1, 8)),
            process(12, 10, environ=POD | {"RANK": "0"}),
        ],
        {10: "launcher torchrun", 11: "rank 3 of 8", 12: "rank 0 of 2"},
    ),
    "workers of each start method belong to their rank": (
        [
            process(10, 1, environ={"RANK": "2"}),
            process(11, 10, TRACKER, torch=False),
            process(12, 10, FORKSERVER, torch=False),
            *(worker(13, 10), worker(14, 10, SPAWNED), worker(15, 12, FORKSERVER)),
            *(process(16, 10, SPAWNED, start=NEW), process(17, 12, FORKSERVER, start=NEW)),
            *(process(18, 10, SPAWNED), process(19, 10, TRAIN)),
        ],
        {10: "rank 2 of ?", 11: "helper resource tracker", 12: "helper forkserver"}
        | {13 + number: f"worker {number} of 10" for number in range(5)}
        | dict.fromkeys((18, 19), "helper multiprocessing child"),
    ),
    "what a worker starts is a helper": (
        [
            *(process(10, 1), worker(11, 10), worker(12, 11)),
            process(13, 11, ("torch_shm_manager",), "torch_shm_manag"),
            process(14, 11, ("ffmpeg", "-i", "x.mp4"), "ffmpeg"),
        ],
        {10: "rank 0 of 1", 11: "worker 0 of 10", 12: "helper started by a loader worker"}
        | {13: "helper torch_shm_manager", 14: "helper ffmpeg"},
    ),
    "compile workers and their children are no loader workers": (
        [process(10, 1), process(11, 10, POOL), process(12, 11, POOL)],
        {10: "rank 0 of 1", 11: "compile", 12: "compile"},
    ),
    "a worker that its rank left behind is no rank": (
        [LAUNCHER, worker(13, 10, environ={"RANK": "1"})],
        {10: "launcher torchrun", 13: "worker ? of ?"},
    ),
    "an interactive shell below a job is cut off": (
        [process(10, 1), process(11, 10, ("bash",), "bash"), process(12, 11, ("top",), "top")],
        {10: "rank 0 of 1"},
    ),
}
BEFORE_2_5: dict[str, tuple[list[Facts], dict[int, str]]] = {
    "a forked worker is the sign of training": (
        [process(10, 1), process(11, 10), process(20, 10, LAUNCHED, "pt_elastic")],
        {10: "rank 0 of 1", 11: "worker 0 of 10", 20: "helper torchrun"},
    ),
    "also below what started it": (
        [process(10, 1, SWEEP), process(20, 10), process(21, 20)],
        {10: "helper sweep.py", 20: "rank 0 of 1", 21: "worker 0 of 20"},
    ),
    "forked children of a rank are its workers": (
        [process(10, 1), process(11, 10), process(12, 10), process(13, 10, TRACKER, torch=False)],
        {10: "rank 0 of 1", 11: "worker 0 of 10", 12: "worker 1 of 10", 13: "helper resource tracker"},
    ),
    "spawned ranks are told by having workers": (
        [process(10, 1), *(process(pid, pid // 10 * 10 if pid % 10 else 10, SPAWNED) for pid in (20, 21, 30, 31))],
        {10: "launcher train.py", 20: "rank 0 of ?", 21: "worker 0 of 20", 30: "rank 1 of ?", 31: "worker 0 of 30"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_process_has_its_part(case):
    tree, parts = CASES[case]
    assert told(cast(tree)) == parts


@pytest.mark.parametrize("case", BEFORE_2_5)
def test_before_torch_2_5_loader_workers_do_not_name_themselves(case):
    tree, parts = BEFORE_2_5[case]
    assert told(cast(tree, named=False)) == parts
    assert told(cast(tree)) != parts


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_without_an_environment_are_told_by_their_threads(method):
    argv = {"spawn": SPAWNED, "fork": TRAIN, "forkserver": FORKSERVER}[method]
    tree = [process(10, 1), process(11, 10, TRACKER, torch=False)]
    above = 10
    if method == "forkserver":
        tree.append(process(12, 10, FORKSERVER, torch=False))
        above = 12
    for pid in (20, 30):
        tree += [process(pid, above, argv, threads=GLOO), worker(pid + 1, pid, argv)]
    parts = cast(tree)
    ranks = {20: "rank 0 of ?", 21: "worker 0 of 20", 30: "rank 1 of ?", 31: "worker 0 of 30"}
    helpers = {10: "launcher train.py", 11: "helper resource tracker", 12: "helper forkserver"}
    assert told(parts) | {12: "helper forkserver"} == helpers | ranks
    assert (parts[30].source, parts[30].label) == ("parentage and threads", "train.py")


def test_ranks_are_numbered_by_birth_whenever_their_threads_come_and_a_new_worker_takes_the_lowest_number_free():
    late, early = process(30, 10, SPAWNED, threads=GLOO), process(20, 10, SPAWNED)
    first = cast([process(10, 1), early, late])
    assert (first[20].role, first[30].rank) == (Role.HELPER, 0)
    later = cast([process(10, 1), replace(early, thread_names=GLOO), late], previous=first)
    assert (later[20].rank, later[30].rank) == (0, 1)
    tree = [process(10, 1), *(worker(pid, 10) for pid in (11, 12, 13))]
    later = cast([tree[0], tree[1], tree[3], worker(14, 10)], previous=cast(tree))
    assert {pid: part.worker for pid, part in later.items()} == {10: NOT_APPLICABLE, 11: 0, 13: 2, 14: 1}


@pytest.mark.parametrize(
    ("living", "departed", "numbers"),
    [((30,), (), (0,)), ((30,), (20,), (1,)), ((20, 40), (30, 99), (0, 2)), ((30,), (99,), (0,))],
)
def test_the_number_of_a_rank_survives_its_dead_siblings(living, departed, numbers):
    tree = [process(10, 1), *(process(pid, 10, SPAWNED, threads=GLOO) for pid in living)]
    gone = [Departed(10 if pid < 99 else 99, Identity(pid, OLD + pid)) for pid in departed]
    parts = cast(tree, departed=gone)
    assert tuple(parts[pid].rank for pid in living) == numbers


@pytest.mark.parametrize(
    ("version", "named"),
    [("2.4.1+cu121", False), ("2.5.0", True), ("3.0.0a0", True), ("1.13.1", False), (Missing("x"), True)],
)
def test_workers_name_themselves_since_torch_2_5(version, named):
    assert names_workers(version) is named


@pytest.mark.parametrize("environ", [{}, IN_STEP])
def test_what_has_torch_and_started_a_launcher_is_no_rank(environ):
    tree = [process(10, 1, (PYTHON, "/v/bin/yolo", "train"), environ=environ)]
    tree += [process(11, 10, ("sh", "-c", "torchrun"), "sh"), process(12, 11, LAUNCHED, "pt_elastic")]
    tree += [process(20 + local, 12, environ=environ | place(local)) for local in (0, 1)]
    ranks = {20: "rank 0 of 2", 21: "rank 1 of 2", 30: "worker 0 of 21"}
    assert told(cast([*tree, worker(30, 21)])) == {10: "helper yolo", 12: "launcher torchrun"} | ranks


@pytest.mark.parametrize(
    ("argv", "image"), [(SWEEP, 0), (("VLLM::Engine",), 0), (SPAWNED, 0), ((PYTHON, "x.py"), 7), (POOL, 0)]
)
def test_what_multiprocessing_started_and_what_trains_itself_makes_no_helper_of_a_rank(argv, image):
    pair = process(10, 1, SWEEP), process(20, 10, argv, threads=AUTOGRAD)
    assert cast(replace(one, stat=replace(one.stat, image=image)) for one in pair)[10].role is Role.RANK


@pytest.mark.parametrize(
    "tree",
    [
        [process(10, 1, SWEEP, threads=AUTOGRAD)],
        [process(10, 1, SWEEP), process(11, 10, SWEEP, "pt_data_worker")],
        [process(10, 1, SWEEP, environ={"RANK": "0", "WORLD_SIZE": "1"})],
    ],
)
def test_what_trains_itself_stays_a_rank_whatever_it_started(tree):
    parts = cast([*tree, process(20, 10, LAUNCHED, "pt_elastic"), process(30, 20, threads=GLOO)])
    assert {pid: parts[pid].role for pid in (10, 20, 30)} == {10: Role.RANK, 20: Role.HELPER, 30: Role.HELPER}


def test_members_keep_their_parts_when_root_shell_or_rank_die():
    launcher = process(10, 1, ("mpirun",), "mpirun", torch=False)
    shell = process(11, 10, ("bash", "run.sh"), "bash", torch=False)
    rank = process(12, 11, environ={"PMI_RANK": "1", "PMI_SIZE": "2"})
    below = [worker(13, 12), process(14, 13, ("ffmpeg",), "ffmpeg", torch=False)]
    whole = cast([launcher, shell, rank, *below])
    assert told(whole) == {10: "launcher mpirun", 12: "rank 1 of 2", 13: "worker 0 of 12", 14: "helper ffmpeg"}
    without_root = cast([shell, rank, *below], previous=whole)
    assert without_root == {pid: whole[pid] for pid in (12, 13, 14)}
    without_rank = cast(below, previous=without_root)
    assert (without_rank[13], without_rank[14].rank) == (whole[13], 1)
    # An elastic restart below a launcher whose parent died is still seen.
    launcher = process(11, 10, LAUNCHED, "pt_elastic")
    before = cast([STEP, launcher, process(12, 11, environ={"RANK": "0"})])
    assert cast([launcher, process(13, 11, environ={"RANK": "0"})], previous=before)[13].rank == 0


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (ThreadKind.PIN, ["pt_data_pin"]),
        (ThreadKind.AUTOGRAD, ["pt_autograd_0"]),
        (ThreadKind.COMM, ["pt_gloo_runloop", "gloo_tcp_loop", "pt_nccl_watchdg", "NCCL Progress 0", "pt_tcpstore_uv"]),
        (ThreadKind.POOL, ["pt_thread_pool"]),
        (ThreadKind.OTHER, ["python", "pt_data_worker", "cuda-EvtHandlr"]),
    ],
)
def test_threads_are_told_by_name(kind, names):
    assert {name: thread_kind(name, main=False) for name in names} == dict.fromkeys(names, kind)
    assert {thread_kind(name, main=True) for name in names} == {ThreadKind.MAIN}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, RankPlace(5, 1, 8, "environment")),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "4"}, RankPlace(1, 1, 4, "environment")),
        ({"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"}, RankPlace(None, 1, 4, "environment")),
        ({"RANK": "2", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, RankPlace(2, None, None, "environment")),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"}, None),
        ({"SLURM_PROCID": "0"}, None),
        ({"RANK": "one", "WORLD_SIZE": "²"}, None),
        ({}, None),
    ],
)
def test_places_are_read_from_the_start_environment(environ, place):
    assert parse_place(environ) == place


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("python3 /v/bin/torchrun --nproc-per-node 2 train.py", "torchrun"),
        ("python -u -m torch.distributed.run train.py", "torchrun"),
        ("python -W ignore -X dev -m torch.distributed.launch train.py", "torchrun"),
        ("python /v/site-packages/torch/distributed/run.py train.py", "torchrun"),
        ("python /v/bin/accelerate launch train.py", "accelerate launch"),
        ("python /v/bin/accelerate config", ""),
        ("python -m accelerate.commands.launch train.py", "accelerate launch"),
        ("python /v/bin/deepspeed train.py", "deepspeed"),
        ("python -u -m deepspeed.launcher.launch --world_info=x train.py", "deepspeed"),
        ("/opt/openmpi/bin/mpirun -n 2 python train.py", "mpirun"),
        ("orterun -n 2 x", "mpirun"),
        ("prted --daemonize", "mpirun"),
        ("python train.py torchrun", ""),
        ("python -c torchrun", ""),
        ("/bin/sh /opt/intel/mpirun -n 2 python train.py", ""),
        ("vim torchrun", ""),
    ],
)
def test_launchers_are_told_by_their_command_line(line, launcher):
    argv = tuple(line.split(" "))
    assert identify("x", argv).launcher == launcher


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("slurmstepd: [77.0]", False),
        ("/usr/bin/orted -mca ess env", False),
        ("hydra_pmi_proxy --control-port n0:1", False),
        ("mpirun -n 2 python train.py", True),
        ("srun python train.py", True),
        ("python /v/bin/torchrun train.py", True),
        ("python train.py slurmstepd", True),
    ],
)
def test_what_starts_the_ranks_of_one_node_does_not_answer_for_them(line, answers):
    assert identify("x", (line,) if line.startswith("slurmstepd:") else tuple(line.split(" "))).answers is answers


@pytest.mark.parametrize(
    ("line", "boundary"),
    [
        ("-bash", True),
        ("bash", True),
        ("/bin/zsh -i", True),
        ("bash --login", True),
        ("bash --init-file /x/shellIntegration.sh", True),
        ("bash --rcfile x -i", True),
        ("bash run.sh", False),
        ("sh -c python", False),
        ("bash -lc python", False),
        ("bash -e -o pipefail run.sh", False),
        ("sshd: me@pts/0", True),
        ("tmux new -s train", True),
        ("SCREEN -S train", True),
        ("python /v/bin/jupyter-lab --no-browser", True),
        ("/v/bin/py-spy record --pid 7", True),
        ("python /v/bin/tpmon attach 7", True),
        ("python -m tpmon diagnose 7", True),
        ("python tpmon_train.py", False),
        ("python -m jupyterhub.singleuser", True),
        ("python -m ipykernel_launcher -f x", False),
        ("python /v/ray/_private/log_monitor.py", True),
        ("python /v/ray/_private/workers/default_worker.py", False),
        ("python screen.py", False),
        ("make train", False),
        ("uv run train.py", False),
        ("nohup python train.py", False),
    ],
)
def test_boundaries_are_told_by_their_command_line(line, boundary):
    argv = tuple(line.split(" "))
    assert identify("x", argv).boundary is boundary


def test_a_shell_whose_command_line_is_not_readable_is_a_boundary_and_a_script_named_like_a_server_is_none():
    assert identify("bash", ()).boundary
    for name in ("login_train.py", "slurm_train.py"):
        assert not identify(name, (PYTHON, f"./{name}")).boundary


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("python -uB experiments/a/train.py --lr 1", "train.py"),
        ("python -m pkg.train", "pkg.train"),
        ("python -mpkg.train", "pkg.train"),
        ("python -c import\x1bos", "python -c"),
        ("python", "python (no script)"),
        ("python3.11 -i", "python3.11 (no script)"),
        ("python -i train.py", "train.py"),
        ("python -u - --lr 1", "python -"),
        ("/usr/bin/wandb-core --port", "wandb-core"),
        ("python tr\x1b[31main.py", "tr?[31main.py"),
    ],
)
def test_programs_are_called_what_a_person_calls_them(line, label):
    assert identify("x", tuple(line.split(" "))).label == label


def test_options_of_the_script_are_not_the_interpreters():
    command = parse_command(("python3", "-E", "train.py", "-m", "torchrun"))
    assert (command.how, command.name, command.arguments) == ("script", "train.py", ("-m", "torchrun"))
