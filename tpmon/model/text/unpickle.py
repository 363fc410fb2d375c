"""Read pickles of plain containers and nothing else, within bounds.

Made for files that a training job wrote (FlightRecorder). A pickle is a small program; here only the
opcodes are known that build None, bool, int, float, str, bytes, list, tuple, dict and set, as Python 3
and torch write them. Every other one (GLOBAL, REDUCE, BUILD, PERSID ...) is an error that names it.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

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
    """Go through each part once; PlainError for one too deep, too large written out, or in itself."""
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

_LINE_BYTES = 1 << 16
"""Of a number or a text of protocol 0, which ends with its line."""
_HIGHEST_PROTOCOL = 5
_SET_VALUES = 4
"""An empty set takes the memory of four other values."""
_MARK = object()
"""Lies on the stack where the items of a container begin."""


class _Stream(io.BytesIO):
    """Give the bytes of a pickle; a line that does not end soon is cut."""

    def readline(self, size: int | None = None, /) -> bytes:
        return super().readline(size or _LINE_BYTES)


def load_plain(data: bytes, limits: Limits = Limits()) -> object:  # noqa: B008  # frozen
    """Build what one pickle of protocol 0 to 5 holds. Keys and items of sets are texts and numbers.

    PlainError when it is no pickle, is cut, asks for more than plain containers, or is too large.
    """
    if len(data) > limits.file_bytes:
        raise PlainError(f"{len(data)} bytes, at most {limits.file_bytes} are read")
    machine, stream = _Machine(limits), _Stream(data)
    while (code := stream.read(1)) != pickle.STOP:
        if not code:
            raise PlainError("it is cut")
        if code not in _STEPS:
            raise PlainError(f"{_name(code)} in it: more than plain containers")
        argument, step = _STEPS[code]
        try:
            value = argument.reader(stream) if argument else None
        except UnicodeDecodeError as error:
            is_line = argument is pickletools.unicodestringnl
            raise PlainError("text with a broken escape" if is_line else "text that is no UTF-8") from error
        except ValueError as error:
            ended = argument in _LINES and data[stream.tell() - 1 : stream.tell()] == b"\n"
            raise PlainError("text where a number should be" if ended else "it is cut") from error
        step(machine, value)
    value = machine.pop()
    if machine.stack:
        raise PlainError("it does not end with one value")
    check_shape(value, limits)
    return value


class _Machine:
    """Hold the stack and the memory of one pickle that is read."""

    def __init__(self, limits: Limits) -> None:
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}
        self.limits = limits
        self._made = 0
        self._loose_keys = 0

    def count(self, values: int = 1) -> None:
        self._made += values
        if self._made > self.limits.values:
            raise PlainError(f"more than {self.limits.values} values")

    def push(self, value: object) -> None:
        self.count()
        self.stack.append(value)

    def pop(self) -> object:
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
        self.count()
        if not self.stack or self.stack[-1] is _MARK:
            raise PlainError("a value is missing in it")
        self.memo[key] = self.stack[-1]

    def recall(self, key: int) -> None:
        if key not in self.memo:
            raise PlainError("a value is used that is not in it")
        self.push(self.memo[key])


_Step = Callable[[_Machine, Any], object]
"""What an opcode does, with its argument."""


def _push_new(make: Callable[[], object], values: int = 0) -> _Step:
    def step(machine: _Machine, _argument: None) -> None:
        machine.count(values)
        machine.push(make())

    return step


def _push_long(machine: _Machine, number: bytes) -> None:
    if len(number) > machine.limits.number_bytes:
        raise PlainError(f"a number of {len(number)} bytes")
    machine.push(int.from_bytes(number, "little", signed=True))


def _push_tuple(count: int) -> _Step:
    return lambda machine, _: machine.push(tuple([machine.pop() for _ in range(count)][::-1]))


def _push_items(make: Callable[[list[object]], object]) -> _Step:
    return lambda machine, _: machine.push(make(machine.pop_items()))


def _push_dict(machine: _Machine, _argument: None) -> None:
    items = machine.pop_items()
    machine.push({})
    _fill(machine, items)


def _push_frozen_set(machine: _Machine, _argument: None) -> None:
    items = machine.pop_items()
    machine.check_keys(items)
    machine.count(_SET_VALUES)
    machine.push(frozenset(items))


def _extend(machine: _Machine, items: list[object]) -> None:
    machine.top(list).extend(items)


def _add_items(machine: _Machine, _argument: None) -> None:
    items = machine.pop_items()
    machine.check_keys(items)
    machine.top(set).update(items)


def _set_item(machine: _Machine, _argument: None) -> None:
    value, key = machine.pop(), machine.pop()
    _fill(machine, [key, value])


def _fill(machine: _Machine, items: list[object]) -> None:
    if len(items) % 2:
        raise PlainError("a key without a value")
    machine.check_keys(items[::2])
    machine.top(dict).update(zip(items[::2], items[1::2], strict=True))


def _drop(machine: _Machine, _argument: None) -> None:
    if not machine.stack:
        raise PlainError("a value is missing in it")
    machine.stack.pop()  # a mark, too


def _duplicate(machine: _Machine, _argument: None) -> None:
    value = machine.pop()
    machine.stack.append(value)
    machine.push(value)


def _check_protocol(_machine: _Machine, number: int) -> None:
    if number > _HIGHEST_PROTOCOL:
        raise PlainError(f"protocol {number}, up to {_HIGHEST_PROTOCOL} is known")


def _name(code: bytes) -> str:
    told = (one.name for one in pickletools.opcodes if one.code.encode("latin-1") == code)
    return next(told, f"byte 0x{code[0]:02x}")


_LINES = (pickletools.decimalnl_short, pickletools.decimalnl_long, pickletools.floatnl)
_ARGUMENTS = {
    **{one.code.encode("latin-1"): one.arg for one in pickletools.opcodes},
    # Their bytes: a large one is refused before it is made.
    pickle.LONG1: pickletools.bytes1,
    pickle.LONG4: pickletools.bytes4,
}
_VALUES = (
    *(pickle.INT, pickle.LONG, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.FLOAT, pickle.BINFLOAT),
    *(pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
)
"""Their argument is the value."""
_ROWS: tuple[tuple[bytes, _Step], ...] = (
    (pickle.PROTO, _check_protocol),
    (pickle.FRAME, lambda _machine, _size: None),  # how much a reader of a stream would fetch at once
    (pickle.MARK, _push_new(lambda: _MARK)),
    (pickle.POP, _drop),
    (pickle.POP_MARK, lambda machine, _: machine.pop_items()),
    (pickle.DUP, _duplicate),
    (pickle.NONE, _push_new(lambda: None)),
    (pickle.NEWTRUE, _push_new(lambda: True)),
    (pickle.NEWFALSE, _push_new(lambda: False)),
    *((code, _Machine.push) for code in _VALUES),
    (pickle.LONG1, _push_long),
    (pickle.LONG4, _push_long),
    (pickle.EMPTY_LIST, _push_new(list)),
    (pickle.LIST, _push_items(list)),
    (pickle.APPEND, lambda machine, _: _extend(machine, [machine.pop()])),
    (pickle.APPENDS, lambda machine, _: _extend(machine, machine.pop_items())),
    (pickle.EMPTY_TUPLE, _push_new(tuple)),
    (pickle.TUPLE, _push_items(tuple)),
    (pickle.TUPLE1, _push_tuple(1)),
    (pickle.TUPLE2, _push_tuple(2)),
    (pickle.TUPLE3, _push_tuple(3)),
    (pickle.EMPTY_DICT, _push_new(dict)),
    (pickle.DICT, _push_dict),
    (pickle.SETITEM, _set_item),
    (pickle.SETITEMS, lambda machine, _: _fill(machine, machine.pop_items())),
    (pickle.EMPTY_SET, _push_new(set, _SET_VALUES)),
    (pickle.FROZENSET, _push_frozen_set),
    (pickle.ADDITEMS, _add_items),
    *((code, _Machine.remember) for code in (pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT)),
    (pickle.MEMOIZE, lambda machine, _: machine.remember(len(machine.memo))),
    *((code, _Machine.recall) for code in (pickle.GET, pickle.BINGET, pickle.LONG_BINGET)),
)
_STEPS = {code: (_ARGUMENTS[code], step) for code, step in _ROWS}
