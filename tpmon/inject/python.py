"""Recognise the CPython of a process from its memory: version, flavour, where its state begins."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.inject.image import Image, find_images
from tpmon.inject.memory import MappedRange, TargetMemory
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.model.frozen import dataclass

OLDEST, NEWEST = (3, 10), (3, 15)
_FINAL = 0xF
_COOKIE = b"xdebugpy"
_FREE_THREADED_AT = 16


@dataclass(frozen=True, slots=True)
class Python:
    """Hold what is at which address: ``_PyRuntime``, ``PyRun_SimpleString``, the unused bytes behind data.

    ``version`` is that of the running image, without its patch level for 3.10, which does not name it.
    """

    version: tuple[int, ...]
    runtime: int
    runtime_bytes: int
    run_string: int
    slack: int
    slack_bytes: int

    @property
    def minor(self) -> tuple[int, int]:
        """Return the version that layouts belong to."""
        return self.version[0], self.version[1]


def read_python(memory: TargetMemory, mappings: Sequence[MappedRange]) -> Python:
    """Find the CPython in a process; RefusedError for every one that is not known to be safe."""
    for image in find_images(memory, mappings):
        runtime, run_string = image.find("_PyRuntime"), image.find("PyRun_SimpleString")
        if runtime is None or run_string is None:
            continue
        version = _read_version(memory, image)
        if image.find("_Py_NegativeRefcount") is not None:  # there only where references are checked
            raise RefusedError(RefusalReason.DEBUG)
        if version >= (3, 13):
            _check_offsets_block(memory, runtime.at)
        slack, size = image.find_slack(mappings)
        return Python(version, runtime.at, runtime.size, run_string.at, slack, size)
    raise RefusedError(RefusalReason.NOT_PYTHON)


def _read_version(memory: TargetMemory, image: Image) -> tuple[int, ...]:
    told = image.find("Py_Version")  # since 3.11
    if told is None:
        if image.find("PyIter_Send") is None:  # since 3.10
            raise RefusedError(RefusalReason.VERSION, "older than 3.10")
        return OLDEST
    number = memory.read_u64(told.at)
    version = (number >> 24, number >> 16 & 0xFF, number >> 8 & 0xFF)
    said = ".".join(map(str, version))
    if not OLDEST <= version[:2] <= NEWEST:
        raise RefusedError(RefusalReason.VERSION, said)
    if number >> 4 & 0xF != _FINAL:
        raise RefusedError(RefusalReason.VERSION, f"{said} before its release")
    return version


def _check_offsets_block(memory: TargetMemory, runtime: int) -> None:
    """Check the table for debuggers with which the state begins since 3.13."""
    if memory.read(runtime, len(_COOKIE)) != _COOKIE:
        raise RefusedError(RefusalReason.OFFSETS, "no table for debuggers")
    if memory.read_u64(runtime + _FREE_THREADED_AT):
        raise RefusedError(RefusalReason.FREE_THREADED)
