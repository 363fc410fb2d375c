"""Parts of processes told from names, command lines, environments, threads and parentage."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

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
SPAWNED = (
    PYTHON,
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4)",
    "--multiprocessing-fork",
)
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


def told(parts: Mapping[int, RolePart]) -> dict[int, tuple[object, ...]]:
    return {pid: (part.role, part.rank, part.worker) for pid, part in parts.items()}


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_without_an_environment_are_told_by_their_threads(method):
    argv = {"spawn": SPAWNED, "fork": TRAIN, "forkserver": FORKSERVER}[method]
    tree = [process(10, 1), process(11, 10, TRACKER, torch=False)]
    above = 10
    if method == "forkserver":
        tree.append(process(12, 10, FORKSERVER, torch=False))
        above = 12
    for pid in (20, 30):
        tree += [process(pid, above, argv, threads=GLOO), process(pid + 1, pid, argv, "pt_data_worker")]
    parts = cast(tree)
    assert parts[10].role is Role.LAUNCHER
    assert parts[11].label == "resource tracker"
    assert told(parts)[20] == (Role.RANK, 0, NOT_APPLICABLE)
    assert told(parts)[31] == (Role.WORKER, 1, 0)
    assert parts[30].source == "parentage and threads"
    assert parts[30].label == "train.py"
    assert isinstance(parts[30].world_size, Missing)


def test_ranks_are_numbered_by_birth_although_threads_come_in_another_order():
    first = cast([process(10, 1), process(20, 10, SPAWNED), process(30, 10, SPAWNED, threads=GLOO)])
    assert first[30].rank == 0
    assert first[20].role is Role.HELPER
    later = cast(
        [process(10, 1), process(20, 10, SPAWNED, threads=GLOO), process(30, 10, SPAWNED, threads=GLOO)], previous=first
    )
    assert (later[20].rank, later[30].rank) == (0, 1)


def test_the_number_of_a_rank_survives_its_dead_sibling():
    tree = [process(10, 1), process(30, 10, SPAWNED, threads=GLOO)]
    assert cast(tree, departed=[Departed(10, Identity(20, OLD + 20))])[30].rank == 1
    assert cast(tree)[30].rank == 0


def test_a_dead_rank_keeps_its_place_in_the_middle():
    tree = [process(10, 1), *(process(pid, 10, SPAWNED, threads=GLOO) for pid in (20, 40))]
    parts = cast(tree, departed=[Departed(10, Identity(30, OLD + 30)), Departed(99, Identity(1, 0))])
    assert (parts[20].rank, parts[40].rank) == (0, 2)


def test_a_process_that_trains_and_starts_ranks_is_the_first_of_them():
    parts = cast([process(10, 1, threads=GLOO), process(20, 10, SPAWNED, threads=GLOO)])
    assert [(part.role, part.rank) for part in parts.values()] == [(Role.RANK, 0), (Role.RANK, 1)]


def test_a_rank_that_starts_another_training_stays_a_rank():
    tree = [process(10, 1), process(11, 10, TRAIN, "pt_data_worker"), process(20, 10, SPAWNED)]
    parts = cast([*tree, process(21, 20, SPAWNED, "pt_data_worker")])
    assert (parts[10].role, parts[11].role, parts[20].role) == (Role.RANK, Role.WORKER, Role.HELPER)


@pytest.mark.parametrize(
    ("version", "named"),
    [("2.4.1+cu121", False), ("2.5.0", True), ("3.0.0a0", True), ("1.13.1", False), (Missing("x"), True)],
)
def test_workers_name_themselves_since_torch_2_5(version, named):
    assert names_workers(version) is named


SWEEP = (PYTHON, "sweep.py")
AUTOGRAD = ("pt_autograd_0",)
SHELL_OF_A_STEP = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}
LAUNCHED = (PYTHON, "/v/bin/torchrun", "train.py")


@pytest.mark.parametrize("environ", [{}, SHELL_OF_A_STEP])
def test_what_has_torch_and_started_a_launcher_is_no_rank(environ):
    tree = [process(10, 1, (PYTHON, "/v/bin/yolo", "train"), environ=environ)]
    tree += [process(11, 10, ("sh", "-c", "torchrun"), "sh"), process(12, 11, LAUNCHED, "pt_elastic")]
    for local in (0, 1):
        place = {"RANK": str(local), "LOCAL_RANK": str(local), "WORLD_SIZE": "2"}
        tree.append(process(20 + local, 12, environ=environ | place))
    parts = cast([*tree, process(30, 21, name="pt_data_worker")])
    assert {pid: part.role for pid, part in parts.items()} == {
        10: Role.HELPER,
        12: Role.LAUNCHER,
        20: Role.RANK,
        21: Role.RANK,
        30: Role.WORKER,
    }
    assert (parts[21].rank, parts[21].world_size, parts[30].rank_pid) == (1, 2, 21)


@pytest.mark.parametrize("sign", ["workers", "threads", "group", "ranks"])
def test_what_has_torch_and_started_one_that_trains_is_no_rank(sign):
    threads = {"threads": AUTOGRAD, "group": GLOO}.get(sign, ())
    tree = [process(10, 1, SWEEP), process(20, 10, (PYTHON, "train.py", "--seed", "1"), threads=threads)]
    if sign == "workers":
        tree.append(process(21, 20, (PYTHON, "train.py", "--seed", "1"), "pt_data_worker"))
    if sign == "ranks":
        tree += [process(30 + rank, 20, SPAWNED, threads=GLOO) for rank in (0, 1)]
    parts = cast(tree)
    assert (parts[10].role, parts[10].label) == (Role.HELPER, "sweep.py")
    assert [pid for pid, part in parts.items() if part.role is Role.RANK] == ([30, 31] if sign == "ranks" else [20])
    if sign == "workers":
        assert (parts[20].rank, parts[20].world_size, parts[20].source) == (0, 1, "single process")
        assert (parts[21].role, parts[21].rank_pid) == (Role.WORKER, 20)


@pytest.mark.parametrize("method", ["argv", "title", "spawn", "image", "compile"])
def test_what_multiprocessing_started_and_what_trains_itself_makes_no_helper_of_a_rank(method):
    argv = {
        "argv": SWEEP,
        "title": ("VLLM::Engine",),
        "spawn": SPAWNED,
        "image": (PYTHON, "x.py"),
        "compile": (PYTHON, "/v/torch/_inductor/compile_worker/__main__.py"),
    }[method]
    parent, child = process(10, 1, SWEEP), process(20, 10, argv, threads=AUTOGRAD)
    if method == "image":
        parent, child = (replace(each, stat=replace(each.stat, image=7)) for each in (parent, child))
    assert cast([parent, child])[10].role is Role.RANK


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


def test_before_torch_2_5_forked_workers_are_the_sign_of_training():
    tree = [process(10, 1), process(11, 10), process(20, 10, LAUNCHED, "pt_elastic")]
    assert [part.role for part in cast(tree, named=False).values()] == [Role.RANK, Role.WORKER, Role.HELPER]
    below = [process(10, 1, SWEEP), process(20, 10), process(21, 20)]
    assert [part.role for part in cast(below, named=False).values()] == [Role.HELPER, Role.RANK, Role.WORKER]


def test_programs_beside_one_that_trains_are_no_ranks():
    tree = [process(10, 1, SWEEP), process(20, 10, threads=AUTOGRAD), process(21, 20, name="pt_data_worker")]
    board = process(30, 10, (PYTHON, "/v/bin/tensorboard"), torch=False, start=NEW)
    assert cast([*tree, board])[30].role is Role.HELPER


def test_lightning_in_an_interactive_step_of_slurm_has_all_its_ranks():
    tree = [process(10, 1, (PYTHON, "fit.py"), environ=SHELL_OF_A_STEP, threads=GLOO)]
    for local in (1, 2, 3):
        place = SHELL_OF_A_STEP | {"LOCAL_RANK": str(local), "NODE_RANK": "0", "WORLD_SIZE": "4"}
        tree.append(process(20 + local, 10, (PYTHON, "/abs/fit.py"), environ=place))
    parts = cast([*tree, process(31, 21, name="pt_data_worker", environ=SHELL_OF_A_STEP)])
    ranks = {pid: (part.rank, part.world_size) for pid, part in parts.items() if part.role is Role.RANK}
    assert ranks == {10: (0, 4), 21: (1, 4), 22: (2, 4), 23: (3, 4)}
    assert parts[31].rank_pid == 21


def test_spawned_ranks_in_an_interactive_step_of_slurm_are_ranks():
    tree = [process(10, 1, environ=SHELL_OF_A_STEP, threads=GLOO)]
    parts = cast([*tree, process(20, 10, SPAWNED, environ=SHELL_OF_A_STEP, threads=GLOO)])
    assert [(part.role, part.rank) for part in parts.values()] == [(Role.RANK, 0), (Role.RANK, 1)]


def test_a_pod_whose_python_starts_the_ranks_is_their_launcher():
    pod = {"RANK": "1", "WORLD_SIZE": "2"}
    tree = [process(10, 1, (PYTHON, "start.py"), environ=pod)]
    for local in (0, 1):
        place = {"RANK": str(2 + local), "LOCAL_RANK": str(local), "WORLD_SIZE": "4"}
        tree.append(process(20 + local, 10, environ=pod | place))
    parts = cast(tree)
    assert [(part.role, part.rank) for part in parts.values()] == [
        (Role.LAUNCHER, NOT_APPLICABLE),
        (Role.RANK, 2),
        (Role.RANK, 3),
    ]


def test_an_evaluation_that_a_rank_starts_in_a_world_of_its_own_is_no_rank():
    rank = process(10, 1, environ={"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4"})
    alone = process(20, 10, (PYTHON, "eval.py"), environ={"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"})
    assert [part.role for part in cast([rank, alone]).values()] == [Role.RANK, Role.HELPER]


STEP = process(10, 1, ("slurmstepd: [7.0]",), "slurmstepd", torch=False)
OTHERS_PLACE = SHELL_OF_A_STEP | {"SLURM_PROCID": "1"}


def test_python_without_torch_beside_the_ranks_is_no_rank():
    tree = [STEP, process(11, 10, ("bash", "run.sh"), "bash", environ=SHELL_OF_A_STEP, torch=False)]
    board = process(12, 11, (PYTHON, "/v/bin/tensorboard"), environ=SHELL_OF_A_STEP, torch=False, start=NEW)
    parts = cast([*tree, board, process(13, 11, environ=SHELL_OF_A_STEP)])
    assert {pid: part.role for pid, part in parts.items()} == {10: Role.LAUNCHER, 12: Role.HELPER, 13: Role.RANK}
    importing = process(14, 11, environ=OTHERS_PLACE, torch=False, start=NEW)
    watcher = process(15, 11, (PYTHON, "watch.py"), environ=OTHERS_PLACE, torch=False)
    parts = cast([*tree, process(13, 11, environ=SHELL_OF_A_STEP), importing, watcher])
    assert [parts[pid].role for pid in (13, 14, 15)] == [Role.RANK, Role.RANK, Role.HELPER]


def test_a_rank_that_says_nothing_has_no_number():
    alone = cast([process(10, 1, threads=GLOO)])[10]
    assert alone.role is Role.RANK
    assert isinstance(alone.rank, Missing)
    assert isinstance(alone.world_size, Missing)
    assert cast([process(10, 1)])[10].rank == 0


def test_a_launcher_in_a_pod_that_carries_rank_is_no_rank():
    pod = {"RANK": "0", "WORLD_SIZE": "2"}
    launcher = process(10, 1, (PYTHON, "/v/bin/torchrun", "train.py"), "pt_elastic", environ=pod)
    place = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    parts = cast([launcher, process(11, 10, environ=place), process(12, 10, environ=pod)])
    assert told(parts) == {
        10: (Role.LAUNCHER, NOT_APPLICABLE, NOT_APPLICABLE),
        11: (Role.RANK, 3, NOT_APPLICABLE),
        12: (Role.RANK, 0, NOT_APPLICABLE),
    }
    assert isinstance(parts[12].local_rank, Missing)


def test_workers_of_each_start_method_belong_to_their_rank():
    tree = [
        process(10, 1, environ={"RANK": "2"}),
        process(11, 10, TRACKER, torch=False),
        process(12, 10, FORKSERVER, torch=False),
        process(13, 10, TRAIN, "pt_data_worker"),
        process(14, 10, SPAWNED, "pt_data_worker"),
        process(15, 12, FORKSERVER, "pt_data_worker"),
        process(16, 10, SPAWNED, start=NEW),
        process(17, 12, FORKSERVER, start=NEW),
        process(18, 10, SPAWNED),
        process(19, 10, TRAIN),
    ]
    parts = cast(tree)
    workers = {pid: part.worker for pid, part in parts.items() if part.role is Role.WORKER}
    assert workers == {13: 0, 14: 1, 15: 2, 16: 3, 17: 4}
    assert {part.rank for part in parts.values()} == {2}
    assert {part.rank_pid for part in parts.values()} == {10}
    assert parts[18].label == parts[19].label == "multiprocessing child"


def test_before_torch_2_5_forked_children_of_a_rank_are_its_workers():
    tree = [process(10, 1), process(11, 10), process(12, 10), process(13, 10, TRACKER, torch=False)]
    assert [part.role for part in cast(tree, named=False).values()].count(Role.WORKER) == 2
    assert [part.role for part in cast(tree).values()].count(Role.WORKER) == 0


def test_before_torch_2_5_spawned_ranks_are_told_by_having_workers():
    tree = [process(10, 1)]
    for pid in (20, 30):
        tree += [process(pid, 10, SPAWNED), process(pid + 1, pid, SPAWNED)]
    assert told(cast(tree, named=False)) == {
        10: (Role.LAUNCHER, NOT_APPLICABLE, NOT_APPLICABLE),
        20: (Role.RANK, 0, NOT_APPLICABLE),
        21: (Role.WORKER, 0, 0),
        30: (Role.RANK, 1, NOT_APPLICABLE),
        31: (Role.WORKER, 1, 0),
    }


def test_what_a_worker_starts_is_a_helper():
    tree = [
        process(10, 1),
        process(11, 10, TRAIN, "pt_data_worker"),
        process(12, 11, TRAIN, "pt_data_worker"),
        process(13, 11, ("torch_shm_manager",), "torch_shm_manag"),
        process(14, 11, ("ffmpeg", "-i", "x.mp4"), "ffmpeg"),
    ]
    parts = cast(tree)
    assert [part.role for part in parts.values()] == [Role.RANK, Role.WORKER, Role.HELPER, Role.HELPER, Role.HELPER]
    assert [parts[pid].label for pid in (12, 13, 14)] == ["started by a loader worker", "torch_shm_manager", "ffmpeg"]
    assert parts[14].rank == 0


def test_compile_workers_and_their_children_are_told_from_loader_workers():
    pool = (PYTHON, "/v/torch/_inductor/compile_worker/__main__.py", "--pickler=x", "--parent=10")
    parts = cast([process(10, 1), process(11, 10, pool), process(12, 11, pool)])
    assert [part.role for part in parts.values()] == [Role.RANK, Role.COMPILE, Role.COMPILE]


def test_a_worker_keeps_its_number_and_a_new_one_takes_the_lowest_free():
    tree = [process(10, 1), *(process(pid, 10, TRAIN, "pt_data_worker") for pid in (11, 12, 13))]
    first = cast(tree)
    later = cast([tree[0], tree[1], tree[3], process(14, 10, TRAIN, "pt_data_worker")], previous=first)
    assert {pid: part.worker for pid, part in later.items()} == {10: NOT_APPLICABLE, 11: 0, 13: 2, 14: 1}


def test_members_keep_their_parts_when_root_shell_or_rank_die():
    launcher = process(10, 1, ("mpirun",), "mpirun", torch=False)
    shell = process(11, 10, ("bash", "run.sh"), "bash", torch=False)
    rank = process(12, 11, environ={"PMI_RANK": "1", "PMI_SIZE": "2"})
    worker = process(13, 12, TRAIN, "pt_data_worker")
    child = process(14, 13, ("ffmpeg",), "ffmpeg", torch=False)
    whole = cast([launcher, shell, rank, worker, child])
    assert {pid: part.role for pid, part in whole.items()} == {
        10: Role.LAUNCHER,
        12: Role.RANK,
        13: Role.WORKER,
        14: Role.HELPER,
    }
    without_root = cast([shell, rank, worker, child], previous=whole)
    assert without_root == {pid: whole[pid] for pid in (12, 13, 14)}
    without_rank = cast([worker, child], previous=without_root)
    assert without_rank[13] == whole[13]
    assert without_rank[14].rank == 1


def test_an_elastic_restart_below_a_launcher_whose_parent_died_is_still_seen():
    step = process(10, 1, ("slurmstepd: [1.0]",), "slurmstepd", torch=False)
    launcher = process(11, 10, (PYTHON, "/v/bin/torchrun"), "pt_elastic")
    before = cast([step, launcher, process(12, 11, environ={"RANK": "0"})])
    after = cast([launcher, process(13, 11, environ={"RANK": "0"})], previous=before)
    assert told(after)[13] == (Role.RANK, 0, NOT_APPLICABLE)


def test_a_worker_that_its_rank_left_behind_is_no_rank():
    launcher = process(10, 1, (PYTHON, "/v/bin/torchrun"), "pt_elastic")
    parts = cast([launcher, process(13, 10, TRAIN, "pt_data_worker", environ={"RANK": "1"})])
    assert (parts[13].role, parts[13].rank) == (Role.WORKER, 1)
    assert parts[13].rank_pid == Missing("its rank has ended")


def test_an_interactive_shell_below_a_job_is_cut_off():
    parts = cast([process(10, 1), process(11, 10, ("bash",), "bash"), process(12, 11, ("top",), "top")])
    assert set(parts) == {10}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pt_data_pin", ThreadKind.PIN),
        ("pt_autograd_0", ThreadKind.AUTOGRAD),
        ("pt_gloo_runloop", ThreadKind.COMM),
        ("gloo_tcp_loop", ThreadKind.COMM),
        ("pt_nccl_watchdg", ThreadKind.COMM),
        ("NCCL Progress 0", ThreadKind.COMM),
        ("pt_tcpstore_uv", ThreadKind.COMM),
        ("pt_thread_pool", ThreadKind.POOL),
        ("python", ThreadKind.OTHER),
        ("pt_data_worker", ThreadKind.OTHER),
        ("cuda-EvtHandlr", ThreadKind.OTHER),
    ],
)
def test_threads_are_told_by_name(name, kind):
    assert thread_kind(name, main=False) is kind
    assert thread_kind(name, main=True) is ThreadKind.MAIN


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


def test_a_shell_whose_command_line_is_not_readable_is_a_boundary():
    assert identify("bash", ()).boundary


def test_a_script_named_like_a_server_is_none():
    assert not identify("login_train.py", (PYTHON, "./login_train.py")).boundary
    assert not identify("slurm_train.py", (PYTHON, "./slurm_train.py")).boundary


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
