"""Train beside a hook of which one callback raises, and tell what the training came to.

Run: python hook_callbacks.py FOLDER SCENARIO BROKEN... with BROKEN as SCENARIO=module.function, or SCENARIO=
for nothing broken; or --alone, for one of them before torch is imported. Each is a process of its own, forked
before torch was used. Its output goes to FOLDER/N.out. When it has trained it prints one JSON object and
waits for a line, so that tpmon can look at it; then it trains once more without the hook and ends with 7.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from tests.programs.hook_breaking import break_in, watch_entries

FOLDER = sys.argv[1]
STEPS = 14
AT_EXIT = "mailbox._at_exit"
ENTRIES = os.path.join(FOLDER, "entries")
LOOK_AT: list[int] = []
ENDS: list[int] = []
"""A pipe that closes when this process was looked at: so long its child stays."""

OWN: dict[str, object] = {}
"""What a scenario tells of what is the program's own."""


def train(steps: int, before: Callable[[int], None] = lambda at: None, wrap: object = None) -> list[float]:
    """Train epochs of five batches; ``before(at)`` is called at the beginning of each step."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.arange(80.0).reshape(10, 8) / 80)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    net = wrap(net) if callable(wrap) else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    losses: list[float] = []
    while len(losses) < steps:
        for (x,) in DataLoader(data, batch_size=2):
            before(len(losses))
            loss = net(x).pow(2).mean()
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            if len(losses) == steps:
                break
    return losses


def hook() -> object:
    """Return the hook's parts while it is in, or was; None in the training without it."""
    module = sys.modules.get("tpmon.hook.installation")
    return module.HOOK if module is not None and "plain" not in OWN else None


def request(number: int, kind: str, **words: int) -> None:
    """Ask the hook of this process, where there is one that can be asked."""
    found = hook()
    if found is not None and found.steps.pages is not None:
        from tests.programs.capture_asking import ask
        from tpmon.hook.bus import wire_capture

        ask(number, getattr(wire_capture, kind), **words)


def state() -> tuple[int, str]:
    """Return state and reason of the last request, zeros in the training without the hook."""
    found = hook()
    if found is None or found.steps.pages is None:
        return 0, ""
    from tpmon.hook.bus import wire_capture

    told = wire_capture.parse_progress(found.steps.pages.page)
    return told.state, told.reason


def plain() -> list[float]:
    return train(STEPS)


