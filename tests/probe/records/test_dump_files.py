"""Dumps of eight hosts through one pipe into ``tpmon fold -``: written at once, or cut as srun cuts them."""

import json
import random
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.dumps import make_rank, make_round
from tests.stacks import DECODE
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.model.codec import encode
from tpmon.probe.records.dump_files import _join_labelled, read_dumps

HOSTS = 8
PIECE_BYTES = 1024
"""What srun passes on at once."""
CULPRIT = 5
WRITER = """
import sys
from tpmon.report.text import Output
lines = open(sys.argv[1], encoding="utf-8").read().split("\\n")
sys.stdin.read()
for line in lines:
    Output(1, ascii_only=False).write_json(line)
"""


def make_dumps() -> list[str]:
    """Return the dump of each of eight hosts with a rank each, one of which is not where the others are."""

    def dump(rank: int) -> str:
        one = make_rank(rank, frames=DECODE) if rank == CULPRIT else make_rank(rank)
        look = make_round(one, host=f"node-{rank}")
        return encode(fold_rounds([look], DumpOrigin(one.pid, "train.py", HOSTS)))

    return [dump(rank) for rank in range(HOSTS)]


def fold_what_is_written(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Let a process a text write its lines into the pipe of one fold, all at once; return the fold."""
    fold = [sys.executable, "-m", "tpmon", "fold", "-", "--json"]
    folding = subprocess.Popen(fold, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    writers = []
    for number, text in enumerate(texts):
        (folder / str(number)).write_text(text)
        command = [sys.executable, "-c", WRITER, str(folder / str(number))]
        writers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=folding.stdin))
    for one in writers:
        one.stdin.close()  # they begin
    assert [one.wait(30) for one in writers] == [0] * len(texts)
    output, _ = folding.communicate(timeout=30)
    assert folding.returncode == 0
    folded: dict[str, Any] = json.loads(output)
    return folded


def cut(number: int, dump: str) -> list[str]:
    """Cut a dump as srun --label does: a line a piece, the label before each."""
    return [f"{number}: {dump[at : at + PIECE_BYTES]}" for at in range(0, len(dump), PIECE_BYTES)]


def test_dumps_of_eight_processes_stay_whole_in_one_pipe_or_are_put_together_by_the_labels_of_srun(tmp_path):
    dumps = make_dumps()
    pieces = [cut(number, one) for number, one in enumerate(dumps)]
    assert max(map(len, dumps)) < select.PIPE_BUF, "longer ones may be mixed"
    assert min(map(len, pieces)) > 1
    for texts in (dumps, ["\n".join(those) for those in pieces]):
        folded = fold_what_is_written(tmp_path, texts)
        odd = folded["odd_one_out"]
        assert (odd["rank"], odd["host"]) == (CULPRIT, f"node-{CULPRIT}")
        assert "left_out" not in folded or folded["left_out"] == []


def test_a_labelled_piece_that_is_nested_without_end_is_no_dump_and_costs_no_other(tmp_path):
    good, path = make_dumps()[0], tmp_path / "dumps"
    path.write_text(f'0: {{"schema":{"[" * 200_000}\n0: x\n{good}\n')
    refused: list[str] = []
    assert len(read_dumps([str(path)], refused.append)) == 1
    assert "no dump of tpmon: not JSON" in refused[0]


def test_whatever_the_order_each_label_has_its_dumps_and_what_is_none_is_left_out(tmp_path):
    dumps = make_dumps()
    waiting = [
        [f"0: {dumps[0]}", "0: said after it", *cut(0, dumps[7])],
        ["1: said before it", *cut(1, dumps[1]), *cut(1, dumps[2])],
    ]
    draw = random.Random(4)
    mixed = []
    while left := [those for those in waiting if those]:
        mixed.append(draw.choice(left).pop(0))
    (tmp_path / "all").write_text("\n".join(mixed))
    told: list[str] = []
    read = read_dumps([str(tmp_path / "all")], told.append)
    assert sorted(one.host for one in read) == ["node-0", "node-1", "node-2", "node-7"]
    assert len(told) == 2


def test_a_line_of_nothing_but_a_number_is_left_out_as_any_other():
    assert list(_join_labelled([b"9" * 5000 + b": x"])) == [(1, b"9" * 5000 + b": x")]
