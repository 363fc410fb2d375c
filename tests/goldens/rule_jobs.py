"""Jobs whose verdict the rules themselves wrote: a hot card, a late rank, memory that grows.

What a side pane of 40 columns makes of long true sentences is to be seen, so no word here is written by hand.
"""

from __future__ import annotations

from dataclasses import replace

from tests.any_windows import make_slice
from tests.frames import GIB, make_ages, make_loader, make_memory
from tests.goldens.gpu_node import eight_gpus
from tests.goldens.playing import hold, play
from tests.goldens.small_jobs import two_ranks, with_facts
from tests.phase_stacks import stack
from tpmon.model.frame import Frame
from tpmon.model.gpu import ThrottleShare
from tpmon.model.known import known_or
from tpmon.model.process import ThreadGroup, ThreadKind

COMPUTES = {stack("main train step call linear"): 10, stack("main train backward engine"): 28}
WAITS = {stack("main train c10d all_reduce"): 24, stack("main train backward engine"): 14}
LATE = {stack("main train step call linear"): 24, stack("main train backward engine"): 14}


def gpu_throttled() -> Frame:
    """Card 3 of eight is hot and slow; the others wait for it, which is only its shadow."""
    plain = replace(eight_gpus(), ages_s=make_ages(gpu=0.4, stacks=1.2))
    cards = tuple(
        replace(
            card,
            throttle_shares=(ThrottleShare("SW thermal", 38.0, "counter"),) if card.index == 3 else (),
            temperature_margin_c=1.0 if card.index == 3 else card.temperature_margin_c,
        )
        for card in known_or(plain.gpus, ())
    )
    slices = [make_slice(51_200 + n, 8 + n, COMPUTES) for n in range(8)]
    return play(hold(replace(plain, gpus=cards), 24, slices)).frame


def straggler() -> Frame:
    """Rank 1 of two has more to compute in its forward, and rank 0 waits for it in the all-reduce."""
    plain = two_ranks()
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.7), ThreadGroup(ThreadKind.COMM, 3, 0.02))
    processes = tuple(replace(one, thread_groups=groups) if one.pid in (4211, 4212) else one for one in plain.processes)
    cpu = replace(plain.cpu, budget_cores=4.0, budget_reason="affinity 0-3", host_cores=4)
    frame = replace(plain, processes=processes, cpu=cpu, ages_s=make_ages(stacks=0.9))
    slices = [make_slice(4211, 0, WAITS), make_slice(4212, 1, LATE)]
    return play(hold(with_facts(frame), 24, slices)).frame


def memory_growth() -> Frame:
    """A list of losses that keep their graphs: 15 MB a second towards a limit of 16 GiB."""
    plain = replace(two_ranks(), ages_s=make_ages(stacks=0.9))

    def grow(frame: Frame, at: int) -> Frame:
        grown = at * 15_000_000
        memory = make_memory(
            rss_bytes=6 * GIB + grown, anon_bytes=5 * GIB + grown, used_bytes=6 * GIB + grown, anon_growth_bytes_s=15e6
        )
        processes = tuple(
            replace(one, rss_bytes=2 * GIB + grown) if one.pid == 4211 else one for one in frame.processes
        )
        loader = (make_loader(4211, ready_batches=4.0), make_loader(4212, rank=1, ready_batches=3.0))
        return replace(frame, memory=memory, processes=processes, loader=loader)

    slices = [make_slice(4211 + n, n, COMPUTES) for n in range(2)]
    return play([grow(frame, at) for at, frame in enumerate(hold(plain, 75, slices))]).frame
