"""Build Scenes of a rank on cards, and read what the rules answer."""

from __future__ import annotations

from tests.frames import make_frame, make_process
from tests.judging import make_phases, scene_of
from tpmon.judge.stacks.phases import Phase
from tpmon.model.gpu import ThrottleShare
from tpmon.model.known import Missing

UNREAD = Missing("not supported")
NO_GPM = {"sm_active_pct": UNREAD, "tensor_pct": UNREAD, "dram_pct": UNREAD, "occupancy_pct": UNREAD}
HOLLOW = {"sm_pct": 99.0, "sm_active_pct": 8.0, "tensor_pct": 0.0, "dram_pct": 1.0, "power_w": 130.0}
IN_MODEL = {Phase.FORWARD: 0.5, Phase.BACKWARD: 0.3, Phase.OPTIMIZER: 0.2}


def on(*cards, phases=None, **process):
    """See one rank on these cards, by default with its main thread in the model."""
    frame = make_frame(gpus=cards, processes=(make_process(**process),), loader=())
    stacks = [make_phases(IN_MODEL if phases is None else phases)] if phases != {} else []
    return scene_of(frame, stacks)


def held(reason, pct, source="counter"):
    return {"throttle_shares": (ThrottleShare(reason, pct, source),)}
