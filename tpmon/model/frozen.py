"""Make slotted dataclasses at a tenth of what the standard library takes to make one.

``dataclasses`` compiles six methods of each class when its module is imported: 0.9 ms a class, 0.26 s
for the 280 classes of a screen, more than half of tpmon's share of the first picture (ADR 0009). Here
the methods that can be shared are shared, and ``__init__`` is compiled with the first instance. The
classes are dataclasses to ``fields``, ``replace``, ``asdict``, ``match``, ``copy``, ``pickle`` and mypy.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import cache, partial
from inspect import Signature, get_annotations, signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

Made = TypeVar("Made", bound=type)
Instance = Any  # these classes and what is made of them are known only while tpmon runs


class _Factory:
    """Stand for a default that is made anew for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_EMPTY = _Factory()


class _LazySignature:
    """Tell ``inspect.signature`` the arguments of a class whose ``__init__`` is not compiled yet."""

    def __get__(self, instance: Instance, owner: type) -> Signature:
        init = _compile_init(owner)
        type.__setattr__(owner, "__init__", init)
        told = signature(init)
        return told.replace(parameters=list(told.parameters.values())[1:])


_SIGNATURE = _LazySignature()


def _compile_init(cls: type) -> Callable[..., None]:
    """Compile ``__init__``: every field is set through its slot, which the frozen class leaves open."""
    names: dict[str, Any] = {"_EMPTY": _EMPTY}
    hints: dict[str, Any] = {"return": None}
    arguments, body = [], []
    for field in dataclasses.fields(cls):
        hints[field.name] = field.type
        names[f"_set_{field.name}"] = getattr(cls, field.name).__set__
        value = field.name
        if field.default is not dataclasses.MISSING:
            names[f"_default_{field.name}"] = field.default
            arguments.append(f"{field.name}=_default_{field.name}")
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make_{field.name}"] = field.default_factory
            arguments.append(f"{field.name}=_EMPTY")
            value = f"_make_{field.name}() if {field.name} is _EMPTY else {field.name}"
        else:
            arguments.append(field.name)
        body.append(f"  _set_{field.name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("  self.__post_init__()")
    lines = [
        f"def compile_init({', '.join(names)}):",
        f" def __init__(self, {', '.join(arguments)}):",
        *(body or ["  pass"]),
        " return __init__",
    ]
    found: dict[str, Any] = {}
    # Of the class's own field names, as the standard library does; its module resolves the hints.
    exec("\n".join(lines), sys.modules[cls.__module__].__dict__, found)  # noqa: S102
    init: Callable[..., None] = found["compile_init"](**names)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = hints
    return init


def _late_init(cls: type) -> Callable[..., None]:
    """Return an ``__init__`` that takes the place of itself when it is first called."""

    def __init__(self: Instance, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init = _compile_init(cls)
        type.__setattr__(cls, "__init__", init)
        init(self, *args, **kwargs)

    return __init__


def _refuse_set(_self: Instance, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_self: Instance, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _write_repr(self: Instance) -> str:
    shown = [field.name for field in dataclasses.fields(self) if field.repr]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{self.__class__.__qualname__}({values})"


def _get_state(self: Instance) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Instance, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _read_fields(names: tuple[str, ...]) -> Callable[[Instance], tuple[object, ...]]:
    """Return what reads these fields of an instance as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)


def _compare(names: tuple[str, ...]) -> tuple[Callable[..., object], Callable[..., int]]:
    """Return ``__eq__`` and ``__hash__`` over the fields, which are compared and hashed as a tuple."""
    key = _read_fields(names)

    def __eq__(self: Instance, other: Instance) -> object:  # noqa: N807
        if other is self:
            return True  # as two tuples of the same values are
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Instance) -> int:  # noqa: N807
        return hash(key(self))

    return __eq__, __hash__


def _is_plain(cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> bool:
    """Tell whether the class asks for nothing that only the standard library does."""
    passed_on = any("InitVar" in str(hint) for hint in get_annotations(cls).values())
    return not passed_on and all(one.init and one.hash is None and not one.kw_only for one in fields)


def _mark_fields(cls: type, mark: Callable[[type], type]) -> tuple[dataclasses.Field[Any], ...]:
    """Let the standard library find the fields, without its search of each hint's text for ClassVar."""
    hints = get_annotations(cls)
    if not hints or any("ClassVar" in str(hint) or "InitVar" in str(hint) for hint in hints.values()):
        return dataclasses.fields(mark(cls))
    cls.__annotations__ = dict.fromkeys(hints, object)
    try:
        fields = dataclasses.fields(mark(cls))
    finally:
        cls.__annotations__ = hints
    for field in fields:
        field.type = hints.get(field.name, field.type)
    return fields


def _make(cls: Made, *, frozen: bool) -> Made:
    """Make a slotted class, compared by its fields; instances that change are not hashed."""
    bases: list[Instance] = [base for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)]
    frozen_before = any(base.__dataclass_params__.frozen for base in bases)
    mark = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=frozen and frozen_before)
    fields = _mark_fields(cls, mark)
    if not _is_plain(cls, fields):
        raise TypeError(f"{cls.__qualname__}: only plain fields; take dataclasses.dataclass")
    names = tuple(field.name for field in fields)
    inherited = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    space = {name: value for name, value in cls.__dict__.items() if name not in names}
    space.pop("__dict__", None)
    space.pop("__weakref__", None)
    space["__slots__"] = tuple(name for name in names if name not in inherited)
    equal, hashed = _compare(tuple(field.name for field in fields if field.compare))
    own_hash = space.get("__hash__")
    space = {"__repr__": _write_repr, "__eq__": equal, "__signature__": _SIGNATURE, **space}
    if frozen:
        space = {"__getstate__": _get_state, "__setstate__": _set_state, **space}
        space["__setattr__"], space["__delattr__"] = _refuse_set, _refuse_delete
    # A class with an __eq__ of its own has None for its hash already.
    space["__hash__"] = own_hash or (hashed if frozen else None)
    made: Instance = type(cls)(cls.__name__, cls.__bases__, space)
    asked = made.__dataclass_params__
    asked.init = asked.repr = asked.eq = True
    asked.frozen = frozen
    type.__setattr__(made, "__init__", _late_init(made))
    made.__qualname__ = cls.__qualname__
    return cast("Made", made)


@cache
def _list_fields(cls: type) -> tuple[Callable[[Instance], tuple[object, ...]], dict[str, int]]:
    names = tuple(field.name for field in dataclasses.fields(cls))
    return _read_fields(names), {name: place for place, name in enumerate(names)}


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414  # what it is to its users
    from dataclasses import replace as replace  # noqa: PLC0414
else:

    def replace(one: Instance, /, **changes: object) -> Instance:
        """Return a copy with other values in some fields, in half of the time that dataclasses takes."""
        read, places = _list_fields(one.__class__)
        values = [*read(one)]
        for name, value in changes.items():
            values[places[name]] = value
        return one.__class__(*values)

    def dataclass(*, frozen: bool = False, slots: bool = False) -> Callable[[type], type]:
        """Make a slotted dataclass as above, any other as the standard library does.

        TypeError for a slotted one with fields that are not in ``__init__`` or only there, that have a hash
        of their own, or that are given by name only.
        """
        if slots:
            return partial(_make, frozen=frozen)
        return dataclasses.dataclass(frozen=frozen, slots=slots)
