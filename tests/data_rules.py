"""Name the rules that a wait for data may come of."""

from __future__ import annotations

from tpmon.judge.answers.result import Suspicion
from tpmon.judge.rules import data as rules_data
from tpmon.judge.rules import loader as rules_loader
from tpmon.judge.rules import memory as rules_memory
from tpmon.judge.rules import python as rules_python
from tpmon.judge.rules import storage as rules_storage
from tpmon.model.known import Missing

LOADER = (*rules_data.RULES, *rules_loader.RULES, *rules_storage.RULES)
ALL = (*LOADER, *rules_memory.RULES, *rules_python.RULES)
NO_STACKS = Missing("stacks: not permitted")


def causes(scene, rules=LOADER):
    """Return the causes that rules suspect in a scene."""
    return {one.cause for one in (rule(scene) for rule in rules) if isinstance(one, Suspicion)}
