"""Agents on two hosts of a job that hangs: the rank is named with its host and line, and no agent is left."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from datetime import datetime

import pytest

from tests.command_line import TPMON, call, start
from tests.fleet import bed
from tests.nobody import WITHOUT_PTRACE, needs_setpriv
from tests.waiting import wait_until
from tpmon import __version__
from tpmon.fleet.bundle import start_fleet_bundle
from tpmon.fleet.launch import AgentLaunch
from tpmon.fleet.line import Joiner
from tpmon.fleet.loop import Fleet
from tpmon.fleet.messages import Verb, VerbName, decode_message, write_verb
from tpmon.model.codec import decode
from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.results.fleet import FleetReport, Hello, NodeDump, NodeSample, NodeState, NodeSummary
from tpmon.model.verdict import EXIT_CODES, Kind
from tpmon.record.recording import Recording

AGENTS_PER_NODE = 2
"""The one that works, and the one that waits for it."""
LOCK = "rank_hang.py:34"
NAMED_S = 45.0
GONE_S = 15.0


@pytest.fixture(scope="module")
def hosts():
    with bed.make_hosts("n1", "n2") as made:
        yield made


@pytest.fixture(scope="module")
def fleet(hosts, tmp_path_factory):
    """Start a rank on each host, the one on n2 in a lock; return the words that watch them."""
    folder = tmp_path_factory.mktemp("fleet")
    reach = ("fleet", "--hosts", "n1,n2", "--exec", bed.write_entry(hosts, folder), "--agent", " ".join(TPMON))
    with bed.hang_on(hosts, folder):
        yield reach


@pytest.mark.long
def test_a_hang_is_named_with_host_rank_and_line_and_recorded_and_no_agent_is_left(fleet, hosts, tmp_path):
    folder = tmp_path / "all"
    done = call(*fleet, "--json", "--until", "hung", "--record", str(folder), code=EXIT_CODES[Kind.HUNG])
    report = json.loads(done.stdout)
    verdict = report["verdict"]
    assert (report["node"], verdict["rank"], verdict["kind"]) == ("n2", 1, "hung")
    assert LOCK in verdict["summary"]
    assert report["schema"] == "tpmon.fleet/1"
    assert [(one["node"], one["state"], one["host"]) for one in report["nodes"]] == [
        ("n1", "live", "n1"),
        ("n2", "live", "n2"),
    ]
    stood_s = datetime.fromisoformat(report["taken"]) - datetime.fromisoformat(verdict["since"])
    assert 30 <= stood_s.total_seconds() <= NAMED_S
    bed.await_agents(hosts, [0])
    for node, rank in (("n1", 0), ("n2", 1)):
        with Recording(str(folder / f"{node}.tpmon")) as recording:
            assert recording.count_frames() > 20
            frame = recording.frame(recording.last.n)
            assert [row.rank for row in frame.ranks] == [rank]
            assert is_known(frame.verdict)
            assert recording.dump_near(recording.last.n).dump.host == "n1, n2"
            assert LOCK in recording.dump_near(recording.last.n).dump.verdict.summary
    last = decode(FleetReport, (folder / "fleet.jsonl").read_text().splitlines()[-1])
    assert (last.node, last.verdict.kind) == ("n2", Kind.HUNG)


@pytest.mark.long
def test_a_bundle_of_all_nodes_names_the_rank_in_its_stacks(fleet, hosts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = fleet[fleet.index("--exec") + 1].split()[0]
    watched = Fleet([AgentLaunch((entry, name, *TPMON, "agent", "--node", name), (name,)) for name in hosts])
    reports, said = list[FleetReport](), list[str]()
    watched.start(lambda report: reports.append(report) or False, lambda error: said.append(str(error)))
    try:
        live = lambda: reports and all(one.state is NodeState.LIVE for one in reports[-1].nodes)  # noqa: E731
        assert wait_until(live, 60.0)
        start_fleet_bundle(watched, lambda: reports[-1], said.append)
        assert wait_until(lambda: said, 90.0)
    finally:
        watched.stop(30.0)
    (made,) = tmp_path.iterdir()
    assert (said[0].split()[:2], "not in it" in said[0]) == (["bundle", made.name], False)
    assert LOCK in (made / "dump.txt").read_text()
    assert [json.loads((made / f"frame-{node}.json").read_text())["ranks"][0]["rank"] for node in hosts] == [0, 1]
    bed.await_agents(hosts, [0])


def test_nodes_and_their_states_are_shown_at_once_also_those_that_are_not_there(fleet, hosts):
    reach = [word.replace("n1,n2", "n1,n2,n3") for word in fleet]
    done = call(*reach, "--once", code=0)
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith(" n")}
    assert [rows[name].split()[1] for name in ("n1", "n2", "n3")] == ["live", "live", "refused"]
    assert "no host n3" in done.stdout
    assert "2 of 3 nodes, 2 of 2 ranks" in done.stdout
    assert "\x1b" not in done.stdout


def reach_by(fleet, *words: str) -> list[str]:
    """Return the words that watch the hosts, each agent started behind others."""
    return [f"{word} {' '.join(words)}" if "{host}" in word else word for word in fleet]


def test_a_full_disk_keeps_no_agent_from_its_work(fleet, hosts, tmp_path):
    for host in hosts.values():
        bed.run(*host.enter("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(tmp_path)))
        bed.run(*host.enter("sh", "-c", f"printf %4096s > {tmp_path}/all; ! echo more > {tmp_path}/more"))
    places = [f"{name}={tmp_path}" for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")]
    done = call(*reach_by(fleet, "env", *places), "--once", code=0)
    assert "2 of 2 nodes, 2 of 2 ranks" in done.stdout


def test_an_agent_of_another_version_is_left_out(fleet):
    other = shlex.join(
        (sys.executable, "-c", "import tpmon; tpmon.__version__ = '0.0.1'; from tpmon.cli import main; main()")
    )
    done = call(*fleet[:-1], other, "--once", code=0)
    why = f"tpmon 0.0.1 there, {__version__} here"
    assert done.stdout.count(why) == 3, "a row of each node, and why there is no verdict"
    assert f"no node tells of the job so far: n1: {why}" in " ".join(done.stdout.split())
    assert "0 of 2 nodes" in done.stdout


@needs_setpriv
def test_an_agent_that_may_not_read_the_stacks_says_so(fleet):
    done = call(*reach_by(fleet, *WITHOUT_PTRACE), "--once", code=0)
    assert "(stacks: not permitted" in " ".join(done.stdout.split())


def test_a_killed_head_leaves_no_agent(fleet, hosts):
    head = start(*fleet, "--plain", start_new_session=True)
    bed.await_agents(hosts, [2 * AGENTS_PER_NODE])
    os.killpg(head.pid, signal.SIGKILL)
    head.communicate()
    assert bed.await_agents(hosts, [0], GONE_S) < GONE_S


def test_a_stopped_agent_is_late_and_the_other_node_goes_on(fleet, hosts):
    head = start(*fleet, "--json", start_new_session=True)
    try:
        bed.await_agents(hosts, [2 * AGENTS_PER_NODE])
        assert wait_until(lambda: states(head) == {"n1": "live", "n2": "live"}, 60.0)
        stopped = hosts["n1"].list_agents()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert wait_until(lambda: states(head) == {"n1": "late", "n2": "live"}, 60.0)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert wait_until(lambda: states(head) == {"n1": "live", "n2": "live"}, 60.0)
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        head.communicate()
    bed.await_agents(hosts, [0])


def states(head: subprocess.Popen[str]) -> dict[str, str]:
    report = json.loads(head.stdout.readline())
    return {one["node"]: one["state"] for one in report["nodes"]}


class Talk:
    """Talk to one agent by hand."""

    def __init__(self, host: bed.Host) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.agent = subprocess.Popen(host.enter(*TPMON, "agent", "--node", "me"), cwd="/", **pipes)
        self.joiner = Joiner(["me"])
        os.set_blocking(self.agent.stdout.fileno(), False)
        self.heard: list[object] = []

    def ask(self, verb: Verb) -> None:
        self.agent.stdin.write(write_verb(verb, "me"))
        self.agent.stdin.flush()

    def await_one(self, kind: type, seconds: float = 60.0):
        """Wait for a message of a kind that was not waited for so far."""

        def come() -> bool:
            self.ask(Verb(VerbName.PING))
            data = self.agent.stdout.read() or b""
            self.heard += [decode_message(one.message) for one in self.joiner.add(data)]
            return any(isinstance(one, kind) for one in self.heard)

        assert wait_until(come, seconds, 0.1), kind
        found = next(one for one in self.heard if isinstance(one, kind))
        self.heard.remove(found)
        return found


def test_an_agent_does_what_it_is_asked(fleet, hosts):
    talk = Talk(hosts["n2"])
    try:
        hello = talk.await_one(Hello)
        assert (hello.version, hello.host) == (__version__, "n2")
        summary = talk.await_one(NodeSummary)
        assert [one.rank for one in summary.ranks] == [1]
        assert summary.world_size == 2
        assert not any(isinstance(one, Frame) for one in talk.heard)
        talk.ask(Verb(VerbName.FULL, 1, 1))
        assert talk.await_one(Frame).target.pid == summary.pid
        talk.ask(Verb(VerbName.FULL, 2, 0))
        talk.ask(Verb(VerbName.DUMP, 3))
        answer = talk.await_one(NodeDump)
        assert answer.request == 3
        assert is_known(answer.dump)
        assert any(LOCK.partition(":")[0] in frame.file for group in answer.dump.groups for frame in group.frames)
        talk.ask(Verb(VerbName.ROUNDS, 4, 2, 1.0))
        answer = talk.await_one(NodeDump)
        assert (answer.request, answer.dump.rounds) == (4, 2)
        talk.ask(Verb(VerbName.SAMPLE, 5, 1, 1.0))
        sample = talk.await_one(NodeSample)
        assert (sample.request, is_known(sample.hot)) == (5, True)
        assert talk.joiner.torn == 0
        talk.ask(Verb(VerbName.BYE))
        assert talk.agent.wait(30) == 0
    finally:
        talk.agent.kill()
        talk.agent.communicate()


def test_an_agent_that_nobody_asks_for_ten_seconds_ends(fleet, hosts):
    talk = Talk(hosts["n1"])
    try:
        talk.await_one(Hello)
        assert talk.agent.wait(60) == 0  # its pipe stays open: srun keeps that of a head that was killed
    finally:
        talk.agent.kill()
        talk.agent.communicate()


def test_a_node_without_a_job_and_one_without_tpmon_are_rows(tmp_path):
    with bed.make_hosts("empty") as made:
        entry = bed.write_entry(made, tmp_path)
        done = call("fleet", "--hosts", "empty", "--exec", entry, "--agent", " ".join(TPMON), "--once", code=0)
        assert "no job" in done.stdout
        assert "no training job on this machine" in done.stdout
        done = call("fleet", "--hosts", "empty", "--exec", entry, "--agent", "/no/such/tpmon", "--check")
        assert done.returncode == EXIT_CODES[Kind.NOT_ENOUGH_EVIDENCE]


@pytest.mark.long
def test_two_hosts_of_one_name_stay_apart(tmp_path):
    with bed.make_hosts("a", "b", network=True) as made, bed.hang_on(made, tmp_path):
        for host in made.values():
            bed.run(*host.enter("hostname", "localhost"))
        reach = ("--hosts", "a,b", "--exec", bed.write_entry(made, tmp_path), "--agent", " ".join(TPMON))
        done = call("fleet", *reach, "--json", "--until", "hung", code=EXIT_CODES[Kind.HUNG])
    report = json.loads(done.stdout)
    told = [(one["node"], one["host"], one["summary"]["ranks"][0]["rank"]) for one in report["nodes"]]
    assert told == [("a", "localhost", 0), ("b", "localhost", 1)]
    assert (report["node"], report["verdict"]["rank"]) == ("b", 1)
    assert report["verdict"]["summary"].startswith("b: ")
    assert "# on b;" in report["verdict"]["try"]


STEADY_S = 90.0


@pytest.mark.long
@pytest.mark.parametrize("bottleneck", ["straggler", "none"])
def test_a_late_rank_is_named_and_none_of_a_job_that_runs(bottleneck, tmp_path):
    with bed.make_hosts("n1", "n2") as made, bed.train_on(made, bottleneck):
        reach = ("fleet", "--hosts", "n1,n2", "--exec", bed.write_entry(made, tmp_path), "--agent", " ".join(TPMON))
        head = start(*reach, "--json", start_new_session=True)
        reports, end_s = [], time.monotonic() + STEADY_S
        try:
            while time.monotonic() < end_s and not any(is_late(one) for one in reports[-1:]):
                reports.append(json.loads(head.stdout.readline()))
        finally:
            os.killpg(head.pid, signal.SIGTERM)
            head.communicate()
        assert not any(one["verdict"].get("kind") == "hung" for one in reports)
        last = reports[-1]
        if bottleneck == "none":
            assert not any(map(is_late, reports))
            assert [one["state"] for one in last["nodes"]] == ["live", "live"]
        else:
            assert (last["node"], last["verdict"]["rank"]) == ("n2", 1), last["verdict"]
        bed.await_agents(made, [0])


def is_late(report) -> bool:
    return report["verdict"].get("cause") == "straggler"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--hosts=-oProxyCommand=x",), "no name of a host"),
        (("--hosts", ","), "no node to watch"),
        (("--hosts", "n[1-5000]"), "5000 hosts"),
        (("--hosts", "n[1-300]"), "300 nodes"),
        (("--hosts", "a", "--exec", "true"), "{host}"),
        (("--hosts", "a", "--exec", "no-such-program {host}"), "no program"),
        (("--hosts", "a", "--until", "tired"), "no kind of verdict"),
        (("--hosts", "a", "--until", "hung", "--once"), "exclude each other"),
    ],
)
def test_bad_arguments_start_nothing(arguments, said):
    done = call("fleet", *arguments, code=2)
    assert said in done.stderr
    assert "Try: " in done.stderr


def test_outside_an_allocation_it_asks_which_nodes():
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    done = call("fleet", code=2, env=env)
    assert "which nodes?" in done.stderr
