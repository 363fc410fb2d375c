"""How often a card is asked what, how it is lost and found, and what GPM and MIG add."""

from types import SimpleNamespace

import pynvml
import pytest

from tests.fake_nvml import FakeCard, FakeNvml, make_reader, read_twice, ring
from tpmon.judge.rules.cards import LINK_LOAD_PCT
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.probe.gpu import nvml
from tpmon.probe.gpu.nvml_queries import describe_code
from tpmon.probe.gpu.wire import Line, decode_line, encode_line


def test_pcie_throughput_is_never_asked():
    nvml = FakeNvml()
    read_twice(nvml)
    assert not [name for name in nvml.calls if "Throughput" in name]


def test_a_second_costs_at_most_fifteen_calls():
    nvml = FakeNvml()
    nvml.cards[0].fields[91] = 18
    reader, clock = make_reader(nvml)
    reader.read()
    clock.step(1)
    nvml.calls.clear()
    reader.read()
    assert len(nvml.calls) <= 15


def test_tiers_are_read_when_due():
    reader, clock = make_reader(FakeNvml())
    seen: dict[str, list[int]] = {"slow": [], "health": [], "identity": []}
    for second in range(31):
        line = reader.read()
        for tier, seconds in seen.items():
            if getattr(line, tier) is not NOT_APPLICABLE:
                seconds.append(second)
        clock.step(1)
    assert seen == {"slow": [0, 10, 20, 30], "health": [0, 30], "identity": [0, 30]}


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


def test_what_is_not_supported_is_asked_again_with_the_health_tier_only():
    nvml = FakeNvml(failures={"nvmlDeviceGetPowerUsage": 3})
    reader, clock = make_reader(nvml)
    for _ in range(31):
        reader.read()
        clock.step(1)
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 2


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


def test_a_card_whose_uuid_is_refused_is_read_and_asked_again():
    nvml = FakeNvml(failures={"nvmlDeviceGetUUID": 4})
    reader, clock = make_reader(nvml)
    line = reader.read()
    assert (line.uuid, line.fast.power_w, line.lost) == ("", 412.5, NOT_APPLICABLE)
    nvml.failures = {}
    clock.step(30)
    assert reader.read().uuid == "GPU-0000"


def test_a_card_that_tells_anything_is_not_lost_by_unknown_errors():
    nvml = FakeNvml()
    nvml.failures = FakeNvml.fail_all(999, "nvmlDevice", "nvmlGpm")
    del nvml.failures["nvmlDeviceGetTemperature"]
    reader = make_reader(nvml)[0]
    reader.handle = nvml.cards[0]
    line = reader.read()
    assert (line.lost, line.fast.temperature_c) == (NOT_APPLICABLE, 61.0)


def test_what_tells_most_is_asked_first():
    nvml = FakeNvml()
    make_reader(nvml)[0].read()
    live = [name for name in nvml.calls if name.endswith(("GetSamples", "PowerUsage", "EventReasons", "GetMemoryInfo"))]
    rest = [name for name in nvml.calls if name.endswith(("Name", "LinkWidth", "RemappedRows", "MigMode", "BusType"))]
    assert max(map(nvml.calls.index, live)) < min(map(nvml.calls.index, rest))


def test_a_card_that_may_not_be_opened_is_not_lost():
    nvml = FakeNvml(failures={"nvmlDeviceGetHandleByIndex": 4})
    line = make_reader(nvml)[0].read()
    assert line.lost is NOT_APPLICABLE
    assert line.fast.power_w == Missing("no permission (doctor: nvml)")


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
    assert reader.read().fast.gpm == Missing("GPM samples lie too close together")
    clock.step(0.06)
    gpm = reader.read().fast.gpm
    assert (gpm.sm_active_pct, gpm.nvlink_tx_bytes_s) == (91.0, 3 * (1 << 20))
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


def test_mig_instances_have_memory_activity_and_processes():
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


def test_mig_rebuilt_instances_are_found_anew():
    nvml = FakeNvml(make_mig_card())
    reader, clock = make_reader(nvml)
    reader.read()
    nvml.cards[0].mig_devices[0] = FakeCard(uuid="MIG-9", instance=9)
    clock.step(10)
    line = reader.read()
    assert [one.uuid for one in line.fast.instances] == ["MIG-9", "MIG-2"]
    assert isinstance(line.fast.instances[0].sm_active_pct, Missing)


def test_lines_survive_the_pipe():
    for line in (*read_twice(FakeNvml()), *read_twice(FakeNvml(make_mig_card()))):
        assert decode_line(encode_line(Line(card=line))) == Line(card=line)


def test_strange_answers_cost_their_field():
    class Strange(FakeNvml):
        def nvmlDeviceGetRemappedRows(self, card):
            return ()

        def nvmlDeviceGetPowerUsage(self, card):
            return float("inf")

        def nvmlDeviceGetMigMode(self, card):
            return SimpleNamespace()

    line = make_reader(Strange())[0].read()
    assert is_known(line.health)
    assert is_known(line.slow)
    assert isinstance(line.health.remapped_rows_pending, Missing)
    assert isinstance(line.fast.power_w, Missing)
    assert isinstance(line.slow.mig, Missing)


def test_the_link_is_read_at_the_load_from_which_its_rule_judges_it():
    assert nvml.LOADED_PCT == LINK_LOAD_PCT
