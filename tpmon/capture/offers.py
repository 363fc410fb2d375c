"""Say what of a capture can be chosen on a run, and why the rest cannot be: nothing is asked of the run."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.capture.bus import open_bus
from tpmon.capture.nsys import HOLDS_SLOT, judge_nsys, traces_cuda
from tpmon.capture.plan import Pace, count_alike, known_paces, parse_pace
from tpmon.errors import TpmonError
from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, Missing, is_known
from tpmon.model.process import Identity
from tpmon.model.results.capture import CaptureKind, CaptureOffers
from tpmon.own_command import call_as_owner

NO_CUDA = "this process does not use CUDA"
COUNT_APART = "the ranks do not count the same steps: they were hooked at different times"
_NSYS = "run --nsys -- COMMAND"


@dataclass(frozen=True, slots=True)
class RankHook:
    """Hold what the hook of a rank tells; ``lacks`` says why there is none to be asked, "" where there is."""

    pid: int
    rank: Applicable[int]
    lacks: str
    pace: Known[Pace]

    @property
    def who(self) -> str:
        """Name it as a person does."""
        return f"rank {self.rank}" if is_known(self.rank) else f"process {self.pid}"


def read_hook(process: Identity, rank: Applicable[int]) -> RankHook:
    """Look at the pages of a rank's hook, and close them again."""
    try:
        bus = open_bus(process)
    except TpmonError as error:
        return RankHook(process.pid, rank, error.what, Missing(error.what))
    try:
        return RankHook(process.pid, rank, "", parse_pace(bus.read_records()))
    finally:
        bus.close()


def judge_offers(
    meant: RankHook, ranks: Sequence[RankHook], above: Sequence[Sequence[str]], *, uses_cuda: bool
) -> CaptureOffers:
    """Say what can be chosen for one of the ``ranks``; the command lines ``above`` it, nearest first."""
    traced = HOLDS_SLOT if uses_cuda and traces_cuda(above) else ""
    kept = meant.lacks or ("" if uses_cuda else NO_CUDA)
    ranged = judge_range(meant.lacks, above) or ("" if uses_cuda else NO_CUDA)
    reasons = {CaptureKind.TRACE: traced, CaptureKind.SNAPSHOT: kept, CaptureKind.NSYS_RANGE: ranged}
    refused = tuple((kind, why) for kind, why in reasons.items() if why)
    return CaptureOffers(meant.who, len(ranks), refused, _judge_every(ranks))


def judge_range(lacks: str, above: Sequence[Sequence[str]]) -> str:
    """Say why no range can be opened for nsys, "" where one can: the first reason is that of nsys itself."""
    return judge_nsys(above) or lacks


def advise_on_slot(pid: int, lacks: str, above: Sequence[Sequence[str]]) -> str:
    """Say what to try where nsys records the GPU: its range where one can be, else how to start again."""
    if refusal := judge_range(lacks, above):
        again = f"by {call_as_owner(pid, _NSYS)}, whose nsys can be asked for ranges"
        return f"start the run again without nsys, or {again} ({refusal})"
    return f"tpmon capture {pid} --cuda-profiler has nsys record"


def _judge_every(ranks: Sequence[RankHook]) -> str:
    if len(ranks) < 2:
        return "it is the only rank on this machine"
    for one in ranks:
        if one.lacks:
            return one.lacks
    known = known_paces([one.pace for one in ranks])
    return COUNT_APART if len(known) > 1 and not count_alike(known) else ""
