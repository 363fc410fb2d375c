"""Say what putting the hook into a running process writes, what can go wrong, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.results.late import LatePlan, LateResult, LateState, LateWay

_WRITES = {
    LateWay.PENDING_CALL: (
        "384 bytes that no variable uses, an entry in its main thread's empty queue of pending calls,"
        " and the flags that have it look there"
    ),
    LateWay.SCRIPT: "the path of a script where Python takes one from a debugger (PEP 768), and two flags",
}
_RUNS = (
    "run in its main thread at the next safe point: once some 5 to 40 ms of its CPU; from then on what the"
    " hook takes of a step (10 to 55 us)"
)
_RISKS = {
    LateWay.PENDING_CALL: "if it uses pending calls itself in the same microseconds, one may be lost; a"
    " signal handler of its own that raises in those ends it",
    LateWay.SCRIPT: "within the constructor of a namedtuple Python cannot open the script: it says so on"
    " standard error and is asked again",
}
_RISKS_EVER = (
    "an error of the hook's own takes it out again; a garbage collection that is due may fall into it"
    " (0.3 s were seen)"
)
_SAID = {
    LateState.INSTALLED: "the hook is in",
    LateState.REMOVED: "the hook is out: patches undone, pages closed, files gone",
    LateState.ABSENT: "there is no hook in it",
    LateState.PRESENT: "its hook came with the run: tpmon.hook.uninstall() takes it out",
}


def describe_plan(plans: Sequence[LatePlan], *, lent: bool = False) -> tuple[str, ...]:
    """Return the price in lines: what is written where, what runs, what can go wrong, how it is undone.

    ``lent``: for one capture, which takes it out itself.
    """
    who = ", ".join(f"pid {one.pid} (CPython {one.python})" for one in plans)
    ways = dict.fromkeys(one.way for one in plans)
    undo = f"tpmon hook {plans[0].pid} --remove"
    undone = f"taken out at the end of the capture; where tpmon is killed before, by: {undo}"
    return (
        f"the hook into {who}, which runs on meanwhile: no stop, no signal, no debugger",
        *(f"written into its memory: {_WRITES[way]}" for way in ways),
        "on its disk: a folder for its user alone in /tmp, gone when the hook is in",
        _RUNS,
        f"can go wrong: {'; '.join([*(_RISKS[way] for way in ways), _RISKS_EVER])}",
        f"{undone if lent else f'taken back with: {undo}'}; the code stays loaded, and does nothing",
    )


def describe_result(result: LateResult) -> str:
    """Return what came of it in a line."""
    again = f", asked {result.tries} times" if result.tries > 1 else ""
    return f"pid {result.pid}: {_SAID[result.state]} ({result.waited_ms:.0f} ms{again})"
