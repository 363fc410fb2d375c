"""docs/trace.md names every key of the JSON of a trace, and none that is not there."""

import dataclasses
import re
from pathlib import Path

import pytest

from tpmon.model.results import trace, trace_tables

PAGE = (Path(__file__).parents[2] / "docs" / "trace.md").read_text()
SECTIONS = dict(re.findall(r"(?ms)^### `(\w+)`\n(.*?)(?=^### |\Z)", PAGE))
_OF_CAPTURES = (trace.TraceSummary, trace.SummaryReply)
KINDS = [
    kind
    for module in (trace, trace_tables)
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__ and kind not in _OF_CAPTURES
]


def test_every_kind_has_a_section():
    assert {kind.__name__ for kind in KINDS} == set(SECTIONS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_key_is_named_in_its_order(kind):
    keys = re.findall(r"(?m)^\| `(\w+)` \|", SECTIONS[kind.__name__])
    assert keys == [field.name.rstrip("_") for field in dataclasses.fields(kind)]
