"""Print docs/verdicts.md: the table of kinds and the catalogue, with what docs/verdicts.toml says of each.

Run as ``python -m tests.judge.verdict_page``; ``make docs`` does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpmon.judge.advice.choose import CATALOGUE, REMEDIES, Remedy, Risk
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.advice.fields import fill, fill_paste
from tpmon.judge.answers.needs import Need
from tpmon.judge.knowledge import make_row, read_table
from tpmon.model.figures import Origin
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.verdict import TABLE, KindRow, pick_code

PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"


@dataclass(frozen=True)
class VerdictText:
    """Hold what the page says of a verdict; ``what_to_do`` where no remedy is listed for it."""

    means: str
    sees: str = ""
    confused_with: str = ""
    what_to_do: str = ""


_TABLE = read_table(str(PAGE), "verdicts.toml")
VERDICTS = {
    (kind, cause): make_row(VerdictText, f"verdicts: {kind}: {cause}", text)
    for kind, rows in _TABLE["verdicts"].items()
    for cause, text in ({NOT_APPLICABLE: rows} if "means" in rows else rows).items()
}
"""The texts by row of the table of kinds."""
ABOUT, NOT_WHEN, AT_MOST = (
    {name: " ".join(text.split()) for name, text in _TABLE[part].items()} for part in ("about", "not_when", "at_most")
)
"""Those of remedies, by name; many need none."""

_INTRODUCTION = f"""\
# Verdicts

Written by `make docs` from the tables of the program.

A verdict is a kind, a cause, how sure it is, and since when. `tpmon attach PID --check` and `tpmon diagnose PID`
exit with the code of its kind; with 11 instead of 0 while a card of the job does not answer.

* **Confidence** grows with time, with the distance from the threshold, and with the number of physical origins
  ({", ".join(one.value for one in Origin)}). One origin alone never makes it high.
  Evidence against the verdict lowers it by one level, and so does a reading that could count against it but is
  missing. A missing hook does not.
* **Since** is when it began, if the history shows that, else a lower bound with its source.
* **Ruled out** names causes that were checked and are not there. **Unknown** names those that could not be
  checked, and why.
* A cause is stated after some seconds, and dropped some seconds after it was last there. One that was replaced
  less than 30 s ago must lead for a minute before it comes back. What only follows from another cause is not
  stated beside it.
* **Try** is the remedy below that fits this run best. "If" stands before a precondition that was not seen to be so:
  check it first. **Also try** are at most four more, in `tpmon diagnose`, in the whole verdict (`v`) and in JSON. A
  healthy run gets only remedies that were seen to apply.
* **Notes** are no fault: a limit that costs nothing, a second cause (`also ...`), or what it `may be ...`
  while there is no verdict.

[thresholds.md](thresholds.md) has the numbers from which the rules decide.
"""
_REMEDIES = """\
# Remedies

Each with what must be so, beyond its verdict. Remedies for cards need a card, and more workers need free memory. tpmon
fills in "..." and names in braces, says what each line is for, and states the most that is gained. A remedy has helped
if samples/s rise."""
_COMMENT = re.compile(r"(?<=\S) +# .*")
_ASSUMED = {Need.GPU_PRESENT, Need.MEMORY_FREE, Need.TORCH_LOADER}


def _table() -> Iterator[str]:
    yield "| exit code | kind | meaning |"
    yield "|---|---|---|"
    for row in sorted(TABLE, key=lambda row: row.exit_code):
        others = ((cause, pick_code(row.kind, cause)) for cause in row.causes)
        codes = "".join(f"; {cause}: {code}" for cause, code in others if code != row.exit_code)
        kind = row.kind.value
        yield f"| {row.exit_code}{codes} | [`{kind}`](#{kind}) | {row.meaning} |"
    yield ""


def _kind(row: KindRow) -> Iterator[str]:
    yield f"## {row.kind.value}"
    yield ""
    for (kind, cause), one in VERDICTS.items():
        if kind != row.kind.value:
            continue
        if is_known(cause):
            yield f"### {kind}: {cause}"
            yield ""
        names = ", ".join(f"[{name}](#{name})" for name in REMEDIES[row.kind, cause])
        yield one.means
        yield ""
        yield from (f"* Seen: {one.sees}",) if one.sees else ()
        yield from (f"* Not: {one.confused_with}",) if one.confused_with else ()
        yield f"* Try: {one.what_to_do or names + '.'}"
        yield ""


def _entry(remedy: Remedy) -> Iterator[str]:
    yield f"### {remedy.id}"
    yield ""
    rows = [names for names in REMEDIES.values() if remedy.id in names]
    implied = {need for need in remedy.needs if all(need in CATALOGUE[name].needs for names in rows for name in names)}
    needs = " and ".join(need.value for need in remedy.needs if need not in implied | _ASSUMED)
    said = [f"**{fill(remedy.title, RunFacts())}**" + (f" if {needs}." if needs else ".")]
    said += [ABOUT[remedy.id]] if remedy.id in ABOUT else []
    said += [f"Not when: {NOT_WHEN[remedy.id]}"] if remedy.id in NOT_WHEN else []
    said += [f"At most: {AT_MOST[remedy.id]}."] if remedy.id in AT_MOST else []
    said += [f"Risk: {remedy.risk.value}."] if remedy.risk is not Risk.NONE else []
    yield " ".join(said)
    yield ""
    lines = fill_paste(remedy.paste, RunFacts()).strip("\n").split("\n")
    yield from ("    " + _COMMENT.sub("", line) for line in lines if not line.startswith("# ..."))
    yield ""


def write_page() -> str:
    """Return docs/verdicts.md."""
    lines = [*_INTRODUCTION.splitlines(), "", *_table()]
    for row in TABLE:
        lines += _kind(row)
    lines += [*_REMEDIES.splitlines(), ""]
    for remedy in CATALOGUE.values():
        lines += _entry(remedy)
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    sys.stdout.write(write_page())
