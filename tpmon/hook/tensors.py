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


def count_sizes(optimizer: object) -> tuple[int, int, int] | None:
    """Return bytes of the parameters, gradients and state of an optimizer; None where that cannot be told.

    Types of tensors that are not torch's own may run code of the program: then nothing is added up.
    """
    held = object.__getattribute__(optimizer, "__dict__")
    state, groups = held.get("state"), held.get("param_groups")
    if not issubclass(type(state), dict) or not issubclass(type(groups), list):
        return None
    parameters = [one for group in list.__iter__(groups) for one in dict.get(group, "params", ())]
    if len(parameters) > _MOST_TENSORS or not all(map(_is_plain, parameters)):
        return None
    with bypass_functions():
        gradients = [one.grad for one in parameters if one.grad is not None]
        kept = [value for one in parameters for value in dict.values(dict.get(state, one, {}))]
        tensors = [one for one in kept if issubclass(type(one), sys.modules["torch"].Tensor)]
        if not all(map(_is_plain, (*gradients, *tensors))):
            return None
        return _count_bytes(parameters), _count_bytes(gradients), _count_bytes(tensors)


def _is_plain(tensor: object) -> bool:
    """Tell whether torch made this type: Tensor, Parameter, DTensor and the like."""
    kind = type(tensor)
    torch: Any = sys.modules["torch"]
    return issubclass(kind, torch.Tensor) and kind.__module__.partition(".")[0] == "torch"


def _count_bytes(tensors: Iterable[Any]) -> int:
    # Of a tensor that is spread over ranks, the part of this one.
    local = (getattr(one, "_local_tensor", one) for one in tensors)
    return sum(one.numel() * one.element_size() for one in local)
