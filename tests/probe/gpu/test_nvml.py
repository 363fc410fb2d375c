"""The reader of one card, on a fake pynvml with the real error classes and structures."""

import ctypes

import pynvml
import pytest

from tests.fake_nvml import FakeCard, FakeNvml, make_reader, read_twice, ring
from tpmon.model.codec import to_plain
from tpmon.model.known import Missing
from tpmon.probe.gpu.bounds import SHARED
from tpmon.probe.gpu.nvml import measure_busy
from tpmon.probe.gpu.nvml_queries import Calls, ProcessList, describe_code
from tpmon.probe.gpu.wire import CardProcessReading, Counter

WRAPS = Missing("a 32-bit counter: wraps within a second")
CODES = (3, 4, 6, 13, 15, 18, 999)
COUNTERS_WITHOUT_ANOTHER_CALL = {
    f"fast.counters.values[{counter.value}]" for counter in Counter if Counter.SW_THERMAL <= counter <= Counter.PCIE_RX
}
LINK_COUNTERS = {f"fast.counters.values[{counter.value}]" for counter in (Counter.NVLINK_TX, Counter.NVLINK_RX)}
# What a failing call costs; a call with a second source costs nothing.
COSTS = {
    "nvmlDeviceGetSamples": {"fast.busy.idle_ratio", "fast.busy.busy_ratio"},
    "nvmlDeviceGetUtilizationRates": set(),
    "nvmlDeviceGetMemoryInfo": {"fast.memory_used_bytes", "fast.memory_total_bytes"},
    "nvmlDeviceGetFieldValues": COUNTERS_WITHOUT_ANOTHER_CALL | {"fast.memory_temperature_c", "health.recovery_action"},
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
    "nvmlDeviceGetBusType": {"identity.is_pcie"},
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


def test_a_healthy_card_reads_everything_but_nvlink():
    found = facts(FakeNvml())
    assert missing_in(found) == LINK_COUNTERS
    assert found["fast.power_w"] == 412.5
    assert found["slow.power_limit_w"] == 700.0
    assert found["identity.name"] == "NVIDIA H100 80GB HBM3"
    assert found["health.ecc_uncorrected"] == 2
    assert found["fast.processes[0].sm_pct"] == 40.0


def test_the_table_of_costs_names_every_call_of_a_card():
    nvml = FakeNvml()
    read_twice(nvml)
    opening = {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"}
    assert set(nvml.calls) - opening <= set(COSTS)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", COSTS)
def test_one_failing_call_costs_its_own_fields(name, code):
    healthy = facts(FakeNvml())
    nvml = FakeNvml(failures={name: code})
    found = facts(nvml)
    costs = SECOND_SOURCE.get((name, code), COSTS[name])
    gone = missing_in(found) - missing_in(healthy)
    assert gone == costs
    if name not in ("nvmlDeviceGetSamples", "nvmlDeviceGetProcessesUtilizationInfo"):
        reason = SHARED.reason if (name, code) == ("nvmlDeviceGetMemoryInfo", 3) else describe_code(code)
        assert all(found[path] == {"missing": reason} for path in costs)
    assert found.get("lost") is None
    other = {"fast.busy", "fast.memory_busy", "fast.temperature", "fast.counters", "fast.gpm", "fast.processes"}
    for path, value in healthy.items():
        if path not in costs and not path.startswith(tuple(other)):
            assert found[path] == value, path


@pytest.mark.parametrize("name", COSTS)
def test_a_name_that_nvidia_ml_py_does_not_have_costs_the_same(name):
    healthy = facts(FakeNvml())
    nvml = FakeNvml()
    nvml.absent.add(name)
    gone = missing_in(facts(nvml)) - missing_in(healthy)
    assert gone == COSTS[name]


def test_mean_of_the_sample_buffer_sees_a_step_that_is_busy_for_a_third():
    nvml = FakeNvml(FakeCard(samples=ring([0, 0, 0, 100, 100, 10], 10, 6)))
    reader, clock = make_reader(nvml)
    reader.read()
    clock.step(1)
    nvml.cards[0].samples = ring([100, 100, 10, 0, 0, 0], 11, 6)
    busy = reader.read().fast.busy
    assert (busy.mean_pct, busy.samples) == (35.0, 6)
    assert (busy.idle_ratio, busy.busy_ratio) == (0.5, pytest.approx(1 / 3))


def test_the_first_reading_takes_the_newest_second_of_the_ring_alone():
    nvml = FakeNvml(FakeCard(samples=ring([100] * 60 + [20] * 5, 20, 5)))
    busy = make_reader(nvml)[0].read().fast.busy
    assert (busy.mean_pct, busy.samples) == (20.0, 5)


@pytest.mark.parametrize("samples", [[], ring([2147483632], 10, 1)])
def test_an_empty_or_unfilled_buffer_falls_back_to_the_one_shot_value(samples):
    busy = make_reader(FakeNvml(FakeCard(samples=samples)))[0].read().fast.busy
    assert (busy.mean_pct, busy.samples) == (100.0, 0)
    assert isinstance(busy.idle_ratio, Missing)


def test_measure_busy_counts_its_ends():
    busy = measure_busy([0, 5, 6, 79, 80, 100])
    assert (busy.idle_ratio, busy.busy_ratio) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


@pytest.mark.parametrize("call_fails", [False, True])
def test_a_card_without_memory_of_its_own_says_so_and_one_without_a_number_has_the_other(call_fails):
    nvml = FakeNvml(FakeCard(total=0, used=0))
    nvml.failures = {"nvmlDeviceGetMemoryInfo": 3} if call_fails else {}
    line = make_reader(nvml)[0].read()
    assert line.fast.memory_used_bytes == line.fast.memory_total_bytes == Missing("shares the host's memory")
    odd = make_reader(FakeNvml(FakeCard(used=None)))[0].read().fast
    assert (odd.memory_used_bytes, odd.memory_total_bytes) == (Missing("unexpected answer: no number: None"), 80 << 30)


def test_every_list_of_fields_ends_with_a_guard_that_is_no_link_field():
    nvml = FakeNvml()
    nvml.cards[0].fields |= {91: 18, 138: 7, 139: 9}
    line = make_reader(nvml)[0].read()
    assert line.fast.counters.values[Counter.NVLINK_TX] == 7 * 1024
    assert line.fast.counters.values[Counter.NVLINK_RX] == 9 * 1024
    assert nvml.guards
    assert not {138, 139, 202, 204} & set(nvml.guards)


@pytest.mark.parametrize(
    ("card", "told"),
    [
        (
            {"fields": {91: 18, 202: 1000, 204: 2000}, "field_errors": {138: 3, 139: 3}},
            {Counter.NVLINK_TX: 1000, Counter.NVLINK_RX: 2000},
        ),
        ({"narrow_fields": {197}}, {Counter.PCIE_TX: WRAPS, Counter.PCIE_RX: 0}),
        ({"field_errors": {74: 3, 75: 3}}, {Counter.POWER_CAP: 1000, Counter.THERMAL: 2000}),
        *(
            ({"field_errors": {271: code}}, {Counter.POWER_BRAKE: Missing(describe_code(code)), Counter.HW_THERMAL: 0})
            for code in CODES
        ),
    ],
)
def test_a_counter_has_a_second_source_or_is_missing_alone(card, told):
    """Links without counters of data have those of bytes; older drivers tell of violations by another call."""
    nvml = FakeNvml()
    nvml.cards[0].fields |= card.pop("fields", {})
    vars(nvml.cards[0]).update(card)
    values = make_reader(nvml)[0].read().fast.counters.values
    assert {one: values[one] for one in told} == told


def test_reasons_and_temperature_under_their_other_names():
    nvml = FakeNvml(FakeCard(reasons=0x44))
    nvml.failures = {"nvmlDeviceGetCurrentClocksEventReasons": 13, "nvmlDeviceGetTemperature": 13}
    fast = make_reader(nvml)[0].read().fast
    assert (fast.reasons, fast.temperature_c) == (0x44, 62.0)


def test_drivers_530_with_garbled_v3_lists_are_read_by_v2():
    nvml = FakeNvml()
    nvml.symbols = {"nvmlDeviceGetConfComputeMemSizeInfo": None}
    line = make_reader(nvml)[0].read()
    assert line.fast.processes[0].pid == 4242
    assert "nvmlDeviceGetComputeRunningProcesses_v3" not in nvml.calls


def test_the_oldest_drivers_are_read_by_the_unversioned_symbol():
    def list_v1(handle, count, array):
        number = ctypes.cast(count, ctypes.POINTER(ctypes.c_uint)).contents
        if array is None:
            number.value = 2
            return 7
        number.value = 2
        array[0].pid, array[0].usedGpuMemory = 11, 1 << 20
        array[1].pid, array[1].usedGpuMemory = 12, 2**64 - 1
        return 0

    nvml = FakeNvml()
    nvml.symbols["nvmlDeviceGetComputeRunningProcesses"] = list_v1
    for version in ("v2", "v3"):
        nvml.failures[f"nvmlDeviceGetComputeRunningProcesses_{version}"] = 13
    listed = make_reader(nvml)[0].read().fast.processes
    assert [(one.pid, one.used_bytes) for one in listed] == [(11, 1 << 20), (12, Missing("the driver does not say"))]


def test_library_mismatch_outside_the_error_tree_is_an_old_driver():
    class Mismatched(FakeNvml):
        def nvmlDeviceGetMarginTemperature(self, card):
            raise pynvml.NVMLLibraryMismatchError("Unversioned function called")

    slow = make_reader(Mismatched())[0].read().slow
    assert slow.margin_c == Missing("this driver does not have the call")


def test_processes_without_memory_and_with_wild_utilisation():
    card = FakeCard(processes=[(1, None), (2, 5), (3, 0)], busy_rows=[(1, 100, 2147483632), (2, 100, 60), (2, 90, 10)])
    listed = make_reader(FakeNvml(card))[0].read().fast.processes
    assert listed[0].used_bytes == Missing("the driver does not say")
    assert isinstance(listed[0].sm_pct, Missing)
    assert listed[1].sm_pct == 60.0
    assert listed[2].used_bytes == Missing("the driver does not say (container)")


def test_what_the_server_of_mps_computes_is_nobodys(tmp_path):
    for pid, comm in ((1, "python"), (2, "nvidia-cuda-mps")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{comm}\n")
    card = FakeCard(processes=[(1, 5), (2, 6), (3, 7)], busy_rows=[(2, 100, 97)])
    listed = ProcessList(Calls(FakeNvml(card)), str(tmp_path)).read(card, with_busy=True)
    by_server = Missing("the server of MPS computes for it")
    assert listed == (CardProcessReading(1, 5, by_server), CardProcessReading(3, 7, by_server))


def test_the_size_zero_quirk_is_no_failure():
    class Empty(FakeNvml):
        def nvmlDeviceGetProcessesUtilizationInfo(self, card, since):
            raise pynvml.NVMLError(0)

    listed = make_reader(Empty())[0].read().fast.processes
    assert listed[0].sm_pct == Missing("no sample since the last reading")


SECOND_NS = 1_000_000_000
NOW_US = 1_800_000_000_000_000


@pytest.mark.parametrize(
    ("stamp", "expected_s"),
    [
        (0, 100.4),
        (2**53, 100.4),
        (2**63 - 1, 100.4),
        # Since the start of the machine: during the call, before it, too long before it, after it.
        (100_700_000, 100.7),
        (98_000_000, 98.0),
        (90_000_000, 100.4),
        (100_900_000, 100.4),
        # Since 1970, whatever the clock of the machine says.
        (NOW_US - 100_000, 100.7),
    ],
)
def test_a_counter_is_placed_by_its_stamp_or_in_the_middle_of_its_call(monkeypatch, stamp, expected_s):
    monkeypatch.setattr("time.time_ns", lambda: NOW_US * 1000)
    times = iter((int(100.0 * SECOND_NS), int(100.8 * SECOND_NS)))
    calls = Calls(FakeNvml(), lambda: next(times, int(100.8 * SECOND_NS)))
    calls.ask("nvmlSystemGetDriverVersion")
    assert calls.place(stamp) / 1e9 == pytest.approx(expected_s)
