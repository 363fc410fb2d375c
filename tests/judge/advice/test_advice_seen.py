"""What was seen, what was not and what a hook tells decide which remedies are certain, an "if", or none."""

from dataclasses import replace
from typing import Any

import pytest

from tests.dumps import make_rank
from tests.frames import make_cpu, make_frame, make_memory, make_process, make_target
from tests.hanging import conclude, stand, thread
from tests.judging import hold, make_phases, scene_of
from tests.paces import make_hook, with_hooks
from tests.stacks import IN_LOCK, LIB, MAIN, PEER, PIPE, TRAIN
from tests.view.test_hook import MIB, make_settings
from tests.waits import wait_of
from tpmon.judge.advice.choose import REMEDIES, choose
from tpmon.judge.advice.context import observe
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.hook_needs import DEEP_PREFETCH, observe_settings
from tpmon.judge.features.snapshot import see
from tpmon.judge.hang.threads import need_of_wait
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.stacks.profile import RankPhases
from tpmon.model.dump import DeadChild, OtherEnd, WaitKind, WaitTarget
from tpmon.model.frame import Frame
from tpmon.model.hook import AllocatorFigures, CompileCounts, DdpSettings, FsdpSettings, LoaderSettings
from tpmon.model.host import ShmSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import EnvironmentSetting
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Finding, Kind

SUSPECT = Suspicion(Kind.LAUNCH_BOUND, "main-thread", 0.5, 2.0, frozenset(("a",)), "text", ())
RANKS = (make_process(4211, rank=0), make_process(4212, rank=1))


def see_needs(*phases: RankPhases, world: int = 2) -> frozenset[Need]:
    frame = make_frame(processes=RANKS, target=make_target(world_size=world))
    return observe(scene_of(frame, phases), SUSPECT)


def test_stacks_were_read_where_every_rank_has_enough_samples_and_ranks_run_elsewhere_in_a_larger_world():
    plain = {Phase.FORWARD: 0.4, Phase.BACKWARD: 0.4, Phase.OTHER: 0.2}
    one, two = (make_phases(plain, pid) for pid in (4211, 4212))
    assert Need.STACKS_READ in see_needs(one, two)
    assert Need.STACKS_READ not in see_needs(one)
    assert Need.STACKS_READ not in see_needs(one, make_phases(plain, 4212, samples=19))
    assert Need.RANKS_ELSEWHERE in see_needs(world=16)
    assert Need.RANKS_ELSEWHERE not in see_needs(world=2)


def test_what_stacks_would_have_shown_is_no_if():
    def ids(cause, *needs):
        chosen = choose(Kind.LAUNCH_BOUND, cause, frozenset((Need.GPU_PRESENT, *needs)), RunFacts())
        return {one.remedy.id for one in chosen}

    assert ids("tiny-kernels") - ids("tiny-kernels", Need.STACKS_READ) == {"more-at-once"}
    assert "log-rarely" not in ids("main-thread", Need.STACKS_READ)
    assert "sync-rarely" in ids("main-thread", Need.STACKS_READ), ".item() runs in C: no stack shows it"


def test_nobody_is_sent_to_look_at_a_rank_that_has_no_number():
    row = (Kind.COMMS_BOUND, "straggler")
    assert "look-at-late-rank" not in {one.remedy.id for one in choose(*row, frozenset(), RunFacts())}
    named = choose(*row, frozenset((Need.RANK_BEHIND,)), RunFacts(pid=4212, rank=1))[0]
    assert (named.remedy.id, named.certain) == ("look-at-late-rank", True)
    assert named.paste.startswith("tpmon dump 4212 --rank 1")


def test_a_setting_that_switches_a_path_of_nccl_off_counts_in_any_rank_where_that_would_be_taken():
    def is_seen(name, values, world):
        processes = tuple(
            make_process(4211 + rank, rank=rank, environment=(EnvironmentSetting(name, value),))
            for rank, value in enumerate(values)
        )
        frame = make_frame(processes=processes, target=make_target(world_size=world))
        return Need.NCCL_PATH_OFF in observe(scene_of(frame), SUSPECT)

    assert is_seen("NCCL_P2P_DISABLE", "01", 2)
    assert not is_seen("NCCL_P2P_DISABLE", "00", 2)
    assert is_seen("NCCL_IB_DISABLE", "11", 16)
    assert not is_seen("NCCL_IB_DISABLE", "11", 2)
    assert is_seen("NCCL_SHM_DISABLE", "11", 2)
    assert not is_seen("NCCL_SHM_DISABLE", "1", 8)
    assert is_seen("TORCH_NCCL_BLOCKING_WAIT", "1", 8)


