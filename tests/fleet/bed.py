"""Hosts of one machine: namespaces with a name, PIDs and an address of their own; Slurm and sshd on them.

As on real machines each host sees its own processes alone, and two of them may have the same PID. A bridge
joins their networks. It is in a network of its own, so that nothing can be reached from outside, two runs do not
meet, and nothing is left of one that is killed. Whoever may not make namespaces, or has no slurmd or sshd, skips
these tests, and says so aloud.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
HANGS = ROOT / "tests" / "programs" / "rank_hang.py"
INIT = "hostname {name} && echo up && while :; do sleep 1000; done"
"""The first process of a host: a shell, which reaps what others leave."""
SPACES = ("--pid", "--mount", "--uts")
WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""What is started so ends with whoever started it, also where that one is killed."""
READY_S = 300.0
"""Processes that import torch on busy cores; nothing waits it out."""
BRIDGE = "hosts"
OWN_ADDRESS = "10.213.0.1"
CLONE_NEWNET = 0x40000000


def find_port() -> int:
    """Return a port where nobody listens now: hosts without a network of their own share this one.

    Each job has one of its own: another may go on beside it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_obstacle(*programs: str) -> str:
    """Return why no hosts can be made here, or none with these programs; empty where they can."""
    spaces = ("unshare", *SPACES, "--fork", "--mount-proc", "--net")
    if os.geteuid() or not _works(*spaces, "hostname", "n0"):
        return "only root may make the namespaces that stand for hosts, and not everywhere"
    missing = [name for name in programs if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    joins = "ip link add br0 type bridge && ip link add here0 type veth peer name there0"
    return (
        "" if "ip" not in programs or _works(*spaces, "sh", "-c", joins) else "no network can be made of bridges here"
    )


def _works(*command: str) -> bool:
    return (
        shutil.which(command[0]) is not None
        and not subprocess.run(command, check=False, capture_output=True).returncode
    )


def require(*programs: str) -> None:
    """Skip the test, aloud, where namespaces may not be made or a program is missing."""
    if why := find_obstacle(*programs):
        pytest.skip(f"NO FLEET WAS TRIED: {why}")


@contextmanager
def enter_own_network() -> Iterator[None]:
    """Give this thread, and all that it starts, a network of its own, with a bridge; then the old one again."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as before:
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network of its own")
        try:
            run("ip", "link", "set", "lo", "up")
            run("ip", "link", "add", BRIDGE, "type", "bridge")
            run("ip", "addr", "add", f"{OWN_ADDRESS}/24", "dev", BRIDGE)
            run("ip", "link", "set", BRIDGE, "up")
            yield
        finally:
            if libc.setns(before.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "the network of before is gone")


class Host:
    """One host: what is started on it sees its name, its PIDs and no others."""

    def __init__(self, name: str, address: str = "") -> None:
        self.name = name
        self.address = address
        self.link = f"to-{name}"
        self.spaces = (*SPACES, "--net") if address else SPACES
        command = [
            *WITH_US,
            "unshare",
            *self.spaces,
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            INIT.format(name=name),
        ]
        self._outer = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd="/")
        assert self._outer.stdout.readline() == b"up\n"
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text()
        (self.init,) = map(int, children.split())
        if address:
            self._join_bridge()

    def _join_bridge(self) -> None:
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", str(self.init))
        run("ip", "link", "set", self.link, "master", BRIDGE, "up")
        inside = f"ip link set lo up && ip addr add {self.address}/24 dev eth0 && ip link set eth0 up"
        run(*self.enter("sh", "-c", inside))

    def enter(self, *command: str) -> list[str]:
        """Return the command that runs a command on this host."""
        return ["nsenter", f"--target={self.init}", *self.spaces, "--", *command]

    def list_agents(self) -> list[int]:
        """Return the PIDs of agents on this host, as they are outside of it."""
        space, found = os.readlink(f"/proc/{self.init}/ns/pid"), []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if os.readlink(f"/proc/{pid}/ns/pid") == space and b"agent" in command:
                    found.append(int(pid))
        return found

    def end(self) -> None:
        self._outer.kill()
        self._outer.wait()
        self._outer.stdout.close()


Hosts = Mapping[str, Host]


