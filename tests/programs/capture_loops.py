"""Small real loops that are captured: each writes requests into its own mailbox, as tpmon does, and reports.

Run: python capture_loops.py FOLDER [--leave], or with the name of one of those that have a process of their own.
Prints one JSON object: scenario -> what came of it, or what came of the one. Nothing waits for a clock.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import threading
import time

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader

import tpmon.hook
from tests.programs.capture_asking import DATA, FOLDER, ask, count, model, told, train
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.bus import wire_settings
from tpmon.hook.installation import HOOK
from tpmon.hook.settings import Settings

torch.set_num_threads(1)


def capture(number: int, **words: int) -> dict[str, object]:
    ask(number, **words)
    train(12)
    return told()


def listing() -> list[str]:
    return sorted(os.listdir(FOLDER)) if os.path.isdir(FOLDER) else ["gone"]


def exact() -> dict[str, object]:
    plain = train(40)
    unprobed = capture(1)
    probe = capture(2, kind=w.KIND_PROBE)
    ask(3)
    losses = train(40)
    return {
        "unprobed": unprobed,
        "probe": probe,
        "capture": told(),
        "file": count(3),
        "same_losses": plain == losses,
        "files": listing(),
    }


def without_a_loader() -> dict[str, object]:
    net, optimizer = model()
    ask(10, steps=4)
    for _ in range(200):
        net(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    return {"told": told(), "file": count(10)}


def requests() -> dict[str, object]:
    missed = capture(20, start=1)
    ask(21, steps=30)
    seen = []

    def busy(at: int) -> None:
        if at == 5:
            ask(22)
        if at == 7:
            seen.append(told())
            ask(23, kind=w.KIND_CANCEL, subject=21)

    train(12, busy)
    cancelled = told()
    expired = capture(24, start=1 << 40, expires_ns=1)
    late = capture(25, longest_ns=1)
    return {"missed": missed, "busy": seen[0], "cancelled": cancelled, "expired": expired, "late": late}


def hostile() -> dict[str, object]:
    box, source = HOOK.steps.pages.mailbox, random.Random(3)

    def scribble(at: int) -> None:
        box[64:4096] = source.randbytes(4096 - 64)

    words = [one for one in w.Request.__annotations__ if one not in ("number", "kind", "layout", "folder", "name")]
    places = (FOLDER, "/", "/proc/self", "relative", "", FOLDER + "/\n", "/" + "x" * 1000)

    def mislead(at: int) -> None:
        """Whole requests, as far as their checksum goes, of anything."""
        values = {name: source.choice((0, 1, 7, 1 << 40, 2**64 - 1)) for name in source.sample(words, 3)}
        ask(1000 + at, kind=source.randrange(9), folder=source.choice(places), **values)

    before = HOOK.steps.steps
    train(100, scribble)
    train(100, mislead)
    counted = HOOK.steps.steps - before
    ask(29, kind=w.KIND_CANCEL, subject=told()["number"])
    train(5)
    return {"counted": counted, "problem": tpmon.hook.problem(), "after": capture(30)}


def places() -> dict[str, object]:
    gone = capture(40, folder="/nowhere/at/all")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    full = capture(41)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    left = [name for name in listing() if "41" in name or name.endswith((".part", ".tmp"))]
    inside = os.path.join(FOLDER, "inner")
    ask(42, folder=inside)

    def remove(at: int) -> None:
        # Made when the hook takes the request, which short steps ask for every 2 ms only.
        if os.path.isdir(inside):
            os.rmdir(inside)

    train(30, remove)
    removed = told()
    return {"gone": gone, "full": full, "left": left, "removed": removed, "after": capture(43)}


def foreign() -> dict[str, object]:
    """The program's own profiler: active, warming up, and beginning while ours records; both orders."""
    report = {}
    own = os.path.join(FOLDER, "own.json")

    def events_of_own() -> int:
        return os.path.getsize(own)

    with profile(activities=[ProfilerActivity.CPU]) as active:
        report["active"] = capture(50)
    active.export_chrome_trace(own)
    report["active_own"] = events_of_own() > 5000
    cycles = schedule(wait=0, warmup=40, active=1, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=cycles) as warming:
        warming.step()
        report["warming"] = capture(51)
    ask(52, steps=8)
    mine = profile(activities=[ProfilerActivity.CPU])

    def begin(at: int) -> None:
        if at == 4:
            mine.start()
        if at == 9:
            mine.stop()

    losses = train(20, begin)
    report["during"] = told()
    mine.export_chrome_trace(own)
    report["during_own"] = events_of_own() > 5000
    report["during_losses"] = losses == train(20)
    ask(54, steps=8)

    def profile_elsewhere() -> None:
        with profile(activities=[ProfilerActivity.CPU]) as elsewhere:
            torch.ones(3).sum()
        elsewhere.export_chrome_trace(own)

    threads = [threading.Thread(target=profile_elsewhere)]

    def begin_elsewhere(at: int) -> None:
        if at == 4:
            threads[0].start()
        time.sleep(0.05)

    train(12, begin_elsewhere)
    threads[0].join()
    report["elsewhere"] = told()
    report["after"] = capture(53)
    return report


