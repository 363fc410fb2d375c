"""What tpmon makes of frozen classes is what the standard library makes of them."""

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

    @decorate(frozen=True, slots=True)
    class Partly:
        """Write and compare only some of the fields, and hold what is no field."""

        LIMIT: typing.ClassVar[int] = 3
        first: int
        quiet: object = dataclasses.field(default=None, repr=False, compare=False)

    @decorate(slots=True)
    class Changing:
        """Count."""

        first: int
        count: int = 0
        seen: list[int] = dataclasses.field(default_factory=list)

        def __post_init__(self):
            self.count += 100

    return {one.__name__: one for one in (Empty, One, Many, More, Own, Partly, Changing)}


STANDARD, OURS = make(dataclasses.dataclass), make(frozen.dataclass)
CALLS = [
    ("Empty", ()),
    ("One", (3,)),
    ("One", ((3, 4),)),
    ("Many", (1,)),
    ("Many", (1, "c", [2])),
    ("More", (1, "c", [2], 0.5)),
    ("Own", (17,)),
    ("Partly", (17, {})),
    ("Changing", (17, 3)),
]


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
    if name == "Changing":
        assert ours.__hash__ is standard.__hash__ is None
    elif not any(isinstance(value, list) for value in dataclasses.astuple(standard)):
        assert hash(ours) == hash(standard)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Empty", {}),
        ("One", {"only": 3}),
        ("Many", {"second": "c"}),
        ("More", {"first": 5, "fourth": 2.0}),
        ("More", {}),
    ],
)
def test_a_copy_with_changes_is_that_of_the_standard_library(name, changes):
    one = OURS[name](*range(len(dataclasses.fields(OURS[name]))))
    assert frozen.replace(one, **changes) == dataclasses.replace(one, **changes)
    with pytest.raises(KeyError):
        frozen.replace(one, no_such_field=1)


@pytest.mark.parametrize("name", list(OURS))
def test_a_class_is_the_same(name):
    standard, ours = STANDARD[name], OURS[name]
    assert str(signature(ours)) == str(signature(standard))
    fields, expected = ([(one.name, one.type) for one in dataclasses.fields(kind)] for kind in (ours, standard))
    assert fields == expected
    for told in ("annotations", "match_args", "slots", "name", "qualname", "doc", "module"):
        assert getattr(ours, f"__{told}__") == getattr(standard, f"__{told}__"), told


def test_fields_stay_as_they_are_unless_the_class_is_not_frozen_and_what_does_not_count_is_not_compared():
    many = OURS["Many"](1)
    for act in (lambda: setattr(many, "first", 2), lambda: delattr(many, "first"), lambda: setattr(many, "no", 2)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            act()
    assert dataclasses.replace(many, first=2).both == "2b"
    assert many.both == "1b"
    assert OURS["Many"](1).third is not OURS["Many"](1).third
    one, other = OURS["Changing"](1), OURS["Changing"](1)
    one.count += 1
    one.seen.append(3)
    assert (one.count, one.seen, other.seen) == (101, [3], [])
    assert one != other
    with pytest.raises(AttributeError):
        one.no = 1
    assert OURS["Partly"](1, 2) == OURS["Partly"](1, 3)
    assert OURS["Partly"](1) != OURS["Partly"](2)
    assert OURS["Partly"].LIMIT == 3


@pytest.mark.parametrize("decorate", [dataclasses.dataclass, frozen.dataclass])
def test_a_frozen_class_has_no_child_that_changes(decorate):
    @decorate(frozen=True, slots=True)
    class Still:
        first: int

    with pytest.raises(TypeError, match="non-frozen"):

        @decorate(slots=True)
        class Moving(Still):
            second: int


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
    assert typing.get_type_hints(Pickled.__init__) == {"first": int, "second": str, "return": type(None)}


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


@pytest.mark.parametrize(
    ("kind", "default"),
    [("int", dataclasses.field(init=False)), ("int", dataclasses.field(hash=True)), ("InitVar[int]", 0)],
)
@pytest.mark.parametrize("frozen_too", [True, False])
def test_what_only_the_standard_library_does_is_refused(kind, default, frozen_too):
    raw = type("Special", (), {"__annotations__": {"one": kind}, "one": default})
    with pytest.raises(TypeError, match="only plain fields"):
        frozen.dataclass(frozen=frozen_too, slots=True)(raw)


def test_what_has_no_slots_is_left_to_the_standard_library():
    @frozen.dataclass()
    class Open:
        value: int = 0

    one = Open()
    one.extra = 2
    assert one == Open(0)


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
            if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__:
                assert list(signature(kind).parameters) == [one.name for one in dataclasses.fields(kind) if one.init]
                seen += 1
    assert seen > 300
