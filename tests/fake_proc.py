"""Write a /proc of its own in a folder: as many processes as a test wants, with their ancestry."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpmon.probe.base.procread import TICKS_PER_S, read_stat
from tpmon.probe.job.job import now_ticks

PYTHON = "/usr/bin/python3.11"
PACKAGES = "/venv/lib/python3.11/site-packages"
BASH = ("/bin/bash",)


class FakeProc:
    """Hold a fake /proc; processes are older the smaller their PID."""

    def __init__(self, root: Path) -> None:
        self.path = root
        self.proc = str(root)
        self.now = now_ticks()
        self._parents: dict[int, int] = {}
        root.mkdir(exist_ok=True)
        self.add(1, 0, ("/sbin/init",))

    def add(
        self,
        pid: int,
        parent: int,
        argv: Sequence[str] = (),
        *,
        name: str = "",
        environ: Mapping[str, str] | None = None,
        exe: str = "",
        torch: bool = False,
        threads: Sequence[str] = (),
        state: str = "S",
        kernel: bool = False,
        uid: int | None = None,
        inside: Sequence[int] = (),
        start: int | None = None,
        devices: Sequence[str] = (),
        network: str = "net:[4026531840]",
        wait_status: int = 0,
    ) -> None:
        """Add a process; an ``argv`` that starts with "python" becomes an interpreter's."""
        argv = (PYTHON, *argv[1:]) if argv and argv[0] == "python" else tuple(argv)
        exe = exe or (argv[0].lstrip("-") if argv else "")
        name = (name or os.path.basename(argv[0] if argv else "ghost"))[:15]
        folder = self.path / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "fd").mkdir()
        (folder / "ns").mkdir()
        (folder / "ns" / "net").symlink_to(network)
        start = self.now - 1_000_000 + pid if start is None else start
        told = {"state": state, "threads": len(threads) + 1, "kernel": kernel, "wait_status": wait_status}
        self.write_stat(pid, parent, name, start=start, **told)
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
        (folder / "environ").write_bytes(
            b"".join(f"{key}={value}\0".encode() for key, value in (environ or {}).items())
        )
        if exe:
            (folder / "exe").symlink_to(exe)
        maps = f"55d0-55d1 r-xp 0 08:01 1    {exe}\n"
        if torch:
            maps += f"7f00-7f01 r-xp 0 08:01 2    {PACKAGES}/torch/lib/libtorch_cpu.so\n"
        (folder / "maps").write_text(maps)
        pids = " ".join(map(str, (pid, *inside)))
        user = os.geteuid() if uid is None else uid
        (folder / "status").write_text(
            f"Name:\t{name}\nTgid:\t{pid}\nPid:\t{pid}\nUid:\t{user}\t{user}\t{user}\t{user}\nNSpid:\t{pids}\n"
        )
        (folder / "task" / str(pid) / "comm").write_text(f"{name}\n")
        for number, thread in enumerate(threads):
            (folder / "task" / str(pid * 100 + number)).mkdir()
            (folder / "task" / str(pid * 100 + number) / "comm").write_text(f"{thread}\n")
        for number, device in enumerate(devices):
            (folder / "fd" / str(number)).symlink_to(device)
        self._parents[pid] = parent
        self._write_children(pid)
        self._write_children(parent)

    def write_stat(
        self,
        pid: int,
        parent: int,
        name: str,
        *,
        state: str = "S",
        threads: int = 1,
        start: int,
        kernel: bool = False,
        wait_status: int = 0,
        cpu_s: float = 0.0,
    ) -> None:
        """Write the stat line anew, as after exec, a new thread, or a new parent."""
        times = [*[0] * 4, int(cpu_s * TICKS_PER_S), *[0] * 5]
        fields = [state, parent, 0, 0, 0, -1, 0x00200000 if kernel else 0, *times, threads, 0, start]
        fields += [0] * 29 + [wait_status]
        (self.path / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")

    def spend(self, pid: int, cpu_s: float) -> None:
        """Let a process have used so much CPU time since its start."""
        stat = read_stat(pid, self.proc)
        told = {"state": stat.state, "threads": stat.threads, "start": stat.start_ticks, "cpu_s": cpu_s}
        self.write_stat(pid, stat.parent, stat.name, **told)

    def remove(self, pid: int) -> None:
        """Let a process be gone; its children go to PID 1."""
        shutil.rmtree(self.path / str(pid))
        parent = self._parents.pop(pid)
        self._write_children(parent)

    def add_torchrun(self, pid: int, parent: int = 1, *, ranks: int = 2, workers: int = 2, first: int = 0) -> None:
        """Add a launcher with ranks pid+1... and their workers pid+10*(rank+1)...; world size 4 at most."""
        self.add(pid, parent, ("python", "/venv/bin/torchrun", "train.py"), name="pt_elastic", torch=True)
        for local in range(ranks):
            rank = pid + 1 + local
            place = {"RANK": str(first + local), "LOCAL_RANK": str(local), "WORLD_SIZE": str(max(ranks, 4))}
            self.add(rank, pid, ("python", "-u", "train.py"), environ=place, torch=True)
            for number in range(workers):
                worker = pid + 10 * (local + 1) + number
                argv = ("python", "-u", "train.py")
                self.add(worker, rank, argv, name="pt_data_worker", environ=place, torch=True)

    def _write_children(self, pid: int) -> None:
        path = self.path / str(pid) / "task" / str(pid) / "children"
        if path.parent.is_dir():
            children = sorted(child for child, parent in self._parents.items() if parent == pid)
            path.write_text("".join(f"{child} " for child in children))
