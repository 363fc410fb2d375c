"""Build what hooks tell, for tests: a rank that takes 4 steps of 250 ms a second unless a field says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tpmon.model.frame import Frame
from tpmon.model.hook import HookPatch, HookSample, HookState, LoopPhase, StepCounts, StepPace, StepRule, join_paces
from tpmon.model.known import Known, is_known
from tpmon.model.process import RankRow


def make_pace(pid: int = 4211, **fields: Any) -> StepPace:
    """Build the pace of rank 0: 4 steps/s of 32 samples, a fifth of them data."""
    plain = StepPace(
        pid=pid,
        rank=0,
        ranks=1,
        rule=StepRule.BATCH_AFTER_UPDATE,
        count=2840,
        eval_count=0,
        span_s=10.0,
        rate_hz=4.0,
        eval_hz=0.0,
        samples_hz=128.0,
        timed=240,
        p50_ms=248.0,
        p95_ms=270.0,
        p99_ms=312.0,
        longest_ms=340.0,
        slowest_ms=251.0,
        step_age_s=0.1,
        data_pct=20.0,
        forward_pct=24.0,
        backward_pct=46.0,
        optimizer_pct=8.0,
        other_pct=2.0,
        own_ms=110.0,
        eval_pct=0.0,
    )
    return replace(plain, **fields)


def make_hook(pid: int = 4211, **fields: Any) -> HookSample:
    """Build the hook of rank 0, in the forward of a step."""
    pace = make_pace(pid, rank=fields.get("rank", 0))
    plain = HookSample(
        pid=pid,
        rank=0,
        state=HookState.RUNNING,
        error="",
        hook_version="1.0",
        rule=StepRule.BATCH_AFTER_UPDATE,
        patches=(HookPatch.DATA, HookPatch.BACKWARD, HookPatch.OPTIMIZER),
        counts=StepCounts(2840, 0, 2841, 2840, 2840, 2840, 0, 90_880, 0, 0),
        batch_size=32,
        phase=LoopPhase.FORWARD,
        phase_s=0.03,
        marks=(),
        lost_records=0,
        pace=pace,
    )
    return replace(plain, **fields)


def split_of(data: float) -> dict[str, float]:
    """Return the shares of a step that waits ``data`` percent for its batch; backward takes most of the rest."""
    left = 100.0 - data
    return {
        "data_pct": data,
        "forward_pct": left * 0.3,
        "backward_pct": left * 0.6,
        "optimizer_pct": left * 0.08,
        "other_pct": left * 0.02,
    }


def _put(row: RankRow, pace: Known[StepPace]) -> RankRow:
    if not is_known(pace):
        return replace(row, step=pace, step_age_s=pace)
    return replace(row, step=pace.count, step_age_s=pace.step_age_s, step_ms=pace.p50_ms, step_own_ms=pace.own_ms)


def with_hooks(frame: Frame, *hooks: HookSample) -> Frame:
    """Put hooks into a Frame: the group, the job's steps, the rows of the ranks, the age."""
    paces = {one.pid: one.pace for one in hooks}
    rows = tuple(_put(row, paces[row.pid]) if row.pid in paces else row for row in frame.ranks)
    return replace(
        frame,
        hook=hooks,
        steps=join_paces(hooks),
        ranks=rows,
        ages_s=replace(frame.ages_s, hook=0.0),
        sources=replace(frame.sources, hook=f"the hook's page in {len(hooks)} of {len(rows)} ranks"),
    )
