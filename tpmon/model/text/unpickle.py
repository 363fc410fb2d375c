"""Read pickles of plain containers and nothing else, within bounds.

Made for files that a training job wrote (FlightRecorder). A pickle is a small program; here only the
opcodes are known that build None, bool, int, float, str, bytes, list, tuple, dict and set, as Python 3
and torch write them. Every other one (GLOBAL, REDUCE, BUILD, PERSID ...) is an error that names it.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

from tpmon.model.frozen import dataclass


class PlainError(ValueError):
    """Say why a pickle is not read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold how large a pickle may be.

    ``values`` counts what is built, ``written_out`` what there would be if every shared value were
    written wherever it is used: a few bytes can share their way to more than any memory holds.
    ``loose_keys`` counts keys and items of sets that are no text: their hashes can be chosen to collide.
    """

    file_bytes: int = 64 << 20
    values: int = 2_000_000
    written_out: int = 20_000_000
    depth: int = 64
    number_bytes: int = 512
    loose_keys: int = 10_000


_TEXT_STEP = 256
"""Characters of a text that count like one more value."""


def check_shape(value: object, limits: Limits) -> None:
    """Go through a value once, however often its parts are shared.

    Raises:
        PlainError: when it is nested too deeply, contains itself, or is too large written out.
    """
    done: dict[int, tuple[int, int]] = {}
    open_: set[int] = set()
    todo: list[tuple[object, bool]] = [(value, False)]
    while todo:
        one, is_left = todo.pop()
        key = id(one)
        if is_left:
            open_.discard(key)
            done[key] = _measure(one, done, limits)
        elif _is_container(one) and key not in done:
            if key in open_:
                raise PlainError("a value that contains itself")
            open_.add(key)
            todo.append((one, True))
            todo += [(part, False) for part in _parts(one) if _is_container(part)]


def _is_container(value: object) -> bool:
    return isinstance(value, (list, tuple, dict, set, frozenset))


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _measure(value: object, done: dict[int, tuple[int, int]], limits: Limits) -> tuple[int, int]:
    """Return depth and written-out size of a container whose parts were measured."""
    depth, size = 0, 1
    for part in _parts(value):
        if _is_container(part):
            part_depth, part_size = done[id(part)]
            depth = max(depth, part_depth)
            size += part_size
        else:
            size += _weigh(part)
    if isinstance(value, (dict, set, frozenset)):
        size += sum(map(_weigh, value))
    if depth >= limits.depth:
        raise PlainError(f"nested more than {limits.depth} deep")
    if size > limits.written_out:
        raise PlainError(f"more than {limits.written_out} values written out")
    return depth + 1, size


def _weigh(value: object) -> int:
    return 1 + len(value) // _TEXT_STEP if isinstance(value, (str, bytes)) else 1


T = TypeVar("T")

_U16, _U32, _I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")
_U8, _U64, _F64 = struct.Struct("<B"), struct.Struct("<Q"), struct.Struct(">d")
_LINE_BYTES = 1 << 16
"""Of a number or a text of protocol 0, which ends with its line."""
_HIGHEST_PROTOCOL = 5
_SET_VALUES = 4
"""An empty set takes the memory of four other values."""
_MARK = object()
"""Lies on the stack where the items of a container begin."""


def load_plain(data: bytes, limits: Limits = Limits()) -> object:  # noqa: B008  # frozen
    """Build what one pickle of protocol 0 to 5 holds. Keys and items of sets are texts and numbers.

    Raises:
        PlainError: when it is no pickle, is cut, asks for more than plain containers, or is too large.
    """
    if len(data) > limits.file_bytes:
        raise PlainError(f"{len(data)} bytes, at most {limits.file_bytes} are read")
    machine = _Machine(data, limits)
    while (code := machine.take_number(_U8)) != _STOP:
        step = _STEPS.get(code)
        if step is None:
            raise PlainError(f"{_name(code)} in it: more than plain containers")
        step(machine)
    value = machine.pop()
    if machine.stack:
        raise PlainError("it does not end with one value")
    check_shape(value, limits)
    return value


class _Machine:
    """Hold the stack and the memory of one pickle that is read."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}
        self.limits = limits
        self._data = data
        self._at = 0
        self._made = 0
        self._loose_keys = 0

    def take(self, size: int) -> bytes:
        """Take the next bytes of the pickle."""
        end = self._at + size
        if not size >= 0 or end > len(self._data):
            raise PlainError("it is cut")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def take_number(self, form: struct.Struct) -> int:
        """Take a number of a fixed size."""
        try:
            number = form.unpack_from(self._data, self._at)[0]
        except struct.error as error:
            raise PlainError("it is cut") from error
        self._at += form.size
        return int(number)

    def take_line(self) -> bytes:
        """Take what is left of a line, and its end."""
        end = self._data.find(b"\n", self._at, self._at + _LINE_BYTES)
        if end < 0:
            raise PlainError("it is cut")
        line = self._data[self._at : end]
        self._at = end + 1
        return line

    def count(self, values: int = 1) -> None:
        """Count what is built."""
        self._made += values
        if self._made > self.limits.values:
            raise PlainError(f"more than {self.limits.values} values")

    def push(self, value: object) -> None:
        """Put a new value on the stack."""
        self.count()
        self.stack.append(value)

    def pop(self) -> object:
        """Take the topmost value."""
        if not self.stack or self.stack[-1] is _MARK:
            raise PlainError("a value is missing in it")
        return self.stack.pop()

    def pop_items(self) -> list[object]:
        """Take what lies above the last mark, and the mark."""
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                items = stack[at + 1 :]
                del stack[at:]
                return items
        raise PlainError("a mark is missing in it")

    def top(self, kind: type[T]) -> T:
        """Return the container on top that is added to."""
        top = self.stack[-1] if self.stack else None
        if not isinstance(top, kind):
            raise PlainError(f"no {kind.__name__} to add to in it")
        return top

    def check_keys(self, keys: Iterable[object]) -> None:
        """Refuse keys that are expensive to hash: containers, and many that are no text."""
        for key in keys:
            if not isinstance(key, (str, bytes)):
                if key is not None and not isinstance(key, (int, float)):
                    raise PlainError(f"a {type(key).__name__} as a key or in a set")
                self._loose_keys += 1
        if self._loose_keys > self.limits.loose_keys:
            raise PlainError(f"more than {self.limits.loose_keys} keys that are no text")

    def remember(self, key: int) -> None:
        """Keep the topmost value under a number."""
        self.count()
        if not self.stack or self.stack[-1] is _MARK:
            raise PlainError("a value is missing in it")
        self.memo[key] = self.stack[-1]

    def recall(self, key: int) -> None:
        """Push what was kept under a number."""
        if key not in self.memo:
            raise PlainError("a value is used that is not in it")
        self.push(self.memo[key])


