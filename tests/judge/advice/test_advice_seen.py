"""What was looked for and not seen is no "if": stacks, ranks, and who is to be looked at."""

from dataclasses import replace

from tests.frames import make_cpu, make_frame, make_memory, make_process, make_target
from tests.judging import make_phases, scene_of
from tpmon.judge.advice.choose import EXPLANATIONS, choose
from tpmon.judge.advice.context import observe
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.stacks.profile import Phase, RankPhases
from tpmon.model.host import ShmSample
from tpmon.model.process import EnvironmentSetting
from tpmon.model.verdict import Kind

SUSPECT = Suspicion(Kind.LAUNCH_BOUND, "main-thread", 0.5, 2.0, frozenset(("a",)), "text", ())
RANKS = (make_process(4211, rank=0), make_process(4212, rank=1))


def see_needs(*phases: RankPhases, world: int = 2) -> frozenset[Need]:
    frame = make_frame(processes=RANKS, target=make_target(world_size=world))
    return observe(scene_of(frame, phases), SUSPECT)


def test_stacks_were_read_where_every_rank_has_enough_samples():
    plain = {Phase.FORWARD: 0.4, Phase.BACKWARD: 0.4, Phase.OTHER: 0.2}
    both = [make_phases(plain, pid) for pid in (4211, 4212)]
    assert Need.STACKS_READ in see_needs(*both)
    assert Need.STACKS_READ not in see_needs(both[0])
    assert Need.STACKS_READ not in see_needs(both[0], make_phases(plain, 4212, samples=19))


def test_what_stacks_would_have_shown_is_no_if():
    row = (Kind.LAUNCH_BOUND, "tiny-kernels")
    gpu = {Need.GPU_PRESENT}
    unread = {one.remedy.id for one in choose(*row, frozenset(gpu), RunFacts())}
    read = {one.remedy.id for one in choose(*row, frozenset(gpu | {Need.STACKS_READ}), RunFacts())}
    assert unread - read == {"more-at-once"}
    row = (Kind.LAUNCH_BOUND, "main-thread")
    read = {one.remedy.id for one in choose(*row, frozenset(gpu | {Need.STACKS_READ}), RunFacts())}
    assert "log-rarely" not in read
    assert "sync-rarely" in read, ".item() runs in C: no stack shows it"


def test_ranks_run_elsewhere_where_the_world_is_larger_than_what_is_here():
    assert Need.RANKS_ELSEWHERE in see_needs(world=16)
    assert Need.RANKS_ELSEWHERE not in see_needs(world=2)


def test_nobody_is_sent_to_look_at_a_rank_that_has_no_number():
    row = (Kind.COMMS_BOUND, "straggler")
    assert "look-at-late-rank" not in {one.remedy.id for one in choose(*row, frozenset(), RunFacts())}
    named = choose(*row, frozenset((Need.RANK_BEHIND,)), RunFacts(pid=4212, rank=1))[0]
    assert (named.remedy.id, named.certain) == ("look-at-late-rank", True)


def test_settings_that_switch_a_path_of_nccl_off_are_seen_in_any_rank():
    taken = (RANKS[0], make_process(4212, rank=1, environment=(EnvironmentSetting("NCCL_P2P_DISABLE", "1"),)))
    kept = (RANKS[0], make_process(4212, rank=1, environment=(EnvironmentSetting("NCCL_P2P_DISABLE", "0"),)))
    assert Need.NCCL_PATH_OFF in observe(scene_of(make_frame(processes=taken)), SUSPECT)
    assert Need.NCCL_PATH_OFF not in observe(scene_of(make_frame(processes=kept)), SUSPECT)


def test_a_setting_counts_only_where_its_path_would_be_taken():
    def is_seen(name, ranks, world):
        processes = tuple(
            make_process(4211 + rank, rank=rank, environment=(EnvironmentSetting(name, "1"),)) for rank in range(ranks)
        )
        frame = make_frame(processes=processes, target=make_target(world_size=world))
        return Need.NCCL_PATH_OFF in observe(scene_of(frame), SUSPECT)

    assert is_seen("NCCL_IB_DISABLE", 2, 16)
    assert not is_seen("NCCL_IB_DISABLE", 2, 2)
    assert is_seen("NCCL_SHM_DISABLE", 2, 2)
    assert not is_seen("NCCL_SHM_DISABLE", 1, 8)
    assert is_seen("TORCH_NCCL_BLOCKING_WAIT", 1, 8)


def test_swap_that_nobody_touches_takes_no_remedy_away():
    lies = make_frame(memory=make_memory(swap_bytes=1 << 30))
    touched = make_frame(memory=make_memory(swap_bytes=1 << 30, major_faults_s=90.0, psi_some_pct=20.0))
    assert Need.SWAP_USED not in observe(scene_of(lies), SUSPECT)
    assert Need.SWAP_USED in observe(scene_of(touched), SUSPECT)


def test_a_pool_is_large_where_more_of_its_threads_work_than_there_are_cores():
    def is_seen(busy, budget):
        frame = make_frame(
            processes=(make_process(busy_threads=busy),), cpu=make_cpu(budget_cores=budget, host_cores=8)
        )
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


def test_what_is_always_known_is_no_if():
    slow = choose(Kind.DATA_BOUND, "one-slow-worker", frozenset(), RunFacts())
    assert not any("stopped" in one.text for one in slow)
    full = choose(Kind.COMPUTE_BOUND, "gpu", frozenset((Need.GPU_PRESENT,)), RunFacts())
    assert "fp16-amp" not in {one.remedy.id for one in full}, "the name of the card says what it can"


def test_bf16_is_no_advice_for_a_cpu():
    assert "bf16" not in EXPLANATIONS[Kind.COMPUTE_BOUND, "cpu"].remedies


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
