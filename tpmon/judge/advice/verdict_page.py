"""Write docs/verdicts.md from the table of kinds, the explanations and the catalogue. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tpmon.judge.advice.choose import CATALOGUE, EXPLANATIONS, Cause, Explanation, Remedy
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.advice.fields import fill, fill_paste, list_fields
from tpmon.judge.advice.hot import CALLS
from tpmon.model.figures import Figure
from tpmon.model.known import is_known
from tpmon.model.verdict import TABLE, Kind, KindRow, pick_code

_INTRODUCTION = """\
# Verdicts

Written by `make docs` from the tables of the program.

The first line of the screen is a verdict: a kind, a cause, how sure it is, and since when. `tpmon attach PID
--check` and `tpmon diagnose PID` print it and exit with the code of its kind; with 11 instead of 0 while a
card that the job uses, or may use, does not answer.

* **Confidence** grows with the physical origins of its readings (driver, /proc, control group, stacks, pipes,
  log, files, network, hook, record), time and distance from the threshold. One origin alone never makes it
  high. Evidence against the verdict lowers it by one level. So does a reading that could count against it but
  was not read, which then stands under *unknown*: losing a source makes no verdict surer. Two things do not
  lower it: a missing hook, as most runs have none, and two sources that differ, where the verdict claims a
  smaller share without the one that saw more.
* **Since** is the onset if the history shows it, else a lower bound with its source.
* **Ruled out** names causes that tpmon looked for and did not find; **unknown** names those that it could not
  check, and why.
* A cause is stated after some seconds and dropped some seconds after it was last seen, so a reading at its
  threshold does not flicker. If causes take turns all the same, one that was replaced less than 30 s ago must
  lead for a minute before it is stated again. A cause that only follows from another is not stated beside it.
* **Try** is the entry of the catalogue below that fits this run best. It begins with "if" where tpmon could
  not observe a precondition. **Also try** are the next ones, at most four: in `tpmon diagnose`, in the whole
  verdict (`v`) and in JSON. A run that nothing holds back gets only remedies that were seen to apply.

The thresholds of the rules, and where each comes from, are in [thresholds.md](thresholds.md).

Notes stand beside a verdict and are no fault: `power-limited`, `other-tenants`, `workers-beyond-budget`,
`hollow`, `memory-full`, `shared` (others compute on a card), `held` (a thermal reason or the power brake that
costs less than 5 %), `xid` (a card reported a fault of the program, or one that it contained), `silent` (a
card that the job may use does not answer: no run is called well beside it, unless each of several processes
has a card of its own that answers), debug settings that slow the run, a second cause that was seen
(`also ...`), and what it `may be ...` while there is no verdict.
"""


def _table() -> Iterator[str]:
    yield "| exit code | kind | causes | meaning |"
    yield "|---|---|---|---|"
    for row in sorted(TABLE, key=lambda row: row.exit_code):
        causes = ", ".join(row.causes)
        others = [(cause, pick_code(row.kind, cause)) for cause in row.causes]
        codes = "".join(f"; {cause}: {code}" for cause, code in others if code != row.exit_code)
        kind = row.kind.value
        yield f"| {row.exit_code}{codes} | [`{kind}`](#{kind}) | {causes} | {row.meaning} |"


def _remedy(name: str) -> str:
    return f"[{fill(CATALOGUE[name].title, RunFacts())}](#{name})"


def _section(kind: Kind, cause: Cause, explanation: Explanation) -> Iterator[str]:
    if is_known(cause):
        yield f"### {kind.value}: {cause}"
        yield ""
    yield explanation.means
    yield ""
    yield f"* How tpmon sees it: {explanation.sees}"
    yield f"* Often confused with: {explanation.confused_with}"
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
    yield f"* Use it when: {remedy.applies}"
    yield f"* Not when: {remedy.not_when}"
    yield f"* Must be observed first: {'; '.join(need.value for need in remedy.needs) or 'nothing'}."
    yield f"* Ceiling: {fill(remedy.ceiling, RunFacts())}"
    yield f"* Risk to the experiment: {remedy.risk.value}"
    yield f"* It helped if: {remedy.proof}"
    yield ""
    yield f"```{remedy.language.value}"
    yield fill_paste(remedy.paste, RunFacts())
    yield "```"
    yield ""
    if "hot_title" in list_fields(remedy.title):
        yield from _calls()


def _calls() -> Iterator[str]:
    yield "| most of the time is in | do this |"
    yield "|---|---|"
    for call in CALLS.values():
        yield f"| {call.words} | {call.title} |"
    yield ""


def _figures() -> Iterator[str]:
    yield "# The figures"
    yield ""
    yield "What evidence is made of. Confidence counts the origins of the figures that decide. `…` stands for"
    yield "a rank, a card or a count; a source that is not given is that of the whole group of readings."
    yield ""
    yield "| figure | unit | source | origin | drawn with its history |"
    yield "|---|---|---|---|---|"
    for one in Figure:
        origins = ", ".join(sorted(origin.value for origin in one.origins))
        drawn = "yes" if one.history is not None else ""
        name, unit = one.label.replace("{}", "…"), one.unit.replace("{}", "…")
        yield f"| {name} | {unit} | {one.source} | {origins} | {drawn} |"
    yield ""


def write_page() -> str:
    """Return docs/verdicts.md."""
    lines = [*_INTRODUCTION.splitlines(), "", *_table(), ""]
    for row in TABLE:
        lines += _kind(row)
    lines += ["# The catalogue of remedies", ""]
    for remedy in CATALOGUE.values():
        lines += _entry(remedy)
    lines += _figures()
    return "\n".join(lines).rstrip("\n") + "\n"
