"""The reader of one card, on a fake pynvml with the real error classes and structures."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pynvml
import pytest

from tests.fake_nvml import FakeCard, FakeNvml, ring
from tpmon.model.codec import to_plain
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.probe.gpu_calls import describe_code
from tpmon.probe.gpu_wire import CardLine, Line, decode_line, encode_line
from tpmon.probe.nvml import CardReader, measure_busy

SECOND_NS = 1_000_000_000
CODES = (3, 4, 6, 13, 15, 18, 999)
COUNTERS_WITHOUT_ANOTHER_CALL = {
    f"fast.counters.{name}"
    for name in (
        "sw_thermal_ns",
        "hw_thermal_ns",
        "power_brake_ns",
        "sync_boost_ns",
        "board_limit_ns",
        "reliability_ns",
        "pcie_tx_bytes",
        "pcie_rx_bytes",
    )
}

# What a failing call costs; a call with a second source costs nothing.
COSTS = {
    "nvmlDeviceGetSamples": {"fast.busy.idle_ratio", "fast.busy.busy_ratio"},
    "nvmlDeviceGetUtilizationRates": set(),
    "nvmlDeviceGetMemoryInfo": {"fast.memory_used_bytes", "fast.memory_total_bytes"},
    "nvmlDeviceGetFieldValues": COUNTERS_WITHOUT_ANOTHER_CALL
    | {"fast.memory_temperature_c", "health.recovery_action"},
    "nvmlDeviceGetPowerUsage": {"fast.power_w"},
    "nvmlDeviceGetClockInfo": {"fast.sm_clock_mhz", "slow.memory_clock_mhz"},
    "nvmlDeviceGetTemperature": set(),
    "nvmlDeviceGetCurrentClocksEventReasons": set(),
    "nvmlDeviceGetComputeRunningProcesses_v3": {"fast.processes"},
    "nvmlDeviceGetProcessesUtilizationInfo": set(),
    "nvmlGpmQueryDeviceSupport": {"fast.gpm"},
    "nvmlGpmSampleAlloc": {"fast.gpm"},
    "nvmlGpmSampleGet": {"fast.gpm"},
    "nvmlGpmMetricsGet": {"fast.gpm"},
    "nvmlDeviceGetEnforcedPowerLimit": {"slow.power_limit_w"},
    "nvmlDeviceGetMarginTemperature": {"slow.margin_c"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"slow.pcie_generation"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"slow.pcie_width"},
    "nvmlDeviceGetMigMode": {"slow.mig"},
    "nvmlDeviceGetTotalEccErrors": {"health.ecc_uncorrected"},
    "nvmlDeviceGetRemappedRows": {"health.remapped_rows_pending", "health.remapped_rows_failed"},
    "nvmlDeviceGetName": {"identity.name"},
    "nvmlDeviceGetMinorNumber": {"identity.minor"},
    "nvmlDeviceGetMaxClockInfo": {"identity.sm_clock_max_mhz", "identity.memory_clock_max_mhz"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"identity.pcie_generation_max"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"identity.pcie_width_max"},
    "nvmlDeviceGetTemperatureThreshold": {"identity.slowdown_c"},
}
# Codes that send the reader to the call's other version.
SECOND_SOURCE = {
    ("nvmlDeviceGetComputeRunningProcesses_v3", 13): set(),
    ("nvmlDeviceGetProcessesUtilizationInfo", 6): {"fast.processes[0].sm_pct"},
}


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1000 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns

    def step(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)


def make_reader(nvml: FakeNvml) -> tuple[CardReader, Clock]:
    clock = Clock()
    return CardReader(nvml, 0, clock), clock


def read_twice(nvml: FakeNvml) -> tuple[CardLine, CardLine]:
    """Read a card in two seconds; both have new samples."""
    reader, clock = make_reader(nvml)
    first = reader.read()
    clock.step(1)
    for card in nvml.cards:
        card.samples = ring([50], 11, 1)
        card.memory_samples = ring([20], 11, 1)
        card.busy_rows = [(pid, stamp + 1_000_000, pct) for pid, stamp, pct in card.busy_rows]
    return first, reader.read()


def flatten(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict) and value.keys() != {"missing"}:
        found: dict[str, object] = {}
        for key, one in value.items():
            found |= flatten(one, f"{path}.{key}" if path else key)
        return found
    if isinstance(value, list):
        found = {}
        for place, one in enumerate(value):
            found |= flatten(one, f"{path}[{place}]")
        return found
    return {path: value}


def facts(nvml: FakeNvml) -> dict[str, object]:
    """Return everything that two readings say: the newest fast tier, the first slower tiers."""
    first, second = (to_plain(line) for line in read_twice(nvml))
    return flatten({**first, "fast": second["fast"]})


def missing_in(found: dict[str, object]) -> set[str]:
    return {path for path, value in found.items() if isinstance(value, dict)}


def test_a_healthy_card_reads_everything_but_nvlink() -> None:
    found = facts(FakeNvml())
    assert missing_in(found) == {"fast.counters.nvlink_tx_bytes", "fast.counters.nvlink_rx_bytes"}
    assert found["fast.power_w"] == 412.5
    assert found["slow.power_limit_w"] == 700.0
    assert found["identity.name"] == "NVIDIA H100 80GB HBM3"
    assert found["health.ecc_uncorrected"] == 2
    assert found["fast.processes[0].sm_pct"] == 40.0


def test_the_table_of_costs_names_every_call_of_a_card() -> None:
    nvml = FakeNvml()
    read_twice(nvml)
    opening = {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"}
    assert set(nvml.calls) - opening <= set(COSTS)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", COSTS)
def test_one_failing_call_costs_its_own_fields(name: str, code: int) -> None:
    healthy = facts(FakeNvml())
    nvml = FakeNvml()
    nvml.failures[name] = code
    found = facts(nvml)
    costs = SECOND_SOURCE.get((name, code), COSTS[name])
    gone = missing_in(found) - missing_in(healthy)
    assert gone == costs
    if name not in ("nvmlDeviceGetSamples", "nvmlDeviceGetProcessesUtilizationInfo"):
        assert all(found[path] == {"missing": describe_code(code)} for path in costs)
    assert found.get("lost") is None
    other = {
        "fast.busy",
        "fast.memory_busy",
        "fast.temperature",
        "fast.counters",
        "fast.gpm",
        "fast.processes",
    }
    for path, value in healthy.items():
        if path not in costs and not path.startswith(tuple(other)):
            assert found[path] == value, path


@pytest.mark.parametrize("name", COSTS)
def test_a_name_that_nvidia_ml_py_does_not_have_costs_the_same(name: str) -> None:
    healthy = facts(FakeNvml())
    nvml = FakeNvml()
    nvml.absent.add(name)
    gone = missing_in(facts(nvml)) - missing_in(healthy)
    assert gone == COSTS[name]


def test_mean_of_the_sample_buffer_sees_a_step_that_is_busy_for_a_third() -> None:
    nvml = FakeNvml([FakeCard(samples=ring([0, 0, 0, 100, 100, 10], 10, 6))])
    reader, clock = make_reader(nvml)
    reader.read()
    clock.step(1)
    nvml.cards[0].samples = ring([100, 100, 10, 0, 0, 0], 11, 6)
    busy = reader.read().fast.busy
    assert is_known(busy)
    assert (busy.mean_pct, busy.samples) == (35.0, 6)
    assert (busy.idle_ratio, busy.busy_ratio) == (0.5, pytest.approx(1 / 3))


def test_the_first_reading_takes_the_newest_second_of_the_ring_alone() -> None:
    nvml = FakeNvml([FakeCard(samples=ring([100] * 60 + [20] * 5, 20, 5))])
    busy = make_reader(nvml)[0].read().fast.busy
    assert is_known(busy)
    assert (busy.mean_pct, busy.samples) == (20.0, 5)


@pytest.mark.parametrize("samples", [[], ring([2147483632], 10, 1)])
def test_an_empty_or_unfilled_buffer_falls_back_to_the_one_shot_value(samples: list) -> None:
    busy = make_reader(FakeNvml([FakeCard(samples=samples)]))[0].read().fast.busy
    assert is_known(busy)
    assert (busy.mean_pct, busy.samples) == (100.0, 0)
    assert isinstance(busy.idle_ratio, Missing)


def test_measure_busy_counts_its_ends() -> None:
    busy = measure_busy([0, 5, 6, 79, 80, 100])
    assert (busy.idle_ratio, busy.busy_ratio) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_memory_without_a_number_is_missing() -> None:
    line = make_reader(FakeNvml([FakeCard(used=None)]))[0].read()
    assert isinstance(line.fast.memory_used_bytes, Missing)
    assert line.fast.memory_total_bytes == 80 << 30


def test_unified_memory_says_so() -> None:
    line = make_reader(FakeNvml([FakeCard(total=0, used=0)]))[0].read()
    assert line.fast.memory_used_bytes == Missing("shares the host's memory")


def test_every_list_of_fields_ends_with_a_guard_that_is_no_link_field() -> None:
    nvml = FakeNvml()
    nvml.cards[0].fields |= {91: 18, 138: 7, 139: 9}
    line = make_reader(nvml)[0].read()
    assert line.fast.counters.nvlink_tx_bytes == 7 * 1024
    assert line.fast.counters.nvlink_rx_bytes == 9 * 1024
    assert nvml.guards
    assert not {138, 139, 202, 204} & set(nvml.guards)


def test_links_without_data_counters_use_the_byte_counters() -> None:
    nvml = FakeNvml()
    nvml.cards[0].fields |= {91: 18, 202: 1000, 204: 2000}
    nvml.cards[0].field_errors = {138: 3, 139: 3}
    counters = make_reader(nvml)[0].read().fast.counters
    assert (counters.nvlink_tx_bytes, counters.nvlink_rx_bytes) == (1000, 2000)


@pytest.mark.parametrize("code", CODES)
def test_one_failing_field_costs_one_counter(code: int) -> None:
    nvml = FakeNvml()
    nvml.cards[0].field_errors[271] = code
    counters = make_reader(nvml)[0].read().fast.counters
    assert counters.power_brake_ns == Missing(describe_code(code))
    assert counters.hw_thermal_ns == 0


def test_a_32_bit_byte_counter_is_not_believed() -> None:
    nvml = FakeNvml([FakeCard(narrow_fields=frozenset((197,)))])
    counters = make_reader(nvml)[0].read().fast.counters
    assert isinstance(counters.pcie_tx_bytes, Missing)
    assert counters.pcie_rx_bytes == 0


def test_violation_status_stands_in_for_missing_counters() -> None:
    nvml = FakeNvml()
    nvml.cards[0].field_errors = {74: 3, 75: 3}
    counters = make_reader(nvml)[0].read().fast.counters
    assert (counters.power_cap_ns, counters.thermal_ns) == (1000, 2000)


def test_reasons_and_temperature_under_their_other_names() -> None:
    nvml = FakeNvml([FakeCard(reasons=0x44)])
    nvml.failures = {"nvmlDeviceGetCurrentClocksEventReasons": 13, "nvmlDeviceGetTemperature": 13}
    fast = make_reader(nvml)[0].read().fast
    assert (fast.reasons, fast.temperature_c) == (0x44, 62.0)


def test_drivers_530_with_garbled_v3_lists_are_read_by_v2() -> None:
    nvml = FakeNvml()
    nvml.symbols = {"nvmlDeviceGetConfComputeMemSizeInfo": None}
    line = make_reader(nvml)[0].read()
    assert is_known(line.fast.processes)
    assert line.fast.processes[0].pid == 4242
    assert "nvmlDeviceGetComputeRunningProcesses_v3" not in nvml.calls


def test_the_oldest_drivers_are_read_by_the_unversioned_symbol() -> None:
    def list_v1(handle: FakeCard, count: object, array: object) -> int:
        number = ctypes.cast(count, ctypes.POINTER(ctypes.c_uint)).contents
        if array is None:
            number.value = 2
            return 7
        number.value = 2
        array[0].pid, array[0].used = 11, 1 << 20
        array[1].pid, array[1].used = 12, 2**64 - 1
        return 0

    nvml = FakeNvml()
    nvml.symbols["nvmlDeviceGetComputeRunningProcesses"] = list_v1
    for version in ("v2", "v3"):
        nvml.failures[f"nvmlDeviceGetComputeRunningProcesses_{version}"] = 13
    listed = make_reader(nvml)[0].read().fast.processes
    assert is_known(listed)
    assert [(one.pid, one.used_bytes) for one in listed] == [
        (11, 1 << 20),
        (12, Missing("the driver does not say")),
    ]


def test_library_mismatch_outside_the_error_tree_is_an_old_driver() -> None:
    class Mismatched(FakeNvml):
        def nvmlDeviceGetMarginTemperature(self, card: FakeCard) -> int:
            raise pynvml.NVMLLibraryMismatchError("Unversioned function called")

    slow = make_reader(Mismatched())[0].read().slow
    assert is_known(slow)
    assert slow.margin_c == Missing("this driver does not have the call")


def test_processes_without_memory_and_with_wild_utilisation() -> None:
    card = FakeCard(
        processes=[(1, None), (2, 5)], busy_rows=[(1, 100, 2147483632), (2, 100, 60), (2, 90, 10)]
    )
    listed = make_reader(FakeNvml([card]))[0].read().fast.processes
    assert is_known(listed)
    assert listed[0].used_bytes == Missing("the driver does not say")
    assert isinstance(listed[0].sm_pct, Missing)
    assert listed[1].sm_pct == 60.0


def test_the_size_zero_quirk_is_no_failure() -> None:
    class Empty(FakeNvml):
        def nvmlDeviceGetProcessesUtilizationInfo(self, card: FakeCard, since: int) -> list:
            raise pynvml.NVMLError(0)

    listed = make_reader(Empty())[0].read().fast.processes
    assert is_known(listed)
    assert listed[0].sm_pct == Missing("no sample since the last reading")


def test_pcie_throughput_is_never_asked() -> None:
    nvml = FakeNvml()
    read_twice(nvml)
    assert not [name for name in nvml.calls if "Throughput" in name]


def test_a_second_costs_at_most_fifteen_calls() -> None:
    nvml = FakeNvml()
    nvml.cards[0].fields[91] = 18
    reader, clock = make_reader(nvml)
    reader.read()
    clock.step(1)
    nvml.calls.clear()
    reader.read()
    assert len(nvml.calls) <= 15


def test_tiers_are_read_when_due() -> None:
    reader, clock = make_reader(FakeNvml())
    seen: dict[str, list[int]] = {"slow": [], "health": [], "identity": []}
    for second in range(31):
        line = reader.read()
        for tier, seconds in seen.items():
            if getattr(line, tier) is not NOT_APPLICABLE:
                seconds.append(second)
        clock.step(1)
    assert seen == {"slow": [0, 10, 20, 30], "health": [0, 30], "identity": [0, 30]}


def test_what_is_not_supported_is_asked_again_with_the_health_tier_only() -> None:
    nvml = FakeNvml()
    nvml.failures["nvmlDeviceGetPowerUsage"] = 3
    reader, clock = make_reader(nvml)
    for _ in range(31):
        reader.read()
        clock.step(1)
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 2


@pytest.mark.parametrize(
    ("processes", "reasons", "next_s"),
    [([], 0x1, 10.0), ([], 0x0, 1.0), ([], 0x5, 1.0), ([(1, 2)], 0x1, 1.0)],
)
def test_only_an_unused_idle_card_is_read_rarely(processes: list, reasons: int, next_s: float) -> None:
    card = FakeCard(processes=processes, reasons=reasons)
    assert make_reader(FakeNvml([card]))[0].read().next_s == next_s


@pytest.mark.parametrize("code", [15, 999])
def test_a_card_that_answers_nothing_is_lost_and_opened_anew(code: int) -> None:
    nvml = FakeNvml()
    reader, clock = make_reader(nvml)
    assert reader.read().lost is NOT_APPLICABLE
    nvml.failures = {name: code for name in dir(FakeNvml) if name.startswith("nvmlDevice")}
    clock.step(1)
    line = reader.read()
    assert line.lost == describe_code(code)
    assert line.uuid == "GPU-0000"
    assert line.fast.power_w == Missing(describe_code(code))
    assert (reader.handle, line.next_s) == (None, 30.0)
    assert reader.read().lost == describe_code(code)
    nvml.failures = {}
    clock.step(30)
    line = reader.read()
    assert line.lost is NOT_APPLICABLE
    assert line.fast.power_w == 412.5


def test_a_card_that_may_not_be_opened_is_not_lost() -> None:
    nvml = FakeNvml()
    nvml.failures["nvmlDeviceGetHandleByIndex"] = 4
    line = make_reader(nvml)[0].read()
    assert line.lost is NOT_APPLICABLE
    assert line.fast.power_w == Missing("no permission")


@pytest.mark.parametrize("code", [1, 9, 18])
def test_a_driver_that_went_away_is_told_from_a_failing_call(code: int) -> None:
    nvml = FakeNvml()
    reader, clock = make_reader(nvml)
    reader.read()
    assert reader.calls.gone_code() == 0
    nvml.failures = {name: code for name in dir(FakeNvml) if name.startswith("nvml")}
    clock.step(1)
    reader.read()
    assert reader.calls.gone_code() == code


def test_gpm_wants_two_samples_and_no_gap() -> None:
    reader, clock = make_reader(FakeNvml())
    assert reader.read().fast.gpm == Missing("first GPM sample")
    clock.step(0.05)
    assert reader.read().fast.gpm == Missing("GPM samples lie too close together")
    clock.step(0.06)
    gpm = reader.read().fast.gpm
    assert is_known(gpm)
    assert (gpm.sm_active_pct, gpm.nvlink_tx_bytes_s) == (91.0, 3 * (1 << 20))
    clock.step(5.5)
    assert reader.read().fast.gpm == Missing("GPM sampled anew after a gap")
    clock.step(1)
    assert is_known(reader.read().fast.gpm)


def test_gpm_metrics_fail_one_by_one_and_implausible_ones_are_dropped() -> None:
    card = FakeCard(gpm={2: 100.4, 3: float("nan"), 10: 240.0})
    gpm = read_twice(FakeNvml([card]))[1].fast.gpm
    assert is_known(gpm)
    assert gpm.sm_active_pct == 100.0
    assert gpm.occupancy_pct == Missing("GPM gave no number")
    assert gpm.tensor_pct == Missing("not supported by this card")
    assert gpm.dram_pct == Missing("GPM gave 240 %")


def test_a_card_without_gpm_is_asked_once() -> None:
    nvml = FakeNvml([FakeCard(gpm=None)])
    second = read_twice(nvml)[1]
    assert second.fast.gpm == Missing("no GPM on this card (Hopper and newer have it)")
    assert nvml.calls.count("nvmlGpmQueryDeviceSupport") == 1


def make_mig_card() -> FakeCard:
    def device(number: int) -> FakeCard:
        return FakeCard(
            uuid=f"MIG-{number}",
            instance=number,
            used=number << 30,
            total=10 << 30,
            processes=[(100 + number, 1 << 30), (7, 1)],
            gpm={2: 10.0 * number},
        )

    return FakeCard(mig=1, mig_devices=[device(1), device(2)])


def test_mig_instances_have_memory_activity_and_processes() -> None:
    nvml = FakeNvml([make_mig_card()])
    nvml.failures["nvmlDeviceGetSamples"] = 3
    nvml.failures["nvmlDeviceGetUtilizationRates"] = 3
    first, second = read_twice(nvml)
    assert is_known(first.slow)
    assert first.slow.mig is True
    shown = [(one.uuid, one.memory_used_bytes, one.sm_active_pct) for one in second.fast.instances]
    assert shown == [("MIG-1", 1 << 30, 10.0), ("MIG-2", 2 << 30, 20.0)]
    assert is_known(second.fast.processes)
    assert {one.pid for one in second.fast.processes} == {101, 102, 7}
    assert second.fast.busy == Missing("not supported by this card")


def test_mig_rebuilt_instances_are_found_anew() -> None:
    nvml = FakeNvml([make_mig_card()])
    reader, clock = make_reader(nvml)
    reader.read()
    nvml.cards[0].mig_devices[0] = FakeCard(uuid="MIG-9", instance=9)
    clock.step(10)
    line = reader.read()
    assert [one.uuid for one in line.fast.instances] == ["MIG-9", "MIG-2"]
    assert isinstance(line.fast.instances[0].sm_active_pct, Missing)


def test_lines_survive_the_pipe() -> None:
    for line in (*read_twice(FakeNvml()), *read_twice(FakeNvml([make_mig_card()]))):
        assert decode_line(encode_line(Line(card=line))) == Line(card=line)


def test_strange_answers_cost_their_field() -> None:
    class Strange(FakeNvml):
        def nvmlDeviceGetRemappedRows(self, card: FakeCard) -> object:
            return ()

        def nvmlDeviceGetPowerUsage(self, card: FakeCard) -> object:
            return float("inf")

        def nvmlDeviceGetMigMode(self, card: FakeCard) -> object:
            return SimpleNamespace()

    line = make_reader(Strange())[0].read()
    assert is_known(line.health)
    assert is_known(line.slow)
    assert isinstance(line.health.remapped_rows_pending, Missing)
    assert isinstance(line.fast.power_w, Missing)
    assert isinstance(line.slow.mig, Missing)
