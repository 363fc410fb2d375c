"""Train on a GPU in one of the ways that readings are easily misread: see ``WAYS``.

Prints "ready" when the steps are steady. "hang-in-kernel" prints "hangs" and CLOCK_MONOTONIC in
seconds when it does. Run: python tests/gpu/gpu_train.py WAY [--device cpu]
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import signal
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

STEP_S = 0.020
"""GPU work of one step."""
LOADER_S = 0.012
"""What one batch takes the loader; less than the GPU, so it costs nothing."""
RESERVED_RATIO = 0.97
LAYERS = 100
TRAIN_S = 15.0
"""How long it is seen to train before it hangs."""
KERNEL_S = 120.0
"""Longer than a spin of 90 s would be: a verdict is due 45 s after the hang where SM activity is read, but 90 s
after it where power alone tells, and then the kernel must still be there (test_hangs_gpu.py)."""
ROUND_S = 2.0
"""GPU work between two waits of a host that does nothing but wait."""
SLEEP_CYCLES = 100_000_000
TURN_S = 0.002
"""Work of the host, and of the GPU, in a step that could do both at once."""
HOST_S, SHORT_S = 0.010, 0.002
"""Work of the host in a step, and of its GPU, which waits for it most of the time."""
BLOCKS, BLOCK_BYTES = 16, 256 << 20
"""Memory that a step gives back to the driver, as many blocks of so many bytes."""
STREAM_BYTES = 1 << 30
"""Of each of the three tensors that an addition reads or writes: no cache holds them."""
PINNED_BYTES = 256 << 20
"""Of one batch; a worker sends the same shared memory again and again, the pin thread copies it each time."""
MOST_SECONDS = 240


class Slow(Dataset):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(LOADER_S)
        return torch.full((64,), float(index % 100))


def wait_for(device: torch.device) -> None:
    """Wait until the device is done; a CPU always is."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure_s(work: Callable[[], object], device: torch.device) -> float:
    """Return what one call of ``work`` takes the device, seconds."""
    for _ in range(5):
        work()
    wait_for(device)
    begun = time.perf_counter()
    for _ in range(10):
        work()
    wait_for(device)
    return (time.perf_counter() - begun) / 10


