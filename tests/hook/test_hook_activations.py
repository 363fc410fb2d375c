"""What a forward keeps for its backward, estimated from an allocator and an optimizer that the test plays."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from tests.hook.test_hook_memory import GIB, Allocator, card, read
from tests.hook_loop import Loop
from tpmon.hook.bus import wire_settings as wire
from tpmon.model.hook import StateSizes
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.probe.hooked.settings import parse_settings

__all__ = ["card"]
CPU = -1


class Tensor:
    """A tensor, by what is asked of one."""

    grad: Tensor | None = None

    def __init__(self, size: int, device: int = 0) -> None:
        self.size, self.device = size, device

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return 1

    @property
    def is_cuda(self) -> bool:
        return self.device >= 0

    def get_device(self) -> int:
        return self.device


Tensor.__module__ = "torch"


class Optimizer:
    """An optimizer, by what torch's has: 2 GiB of parameters and 4 of state."""

    def __init__(self, device: int = 0, state_on: int = 0) -> None:
        self.parameters = [Tensor(GIB, device), Tensor(GIB, device)]
        self.param_groups = [{"params": self.parameters}]
        self.state = {
            one: {"step": Tensor(4, CPU), "exp_avg": Tensor(2 * GIB, state_on), "eps": 0.1} for one in self.parameters
        }

    def grow(self) -> None:
        for one in self.parameters:
            one.grad = Tensor(GIB, one.device)

    def zero_grad(self) -> None:
        for one in self.parameters:
            one.grad = None


@pytest.fixture
def torch(card):
    module = sys.modules["torch"]
    module.Tensor = Tensor
    module._C = types.SimpleNamespace(
        _cuda_getDevice=lambda: 0, _cuda_memoryStats=card.memory_stats, is_anomaly_enabled=lambda: False
    )
    return module


def train(loop: Loop, card: Allocator, optimizers: list[Any], resting: int, forward: int, **how: bool) -> None:
    """Take steps that hold so many bytes between them and where a backward begins, gradients apart."""
    for _ in range(60):
        if loop.steps.watcher is not None and loop.steps.watcher._settings._readings > 3:
            return
        gradients = 0 if how.get("zeroed", True) else 2 * GIB
        card.hold(resting + gradients)
        loop.batch()
        loop.spend(200)
        card.hold(resting + gradients + forward)
        assert loop.steps.backward_begins()
        card.hold(resting + 2 * GIB)
        loop.steps.backward_ended(True)
        for one in optimizers:
            one.grow()
            loop.steps.optimizer_stepped(one, (), {})
            if how.get("zeroed", True):
                one.zero_grad()
    raise AssertionError("nothing was read")


def sizes(loop: Loop) -> StateSizes:
    settings = parse_settings(loop.steps.page, loop.now)
    assert is_known(settings.sizes), settings.sizes
    return settings.sizes


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("zeroed", [True, False])
def test_parameters_state_and_gradients_are_no_activations(loop, card, zeroed):
    optimizer = Optimizer()
    train(loop, card, [optimizer], 6 * GIB, 9 * GIB, zeroed=zeroed)
    held = 15 * GIB if zeroed else 17 * GIB
    assert read(loop).allocated_at_backward_bytes == held
    assert sizes(loop) == StateSizes(2 * GIB, 2 * GIB, 4 * GIB + 8, 9 * GIB)


def part_elsewhere(device: int) -> Optimizer:
    optimizer = Optimizer()
    optimizer.parameters[1].device = device
    return optimizer


CASES = {
    "a little lies there too: the loss of the step before, perhaps": (lambda: [Optimizer()], 8, 11),
    "frozen parameters lie there too": (lambda: [Optimizer()], 30, 9),
    "state on the host is not taken off": (lambda: [Optimizer(state_on=CPU)], 2, 9),
    "parameters on the host": (lambda: [part_elsewhere(CPU)], 6, "not on the one device"),
    "parameters on another device": (lambda: [part_elsewhere(1)], 6, "not on the one device"),
    "several optimizers": (lambda: [Optimizer(), Optimizer()], 12, "one optimizer"),
}
"""The optimizers, GiB between two steps (9 more where a backward begins), and of activations, or why they are not known."""


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(("optimizers", "resting", "expected"), CASES.values(), ids=CASES)
def test_what_is_no_parameter_state_or_gradient_is_an_activation(loop, card, optimizers, resting, expected):
    train(loop, card, optimizers(), resting * GIB, 9 * GIB)
    told = sizes(loop).activation_bytes
    if isinstance(expected, int):
        assert told == expected * GIB
    else:
        assert isinstance(told, Missing)
        assert expected in told.reason


@pytest.mark.usefixtures("torch")
def test_it_is_never_below_nothing(loop, card):
    optimizer = Optimizer()
    train(loop, card, [optimizer], GIB, GIB)
    assert loop.steps.watcher._settings.words[wire.SET_ACTIVATIONS] == 0
    assert isinstance(sizes(loop).activation_bytes, Missing), "as on a page of an older hook"


def test_tensors_of_the_programs_own_types_are_not_asked(loop, card, torch):
    class Odd(Tensor):
        def numel(self):
            raise AssertionError("a type of the program")

    optimizer = Optimizer()
    optimizer.parameters.append(Odd(GIB))
    train(loop, card, [optimizer], 6 * GIB, 9 * GIB)
    settings = parse_settings(loop.steps.page, loop.now)
    assert not is_known(settings.sizes)
    assert (loop.steps.problem, loop.steps.watcher._settings.words[wire.SET_ACTIVATIONS]) == ("", -1)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({wire.SET_CUDA: 0}, "not in use"),
        ({wire.SET_FSDP_VERSION: 2}, "FSDP"),
        ({wire.SET_ACTIVATIONS: 0}, "no step of one optimizer"),
        ({wire.SET_ACTIVATIONS: wire.UNKNOWN}, "no step of one optimizer"),
    ],
)
def test_where_there_is_no_estimate_the_reason_is_told(words, why):
    every = [1] * wire.SETTINGS_WORDS
    every[wire.SET_FSDP_VERSION] = wire.UNKNOWN
    for word, value in words.items():
        every[word] = value
    page = memoryview(bytearray(4096))
    wire.write_settings(page, every)
    settings = parse_settings(page, 5)
    told = settings.sizes.activation_bytes
    assert why in told.reason


def test_files_of_before_have_none():
    assert StateSizes(1, 1, 1).activation_bytes is NOT_APPLICABLE
