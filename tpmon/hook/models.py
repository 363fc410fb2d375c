"""Find the model that is trained, among what is there: no variables of the loop are looked at.

To read the variables of a running function makes Python, before 3.13, write them into the dictionary that
the program got from ``locals()``, and keeps a batch and its graph in memory with it.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_MOST_MODULES = 100_000
_MOST_WRAPPERS = 1024
"""Before the outermost of FSDP is made, those of all parts are kept."""
_MOST_BLOCKS = 2_000_000
"""Of more objects than this none is looked for: it takes half a second, and counts a reference on each."""
_FOUND: list[Any] = []
"""A weak reference to the model that was found last: to look for it is to look at all objects."""


def find_model(torch: Any, steps: Any) -> Any:
    """Return the largest model that the optimizer works on, by preference as DDP or FSDP wrapped it."""
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
    """Return weak references to the wrappers that were made, with this one and without those within it.

    Of FSDP, which wraps parts first, that leaves the outermost of each model.
    """
    parts = {id(one) for one in _walk(wrapper)}
    kept = [one for one in made if one() is not None and id(one()) not in parts]
    return [*kept, refer(wrapper)][-_MOST_WRAPPERS:]


def choose_wrapper(made: list[Any], wanted: frozenset[int]) -> Any:
    """Return the newest wrapper that holds a parameter of the optimizer; the only one whatever it holds.

    An optimizer may have copies of its own; of several wrappers, which a program also makes for what it does
    not train, none is told then.
    """
    alive = [one for one in (reference() for reference in made) if one is not None]
    if len(alive) == 1:
        return alive[0]
    return next((one for one in reversed(alive) if _holds(one, wanted)), None)


def refer(model: object) -> Any:
    """Return a weak reference to a module, or one that is gone where there can be none."""
    from weakref import ref  # noqa: PLC0415

    try:
        return ref(model)
    except TypeError:
        return lambda: None  # a module of the program's that takes none


def list_parameters(optimizer: Any) -> frozenset[int]:
    """Return which parameters an optimizer has, by its weak reference; none where none was seen."""
    groups = _read_dict(optimizer() if optimizer is not None else None).get("param_groups")
    found = (
        one for group in (groups if type(groups) is list else ()) for one in dict.get(group, "params", ())
    )
    return frozenset(map(id, found))


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
    """Yield a module and all of its parts."""
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
    """Return the attributes of an object without any code of its own."""
    try:
        found: dict[str, Any] = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return {}
    return found