def make_work(device: torch.device, size: int = 4096) -> Callable[[float], None]:
    """Return what queues matrix products of so many seconds that fill the device; a CPU does them at once."""
    size, kind = (size, torch.bfloat16) if device.type == "cuda" else (256, torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    product = torch.empty_like(left)
    one_s = measure_s(lambda: torch.mm(left, right, out=product), device)

    def work(seconds: float) -> None:
        for _ in range(max(1, round(seconds / one_s))):
            torch.mm(left, right, out=product)

    return work


def repeat(step: Callable[[], object], ready: int = 20) -> None:
    """Repeat a step for ever; say when it is steady."""
    for number in itertools.count(1):
        step()
        if number == ready:
            print("ready", flush=True)


def queue_work(device: torch.device) -> None:
    """Queue 20 ms of matrix products a step and wait 12 ms for each batch: the GPU never waits."""
    work = make_work(device)
    batches = iter(DataLoader(Slow(), batch_size=None, num_workers=1, prefetch_factor=2))

    def step() -> None:
        shift = next(batches).to(device, non_blocking=True)
        work(STEP_S)
        shift.add_(1)

    repeat(step)


def fill_memory(device: torch.device) -> None:
    """Reserve 97 % of the card in the caching allocator, then train inside of it."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        held = torch.empty(int(free - (1 - RESERVED_RATIO) * total), dtype=torch.uint8, device=device)
        del held
    size = 2048 if device.type == "cuda" else 128
    model = nn.Sequential(*(nn.Linear(size, size) for _ in range(8))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = torch.randn(8 * size, size, device=device)
    left = itertools.count(-19)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if next(left) == 0 and device.type == "cuda" and (retries := torch.cuda.memory_stats()["num_alloc_retries"]):
            sys.exit(f"the allocator had {retries} retries")

    repeat(step)


def launch_tiny_kernels(device: torch.device) -> None:
    """Launch some ten thousand kernels a second, each far too small for the card."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    batch = torch.randn(4, 16, device=device)
    with torch.no_grad():
        repeat(lambda: model(batch))


def make_sleep(device: torch.device) -> Callable[[float], None]:
    """Return what keeps one thread of the device busy for so many seconds; a CPU sleeps.

    One kernel a second, one right behind the other: a driver can end a process between two of them.
    """
    if device.type != "cuda":
        return time.sleep
    second = SLEEP_CYCLES / measure_s(lambda: torch.cuda._sleep(SLEEP_CYCLES), device)

    def sleep(seconds: float) -> None:
        for _ in range(round(seconds)):
            torch.cuda._sleep(round(second))

    return sleep


def hang_in_kernel(device: torch.device) -> None:
    """Train for some seconds, then wait in ``.item()`` for two minutes of kernels that spin without a pause.

    To the host, and to whoever looks on, they are one: its wait does not end before the last.
    """
    sleep = make_sleep(device)
    model = nn.Linear(512, 512).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(64, 512, device=device)
    step, ready_s = 0, 0.0
    while not ready_s or time.monotonic() < ready_s + TRAIN_S:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        step += 1
        if step == 20:
            ready_s = time.monotonic()
            print("ready", flush=True)
    print("hangs", time.monotonic(), flush=True)
    sleep(KERNEL_S)
    loss.add_(1).item()


def peg_host(device: torch.device) -> None:
    """Queue two seconds of matrix products and wait for them in ``synchronize()``, again and again."""
    work = make_work(device, 16384)

    def step() -> None:
        work(ROUND_S)
        wait_for(device)

    repeat(step, ready=2)


class OnHost(nn.Module):
    """Compute in Python for so many seconds a forward, then queue so many seconds of matrix products."""

    def __init__(self, device: torch.device, host_s: float, device_s: float) -> None:
        super().__init__()
        self.work = make_work(device)
        self.host_s, self.device_s = host_s, device_s

    def forward(self) -> None:
        count_for(self.host_s)
        self.work(self.device_s)


def count_for(seconds: float) -> int:
    count, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        for number in range(50):
            count += number % 3
        count -= 1
    return count


def prepare_between(device: torch.device) -> None:
    """Compute 10 ms in Python between launches of 2 ms."""
    work = make_work(device)

    def step() -> None:
        count_for(HOST_S)
        work(SHORT_S)

    repeat(step)


def synchronize_each_step(device: torch.device) -> None:
    """Do 2 ms on the host and 2 ms on the GPU in turn, because each step ends in ``synchronize()``."""
    model = OnHost(device, TURN_S, TURN_S)

    def step() -> None:
        model()
        if device.type == "cuda":
            torch.cuda.synchronize()

    repeat(step)


def copy_each_step(device: torch.device) -> None:
    """Do the same in turn, because each step begins with a copy from pageable memory."""
    from accelerate.utils import send_to_device

    model = OnHost(device, TURN_S, TURN_S)
    batch = torch.ones(1 << 18)

    def step() -> None:
        send_to_device(batch, device)
        model()

    repeat(step)


def give_memory_back(device: torch.device) -> None:
    """Ask the driver for memory in each step and give it back: both wait for the GPU."""
    work = make_work(device)
    size = BLOCK_BYTES if device.type == "cuda" else 1 << 16

    def step() -> None:
        blocks = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(BLOCKS)]
        work(SHORT_S)
        del blocks
        torch.cuda.empty_cache()

    repeat(step)


def stream_memory(device: torch.device) -> None:
    """Add tensors that no cache holds: the card's memory is the limit, its tensor cores rest."""
    size = (STREAM_BYTES if device.type == "cuda" else 1 << 20) // 4
    left, right, total = (torch.ones(size, device=device) for _ in range(3))

    def step() -> None:
        torch.add(left, right, out=total)

    repeat(step)


class Shared(Dataset):
    """Hand out the same shared memory as each batch: it costs its worker nothing."""

    def __init__(self, size: int) -> None:
        self.batch = torch.ones(size, dtype=torch.uint8).share_memory_()

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Tensor:
        return self.batch


def pin_batches(device: torch.device) -> None:
    """Let one pin-memory thread copy what the workers have in no time, and the GPU hardly work on it."""
    is_cuda = device.type == "cuda"
    loader = DataLoader(
        Shared(PINNED_BYTES if is_cuda else 1 << 20), batch_size=None, num_workers=2, pin_memory=is_cuda
    )
    work, batches = make_work(device), iter(loader)

    def step() -> None:
        next(batches)[:1].to(device, non_blocking=True)
        work(SHORT_S)

    repeat(step)


WAYS: dict[str, Callable[[torch.device], None]] = {
    "queue-work": queue_work,
    "fill-memory": fill_memory,
    "tiny-kernels": launch_tiny_kernels,
    "hang-in-kernel": hang_in_kernel,
    "peg-host": peg_host,
    "python-between": prepare_between,
    "synchronize": synchronize_each_step,
    "copy": copy_each_step,
    "empty-cache": give_memory_back,
    "stream-memory": stream_memory,
    "pin": pin_batches,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    signal.alarm(MOST_SECONDS)
    torch.set_num_threads(1)
    WAYS[options.way](torch.device(options.device))


if __name__ == "__main__":
    main()
