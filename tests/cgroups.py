"""Build a machine with control groups out of files."""

from pathlib import Path

from tpmon.probe.host.cgroup import CgroupReader, read_cpu_budget

SECOND = 1_000_000_000
LEFT = "36 31 0:29 {root} {point} rw,relatime - {kind} {kind} rw,{controllers}\n"


class Tree:
    """A machine made of files: processes with their groups, and cgroup mounts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.proc = str(path / "proc")
        (path / "proc" / "self").mkdir(parents=True)
        (path / "proc" / "self" / "mountinfo").write_text("22 27 0:21 / /proc rw - proc proc rw\n")

    def mount(self, name: str, controllers: str, root: str = "/", version: int = 1) -> None:
        kind = "cgroup" if version == 1 else "cgroup2"
        (self.path / name).mkdir(parents=True, exist_ok=True)
        line = LEFT.format(root=root, point=self.path / name, kind=kind, controllers=controllers)
        with (self.path / "proc/self/mountinfo").open("a") as file:
            file.write(line)

    def process(self, pid: int, groups: str, state: str = "S") -> None:
        directory = self.path / "proc" / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "cgroup").write_text(groups)
        (directory / "stat").write_text(f"{pid} (a) b) {state} 1 1")

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def v1_quota(self, directory: str, quota: int) -> None:
        self.write(f"{directory}/cpu.cfs_quota_us", f"{quota}\n")
        self.write(f"{directory}/cpu.cfs_period_us", "100000\n")

    def budget(self, *pids: int, cpus: int = 64):
        return read_cpu_budget(pids, self.proc, lambda pid: set(range(cpus)))


def two_reads(tree: Tree, pids, change=lambda: None):
    reader = CgroupReader(pids, tree.proc)
    reader.read(5 * SECOND)
    change()
    reading = reader.read(6 * SECOND)
    reader.close()
    return reading
