"""Raise an error at every line of the hook that a training with captures runs, one line a training.

Run: python hook_faults.py FOLDER [EVERY]; of each so many lines one is tried. All 1,507 took half an hour at most beside other programs.

First the lines are collected, then each training is run again with an error at the first time that one of
them is reached. Prints one JSON object: how many lines there were, and what the trainings did that should
not be. Lines of callbacks that stand before their ``try`` are left out: an error there is none that can be.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType

import torch
from torch.utils.data import DataLoader, TensorDataset

import tpmon.hook
from tests.programs.capture_asking import FOLDER, ask
from tests.programs.hook_breaking import GUARDED, HERE, MADE, Line, find_file, find_guarded, list_links, list_patched
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.installation import HOOK

DATA = TensorDataset(torch.arange(640.0).reshape(80, 8) / 640, torch.ones(80, 1))
TRAMPOLINES = {"__next__", "_engine_run_backward", "update", "__init__", "begin", "__exit__", "__enter__"}
"""Of ``patches``, ``guard`` and ``profiling``: what torch or the user calls, and what calls the original."""

GIVE_BACK = {"close", "_close", "_release", "_read_file", "_are_twice"}
"""Of ``pages``: what fails there cannot be given back either."""

LEAVES = {
    "pages": ("if high != low:", "self._descriptors[-1] = high", "os.close(low)"),
    "counters": ("pages.close()",),
    "trace_file": (
        "self._part = path + PART  # from here on it is ours to remove",
        "for descriptor in made.values():",
        "os.close(descriptor)",
    ),
}
"""Lines between the making of a descriptor or a file and its note, or between its note and its end: an error
at one of them leaves it behind, and no more. Only an alarm of the user's raises there."""

torch.set_num_threads(1)


def is_trampoline(code: CodeType) -> bool:
    return code.co_name in TRAMPOLINES and os.path.basename(code.co_filename) in (
        "patches.py",
        "guard.py",
        "profiling.py",
    )


def counts(frame: FrameType) -> bool:
    """Tell whether an error at this line is caught in the hook: there, or by who called it."""
    code, caller = frame.f_code, frame.f_back
    if is_trampoline(code) or code.co_name == "<module>" or not code.co_filename.startswith(HERE):
        return False
    if code.co_name in GIVE_BACK and code.co_filename.endswith("pages.py"):
        return False
    guarded = GUARDED.get(code.co_filename)
    if guarded is None:
        guarded = GUARDED[code.co_filename] = find_guarded(code.co_filename)
    return frame.f_lineno in guarded or (caller is not None and counts(caller))


def find_leaving() -> set[Line]:
    """Return where the lines of ``LEAVES`` stand, each once in its file."""
    found: set[Line] = set()
    for name, texts in LEAVES.items():
        with open(find_file(name)) as file:
            lines = [line.strip() for line in file]
        assert all(lines.count(text) == 1 for text in texts), name
        found |= {(f"{name}.py", lines.index(text) + 1) for text in texts}
    return found


def watch(act: Callable[[Line], None]) -> None:
    MADE["watch"](HERE, counts, act)


def train(steps: int, before: Callable[[int], None], *, loader: bool, scaler: bool = False) -> list[float]:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scale = torch.amp.GradScaler("cpu", init_scale=4.0) if scaler else None
    batches = iter(DataLoader(DATA, batch_size=2)) if loader else None
    losses = []
    for at in range(steps):
        before(at)
        x = next(batches)[0] if batches is not None else torch.ones(2, 8)
        with tpmon.hook.mark("forward"):
            loss = net(x).pow(2).mean()
        if scale is None:
            loss.backward()
            optimizer.step()
        else:
            scale.scale(loss * (float("inf") if at == 4 else 1.0)).backward()
            scale.step(optimizer)
            scale.update()
        losses.append(loss.item())
        optimizer.zero_grad()
    return losses


def request(number: int, kind: int = w.KIND_CAPTURE, **words: int) -> None:
    if HOOK.steps.pages is not None:
        ask(number, kind, **words)


def captured() -> list[float]:
    """Train with a probe, a capture, a request beside it, a window that was missed, one that is cancelled."""

    def before(at: int) -> None:
        HOOK.steps.watch_at = 0  # each step is watched
        if at == 2:
            request(1, w.KIND_PROBE)
        elif at == 5:
            request(2)
        elif at == 7:
            request(3)
        elif at == 11:
            request(4, start=1)
        elif at == 13:
            request(5, steps=30)
        elif at == 15:
            request(6, w.KIND_CANCEL, subject=5)
        elif at == 17:
            request(7, kind=77)

    return train(19, before, loader=True)


