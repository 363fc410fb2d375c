"""The reader of one card, on a fake pynvml with the real error classes and structures."""

import ctypes
from types import SimpleNamespace

import pynvml
import pytest

from tests.fake_nvml import SECOND_NS, FakeCard, FakeNvml, make_reader, read_twice, ring
from tpmon.judge.rules.cards import LINK_LOAD_PCT
from tpmon.model.codec import to_plain
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.probe.gpu.bounds import SHARED
from tpmon.probe.gpu.nvml import LOADED_PCT, measure_busy
from tpmon.probe.gpu.nvml_queries import Calls, ProcessList, describe_code
from tpmon.probe.gpu.wire import CardProcessReading, Counter, Line, decode_line, encode_line

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
    "nvmlDeviceGetDecoderUtilization": {"fast.decoder_pct"},
    "nvmlDeviceGetJpgUtilization": {"fast.jpeg_pct"},
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
        parts = {f"{path}.{key}" if path else key: one for key, one in value.items()}
    elif isinstance(value, list):
        parts = {f"{path}[{place}]": one for place, one in enumerate(value)}
    else:
        return {path: value}
    return {inner: found for at, one in parts.items() for inner, found in flatten(one, at).items()}


def facts(nvml: FakeNvml) -> dict[str, object]:
    """Return everything that two readings say: the newest fast tier, the first slower tiers."""
    first, second = (to_plain(line) for line in read_twice(nvml))
    return flatten({**first, "fast": second["fast"]})


def missing_in(found: dict[str, object]) -> set[str]:
    return {path for path, value in found.items() if isinstance(value, dict)}


def test_a_healthy_card_reads_everything_but_nvlink():
    found = facts(FakeNvml())
    assert missing_in(found) == LINK_COUNTERS
    told = {"fast.power_w": 412.5, "slow.power_limit_w": 700.0, "fast.processes[0].sm_pct": 40.0}
    told |= {"identity.name": "NVIDIA H100 80GB HBM3", "health.ecc_uncorrected": 2}
    assert {one: found[one] for one in told} == told