_Step = Callable[[_Machine], None]


def _push_value(value: object) -> _Step:
    return lambda machine: machine.push(value)


def _push_new(make: Callable[[], object], values: int = 0) -> _Step:
    def step(machine: _Machine) -> None:
        machine.count(values)
        machine.push(make())

    return step


def _push_number(form: struct.Struct) -> _Step:
    return lambda machine: machine.push(machine.take_number(form))


def _push_float(machine: _Machine) -> None:
    machine.push(_F64.unpack(machine.take(_F64.size))[0])


def _push_long(size: struct.Struct) -> _Step:
    def step(machine: _Machine) -> None:
        length = machine.take_number(size)
        if length > machine.limits.number_bytes:
            raise PlainError(f"a number of {length} bytes")
        machine.push(int.from_bytes(machine.take(length), "little", signed=True))

    return step


def _push_int_line(machine: _Machine) -> None:
    line = machine.take_line()
    # Protocol 0 writes False and True as numbers of two digits.
    machine.push(line == b"01" if line in (b"00", b"01") else _parse(int, line.removesuffix(b"L")))


def _parse(kind: type[T], line: bytes) -> T:
    try:
        return kind(line.decode("ascii"))  # type: ignore[call-arg]
    except ValueError as error:
        raise PlainError("text where a number should be") from error


