"""Hide passwords, tokens and keys in text of others: one policy for the screen, text, ``--json`` and bundles.

A secret is told by the name before it (JSON, YAML, options, headers, pairs, also on the line before), by its
form (``hf_...``, ``https://me:S@host``, a private key) and by its randomness. Those that are told by their
randomness alone stay readable with ``--show`` (``keep_random``). Pure but for that switch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import TypeVar, cast

from tpmon.errors import TpmonError
from tpmon.model.text.secrets import (
    Rating,
    find_arguments,
    find_forms,
    find_places,
    find_random,
    is_harmless,
    late,
    looks_secret,
    rate_name,
)
from tpmon.model.units import clean_text

HIDDEN = "***"
_GAP, _BREAK = "\x1f", "\x1e"
"""Between the words of a command line, and between lines in one; white space for every pattern."""
_KEPT_TEXTS, _MOST_KEPT = 2048, 300
_MOST_NAME, _MOST_OPEN = 130, 600
_MOST_LINES, _MOST_QUOTED = 200, 6
"""Of a key, and of a quote, whose end does not come."""

_Span = tuple[int, int]
_NO_SPAN = (0, 0)
_BLOCK = "block"

_HINTS = (
    *("pass", "pw", "secret", "token", "key", "auth", "cred", "cookie", "sig", "session", "sid", "csrf"),
    *("xsrf", "jwt", "otp", "psk", "_pat", "webhook", "mnemonic", "sas"),
)
"""One of them is in every name of a secret; most lines have none."""
_UNSEEN = late(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0e-\x1b\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]"
)

_NAME = r"[\w.$@-]{1,100}"
_SIGN = late(r"\s{0,3}(?:=>|->|:=|[=:]|%3[AaDd]|&#61;)\s{0,3}|\s{0,2}>")
_NAME_BACK = late(r"[\"'\])\\]{0,6}([\w.$@/-]{1,100})")
_QUOTES = r"[\"'\\]"
_OPTION = late(
    rf"(?<![\w-])(-{{1,2}}[A-Za-z][\w.-]{{0,80}})(?:{_QUOTES}{{0,5}}\s{{1,3}}(?!{_QUOTES}{{0,5}}--)"
    rf"|{_QUOTES}{{1,5}},\s{{0,3}}(?={_QUOTES}{{1,5}}(?!--)))(?=\S)"
)
_PAIR = late(
    rf"[(\[]\s?[bru]?[\"'](?P<name>{_NAME})[\"']\s?,\s{{0,3}}[bru]?"
    r"(?P<quote>[\"'])(?P<value>(?:(?!(?P=quote)).){1,2000})(?P=quote)\s?[)\]]"
)
_CALLED = late(
    rf"(?i)\b(?:name|key|id|k|field|header|var|variable|property|param)[\"']?\s?[=:>]?\s?\\?[\"']?({_NAME})"
    r"\\?[\"']?[^\n]{0,60}?\b(?:value|val|v|content|text|default)\\?[\"']?(?:\s?[=:>]\s?|\s(?=[\"']))"
)
_ELEMENT = late(r"<(?P<name>[\w:.-]{1,60})(?:\s[^<>]{0,200})?>(?P<value>[^<\x1f]{1,2000})(?=</)")
_WORD = late(r"(?<![\w.-])[A-Za-z_][\w.-]{2,60}(?=[\"']?\s)")
_SAID = late(
    r"(?i)[\"']?\s{1,40}(?:(?:[|│┃]|(?:is|was|are|set to|to|as|of|for \S{1,60}(?: is|:| =)):?)\s{1,3})?"
)
_SETS = late(
    r"(?:^|\s)(?:set|setenv|export|env|setx|-\w*x|config|login|machine|modify|connect|\w+set)\s(?:\S{1,60}\s){0,3}$",
    re.IGNORECASE,
)
_LINK = late(r"(?i)\s(?:is|was|are|set to|for \S{1,60}?)(?::|\s=)\s|\s*[|│┃]|\t")
_HEADER = late(r"(?:proxy-)?authorization|(?:set-)?cookie2?|www-authenticate", re.IGNORECASE)
_BEGIN = late(
    r"-{4,5}\s?BEGIN [A-Z0-9 ]{0,30}(?:PRIVATE KEY|PGP MESSAGE)[A-Z ]{0,12}-{4,5}|^Private-(?:Lines|MAC):"
)
_END = late(r"-{4,5}\s?END [A-Z0-9 ]{0,30}(?:PRIVATE KEY|PGP MESSAGE)[A-Z ]{0,12}-{4,5}")
_BODY = late(r"[A-Za-z0-9+/=]{2,}(?=(?:\\n|[\"',]|\s){0,6}$)")
_OPEN = late(
    rf"[\"'\\]{{0,3}}(?P<name>{_NAME})[\"'\])\\]{{0,4}}(?:</name>)?\s?(?P<sign>=>|->|:=|[=:,])?"
    r"\s{0,3}(?P<block>[|>][+-]?)?[\\(\[{]?\s*$"
)
_VERSION = late(r"==[0-9]")
_LONG = late(r"[A-Za-z0-9][A-Za-z0-9_-]{13}")
_OPENING = late(r"([bru]{0,2}\\{0,3}(?:\"\"\"|\'\'\'|[\"']))")
_BRACKET = late(r"[{}\[\]()]")
_LEAF = late(r"[^\s\"',:{}\[\]()]+")
_TO_SPACE = late(r"(?:\\ |[^\s\x1f])+")
_TO_SIGN = late(r"[^\s,;&)}\]]+")
_HEX = late(r"(?:%|\\x|\\u00)([2-7][0-9A-Fa-f])")
_ENDS_OPEN = tuple("=:,>|+-\\([{\"'")
_NAMING = late(r"\s*-?\s*(?:<?(?:name|key)\s*[:>]|variable\s\")")
_REST = late(r"(?:[ \t]{1,3}[^\s=:,;|│]{1,60}){1,24}\s*$")  # of a value
_UNCLOSED = late(rf"({_NAME})[\"'\])]{{0,3}}\s?[=:]\s?[bru]?(\"\"\"|\'\'\'|[\"'])(?=[^\"']*$)")
_VALUE = late(r"\s*-?\s?[\"'<]?(?:value|val|v|text|default)[\"']?\s?[:=>]\s?")
_ONE = late(r"\s*(?:-\s)?(?P<value>[bru]?(?P<quote>[\"']).*?(?P=quote)|\S+)[\s,]*$")

_policy = {"random": True}


def keep_random(keep: bool = True) -> None:
    """Leave readable what only its randomness tells: hashes, identifiers, and keys without a name."""
    _policy["random"] = not keep
    _find_kept.cache_clear()
    _hide_short.cache_clear()


def hide(text: str) -> str:
    """Replace passwords, tokens and keys in a text of one or several lines by ``***``."""
    return _hide_short(text) if len(text) <= _MOST_KEPT else "\n".join(hide_lines(text.split("\n")))


@lru_cache(maxsize=_KEPT_TEXTS)
def _hide_short(text: str) -> str:
    return "\n".join(hide_lines(text.split("\n")))


def admit_text(text: str, limit: int = 200) -> str:
    """Hide secrets in text of others, strip what does not print, cap its length: the border of Frames."""
    return clean_text(hide(text), limit)


def hide_lines(lines: Sequence[str], most: int = 0) -> list[str]:
    """Hide secrets in lines, where one can tell of the next; 0 as ``most``: in all, else in the last ones."""
    redactor = Redactor()
    marks = [one for one in lines if "-----" in one] if len(lines) > 1 else []
    if marks and _END().search(marks[0]) and not _BEGIN().search(marks[0]):
        redactor.in_key = True  # it began before these lines
    elif most and marks:
        for line in lines[:-most]:
            redactor.feed(line)
    last = lines[-most:]
    return [redactor.feed(line, last[at + 1 : at + 1 + _MOST_QUOTED]) for at, line in enumerate(last)]


def hide_words(words: Sequence[str]) -> tuple[str, ...]:
    """Hide the secrets in a command line, word by word: a value ends where its word ends."""
    joined = _GAP.join(word.replace(_GAP, " ").replace("\n", _BREAK) for word in words)
    shown = hide(joined) if _BREAK in joined else joined
    return tuple(hide(shown.replace(_BREAK, "\n")).split(_GAP)) if words else ()


class Redactor:
    """Hide the secrets in lines one after the other; knows which line goes on with the one before."""

    def __init__(self) -> None:
        self.in_key = False
        self._lines = 0
        self._until: tuple[str, int] = ("", 0)
        self._named = Rating.NONE
        self._indent = 0

    def feed(self, line: str, following: Sequence[str] = ()) -> str:
        """Return the next line without its secrets; ``following`` are some lines behind it."""
        seen = line if line.isprintable() else _UNSEEN().sub("", line)
        found = _find_kept(seen) if len(seen) <= _MOST_KEPT else _find_spans(seen)
        spans = [*self._go_on(seen), *found, *self._begin(seen, following)]
        shown = _cover(seen, spans)
        shown = _hide_quoted(shown) if any(one in shown for one in ("%", "\\x", "\\u")) else shown
        return line if shown == seen else shown

    def _go_on(self, line: str) -> Iterator[_Span]:
        """Find what of a line belongs to what the lines before began."""
        self._lines = self._lines + 1 if self.in_key or self._until[0] else 0
        if self.in_key:
            end = _END().search(line)
            self.in_key = end is None and self._lines < _MOST_LINES
            if body := _BODY().search(line, 0, end.start() if end else len(line)):
                yield body.span()
        kind, indent = self._until
        if kind == _BLOCK:
            if line.strip() and _indent_of(line) <= indent:
                self._until = ("", 0)
            else:
                yield (_indent_of(line), len(line))
        elif kind:
            end_at = line.find(kind)
            yield (0, len(line) if end_at < 0 else end_at)
            if end_at >= 0 or self._lines >= _MOST_QUOTED:
                self._until = ("", 0)
        if self._named and line.strip():
            yield (span := self._find_promised(line))
            listed = line.rstrip().endswith(",") or line.lstrip().startswith("- ")
            self._named = self._named if listed and span != _NO_SPAN else Rating.NONE

    def _find_promised(self, line: str) -> _Span:
        """Return the value of a name that stands on the line before: one word, or all that is deeper in."""
        if told := _VALUE().match(line):
            return _span_value(line, told.end(), self._named)
        if self._named > Rating.WEAK and _indent_of(line) > self._indent and ":" not in line:
            return (_indent_of(line), len(line))
        one = _ONE().match(line)
        if one is None or rate_name(value := one["value"].strip("\"',")):
            return _NO_SPAN
        harmless = is_harmless(self._named, value, quoted=one["quote"] is not None)
        return _NO_SPAN if harmless else (one.start("value"), len(line))

    def _begin(self, line: str, following: Sequence[str]) -> Iterator[_Span]:
        """Find what a line begins and does not end: a key, a block, a quote, a name without its value."""
        if begin := _BEGIN().search(line) if "-----" in line or line.startswith("Private-") else None:
            end = _END().search(line, begin.end())
            yield (begin.end(), end.start() if end else len(line))
            self.in_key = end is None
            return
        low = line[-_MOST_NAME:].lower()
        if not any(hint in low for hint in _HINTS):
            return
        quoted = _UNCLOSED().search(line, max(0, len(line) - _MOST_OPEN))
        if quoted and rate_name(quoted[1]) > Rating.WEAK and any(quoted[2] in one for one in following):
            self._until = (quoted[2], 0)
        words = line.strip().removeprefix("- ")
        called = _NAMING().match(line) is not None
        if not (called or words[-1:] in _ENDS_OPEN or " " not in words):
            return
        found = _OPEN().search(line, max(0, len(line) - _MOST_NAME))
        rating = rate_name(found["name"]) if found else Rating.NONE
        if found is None or not rating:
            return
        alone = called or found["name"][:1] == "-" or words.strip("\"'[](),:") == found["name"]
        if found["block"] and found["sign"]:
            self._until = (_BLOCK, _indent_of(line))
        elif alone or found["sign"] not in (None, ","):
            self._named, self._indent = rating, _indent_of(line)


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


@lru_cache(maxsize=_KEPT_TEXTS)
def _find_kept(line: str) -> tuple[_Span, ...]:
    return tuple(_find_spans(line))


def _find_spans(line: str) -> Iterator[_Span]:
    low = line.lower()
    if any(hint in low for hint in _HINTS):
        yield from _find_assigned(line)
        yield from _find_spoken(line)
    yield from find_places(line, low)
    yield from find_arguments(line)
    if _LONG().search(line):
        yield from find_forms(line)
        if _policy["random"]:
            yield from find_random(line)


def _find_assigned(line: str) -> Iterator[_Span]:
    """Find values behind "=" and ":" and in tags, by the name before them."""
    at = 0
    for sign in _SIGN().finditer(line):
        if sign.start() < at:
            continue  # within a value
        begin = sign.start()
        if _VERSION().match(line, begin):
            continue
        back = _NAME_BACK().match(line[max(0, begin - 110) : begin][::-1])
        if back is None:
            continue
        name, quoted = back[1][::-1], back[0][0] in "\"'"
        rating = rate_name(name)
        if sign[0].strip() == ">":
            rating = Rating.NONE if not line[: begin - len(name)].endswith("<") else rating
        if not rating or (
            rating is Rating.BRIEF and sign[0].strip() == ":" and not quoted and name[0] != "/"
        ):
            continue
        before = begin - len(back[0])
        if _HEADER().fullmatch(name) and ":" in sign[0]:
            closing = line.find(line[before - 1], sign.end()) if before and line[before - 1] in "\"'" else -1
            span = (sign.end(), closing if closing > 0 else _end_of_word(line, sign.end()))
        else:
            whole = rating > Rating.WEAK and (not before or line[before - 1] == _GAP)
            span = _span_value(line, sign.end(), rating, whole=whole)
        if span[0] < span[1]:
            more = rating > Rating.BRIEF and sign[0][-1:] == " " and not line[:before].strip(" -+")
            rest = _REST().match(line, span[1]) if more else None
            at = rest.end() if rest else span[1]
            yield (span[0], at)


def _span_value(line: str, begin: int, rating: Rating, *, whole: bool = False) -> _Span:
    """Return where a value stands, (0, 0) where it is harmless; ``whole``: to the end of its word."""
    if line.startswith(HIDDEN, begin):
        return _NO_SPAN
    if whole and _GAP in line:
        end = _end_of_word(line, begin)
        return (
            (begin, end) if not is_harmless(rating, line[begin:end].strip("\"'"), quoted=False) else _NO_SPAN
        )
    opened = _OPENING().match(line, begin)
    if opened:
        close = _closing(opened[1])().search(line, opened.end())
        end = close.start() if close else _end_of_word(line, opened.end())
        if is_harmless(rating, line[opened.end() : end], quoted=True):
            return _NO_SPAN
        goes_on = close and (line[close.end() :][:1].isalnum() or line[close.end() :][:1] in tuple("\"'"))
        rest = _TO_SPACE().match(line, close.end()) if close and goes_on else None
        return (begin, rest.end() if rest else close.end() if close else end)
    if line[begin : begin + 1] in tuple("{[("):
        end = _end_of_bracket(line, begin)
        inner = line[begin + 1 : end - 1]
        leaves = [one for one in _LEAF().findall(inner) if rating > Rating.WEAK or looks_secret(rating, one)]
        return (begin, end) if not all(is_harmless(rating, one, quoted=True) for one in leaves) else _NO_SPAN
    found = (_TO_SPACE if rating > Rating.WEAK else _TO_SIGN)().match(line, begin)
    if found is None or is_harmless(rating, found[0].rstrip("\"'"), quoted=False):
        return _NO_SPAN
    rest = _TO_SPACE().match(line, found.end()) if rating > Rating.WEAK else None
    return (begin, rest.end() if rest else found.end())


def _end_of_word(line: str, begin: int) -> int:
    end = line.find(_GAP, begin)
    return len(line) if end < 0 else end


def _end_of_bracket(line: str, begin: int) -> int:
    depth = 0
    for one in _BRACKET().finditer(line, begin, begin + 400):
        depth += 1 if one[0] in "{[(" else -1
        if depth == 0:
            return one.end()
    return min(len(line), begin + 400)


@lru_cache(maxsize=64)
def _closing(opening: str) -> Callable[[], re.Pattern[str]]:
    quote = opening[-3:] if opening[-3:] in ("'''", '"""') else opening[-1]
    escapes = len(opening.lstrip("bru")) - len(quote)
    return late((r"(?<!\\)" if not escapes else re.escape("\\" * escapes)) + re.escape(quote))