def test_swap_that_nobody_touches_takes_no_remedy_away():
    lies = make_frame(memory=make_memory(swap_bytes=1 << 30))
    touched = make_frame(memory=make_memory(swap_bytes=1 << 30, major_faults_s=90.0, psi_some_pct=20.0))
    assert Need.SWAP_USED not in observe(scene_of(lies), SUSPECT)
    assert Need.SWAP_USED in observe(scene_of(touched), SUSPECT)


def test_a_pool_is_large_where_more_of_its_threads_work_than_there_are_cores():
    def is_seen(busy, budget):
        cpu = make_cpu(budget_cores=budget, host_cores=8)
        frame = make_frame(processes=(make_process(busy_threads=busy),), cpu=cpu)
        return Need.POOL_IN_RANK in observe(scene_of(frame), SUSPECT)

    assert not is_seen(2, 2.0), "main thread and autograd's"
    assert not is_seen(8, 8.0), "as many as there are cores"
    assert is_seen(8, 4.0)


def test_shared_memory_is_tight_by_its_size_or_by_what_a_batch_takes():
    def is_seen(used, total):
        shm = ShmSample(path="/dev/shm", used_bytes=used, total_bytes=total)
        return Need.SHM_TIGHT in observe(scene_of(make_frame(memory=make_memory(shm=shm))), SUSPECT)

    assert not is_seen(300 << 30, 500 << 30), "a data set staged there leaves room for any batch"
    assert is_seen(40 << 20, 64 << 20), "that of a container"
    assert is_seen((4 << 30) - (1 << 20), 4 << 30), "full, and nothing of it grows any more"


def test_a_cache_that_is_read_again_and_again_is_a_limit_that_is_near():
    frame = make_frame(memory=make_memory(used_bytes=3 << 30))
    thrash = replace(SUSPECT, observed=frozenset((Need.REFAULTS_SEEN,)))
    assert Need.MEMORY_FREE in observe(scene_of(frame), SUSPECT)
    seen = observe(scene_of(frame), thrash)
    assert Need.MEMORY_LIMIT_NEAR in seen
    assert Need.MEMORY_FREE not in seen
    chosen = choose(Kind.DATA_BOUND, "page-cache-thrash", seen, RunFacts())
    assert next(one for one in chosen if one.remedy.id == "more-memory").certain


def test_workers_are_capped_to_a_quota_only_where_there_are_more():
    needs = frozenset((Need.QUOTA_THROTTLING, Need.WORKERS_PRESENT, Need.WORKERS_CPU_BOUND))

    def ids(workers, observed=needs):
        facts = RunFacts(ranks=1, quota_cores=8.0, workers_per_rank=workers)
        return {one.remedy.id for one in choose(Kind.CPU_THROTTLED, "quota", observed, facts) if one.certain}

    assert "fit-workers-to-quota" in ids(12)
    assert "fit-workers-to-quota" not in ids(2)
    assert "fit-workers-to-quota" not in ids(0, needs - {Need.WORKERS_PRESENT})


def test_what_is_always_known_is_no_if_and_bf16_is_no_advice_for_a_cpu():
    slow = choose(Kind.DATA_BOUND, "one-slow-worker", frozenset(), RunFacts())
    assert not any("stopped" in one.text for one in slow)
    full = choose(Kind.COMPUTE_BOUND, "gpu", frozenset((Need.GPU_PRESENT,)), RunFacts())
    assert "fp16-amp" not in {one.remedy.id for one in full}, "the name of the card says what it can"
    assert "bf16" not in REMEDIES[Kind.COMPUTE_BOUND, "cpu"]


def test_to_validate_less_often_needs_a_validation_that_takes_a_share_of_the_time():
    def is_seen(validation, span_s=30.0):
        rest = (1.0 - validation) / 2
        ratios = {Phase.VALIDATION: validation, Phase.FORWARD: rest, Phase.BACKWARD: rest}
        both = (make_phases(ratios, pid, span_s=span_s) for pid in (4211, 4212))
        return Need.VALIDATES_OFTEN in see_needs(*both)

    assert is_seen(0.4)
    assert not is_seen(0.4, span_s=12.0), "one of 5 s, just after attaching"
    assert not is_seen(0.1)
    assert not is_seen(1.0), "attached in the middle of one: how often it comes is not known"


