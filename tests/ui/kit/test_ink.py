"""Every ink is read on a dark and on a light terminal, with the palette of xterm, which knows no theme."""

import pytest

from tpmon.ui.kit.ink import STYLES
from tpmon.view.layout import Ink

PALETTE = {
    "black": (0, 0, 0),
    "red": (205, 0, 0),
    "green": (0, 205, 0),
    "yellow": (205, 205, 0),
    "magenta": (205, 0, 205),
    "cyan": (0, 205, 205),
    "white": (229, 229, 229),
}
BRIGHT = {"red": (255, 0, 0), "magenta": (255, 0, 255), "white": (255, 255, 255)}
"""What bold makes of a colour in terminals that show it so."""
DARK, LIGHT = (0, 0, 0), (255, 255, 255)
AREAS = (Ink.GOOD, Ink.NOTICE)
"""They fill bars; the figure stands beside them in an ink of its own."""


def lightness(colour: tuple[int, int, int]) -> float:
    """Return the relative luminance of WCAG 2.1."""
    parts = [one / 255 for one in colour]
    red, green, blue = [one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    low, high = sorted((lightness(one), lightness(other)))
    return (high + 0.05) / (low + 0.05)


COLOURED = [ink for ink in Ink if any(word in STYLES[ink].colour.split() for word in PALETTE)]


@pytest.mark.parametrize("ground", [DARK, LIGHT], ids=["dark", "light"])
@pytest.mark.parametrize("ink", COLOURED, ids=lambda ink: ink.value)
def test_an_ink_is_read_on_a_dark_and_on_a_light_terminal(ink, ground):
    front, _, back = STYLES[ink].colour.partition(" on ")
    names = [word for word in front.split() if word in PALETTE]
    behind = PALETTE[back] if back else ground
    shown = [PALETTE[name] for name in names]
    if "bold" in front.split():
        shown += [BRIGHT.get(name, PALETTE[name]) for name in names]
    assert min(contrast(one, behind) for one in shown) >= (1.9 if ink in AREAS else 3.0)


def test_text_is_never_yellow_and_no_meaning_is_a_colour_alone():
    assert not any("yellow" in STYLES[ink].colour.partition(" on ")[0] for ink in Ink)
    for ink in Ink:
        assert ink.name.startswith("BADGE") is bool(STYLES[ink].plain == "bold reverse")
