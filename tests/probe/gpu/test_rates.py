"""Counters, bits and lines become a GpuSample, whose readings hold against each other: tables, no NVML."""

from collections import deque
from dataclasses import fields, replace

import pytest

from tests.fake_nvml import SECOND_NS
from tests.frames import make_gpu
from tpmon.model.gpu import GpuProcess, GpuSample, GpuState, ThrottleShare
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.probe.gpu.bounds import LIMITS, READINGS, bound_sample, hold_against
from tpmon.probe.gpu.nvml import blank_fast
from tpmon.probe.gpu.rates import CardTrack, mean_power, name_reasons, rate, throttle_shares, without_live
from tpmon.probe.gpu.wire import Busy, CardIdentity, CardLine, CardProcessReading, Counter, Counters, Fast, Health, Slow

ZERO = Counters((0,) * len(Counter), (0,) * len(Counter))
FAST = replace(
    blank_fast("not in this test"),
    busy=Busy(50.0, 6, 0.1, 0.2),
    power_w=300.0,
    temperature_c=61.0,
    memory_used_bytes=30,
    memory_total_bytes=80,
    reasons=0,
    counters=ZERO,
    processes=(CardProcessReading(42, 20, 40.0),),
)


SLOW = Slow(700.0, 2619.0, 25.0, 5, 16, False)
HEALTH = Health(2, True, False, 0)
IDENTITY = CardIdentity("H100", 3, 1980.0, 2619.0, 5, 16, 87.0, True)


def make_line(second: float, fast: Fast = FAST, **changes: object) -> CardLine:
    line = CardLine(
        index=0,
        uuid="GPU-0",
        taken_ns=int(second * SECOND_NS),
        next_s=1.0,
        lost=NOT_APPLICABLE,
        fast=fast,
        slow=NOT_APPLICABLE,
        health=NOT_APPLICABLE,
        identity=NOT_APPLICABLE,
    )
    return replace(line, **changes)


def count(counters: dict[Counter, Known[int]]) -> Counters:
    """Build counters of which the given ones have moved."""
    return replace(ZERO, values=tuple(counters.get(one, 0) for one in Counter))


def count_late(second: int, late_s: float, counters: dict[Counter, Known[int]]) -> CardLine:
    """Build a line whose counters were read so many seconds after it was begun."""
    at_us = (int(late_s * 1e6),) * len(Counter)
    return make_line(second, replace(FAST, counters=replace(count(counters), after_us=at_us)))


def make_window(counters: dict[Counter, list[Known[int]]]) -> list[CardLine]:
    """Build a line a second, in which the named counters take the given values."""
    length = len(next(iter(counters.values())))
    return [
        make_line(second, replace(FAST, counters=count({one: told[second] for one, told in counters.items()})))
        for second in range(length)
    ]


def make_track(*lines: CardLine) -> CardTrack:
    track = CardTrack(deque())
    for line in lines:
        track.add(line)
    return track


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1000, 3500], 2500.0),
        ([0, 1000, 3500], 2500.0),
        ([1000, 1000], 0.0),
        ([5000, 10], Missing("the counter was restarted")),
        ([1000], Missing("first reading")),
        ([Missing("no permission"), 10], Missing("first reading")),
        ([10, Missing("no permission")], Missing("no permission")),
    ],
)
def test_rate_is_of_the_last_second_and_never_negative(values, expected):
    window = make_window({Counter.PCIE_TX: values})
    assert rate(window, Counter.PCIE_TX) == expected


def test_rate_over_a_child_restart_is_not_a_second():
    window = make_window({Counter.PCIE_TX: [0, 1000]})
    late = replace(window[1], taken_ns=60 * SECOND_NS)
    assert rate([window[0], late], Counter.PCIE_TX) == Missing("first reading after a gap")


@pytest.mark.parametrize(
    ("energy", "power", "source"),
    [
        ([0, 412_300], 412.3, "energy counter"),
        ([0, 500_000, 1_012_300], 512.3, "energy counter"),
        ([0], 310.0, "power sensor"),
        ([900_000, 5], 310.0, "power sensor"),
        ([7, 7], 310.0, "power sensor"),
        ([Missing("not supported"), Missing("not supported")], 310.0, "power sensor"),
        # It moves each third reading: neither 0 W nor three times the power.
        ([0, 0, 0, 900_000, 900_000, 900_000, 1_800_000], 300.0, "energy counter"),
        ([0, 0, 0, 900_000, 900_000, 900_000, 1_800_000, 1_800_000], 300.0, "energy counter"),
        ([0, 0, 0, 900_000], 310.0, "power sensor"),
        ([900_000, 1_800_000], 310.0, "power sensor"),
        ([0, 300_000, *[600_000] * 7], 310.0, "power sensor"),
        ([0, 100_000, 1_100_000], 310.0, "power sensor"),
    ],
)
def test_power_comes_from_the_energy_counter_where_it_moves_which_is_held_where_that_is_seldom(energy, power, source):
    lines = [replace(line, fast=replace(line.fast, power_w=310.0)) for line in make_window({Counter.ENERGY: energy})]
    assert mean_power(lines, 700.0) == (power, source)


