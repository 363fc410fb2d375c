"""docs/json.md names every key of the JSON contract, and none that is not there."""

import dataclasses
import json
import re
import types
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from tests.frames import make_frame
from tpmon.model.codec import WAIT_REASON, encode
from tpmon.model.dump import Dump
from tpmon.model.frame import Frame, Pulse
from tpmon.model.known import Missing, NotApplicable
from tpmon.model.results.doctor import Checkup, JobList
from tpmon.model.results.sample import HotSample
from tpmon.model.waits import Wait, WaitReason

TEXT = (Path(__file__).parents[1] / "docs" / "json.md").read_text()


def _parts(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return [part for arg in get_args(hint) for part in _parts(arg)]
    return [hint]


def _reachable(root: type) -> dict[str, type]:
    """Return every dataclass and enum that a value of ``root`` can hold, by name."""
    found: dict[str, type] = {}
    todo = [root]
    while todo:
        kind = todo.pop()
        if kind is Wait:  # its words, with the reason beside them
            todo.append(WaitReason)
        elif kind.__name__ not in found:
            found[kind.__name__] = kind
            if dataclasses.is_dataclass(kind):
                parts = [part for hint in get_type_hints(kind).values() for part in _parts(hint)]
                todo += [
                    part
                    for part in parts
                    if isinstance(part, type)
                    and part not in (Missing, NotApplicable)
                    and (dataclasses.is_dataclass(part) or issubclass(part, Enum))
                ]
    return found


ROOTS = (Frame, JobList, Dump, HotSample, Checkup, Pulse)
KINDS = {name: kind for root in ROOTS for name, kind in _reachable(root).items()}
SECTIONS = dict(re.findall(r"(?ms)^### `(\w+)`\n(.*?)(?=^##|\Z)", TEXT))
WORDS = dict(re.findall(r"(?m)^\| `([A-Z]\w+)` \| (`.*`) \|$", TEXT))


def _rows(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _may_be_unread(hint: Any) -> str:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if NotApplicable in options:
        return "missing or absent"
    return "missing" if Missing in options else ""


def test_there_is_a_section_for_each_dataclass_and_no_other():
    assert sorted(SECTIONS) == sorted(n for n, kind in KINDS.items() if dataclasses.is_dataclass(kind))


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_the_table_has_every_key_and_says_what_may_be_unread(name):
    kind = KINDS[name]
    hints = get_type_hints(kind)
    expected = []
    for field in dataclasses.fields(kind):
        expected.append((f"`{field.name.rstrip('_')}`", _may_be_unread(hints[field.name])))
        if Wait in get_args(hints[field.name]):
            expected.append((f"`{WAIT_REASON}`", "absent"))
    assert [(row[0], row[3]) for row in _rows(SECTIONS[name])] == expected


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_every_row_says_unit_meaning_and_source(name):
    for key, kind, unit, _, meaning, source in _rows(SECTIONS[name]):
        assert kind, key
        assert meaning, key
        assert source, key
        suffixes = {"_bytes": "bytes", "_ratio": "ratio", "_pct": "%", "_w": "W", "_mhz": "MHz", "_c": "C"}
        for suffix, expected in suffixes.items():
            if key.strip("`").endswith(suffix):
                assert unit.startswith(expected), key


def test_the_words_of_each_key_with_few_values_are_listed():
    enums = {n: kind for n, kind in KINDS.items() if issubclass(kind, Enum)}
    assert sorted(WORDS) == sorted(enums)
    for name, kind in enums.items():
        assert WORDS[name] == ", ".join(f"`{member.value}`" for member in kind)


def test_a_frame_has_no_key_that_is_not_documented():
    raw = json.loads(encode(make_frame()))
    keys = {row[0].strip("`") for section in SECTIONS.values() for row in _rows(section)} | {"missing"}

    def check(value):
        if isinstance(value, dict):
            assert value.keys() <= keys
            for inner in value.values():
                check(inner)
        elif isinstance(value, list):
            for inner in value:
                check(inner)

    check(raw)
    assert "worker" not in raw["processes"][0]
