"""Read batches from a real DataLoader beside a gloo group; obeys lines, so that a test sets the pace.

Prints one JSON line with the truth about its queues after the first batch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing as mp
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, delay) -> None:
        self.delay = delay

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.delay.value)
        return torch.full((64,), float(index % 1000))


def main() -> None:
    """Train nothing, but wait for each batch and check it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--context", default="fork")
    parser.add_argument("--store", required=True, help="file for the rendezvous of the gloo group")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    signal.alarm(240)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{options.store}")
    delay = mp.get_context(options.context).Value("d", 0.0)
    pace = {"step_s": 0.2, "over": False}

    def obey() -> None:
        for line in sys.stdin:
            word, value = line.split()
            if word == "make":
                delay.value = float(value)
            elif word == "step":
                pace["step_s"] = float(value)
            else:
                pace["over"] = True

    context = options.context
    batches = iter(DataLoader(Samples(delay), num_workers=2, multiprocessing_context=context))
    right = count = 0
    for count, batch in enumerate(batches, 1):
        right += bool((batch == float((count - 1) % 1000)).all())
        if count == 1:
            truth = {
                "data": batches._worker_result_queue._reader.fileno(),
                "index": [queue._reader.fileno() for queue in batches._index_queues],
                "workers": [worker.pid for worker in batches._workers],
                "pid": os.getpid(),
            }
            print(json.dumps(truth), flush=True)
            # Not before: a worker forked while this thread reads would close a locked stdin.
            threading.Thread(target=obey, daemon=True).start()
        if pace["over"]:
            break
        time.sleep(pace["step_s"])
    print(f"{right} of {count}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
