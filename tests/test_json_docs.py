"""docs/json.md names every key of the JSON contract, and none that is not there."""

import dataclasses
import json
import re
import textwrap
import types
from datetime import datetime
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
from tpmon.model.results.fleet import FleetReport
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


ROOTS = (Frame, JobList, Dump, HotSample, Checkup, Pulse, FleetReport)
KINDS = {name: kind for root in ROOTS for name, kind in _reachable(root).items()}
SECTIONS = dict(re.findall(r"(?ms)^### `(\w+)`\n(.*?)(?=^##|\Z)", TEXT))
WORDS = dict(re.findall(r"(?m)^\* `([A-Z]\w+)`: (`.*`)$", TEXT))
NAMES = {int: "int", float: "num", str: "str", bool: "bool", datetime: "time", Wait: "str"}
UNITS = re.compile(r"_(s|ms|ns|pct|ratio|hz|bytes|w|mhz|c|cores)$")


def _write_type(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"[{_write_type(get_args(hint)[0])}]"
    if get_origin(hint) in (Union, types.UnionType):
        (one,) = {_write_type(arg) for arg in get_args(hint) if arg not in (Missing, NotApplicable)}
        return one + "?" * (Missing in get_args(hint)) + "*" * (NotApplicable in get_args(hint))
    return NAMES.get(hint, hint.__name__)


def list_keys(kind: type) -> list[str]:
    """List the keys of a dataclass as its section does: ``rank:int?*``."""
    hints = get_type_hints(kind)
    keys = []
    for field in dataclasses.fields(kind):
        keys.append(f"{field.name.rstrip('_')}:{_write_type(hints[field.name])}")
        if Wait in get_args(hints[field.name]):
            keys.append(f"{WAIT_REASON}:{WaitReason.__name__}*")
    return keys


def write_keys(kind: type) -> str:
    return "```\n" + textwrap.fill(" ".join(list_keys(kind)), 125, break_on_hyphens=False) + "\n```"


def _read_keys(section: str) -> set[str]:
    return {key.partition(":")[0] for key in section.split("```")[1].split()}


def _find_explained(section: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", "\n".join(line for line in section.splitlines() if line.startswith("* `"))))


def test_there_is_a_section_for_each_dataclass_and_no_other():
    assert sorted(SECTIONS) == sorted(n for n, kind in KINDS.items() if dataclasses.is_dataclass(kind))


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_a_section_has_every_key_with_its_type_and_says_what_may_be_unread(name):
    assert write_keys(KINDS[name]) in SECTIONS[name]


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_what_a_line_explains_is_a_key(name):
    named = re.findall(r"(?m)^\* `(\w+)`", SECTIONS[name])
    assert set(named) <= _read_keys(SECTIONS[name])
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_a_number_says_its_unit_in_its_name_or_has_a_line(name):
    numbers = [key.partition(":")[0] for key in list_keys(KINDS[name]) if key.partition(":")[2].startswith("num")]
    intro = SECTIONS[name].split("```")[0]
    bare = {key for key in numbers if not UNITS.search(key) and "seconds" not in intro}
    assert bare <= _find_explained(SECTIONS[name]) | {"seconds", "asked_seconds", "cores", "pct"}


def test_the_words_of_each_key_with_few_values_are_listed():
    enums = {n: kind for n, kind in KINDS.items() if issubclass(kind, Enum)}
    assert sorted(WORDS) == sorted(enums)
    for name, kind in enums.items():
        assert WORDS[name] == ", ".join(f"`{member.value}`" for member in kind)


def test_a_frame_has_no_key_that_is_not_documented():
    raw = json.loads(encode(make_frame()))
    keys = set().union(*map(_read_keys, SECTIONS.values())) | {"missing"}

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
