"""The pictures in tests/goldens are what the painters paint; `make goldens` rewrites them."""

import re

import pytest

from tests.goldens import pictures
from tests.goldens.states import STATES
from tpmon.model.codec import decode
from tpmon.model.frame import Frame

LISTED = list(pictures.list_pictures())


@pytest.mark.parametrize("state", STATES)
def test_the_frame_file_is_what_the_builder_builds(state):
    text = pictures.frame_path(state).read_text(encoding="utf-8")
    assert text == pictures.encode_state(state)
    assert pictures.encode_state(state) == pictures.encode(decode(Frame, text)) + "\n"


@pytest.mark.parametrize("picture", LISTED, ids=lambda picture: picture.name)
def test_the_picture_is_what_is_painted(picture):
    painted = pictures.write_text(pictures.paint_picture(picture))
    assert painted == pictures.picture_path(picture).read_text(encoding="utf-8")
    if picture.changes.get("ascii_only"):
        assert painted.isascii()


def test_no_golden_has_a_verdict_that_was_written_by_hand():
    """The rules write every sentence of a picture: ``playing.play`` judges the Frames."""
    for path in sorted(pictures.HERE.glob("*.py")):
        written = re.findall(r"\b(?:make_finding|make_evidence|Finding|Evidence)\(", path.read_text(encoding="utf-8"))
        assert not written, path.name


def test_no_file_is_left_over():
    assert {path.name for path in pictures.FRAMES.iterdir()} == {f"{state}.json" for state in STATES}
    assert {path.name for path in pictures.PICTURES.iterdir()} == {f"{one.name}.txt" for one in LISTED}


def test_the_screens_page_shows_the_pictures():
    assert pictures.SCREENS_PAGE.read_text(encoding="utf-8") == pictures.write_screens_page()
