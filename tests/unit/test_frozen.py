"""What tpmon makes of frozen classes is what the standard library makes of them."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import pkgutil
import threading
import typing
from inspect import signature

import pytest

import tpmon
from tpmon.model import frozen


def make(decorate):
    """Return the same classes as ``decorate`` makes them."""

    @decorate(frozen=True, slots=True)
    class Empty:
        """Hold nothing."""

    @decorate(frozen=True, slots=True)
    class One:
        """Hold one field."""

        only: object

    @decorate(frozen=True, slots=True)
    class Many:
        """Hold required fields, defaults and a factory, and compute from them."""

        first: int
        second: str = "b"
        third: list[int] = dataclasses.field(default_factory=list)

        @property
        def both(self) -> str:
            return f"{self.first}{self.second}"

    @decorate(frozen=True, slots=True)
    class More(Many):
        """Hold what Many holds, and one field more."""

        fourth: float = 1.0

    @decorate(frozen=True, slots=True)
    class Own:
        """Compare and write itself."""

        value: int

        def __eq__(self, other):
            return isinstance(other, Own) and self.value % 10 == other.value % 10

        def __hash__(self):
            return self.value % 10

        def __repr__(self):
            return "own"

    return {"Empty": Empty, "One": One, "Many": Many, "More": More, "Own": Own}


STANDARD, OURS = make(dataclasses.dataclass), make(frozen.dataclass)
CALLS = [
    ("Empty", ()),
    ("One", (3,)),
    ("One", ((3, 4),)),
    ("Many", (1,)),
    ("Many", (1, "c", [2])),
    ("More", (1, "c", [2], 0.5)),
    ("Own", (17,)),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """Be found by pickle."""

    first: int
    second: str = "b"


@frozen.dataclass(frozen=True, slots=True)
class Pickled:
    """Be found by pickle."""

    first: int
    second: str = "b"


@pytest.mark.parametrize(("name", "values"), CALLS)
def test_an_instance_is_the_same(name, values):
    standard, ours = STANDARD[name](*values), OURS[name](*values)
    assert repr(ours) == repr(standard)
    assert ours == OURS[name](*values)
    assert ours != standard
    assert ours.__eq__(standard) is NotImplemented or name == "Own"
    assert dataclasses.asdict(ours) == dataclasses.asdict(standard)
    assert not hasattr(ours, "__dict__")
    assert copy.copy(ours) == ours
    if not any(isinstance(value, list) for value in dataclasses.astuple(standard)):
        assert hash(ours) == hash(standard)


@pytest.mark.parametrize("name", list(OURS))
def test_a_class_is_the_same(name):
    standard, ours = STANDARD[name], OURS[name]
    assert str(signature(ours)) == str(signature(standard))
    assert [one.name for one in dataclasses.fields(ours)] == [
        one.name for one in dataclasses.fields(standard)
    ]
    assert ours.__match_args__ == standard.__match_args__
    assert ours.__slots__ == standard.__slots__
    assert (ours.__name__, ours.__qualname__, ours.__doc__, ours.__module__) == (
        standard.__name__,
        standard.__qualname__,
        standard.__doc__,
        standard.__module__,
    )


def test_fields_stay_as_they_are():
    many = OURS["Many"](1)
    for act in (
        lambda: setattr(many, "first", 2),
        lambda: delattr(many, "first"),
        lambda: setattr(many, "no", 2),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            act()
    assert dataclasses.replace(many, first=2).both == "2b"
    assert many.both == "1b"
    assert OURS["Many"](1).third is not OURS["Many"](1).third


@pytest.mark.parametrize("values", [(), (1, 2, 3, 4)])
def test_wrong_arguments_are_named_as_they_are_elsewhere(values):
    with pytest.raises(TypeError) as ours:
        make(frozen.dataclass)["Many"](*values)
    with pytest.raises(TypeError) as standard:
        STANDARD["Many"](*values)
    assert str(ours.value) == str(standard.value)


def test_pickle_and_deep_copies():
    one = Pickled(1, "c")
    assert pickle.loads(pickle.dumps(one)) == one  # its own
    assert copy.deepcopy(one) == one
    assert typing.get_type_hints(Pickled.__init__) == typing.get_type_hints(Plain.__init__)


def test_threads_that_make_the_first_instances_at_once_all_get_one():
    for _ in range(20):
        kind, made = make(frozen.dataclass)["Many"], []
        gate = threading.Barrier(4)

        def start(kind=kind, made=made, gate=gate):
            gate.wait()
            made.append(kind(1))

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [kind(1)] * 4


def test_what_only_the_standard_library_does_is_refused_or_left_to_it():
    with pytest.raises(TypeError, match="only plain fields"):

        @frozen.dataclass(frozen=True, slots=True)
        class Hidden:
            secret: int = dataclasses.field(repr=False)

    @frozen.dataclass(slots=True)
    class Open:
        value: int = 0

    one = Open()
    one.value = 2
    assert one == Open(2)


def test_every_class_of_tpmon_takes_the_fields_that_it_names():
    names = [found.name for found in pkgutil.walk_packages(tpmon.__path__, "tpmon.")]
    modules = [
        importlib.import_module(name)
        for name in names
        if not name.startswith(("tpmon.hook", "tpmon.demo")) and not name.endswith("__main__")
    ]
    seen = 0
    for module in modules:
        for kind in vars(module).values():
            if (
                isinstance(kind, type)
                and dataclasses.is_dataclass(kind)
                and kind.__module__ == module.__name__
            ):
                assert list(signature(kind).parameters) == [
                    one.name for one in dataclasses.fields(kind) if one.init
                ]
                seen += 1
    assert seen > 300
