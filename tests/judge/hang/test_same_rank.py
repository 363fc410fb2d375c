"""A dump and the verdict accuse the same rank, on every recording of a hang whose stacks were read."""

from collections import deque
from pathlib import Path

import pytest

from tests.corpus.rejudge import COMMITTED
from tpmon.judge.dumps.groups import DumpOrigin, fold_rounds
from tpmon.model.dump import DumpRound
from tpmon.model.known import is_known
from tpmon.model.verdict import Kind
from tpmon.record.recording import Recording
from tpmon.record.rejudge import rejudge

HANGS = sorted(path for group in ("hangs", "reports", "own") for path in COMMITTED.glob(f"{group}-*.tpmon"))


@pytest.mark.parametrize("path", HANGS, ids=lambda path: path.stem)
def test_a_dump_and_the_verdict_accuse_the_same_rank(path: Path):
    looks, finding, world = deque[DumpRound](maxlen=3), None, None
    with Recording(str(path)) as recording:
        for one in rejudge(recording):
            looks.extend(one.again.rounds if is_known(one.again.rounds) else ())
            finding, world = one.again.verdict, one.again.target.world_size
    if not looks or finding is None or finding.kind is not Kind.HUNG or not is_known(finding.rank):
        return
    dump = fold_rounds(list(looks), DumpOrigin(1, "train.py", world))
    accused = {one.rank for one in (dump.odd_one_out, dump.verdict) if is_known(one) and is_known(one.rank)}
    assert accused <= {finding.rank}