def run(*command: str, **options: object) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@contextmanager
def make_hosts(*names: str, network: bool = False) -> Iterator[Hosts]:
    """Make hosts; all that runs on them ends with them."""
    require("ip") if network else require()
    with ExitStack() as stack:
        if network:
            stack.enter_context(enter_own_network())
        hosts: dict[str, Host] = {}
        for number, name in enumerate(names, 11):
            hosts[name] = Host(name, f"{OWN_ADDRESS[:-1]}{number}" if network else "")
            stack.callback(hosts[name].end)
        yield hosts


def write_entry(hosts: Hosts, folder: Path) -> str:
    """Write a program that runs a command on the host that it is told: what --exec calls."""
    path = folder / "enter"
    cases = "\n".join(f'{name}) shift; exec {" ".join(host.enter())} "$@";;' for name, host in hosts.items())
    path.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\nesac\necho "no host $1" >&2\nexit 255\n')
    path.chmod(0o755)
    return f"{path} {{host}}"


def describe_rank(rank: int, hosts: Hosts, port: int) -> dict[str, str]:
    """Return the environment of one rank, each on a host of its own."""
    address = next(iter(hosts.values())).address
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": address or "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "eth0" if address else "lo",
        "PYTHONPATH": str(ROOT),
    }


def write_hang(folder: Path, hosts: Hosts, *options: str) -> str:
    """Return the command of a rank that hangs, or waits for the one that does; PIDs are the same on many hosts."""
    for rank in range(len(hosts)):
        (folder / f"ready-{rank}").mkdir()
    return " ".join((sys.executable, str(HANGS), "--ready", f"{folder}/ready-$RANK", *options))