# the settings of a hook

UNTOLD = Missing("the job does not use it")
GROUPS = (
    *("compiled", "allocator", "ddp", "fsdp", "loader", "matmul_tf32", "autocast"),
    *("cudnn_benchmark", "cudnn_deterministic", "deterministic"),
)
NOTHING = dict.fromkeys(GROUPS, UNTOLD)
DDP = DdpSettings(25 * MIB, 2, find_unused=False, static_graph=False)
FSDP1 = FsdpSettings(1, 13, "off", "BACKWARD_PRE", limit_all_gathers=True)
UNLIMITED = replace(FSDP1, limit_all_gathers=False)
FSDP2 = FsdpSettings(2, 13, "12 of 13 units", "torch's order", NOT_APPLICABLE)


DONE = {
    *(Need.NOTHING_COMPILED, Need.MODEL_COMPILED, Need.FEW_BREAKS, Need.BENCHMARK_ON, Need.DETERMINISTIC_ON),
    *(Need.NO_RETRIES, Need.LARGE_BUCKETS, Need.PREFETCH_DEEP),
}
"""What says only that a remedy is done already."""


def told(*ranks: dict[str, Any], **fields: Any) -> Frame:
    """Make a job of which the hook of each of ``ranks`` tells so much, of one alone ``fields``."""
    hooks = [
        make_hook(4211 + rank, rank=rank, settings=make_settings(**(NOTHING | said)))
        for rank, said in enumerate(ranks or (fields,))
    ]
    return with_hooks(make_frame(), *hooks)


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, set()),
        ({"loader": LoaderSettings(0, False, UNTOLD, False, 8)}, {Need.TORCH_LOADER}),
        ({"compiled": CompileCounts(0, 0, 0, 0, 0)}, {Need.EAGER_MODEL}),
        ({"anomaly": True}, {Need.DEBUG_TAX_SET}),
        ({"compiled": CompileCounts(2, 2, 1, 0, 0)}, set()),
        ({"compiled": CompileCounts(0, 0, 1, 0, 0)}, set()),
        ({"compiled": CompileCounts(9, 9, 5, 4, 0)}, {Need.GRAPH_BREAKS}),
        ({"compiled": CompileCounts(9, 9, 1, 0, 1)}, {Need.RECOMPILES_SEEN}),
        ({"loader": LoaderSettings(0, True, UNTOLD, False, 8)}, {Need.TORCH_LOADER, Need.BATCHES_PINNED}),
        ({"loader": LoaderSettings(2, False, 2, True, 8)}, {Need.TORCH_LOADER, Need.WORKERS_KEPT}),
        ({"matmul_tf32": True}, {Need.TF32_ALLOWED}),
        ({"matmul_tf32": False}, set()),
        ({"autocast": True}, {Need.AUTOCAST_ON}),
        ({"autocast": False}, set()),
        ({"ddp": DDP}, {Need.DDP_IN_STACK, Need.FIND_UNUSED_OFF}),
        ({"ddp": replace(DDP, find_unused=True)}, {Need.DDP_IN_STACK, Need.FIND_UNUSED_ON}),
        ({"ddp": replace(DDP, buckets=12)}, {Need.DDP_IN_STACK, Need.FIND_UNUSED_OFF, Need.SMALL_BUCKETS}),
        ({"fsdp": FSDP1}, {Need.FSDP_IN_STACK, Need.FSDP1_IN_USE, Need.GATHERS_LIMITED}),
        ({"fsdp": UNLIMITED}, {Need.FSDP_IN_STACK, Need.FSDP1_IN_USE, Need.GATHERS_UNLIMITED}),
        ({"fsdp": FSDP2}, {Need.FSDP_IN_STACK, Need.FSDP2_IN_USE}),
        ({"allocator": AllocatorFigures(1, 1, 0, 1, 1, 7, 0, UNTOLD)}, set()),
    ],
)
def test_settings_prove_what_they_say(fields, needs):
    scene = scene_of(told(**fields))
    assert observe_settings(scene) - DONE == needs
    assert needs <= observe(scene, SUSPECT)