def test_power_that_nothing_reads_says_why():
    line = make_line(0, replace(FAST, power_w=Missing("no permission")))
    assert mean_power([line], 700.0) == (Missing("no permission"), Missing("no permission"))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x4, ("power cap",)),
        (0x68, ("HW slowdown", "SW thermal", "HW thermal")),
        (0x85, ("power cap", "power brake")),
        (0x602, ("application clocks", "board limit", "reliability")),
        (0x1800, ("unknown reason 0x1800",)),
    ],
)
def test_reasons_in_words(mask, words):
    assert name_reasons(mask) == words


HALF_SECOND = [0, 500_000_000]


@pytest.mark.parametrize(
    ("counters", "shares"),
    [
        # 250 ms of each second, and no bit is ever seen set.
        (
            {Counter.POWER_CAP: [0, 250_000_000, 500_000_000], Counter.HW_THERMAL: [0, 0, 1_000_000_000]},
            [("power cap", 25.0), ("HW thermal", 50.0)],
        ),
        # A driver reload makes no share, and a counter cannot hold the clocks for more than all the time.
        ({Counter.POWER_CAP: [9_000_000_000, 100_000_000, 300_000_000]}, [("power cap", pytest.approx(20.0))]),
        ({Counter.POWER_BRAKE: [0, 5_000_000_000]}, [("power brake", 100.0)]),
        # The old thermal counter stands in for the new one.
        ({Counter.THERMAL: HALF_SECOND, Counter.SW_THERMAL: [Missing("old")] * 2}, [("SW thermal", 50.0)]),
        ({Counter.THERMAL: HALF_SECOND, Counter.SW_THERMAL: [0, 100_000_000]}, [("SW thermal", 10.0)]),
    ],
)
def test_shares_come_from_counters_and_miss_nothing(counters, shares):
    assert throttle_shares(make_window(counters)) == tuple(ThrottleShare(*one, "counter") for one in shares)


def test_shares_of_bits_stand_in_where_no_counter_moves_also_of_a_reason_without_a_name():
    masks = [0x0, 0x4, 0x4, 0x44]
    lines = [make_line(s, replace(FAST, reasons=mask)) for s, mask in enumerate(masks)]
    assert throttle_shares(lines) == (ThrottleShare("power cap", 75.0, "bit"), ThrottleShare("HW thermal", 25.0, "bit"))
    lines = [make_line(s, replace(FAST, reasons=mask)) for s, mask in enumerate([0x1000, 0x0])]
    assert throttle_shares(lines) == (ThrottleShare("unknown reason 0x1000", 50.0, "bit"),)


def test_an_older_counter_of_time_below_the_application_clock_does_not_hide_the_bit():
    def shares(name):
        lines = []
        for second in range(11):
            counters = count({Counter.SW_THERMAL: Missing("old"), name: second * 3_000_000})
            lines.append(make_line(second, replace(FAST, reasons=0x20, counters=counters)))
        return throttle_shares(lines)

    assert shares(Counter.THERMAL) == (ThrottleShare("SW thermal", 100.0, "bit"),)
    assert shares(Counter.SW_THERMAL) == (ThrottleShare("SW thermal", pytest.approx(0.3), "counter"),)


def test_idle_is_no_fault_unread_reasons_are_missing_and_one_shot_utilisation_says_so():
    idle = make_track(make_line(0, replace(FAST, reasons=0x1))).sample("u")
    assert (idle.throttle, idle.throttle_known, idle.throttle_shares) == ((), True, ())
    unread = make_track(make_line(0, replace(FAST, reasons=Missing("no permission")))).sample("u")
    assert unread.throttle_known == Missing("no permission")
    one_shot = Missing("a one-shot value has no distribution")
    sample = make_track(make_line(0, replace(FAST, busy=Busy(41.0, 0, one_shot, one_shot)))).sample("u")
    assert (sample.sm_pct, sample.sm_samples, sample.sm_idle_ratio) == (41.0, 0, one_shot)


