"""Small real training loops under the hook: each is run with a fresh hook and reports what was counted.

Prints one JSON object: loop -> counts. Losses of the plain loop are reported with and without the hook.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

if "--after" not in sys.argv:
    import tpmon.hook
import torch

if "--after" in sys.argv:
    import tpmon.hook
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.programs.hook_breaking import list_links, list_patched
from tpmon.hook.installation import HOOK

COUNTED = (
    "rule", "steps", "eval_steps", "batches", "backwards", "optimizer_calls", "updates", "skipped",
    "samples", "eval_samples", "elsewhere",
)  # fmt: skip
DATA = TensorDataset(torch.arange(320.0).reshape(40, 8) / 320, torch.ones(40, 1))


class Slow(Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.ones(8)


class Inner(Dataset):
    """Read a DataLoader of its own within each sample, as some datasets do."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> torch.Tensor:
        return next(iter(DataLoader(DATA, batch_size=2)))[0]


def model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


def train(loader, accumulate: int = 1) -> list[float]:
    net, optimizer = model()
    losses = []
    for at, batch in enumerate(loader):
        x = batch[0] if isinstance(batch, (list, tuple)) else batch
        loss = net(x).pow(2).mean()
        loss.backward()
        losses.append(loss.item())
        if (at + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def plain() -> None:
    train(DataLoader(DATA, batch_size=4))


def accumulation() -> None:
    train(DataLoader(DATA, batch_size=1), accumulate=4)


def workers() -> None:
    for _ in range(2):
        train(DataLoader(Slow(), batch_size=2, num_workers=2, multiprocessing_context="fork"))


def inner_loaders_in_workers() -> None:
    train(DataLoader(Inner(), batch_size=None, num_workers=1, multiprocessing_context="fork"))


def inner_loaders() -> None:
    train(DataLoader(Inner(), batch_size=None))


def two_optimizers() -> None:
    one, other = model(), model()
    for x, _ in DataLoader(DATA, batch_size=4):
        for net, optimizer in (one, other):
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()


def close_around(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, _ in DataLoader(DATA, batch_size=8):

        def closure(x=x):
            optimizer.zero_grad()
            loss = net(x).pow(2).mean() + 1
            loss.backward()
            return loss

        optimizer.step(closure)


def lbfgs() -> None:
    net, _ = model()
    close_around(net, torch.optim.LBFGS(net.parameters(), max_iter=3))


def closure_around_all() -> None:
    close_around(*model())


def evaluation() -> None:
    for _ in range(2):
        train(DataLoader(DATA, batch_size=4))
        net, _ = model()
        for x, _ in DataLoader(DATA, batch_size=8):
            with torch.no_grad():
                net(x)


def inference() -> None:
    net, _ = model()
    with torch.inference_mode():
        for x, _ in DataLoader(DATA, batch_size=4):
            net(x)


def no_loader() -> None:
    net, optimizer = model()
    x = torch.ones(4, 8)
    for _ in range(25):
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()


def scaler() -> None:
    net, optimizer = model()
    scale = torch.amp.GradScaler("cpu", init_scale=4.0)
    for at, (x, _) in enumerate(DataLoader(DATA, batch_size=4)):
        optimizer.zero_grad()
        loss = net(x).mean() * (float("inf") if at % 5 == 4 else 1.0)
        scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()


def optimizer_in_backward() -> None:
    net, _ = model()
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in net.parameters()}
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    for x, _ in DataLoader(DATA, batch_size=4):
        net(x).mean().backward()


def checkpointed() -> None:
    from torch.utils.checkpoint import checkpoint

    net, optimizer = model()
    for x, _ in DataLoader(DATA, batch_size=4):
        checkpoint(net, x, use_reentrant=True)
        checkpoint(net, x.requires_grad_(), use_reentrant=True).mean().backward()
        optimizer.step()


def error_in_the_loop() -> None:
    net, optimizer = model()
    for at, (x, _) in enumerate(DataLoader(DATA, batch_size=4)):
        try:
            if at == 3:
                time.sleep(0.002)  # it was computed on: one that is passed over at once belongs to the next step
                raise ValueError("a bad batch")
            net(x).mean().backward()
            optimizer.step()
        except ValueError:
            continue


def error_in_the_backward() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("no gradient")

    net, optimizer = model()
    for at, (x, _) in enumerate(DataLoader(DATA, batch_size=4)):
        try:
            y = net(x)
            (Fails.apply(y) if at == 3 else y).mean().backward()
        except RuntimeError as error:
            EXTRA["raised"] = str(error)
        optimizer.step()


def forked_rank() -> None:
    train(DataLoader(DATA, batch_size=4))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        before = [name for name in list_links() if "tpmon" in name]
        train(DataLoader(DATA, batch_size=8))
        os.write(write, json.dumps([before, counts(), own_pid()]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    EXTRA["forked"] = [*json.loads(os.read(read, 65536)), child]
    os.close(read)
    os.close(write)


def alarms() -> None:
    """A user's alarm raises wherever the loop is, often within the hook."""

    class AlarmError(Exception):
        pass

    def ring(*_):
        raise AlarmError

    before = signal.signal(signal.SIGALRM, ring)
    net, optimizer = model()
    x = torch.ones(4, 8)
    rung = 0
    for _ in range(300):
        torch.set_grad_enabled(True)  # an alarm within torch's own no_grad leaves it off
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0004)
            for _ in range(2000):  # torch itself may lose an alarm
                optimizer.zero_grad()
                net(x).mean().backward()
                optimizer.step()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except AlarmError:
            rung += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    torch.set_grad_enabled(True)
    for _ in range(20):  # in peace: these must all be counted
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
    EXTRA["rung"] = rung


def known_phases() -> None:
    """Spend time in each phase, and take it in the loop's own lines."""
    from tests.programs.hook_split_train import train_slowly

    *_, (_, spent) = train_slowly((0.004, 0.006, 0.009, 0.003, 0.005), 1, 60)
    one = HOOK.steps
    told = (one.data_ns, one.forward_ns, one.backward_ns, one.optimizer_ns, one.other_ns)
    EXTRA["phases"] = [spent, [ns / 1e9 for ns in told]]


def compiled_optimizer() -> None:
    import torch._dynamo as dynamo

    net, optimizer = model()
    step = torch.compile(optimizer.step, backend="eager")
    for x, _ in DataLoader(DATA, batch_size=4):
        optimizer.zero_grad()
        net(x).mean().backward()
        step()
    name = "frames" if HOOK.installed else "frames_without"
    EXTRA[name] = dynamo.utils.counters["frames"]["total"]
    dynamo.reset()
    dynamo.utils.counters.clear()


LOOPS = [
    plain, accumulation, workers, inner_loaders, inner_loaders_in_workers, two_optimizers, lbfgs,
    closure_around_all, evaluation, inference, no_loader, scaler, optimizer_in_backward, checkpointed,
    error_in_the_loop, error_in_the_backward, forked_rank, alarms, known_phases,
]  # fmt: skip
EXTRA: dict[str, object] = {}


def counts() -> dict[str, object]:
    return {**{name: getattr(HOOK.steps, name) for name in COUNTED}, "problem": tpmon.hook.problem()}


def own_pid() -> int:
    from tpmon.hook.bus import wire

    return wire.parse_header(HOOK.steps.pages.page).pid


def cycles(number: int) -> dict[str, object]:
    tpmon.hook.uninstall()
    before, open_before, threads_before = list_patched(), len(list_links()), len(os.listdir("/proc/self/task"))
    steps = 0
    for _ in range(number):
        tpmon.hook.install()
        train(DataLoader(DATA, batch_size=10))
        steps += HOOK.steps.steps
        tpmon.hook.uninstall()
    return {
        "same": list_patched() == before,
        "descriptors": len(list_links()) - open_before,
        "threads": len(os.listdir("/proc/self/task")) - threads_before,
        "steps": steps,
    }


def train_forever() -> None:
    said = False
    while True:
        train(DataLoader(Slow(), batch_size=2, num_workers=1, multiprocessing_context="fork"))
        if not said:
            print("ready", flush=True)
            said = True


def main() -> None:
    torch.set_num_threads(1)
    if "--forever" in sys.argv:
        train_forever()
    report: dict[str, object] = {}
    assert HOOK.patches.missing() == []
    hooked = train(DataLoader(DATA, batch_size=4))
    tpmon.hook.uninstall()
    report["same_losses"] = hooked == train(DataLoader(DATA, batch_size=4))
    if "--compile" in sys.argv:
        compiled_optimizer()
    for loop in [compiled_optimizer] if "--compile" in sys.argv else [] if "--cycles" in sys.argv else LOOPS:
        tpmon.hook.uninstall()
        tpmon.hook.install()
        loop()
        report[loop.__name__] = counts()
    report["cycles"] = cycles(3 if "--compile" in sys.argv else 500 if "--cycles" in sys.argv else 100)
    report["threads"] = len(os.listdir("/proc/self/task"))
    report.update(EXTRA)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