def nested() -> dict[str, object]:
    """Ranges of the program that begin before a window and end in it, and in it and after it; old profilers."""
    ranges = [torch.autograd.profiler.record_function(name) for name in ("from before", "until after")]
    turns = {1: ranges[0].__enter__, 3: lambda: ranges[0].__exit__(None, None, None)}
    turns |= {4: ranges[1].__enter__, 9: lambda: ranges[1].__exit__(None, None, None)}
    ask(80, steps=4)
    train(12, lambda at: turns[at]() if at in turns else None)
    across = told()
    with torch.autograd.profiler.profile() as old:
        legacy = capture(81)
    with torch.autograd.profiler.emit_itt(torch.profiler.itt.is_available()):
        itt = capture(82)
    return {
        "across": across,
        "file": count(80),
        "legacy": legacy,
        "legacy_own": len(old.function_events) > 10,
        "itt": itt if torch.profiler.itt.is_available() else legacy,
        "after": capture(83),
    }


def forked() -> dict[str, object]:
    """Workers that are forked while a capture records: they record nothing, and the capture goes on."""
    net, optimizer = model()
    ask(60, steps=4)
    children = []
    for at in range(10):
        if at == 4:
            pid = os.fork()
            if pid == 0:
                net(torch.ones(2, 8)).sum().backward()
                os._exit(0 if HOOK.mailbox.capture._recorder is None else 1)
            children.append(os.waitpid(pid, 0)[1])
        for (x, _), _ in zip(DataLoader(DATA, batch_size=2, num_workers=1 if at == 5 else 0), range(1), strict=False):
            net(x).sum().backward()
            optimizer.step()
    return {"children": children, "told": told()}


def compiled() -> dict[str, object]:
    """A model that is compiled in the first steps alone, with and without captures."""
    graphs = torch._dynamo.utils.counters["stats"]
    asked = {6: lambda: ask(1, w.KIND_PROBE), 10: lambda: ask(2, steps=5)}
    losses, counted = [], []
    for turns in ({}, asked):
        torch._dynamo.reset()
        graphs.clear()
        losses.append(train(30, lambda at, turns=turns: turns[at]() if at in turns else None, compiled=True))
        counted.append(graphs["unique_graphs"])
    return {
        "told": told(),
        "file": count(2),
        "same_losses": losses[0] == losses[1],
        "graphs": counted,
        "told_graphs": Settings().read(0)[wire_settings.SET_DYNAMO_GRAPHS],
    }


def repeated() -> dict[str, object]:
    """Twenty captures of a small transformer, 20 steps each: how each ended, and how the resident set grew, bytes."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 4)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    data = torch.randn(4, 16, 64)

    def go_on(steps: int) -> int:
        for _ in range(steps):
            net(data).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    go_on(5)
    ask(1, kind=w.KIND_PROBE)
    before = go_on(5)
    states, grown = [told()["state"]], []
    for number in range(2, 22):
        ask(number, steps=20)
        grown.append(go_on(23) - before)
        states.append(told()["state"])
        (name,) = listing()
        size = os.path.getsize(os.path.join(FOLDER, name))
        os.unlink(os.path.join(FOLDER, name))
    return {"states": states, "before": before, "grown": grown, "bytes": size, "threads": threading.active_count()}


def quiet() -> dict[str, object]:
    """The program's profiler before and after captures: what is written to standard error is between lines of ours."""

    def use_profiler(part: str) -> None:
        os.write(2, f"== {part}\n".encode())
        with profile(activities=[ProfilerActivity.CPU]):
            train()

    train()
    use_profiler("before")
    os.write(2, b"== captured\n")
    capture(1, kind=w.KIND_PROBE)
    captured = capture(2)
    use_profiler("after")
    return captured


os.makedirs(FOLDER, exist_ok=True)
for alone in (compiled, repeated, quiet):
    if alone.__name__ in sys.argv:
        print(json.dumps({**alone(), "problem": tpmon.hook.problem()}))
        sys.exit()
train(5)
REPORT = {one.__name__: one() for one in (exact, without_a_loader, requests, hostile, places, foreign, nested, forked)}
REPORT["problem"] = tpmon.hook.problem()
if "--leave" in sys.argv:
    capture(200, kind=w.KIND_PROBE)
    ask(201, steps=50)
    train(4)
print(json.dumps(REPORT), flush=True)
if "--leave" in sys.argv:
    sys.exit(7)
