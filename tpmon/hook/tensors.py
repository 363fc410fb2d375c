"""Look at tensors of the program without running its code: no mode, no type and no property of its own."""

from __future__ import annotations

import sys
from contextlib import nullcontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from typing import Any

_MOST_TENSORS = 4096
"""Parameters of one optimizer that are added up: 2 us each, once a reading."""


def bypass_functions() -> AbstractContextManager[object]:
    """Keep what is asked of a tensor from the program's ``__torch_function__``, of types and of modes."""
    compiled = getattr(sys.modules["torch"], "_C", None)
    disable: Any = getattr(compiled, "DisableTorchFunction", nullcontext)
    guard: AbstractContextManager[object] = disable()
    return guard


class Sizes:
    """Hold bytes of what an optimizer works on, in all and on one CUDA device."""

    __slots__ = ("gradients", "gradients_there", "parameters", "parameters_there", "state", "state_there")

    def __init__(self, parameters: list[Any], gradients: list[Any], state: list[Any], device: int) -> None:
        """Add up tensors of torch's own types; ``device`` is -1 for none."""
        self.parameters, self.parameters_there = _count_bytes(parameters, device)
        self.gradients, self.gradients_there = _count_bytes(gradients, device)
        self.state, self.state_there = _count_bytes(state, device)


def count_sizes(optimizer: object, device: int = -1) -> Sizes | None:
    """Return the sizes of parameters, gradients and state of an optimizer; None where that cannot be told.

    Types of tensors that are not torch's own may run code of the program: then nothing is added up.
    """
    parameters = _list_parameters(optimizer)
    state = object.__getattribute__(optimizer, "__dict__").get("state")
    if parameters is None or not issubclass(type(state), dict):
        return None
    with bypass_functions():
        gradients = [one.grad for one in parameters if one.grad is not None]
        kept = [value for one in parameters for value in dict.values(dict.get(state, one, {}))]
        tensors = [one for one in kept if issubclass(type(one), sys.modules["torch"].Tensor)]
        if not all(map(_is_plain, (*gradients, *tensors))):
            return None
        return Sizes(parameters, gradients, tensors, device)


def count_gradients(optimizer: object, device: int) -> int | None:
    """Return bytes of the gradients that an optimizer's parameters have now on a CUDA device."""
    parameters = _list_parameters(optimizer)
    if parameters is None:
        return None
    with bypass_functions():
        gradients = [one.grad for one in parameters if one.grad is not None]
        return _count_bytes(gradients, device)[1] if all(map(_is_plain, gradients)) else None


def _list_parameters(optimizer: object) -> list[Any] | None:
    """List the parameters of an optimizer; None where they are too many, or of types that are not torch's."""
    groups = object.__getattribute__(optimizer, "__dict__").get("param_groups")
    if not issubclass(type(groups), list):
        return None
    parameters = [one for group in list.__iter__(groups) for one in dict.get(group, "params", ())]
    plain = len(parameters) <= _MOST_TENSORS and all(map(_is_plain, parameters))
    return parameters if plain else None


def _is_plain(tensor: object) -> bool:
    """Tell whether torch made this type: Tensor, Parameter, DTensor and the like."""
    kind = type(tensor)
    torch: Any = sys.modules["torch"]
    return issubclass(kind, torch.Tensor) and kind.__module__.partition(".")[0] == "torch"


def _count_bytes(tensors: Iterable[Any], device: int) -> tuple[int, int]:
    """Return the bytes of all, and of those on a CUDA device."""
    every = there = 0
    for one in tensors:
        local = getattr(one, "_local_tensor", one)  # of a tensor that is spread over ranks, this one's part
        size = local.numel() * local.element_size()
        every += size
        if device >= 0 and local.is_cuda and local.get_device() == device:
            there += size
    return every, there