def scaled() -> list[float]:
    import torch

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    net = torch.nn.Linear(8, 1)
    with torch.no_grad():
        net.weight.fill_(0.1)
        net.bias.fill_(0.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for at in range(STEPS):
        loss = net(torch.ones(2, 8) * at).pow(2).mean()
        scaler.scale(loss * (float("inf") if at == 4 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def said() -> list[float]:
    """Say where steps end, time a part, put the hook in and take it out."""

    def before(at: int) -> None:
        if hook() is not None:
            import tpmon.hook

            tpmon.hook.step(2)
            with tpmon.hook.mark("part"):
                pass

    losses = train(STEPS, before)
    if hook() is not None:
        import tpmon.hook

        OWN["problem"] = tpmon.hook.problem()
    return losses


def put_in() -> list[float]:
    import tpmon.hook

    if hook() is not None:
        tpmon.hook.uninstall()
        tpmon.hook.install()
    return train(STEPS)


def in_group(wrap: Callable[[object], object]) -> list[float]:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    path = os.path.join(FOLDER, f"store{os.getpid()}-{time.monotonic_ns()}")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    try:
        return train(STEPS, wrap=wrap)
    finally:
        dist.destroy_process_group()


def ddp() -> list[float]:
    from torch.nn.parallel import DistributedDataParallel

    return in_group(DistributedDataParallel)


def fsdp() -> list[float]:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    return in_group(lambda net: FullyShardedDataParallel(net, device_id=torch.device("cpu")))


def forked() -> list[float]:
    """Fork a rank, and workers, while a capture records; each trains on."""
    from torch.utils.data import DataLoader

    ended: list[list[float]] = []

    def before(at: int) -> None:
        if at == 2:
            request(1, "KIND_PROBE")
        if at == 5:
            request(2, "KIND_CAPTURE", steps=5)
        if at == 8:
            ended.append(fork_rank())
            list(DataLoader([1.0, 2.0], num_workers=1))

    losses = train(STEPS + 6, before)
    OWN["state"] = state()
    return losses + ended[0]


def fork_rank() -> list[float]:
    """Train in a forked child; it stays for who looks at it until this process ends."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        losses = train(STEPS)
        os.write(writes, json.dumps(losses).encode() + b"\n")
        if "plain" not in OWN:
            os.close(ENDS[1])
            os.read(ENDS[0], 1)
        os._exit(0)
    os.close(writes)
    if hook() is not None:
        LOOK_AT.append(pid)
    with open(reads) as file:
        return json.loads(file.readline())


def woken() -> list[float]:
    """Be sent SIGURG, which the program handles itself too."""
    rung: list[int] = []

    def before(at: int) -> None:
        if at == 0 and "plain" in OWN:
            signal.signal(signal.SIGURG, lambda *_: rung.append(at))
        if at > 4:
            signal.raise_signal(signal.SIGURG)

    if "plain" not in OWN:
        signal.signal(signal.SIGURG, lambda *_: rung.append(1))
    losses = train(STEPS, before)
    OWN["rung"] = len(rung)
    return losses


def timed() -> list[float]:
    """Run backwards that are no steps, while a recording is bounded by a thread."""
    import torch

    losses = train(5)
    request(1, "KIND_PROBE", options=1 << 3, longest_ns=300_000_000)
    signal.raise_signal(signal.SIGURG)
    net = torch.nn.Linear(8, 1)
    limit = time.monotonic() + 60
    while hook() is not None and not ended(state()) and time.monotonic() < limit:
        net(torch.ones(2, 8)).sum().backward()
    OWN["state"] = state()
    return losses


def ended(found: tuple[int, str]) -> bool:
    from tpmon.hook.bus import wire_capture

    return found[0] in (
        wire_capture.STATE_VERIFIED,
        wire_capture.STATE_FAILED,
        wire_capture.STATE_REFUSED,
        wire_capture.STATE_YIELDED,
    )


def profiling(elsewhere: bool) -> list[float]:
    """Begin a profiler of the program's own while ours records, in this thread or another one."""
    from torch.profiler import ProfilerActivity, profile

    own = profile(activities=[ProfilerActivity.CPU])
    path = os.path.join(FOLDER, f"own{os.getpid()}.json")

    def profile_elsewhere() -> None:
        import torch

        with own:
            torch.ones(3).sum()

    thread = threading.Thread(target=profile_elsewhere)

    def before(at: int) -> None:
        if at == 2:
            request(1, "KIND_PROBE")
        if at == 5:
            request(2, "KIND_CAPTURE", steps=8)
        if at == 8 and elsewhere:
            thread.start()
        elif at == 8:
            own.start()
        if at > 8 and elsewhere:
            time.sleep(0.02)
        if at == 10 and not elsewhere:
            own.stop()
        if at == 12:
            OWN["state"] = state()
            request(3, "KIND_PROBE")

    losses = train(STEPS + 4, before)
    if elsewhere:
        thread.join()
    own.export_chrome_trace(path)
    with open(path) as file:
        OWN["own"] = len(json.load(file)["traceEvents"]) > 10
    os.unlink(path)
    return losses


def profiled() -> list[float]:
    return profiling(elsewhere=False)


def profiled_elsewhere() -> list[float]:
    return profiling(elsewhere=True)


def asked() -> list[float]:
    """Be asked for a recording, and end within one."""

    def before(at: int) -> None:
        if at == 2:
            request(1, "KIND_PROBE")
        if at == 6:
            OWN["first"] = state()
            request(2, "KIND_CAPTURE", steps=50)

    losses = train(STEPS, before)
    OWN["state"] = state()
    return losses


def imported() -> list[float]:
    assert "plain" in OWN or "torch" not in sys.modules
    import torch

    assert torch.utils.data.dataloader._BaseDataLoaderIter is not None
    return train(STEPS)


def note_entries() -> None:
    known: set[str] = set()
    file = os.open(ENTRIES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(where: str) -> None:
        if where not in known:
            known.add(where)
            os.write(file, f"{where}\n".encode())

    watch_entries(note)


def run(name: str, broken: str, output: str) -> int:
    """Train hooked, tell, wait until it was looked at, train without the hook, tell; 7 is all well."""
    ENDS[:] = os.pipe()
    told = os.fdopen(os.dup(1), "w")
    to = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(to, 1)
    os.dup2(to, 2)
    os.close(to)
    scenario = globals()[name]
    if broken:
        break_in(broken)
    else:
        note_entries()
    import tpmon.hook

    losses = scenario()
    told.write(json.dumps({"pid": os.getpid(), "look_at": LOOK_AT, "own": dict(OWN)}) + "\n")
    told.flush()
    sys.stdin.readline()
    os.close(ENDS[1])
    with contextlib.suppress(ChildProcessError):
        for pid in LOOK_AT:
            os.waitpid(pid, 0)
    OWN["plain"] = True
    if broken != AT_EXIT:  # within a capture, for it to end
        tpmon.hook.uninstall()
    told.write(json.dumps({"same": losses == scenario()}) + "\n")
    told.flush()
    return 7


def main() -> int:
    os.makedirs(FOLDER, exist_ok=True)
    if sys.argv[2] == "--alone":
        name, _, broken = sys.argv[3].partition("=")
        return run(name, broken, os.path.join(FOLDER, "alone.out"))

    for number, one in enumerate(sys.argv[2:]):
        pid = os.fork()
        if pid == 0:
            name, _, broken = one.partition("=")
            return run(name, broken, os.path.join(FOLDER, f"{number}.out"))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({"code": code}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