@pytest.mark.parametrize(("key", "need"), [("matmul_tf32", Need.TF32_ALLOWED), ("cudnn_benchmark", Need.BENCHMARK_ON)])
def test_what_speaks_against_a_remedy_holds_only_where_every_rank_says_so_after_its_first_steps(key, need):
    on, off = {key: True}, {key: False}
    assert observe_settings(scene_of(told(on))) == observe_settings(scene_of(told(on, on))) == {need}
    assert observe_settings(scene_of(told(on, off))) == set()
    hook = make_hook(settings=make_settings(**(NOTHING | on | {"compiled": CompileCounts(9, 9, 5, 4, 1)})))
    young = with_hooks(make_frame(), replace(hook, counts=replace(hook.counts, steps=3)))
    assert observe_settings(scene_of(young)) == observe_settings(scene_of(make_frame())) == set()


def texts_of(kind: Kind, cause: str, seen: set[Need], **fields: Any) -> dict[str, str]:
    """Return what is advised for one run whose hook tells ``fields``: the remedies with their texts."""
    needs = observe_settings(scene_of(told(**fields))) | seen
    return {one.remedy.id: one.text for one in choose(kind, cause, needs, RunFacts())}


def test_a_setting_that_is_right_already_is_not_advised():
    row, unused = (Kind.COMMS_BOUND, "transfer"), "find-unused-off"
    assert unused not in texts_of(*row, set(), ddp=DDP)
    on = texts_of(*row, set(), ddp=replace(DDP, find_unused=True))[unused]
    assert on == "if every parameter gets a gradient in every step: switch off find_unused_parameters"
    assert texts_of(*row, set())[unused].startswith("if the model is wrapped in DistributedDataParallel and ")
    # No reading tells gradient_as_bucket_view: where it is on already, the remedy must not be certain.
    view = texts_of(*row, {Need.DDP_IN_STACK})["gradient-as-bucket-view"]
    assert view.startswith("if gradient_as_bucket_view is off: ")
    compute = {Need.GPU_PRESENT, Need.FP32_MATMUL_SEEN, Need.TENSOR_CORES_IDLE}
    assert "tf32" in texts_of(Kind.COMPUTE_BOUND, "gpu", compute, matmul_tf32=False)
    assert "tf32" not in texts_of(Kind.COMPUTE_BOUND, "gpu", compute, matmul_tf32=True)
    assert not {"tf32", "bf16"} & texts_of(Kind.COMPUTE_BOUND, "gpu", compute, autocast=True).keys()
    copies, pinned = {Need.GPU_PRESENT, Need.COPY_IN_STACK}, LoaderSettings(0, True, UNTOLD, False, 8)
    found = texts_of(Kind.SYNC_BOUND, "implicit", copies, loader=pinned)
    assert "non-blocking-copy" in found
    assert "pin-memory" not in found
    kept = texts_of(Kind.DATA_BOUND, "respawn", {Need.RESPAWN_SEEN}, loader=LoaderSettings(2, False, 2, True, 8))
    assert next(iter(kept)) == "one-loader"


def test_the_limit_of_gathers_is_advised_only_to_who_has_it_otherwise():
    row, seen = (Kind.SYNC_BOUND, "allocator"), {Need.ALLOCATOR_RETRIES}
    assert texts_of(*row, seen, fsdp=UNLIMITED)["limit-all-gathers"] == "keep limit_all_gathers=True"
    assert "limit-all-gathers" not in texts_of(*row, seen, fsdp=FSDP1)
    assert "limit-all-gathers" not in texts_of(*row, seen, fsdp=FSDP2)
    row, seen = (Kind.COMMS_BOUND, "transfer"), {Need.GPU_MEMORY_FREE, Need.SYNC_IN_STACK}
    assert texts_of(*row, seen, fsdp=FSDP1)["unlimit-all-gathers"].startswith("let FSDP's host run ahead")
    assert "unlimit-all-gathers" not in texts_of(*row, seen, fsdp=UNLIMITED)
    assert "unlimit-all-gathers" not in texts_of(*row, seen, fsdp=FSDP2)
    assert texts_of(*row, seen, fsdp=FSDP2)["fsdp-keep-parameters"].startswith("keep parameters")


