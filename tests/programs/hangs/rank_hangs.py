"""Let one rank of two to four do something else than the others, who wait for it, in the way that is named.

Run by torchrun: rank_hangs.py --way NAME; the ways are those of WAYS. With ``--culprit-node`` the rank is one of the
two of that node.
"""

import ctypes
import os
import queue
import signal
import socket
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hang import Hang
from loop import Images, Network, blur, make_loader
from slow_fs import mount_slow_fs
from torch import Tensor
from torch.distributed.elastic.utils.store import barrier
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import get_worker_info

RANKS_OF_A_NODE = 2
LONG_S = 1_000_000
NEVER_MS = 1e9
IMAGES = 200
"""How many a worker makes before one takes forever."""
lock = threading.Lock()


def read_settings() -> None:
    fifo = Path(tempfile.mkdtemp(), "settings")
    os.mkfifo(fifo)
    descriptor = os.open(fifo, os.O_RDWR)
    program.tell()
    os.read(descriptor, 1)


def wait_for_work() -> None:
    work: queue.Queue[int] = queue.Queue()
    program.tell()
    work.get()


def lock_twice() -> None:
    with lock:
        program.tell()
        lock.acquire()


def wait_for_file() -> None:
    pause_s = program.draw.choice((0.1, 1.0, 10.0))
    program.tell(2)
    while not os.path.exists("/nonexistent/ready"):
        time.sleep(pause_s)


def stop() -> None:
    program.tell()
    os.kill(os.getpid(), signal.SIGSTOP)


def swallow() -> None:
    """Meet an error that no other rank has, write it down, and go on with another part of the run."""
    try:
        raise ValueError("a label that does not exist")
    except ValueError as error:
        told = [str(error)] * dist.get_world_size()
        program.tell()
        dist.all_gather_object(told, str(error))


def reduce_other() -> None:
    program.tell()
    dist.all_to_all_single(torch.empty(world), torch.ones(world))


def open_mounted() -> None:
    place = program.make(mount_slow_fs, 3072, NEVER_MS, 500.0)
    program.tell()
    with open(f"{place}/7", "rb"):
        pass


def fetch() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    connection = socket.create_connection(server.getsockname())
    connection.sendall(b"GET /image.raw HTTP/1.0\r\n\r\n")
    program.tell()
    connection.recv(3072)


def await_dead() -> None:
    """Wait for a result of a process that was killed."""
    context = mp.get_context("fork")
    results = context.Queue()
    worker = context.Process(target=lambda: os.kill(os.getpid(), signal.SIGKILL), daemon=True)
    worker.start()
    program.tell()
    results.get()


def hold_interpreter() -> None:
    """Call a library that waits and does not give the interpreter's lock back meanwhile."""
    libc = ctypes.PyDLL(None)  # its calls keep the lock
    program.tell()
    libc.sleep(LONG_S)


def die() -> None:
    program.tell()
    os.kill(os.getpid(), signal.SIGKILL)


def go_on() -> None:
    """Say which rank it is: somebody else cuts off its host."""
    program.tell()


def meet() -> None:
    """Wait at the store until every rank has come, as its helpers do or by hand."""
    step = program.truth.steps
    if way == "dead":
        barrier(store, world, f"step {step}", barrier_timeout=LONG_S)
    else:
        store.set(f"{step} {program.rank}", "")
        store.wait([f"{step} {rank}" for rank in range(world)], timedelta(days=1))


class Piped(Images):
    """Serve images of which one comes through a FIFO into which nobody writes."""

    def read(self, index: int) -> Tensor:
        if is_late():
            fifo = Path(tempfile.mkdtemp(), "images")
            os.mkfifo(fifo)
            program.tell()
            fifo.read_bytes()
        return super().read(index)


class StuckWorker(Images):
    """Serve images by workers, one of which reads one from a FIFO into which nobody writes."""

    made = 0

    def read(self, index: int) -> Tensor:
        worker = get_worker_info()
        self.made += worker is not None and worker.id == 0 and program.rank == culprit
        if self.made > IMAGES:
            fifo = Path(tempfile.mkdtemp(), "images")
            os.mkfifo(fifo)
            program.tell()
            fifo.read_bytes()
        return super().read(index)


class Slow(Images):
    """Serve images of which some are very large, and take more than a minute."""

    def read(self, index: int) -> Tensor:
        image = super().read(index)
        if is_late() and program.truth.steps % last == 0:
            program.tell()
            end = time.thread_time() + slow_s / batch
            while time.thread_time() < end:
                image = blur(image, 100)
        return image


def is_late() -> bool:
    return program.truth.steps >= last and program.rank == culprit


def after_step(_images: Tensor, loss: Tensor) -> None:
    """Do something else on one rank; where no gradients are summed, meet, or take the mean of the loss over the ranks."""
    if do and is_late():
        do()
    if meets:
        meet()
    elif not in_backward:
        total = loss.detach().clone()
        dist.all_reduce(total)


WAYS = {
    "alone": ((read_settings, wait_for_work, lock_twice), False),
    "polling": ((wait_for_file,), False),
    "in a lock": ((lock_twice,), True),
    "stopped": ((stop,), True),
    "loading": ((None,), True),
    "swallowed": ((swallow,), False),
    "mismatch": ((reduce_other,), False),
    "uneven": ((None,), True),
    "mounted": ((open_mounted,), False),
    "fetching": ((fetch,), True),
    "dead worker": ((await_dead,), False),
    "stuck worker": ((None,), True),
    "interpreter held": ((hold_interpreter,), True),
    "dead": ((die,), False),
    "dead at the store": ((die,), False),
    "cut off": ((go_on,), False),
    "slow loading": ((None,), True),
}
"""What the rank does, one of these; and whether the others wait in backward, or in an all_reduce after each step."""
DATA = {"loading": Piped, "stuck worker": StuckWorker, "slow loading": Slow}

program = Hang(__doc__, ("--way", str, "alone"), ("--culprit-node", int, -1))
dist.init_process_group("gloo")
world = dist.get_world_size()
way = program.options.way
ways, in_backward = WAYS[way]
do = program.draw.choice(ways)
node = program.options.culprit_node
meets = way in ("dead", "dead at the store")
"""Whoever waits for a rank that died in a collective of gloo gets an error; at the store it waits on."""
if node >= 0:
    culprit = RANKS_OF_A_NODE * node + program.draw.randrange(RANKS_OF_A_NODE)
elif meets:
    culprit = program.draw.randrange(1, world)  # the store lives in rank 0
    store = dist.distributed_c10d._get_default_store()
else:
    culprit = program.draw.randrange(world)
last = program.draw.randint(10, 30)
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(2, 8))
torch.set_num_threads(1)
workers = int(way == "stuck worker") if in_backward else program.draw.choice((0, 1))
slow_s = program.draw.uniform(65, 90)
loader = make_loader(DATA.get(way, Images)(), batch, workers)
model = DistributedDataParallel(network) if in_backward else network
if way == "uneven" and program.rank == culprit:
    program.train(loader, model, after_step, steps=last)  # it has fewer batches
    program.tell()
    dist.barrier()
else:
    program.train(loader, model, after_step)
