"""On a machine with an NVIDIA GPU: a kernel that does not end is a hang, a card at work never is."""

from __future__ import annotations

import time

import psutil
import pytest

from tests.gpu.running import run_tpmon, train
from tests.hangs.judging import list_false_alarms
from tests.programs.causes.running import Verdict, watch

pytestmark = [pytest.mark.usefixtures("card", "sampling_works"), pytest.mark.long]

TRAINS_S = 15.0
"""At most, from the first reading to the hang."""
BY_SMS_S = 45.0
"""30 s after its hang, where the card's SM activity is read, and 15 s for the looks at its stacks."""
BY_POWER_S = 90.0
"""75 s and the same, where the power alone tells a card that does nothing."""
HEALTHY_S = 60.0
LEAST_READINGS = 40
LEAST_CPU_RATIO = 0.8


def is_hung(verdict: Verdict) -> bool:
    return verdict.kind == "hung"


def test_a_kernel_that_does_not_end_is_told_as_a_wait_for_the_gpu() -> None:
    with train("hang-in-kernel") as one:
        cards = run_tpmon("attach", str(one.pid), "--once", "--json")["gpus"]
        assert isinstance(cards, list), cards
        if any(card["mig"] is True for card in cards):
            pytest.skip("the card is cut into MIG slices, of which no utilisation is read")
        mine = [card for card in cards if one.pid in card["pids"]] or cards
        has_sms = all(isinstance(card["sm_active_pct"], (int, float)) for card in mine)
        limit_s = BY_SMS_S if has_sms else BY_POWER_S
        verdicts, _ = watch(one.pid, TRAINS_S + limit_s, is_hung)
        told_s = time.monotonic()
        hung_s = float(one.hear("hangs")[0])
    last = verdicts[-1]
    assert (last.kind, last.cause) == ("hung", "gpu-wait"), last.document
    assert 0 < told_s - hung_s <= limit_s, f"told {told_s - hung_s:.0f} s after its hang, SMs read: {has_sms}"


def test_a_main_thread_pegged_in_synchronize_over_a_card_at_work_is_never_hung() -> None:
    with train("peg-host") as one:
        begun_s, before_s = time.monotonic(), read_main_cpu_s(one.pid)
        verdicts, _ = watch(one.pid, HEALTHY_S)
        ratio = (read_main_cpu_s(one.pid) - before_s) / (time.monotonic() - begun_s)
    assert ratio >= LEAST_CPU_RATIO, "the main thread does not spin, so nothing was tried"
    assert len(verdicts) >= LEAST_READINGS
    assert list_false_alarms(verdicts) == ()


def read_main_cpu_s(pid: int) -> float:
    return next(one.user_time + one.system_time for one in psutil.Process(pid).threads() if one.id == pid)