def _push_text(size: struct.Struct) -> _Step:
    def step(machine: _Machine) -> None:
        raw = machine.take(machine.take_number(size))
        try:
            machine.push(raw.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError as error:
            raise PlainError("text that is no UTF-8") from error

    return step


def _push_text_line(machine: _Machine) -> None:
    try:
        machine.push(machine.take_line().decode("raw-unicode-escape"))
    except UnicodeDecodeError as error:
        raise PlainError("text with a broken escape") from error


def _push_bytes(size: struct.Struct) -> _Step:
    return lambda machine: machine.push(machine.take(machine.take_number(size)))


def _push_tuple(count: int) -> _Step:
    def step(machine: _Machine) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.push(tuple(reversed(items)))

    return step


def _push_items(make: Callable[[list[object]], object]) -> _Step:
    return lambda machine: machine.push(make(machine.pop_items()))


def _push_dict(machine: _Machine) -> None:
    items = machine.pop_items()
    machine.push({})
    _fill(machine, items)


def _push_frozen_set(machine: _Machine) -> None:
    items = machine.pop_items()
    machine.check_keys(items)
    machine.count(_SET_VALUES)
    machine.push(frozenset(items))


def _extend(machine: _Machine, items: list[object]) -> None:
    machine.top(list).extend(items)


def _add_items(machine: _Machine) -> None:
    items = machine.pop_items()
    machine.check_keys(items)
    machine.top(set).update(items)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _fill(machine, [key, value])


def _fill(machine: _Machine, items: list[object]) -> None:
    if len(items) % 2:
        raise PlainError("a key without a value")
    machine.check_keys(items[::2])
    machine.top(dict).update(zip(items[::2], items[1::2], strict=True))


def _drop(machine: _Machine) -> None:
    if not machine.stack:
        raise PlainError("a value is missing in it")
    machine.stack.pop()  # a mark, too


def _drop_items(machine: _Machine) -> None:
    machine.pop_items()


def _duplicate(machine: _Machine) -> None:
    value = machine.pop()
    machine.stack.append(value)
    machine.push(value)


def _check_protocol(machine: _Machine) -> None:
    number = machine.take_number(_U8)
    if number > _HIGHEST_PROTOCOL:
        raise PlainError(f"protocol {number}, up to {_HIGHEST_PROTOCOL} is known")


def _skip_frame(machine: _Machine) -> None:
    machine.take_number(_U64)  # how much a reader of a stream would fetch at once; the opcodes follow


def _name(code: int) -> str:
    return next((one.name for one in pickletools.opcodes if one.code == chr(code)), f"byte 0x{code:02x}")


_STOP = pickle.STOP[0]
_STEPS: dict[int, _Step] = {
    code[0]: step
    for code, step in (
        (pickle.PROTO, _check_protocol),
        (pickle.FRAME, _skip_frame),
        (pickle.MARK, _push_value(_MARK)),
        (pickle.POP, _drop),
        (pickle.POP_MARK, _drop_items),
        (pickle.DUP, _duplicate),
        (pickle.NONE, _push_value(None)),
        (pickle.NEWTRUE, _push_value(True)),
        (pickle.NEWFALSE, _push_value(False)),
        (pickle.INT, _push_int_line),
        (pickle.LONG, _push_int_line),
        (pickle.BININT, _push_number(_I32)),
        (pickle.BININT1, _push_number(_U8)),
        (pickle.BININT2, _push_number(_U16)),
        (pickle.LONG1, _push_long(_U8)),
        (pickle.LONG4, _push_long(_I32)),
        (pickle.FLOAT, lambda machine: machine.push(_parse(float, machine.take_line()))),
        (pickle.BINFLOAT, _push_float),
        (pickle.UNICODE, _push_text_line),
        (pickle.BINUNICODE, _push_text(_U32)),
        (pickle.SHORT_BINUNICODE, _push_text(_U8)),
        (pickle.BINUNICODE8, _push_text(_U64)),
        (pickle.BINBYTES, _push_bytes(_U32)),
        (pickle.SHORT_BINBYTES, _push_bytes(_U8)),
        (pickle.BINBYTES8, _push_bytes(_U64)),
        (pickle.EMPTY_LIST, _push_new(list)),
        (pickle.LIST, _push_items(list)),
        (pickle.APPEND, lambda machine: _extend(machine, [machine.pop()])),
        (pickle.APPENDS, lambda machine: _extend(machine, machine.pop_items())),
        (pickle.EMPTY_TUPLE, _push_value(())),
        (pickle.TUPLE, _push_items(tuple)),
        (pickle.TUPLE1, _push_tuple(1)),
        (pickle.TUPLE2, _push_tuple(2)),
        (pickle.TUPLE3, _push_tuple(3)),
        (pickle.EMPTY_DICT, _push_new(dict)),
        (pickle.DICT, _push_dict),
        (pickle.SETITEM, _set_item),
        (pickle.SETITEMS, lambda machine: _fill(machine, machine.pop_items())),
        (pickle.EMPTY_SET, _push_new(set, _SET_VALUES)),
        (pickle.FROZENSET, _push_frozen_set),
        (pickle.ADDITEMS, _add_items),
        (pickle.PUT, lambda machine: machine.remember(_parse(int, machine.take_line()))),
        (pickle.BINPUT, lambda machine: machine.remember(machine.take_number(_U8))),
        (pickle.LONG_BINPUT, lambda machine: machine.remember(machine.take_number(_U32))),
        (pickle.MEMOIZE, lambda machine: machine.remember(len(machine.memo))),
        (pickle.GET, lambda machine: machine.recall(_parse(int, machine.take_line()))),
        (pickle.BINGET, lambda machine: machine.recall(machine.take_number(_U8))),
        (pickle.LONG_BINGET, lambda machine: machine.recall(machine.take_number(_U32))),
    )
}