def test_counters_that_rise_while_it_trains_are_seen():
    def changed(before: Frame, after: Frame) -> frozenset[Need]:
        return observe_settings(see([*hold(before, 12)[:-1], after])) - DONE

    figures = AllocatorFigures(1, 1, 0, 1, 1, 7, 0, UNTOLD)
    before, after = told(allocator=figures), told(allocator=replace(figures, alloc_retries=9))
    assert changed(before, after) == {Need.ALLOCATOR_RETRIES}
    counts = CompileCounts(4, 4, 1, 0, 0)
    again = told(compiled=replace(counts, frames=6, frames_ok=6))
    assert changed(told(compiled=counts), again) == {Need.RECOMPILES_SEEN}
    whole, again = (told(compiled=CompileCounts(0, 0, graphs, 0, 0)) for graphs in (1, 3))
    assert changed(whole, again) == {Need.RECOMPILES_SEEN}


# what is done already is offered no more, not even behind an "if"

CALM = AllocatorFigures(1, 1, 0, 1, 1, 0, 0, UNTOLD)
LOADER = LoaderSettings(2, False, DEEP_PREFETCH, True, 8)
MANY = DdpSettings(25 * MIB, 12, find_unused=False, static_graph=False)


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, set()),
        ({"compiled": CompileCounts(0, 0, 0, 0, 0)}, {Need.NOTHING_COMPILED}),
        ({"compiled": CompileCounts(9, 0, 0, 0, 0)}, set()),
        ({"compiled": CompileCounts(9, 9, 1, 2, 0)}, {Need.MODEL_COMPILED, Need.FEW_BREAKS}),
        ({"compiled": CompileCounts(0, 0, 1, 0, 0)}, {Need.MODEL_COMPILED, Need.FEW_BREAKS}),
        ({"compiled": CompileCounts(9, 9, 5, 3, 0)}, {Need.MODEL_COMPILED}),
        ({"cudnn_benchmark": True}, {Need.BENCHMARK_ON}),
        ({"cudnn_benchmark": False}, set()),
        ({"cudnn_deterministic": True}, {Need.DETERMINISTIC_ON}),
        ({"deterministic": True}, {Need.DETERMINISTIC_ON}),
        ({"allocator": CALM}, {Need.NO_RETRIES}),
        ({"allocator": replace(CALM, alloc_retries=1)}, set()),
        ({"ddp": MANY}, set()),
        ({"ddp": replace(MANY, buckets=2)}, {Need.LARGE_BUCKETS}),
        ({"ddp": replace(MANY, bucket_cap_bytes=100 * MIB)}, {Need.LARGE_BUCKETS}),
        ({"loader": LOADER}, {Need.PREFETCH_DEEP}),
        ({"loader": replace(LOADER, prefetch_factor=2)}, set()),
        ({"loader": replace(LOADER, prefetch_factor=UNTOLD)}, set()),
    ],
)
def test_settings_prove_what_is_done(fields, needs):
    scene = scene_of(told(fields))
    assert observe_settings(scene) & DONE == needs
    assert needs <= observe(scene, SUSPECT)


COMPILED = {"compiled": CompileCounts(9, 9, 1, 0, 0)}
EAGER = {"compiled": CompileCounts(0, 0, 0, 0, 0)}
COMPUTE = (Kind.COMPUTE_BOUND, "gpu-compute")
TRANSFER = (Kind.COMMS_BOUND, "transfer")


@pytest.mark.parametrize(
    ("name", "row", "done"),
    [
        ("torch-compile", (Kind.LAUNCH_BOUND, "tiny-kernels"), COMPILED),
        ("torch-compile", COMPUTE, COMPILED),
        ("compile-max-autotune", COMPUTE, EAGER),
        ("compile-fullgraph", COMPUTE, EAGER),
        ("compile-fullgraph", COMPUTE, COMPILED),
        ("recompilation-trap", (Kind.LAUNCH_BOUND, "main-thread"), EAGER),
        ("cudnn-benchmark", COMPUTE, {"cudnn_benchmark": True}),
        ("cudnn-benchmark", COMPUTE, {"deterministic": True}),
        ("expandable-segments", (Kind.MEMORY_PRESSURE, "gpu"), {"allocator": CALM}),
        ("limit-all-gathers", (Kind.MEMORY_PRESSURE, "gpu"), {"allocator": CALM}),
        ("ddp-buckets", TRANSFER, {"ddp": replace(MANY, buckets=2)}),
        ("persistent-workers", (Kind.DATA_BOUND, "respawn"), {"loader": LOADER}),
        ("prefetch-factor", (Kind.DATA_BOUND, "periodic"), {"loader": LOADER}),
        ("pin-memory", (Kind.SYNC_BOUND, "implicit"), {"loader": replace(LOADER, pin_memory=True)}),
        ("find-unused-off", TRANSFER, {"ddp": MANY}),
    ],
)
def test_what_is_done_is_not_offered(name, row, done):
    def list_ids(frame):
        observed = observe(scene_of(frame), SUSPECT) | {Need.GPU_PRESENT, Need.WORKERS_PRESENT}
        return {one.remedy.id for one in choose(*row, observed - {Need.NO_WORKERS}, RunFacts())}

    plain = make_settings(**(NOTHING | {"autocast": False, "matmul_tf32": False}))
    open_still = with_hooks(make_frame(), make_hook(settings=plain))
    told_done = with_hooks(make_frame(), make_hook(settings=replace(plain, **done)))
    assert name in list_ids(open_still)
    assert name not in list_ids(told_done)