def _find_spoken(line: str) -> Iterator[_Span]:
    """Find values behind a name without a sign: of an option, a pair, a word of a sentence or command."""
    for one in _OPTION().finditer(line):
        if rating := rate_name(one[1]):
            whole = line[one.start() - 1 : one.start()] in ("", _GAP) and line[one.end() - 1] == _GAP
            yield _span_value(line, one.end(), rating, whole=whole)
    for pattern in (_PAIR, _ELEMENT):
        for one in pattern().finditer(line):
            rating = rate_name(one["name"])
            if rating and not is_harmless(rating, one["value"].strip(), quoted=True):
                yield one.span("value")
    for one in _CALLED().finditer(line):
        if rating := rate_name(one[1]):
            yield _span_value(line, one.end(), rating)
    for one in _WORD().finditer(line):
        rating = rate_name(one[0])
        if not rating:
            continue
        said = _SAID().match(line, one.end())
        value = _TO_SPACE().match(line, said.end()) if said else None
        if said is None or value is None or not value[0]:
            continue
        sets = not said[0].strip(" \x1f\"'") and _SETS().search(line[max(0, one.start() - 100) : one.start()])
        alone = not (line[: one.start()].strip() or line[value.end() :].strip() or one[0].istitle())
        last = alone and not value[0].endswith("ed")  # of a .netrc
        told = rating > Rating.BRIEF and (value[0][0] in "\"'" or last or _LINK().match(said[0]))
        if sets or told or looks_secret(rating, value[0].strip("\"'.,;")):
            yield _span_value(line, said.end(), rating)


