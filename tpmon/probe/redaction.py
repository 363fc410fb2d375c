"""Hide passwords, tokens and keys in lines of text and in command lines. Pure.

What is a secret is told by its name (``--db-pass``, ``MYSQL_PWD=``) or its own form (``hf_...``). Counts
and code stay readable: "tokens=4096" is no secret, "password=4096" is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache

HIDDEN = "***"


def _late(pattern: str, flags: int = 0) -> Callable[[], re.Pattern[str]]:
    """Return what compiles a pattern when it is first used: no first picture waits for these 3 ms."""
    return cache(lambda: re.compile(pattern, flags))


_NAME = r"[\w.-]{0,40}"
_WORD = (
    r"(?:password|passwd|passphrase|secret|credential|token|(?<![a-z])auth(?:orization)?|key|signature)"
    r"s?(?![a-z])"  # not KeyError, not tokenizer
)
_BRIEF = r"(?<=[-_.])(?:pass|pwd|pw)"  # not bypass, not PWD=/home/me
_ESCAPES = r"\\{0,3}"  # of a quote in JSON, and in JSON within JSON
_QUOTE = rf"{_ESCAPES}[\"']"
_VALUE = rf"({_ESCAPES}\"[^\"]*\"?|{_ESCAPES}'[^']*'?|[^\s,;&)}}\]]+)"
_IS = rf"(?:{_QUOTE})?\s{{0,3}}[=:]\s{{0,3}}"
# In a printed list of words, ['--token', 'abc'], the next one is quoted; another option is no value.
_THEN = rf"(?:\s{{1,3}}|{_QUOTE},\s{{0,3}}(?={_QUOTE}(?!--)))"
_OPTION = _late(rf"((?<!-)--{_NAME}(?:{_WORD}{_NAME}|{_BRIEF}){_THEN}){_VALUE}", re.IGNORECASE)
_ASSIGNED = _late(rf"({_WORD}{_NAME}{_IS}){_VALUE}", re.IGNORECASE)
_ASSIGNED_BRIEF = _late(
    rf"((?:(?<!-)--{_NAME}{_BRIEF}=|(?<![\w.-]){_NAME}(?:{_BRIEF}|(?<![\w.-])pass)"
    rf"(?:{_QUOTE}{_IS}|\s{{0,3}}=\s{{0,3}}))){_VALUE}",  # not "forward pass: done"
    re.IGNORECASE,
)
_PARTS = _late(r"(-{0,2}[\w.+/-]+)=(.*)", re.DOTALL)
_FLAG = _late(r"-{1,2}[\w.-]+")
_NAMES_SECRET = _late(rf"{_WORD}|{_BRIEF}$|^-*pass$", re.IGNORECASE)

_ALWAYS = _late(r"(?i:pass(?:w|phrase)|secret|credential|auth|^-.*(?:pass|pwd?))|_(?:PASS|PWD?)\b")
_WHOLE_VALUE = _late(r"pass|pwd?\b|secret|key", re.IGNORECASE)
_KEY = _late(r"key|signature", re.IGNORECASE)
_LONG_NUMBER = _late(rf"(?:{_QUOTE})?[0-9]{{8,}}(?:{_QUOTE})?$")
_QUOTED = _late(_QUOTE)
_TO_SPACE = _late(r"\S*")
_TO_SIGN = _late(r"[^\s,;&)}\]]*")
_HARMLESS = _late(
    rf"(?:{_QUOTE})?(?:"
    r"[-+]?[0-9][0-9._]*(?:e[-+]?[0-9]+)?[kmgbt%]?(?:/\w{1,6})?"  # tokens=4096, tokens: 1.2k/s
    r"|<[^>]*>"  # pad_token='<pad>'
    r"|\w{1,5}"  # key=loss
    rf")(?:{_QUOTE})?$"
    r"|[a-z_][\w.]*[(\[]",  # key = torch.cat(...) in a traceback
    re.IGNORECASE,
)
_FORMS = _late(
    r"(?<![A-Za-z0-9])"
    r"(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{8,}|AIza[\w-]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}|xox[a-z]-[\w-]{8,}"
    r"|gsk_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{16,}|dckr_pat_[\w-]{12,}"
    r"|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
)
_BEARER = _late(
    r"(\bbearer\s{1,3}|authorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:basic|token)\s{1,3})[^\s\"',;]{4,}",
    re.IGNORECASE,
)
_URL = _late(r"([a-z][a-z0-9+.-]{0,20}://)[^/\s?#]{1,300}@", re.IGNORECASE)
_IN_URL = _late(
    r"([?&;]sig=|hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/)"
    r"[^\s&\"']+",
    re.IGNORECASE,
)


def redact_secrets(text: str) -> str:
    """Replace passwords, tokens and keys in one line of text by ``***``."""
    text = _URL().sub(rf"\1{HIDDEN}@", text)
    text = _IN_URL().sub(rf"\1{HIDDEN}", text)
    text = _BEARER().sub(rf"\1{HIDDEN}", text)
    for pattern in (_OPTION(), _ASSIGNED(), _ASSIGNED_BRIEF()):
        text = "".join(_hide_values(pattern, text))
    return _FORMS().sub(HIDDEN, text)


def names_secret(name: str) -> bool:
    """Tell by the name of a variable whether it holds a secret."""
    return name.lower() in ("pwd", "pw") or _NAMES_SECRET().search(name) is not None


def redact_words(words: Sequence[str]) -> tuple[str, ...]:
    """Replace secrets in a command line, word by word: a value ends where its word ends."""
    return tuple(_redact_each(words))


def _redact_each(words: Sequence[str]) -> Iterator[str]:
    name = ""
    for word in words:
        parts = _PARTS().fullmatch(word)
        if name and not word.startswith("--"):
            yield word if _is_harmless(name, word) else HIDDEN
        elif parts and _NAMES_SECRET().search(parts[1]) and not _is_harmless(f"{parts[1]}=", parts[2]):
            yield f"{parts[1]}={HIDDEN}"
        else:
            yield redact_secrets(word)
        name = word if _FLAG().fullmatch(word) and _NAMES_SECRET().search(word) else ""


def _hide_values(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield the text in pieces; a value that is hidden goes on to where it can have ended at the latest."""
    at = 0
    while match := pattern.search(text, at):
        name, value = match[1], match[2]
        if value == HIDDEN or _is_harmless(name, value):
            yield text[at : match.end()]
            at = match.end()
            continue
        yield text[at : match.start()] + name + HIDDEN
        quoted = _QUOTED().match(value)
        rest = _TO_SPACE if _WHOLE_VALUE().search(name) and not quoted else _TO_SIGN
        found = rest().match(text, match.end())
        at = found.end() if found else match.end()
    yield text[at:]


def _is_harmless(name: str, value: str) -> bool:
    """Tell a count, a short word or code from a secret, by the name before it."""
    if _ALWAYS().search(name):
        return False
    if _KEY().search(name) and _LONG_NUMBER().match(value):
        return False
    return bool(_HARMLESS().match(value))