# hangs: a peer, a lock on a file, a queue, a process, a thread

GET = (MAIN, TRAIN, StackFrame("get", f"{LIB}/queue.py", 171))
JOIN = (MAIN, TRAIN, StackFrame("join", f"{LIB}/multiprocessing/process.py", 149))
EXIT = (StackFrame("_shutdown", f"{LIB}/threading.py", 1590),)
FEED = (MAIN, StackFrame("fetch_from_store", "/run/prefetch.py", 30))
HELD = WaitTarget("flock", 3, WaitKind.FILE, "/data/cache.lock", "/", "ext4", NOT_APPLICABLE)
CHILD = replace(PIPE, call="wait4", fd=NOT_APPLICABLE, kind=WaitKind.OTHER, name="process 777")


def by(target: WaitTarget, *ends: tuple[int, str]) -> WaitTarget:
    """Add who has the other end."""
    return replace(target, others=tuple(OtherEnd(pid, NOT_APPLICABLE, name) for pid, name in ends))


def hang(*others: Any, dead: tuple[DeadChild, ...] = (), **fields: Any) -> Finding:
    return conclude(stand(make_rank(0, *others, **fields), log_age_s=None, dead=dead), asked_s=30.0)


def test_a_socket_is_no_mount_its_peer_is_named_and_a_time_limit_advised():
    finding = hang(frames=IN_LOCK, waits_for="socket receive", waits_on=PEER, call="recvfrom")
    assert finding.cause == "blocked-io"
    assert "check whether 10.0.0.7:443 still answers" in finding.try_
    assert "ss -tnpo | grep pid=4000," in finding.try_
    assert "mount" not in finding.try_
    known = hang(frames=IN_LOCK, waits_for="socket receive", waits_on=by(PEER, (88, "store")), call="recvfrom")
    assert "10.0.0.7:443 (store 88)" in known.try_


def test_a_lock_on_a_file_is_held_by_a_process_that_is_named_also_outside_of_the_job():
    finding = hang(frames=IN_LOCK, waits_for="locks_lock_inode_wait", waits_on=by(HELD, (30656, "flock")))
    assert finding.cause == "lock"
    assert "flock of /data/cache.lock on ext4 (/), which flock (30656) holds" in finding.summary
    assert "cannot be seen: no other thread" not in finding.summary
    assert "free the lock on the file: process 30656 holds it: ps -o " in finding.try_
    nobody = hang(frames=IN_LOCK, waits_for="locks_lock_inode_wait", waits_on=replace(HELD, others=()))
    assert "which no process that can be seen from here holds" in nobody.summary
    assert "free the lock on the file: another process holds it: cat /proc/locks" in nobody.try_
    waits = make_rank(0, frames=IN_LOCK, waits_for="locks", waits_on=by(HELD, (4010, "rank 1")))
    holder = make_rank(1, frames=FEED, waits_for="sleep", wchan="hrtimer_nanosleep")
    beside = conclude(stand(waits, holder, log_age_s=None), asked_s=30.0)
    assert beside.cause == "lock"
    assert "which rank 1 (4010) holds; rank 1 is in fetch_from_store prefetch.py:30" in beside.summary