@contextmanager
def train_on(hosts: Hosts, bottleneck: str) -> Iterator[None]:
    """Start a rank of the demo training on each host; rank 1 is the slow one of a straggler."""
    ranks, port = [], find_port()
    command = [sys.executable, str(ROOT / "tpmon" / "demo" / "train.py"), "--bottleneck", bottleneck]
    try:
        for rank, host in enumerate(hosts.values()):
            env = describe_rank(rank, hosts, port)
            null = subprocess.DEVNULL
            # It ends when its standard input does.
            ranks.append(
                subprocess.Popen(
                    host.enter(*command), env=env, cwd="/", stdin=subprocess.PIPE, stdout=null, stderr=null
                )
            )
        yield
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@contextmanager
def start_ranks(hosts: Hosts, command: str, log: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a command of the shell on each host, as the rank that $RANK is there."""
    ranks, port = [], find_port()
    try:
        with log.open("ab") as output:
            for rank, host in enumerate(hosts.values()):
                words = host.enter(*WITH_US, "sh", "-c", f"exec {command}")
                env = describe_rank(rank, hosts, port)
                ranks.append(
                    subprocess.Popen(words, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output)
                )
        yield ranks
    finally:
        for one in ranks:
            one.kill()
            one.wait()


@contextmanager
def hang_on(hosts: Hosts, folder: Path, *options: str) -> Iterator[None]:
    """Start a rank of a job on each host, the second of which hangs; go on once it does."""
    with start_ranks(hosts, write_hang(folder, hosts, *options), folder / "ranks.log"):
        await_hang(folder, len(hosts))
        yield


def await_hang(folder: Path, ranks: int) -> None:
    """Wait until every rank has come to the step that hangs: a file of its PID in a folder of its own."""
    ready = wait_until(lambda: len(list(folder.glob("ready-*/[0-9]*"))) == ranks, READY_S, 0.1)
    assert ready, [path.read_text() for path in folder.glob("*.log")]


def signal_all(pids: Sequence[int], number: int) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def count_agents(hosts: Hosts) -> int:
    return sum(len(host.list_agents()) for host in hosts.values())


def write_ssh(hosts: Hosts, folder: Path) -> None:
    """Start an sshd on each host, and write the ssh that finds them: as the user's configuration would."""
    (folder / "run").mkdir()
    for name in ("host_key", "user_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nPermitRootLogin prohibit-password\nPidFile none\nPort 2222\n"
    )
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    known = "".join(f"[{host.address}]:2222 {key}\n" for host in hosts.values())
    (folder / "known_hosts").write_text(known)
    places = "".join(f"Host {name}\n  HostName {host.address}\n  Port 2222\n" for name, host in hosts.items())
    (folder / "ssh_config").write_text(
        f"{places}Host *\n  User root\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
    )
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir(exist_ok=True)
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    ssh.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd leaves its rights there
    for host in hosts.values():
        run(*host.enter("/usr/sbin/sshd", "-f", str(folder / "sshd_config")))


SLURM = """\
ClusterName=bed
SlurmctldHost={host}({address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort=6817
KillWait=2
SlurmdPort=26818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
"""


def start_slurmctld(control: Host, folder: Path, nodes: str) -> dict[str, str]:
    """Start what manages nodes, which slurm.conf describes so; return the environment of its clients."""
    with (folder / "munge.key").open("wb") as key:
        key.write(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    (folder / "state").mkdir()
    config = folder / "slurm.conf"
    config.write_text(SLURM.format(host=os.uname().nodename, address=OWN_ADDRESS, folder=folder) + nodes)
    env = {**os.environ, "SLURM_CONF": str(config), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    files = [
        f"--{what}={folder}/munge.{end}"
        for what, end in (
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("key-file", "key"),
            ("seed-file", "seed"),
        )
    ]
    run(*control.enter("/usr/sbin/munged", "--force", *files))
    run(*control.enter("/usr/sbin/slurmctld", "-f", str(config)), env=env)
    return env


def start_slurmd(host: Host, name: str, folder: Path, env: Mapping[str, str]) -> None:
    """Start what runs steps on a node."""
    (folder / f"spool-{name}").mkdir()
    run(*host.enter("/usr/sbin/slurmd", "-N", name), env=env)


def await_idle(count: int, env: Mapping[str, str]) -> None:
    """Wait until so many nodes are idle."""
    idle = ("sinfo", "--noheader", "--states=idle", "--format=%D")
    assert wait_until(lambda: run(*idle, env=env).strip() == str(count), 60.0, 0.3), "no node is idle"


@contextmanager
def run_slurm(hosts: Hosts, folder: Path) -> Iterator[dict[str, str]]:
    """Run Slurm over the hosts; yield the environment of its clients."""
    nodes = "".join(f"NodeName={name} NodeAddr={host.address} CPUs=2\n" for name, host in hosts.items())
    control = Host(os.uname().nodename)  # on this network, so that the daemons end with it
    try:
        try:
            env = start_slurmctld(
                control, folder, f"{nodes}PartitionName=all Nodes={','.join(hosts)} Default=YES State=UP\n"
            )
            for name, host in hosts.items():
                start_slurmd(host, name, folder, env)
            await_idle(len(hosts), env)
        except AssertionError as error:
            logs = "".join(path.read_text()[-300:] for path in folder.glob("*.log"))
            pytest.skip(f"NO FLEET WAS TRIED: Slurm does not run here: {error} {logs}")
        yield env
    finally:
        control.end()


@contextmanager
def run_job(slurm: Mapping[str, str], hosts: Hosts, command: str, log: Path) -> Iterator[str]:
    """Run a command of the shell as a job of Slurm with a rank on each host; yield its number."""
    own, size, nodes = describe_rank(0, hosts, find_port()), str(len(hosts)), ",".join(hosts)
    del own["RANK"]
    name = uuid.uuid4().hex  # the one before may still be ending on the same nodes
    where = ("-J", name, "-N", size, "-n", size, "-w", nodes)
    step = ["srun", *where, "sh", "-c", f"export RANK=$SLURM_PROCID; exec {command}"]
    with log.open("ab") as output:
        job = subprocess.Popen(
            [*WITH_US, *step],
            env={**own, "SLURM_CONF": slurm["SLURM_CONF"]},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    number = ""
    try:
        ask = ("squeue", "--noheader", "--format=%i", "--states=running", f"--name={name}")
        assert wait_until(lambda: bool(run(*ask, env=slurm).strip()), READY_S, 0.2), log.read_text()
        number = run(*ask, env=slurm).split()[0]
        yield number
    finally:
        if number:
            subprocess.run(["scancel", "--signal=KILL", number], env=slurm, check=False, timeout=60)
        with suppress(subprocess.TimeoutExpired):
            job.wait(20)
        job.kill()
        job.wait()


def await_agents(hosts: Hosts, wanted: Sequence[int], limit_s: float = 60.0) -> float:
    """Wait until as many agents run as is wanted; return how long it took, in seconds."""
    begun_s = time.monotonic()
    assert wait_until(lambda: count_agents(hosts) in wanted, limit_s, 0.1), count_agents(hosts)
    return time.monotonic() - begun_s
