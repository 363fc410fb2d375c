"""What breaks between machines: a link that loses packets, a host cut off, any part stopped or killed.

By real ssh and Slurm, on hosts of their own network: the other node goes on, and what was lost comes back by itself.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import TPMON, call
from tests.fleet import bed
from tests.fleet.kills import KILLED_AT_S, kill_head
from tests.fleet.rough_link import cut_off, roughen
from tests.fleet.test_head import watch as watch_head
from tests.fleet.watching import watching
from tests.waiting import wait_until
from tpmon.fleet.head import LATE_S, FleetHead
from tpmon.fleet.launch import Place, Way, plan_launches
from tpmon.fleet.ship import pack_parcel
from tpmon.model.results.fleet import NodeState
from tpmon.view.fleet.nodes import SKEW_S

pytestmark = pytest.mark.long

AGENT = ("--agent", " ".join(TPMON))
BOTH = {"n1": "live", "n2": "live"}
NAMED_S = 3 * 45.0
GONE_S = 15.0
CUT_S = 30.0
BACK_S = 150.0
"""Nothing waits it out: a link that is back, a pause before the next try, a start on a busy machine."""


@pytest.fixture(scope="module")
def hosts():
    bed.require("ip", "slurmd", "slurmctld", "munged", "srun", "sshd", "ssh", "ssh-keygen")
    with bed.make_hosts("n1", "n2", network=True) as made:
        yield made


@pytest.fixture(scope="module")
def ways(hosts, tmp_path_factory):
    """Run a job that hangs; return for each launcher the words and the environment that watch it."""
    folder, beside = tmp_path_factory.mktemp("slurm"), tmp_path_factory.mktemp("ssh")
    bed.write_ssh(hosts, beside)
    ssh = {**os.environ, "PATH": f"{beside}/bin:{os.environ['PATH']}"}
    command, log = bed.write_hang(folder, hosts), folder / "job.log"
    with bed.run_slurm(hosts, folder) as slurm, bed.run_job(slurm, hosts, command, log) as number:
        bed.await_hang(folder, len(hosts))
        yield {"srun": (("--slurm", number, *AGENT), slurm), "ssh": (("--hosts", "n1,n2", *AGENT), ssh)}


@pytest.fixture(params=["ssh", "srun"])
def way(request, ways):
    return ways[request.param]


@pytest.fixture
def watch(way, hosts):
    """Watch the job by one launcher, once each node is live."""
    words, env = way
    with watching(*words, env=env) as watch:
        watch.await_states(**BOTH)
        yield watch
    bed.await_agents(hosts, [0])


def test_a_slow_link_that_loses_packets_neither_hides_a_hang_nor_tears_a_message(tmp_path):
    """200 ms each way, and 5 % of the packets each way are lost."""
    bed.require("ip", "sshd", "ssh", "ssh-keygen")
    if not Path("/dev/net/tun").exists():
        pytest.skip("NO SLOW LINK WAS TRIED: there is no /dev/net/tun")
    with bed.make_hosts("n1", "n2", network=True) as made:
        bed.write_ssh(made, tmp_path)
        env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        with (
            bed.hang_on(made, tmp_path),
            roughen(made["n2"], delay_s=0.2, loss=0.05),
            watching("--hosts", "n1,n2", *AGENT, env=env) as watch,
        ):
            watch.await_states(BACK_S, **BOTH)  # ssh asks and answers ten times before
            report = watch.await_report(lambda one: one["verdict"].get("kind") == "hung", NAMED_S)
            assert (report["node"], report["verdict"]["rank"]) == ("n2", 1)
            rows = [one for report in watch.reports for one in report["nodes"]]
            assert sum(one["torn"] for one in rows) == 0
            assert all(one["age_s"] > LATE_S for one in rows if one["state"] == "late")
            assert {one["state"] for one in rows} <= {"starting", "live", "late"}
            assert abs(watch.row("n2")["clock_skew_s"]) < SKEW_S


def test_a_host_that_was_cut_off_is_late_and_comes_back_by_itself(watch, hosts):
    with cut_off(hosts["n2"]):
        begun_s = time.monotonic()
        watch.await_states(n1="live", n2="late")
        assert time.monotonic() - begun_s >= LATE_S - 1.0  # the last second was on its way
        time.sleep(max(0.0, CUT_S - (time.monotonic() - begun_s)))
        assert watch.states()["n1"] == "live"
        assert watch.states()["n2"] != "live"
    watch.await_states(BACK_S, **BOTH)


def test_an_agent_that_was_killed_and_one_that_was_stopped_are_started_again(watch, hosts):
    killed, stopped = hosts["n1"].list_agents(), hosts["n2"].list_agents()
    try:
        bed.signal_all(killed, signal.SIGKILL)
        bed.signal_all(stopped, signal.SIGSTOP)
        assert wait_until(lambda: set(watch.states().values()) <= {"late", "gone"}, 60.0, 0.1)
        watch.await_states(BACK_S, **BOTH)
    finally:
        bed.signal_all(stopped, signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_launcher_that_was_killed_or_stopped_is_started_again(watch, hosts, number):
    struck = list(list_launchers(watch.head.pid))
    assert struck
    try:
        bed.signal_all(struck, number)
        assert wait_until(lambda: set(watch.states().values()) <= {"late", "gone"}, 60.0, 0.1)
        bed.await_agents(hosts, [0])  # they hear nobody
        watch.await_states(BACK_S, **BOTH)
    finally:
        bed.signal_all(struck, signal.SIGCONT)


def test_a_head_that_was_stopped_starts_its_agents_again(watch, hosts):
    os.killpg(watch.head.pid, signal.SIGSTOP)
    try:
        assert bed.await_agents(hosts, [0], GONE_S) < GONE_S
    finally:
        os.killpg(watch.head.pid, signal.SIGCONT)
    seen = len(watch.reports)
    assert wait_until(lambda: len(watch.reports) > seen + 2, 60.0, 0.1)
    watch.await_states(BACK_S, **BOTH)


@pytest.mark.parametrize("at_s", KILLED_AT_S)
def test_a_head_that_is_killed_at_any_moment_leaves_no_agent(way, hosts, at_s):
    words, env = way
    assert kill_head(hosts, words, env, at_s) < GONE_S


def list_launchers(pid: int) -> Iterator[int]:
    """Find srun or ssh among the descendants of a head."""
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        if Path(f"/proc/{child}/comm").read_text().strip() in ("srun", "ssh"):
            yield child
        yield from list_launchers(child)


HIDE = """\
mount -t tmpfs tmpfs {folder} && mkdir {folder}/upper {folder}/work &&
mount -t overlay overlay -o lowerdir=/usr/bin,upperdir={folder}/upper,workdir={folder}/work /usr/bin &&
rm -f /usr/bin/python3* && mount -t tmpfs tmpfs {home}
"""


def test_a_node_without_python_is_refused_in_the_words_of_its_shell(tmp_path, monkeypatch):
    bed.require("ip", "sshd", "ssh", "ssh-keygen")
    file, folder = tmp_path / "tpmon.pyz", tmp_path / "hidden"
    file.write_text("it is not read")
    folder.mkdir()
    with bed.make_hosts("n1", network=True) as made:
        bed.write_ssh(made, tmp_path)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        done = call("fleet", "--hosts", "n1", "--once", code=0)
        assert "tpmon: command not found" in done.stdout
        # Of the shell's own files that find one elsewhere: an empty home.
        hidden = subprocess.run(
            made["n1"].enter("sh", "-c", HIDE.format(folder=folder, home=Path.home())), check=False, capture_output=True
        )
        if hidden.returncode:
            pytest.skip(f"NO NODE WITHOUT PYTHON WAS TRIED: {hidden.stderr!r}")
        parcel = pack_parcel(str(file))
        head = FleetHead(plan_launches(Place(Way.SSH), ("n1",), (*parcel.run, "agent"), parcel))
        try:
            assert watch_head(head, 0, NodeState.REFUSED).reason.endswith("python3: command not found")
        finally:
            head.close()
