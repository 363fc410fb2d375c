"""Print how soon the verdict follows when a program changes its cause, and how steady it is meanwhile.

The program changes at a signal. Each change must show within 20 s as one event; 75 s of rest
follow, in which the verdict must not move. ``--borderline`` watches a case near the threshold for
five minutes instead, in which no verdict that was left may come back. Run: ``make bench-switch``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time

from tests.programs.causes.running import Verdict, read_verdict, run_program
from tests.programs.causes.table import HEALTHY, Label, Row
from tests.programs.chaos_watch import Watch, watch
from tpmon.judge.hysteresis import SETTLED_S
from tpmon.model.verdict import Kind

SWITCHING = Row("switching", Label(Kind.BALANCED))
BORDERLINE = Row("chosen_share", Label(Kind.DATA_BOUND))
FOLLOW_S = 20.0
REST_S = SETTLED_S + 15.0
"""Long enough that the verdict has settled, and tpmon looks less often, before the next change."""
BORDERLINE_S = 300.0
BORDERLINE_SHARE = 0.12
"""Near the share from which waiting is called a cause."""
LABELS = {
    "healthy": HEALTHY,
    "cpu-transform": (Label(Kind.DATA_BOUND, "cpu-transform"),),
    "single-thread": (Label(Kind.PYTHON_BOUND, "single-thread"),),
    "rank-pool": (Label(Kind.OVERSUBSCRIBED, "rank-pool"),),
}


def list_said(watched: Watch) -> list[Verdict]:
    return [read_verdict(frame["verdict"], at_s) for at_s, frame in zip(watched.came_s, watched.frames, strict=False)]


def list_events(watched: Watch) -> list[tuple[float, str]]:
    """Return when each verdict event came, and its text."""
    came = zip(watched.came_s, watched.frames, strict=False)
    return [(at_s, one["text"]) for at_s, frame in came for one in frame["events"] if one["kind"] == "verdict"]


def print_switches(causes: list[str], seed: int) -> bool:
    """Change from cause to cause and print a line for each; tell whether all was as it must be."""
    fine = True
    seconds = (len(causes) + 1) * (FOLLOW_S + REST_S) + 120
    program = run_program(SWITCHING, seed, "--causes", ",".join(causes), seconds=seconds)
    with program as running, watch(running.pid) as watched:
        for place, cause in enumerate(causes):
            changed = time.monotonic()
            if place:
                os.kill(running.pid, signal.SIGUSR1)
            time.sleep(FOLLOW_S + REST_S)
            labels = LABELS[cause]
            mine = [one for one in list_said(watched) if one.after_s > changed]
            first = next(
                (one.after_s for one in mine if any(label.fits(one.kind, one.cause) for label in labels)), None
            )
            events = [text for at, text in list_events(watched) if at > changed]
            last = str(mine[-1]) if mine else "nothing"
            after = "never" if first is None else f"{first - changed:.1f} s"
            fine = fine and first is not None and first - changed <= FOLLOW_S
            fine = fine and (place == 0 or len(events) == 1)
            print(f"{cause}: followed after {after}, {len(events)} events, then {last}: {events}", flush=True)
    return fine


def count_returns(said: list[str]) -> int:
    """Count how often a verdict came back that had been left: that is flicker, a drift is not."""
    changes = [one for one, _ in itertools.groupby(said)]
    return sum(one in changes[:place] for place, one in enumerate(changes))


def print_borderline(share: float, seed: int) -> bool:
    """Watch a program near the threshold and print how often the verdict changed; tell whether it was steady."""
    program = run_program(BORDERLINE, seed, "--share", str(share), seconds=BORDERLINE_S + 120)
    with program as running, watch(running.pid) as watched:
        time.sleep(BORDERLINE_S)
    said = [str(one) for one in list_said(watched)]
    changes, returns = sum(a != b for a, b in itertools.pairwise(said)), count_returns(said)
    print(
        f"borderline {share:.0%}: {changes} changes, {returns} of them back, in {len(said)} readings: "
        f"{sorted(set(said))}"
    )
    for at, text in list_events(watched):
        print(f"  after {at - watched.came_s[0]:.0f} s: {text}")
    return returns == 0


def main() -> int:
    """Run the switches, or the borderline case; exit 1 when a verdict followed late or more than once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--causes", default="healthy,cpu-transform,healthy,single-thread,healthy,rank-pool")
    parser.add_argument("--borderline", action="store_true")
    parser.add_argument("--share", type=float, default=BORDERLINE_SHARE)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the program ends and is swept up
    if options.borderline:
        return int(not print_borderline(options.share, options.seed))
    return int(not print_switches(options.causes.split(","), options.seed))


if __name__ == "__main__":
    sys.exit(main())
