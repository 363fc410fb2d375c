"""Start the programs of tests/programs/hangs, read whom they blame, and end them."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.programs.causes import running as causes
from tests.programs.causes.running import TORCHRUN, Running, end_tree, start_program
from tests.programs.hangs.table import AliveRow, Row

PROGRAMS = causes.HERE.parent
HANGS = "hangs"
TRUTH_NAME = "truth.jsonl"
"""As in hang.py, which this must not import: it imports torch."""
START_S = 300.0
"""Four ranks on two busy CPUs take minutes to come so far."""
NODE_OF_RUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--master-addr", "127.0.0.1")


@dataclass(frozen=True)
class Culprit:
    """Hold whom a program blames: a process, a thread of it, and where in the code that is.

    Of a process that is no rank of a job and no loader worker, ``rank`` is 0 and ``worker`` -1.
    """

    pid: int
    parent: int
    tid: int
    thread: str
    rank: int
    worker: int
    function: str
    file: str
    lines: tuple[int, ...]

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(f"{self.file}:{line}" for line in self.lines)


def read_culprits(running: Running) -> tuple[Culprit, ...]:
    """Read whom a program blames so far; of several any is right."""
    return read_truth(running.log.with_name(TRUTH_NAME))


def read_truth(path: Path) -> tuple[Culprit, ...]:
    """Read the file in which a program says whom it blames; nobody where there is none so far."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ()
    records = [json.loads(line) for line in text.splitlines()]
    return tuple(Culprit(**{**record, "lines": tuple(record["lines"])}) for record in records)


class Hanging(Running):
    start_s = START_S

    def is_ready(self) -> bool:
        return bool(read_culprits(self))


@dataclass(frozen=True)
class Trees:
    """Hold the process trees of one run: the one to look at, then the others; ``hidden`` has the culprit."""

    seen: Running
    hidden: Running | None = None

    def read_culprits(self) -> tuple[Culprit, ...]:
        return read_culprits(self.hidden or self.seen)

    def wait_until_ready(self) -> None:
        """Wait until the program hangs, or is at its slow place."""
        (self.hidden or self.seen).wait_until_ready()

    def end(self) -> None:
        for one in (self.seen, self.hidden):
            if one is not None:
                end_tree(one.process)


@contextmanager
def start_trees(row: Row | AliveRow, seed: int, seconds: float) -> Iterator[Trees]:
    """Start a run of a program without waiting for it, and end it with all that it started."""
    ranks = row.draw_ranks(seed)
    program = (str(PROGRAMS / row.script), *row.options)
    with ExitStack() as stack:
        if isinstance(row, AliveRow) or row.trees == 1:
            start = (*TORCHRUN, str(ranks)) if ranks > 1 else (sys.executable,)
            make = Hanging if row.folder == HANGS else Running
            seen = start_program((*start, *program), seed, seconds=seconds, make=make)
            yield Trees(stack.enter_context(seen))
            return
        hidden_node = random.Random(seed).randrange(2)
        start = (*NODE_OF_RUN, "--master-port", find_port(), "--nproc-per-node", str(ranks))
        nodes = [
            start_program(
                (*start, "--node-rank", str(node), *program),
                seed,
                "--culprit-node",
                str(hidden_node),
                seconds=seconds,
                make=Hanging,
            )
            for node in range(2)
        ]
        started = [stack.enter_context(node) for node in nodes]
        yield Trees(started[1 - hidden_node], started[hidden_node])


def find_port() -> str:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as one:
        return str(one.getsockname()[1])
