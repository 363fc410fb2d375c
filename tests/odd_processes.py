"""Start real processes that each have an odd environment, command line, name or file, all with a torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

HUGE = "9" * 5000
BYTES = b"\xff\xfe".decode(errors="surrogateescape")
ESCAPE = "\x1b[31m\x1b]0;x\x07"
LATE, EARLY = 10.0**11, -(10.0**11)
"""Times of files in the years 5138 and -1199."""


@dataclass(frozen=True)
class Odd:
    """Say what is odd about one process; a ``log`` is a file with this time as its standard output."""

    environ: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    first_word: str = ""
    name: str = ""
    thread: str = ""
    folder: str = "torch/lib"
    version: str = ""
    log: float | None = None
    memfds: int = 0


def _place(number: str, size: str = "2", port: str = "29500") -> dict[str, str]:
    return {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "MASTER_ADDR": "h", "MASTER_PORT": port}


_NUMBERS = ("-1", "+3", "\u0663", "\u00b2", "nan", "inf", "1e400", "0x10", "", " 7 ", "1_0", "9" * 12, "\n3", BYTES)
_NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "NODE_RANK", "SLURM_PROCID", "SLURM_STEP_ID"),
    *("SLURM_JOB_ID", "OMP_NUM_THREADS", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "NCCL_RAS_ADDR"),
    *("CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    *("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_WORKER_SERVER_SOCKET", "KMP_BLOCKTIME"),
)

ODD = (
    Odd(environ={"RANK": HUGE}),
    Odd(environ={"RANK": "0", "WORLD_SIZE": HUGE}),
    Odd(environ=_place("0", "9999999999")),
    Odd(environ=_place("999999", "2", HUGE)),
    Odd(environ=_place("1", "2", "29500")),
    Odd(environ=dict.fromkeys(_NAMES, HUGE)),
    *(Odd(environ=dict.fromkeys(_NAMES, number)) for number in _NUMBERS),
    Odd(environ={f"V{number}": "x" * 1000 for number in range(1500)}),
    Odd(environ={f"NCCL_{number}": "x" for number in range(2000)}),
    Odd(environ={"SLURM_PROCID": "0", "SLURM_STEP_ID": "9" * 30, "SLURM_JOB_ID": ESCAPE}),
    Odd(words=("x",) * 100_000),
    Odd(words=("y" * 120_000,)),
    Odd(words=("\n\n", ESCAPE, BYTES, "\u202e", "%s%n")),
    Odd(words=("[" * 5000, '{"a":' * 5000, "-" * 20_000, "://" * 9000)),
    Odd(first_word="\n"),
    Odd(first_word=" "),
    Odd(first_word=BYTES),
    Odd(first_word="torchrun"),
    Odd(first_word="-python"),
    Odd(first_word="python3 " * 1000),
    Odd(first_word="/" * 4000),
    Odd(first_word="slurmstepd: [" + "1" * 4000),
    Odd(name="a) S 1 1 (b"),
    Odd(name="\x1b[2J"),
    Odd(name=BYTES),
    Odd(name="a\nb"),
    Odd(name="pt_data_worker"),
    Odd(name="pt_elastic"),
    Odd(thread="pt_autograd\n)"),
    Odd(thread=BYTES),
    Odd(folder="tor\nch/lib"),
    Odd(folder=f"tor{ESCAPE}ch/torch/lib"),
    Odd(folder=f"{BYTES}/torch/lib"),
    Odd(folder="a (deleted)/torch/lib"),
    Odd(folder=" /" * 200 + "/torch/lib"),
    Odd(folder="v/torch/lib", version=f"__version__ = '{HUGE}.{HUGE}'\n"),
    Odd(folder="w/torch/lib", version="__version__ = '\x1b'\n" * 10_000),
    Odd(log=LATE),
    Odd(log=EARLY, environ={"RANK": "0"}),
    Odd(memfds=300),
)

_ODD = """
import ctypes, mmap, os, sys, threading, time
libc = ctypes.CDLL(None)
library, name, thread, memfds = sys.argv[1:5]
def encode(text):
    return ctypes.c_char_p(text.encode(errors="surrogateescape"))
def stay():
    libc.prctl(15, encode(thread), 0, 0, 0)
    time.sleep(60)
if thread:
    threading.Thread(target=stay, daemon=True).start()
held = [os.memfd_create("tpmon") for _ in range(int(memfds))]
with open(library, "rb") as file:
    torch = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if name:
    libc.prctl(15, encode(name), 0, 0, 0)
os.write(3, b".")
os.close(3)
time.sleep(60)
"""

_STARTER = """
import json, os, sys
for executable, words, environ, log in json.load(sys.stdin):
    out = os.open(log or os.devnull, os.O_WRONLY)
    moved = (int(sys.argv[1]), 3), (out, 1), (out, 2)
    actions = [(os.POSIX_SPAWN_DUP2, *pair) for pair in moved]
    print(os.posix_spawn(executable, words, environ, file_actions=actions))
    os.close(out)
"""


def _map_library(folder: Path, odd: Odd) -> str:
    place = folder / odd.folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "libtorch_cpu.so").write_bytes(bytes(4096))
    if odd.version:
        (place.parent / "version.py").write_text(odd.version)
    return str(place / "libtorch_cpu.so")


def _make_log(folder: Path, number: int, odd: Odd) -> str:
    if odd.log is None:
        return ""
    log = folder / f"{number}\n.log"
    log.write_bytes(b"\xff\x00\x1b[2J 99%|" + b"9" * 5000 + b"\n\n")
    os.utime(log, (odd.log, odd.log))
    return str(log)


@contextmanager
def start_odd(folder: Path, odd: tuple[Odd, ...] = ODD) -> Iterator[list[int]]:
    """Start them beside each other, each an orphan and so a job of its own, and end them; yields their PIDs."""
    asked = [
        (
            sys.executable,
            [
                one.first_word or sys.executable,
                *("-S", "-I", "-c", _ODD, _map_library(folder, one), one.name, one.thread, str(one.memfds)),
                *one.words,
            ],
            one.environ,
            _make_log(folder, number, one),
        )
        for number, one in enumerate(odd)
    ]
    ready, begun = os.pipe()
    pids: list[int] = []
    try:
        starter = subprocess.run(
            [sys.executable, "-S", "-c", _STARTER, str(begun)],
            input=json.dumps(asked),
            pass_fds=(begun,),
            capture_output=True,
            text=True,
            check=True,
        )
        os.close(begun)
        pids = [int(line) for line in starter.stdout.split()]
        told = b""
        while len(told) < len(pids) and (more := os.read(ready, 4096)):
            told += more
        assert len(told) == len(pids), "one of them ended at once"
        yield pids
    finally:
        os.close(ready)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
