"""Settings on the bus: what tpmon reads of them, and what it says where there are none."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace
from weakref import ref

import pytest

from tpmon.hook.bus import wire_settings as wire
from tpmon.hook.settings import Settings
from tpmon.hook.tensors import note_wrapper
from tpmon.model.hook import (
    NO_DEVICE,
    NO_SETTINGS,
    AllocatorFigures,
    CompileCounts,
    DdpSettings,
    DeviceTimes,
    FsdpSettings,
    LoaderSettings,
    StateSizes,
)
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.probe.hooked.settings import parse_device, parse_settings

S = 10**9
NO_TURNS = Missing("no step was watched from turn to turn")


@pytest.fixture
def page():
    return memoryview(bytearray(4096))


def settings_with(page: memoryview, **words: int):
    every = [-1] * wire.SETTINGS_WORDS
    every[wire.SET_NUMBER] = every[wire.SET_NUMBER_AGAIN] = 1
    every[wire.SET_TIME_NS] = 7 * S
    for name, value in words.items():
        every[getattr(wire, "SET_" + name.upper())] = value
    wire.write_settings(page, every)
    settings = parse_settings(page, 9 * S)
    assert is_known(settings)
    return settings


def test_the_timeout_of_the_default_process_group_is_read(monkeypatch):
    options = SimpleNamespace(_timeout=timedelta(minutes=30))
    group = SimpleNamespace(_get_backend=lambda _device: SimpleNamespace(options=options))
    world = SimpleNamespace(default_pg=None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(device=str))
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    settings = Settings()
    settings.begin()
    assert settings.read(1)[wire.SET_TIMEOUT_S] == wire.UNKNOWN
    world.default_pg = group
    assert settings.read(2)[wire.SET_TIMEOUT_S] == 1800


def test_a_page_without_settings_says_so_and_what_the_hook_could_not_read_is_missing_and_never_false(page):
    assert (parse_settings(page, 5), parse_device(page, 5)) == (NO_SETTINGS, NO_DEVICE)
    settings = settings_with(page)
    assert settings.age_s == 2.0
    values = [getattr(settings, name) for name in settings.__slots__ if name != "age_s"]
    assert [value for value in values if not isinstance(value, Missing)] == []


NAMES = ("frames", "frames_ok", "graphs", "breaks", "limit_hits")
COMPILED = {f"dynamo_{name}": number for number, name in enumerate(NAMES)}
FIGURES = {
    name: number
    for number, name in enumerate(
        ("allocated", "reserved", "inactive_split", "peak_allocated", "peak_reserved", "alloc_retries", "ooms")
    )
}
FSDP_1 = {"fsdp_version": 1, "fsdp_units": 9, "fsdp_forward": 0, "fsdp_backward": wire.FSDP_BACKWARD_PRE}
FSDP_2 = {"fsdp_version": 2, "fsdp_units": 9, "fsdp_forward": 8, "fsdp_backward": 0}
HELD = {"cuda": 1, **FIGURES, "allocated_at_backward": 99}
DDP = {"ddp_bucket_cap": 25, "ddp_buckets": 3, "ddp_find_unused": 1, "ddp_static_graph": 0}
ALONE = {"workers": 0, "pin_memory": 1, "persistent_workers": 0, "batch_size": 32}
FOUR = {"workers": 4, "pin_memory": 0, "prefetch_factor": 2, "persistent_workers": 1}
NO_CUDA = Missing("CUDA is not in use in this process")
NO_FSDP = Missing("no FSDP was made since the hook came")


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ({"matmul_tf32": 1}, "matmul_tf32", True),
        ({"cudnn_deterministic": 1}, "cudnn_deterministic", True),
        ({"deterministic": 0}, "deterministic", False),
        ({"anomaly": 0}, "anomaly", False),
        ({"autocast": 1}, "autocast", True),
        ({"autocast_dtype": wire.DTYPE_BFLOAT16}, "autocast_dtype", "bfloat16"),
        ({"autocast_dtype": wire.DTYPE_OTHER}, "autocast_dtype", "another"),
        ({"sdpa": wire.SDPA_FLASH | wire.SDPA_MATH}, "sdpa", ("flash", "math")),
        ({"threads": 8}, "threads", 8),
        (COMPILED, "compiled", CompileCounts(0, 1, 2, 3, 4)),
        ({"dynamo_frames": 5}, "compiled", Missing("nothing is compiled with torch.compile")),
        (HELD, "allocator", AllocatorFigures(0, 1, 2, 3, 4, 5, 6, 99, NO_TURNS)),
        ({"cuda": 0, **FIGURES}, "allocator", NO_CUDA),
        ({"parameters": 40, "gradients": 40, "optimizer_state": 80}, "sizes", StateSizes(40, 40, 80, NO_CUDA)),
        (DDP, "ddp", DdpSettings(25, 3, find_unused=True, static_graph=False)),
        ({**FSDP_1, "fsdp_limit": 1}, "fsdp", FsdpSettings(1, 9, "off", "BACKWARD_PRE", limit_all_gathers=True)),
        (FSDP_2, "fsdp", FsdpSettings(2, 9, "8 of 9 units", "torch's order", NOT_APPLICABLE)),
        ({"fsdp_version": 1}, "fsdp", NO_FSDP),
        ({}, "fsdp", NO_FSDP),
        (ALONE, "loader", LoaderSettings(0, True, Missing("no workers fetch ahead"), False, 32)),
        (FOUR, "loader", LoaderSettings(4, False, 2, True, Missing("the DataLoader does not say it"))),
    ],
)
def test_settings_come_back_as_they_were_whole_or_missing(page, words, field, value):
    assert getattr(settings_with(page, **words), field) == value


def test_device_times_come_back_as_they_were(page):
    words = [0] * wire.DEVICE_WORDS
    words[wire.DEV_NUMBER] = words[wire.DEV_NUMBER_AGAIN] = 4
    words[wire.DEV_TIME_NS] = 8 * S
    wire.write_device(page, words)
    assert parse_device(page, 9 * S) == NO_DEVICE
    words[wire.DEV_STEPS : wire.DEV_DROPPED + 1] = [3, 60, 20, 30, 10, 75, 16, 2]
    wire.write_device(page, words)
    assert parse_device(page, 9 * S) == DeviceTimes(1.0, 3, 16, 2, 60, 20, 30, 10, 75)


def test_fsdp_is_read_where_it_was_made_and_nowhere_else(monkeypatch):
    """The modules of torch are played; tests/frameworks/hooked reads the real ones."""

    class State:
        def __init__(self, forward=0):
            self._states_to_forward_prefetch = [None] * forward
            self._states_to_backward_prefetch: list[None] = []

    class Wrapper:
        backward_prefetch = SimpleNamespace(name="BACKWARD_POST")
        forward_prefetch = True
        limit_all_gathers = False

        def modules(self):
            return [self, object(), Wrapper()]

    words = Settings().words
    assert set(words[wire.SET_FSDP_VERSION : wire.SET_FSDP_LIMIT + 1]) == {wire.UNKNOWN}
    states = [State(), State(2)]
    played = {
        "torch.distributed._composable_state": {"_module_state_mapping": dict(enumerate([ref(one) for one in states]))},
        "torch.distributed.fsdp._fully_shard._fsdp_state": {"FSDPState": State},
    }
    for name, content in played.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**content))
    settings = Settings()
    settings._read_fsdp()
    assert settings.words[wire.SET_FSDP_VERSION : wire.SET_FSDP_LIMIT + 1] == [2, 2, 1, 0, wire.UNKNOWN]
    assert len(settings.words) == wire.SETTINGS_WORDS, "a group with a word less would move those behind it"
    with pytest.raises(ValueError, match="2 words"):
        settings._write(slice(wire.SET_FSDP_VERSION, wire.SET_FSDP_LIMIT + 1), [1, 2])
    wrapper = Wrapper()
    settings.fsdp = ref(wrapper)
    settings._read_fsdp()
    assert settings.words[wire.SET_FSDP_VERSION : wire.SET_FSDP_LIMIT + 1] == [1, 2, 1, wire.FSDP_BACKWARD_POST, 0]
    monkeypatch.setitem(sys.modules, "torch.distributed._composable_state", SimpleNamespace(_module_state_mapping={}))
    del wrapper
    settings._read_fsdp()
    assert set(settings.words[wire.SET_FSDP_VERSION : wire.SET_FSDP_LIMIT + 1]) == {wire.UNKNOWN}


class Part:
    """A module, by what torch's has."""

    def __init__(self, *parts: Part, size: int = 0) -> None:
        self._modules = {str(at): part for at, part in enumerate(parts)}
        self._parameters = {"weight": object()}
        self.find_unused_parameters = False
        self.size = size

    def _get_ddp_logging_data(self) -> dict[str, object]:
        return {"bucket_cap_bytes": self.size}


