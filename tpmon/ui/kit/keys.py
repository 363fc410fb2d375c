"""The shape of a table of keys, of any screen: a row, when it works, and what every table does.

A screen's table feeds its dispatch, its footer, its help overlay and docs/keys.md. Knows nothing of
textual, and nothing of what is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tpmon.model.frozen import dataclass
from tpmon.ui.kit.lines import KeyHelp
from tpmon.ui.kit.moves import Effect, Move

View = TypeVar("View")
Deed_co = TypeVar("Deed_co", covariant=True)

_SENT = {
    "+": ("+", "="),
    "PgDn": ("pagedown",),
    "PgUp": ("pageup",),
    "backspace": ("backspace", "ctrl+h"),
    "esc": ("escape",),
}
"""What a terminal event names a key where that is more than its sign in small letters."""


@dataclass(frozen=True, slots=True)
class Situation(Generic[View]):
    """Hold a test of what the screen shows, and its words."""

    holds: Callable[[View], bool]
    words: str


@dataclass(frozen=True, slots=True)
class ByDigit(Generic[View]):
    """Do something with the number whose digit was pressed."""

    act: Callable[[View, int], View]


@dataclass(frozen=True, slots=True)
class Key(Generic[View, Deed_co]):
    """Hold one row of the table.

    ``signs`` are the keys as a person reads them, with a space between: "q", "PgDn", "j down", "1-5".
    ``footer`` is its word in the footer and the priority there, ``brief`` that of KeyHelp.
    """

    section: str
    id: str
    signs: str
    help: str
    deed: Deed_co
    when: Situation[View]
    footer: tuple[str, int] = ("", 0)
    brief: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the signs, one by one."""
        return tuple(self.signs.split())

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the names that a terminal event carries."""
        return tuple(name for sign in self.shown for name in _list_names(sign))


def _list_names(sign: str) -> tuple[str, ...]:
    first, _, last = sign.partition("-")
    if first.isdigit() and last.isdigit():
        return tuple(str(digit) for digit in range(int(first), int(last) + 1))
    return _SENT.get(sign) or (sign if len(sign) == 1 else sign.replace("-", "+").lower(),)


def list_moves(section: str, when: Situation[View]) -> tuple[Key[View, Move], ...]:
    """Return the keys that go through rows and lines of any screen."""
    step, page, end = "a row or line down, up", "a page down, up", "first, last"
    return (
        Key(section, "down", "j down", "next row or line", Move.DOWN, when, ("down", 7), step),
        Key(section, "up", "k up", "previous row or line", Move.UP, when, brief=step),
        Key(section, "page-down", "PgDn", "a page down", Move.PAGE_DOWN, when, brief=page),
        Key(section, "page-up", "PgUp", "a page up", Move.PAGE_UP, when, brief=page),
        Key(section, "first", "g Home", "first row or line", Move.FIRST, when, brief=end),
        Key(section, "last", "G End", "last row or line", Move.LAST, when, brief=end),
    )


def list_steps(
    section: str,
    on: tuple[str, str, str],
    back: tuple[str, str, str],
    act: Callable[[View, int], View],
    *,
    when: Situation[View],
    footer: tuple[str, int],
    brief: str,
) -> tuple[Key[View, Callable[[View], View]], ...]:
    """Return two keys that go one step on and one back: ``id``, ``signs`` and ``help`` of each."""
    return (
        Key(section, *on, lambda view: act(view, 1), when, footer, brief),
        Key(section, *back, lambda view: act(view, -1), when, brief=brief),
    )


def list_stops(section: str, ever: Situation[View]) -> tuple[Key[View, Effect], ...]:
    """Return the keys of any screen that work whatever it shows: stop, and draw again."""
    stop, redraw = "stop tpmon; fg goes on", "draw all again, after another program wrote here"
    return (
        Key(section, "suspend", "ctrl-z", stop, Effect.SUSPEND, ever, brief=stop),
        Key(section, "redraw", "ctrl-l", redraw, Effect.REDRAW, ever, brief="draw all again"),
    )


def find_in(table: Sequence[Key[View, Deed_co]], name: str, view: View) -> Key[View, Deed_co] | None:
    """Return the row of the table that the pressed key means now, if any."""
    return next((key for key in table if name in key.keys and key.when.holds(view)), None)


def say_why_not(table: Sequence[Key[View, Deed_co]], name: str, reason: str) -> str:
    """Say why a key did nothing: ``reason`` where there is one, where it works, or that it has no meaning.

    "" for keys without a letter.
    """
    if len(name) != 1 or not name.isprintable():
        return ""
    where = tuple(dict.fromkeys(key.when.words for key in table if name in key.keys))
    if not where:
        return f"{'space' if name == ' ' else name} has no meaning, ? shows the keys"
    if reason:
        return reason
    return f"{name} works {where[0]}" if len(where) == 1 else f"{name} does nothing here, ? shows what does"


def list_help(table: Sequence[Key[View, Deed_co]], view: View, below: View) -> list[KeyHelp]:
    """Return what works now, in the order of the table.

    Also what works ``below`` the help once it is closed: listed there, but not in the footer.
    """
    shown = []
    for key in table:
        now = key.when.holds(view)
        if now or key.when.holds(below):
            footer, priority = key.footer
            shown.append(KeyHelp(key.shown, key.help, key.section, footer, priority if now else 0, key.brief))
    return shown
