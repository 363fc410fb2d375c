"""Faults of cards and drivers: what the board reads, one fault a card, and what tpmon says of a job on such cards.

tests/budget/cards.c stands in for the driver, below the real pynvml and the real NVML child. Each case says what of
its card is missing and what is known once its fault shows; beside that every value of every card lies within its
bound from the first reading on. The cards and the verdicts on them are watched all at once: most of it is waiting.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cards import Cards
from tests.children import MAP_TORCH, Child, child
from tests.command_line import start
from tpmon.model.gpu import GpuSample, GpuState
from tpmon.model.known import Known, Missing, is_known
from tpmon.probe.gpu.child_link import GpuProbe

WATCHED_S = 13.0
STEADY_S = 8.0
"""From then on each fault shows; those that change something do so at 3 s."""
CARDS_A_CHILD = 50
UNSET, WILD = 0xFFFFFFFF, 2**64 - 1

DEVICE = "nvmlDeviceGet"
FIELDS = f"{DEVICE}FieldValues"
PROCESSES = f"{DEVICE}ComputeRunningProcesses_v3"
SHARES = f"{DEVICE}ProcessesUtilizationInfo"
REASONS = f"{DEVICE}CurrentClocksEventReasons"
GPM = "nvmlGpmMetricsGet"
SENSOR_ONLY = (f"{FIELDS}/83 code 3", f"{DEVICE}TotalEnergyConsumption code 3")
NO_SAMPLES = (f"{DEVICE}Samples code 3",)
NO_GPM = ("nvmlGpmQueryDeviceSupport value 0",)
OF_WSL = (f"{DEVICE}Samples", f"{DEVICE}UtilizationRates", FIELDS, SHARES)
ALSO_REFUSED = (
    *(f"{DEVICE}{name}" for name in ("PowerUsage", "TotalEnergyConsumption", "MemoryInfo_v2", "MemoryInfo")),
    *(PROCESSES, REASONS, f"{DEVICE}ClockInfo", f"{DEVICE}MigMode", "nvmlGpmQueryDeviceSupport"),
)
STUCK, UNKNOWN, ACTIVE = "does not return from this call", "unknown driver error", "but SMs were active"
BOUND = "can be"

Holds = Callable[[GpuSample], bool]


@dataclass(frozen=True)
class Case:
    """Name a fault of one card by its lines; ``missing`` pairs a reading with words of the reason."""

    faults: tuple[str, ...]
    missing: tuple[tuple[str, str], ...] = ()
    holds: Holds = lambda _: True
    state: GpuState = GpuState.OK


def near(name: str, least: float, most: float = math.inf) -> Holds:
    def check(card: GpuSample) -> bool:
        value = getattr(card, name)
        return is_known(value) and least <= value <= most

    return check


def of_first(wanted: Callable[[Known[float]], bool]) -> Holds:
    return lambda card: is_known(card.processes) and wanted(card.processes[0].sm_pct)


def says(call: str, value: object, reading: str, words: str = BOUND) -> Case:
    return Case((f"{call} value {value}",), ((reading, words),))


def refuses(call: str, code: int, reading: str, words: str) -> Case:
    return Case((f"{call} code {code}",), ((reading, words),))


def hangs(call: str, reading: str) -> Case:
    return Case((f"{call} block",), ((reading, STUCK),), near("sm_pct", 85))


def hangs_but(call: str, holds: Holds) -> Case:
    return Case((f"{call} block",), (), lambda card: holds(card) and near("sm_pct", 85)(card))


CASES = {
    "nothing": Case((), holds=near("power_w", 540, 580)),
    # What cannot be.
    "limit unset": says(f"{DEVICE}EnforcedPowerLimit", UNSET, "power_limit_w"),
    "limit 0": says(f"{DEVICE}EnforcedPowerLimit", 0, "power_limit_w"),
    "sensor unset beside the energy": Case((f"{DEVICE}PowerUsage value {UNSET}",), holds=near("power_w", 540, 580)),
    "sensor unset": Case((f"{DEVICE}PowerUsage value {UNSET}", *SENSOR_ONLY), (("power_w", "at most 910"),)),
    "sensor 0": Case((f"{DEVICE}PowerUsage value 0", *SENSOR_ONLY), (("power_w", BOUND),)),
    "energy wild": Case((f"{FIELDS}/83 rate 1e12",), holds=near("power_w", 550, 630)),
    "energy of twice the limit": Case((f"{FIELDS}/83 rate 1400000",), holds=near("power_w", 550, 630)),
    "energy that stands still": Case((f"{FIELDS}/83 value 7",), holds=near("power_w", 550, 630)),
    "energy that moves each 3 s": Case((f"{FIELDS}/83 hold 3000",), holds=near("power_w", 370, 850)),
    "energy without a stamp": Case((f"{FIELDS}/83 stamp 0",), holds=near("power_w", 500, 630)),
    "energy of another year": Case((f"{FIELDS}/83 stamp {2**53}",), holds=near("power_w", 500, 630)),
    "energy read late": Case((f"{FIELDS} stall 300 every 3",), holds=near("power_w", 540, 580)),
    "clock unset": says(f"{DEVICE}ClockInfo/1", UNSET, "sm_clock_mhz"),
    "clock 0": says(f"{DEVICE}ClockInfo/1", 0, "sm_clock_mhz"),
    "memory clock unset": says(f"{DEVICE}ClockInfo/2", UNSET, "memory_clock_mhz"),
    "highest clock unset": says(f"{DEVICE}MaxClockInfo/1", UNSET, "sm_clock_max_mhz"),
    "highest clock too low": Case((f"{DEVICE}MaxClockInfo/1 value 1700",), holds=near("sm_clock_mhz", 1900, 1980)),
    "temperature unset": says(f"{DEVICE}Temperature", UNSET, "temperature_c"),
    "temperature 0": says(f"{DEVICE}Temperature", 0, "temperature_c"),
    "memory temperature wild": says(f"{FIELDS}/82", WILD, "memory_temperature_c"),
    "margin unset": says(f"{DEVICE}MarginTemperature", 0x7FFFFFFF, "temperature_margin_c"),
    "memory used wild": says(f"{DEVICE}MemoryInfo_v2/2", WILD, "memory_used_bytes"),
    "memory used of more than all": says(f"{DEVICE}MemoryInfo_v2/2", 99_000_000_000, "memory_used_bytes"),
    "memory wild": says(f"{DEVICE}MemoryInfo_v2/1", WILD, "memory_total_bytes"),
    "samples unset": Case((f"{DEVICE}Samples/1 value {UNSET}",), holds=near("sm_pct", 85)),
    "samples and one-shot value wild": Case(
        (*NO_SAMPLES, f"{DEVICE}UtilizationRates/1 value 2147483632"), (("sm_pct", BOUND),)
    ),
    "memory samples and one-shot value wild": Case(
        (f"{DEVICE}Samples/2 code 6", f"{DEVICE}UtilizationRates/2 value 400"), (("memory_busy_pct", BOUND),)
    ),
    "older memory call wild": Case(
        (f"{DEVICE}MemoryInfo_v2 code 13", f"{DEVICE}MemoryInfo/2 value {WILD}"), (("memory_used_bytes", BOUND),)
    ),
    "other temperature call wild": Case(
        (f"{DEVICE}Temperature code 13", f"{DEVICE}TemperatureV value 70000"), (("temperature_c", BOUND),)
    ),
    "older reasons wild": Case(
        (f"{REASONS} code 13", f"{DEVICE}CurrentClocksThrottleReasons value {WILD}"), (("throttle_known", BOUND),)
    ),
    "SM activity wild": says(f"{GPM}/2", 1e9, "sm_active_pct", "GPM gave"),
    "tensor activity no number": says(f"{GPM}/5", "nan", "tensor_pct", "GPM gave"),
    "PCIe bytes wild": says(f"{GPM}/20", 1e12, "pcie_tx_bytes_s"),
    "NVLink bytes wild": says(f"{GPM}/61", 1e12, "nvlink_tx_bytes_s"),
    "counted PCIe bytes wild": Case((*NO_GPM, f"{FIELDS}/197 rate 1e15"), (("pcie_tx_bytes_s", BOUND),)),
    "counted NVLink bytes wild": Case((*NO_GPM, f"{FIELDS}/138 rate 1e15"), (("nvlink_tx_bytes_s", BOUND),)),
    "generation wild": says(f"{DEVICE}CurrPcieLinkGeneration", 200, "pcie_generation"),
    "width 0": says(f"{DEVICE}CurrPcieLinkWidth", 0, "pcie_width"),
    "widest unset": says(f"{DEVICE}MaxPcieLinkWidth", UNSET, "pcie_width_max"),
    "reasons unset": says(REASONS, WILD, "throttle_known"),
    "a reason without a name": Case(
        (f"{REASONS} value 0x1000",), holds=lambda card: card.throttle == ("unknown reason 0x1000",)
    ),
    "errors unset": says(f"{DEVICE}TotalEccErrors", WILD, "ecc_uncorrected"),
    "a PID unset": says(f"{PROCESSES}/1", UNSET, "processes", "lists PID"),
    "a process with more than all": Case(
        (f"{PROCESSES}/2 value 99000000000",),
        holds=lambda card: is_known(card.processes) and not is_known(card.processes[0].used_bytes),
    ),
    **{f"{value} for everything": Case((f"* value {value}",)) for value in (UNSET, WILD, 0, 1, 2**31)},
    # What other readings of the same second deny.
    "rest while SMs are active": says(f"{DEVICE}Samples/1", 0, "sm_pct", ACTIVE),
    "one-shot rest while SMs are active": Case(
        (*NO_SAMPLES, f"{DEVICE}UtilizationRates/1 value 0"), (("sm_pct", ACTIVE), ("memory_busy_pct", ACTIVE))
    ),
    "rest at full power": Case((f"{DEVICE}Samples/1 value 3", *NO_GPM), (("sm_pct", "of 700 W"),)),
    "rest at full power by the sensor": Case(
        (f"{DEVICE}Samples/1 value 0", *NO_GPM, *SENSOR_ONLY), (("sm_pct", "of 700 W"),)
    ),
    "rest": Case(
        (f"{DEVICE}Samples/1 value 0", *NO_GPM, f"{FIELDS}/83 rate 70000", f"{DEVICE}PowerUsage value 70000"),
        holds=near("sm_pct", 0, 0),
    ),
    "a share of nobody": Case((f"{SHARES} value 0",), holds=of_first(lambda pct: not is_known(pct))),
    "the share of one": Case((), holds=of_first(lambda pct: is_known(pct) and pct > 90)),
    "a share that ends": Case((f"{SHARES} value 0 after 3",), holds=of_first(lambda pct: pct == 0)),
    "link of a chip": Case(
        (f"{DEVICE}CurrPcieLinkGeneration value 1", f"{DEVICE}BusType value 3"),
        (("pcie_generation", "PCIe"), ("pcie_width", "PCIe")),
    ),
    "a link too slow for what it moves": Case(
        (f"{DEVICE}CurrPcieLinkGeneration value 1", f"{DEVICE}CurrPcieLinkWidth value 1"),
        (("pcie_generation", "went over it"), ("pcie_width", "went over it")),
    ),
    "memory of a chip": Case(
        (
            f"{DEVICE}MemoryInfo_v2 code 3",
            f"{DEVICE}MemoryInfo code 3",
            f"{DEVICE}BusType code 3",
            f"{DEVICE}CurrPcieLinkGeneration value 1",
        ),
        (("memory_used_bytes", "host's"), ("pcie_generation", "not connected by PCIe")),
    ),
    # A call that is refused.
    "utilisation as under WSL": Case(
        tuple(f"{call} code 999" for call in OF_WSL), (("sm_pct", UNKNOWN),), near("temperature_c", 50, 70)
    ),
    "only the temperature is told": Case(
        tuple(f"{call} code 999" for call in (*OF_WSL, *ALSO_REFUSED)),
        (("power_w", UNKNOWN),),
        near("temperature_c", 50, 70),
    ),
    "UUID refused": Case((f"{DEVICE}UUID code 4",), holds=near("sm_pct", 85)),
    "all refused": Case(("* code 4",), (("sm_pct", "no permission"),), state=GpuState.REFUSED),
    "all but the opening refused": Case(
        ("* code 4 after 3",), (("sm_pct", "no permission"), ("power_w", "no permission")), state=GpuState.REFUSED
    ),
    "list refused": refuses(PROCESSES, 4, "processes", "no permission"),
    "recovery refused": refuses(f"{FIELDS}/230", 4, "recovery_action", "no permission"),
    "fields refused": refuses(FIELDS, 17, "memory_temperature_c", "operating system"),
    "GPM refused": refuses("nvmlGpmSampleGet", 4, "sm_active_pct", "no permission"),
    "off the bus": Case(("* code 15 after 3",), (("sm_pct", "GPU is lost"),), state=GpuState.LOST),
    "off the bus without a word": Case(("* code 999 after 3",), (("sm_pct", UNKNOWN),), state=GpuState.LOST),
    "in want of a reset": Case(("* code 16 after 3",), (("power_w", "reset"),), state=GpuState.LOST),
    # A call that does not return, or late.
    "silent from the first": Case(("* block",), (("sm_pct", "not answered yet"),), state=GpuState.STALE),
    "silent after a while": Case(("* block after 3",), (("power_w", "does not answer"),), state=GpuState.STALE),
    "opening hangs": Case((f"{DEVICE}HandleByIndex_v2 block",), (("sm_pct", "not answered"),), state=GpuState.STALE),
    "name hangs": hangs_but(f"{DEVICE}Name", lambda card: card.name == "unknown card"),
    "UUID hangs": hangs_but(f"{DEVICE}UUID", lambda card: card.uuid.startswith("card-")),
    "link hangs": hangs(f"{DEVICE}CurrPcieLinkGeneration", "pcie_generation"),
    "rows hang": hangs(f"{DEVICE}RemappedRows", "remapped_rows_failed"),
    "limit hangs": hangs(f"{DEVICE}EnforcedPowerLimit", "power_limit_w"),
    "list hangs": hangs(PROCESSES, "processes"),
    "GPM hangs": hangs("nvmlGpmSampleGet", "sm_active_pct"),
    "fields hang": hangs(FIELDS, "memory_temperature_c"),
    "sensor hangs": hangs_but(f"{DEVICE}PowerUsage", near("power_w", 540, 580)),
    "memory hangs": hangs_but(f"{DEVICE}MemoryInfo_v2", near("memory_used_bytes", 1e9, 85e9)),
    "samples hang": hangs_but(f"{DEVICE}Samples", lambda card: card.sm_samples == 0),
    "reasons hang": hangs_but(REASONS, lambda card: is_known(card.throttle_known)),
    "samples late": Case((f"{DEVICE}Samples stall 200",), holds=near("sm_pct", 85)),
    "rows late": Case((f"{DEVICE}RemappedRows stall 2500",), holds=near("sm_pct", 85)),
}

OF_DRIVERS = ("driver nvmlSystemGetDriverVersion block", "driver nvmlEventSetCreate block")
"""Faults that no card has: one in each child."""
RANGES = {
    **dict.fromkeys(("sm_pct", "memory_busy_pct", "sm_active_pct", "occupancy_pct"), (0, 100)),
    **dict.fromkeys(("decoder_pct", "jpeg_pct"), (0, 100)),
    **dict.fromkeys(("tensor_pct", "dram_pct"), (0, 100)),
    **dict.fromkeys(("sm_idle_ratio", "sm_busy_ratio"), (0, 1)),
    **dict.fromkeys(("pcie_tx_bytes_s", "pcie_rx_bytes_s"), (0, 80e9)),
    **dict.fromkeys(("nvlink_tx_bytes_s", "nvlink_rx_bytes_s"), (0, 4e12)),
    **dict.fromkeys(("temperature_c", "memory_temperature_c"), (1, 150)),
    "temperature_margin_c": (-100, 150),
    "power_w": (1, 910),
    "power_limit_w": (1, 5000),
    "sm_clock_mhz": (1, 1980 * 1.5),
    "memory_clock_mhz": (1, 2619 * 1.5),
    "memory_used_bytes": (0, 85_520_809_984),
    "pcie_generation": (1, 5),
    "pcie_width": (1, 32),
    "ecc_uncorrected": (0, 1e9),
}
"""What an H100 can say at all, told by nothing that tpmon computes."""


@dataclass
class Watched:
    """Hold what was seen of the cards of one child: at which second, and every card."""

    names: Sequence[str]
    cards: Cards
    probe: GpuProbe
    pids: set[object]
    seen: list[tuple[float, tuple[GpuSample, ...]]]
    words: set[str]


def start_board(folder: Path, names: Sequence[str], of_driver: str) -> Watched:
    folder.mkdir()
    cards = Cards(folder, len(names), [1000 + place for place in range(len(names))])
    lines = [f"{place} {fault}" for place, name in enumerate(names) for fault in CASES[name].faults]
    cards.fail(*lines, of_driver)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cards.environment.items():
            patch.setenv(name, value)
        probe = GpuProbe()
        probe.start()
        deadline = time.monotonic() + 30
        while not is_known(probe.child_pid()) and time.monotonic() < deadline:
            time.sleep(0.01)
    return Watched(names, cards, probe, {probe.child_pid()}, [], set())


Story = list[tuple[float, GpuSample]]


def _is_stale(card: GpuSample) -> bool:
    return card.state is GpuState.STALE


def watch_boards(children: Sequence[Watched]) -> dict[str, Story]:
    """Watch all cases at once, and return what each card was said to be from second to second."""
    began = time.monotonic()
    while (second := time.monotonic() - began) < WATCHED_S:
        for one in children:
            reading = one.probe.read({})
            one.words.update((*reading.events, *reading.notes))
            one.pids.add(one.probe.child_pid())
            # A child that the machine stops tells of all its cards late: that is no fault of one card.
            if is_known(reading.gpus) and 2 * sum(map(_is_stale, reading.gpus)) < len(reading.gpus):
                one.seen.append((second, reading.gpus))
        time.sleep(0.2)
    for one in children:
        one.probe.stop()
    stories: dict[str, Story] = {name: [] for name in CASES}
    for one in children:
        assert len(one.pids) == 1, f"the child ended: {one.words}"
        assert not [words for words in one.words if "failed" in words or "not understood" in words]
        for second, cards in one.seen:
            for card in cards:
                stories[one.names[card.index]].append((second, card))
    return stories


WAITING = MAP_TORCH + 'say("ready")\nhear()'
COMPUTING = MAP_TORCH + 'say("ready")\nwhile True: sum(range(1000))'
ON_ONE_LOOK = {
    "one silent from the first": "1 * block",
    "one off the bus": "1 * code 15",
    "every value unset": f"* * value {UNSET}",
    "every value 0": "* * value 0",
    "all silent": "* * block",
    "all refused": "* * code 4",
    "no card": "driver nvmlDeviceGetCount_v2 code 999",
    "init hangs": "driver nvmlInitWithFlags block",
    "versions hang": "driver nvmlSystemGetDriverVersion block",
}
OVER_A_WHILE = ("", "1 * block", "1 * code 15", "1 * block after 4", "* * block after 4", "0 * stall 60000 after 4")
"""A healthy pair, and cards that are busy until one or all of them fall silent."""


LOOKS_AT_ONCE = 2
"""One look gives a driver some seconds to open, which as many starts as there are faults would use up."""
Said = tuple[int, str, str]
"""Exit code, output and errors of a command."""


@dataclass
class Begun:
    """Hold what has begun: a job that waits, looks at it, the boards, and tpmon beside a job that computes."""

    job: Child
    looks: dict[str, Said]
    boards: Future[dict[str, Story]]
    diagnoses: dict[str, subprocess.Popen[str]]


def ask(folder: Path, job: Child, fault: str, *command: str) -> subprocess.Popen[str]:
    cards = Cards(folder, 2, [job.pid] * 2)
    cards.fail(fault)
    return start(*command, env={**os.environ, **cards.environment})


def look_once(job: Child, folder: Path, fault: str) -> Said:
    asked = ask(folder, job, fault, "attach", str(job.pid), "--once", "--json")
    output, errors = asked.communicate(timeout=120)
    return asked.returncode, output, errors


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    folder = tmp_path_factory.mktemp("cards")
    names = list(CASES)
    parts = [names[first : first + CARDS_A_CHILD] for first in range(0, len(names), CARDS_A_CHILD)]
    with (
        child(WAITING, str(folder)) as waiting,
        child(COMPUTING, str(folder)) as computing,
        ThreadPoolExecutor(LOOKS_AT_ONCE) as pool,
    ):
        looking = {
            name: pool.submit(look_once, waiting, tmp_path_factory.mktemp("once"), fault)
            for name, fault in ON_ONE_LOOK.items()
        }
        looks = {name: one.result() for name, one in looking.items()}
        boards = [
            start_board(folder / str(place), part, of_driver)
            for place, (part, of_driver) in enumerate(zip(parts, OF_DRIVERS, strict=True))
        ]
        watched = pool.submit(watch_boards, boards)
        look = ("diagnose", str(computing.pid), "--for", "20s", "--json")
        asked = {fault: ask(tmp_path_factory.mktemp("busy"), computing, fault, *look) for fault in OVER_A_WHILE}
        yield Begun(waiting, looks, watched, asked)


@pytest.mark.parametrize("name", ON_ONE_LOOK)
def test_one_look_at_faulty_cards(begun: Begun, name: str) -> None:
    code, output, errors = begun.looks[name]
    assert (code, errors) == (0, "")
    gpus = json.loads(output)["gpus"]
    if name in ("no card", "init hangs") or isinstance(gpus, dict):
        assert gpus.keys() - {"why"} == {"missing"}
        assert name in ("no card", "init hangs", "all silent")
        return
    states = [card["state"] for card in gpus]
    healthy = [card for card in gpus if not isinstance(card["sm_pct"], dict)]
    if name.startswith("one "):
        assert states == ["ok", "stale" if "silent" in name else "lost"]
        assert len(healthy) == 1
    elif name in ("all refused", "all silent"):
        assert states == ["refused" if name == "all refused" else "stale"] * 2
    elif name == "versions hang":
        assert states == ["ok"] * 2
        assert len(healthy) == 2
    else:
        assert all(isinstance(card["power_limit_w"], dict) for card in gpus)


def test_a_card_that_falls_silent_does_so_in_the_stream(begun: Begun, tmp_path: Path) -> None:
    running = ask(tmp_path, begun.job, "1 * block after 3", "attach", str(begun.job.pid), "--json")
    assert running.stdout is not None
    states: list[list[str]] = []
    for line in running.stdout:
        gpus = json.loads(line)["gpus"]
        states.append([card["state"] for card in gpus] if isinstance(gpus, list) else [])
        if states[-1] == ["ok", "stale"] and ["ok", "ok"] in states:
            assert gpus[1]["sm_pct"] == {"missing": "the card does not answer"}
            break
        assert len(states) < 30, states
    running.terminate()
    running.communicate()
    assert running.returncode == 143


@pytest.fixture(scope="module")
def watched(begun: Begun) -> dict[str, Story]:
    return begun.boards.result()


@pytest.mark.parametrize("name", CASES)
def test_a_fault_costs_what_it_must_and_no_more(watched: dict[str, Story], name: str) -> None:
    case = CASES[name]
    late = [card for second, card in watched[name] if second >= STEADY_S]
    assert late
    for card in late:
        assert card.state is case.state
        for reading, words in case.missing:
            value = getattr(card, reading)
            assert isinstance(value, Missing), (reading, value)
            assert words in value.reason
        assert case.holds(card), card


@pytest.mark.parametrize("name", CASES)
def test_no_value_is_beyond_its_bound(watched: dict[str, Story], name: str) -> None:
    for second, card in watched[name]:
        for reading, (least, most) in RANGES.items():
            value = getattr(card, reading)
            limited = reading != "power_w" or is_known(card.power_limit_w)
            assert not is_known(value) or not limited or least <= value <= most, (second, reading, value)


def test_sixty_faults_are_tried() -> None:
    assert sum(bool(case.faults) for case in CASES.values()) >= 60


@pytest.mark.parametrize("fault", OVER_A_WHILE, ids=lambda fault: fault or "no fault")
def test_no_verdict_is_healthy_over_a_silent_card(begun: Begun, fault: str) -> None:
    verdict, _ = begun.diagnoses[fault].communicate(timeout=120)
    assert begun.diagnoses[fault].returncode in ((10, 11, 12) if fault else (0,)), verdict