def _cover(line: str, spans: Iterable[_Span]) -> str:
    """Put ``***`` in the place of each part; parts that meet become one."""
    shown: list[str] = []
    at = 0
    for begin, end in sorted(spans):
        if begin >= end or end <= at or line[begin:end].strip() in ("", HIDDEN):
            continue
        if begin >= at and (begin > at or not shown):
            shown += [line[at:begin], HIDDEN]
        at = end
    return "".join([*shown, line[at:]])


def _hide_quoted(line: str) -> str:
    """Hide what percent signs and escapes write otherwise; a line with a secret is then shown as it reads."""
    plain = _HEX().sub(lambda one: chr(int(one[1], 16)), line)
    shown = _cover(plain, _find_spans(plain)) if plain != line else plain
    return shown if shown != plain else line


T = TypeVar("T")

TEXT_CHARS = 400
_FAILURE_CHARS = 160

MOST_DIGITS = 6
"""Of a number of threads; what another process has in its environment may be anything."""


def name_failure(error: BaseException) -> str:
    """Name an exception and cut its words, text of others; errors of tpmon and the system have their own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, TpmonError):
        return error.what
    words = admit_text(str(error), _FAILURE_CHARS)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def clean_value(value: T) -> T:
    """Return a value of ``model`` with control characters of its texts replaced, and long texts cut."""
    return cast("T", _clean(value))


def _clean(value: object) -> object:
    import dataclasses  # noqa: PLC0415  # it compiles patterns, which who only hides text does without

    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return admit_text(value, TEXT_CHARS)
    if isinstance(value, tuple):
        return tuple(map(_clean, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: _clean(getattr(value, name)) for name in names})
    return value
