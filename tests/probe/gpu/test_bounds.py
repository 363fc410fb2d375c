"""What readings of a card can be, and which of the same second cannot both be so: tables, no NVML."""

from dataclasses import fields, replace

import pytest

from tests.frames import make_gpu
from tpmon.model.gpu import GpuProcess, GpuSample
from tpmon.model.known import Missing, is_known
from tpmon.probe.gpu.bounds import LIMITS, READINGS, bound_sample, hold_against

BUSY = make_gpu(
    sm_pct=97.0,
    sm_active_pct=91.0,
    power_w=610.0,
    power_limit_w=700.0,
    sm_clock_mhz=1755.0,
    sm_clock_max_mhz=1980.0,
    memory_used_bytes=30,
    memory_total_bytes=80,
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    pcie_tx_bytes_s=3e9,
    pcie_rx_bytes_s=1e9,
    processes=(GpuProcess(1, 20, 60.0, True), GpuProcess(2, 10, 0.0, False)),
)
UNBOUNDED = {"age_s", "index", "sm_samples"}


def test_every_number_that_a_driver_says_has_a_bound():
    numbers = {
        field.name
        for field in fields(GpuSample)
        if field.type in ("Known[float]", "Known[int]", "float", "int") and field.name not in UNBOUNDED
    }
    assert numbers == {name for names, *_ in (*LIMITS, *READINGS) for name in names}


def test_a_sound_sample_stays_as_it_is():
    assert hold_against(bound_sample(BUSY), [610.0], is_pcie=True, computed=False) == BUSY


@pytest.mark.parametrize("wild", [-1e12, 1e13, 2.0**64])
@pytest.mark.parametrize("name", sorted({name for names, *_ in (*LIMITS, *READINGS) for name in names}))
def test_a_wild_value_is_named_with_its_bound(name, wild):
    if name == "memory_total_bytes" and 0 < wild < 2**46:
        return
    found = getattr(bound_sample(replace(BUSY, **{name: wild})), name)
    assert isinstance(found, Missing)
    assert f"{wild:.6g}" in found.reason
    assert found.reason.endswith("can be")


@pytest.mark.parametrize(
    ("changes", "reading", "reason"),
    [
        ({"power_w": 911.0}, "power_w", "the driver says 911 W, at most 910 can be"),
        ({"power_w": 0.0}, "power_w", "the driver says 0 W, at least 0.1 can be"),
        ({"power_w": 6000.0, "power_limit_w": 9e9}, "power_w", "the driver says 6000 W, at most 5000 can be"),
        ({"sm_clock_mhz": 3000.0}, "sm_clock_mhz", "the driver says 3000 MHz, at most 2970 can be"),
        ({"memory_used_bytes": 81}, "memory_used_bytes", "the driver says 81 bytes, at most 80 can be"),
        ({"pcie_width": 32}, "pcie_width", "the driver says 32 lanes, at most 16 can be"),
        ({"pcie_tx_bytes_s": 8e10}, "pcie_tx_bytes_s", "the driver says 8e+10 bytes/s, at most 7.68e+10 can be"),
    ],
)
def test_one_reading_bounds_another(changes, reading, reason):
    assert getattr(bound_sample(replace(BUSY, **changes)), reading) == Missing(reason)


def test_a_garbled_pid_makes_the_list_doubtful():
    sample = bound_sample(replace(BUSY, processes=(GpuProcess(1 << 31, 1, 1.0, False),)))
    assert sample.processes == sample.pids == Missing("the driver lists PID 2147483648, at most 4194304 can be")


NO = Missing("not told")
IDLE, ONE_LANE = {"sm_pct": 0.0, "sm_active_pct": NO}, {"pcie_generation": 1, "pcie_width": 1}
UTILISATION = ("sm_pct", "sm_idle_ratio", "sm_busy_ratio", "memory_busy_pct")


@pytest.mark.parametrize(
    ("changes", "drawn_w", "denied", "reason"),
    [
        ({"sm_pct": 0.0}, NO, UTILISATION, "the driver says 0 %, but SMs were active 91 % of the time"),
        ({"sm_pct": 50.0}, NO, UTILISATION, "the driver says 50 %, but SMs were active 91 % of the time"),
        ({"sm_pct": 60.0}, NO, (), ""),  # of a card that takes turns of some seconds
        (IDLE, 636.0, UTILISATION, "the driver says 0 %, but the card draws 636 of 700 W"),
        (IDLE, 300.0, (), ""),
        ({**IDLE, "power_limit_w": 40.0}, 31.0, (), ""),  # at rest, at full clock
        ({"sm_pct": 30.0, "sm_active_pct": NO}, 636.0, (), ""),
        ({**IDLE, "power_limit_w": NO}, 636.0, (), ""),
        ({**IDLE, "sm_clock_mhz": 210.0}, 636.0, (), ""),
        (ONE_LANE, NO, tuple(ONE_LANE), "the driver says generation 1 x1, but 3 GB/s went over it"),
        ({"pcie_generation": 1, "pcie_width": 16}, NO, (), ""),
    ],
)
def test_readings_of_one_second_are_held_against_each_other(changes, drawn_w, denied, reason):
    sample = replace(BUSY, power_w=drawn_w, **changes)
    held = hold_against(sample, [NO, drawn_w], is_pcie=NO, computed=True)
    different = {field.name for field in fields(GpuSample) if getattr(held, field.name) != getattr(sample, field.name)}
    assert different == set(denied) | ({"sm_samples"} if "sm_pct" in denied else set())
    assert {getattr(held, name) for name in denied} == ({Missing(reason)} if denied else set())


def test_a_card_that_is_not_on_pcie_has_no_link():
    held = hold_against(replace(BUSY, **ONE_LANE), (), is_pcie=False, computed=True)
    none = Missing("the card is not connected by PCIe")
    assert held.pcie_generation == held.pcie_width == held.pcie_generation_max == held.pcie_width_max == none


@pytest.mark.parametrize(
    ("shares", "busy_pct", "computed", "believed"),
    [
        ((0.0, 0.0), 98.0, False, False),
        ((0.0, NO), 98.0, False, False),
        ((0.0, 0.0), 98.0, True, True),
        ((0.0, 0.0), 5.0, False, True),
        ((0.0, 60.0), 98.0, False, True),
        ((NO, NO), 98.0, False, True),
    ],
)
def test_zeros_of_all_processes_beside_a_busy_card_are_no_reading(shares, busy_pct, computed, believed):
    processes = tuple(GpuProcess(pid, 1, share, False) for pid, share in enumerate(shares))
    sample = replace(BUSY, sm_pct=busy_pct, sm_active_pct=NO, processes=processes)
    held = hold_against(sample, (), is_pcie=True, computed=computed)
    if believed:
        assert held.processes == processes
        return
    assert is_known(held.processes)
    why = Missing("the driver says 0 % for each, but the card was busy 98 %")
    assert {one.sm_pct for one in held.processes} == {why}