def test_a_queue_that_nobody_feeds_is_no_matter_of_the_order_of_locks_and_a_semaphore_is():
    finding = hang(frames=GET)
    assert finding.cause == "lock"
    assert "nothing comes, and no other thread of it runs the program" in finding.summary
    assert "find what should feed the queue" in finding.try_
    fed = hang(thread(7, FEED, name="feeder", waits_for="sleep"), frames=GET)
    assert "nothing comes: thread feeder (7) is in fetch_from_store prefetch.py:30" in fed.summary
    semaphore = hang(frames=(MAIN, TRAIN, StackFrame("acquire", f"{LIB}/threading.py", 507)))
    assert "read the variables at the line where it stands" in semaphore.try_, "nobody else may hold it"
    waits = (MAIN, TRAIN, StackFrame("acquire", f"{LIB}/threading.py", 507))
    held = hang(thread(7, FEED, name="feeder", waits_for="sleep"), frames=waits)
    assert "lock.acquire" in held.try_


@pytest.mark.parametrize(
    ("function", "file"),
    [("join", "threading.py"), ("wait", "threading.py"), ("result", "concurrent/futures/_base.py")],
)
def test_who_waits_for_a_thread_or_an_event_is_not_sent_to_a_queue(function, file):
    finding = hang(frames=(MAIN, TRAIN, StackFrame(function, f"{LIB}/{file}", 300)))
    assert finding.cause == "lock"
    assert "it does not end, and no other thread of it runs the program" in finding.summary
    assert "queue" not in finding.try_
    assert "lock.acquire" not in finding.try_


def test_a_thread_that_is_left_is_to_be_a_daemon_or_joined():
    finding = hang(thread(7, FEED), frames=EXIT)
    assert finding.cause == "lock"
    assert "daemon=True" in finding.try_
    assert "lock.acquire" not in finding.try_


def test_who_waits_for_the_end_of_a_process_is_sent_to_look_at_that_one_and_a_dead_one_is_told_from_it():
    joins = {"frames": JOIN, "waits_for": "child process", "waits_on": by(CHILD, (777, "python"))}
    finding = hang(**joins)
    assert finding.cause == "no-progress"
    assert "waits for process 777 (python) to end" in finding.summary
    assert "look at process 777, which it waits for" in finding.try_
    dead = DeadChild(778, 4000, "python", "SIGSEGV")
    finding = hang(dead=(dead,), **joins)
    assert finding.cause == "dead-worker"
    assert "waits for process 777 (python) to end" in finding.summary
    assert "another process that it started is dead (778: SIGSEGV)" in finding.summary
    assert [row.text for row in finding.evidence if row.name == "dead process 778"] == ["python, SIGSEGV"]
    same = hang(dead=(replace(dead, pid=777),), **joins)
    assert "a process that is dead (777: SIGSEGV)" in same.summary
    run = (MAIN, TRAIN, StackFrame("run", f"{LIB}/subprocess.py", 550))
    untold = conclude(stand(make_rank(0, frames=run, waits_for="child process"), seconds=80, log_age_s=None))
    assert untold.cause == "no-progress"
    assert "which it waits for" not in untold.try_


@pytest.mark.parametrize(
    ("ends", "advised"),
    [(((4711, "python"),), "look at process 4711, which it waits for"), ((), "no process has it open")],
)
def test_a_pipe_leads_to_who_has_its_other_end_or_to_what_is_not_there(ends, advised):
    finding = hang(frames=IN_LOCK, waits_for="pipe read", waits_on=by(PIPE, *ends), call="read")
    assert advised in finding.try_


def test_the_rank_that_the_others_wait_for_is_the_one_to_look_at():
    ranks = [make_rank(rank) for rank in (0, 1)]
    naps = make_rank(2, frames=FEED, waits_for="sleep", wchan="hrtimer_nanosleep")
    finding = conclude(stand(*ranks, naps, log_age_s=None), asked_s=30.0)
    assert finding.cause == "missing-rank"
    assert "look at rank 2, which the others wait for" in finding.try_
    assert "tpmon dump 4020 --rank 2" in finding.try_
    asks = make_rank(2, frames=IN_LOCK, waits_for="socket receive", waits_on=PEER, call="recvfrom")
    finding = conclude(stand(*ranks, asks, log_age_s=None))
    assert "check whether 10.0.0.7:443 still answers" in finding.try_


@pytest.mark.parametrize(
    ("words", "need"),
    [
        ("socket receive", Need.SOCKET_WAIT),
        ("TCP socket", Need.SOCKET_WAIT),
        ("FIFO without a partner", Need.NOBODY_AT_PIPE),
        ("pipe read", Need.PROCESS_WAIT),
        ("NFS", Need.BLOCKED_READ),
    ],
)
def test_without_a_target_the_word_of_the_kernel_decides(words, need):
    assert need_of_wait(wait_of(words)) is need
