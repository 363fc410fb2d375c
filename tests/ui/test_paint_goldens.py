"""The pictures in tests/goldens are what the painters paint; `make goldens` rewrites them."""

import re

import pytest

from tests.goldens import fleet_views, pictures, trace_views
from tests.goldens.states import STATES
from tpmon.model.codec import decode
from tpmon.model.frame import Frame

LISTED = {module: list(module.list_pictures()) for module in (pictures, trace_views, fleet_views)}
PAINTED = [(module, picture) for module, listed in LISTED.items() for picture in listed]


@pytest.mark.parametrize("state", STATES)
def test_the_frame_file_is_what_the_builder_builds(state):
    text = pictures.frame_path(state).read_text(encoding="utf-8")
    assert text == pictures.encode_state(state)
    assert pictures.encode_state(state) == pictures.encode(decode(Frame, text)) + "\n"


@pytest.mark.parametrize(("module", "picture"), PAINTED, ids=[picture.name for _, picture in PAINTED])
def test_the_picture_is_what_is_painted(module, picture):
    painted = pictures.write_text(module.paint_picture(picture))
    assert painted == module.picture_path(picture).read_text(encoding="utf-8"), "run: make goldens"
    if picture.changes.get("ascii_only"):
        assert painted.isascii()


INKED = [(module, picture) for module in (pictures, fleet_views) for picture in module.list_inked()]


@pytest.mark.parametrize(("module", "picture"), INKED, ids=[picture.name for _, picture in INKED])
def test_each_cell_has_its_ink(module, picture):
    painted = pictures.write_inks(module.paint_picture(picture))
    assert painted == module.inks_path(picture).read_text(encoding="utf-8"), "run: make goldens"


def test_no_golden_has_a_verdict_that_was_written_by_hand():
    """The rules write every sentence of a picture: ``playing.play`` judges the Frames."""
    for path in sorted(pictures.HERE.glob("*.py")):
        written = re.findall(r"\b(?:make_finding|make_evidence|Finding|Evidence)\(", path.read_text(encoding="utf-8"))
        assert not written, path.name


def test_no_file_is_left_over():
    assert {path.name for path in pictures.FRAMES.iterdir()} == {f"{state}.json" for state in STATES}
    assert {path.name for path in pictures.INKS.iterdir()} == {f"{one.name}.txt" for one in pictures.list_inked()}
    for module, folder in ((pictures, pictures.PICTURES), (trace_views, trace_views.FOLDER)):
        assert {path.name for path in folder.iterdir()} == {f"{one.name}.txt" for one in LISTED[module]}
    fleets = {
        *map(fleet_views.picture_path, LISTED[fleet_views]),
        *map(fleet_views.inks_path, fleet_views.list_inked()),
    }
    assert set(fleet_views.FOLDER.iterdir()) == fleets


def test_the_screens_page_shows_the_pictures():
    assert pictures.SCREENS_PAGE.read_text(encoding="utf-8") == pictures.write_screens_page()