def test_the_window_is_ten_seconds_and_keeps_two_readings():
    track = make_track(*(make_line(second) for second in range(30)))
    assert [line.taken_ns // SECOND_NS for line in track.window] == list(range(19, 30))
    track.add(make_line(100))
    assert len(track.window) == 2


def test_slower_tiers_stay_until_they_are_read_again_and_the_margin_falls_back_to_the_threshold():
    track = make_track(make_line(0, slow=SLOW, health=HEALTH, identity=IDENTITY), make_line(1))
    sample = track.sample("GPU-0")
    assert (sample.power_limit_w, sample.ecc_uncorrected, sample.name) == (700.0, 2, "H100")
    assert (sample.sm_clock_max_mhz, sample.temperature_margin_c) == (1980.0, 25.0)
    before = make_track(make_line(0)).sample("GPU-0")
    assert before.power_limit_w == before.ecc_uncorrected == Missing("not read yet")
    slow = Slow(*[Missing("not supported")] * 6)
    assert make_track(make_line(0, slow=slow, identity=IDENTITY)).sample("u").temperature_margin_c == 26.0


def test_links_and_bus_prefer_gpm_then_counters():
    window = make_window({Counter.PCIE_TX: [0, 100], Counter.NVLINK_RX: [0, 300]})
    sample = make_track(*window).sample("u")
    assert (sample.pcie_tx_bytes_s, sample.nvlink_rx_bytes_s) == (100.0, 300.0)


def test_a_lost_card_keeps_its_name_processes_and_health_and_nothing_live():
    lost = make_line(5, blank_fast("GPU is lost"), lost="GPU is lost")
    track = make_track(make_line(0, identity=IDENTITY, health=HEALTH), lost)
    sample = track.sample("GPU-0")
    assert (sample.state, sample.name, sample.ecc_uncorrected) == (GpuState.LOST, "H100", 2)
    assert [one.pid for one in sample.processes] == [42]
    assert sample.power_w == sample.sm_pct == sample.sm_clock_mhz == Missing("GPU is lost")
    assert track.last_answer_ns() == 0


def test_what_a_silent_card_does_now_is_not_known():
    sample = make_track(make_line(0, replace(FAST, reasons=0x4))).sample("u")
    silent = without_live(sample, "the card does not answer")
    gone = Missing("the card does not answer")
    assert silent.sm_pct == silent.power_w == silent.memory_used_bytes == silent.throttle_known == gone
    assert (silent.throttle, silent.throttle_shares, silent.sm_samples) == ((), (), 0)
    assert (silent.memory_total_bytes, silent.processes) == (80, sample.processes)


def test_text_of_the_driver_is_cleaned():
    identity = replace(IDENTITY, name="H100\x1b[31m")
    sample = make_track(make_line(0, identity=identity)).sample("GPU-\x07")
    assert (sample.name, sample.uuid) == ("H100?[31m", "GPU-?")


def test_xids_are_kept_oldest_first_and_bounded():
    track = make_track(make_line(0))
    for xid in range(70):
        track.add_xid(xid)
    assert track.sample("u").xids == tuple(range(6, 70))


def test_a_call_that_stalls_moves_no_rate_and_throttle_shares_take_the_time_of_their_counter():
    # 696 W throughout; the energy is read 300 ms late in each third second.
    lines = []
    for second in range(9):
        late_s = 0.3 if second % 3 == 0 else 0.0
        at_s = second + late_s
        lines.append(
            count_late(second, late_s, {Counter.ENERGY: int(at_s * 696_000), Counter.PCIE_TX: int(at_s * 1e9)})
        )
    for last in range(3, 9):
        assert mean_power(lines[: last + 1], 700.0) == (pytest.approx(696.0), "energy counter")
        assert rate(lines[: last + 1], Counter.PCIE_TX) == pytest.approx(1e9)
    lines = [
        count_late(second, late_s, {Counter.HW_THERMAL: int((second + late_s) * 1e9 / 2)})
        for second, late_s in ((0, 0.9), (1, 0.0))
    ]
    assert throttle_shares(lines) == (ThrottleShare("HW thermal", pytest.approx(50.0), "counter"),)


# What readings of a card can be, and which of the same second cannot both be so.


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
        if field.type in ("Known[float]", "Applicable[float]", "Known[int]", "float", "int")
        and field.name not in UNBOUNDED
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
