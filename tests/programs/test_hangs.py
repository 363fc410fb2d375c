"""Real programs that hang, beside each other, and one that is slow: tpmon says who hangs, where and why.

They hang beside the tests of the screen and the units: most of it is waiting. Ten runs of each, fresh
and five minutes old: ``make hangs``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.command_line import call
from tests.hangs.beside import NAMES, Beside
from tests.hangs.programs import start_trees
from tests.programs.hangs.table import ROWS
from tests.torch_build import needs_torch

pytestmark = [pytest.mark.torch, needs_torch]


@pytest.mark.parametrize("name", NAMES)
def test_who_hangs_and_why_is_said_and_nothing_else_is_called_hung(
    name: str, hung_programs: Beside, sampling_works: None
) -> None:
    result = hung_programs.wait_for(name)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.misses == (), (result.said, result.summary)


LIFE_S = 300.0
WAIT_S = 110
"""Longest wait for the verdict, which takes half a minute on a machine with nothing else to do."""
TELL = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"
HUNG = 12


@pytest.mark.long
def test_a_watch_for_a_hang_ends_with_its_code_and_tells_a_command(tmp_path: Path, sampling_works: None) -> None:
    told = tmp_path / "told.jsonl"
    row = next(one for one in ROWS if one.name == "lock_held")
    command = f'{sys.executable} -c "{TELL}" {told}'
    with start_trees(row, 3, LIFE_S) as trees:
        trees.wait_until_ready()
        pid = trees.seen.pid
        watch = ("--until", "hung", "--for", f"{WAIT_S}s", "--on-change", command, "--json")
        done = call("diagnose", str(pid), *watch)
        pids = {one.pid for one in trees.read_culprits()}
        alive = trees.seen.process.poll() is None
    assert done.returncode == HUNG, (done.stdout[-2000:], done.stderr[-2000:])
    verdicts = [json.loads(line) for line in told.read_text().splitlines()]
    assert (verdicts[-1]["kind"], verdicts[-1]["cause"]) == ("hung", "lock")
    assert verdicts[-1]["pid"] in pids
    assert [one["kind"] for one in verdicts].count("hung") == 1, "one verdict is told once"
    printed = json.loads(done.stdout)
    assert (printed["kind"], printed["cause"]) == ("hung", "lock")
    assert alive, "to watch a hang ends nothing of it"
