"""What the programs of this folder share: a program that tells who hangs, where, just before it does.

The programs train as those of ``causes/`` do, whose ``loop.py`` they use.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "causes"))

from loop import Images, Network, Program, make_loader
from torch import Tensor
from torch.utils.data import get_worker_info

TRUTH_NAME = "truth.jsonl"


class Hang(Program):
    """Hold the options of a program that hangs, and write who is to blame beside its steps."""

    def tell(self, lines: int = 1) -> None:
        """Blame the calling thread for what it does in the ``lines`` lines after the call's."""
        # A worker that is blocked does not see its rank go.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        worker = get_worker_info()
        frame = sys._getframe(1)
        record = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "tid": threading.get_native_id(),
            "thread": threading.current_thread().name,
            "rank": self.rank,
            "worker": -1 if worker is None else worker.id,
            "function": frame.f_code.co_name,
            "file": Path(frame.f_code.co_filename).name,
            "lines": [frame.f_lineno + number for number in range(1, lines + 1)],
        }
        if self.options.steps_file:
            with Path(self.options.steps_file).with_name(TRUTH_NAME).open("a") as file:
                file.write(json.dumps(record) + "\n")  # one write: it is there as a whole, or not yet
        else:
            print(json.dumps(record), flush=True)

    def train_until(self, hang: Callable[[], object]) -> None:
        """Train with two workers or fewer; from some step on call ``hang`` after each."""
        last = self.draw.randint(10, 40)
        batch = self.draw.choice((8, 16))
        loader = make_loader(Images(), batch, self.draw.choice((0, 1, 2)))
        network = Network(self.draw.uniform(10, 40), batch)
        self.train(loader, network, lambda _images, _loss: self.truth.steps >= last and hang())

    def train_and_end(self) -> None:
        batch = self.draw.choice((8, 16))
        loader = make_loader(Images(), batch, self.draw.choice((0, 1)))
        self.train(loader, Network(self.draw.uniform(10, 40), batch), steps=self.draw.randint(10, 40))

    def train_sticky(self, kind: type[Sticky]) -> None:
        """Train with one to three workers, of which one hangs."""
        workers = self.draw.randint(1, 3)
        batch = self.draw.choice((8, 16))
        loader = make_loader(kind(self, workers), batch, workers)
        self.train(loader, Network(self.draw.uniform(10, 40), batch))


class Sticky(Images):
    """Serve images until one worker has made ``healthy`` of them; what ``stick`` does then hangs.

    ``coin`` chooses between two ways to hang.
    """

    def __init__(self, program: Hang, workers: int) -> None:
        super().__init__()
        self.healthy = program.draw.randint(40, 160)
        self.sticky = program.draw.randrange(workers)
        self.coin = program.draw.random() < 0.5
        self.made = 0
        self.prepare()

    def prepare(self) -> None:
        """Make in the rank what its worker hangs at."""

    def read(self, index: int) -> Tensor:
        worker = get_worker_info()
        if worker is not None and worker.id == self.sticky:
            self.made += 1
            if self.made > self.healthy:
                self.stick()
        return super().read(index)

    def stick(self) -> None:
        raise NotImplementedError
