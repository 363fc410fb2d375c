"""Build the queues of torch's DataLoader with the standard library, in torch's order, and obey lines.

Prints the truth as one JSON line: descriptors of the queues and PIDs of the workers of each loader.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing as mp
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
BODY = bytes(400)
"""About what torch's handle of one batch takes."""


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.alarm(60)


def work(index_queue: mp.Queue, data_queue: mp.Queue) -> None:
    """Answer each index with one message, as a loader worker does."""
    die_with_parent()
    while True:
        number = index_queue.get()
        data_queue.put(number.to_bytes(8, "little") + BODY)


def open_pipe(blocking: bool, on_exec: bool) -> None:
    """Hold both ends of a pipe as a library would."""
    for fd in os.pipe():
        os.set_blocking(fd, blocking)
        os.set_inheritable(fd, on_exec)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--context", default="fork")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--loaders", type=int, default=1)
    parser.add_argument("--before", choices=("nothing", "library", "queue"), default="nothing")
    parser.add_argument("--migrate", action="store_true", help="make each queue on another CPU")
    options = parser.parse_args()
    die_with_parent()
    context = mp.get_context(options.context)
    cpus = sorted(os.sched_getaffinity(0))
    made = 0

    def make_queue() -> mp.Queue:
        nonlocal made
        if options.migrate:
            os.sched_setaffinity(0, {cpus[-1 - made % len(cpus)]})
        made += 1
        return context.Queue()

    if options.before == "library":
        open_pipe(blocking=False, on_exec=True)
        open_pipe(blocking=False, on_exec=False)
    keep = [make_queue()] if options.before == "queue" else []
    loaders, truth = [], []
    for _ in range(options.loaders):
        data = make_queue()
        index, workers = [], []
        for _ in range(options.workers):
            index.append(make_queue())
            workers.append(context.Process(target=work, args=(index[-1], data), daemon=True))
            workers[-1].start()
        loaders.append((data, index, workers))
        truth.append(
            {
                "data": data._reader.fileno(),
                "index": [one._reader.fileno() for one in index],
                "workers": [one.pid for one in workers],
            }
        )
    for data, index, workers in loaders:
        for number in range(len(workers)):
            index[number].put(number)
        for _ in workers:
            data.get()
    print(json.dumps(truth), flush=True)
    obey(*loaders[0])
    del keep


def obey(data: mp.Queue, index: list[mp.Queue], workers: list[mp.Process]) -> None:
    """Do what each line of stdin says to the first loader, and say when it is done."""
    sent = 0
    for line in sys.stdin:
        word, number = line.split()[0], int(line.split()[1])
        answer = "done"
        if word == "send":
            for _ in range(number):
                index[sent % len(index)].put(sent)
                sent += 1
        elif word == "take":
            taken = [data.get(timeout=20) for _ in range(number)]
            answer = str(sum(message.endswith(BODY) for message in taken))
        elif word == "reap":
            with data._wlock:  # a worker that dies with it silences the others
                os.kill(workers[number].pid, signal.SIGKILL)
                workers[number].join()
        elif word == "stop":
            with data._wlock:
                os.kill(workers[number].pid, signal.SIGSTOP)
                os.waitid(os.P_PID, workers[number].pid, os.WSTOPPED | os.WNOWAIT)
        elif word == "replace":
            os.dup2(os.open(__file__, os.O_RDONLY), data._reader.fileno())
        print(answer, flush=True)


if __name__ == "__main__":
    main()