def test_the_table_of_costs_names_every_call_of_a_card_and_pcie_throughput_is_never_asked():
    nvml = FakeNvml()
    read_twice(nvml)
    opening = {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"}
    assert set(nvml.calls) - opening <= set(COSTS)
    assert not [name for name in nvml.calls if "Throughput" in name]


@pytest.mark.parametrize("code", [*CODES, pytest.param(0, id="a name that nvidia-ml-py does not have")])
@pytest.mark.parametrize("name", COSTS)
def test_one_failing_call_costs_its_own_fields(name, code):
    healthy = facts(FakeNvml())
    nvml = FakeNvml(failures={name: code} if code else {})
    nvml.absent = set() if code else {name}
    found = facts(nvml)
    costs = SECOND_SOURCE.get((name, code), COSTS[name])
    gone = missing_in(found) - missing_in(healthy)
    assert gone == costs
    if code and name not in ("nvmlDeviceGetSamples", "nvmlDeviceGetProcessesUtilizationInfo"):
        reason = SHARED.reason if (name, code) == ("nvmlDeviceGetMemoryInfo", 3) else describe_code(code)
        assert all(found[path] == {"missing": reason} for path in costs)
    assert found.get("lost") is None
    other = {"fast.busy", "fast.memory_busy", "fast.temperature", "fast.counters", "fast.gpm", "fast.processes"}
    for path, value in healthy.items():
        if path not in costs and not path.startswith(tuple(other)):
            assert found[path] == value, path


def test_the_mean_is_of_the_newest_second_of_the_ring_and_sees_a_step_that_is_busy_for_a_third():
    nvml = FakeNvml(FakeCard(samples=ring([100] * 60 + [20] * 5, 20, 5)))
    reader, clock = make_reader(nvml)
    first = reader.read().fast.busy
    assert (first.mean_pct, first.samples) == (20.0, 5)
    clock.step(1)
    nvml.cards[0].samples = ring([100, 100, 10, 0, 0, 0], 21, 6)
    busy = reader.read().fast.busy
    assert (busy.mean_pct, busy.samples) == (35.0, 6)
    assert (busy.idle_ratio, busy.busy_ratio) == (0.5, pytest.approx(1 / 3))
    ends = measure_busy([0, 5, 6, 79, 80, 100])
    assert (ends.idle_ratio, ends.busy_ratio) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


@pytest.mark.parametrize("samples", [[], ring([2147483632], 10, 1)])
def test_an_empty_or_unfilled_buffer_falls_back_to_the_one_shot_value(samples):
    busy = make_reader(FakeNvml(FakeCard(samples=samples)))[0].read().fast.busy
    assert (busy.mean_pct, busy.samples) == (100.0, 0)
    assert isinstance(busy.idle_ratio, Missing)


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


def test_older_drivers_are_asked_under_other_names_and_530_with_garbled_v3_lists_by_v2():
    nvml = FakeNvml(FakeCard(reasons=0x44))
    nvml.failures = {"nvmlDeviceGetCurrentClocksEventReasons": 13, "nvmlDeviceGetTemperature": 13}
    nvml.symbols = {"nvmlDeviceGetConfComputeMemSizeInfo": None}
    fast = make_reader(nvml)[0].read().fast
    assert (fast.reasons, fast.temperature_c, fast.processes[0].pid) == (0x44, 62.0, 4242)
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


def test_tiers_are_read_when_due_and_what_is_not_supported_is_asked_again_with_the_health_tier_only():
    nvml = FakeNvml(failures={"nvmlDeviceGetPowerUsage": 3})
    reader, clock = make_reader(nvml)
    seen: dict[str, list[int]] = {"slow": [], "health": [], "identity": []}
    for second in range(31):
        line = reader.read()
        for tier, seconds in seen.items():
            if getattr(line, tier) is not NOT_APPLICABLE:
                seconds.append(second)
        clock.step(1)
    assert seen == {"slow": [0, 10, 20, 30], "health": [0, 30], "identity": [0, 30]}
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 2


def test_the_link_is_that_of_a_card_under_load():
    class Link(FakeNvml):
        now = 1

        def nvmlDeviceGetCurrPcieLinkGeneration(self, card):
            return self.now

    nvml = Link()
    reader, clock = make_reader(nvml)
    seen = []
    for second in range(24):
        loaded = 3 <= second < 9 or second == 22
        nvml.now = 4 if loaded else 1
        nvml.cards[0].samples = ring([90 if loaded else 0] * 6, 20 + second, 6)
        line = reader.read()
        if is_known(line.slow):
            link = line.slow.pcie_generation
            seen.append((second, link if is_known(link) else None))
        clock.step(1)
    assert seen == [(0, None), (3, 4), (10, 4), (20, 4), (22, 4)]
    assert LOADED_PCT == LINK_LOAD_PCT, "the load from which its rule judges it"


@pytest.mark.parametrize(
    ("processes", "reasons", "next_s"), [([], 0x1, 10.0), ([], 0x0, 1.0), ([], 0x5, 1.0), ([(1, 2)], 0x1, 1.0)]
)
def test_only_an_unused_idle_card_is_read_rarely(processes, reasons, next_s):
    card = FakeCard(processes=processes, reasons=reasons)
    assert make_reader(FakeNvml(card))[0].read().next_s == next_s


@pytest.mark.parametrize("code", [15, 999])
def test_a_card_that_answers_nothing_is_lost_and_opened_anew(code):
    nvml = FakeNvml()
    reader, clock = make_reader(nvml)
    assert reader.read().lost is NOT_APPLICABLE
    nvml.failures = FakeNvml.fail_all(code, "nvmlDevice", "nvmlGpm")
    clock.step(1)
    line = reader.read()
    assert (line.lost, line.fast.power_w) == (describe_code(code), Missing(describe_code(code)))
    assert (line.uuid, reader.handle, line.next_s) == ("GPU-0000", None, 30.0)
    assert reader.read().lost == describe_code(code)
    nvml.failures = {}
    clock.step(30)
    line = reader.read()
    assert (line.lost, line.fast.power_w) == (NOT_APPLICABLE, 412.5)


def test_a_card_whose_uuid_is_refused_is_read_and_asked_again_and_one_that_may_not_be_opened_is_not_lost():
    nvml = FakeNvml(failures={"nvmlDeviceGetUUID": 4})
    reader, clock = make_reader(nvml)
    line = reader.read()
    assert (line.uuid, line.fast.power_w, line.lost) == ("", 412.5, NOT_APPLICABLE)
    nvml.failures = {}
    clock.step(30)
    assert reader.read().uuid == "GPU-0000"
    nvml = FakeNvml(failures={"nvmlDeviceGetHandleByIndex": 4})
    line = make_reader(nvml)[0].read()
    assert (line.lost, line.fast.power_w) == (NOT_APPLICABLE, Missing("no permission (doctor: nvml)"))


def test_a_card_that_tells_anything_is_not_lost_by_unknown_errors():
    nvml = FakeNvml()
    nvml.failures = FakeNvml.fail_all(999, "nvmlDevice", "nvmlGpm")
    del nvml.failures["nvmlDeviceGetTemperature"]
    reader = make_reader(nvml)[0]
    reader.handle = nvml.cards[0]
    line = reader.read()
    assert (line.lost, line.fast.temperature_c) == (NOT_APPLICABLE, 61.0)


def test_what_tells_most_is_asked_first_and_a_second_costs_at_most_seventeen_calls():
    nvml = FakeNvml()
    nvml.cards[0].fields[91] = 18
    reader, clock = make_reader(nvml)
    reader.read()
    live = [name for name in nvml.calls if name.endswith(("GetSamples", "PowerUsage", "EventReasons", "GetMemoryInfo"))]
    rest = [name for name in nvml.calls if name.endswith(("Name", "LinkWidth", "RemappedRows", "MigMode", "BusType"))]
    assert max(map(nvml.calls.index, live)) < min(map(nvml.calls.index, rest))
    clock.step(1)
    nvml.calls.clear()
    reader.read()
    assert len(nvml.calls) <= 17


@pytest.mark.parametrize("code", [1, 9, 18])
def test_a_driver_that_went_away_is_told_from_a_failing_call(code):
    nvml = FakeNvml()
    reader, clock = make_reader(nvml)
    reader.read()
    assert reader.calls.gone_code() == 0
    nvml.failures = FakeNvml.fail_all(code)
    clock.step(1)
    reader.read()
    assert reader.calls.gone_code() == code


def test_gpm_wants_two_samples_and_no_gap():
    reader, clock = make_reader(FakeNvml())
    assert reader.read().fast.gpm == Missing("first GPM sample")
    clock.step(0.05)
    assert reader.read().fast.gpm == Missing("first GPM sample")
    clock.step(0.06)
    gpm = reader.read().fast.gpm
    assert (gpm.sm_active_pct, gpm.nvlink_tx_bytes_s) == (91.0, 3 * (1 << 20))
    clock.step(0.05)
    assert reader.read().fast.gpm == gpm
    clock.step(5.5)
    assert reader.read().fast.gpm == Missing("GPM sampled again after a gap")
    clock.step(1)
    assert is_known(reader.read().fast.gpm)


def test_gpm_metrics_fail_one_by_one_and_implausible_ones_are_dropped():
    card = FakeCard(gpm={2: 100.4, 3: float("nan"), 10: 240.0})
    gpm = read_twice(FakeNvml(card))[1].fast.gpm
    assert gpm.sm_active_pct == 100.0
    assert gpm.occupancy_pct == Missing("GPM gave no number")
    assert gpm.tensor_pct == Missing("not supported by this card")
    assert gpm.dram_pct == Missing("GPM gave 240 %")


def test_a_card_without_gpm_is_asked_once():
    nvml = FakeNvml(FakeCard(gpm=None))
    second = read_twice(nvml)[1]
    assert second.fast.gpm == Missing("no GPM on this card (Hopper and newer have it)")
    assert nvml.calls.count("nvmlGpmQueryDeviceSupport") == 1


def make_mig_card() -> FakeCard:
    devices = [
        FakeCard(
            uuid=f"MIG-{number}",
            instance=number,
            used=number << 30,
            total=10 << 30,
            processes=[(100 + number, 1 << 30), (7, 1)],
            gpm={2: 10.0 * number},
        )
        for number in (1, 2)
    ]
    return FakeCard(mig=1, mig_devices=devices)


def test_mig_instances_have_memory_activity_and_processes_and_are_found_anew_when_rebuilt():
    nvml = FakeNvml(make_mig_card())
    nvml.failures["nvmlDeviceGetSamples"] = 3
    nvml.failures["nvmlDeviceGetUtilizationRates"] = 3
    first, second = read_twice(nvml)
    assert first.slow.mig is True
    shown = [(one.uuid, one.memory_used_bytes, one.sm_active_pct) for one in second.fast.instances]
    assert shown == [("MIG-1", 1 << 30, 10.0), ("MIG-2", 2 << 30, 20.0)]
    assert {one.pid for one in second.fast.processes} == {101, 102, 7}
    assert [one.pids for one in second.fast.instances] == [(7, 101), (7, 102)]
    assert second.fast.busy == Missing("not supported by this card")
    reader, clock = make_reader(nvml)
    reader.read()
    nvml.cards[0].mig_devices[0] = FakeCard(uuid="MIG-9", instance=9)
    clock.step(10)
    found = reader.read().fast.instances
    assert [one.uuid for one in found] == ["MIG-9", "MIG-2"]
    assert isinstance(found[0].sm_active_pct, Missing)


@pytest.mark.parametrize("refused", [{"MIG-1"}, {"MIG-2"}, {"MIG-1", "MIG-2"}])
def test_a_mig_instance_that_may_not_be_read_costs_its_own_list(refused):
    class Guarded(FakeNvml):
        def nvmlDeviceGetComputeRunningProcesses_v3(self, card):
            if card.uuid in refused:
                raise pynvml.NVMLError(4)
            return FakeNvml.nvmlDeviceGetComputeRunningProcesses_v3(self, card)

    listed = make_reader(Guarded(make_mig_card()))[0].read().fast.processes
    if len(refused) == 2:
        assert listed == Missing("no permission (doctor: nvml)")
    else:
        assert [one.pid for one in listed] == [102 if "MIG-1" in refused else 101, 7]


def test_lines_survive_the_pipe():
    for line in (*read_twice(FakeNvml()), *read_twice(FakeNvml(make_mig_card()))):
        assert decode_line(encode_line(Line(card=line))) == Line(card=line)


def test_strange_answers_cost_their_field():
    class Strange(FakeNvml):
        def nvmlDeviceGetMarginTemperature(self, card):
            raise pynvml.NVMLLibraryMismatchError("Unversioned function called")  # outside the tree of errors

        def nvmlDeviceGetProcessesUtilizationInfo(self, card, since):
            raise pynvml.NVMLError(0)  # for a list of no entry

        def nvmlDeviceGetRemappedRows(self, card):
            return ()

        def nvmlDeviceGetPowerUsage(self, card):
            return float("inf")

        def nvmlDeviceGetMigMode(self, card):
            return SimpleNamespace()

    line = make_reader(Strange())[0].read()
    assert isinstance(line.health.remapped_rows_pending, Missing)
    assert isinstance(line.fast.power_w, Missing)
    assert isinstance(line.slow.mig, Missing)
    assert line.slow.margin_c == Missing("this driver does not have the call")
    assert line.fast.processes[0].sm_pct == Missing("no sample since the last reading")
