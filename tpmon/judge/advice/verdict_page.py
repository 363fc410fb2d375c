"""Write docs/verdicts.md from the table of kinds, the explanations and the catalogue. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tpmon.judge.advice.entry import CATALOGUE, EXPLANATIONS, Cause, Explanation, Remedy
from tpmon.judge.advice.facts import RunFacts, fill, fill_paste
from tpmon.model.known import is_known
from tpmon.model.verdict import TABLE, Kind, KindRow, pick_code

_INTRODUCTION = """\
# Verdicts

Written by `make docs` from the tables of the program.

The first line of the screen is a verdict: a kind, a cause, how sure, since when. `tpmon attach PID
--check` and `tpmon diagnose PID` print it and end with the exit code of its kind; with 11 in the place of 0
while a card that the job is on, or may be, does not answer.

* **Confidence** grows with the physical origins of its readings (driver, /proc, control group, stacks,
  pipes, log, files, network, hook, record), time and distance from the threshold. One alone is never high.
  What speaks against a verdict takes a level, and so does what might and was not read, which then stands
  under *unknown*: a source that is lost makes no verdict surer. Two things are no such loss: a
  hook that is not there, as most runs have none, and two sources that differ, where without the one that saw
  more a smaller share is claimed.
* **Since** is the onset where the history shows it; else a lower bound with what tells it.
* **Ruled out** names causes that were looked for and are not there, **unknown** those that could not be
  told, and why.
* A cause is stated after some seconds and dropped some seconds after it was last seen, so that a reading
  at its threshold does not flicker. Where causes take turns all the same, one that gave its place back within
  30 s must then be ahead for a minute to be stated again. A cause that only follows from another one is not
  stated beside it.
* **Try** is one entry of the catalogue below that fits this run. It begins with "if" where a
  precondition could not be observed. **Also try** are the next of them, at most four: in `tpmon diagnose`, in
  the whole verdict (`v`) and in JSON. A run that nothing holds back is told only what was seen to help it.

What the rules compare with, and where each number comes from, is in [thresholds.md](thresholds.md).

Notes stand beside a verdict and are no fault: `power-limited`, `other-tenants`, `workers-beyond-budget`,
`hollow`, `memory-full`, `shared` (others compute on a card), `held` (a thermal reason or the power brake that
costs less than 5 %), `xid` (a fault of the program that a card told of, or one that it contained), `silent`
(a card does not answer that the job may be on: no run is called well beside it, unless each of several
processes has a card of its own that answers), debug settings that slow the run, the second
cause that was seen (`also ...`), and what it `may be ...` while no verdict stands.
"""


def _anchor(kind: Kind) -> str:
    return f"[`{kind.value}`](#{kind.value})"


def _table() -> Iterator[str]:
    yield "| exit code | kind | causes | meaning |"
    yield "|---|---|---|---|"
    for row in sorted(TABLE, key=lambda row: row.exit_code):
        causes = ", ".join(row.causes)
        others = [(cause, pick_code(row.kind, cause)) for cause in row.causes]
        codes = "".join(f"; {cause}: {code}" for cause, code in others if code != row.exit_code)
        yield f"| {row.exit_code}{codes} | {_anchor(row.kind)} | {causes} | {row.meaning} |"


def _remedy(name: str) -> str:
    return f"[{fill(CATALOGUE[name].title, RunFacts())}](#{name})"


def _section(kind: Kind, cause: Cause, explanation: Explanation) -> Iterator[str]:
    if is_known(cause):
        yield f"### {kind.value}: {cause}"
        yield ""
    yield explanation.means
    yield ""
    yield f"* Seen by: {explanation.sees}"
    yield f"* Confused with: {explanation.confused_with}"
    said = (
        "; ".join(map(_remedy, explanation.remedies)) + "."
        if explanation.remedies
        else explanation.what_to_do
    )
    yield f"* What to do: {said}"
    yield ""


def _kind(row: KindRow) -> Iterator[str]:
    yield f"## {row.kind.value}"
    yield ""
    for (kind, cause), explanation in EXPLANATIONS.items():
        if kind is row.kind:
            yield from _section(kind, cause, explanation)


def _entry(remedy: Remedy) -> Iterator[str]:
    yield f"### {remedy.id}"
    yield ""
    yield f"**{fill(remedy.title, RunFacts())}**"
    yield ""
    yield f"* Applies: {remedy.applies}"
    yield f"* Not when: {remedy.not_when}"
    yield f"* Must have been observed: {'; '.join(need.value for need in remedy.needs) or 'nothing'}."
    yield f"* Ceiling: {fill(remedy.ceiling, RunFacts())}"
    yield f"* Risk to the experiment: {remedy.risk.value}"
    yield f"* Proof that it helped: {remedy.proof}"
    yield ""
    yield f"```{remedy.language.value}"
    yield fill_paste(remedy.paste, RunFacts())
    yield "```"
    yield ""


def write_page() -> str:
    """Return docs/verdicts.md."""
    lines = [*_INTRODUCTION.splitlines(), "", *_table(), ""]
    for row in TABLE:
        lines += _kind(row)
    lines += ["# The catalogue of remedies", ""]
    for remedy in CATALOGUE.values():
        lines += _entry(remedy)
    return "\n".join(lines).rstrip("\n") + "\n"
