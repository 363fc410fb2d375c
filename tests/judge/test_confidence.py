"""Two readings of one physical origin are one source, whatever they are called: of one alone nothing is sure."""

import pytest

from tests.judge.scenes import SCENES
from tests.judge.test_state import follow
from tpmon.judge import judge
from tpmon.judge.hysteresis import key_of
from tpmon.model.verdict import Confidence, Origin


@pytest.mark.parametrize("name", SCENES)
def test_no_verdict_is_sure_by_one_origin(name, monkeypatch):
    told: dict[object, frozenset[Origin]] = {}
    judge_scene = judge.judge_scene

    def note(scene, standing):
        found = judge_scene(scene, standing)
        told.update({key_of(one.suspicion): one.suspicion.origins for one in found[1].tracks})
        return found

    monkeypatch.setattr(judge, "judge_scene", note)
    for verdict in follow(SCENES[name]()):
        if verdict.confidence is Confidence.HIGH:
            assert len(told[verdict.kind, verdict.cause]) > 1
    assert all(isinstance(one, Origin) for origins in told.values() for one in origins)
