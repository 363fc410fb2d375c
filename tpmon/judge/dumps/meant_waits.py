"""Say which waits are meant to take long, and how long nothing may move before it is a hang. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tpmon.judge.dumps.outlier import Seen
from tpmon.judge.stacks.frames import last_name
from tpmon.judge.stacks.phases import Phase
from tpmon.model.known import known_or

HANG_AFTER_S = 30.0
"""How long nothing may move where neither the user nor the run's own rhythm says."""
PATIENT = (Phase.CHECKPOINT, Phase.VALIDATION, Phase.COMPILE, Phase.LOAD, Phase.IMPORT)
_BARRIER = "barrier"
_AWAITS_ONE = re.compile(
    r"barrier|/rendezvous|init_process_group|wait_for_everyone|main_process_first"
    r"|/utils/store\.py:|accelerate/state\.py:|_object(?:_list)?$|_object_to_tensor|torch/distributed/checkpoint/"
)
"""Calls by which ranks wait for one of them, as "file:function"."""


def is_meant(waiting: Iterable[Seen]) -> bool:
    """Tell whether some wait for what one rank does alone: a save, an evaluation, a start, an object."""
    return any(
        seen.doing.phase in PATIENT
        or _BARRIER in seen.doing.text
        or any(
            _AWAITS_ONE.search(f"{one.file}:{last_name(one.function)}")
            for one in known_or(seen.sighting.frames, ())
        )
        for seen in waiting
    )
