"""tpmon attached to a job whose cards fail: what it prints, its exit code, and no trace of a bug."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cards import Cards
from tests.children import MAP_TORCH, Child, child
from tests.command_line import start

WAITING = MAP_TORCH + 'say("ready")\nhear()'
FAULTS = {
    "one silent from the first": "1 * block",
    "one off the bus": "1 * code 15",
    "every value unset": f"* * value {0xFFFFFFFF}",
    "every value 0": "* * value 0",
    "all silent": "* * block",
    "all refused": "* * code 4",
    "no card": "driver nvmlDeviceGetCount_v2 code 999",
    "init hangs": "driver nvmlInitWithFlags block",
    "versions hang": "driver nvmlSystemGetDriverVersion block",
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    with child(WAITING, str(tmp_path_factory.mktemp("torch"))) as one:
        yield one


@pytest.fixture(scope="module")
def looks(job: Child, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Look once at each kind of faulty cards, all at the same time: exit code, output, errors."""
    begun = {}
    for name, fault in FAULTS.items():
        cards = Cards(tmp_path_factory.mktemp("cards"), 2, [job.pid] * 2)
        cards.fail(fault)
        environment = {**os.environ, **cards.environment}
        begun[name] = start("attach", str(job.pid), "--once", "--json", env=environment)
    said = {name: one.communicate(timeout=120) for name, one in begun.items()}
    return {name: (one.returncode, *said[name]) for name, one in begun.items()}


@pytest.mark.parametrize("name", FAULTS)
def test_one_look_at_faulty_cards(looks: dict[str, tuple[int, str, str]], name: str) -> None:
    code, output, errors = looks[name]
    assert (code, errors) == (0, "")
    gpus = json.loads(output)["gpus"]
    if name in ("no card", "init hangs", "all silent"):
        assert gpus.keys() == {"missing"}
        return
    states = [card["state"] for card in gpus]
    healthy = [card for card in gpus if not isinstance(card["sm_pct"], dict)]
    if name.startswith("one "):
        assert states == ["ok", "stale" if "silent" in name else "lost"]
        assert len(healthy) == 1
    elif name == "all refused":
        assert states == ["refused"] * 2
    elif name == "versions hang":
        assert states == ["ok"] * 2
        assert len(healthy) == 2
    else:
        assert all(isinstance(card["power_limit_w"], dict) for card in gpus)


def test_a_card_that_falls_silent_does_so_in_the_stream(job: Child, tmp_path: Path) -> None:
    cards = Cards(tmp_path, 2, [job.pid] * 2)
    cards.fail("1 * block after 3")
    running = start("attach", str(job.pid), "--json", env={**os.environ, **cards.environment})
    assert running.stdout is not None
    states: list[list[str]] = []
    for line in running.stdout:
        gpus = json.loads(line)["gpus"]
        states.append([card["state"] for card in gpus] if isinstance(gpus, list) else [])
        if states[-1] == ["ok", "stale"] and ["ok", "ok"] in states:
            assert gpus[1]["sm_pct"] == {"missing": "the card does not answer"}
            break
        assert len(states) < 30, states
    running.terminate()
    running.communicate()
    assert running.returncode == 143


def test_no_verdict_is_healthy_over_a_silent_card(tmp_path: Path) -> None:
    """The job computes all the time, and its cards are busy until one or all of them fall silent."""
    faults = ("", "1 * block", "1 * code 15", "1 * block after 4", "* * block after 4", "0 * stall 60000 after 4")
    computing = MAP_TORCH + 'say("ready")\nwhile True: sum(range(1000))'
    with child(computing, str(tmp_path)) as job:
        asked = []
        for number, fault in enumerate(faults):
            folder = tmp_path / str(number)
            folder.mkdir()
            cards = Cards(folder, 2, [job.pid] * 2)
            cards.fail(fault)
            look = ("diagnose", str(job.pid), "--for", "20s", "--json")
            asked.append(start(*look, env={**os.environ, **cards.environment}))
        for fault, one in zip(faults, asked, strict=True):
            verdict, _ = one.communicate(timeout=120)
            assert one.returncode in ((10, 11, 12) if fault else (0,)), (fault, verdict)
