"""A run k times as slow, its shares the same: whatever is judged by shares and ratios is judged alike.

Left out are the rules that compare with a rate or a time on purpose: reads and faults a second (storage,
memory), bytes over links (transfer, what a full card exchanges), what stands still or is young.
"""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.any_windows import likely_windows
from tpmon.judge.features.snapshot import Rule, Scene, see
from tpmon.judge.rules import cards as rules_cards
from tpmon.judge.rules import cpu as rules_cpu
from tpmon.judge.rules import data as rules_data
from tpmon.judge.rules import gpu as rules_launch
from tpmon.judge.rules import health as rules_healthy
from tpmon.judge.rules import lifecycle as rules_progress
from tpmon.judge.rules import loader as rules_loader
from tpmon.judge.rules import python as rules_python
from tpmon.judge.rules.comms import judge_straggler
from tpmon.judge.rules.cpu import judge_worker_affinity
from tpmon.judge.rules.gpu import judge_gpu_compute
from tpmon.judge.stacks.profile import read_phases
from tpmon.model.frame import Frame
from tpmon.model.known import is_known, known_or, map_known

RULES: tuple[Rule, ...] = (
    *rules_data.RULES,
    *rules_loader.RULES,
    *rules_python.RULES,
    *rules_cards.RULES,
    *rules_launch.LAUNCH_RULES,
    *rules_healthy.RULES,
    rules_cpu.judge_quota,
    rules_cpu.judge_oversubscription,
    judge_straggler,
    judge_worker_affinity,
    judge_gpu_compute,
    rules_progress.judge_checkpoint,
    rules_progress.judge_validation,
)
OF_LINKS = (judge_gpu_compute, rules_launch.judge_launch_bound)
"""Rules that ask whether ranks exchange data, which a rate of their links tells: those links stay as they are."""


def _slower(sample: Any, k: float) -> Any:
    """Divide every rate of a sample, which ends in "_s", by k; ages and sums of time stay."""
    kept = ("pss_age_s", "waits_unchanged_s", "throttled_s", "age_s")
    names = [one for one in sample.__dataclass_fields__ if one.endswith("_s") and one not in kept]
    return replace(sample, **{name: map_known(lambda rate: rate / k, getattr(sample, name)) for name in names})


def slow_down(frame: Frame, k: float) -> Frame:
    """Make everything in a Frame k times as slow: rates fall, shares stay."""
    gpus, network = frame.gpus, frame.network
    return replace(
        frame,
        processes=tuple(_slower(one, k) for one in frame.processes),
        memory=_slower(frame.memory, k),
        gpus=tuple(_slower(one, k) for one in gpus) if is_known(gpus) else gpus,
        network=tuple(_slower(one, k) for one in network) if is_known(network) else network,
    )


def scene_of(frames: list[Frame]) -> Scene:
    slices = [one for frame in frames for one in known_or(frame.stacks, ())]
    return see(frames, read_phases(slices, frames[-1].taken_ns) if slices else {})


@given(likely_windows(seconds=14, hooks=False), st.sampled_from((0.01, 0.3, 3.0, 100.0)))
def test_a_run_k_times_as_slow_gets_the_same_answers(frames, k):
    plain, slow = scene_of(frames), scene_of([slow_down(one, k) for one in frames])
    same_links = scene_of([replace(slow_down(one, k), gpus=one.gpus, network=one.network) for one in frames])
    for rule in RULES:
        other = same_links if rule in OF_LINKS else slow
        assert rule(plain) == rule(other), getattr(rule, "__name__", rule)
