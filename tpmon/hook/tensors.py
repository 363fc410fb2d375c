"""Look at tensors and models of the program without running its code.

Variables of running functions are not read: before 3.13 Python writes them into the dictionary that the
program got from ``locals()``, which keeps a batch and its graph in memory.
"""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any


_MOST_TENSORS = 4096
"""Parameters of one optimizer that are added up: 2 us each."""


def bypass_functions() -> AbstractContextManager[object]:
    """Keep our calls on tensors from the program's ``__torch_function__``, of types and of modes."""
    compiled = getattr(sys.modules["torch"], "_C", None)
    disable: Any = getattr(compiled, "DisableTorchFunction", nullcontext)
    guard: AbstractContextManager[object] = disable()
    return guard


class Sizes:
    """Hold bytes of an optimizer's parameters, gradients and state: ``all``, and ``there`` on one device."""

    def __init__(self, parameters: list[Any], gradients: list[Any], state: list[Any], device: int) -> None:
        """Add up tensors of torch's own types; ``device`` is a CUDA device, -1 for none."""
        counted = [_count_bytes(tensors, device) for tensors in (parameters, gradients, state)]
        self.all = [every for every, _ in counted]
        self.there = [there for _, there in counted]


def count_sizes(optimizer: object, device: int = -1) -> Sizes | None:
    """Return the sizes of parameters, gradients and state of an optimizer; None where they cannot be read.

    Types of tensors that are not torch's own may run code of the program: then nothing is added up.
    """
    parameters = _list_plain(optimizer)
    state: Any = _read_dict(optimizer).get("state")
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
    """Return the bytes of gradients that an optimizer's parameters have now on a CUDA device, or None."""
    parameters = _list_plain(optimizer)
    if parameters is None:
        return None
    with bypass_functions():
        gradients = [one.grad for one in parameters if one.grad is not None]
        return _count_bytes(gradients, device)[1] if all(map(_is_plain, gradients)) else None


def _list_plain(optimizer: object) -> list[Any] | None:
    """List an optimizer's parameters; None where they are too many, or of types that are not torch's."""
    parameters = _list_parameters(optimizer)
    plain = parameters is not None and len(parameters) <= _MOST_TENSORS and all(map(_is_plain, parameters))
    return parameters if plain else None


def _list_parameters(optimizer: object) -> list[Any] | None:
    groups: Any = _read_dict(optimizer).get("param_groups")
    if not issubclass(type(groups), list):
        return None
    return [one for group in list.__iter__(groups) for one in dict.get(group, "params", ())]


def _is_plain(tensor: object) -> bool:
    """Tell whether torch made this type: Tensor, Parameter, DTensor and the like."""
    kind = type(tensor)
    torch: Any = sys.modules["torch"]
    return issubclass(kind, torch.Tensor) and kind.__module__.partition(".")[0] == "torch"


def _count_bytes(tensors: Iterable[Any], device: int) -> tuple[int, int]:
    every = there = 0
    for one in tensors:
        local = getattr(one, "_local_tensor", one)  # this rank's part of a DTensor
        size = local.numel() * local.element_size()
        every += size
        if device >= 0 and local.is_cuda and local.get_device() == device:
            there += size
    return every, there


_MOST_MODULES = 100_000
_MOST_WRAPPERS = 1024
"""FSDP makes the wrappers of all parts before the outermost."""
_MOST_BLOCKS = 2_000_000
"""Beyond so many memory blocks no model is searched for: it takes half a second, and touches every object."""
_FOUND: list[Any] = []
"""A weak reference to the model found last, which saves a search through all objects."""


def find_model(torch: Any, steps: Any) -> Any:
    """Return the largest model that the optimizer works on, by preference its DDP or FSDP wrapper."""
    wanted = list_parameters(getattr(getattr(steps, "watcher", None), "optimizer", None))
    made = [*getattr(steps, "ddp", ()), *getattr(steps, "fsdp", ())]
    wrapper = choose_wrapper(made, wanted)
    if wrapper is not None and _holds(wrapper, wanted):
        return wrapper
    model = _FOUND[0]() if _FOUND else None
    if model is None or not _holds(model, wanted):
        model = _search(torch.nn.Module, wanted)
        _FOUND[:] = [] if model is None else [refer(model)]
    return model if model is not None else wrapper


def note_wrapper(made: list[Any], wrapper: object) -> list[Any]:
    """Return weak references to all wrappers, this one too, but none within it: FSDP wraps parts first."""
    parts = {id(one) for one in _walk(wrapper)}
    kept = [one for one in made if one() is not None and id(one()) not in parts]
    return [*kept, refer(wrapper)][-_MOST_WRAPPERS:]


def choose_wrapper(made: list[Any], wanted: frozenset[int]) -> Any:
    """Return the newest wrapper that holds a parameter of the optimizer; a single one whatever it holds.

    An optimizer may have copies of its own. None of several matches then: programs also wrap what they do not
    train.
    """
    alive = [one for one in (reference() for reference in made) if one is not None]
    if len(alive) == 1:
        return alive[0]
    return next((one for one in reversed(alive) if _holds(one, wanted)), None)


def refer(model: object) -> Any:
    """Return a weak reference to a module; a dead one where its type allows none."""
    from weakref import ref  # noqa: PLC0415

    try:
        return ref(model)
    except TypeError:
        return lambda: None


def list_parameters(optimizer: Any) -> frozenset[int]:
    """Return the ids of an optimizer's parameters, by its weak reference; none where none was seen."""
    found = _list_parameters(optimizer()) if optimizer is not None else None
    return frozenset(map(id, found or ()))


def _search(kind: type, wanted: frozenset[int]) -> Any:
    if sys.getallocatedblocks() > _MOST_BLOCKS:
        return None
    # type(), because __class__ of a proxy is code of the program.
    modules = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    inner = {id(one) for module in modules for one in _list_parts(module)}
    most, found = 0, None
    for module in modules:
        if id(module) not in inner and _holds(module, wanted):
            size = sum(1 for _ in _walk(module))
            if size > most:
                most, found = size, module
    return found


def _holds(model: object, wanted: frozenset[int]) -> bool:
    """Tell whether a parameter of the optimizer is one of this model; True where no optimizer is known."""
    return not wanted or any(
        id(one) in wanted for module in _walk(model) for one in _values(module, "_parameters")
    )


def _walk(model: object) -> Iterator[object]:
    seen: set[int] = set()
    left = [model]
    while left and len(seen) < _MOST_MODULES:
        module = left.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            left.extend(_list_parts(module))


def _list_parts(module: object) -> list[object]:
    return [one for one in _values(module, "_modules") if one is not None]


def _values(module: object, name: str) -> list[object]:
    held: Any = _read_dict(module).get(name)
    return list(dict.values(held)) if issubclass(type(held), dict) else []


def _read_dict(one: object) -> dict[str, Any]:
    """Return the attributes of an object without running its code."""
    try:
        found: dict[str, Any] = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return {}
    return found
