"""The pages of traces and snapshots name every key of their JSON, and none that is not there."""

import dataclasses
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from tpmon.model.known import Missing
from tpmon.model.results.snapshot import SnapshotReport
from tpmon.model.results.trace import TraceComparison, TraceReport

PAGES = [(Path(__file__).parents[2] / "docs" / name).read_text() for name in ("trace.md", "memory-snapshot.md")]
SECTIONS = {name: text for page in PAGES for name, text in re.findall(r"(?ms)^### `(\w+)`\n(.*?)(?=^### |\Z)", page)}


def find_kinds(hint: object) -> dict[str, type]:
    """Return the dataclasses that a type is made of, but for ``Missing``."""
    own = {hint.__name__: hint} if dataclasses.is_dataclass(hint) and hint is not Missing else {}
    parts = (*get_args(hint), *(get_type_hints(hint).values() if own else ()))
    return own | {name: kind for part in parts for name, kind in find_kinds(part).items()}


KINDS = find_kinds(TraceReport) | find_kinds(TraceComparison) | find_kinds(SnapshotReport)


def test_every_kind_has_a_section():
    assert set(KINDS) == set(SECTIONS)


@pytest.mark.parametrize("name", KINDS)
def test_every_key_is_named_in_its_order(name):
    keys = re.findall(r"(?m)^\| `(\w+)` \|", SECTIONS[name])
    assert keys == [field.name.rstrip("_") for field in dataclasses.fields(KINDS[name])]
