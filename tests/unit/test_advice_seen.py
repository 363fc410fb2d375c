"""What was looked for and not seen is no "if": stacks, ranks, and who is to be looked at."""

from __future__ import annotations

from tests.frames import make_frame, make_process, make_target
from tests.judging import make_phases, scene_of
from tpmon.judge.advice import choose
from tpmon.judge.advice_facts import Facts
from tpmon.judge.advice_needs import Need
from tpmon.judge.observe import observe
from tpmon.judge.phases import Phase, RankPhases
from tpmon.judge.suspicion import Suspicion
from tpmon.model.process import Setting
from tpmon.model.verdict import Kind

SUSPECT = Suspicion(Kind.LAUNCH_BOUND, "main-thread", 0.5, 2.0, frozenset(("a",)), "text", ())
RANKS = (make_process(4211, rank=0), make_process(4212, rank=1))


def see_needs(*phases: RankPhases, world: int = 2) -> frozenset[Need]:
    frame = make_frame(processes=RANKS, target=make_target(world_size=world))
    return observe(scene_of(frame, phases), SUSPECT)


def test_stacks_were_read_where_every_rank_has_enough_samples() -> None:
    plain = {Phase.FORWARD: 0.4, Phase.BACKWARD: 0.4, Phase.OTHER: 0.2}
    both = [make_phases(plain, pid) for pid in (4211, 4212)]
    assert Need.STACKS_READ in see_needs(*both)
    assert Need.STACKS_READ not in see_needs(both[0])
    assert Need.STACKS_READ not in see_needs(both[0], make_phases(plain, 4212, samples=19))


def test_what_stacks_would_have_shown_is_no_if() -> None:
    row = (Kind.LAUNCH_BOUND, "tiny-kernels")
    gpu = {Need.GPU_PRESENT}
    unread = {one.remedy.id for one in choose(*row, frozenset(gpu), Facts())}
    read = {one.remedy.id for one in choose(*row, frozenset(gpu | {Need.STACKS_READ}), Facts())}
    assert unread - read == {"more-at-once"}
    row = (Kind.LAUNCH_BOUND, "main-thread")
    read = {one.remedy.id for one in choose(*row, frozenset(gpu | {Need.STACKS_READ}), Facts())}
    assert "log-rarely" not in read
    assert "sync-rarely" in read, ".item() runs in C: no stack shows it"


def test_ranks_run_elsewhere_where_the_world_is_larger_than_what_is_here() -> None:
    assert Need.RANKS_ELSEWHERE in see_needs(world=16)
    assert Need.RANKS_ELSEWHERE not in see_needs(world=2)


def test_nobody_is_sent_to_look_at_a_rank_that_has_no_number() -> None:
    row = (Kind.COMMS_BOUND, "straggler")
    assert "look-at-late-rank" not in {one.remedy.id for one in choose(*row, frozenset(), Facts())}
    named = choose(*row, frozenset((Need.RANK_BEHIND,)), Facts(pid=4212, rank=1))[0]
    assert (named.remedy.id, named.certain) == ("look-at-late-rank", True)


def test_settings_that_switch_a_path_of_nccl_off_are_seen_in_any_rank() -> None:
    taken = (RANKS[0], make_process(4212, rank=1, environment=(Setting("NCCL_P2P_DISABLE", "1"),)))
    kept = (RANKS[0], make_process(4212, rank=1, environment=(Setting("NCCL_P2P_DISABLE", "0"),)))
    assert Need.NCCL_PATH_OFF in observe(scene_of(make_frame(processes=taken)), SUSPECT)
    assert Need.NCCL_PATH_OFF not in observe(scene_of(make_frame(processes=kept)), SUSPECT)


def test_a_setting_counts_only_where_its_path_would_be_taken() -> None:
    def is_seen(name: str, ranks: int, world: int) -> bool:
        processes = tuple(
            make_process(4211 + rank, rank=rank, environment=(Setting(name, "1"),)) for rank in range(ranks)
        )
        frame = make_frame(processes=processes, target=make_target(world_size=world))
        return Need.NCCL_PATH_OFF in observe(scene_of(frame), SUSPECT)

    assert is_seen("NCCL_IB_DISABLE", 2, 16)
    assert not is_seen("NCCL_IB_DISABLE", 2, 2)
    assert is_seen("NCCL_SHM_DISABLE", 2, 2)
    assert not is_seen("NCCL_SHM_DISABLE", 1, 8)
    assert is_seen("TORCH_NCCL_BLOCKING_WAIT", 1, 8)