class Plain:
    """An optimizer, by what torch's has."""

    def __init__(self, *models: Part) -> None:
        self.param_groups = [{"params": [one for model in models for one in model._parameters.values()]}]


def test_of_fsdp_the_outermost_of_each_model_is_kept():
    inner = [Part(), Part()]
    first, second = Part(*inner), Part()
    made: list[object] = []
    for one in (*inner, first, second):
        made = note_wrapper(made, one)
    assert [one() for one in made] == [first, second]
    del first
    assert [one() for one in note_wrapper(made, second)] == [second], "and none that is gone"


def test_settings_are_those_of_the_model_that_is_trained_and_go_with_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    actor, reference = Part(size=25), Part(size=99)
    optimizer, other = Plain(actor), Plain(Part())
    made = [ref(actor), ref(reference)]
    settings = Settings()

    def read(optimizer):
        settings._readings = 0
        settings.note_wrappers(made, [], ref(optimizer))
        settings._read_ddp()
        return settings.words[wire.SET_DDP_BUCKET_CAP]

    assert read(optimizer) == 25
    assert read(other) == wire.UNKNOWN, "several, and it is not known which"
    assert read(optimizer) == 25
    del reference
    assert read(other) == 25, "the only one that is left"
    settings._read_ddp()
    del actor, optimizer
    settings._read_ddp()
    told = settings.words[wire.SET_DDP_BUCKET_CAP : wire.SET_DDP_STATIC_GRAPH + 1]
    assert told == [wire.UNKNOWN] * 4
