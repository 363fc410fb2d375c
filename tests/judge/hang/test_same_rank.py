"""A dump and the verdict accuse the same rank by the same graph, on every recording of a hang whose stacks were read."""

from collections import deque
from pathlib import Path

import pytest

from tests.corpus.rejudge import COMMITTED
from tests.dumps import make_rank
from tests.hanging import accuse, conclude, stand
from tests.stacks import ALL_REDUCE, BROADCAST, DECODE, IN_LOCK, READS
from tpmon.judge.folds import accused
from tpmon.judge.hang import detection, ranks
from tpmon.model.dump import DumpRound
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.verdict import Kind
from tpmon.record.recording import Recording
from tpmon.record.rejudge import rejudge

HANGS = sorted(path for group in ("hangs", "reports", "own") for path in COMMITTED.glob(f"{group}-*.tpmon"))


@pytest.mark.parametrize("path", HANGS, ids=lambda path: path.stem)
def test_a_dump_and_the_verdict_accuse_the_same_rank(path: Path):
    looks, finding, world = deque[DumpRound](maxlen=3), None, NOT_APPLICABLE
    with Recording(str(path)) as recording:
        for one in rejudge(recording):
            looks.extend(one.again.rounds if is_known(one.again.rounds) else ())
            finding, world = one.again.verdict, one.again.target.world_size
    if looks and finding is not None and finding.kind is Kind.HUNG and is_known(finding.rank):
        for count in (1, len(looks)):
            assert accuse(list(looks)[-count:], world) <= {finding.rank}


def test_both_follow_the_waits_by_one_function():
    assert accused.find_end is detection.find_end is ranks.find_end


@pytest.mark.parametrize("odd", [IN_LOCK, DECODE, BROADCAST])
@pytest.mark.parametrize("others", [ALL_REDUCE, IN_LOCK, DECODE])
@pytest.mark.parametrize("fields", [{}, READS])
@pytest.mark.parametrize("at", [0, 2])
def test_whom_a_verdict_accuses_a_dump_of_any_number_of_looks_names_or_nobody(odd, others, fields, at):
    looks = [make_rank(rank, frames=others) for rank in range(4)]
    looks[at] = make_rank(at, frames=odd, **fields)
    frames = stand(*looks, seconds=320, world_size=4)
    finding = conclude(frames)
    rounds = [look for frame in frames if is_known(frame.rounds) for look in frame.rounds]
    assert finding.kind is Kind.HUNG
    for count in (1, 3):
        assert not is_known(finding.rank) or accuse(rounds[-count:], 4) <= {finding.rank}
    if odd not in (others, BROADCAST):
        assert finding.rank == at
        assert accuse(rounds, 4) == {at}