def evaluated() -> list[float]:
    """Train with a scaler, batches that nothing follows, and a forked child."""
    children = []

    def before(at: int) -> None:
        HOOK.steps.watch_at = 0
        if at in (3, 6):
            for _ in DataLoader(DATA, batch_size=20):
                pass
        if at == 7:
            pid = os.fork()
            if pid == 0:
                try:
                    ok = len(train(3, lambda at: None, loader=True)) == 3
                except BaseException:  # noqa: BLE001 whatever it is, the parent tells it
                    ok = False
                os._exit(0 if ok else 1)
            children.append(os.waitpid(pid, 0)[1])

    return [*train(10, before, loader=True, scaler=True), *children]


def without_loader() -> list[float]:
    """Train without a DataLoader, then say by hand where steps end; an accumulation, closures."""

    def before(at: int) -> None:
        HOOK.steps.watch_at = 0
        if at > 5:
            tpmon.hook.step(2, train=at % 2 == 0)

    return train(10, before, loader=False)


LEFT = "left behind"


def run(scenario: Callable[[], list[float]]) -> list[float]:
    HOOK.mailbox.capture = None
    tpmon.hook.install()
    losses = scenario()
    tpmon.hook.uninstall()
    return losses


def look(scenario: Callable[[], list[float]], losses: list[float], before: list[object]) -> list[str]:
    if tpmon.hook.problem():  # an error while it is taken back leaves the page that says so, until the next
        tpmon.hook.install()
        tpmon.hook.uninstall()
    left = [name for name in os.listdir(FOLDER) if ".part" in name]
    open_ = sum("tpmon" in link for link in list_links()) - OPEN.setdefault("before", 0)
    OPEN["before"] += open_
    found = {
        "other losses": losses != PLAIN[scenario.__name__],
        "a profiler records": torch._C._autograd._profiler_enabled(),
        "a thread runs": threading.active_count() != 1,
        f"{left} {LEFT}": bool(left),
        f"{open_} descriptors {LEFT}": bool(open_),
        "a patch stays": list_patched() != before,
    }
    for name in os.listdir(FOLDER):
        os.unlink(os.path.join(FOLDER, name))
    return [what for what, holds in found.items() if holds]


SCENARIOS = (captured, evaluated, without_loader)
EVERY = int(sys.argv[2]) if len(sys.argv) > 2 else 1
PLAIN: dict[str, list[float]] = {}
OPEN: dict[str, int] = {}
"""Descriptors of the hook that earlier trainings left, so that each counts its own."""


def main() -> None:
    os.makedirs(FOLDER, exist_ok=True)
    tpmon.hook.uninstall()
    for scenario in SCENARIOS:
        PLAIN[scenario.__name__] = scenario()
    before = list_patched()
    wrong: list[str] = []
    numbers: dict[str, int] = {}
    seen: set[Line] = set()
    leaving = find_leaving()
    for scenario in SCENARIOS:
        run(scenario)  # what is imported at first use is no callback
        lines: dict[Line, None] = {}
        watch(lambda line, lines=lines: lines.setdefault(line))
        losses = run(scenario)
        sys.settrace(None)
        wrong += [f"{scenario.__name__}, nothing broken: {one}" for one in look(scenario, losses, before)]
        if tpmon.hook.problem():
            wrong.append(f"{scenario.__name__}, nothing broken: {tpmon.hook.problem()}")
        todo = [line for line in lines if line not in seen][::EVERY]
        seen.update(lines)
        numbers[scenario.__name__] = len(todo)
        print(f"{scenario.__name__}: {len(todo)} lines", file=sys.stderr, flush=True)
        for line in todo:
            watch(MADE["break_at"](line))
            try:
                losses = run(scenario)
            except BaseException as error:  # noqa: BLE001 the training was hurt, and the next one is tried
                sys.settrace(None)
                wrong.append(f"{line}: {type(error).__name__}: {error}")
                print(wrong[-1], file=sys.stderr, flush=True)
                tpmon.hook.uninstall()
                continue
            sys.settrace(None)
            wrong += [
                f"{line}: {one}"
                for one in look(scenario, losses, before)
                if line not in leaving or not one.endswith(LEFT)
            ]
    print(json.dumps({"lines": numbers, "wrong": wrong}))


if __name__ == "__main__":
    main()
