"""Agents over real launchers: Slurm and sshd on hosts of their own network, and a stand-in for kubectl."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.command_line import TPMON, call, start
from tests.fleet import bed
from tests.fleet.test_agents import LOCK
from tpmon.errors import ExitCode
from tpmon.model.verdict import EXIT_CODES, Kind

GONE_S = 15.0
NAMED_S = 3 * 45.0
AGENT = " ".join(TPMON)
ALL_LIVE = {"n1": "live", "n2": "live", "n3": "live"}


@pytest.fixture(scope="module")
def hosts():
    bed.require("ip", "slurmd", "slurmctld", "munged", "srun", "sshd", "ssh", "ssh-keygen")
    with bed.make_hosts("n1", "n2", "n3", network=True) as made:
        yield made


@pytest.fixture(scope="module")
def slurm(hosts, tmp_path_factory):
    with bed.run_slurm(hosts, tmp_path_factory.mktemp("slurm")) as env:
        yield env


@pytest.fixture(scope="module")
def job(slurm, hosts, tmp_path_factory):
    """Run a job with a rank on each host: the one on n2 waits for a lock, the others for it."""
    folder = tmp_path_factory.mktemp("job")
    with bed.run_job(slurm, hosts, bed.write_hang(folder, hosts), folder / "job.log") as number:
        yield folder, number


@pytest.fixture(scope="module")
def number(job, hosts):
    """Return the number of the job, once it hangs."""
    folder, number = job
    bed.await_hang(folder, len(hosts))
    return number


@pytest.fixture(scope="module")
def watch(job, slurm, hosts):
    """Watch the job from its start until it is said to hang, while other tests run."""
    words = ("fleet", "--slurm", job[1], "--agent", AGENT, "--json", "--until", "hung")
    head = start(*words, env=slurm, start_new_session=True)
    yield head
    with suppress(ProcessLookupError):
        os.killpg(head.pid, signal.SIGKILL)
    head.communicate()


@pytest.fixture(scope="module")
def ssh(hosts, tmp_path_factory):
    """Return the environment of who reaches the hosts by ssh, and the folder of its key."""
    folder = tmp_path_factory.mktemp("ssh")
    bed.write_ssh(hosts, folder)
    return {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}, folder


def read_states(text: str) -> dict[str, str]:
    return {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith(" n")}


def test_hosts_are_reached_by_the_users_own_ssh(watch, number, ssh):
    done = call("fleet", "--hosts", "n[1-4]", "--agent", AGENT, "--once", env=ssh[0], code=0)
    assert read_states(done.stdout) == {**ALL_LIVE, "n4": "refused"}
    assert "Could not resolve hostname n4" in done.stdout
    assert "3 of 4 nodes, 3 of 3 ranks" in done.stdout


def test_a_hang_of_a_job_of_slurm_is_named_with_host_rank_and_line(watch, number, hosts, sampling_works):
    output, errors = watch.communicate(timeout=NAMED_S)
    assert watch.returncode == EXIT_CODES[Kind.HUNG], errors
    report = json.loads(output)
    verdict = report["verdict"]
    assert (report["node"], verdict["rank"], verdict["kind"]) == ("n2", 1, "hung")
    assert LOCK in verdict["summary"]
    assert {one["node"]: one["state"] for one in report["nodes"]} == ALL_LIVE
    assert sum(one["torn"] for one in report["nodes"]) == 0
    bed.await_agents(hosts, [0])


@pytest.mark.long
def test_a_hang_that_no_node_alone_can_tell_is_told_of_a_job_of_slurm(slurm, hosts, tmp_path):
    command = bed.write_hang(tmp_path, hosts, "--record", "none", "--fault", "mismatch")
    with bed.run_job(slurm, hosts, command, tmp_path / "job.log") as number:
        done = call("fleet", "--slurm", number, "--agent", AGENT, "--json", "--until", "hung", env=slurm, code=12)
    report = json.loads(done.stdout)
    assert (report["verdict"]["kind"], report["verdict"]["cause"]) == ("hung", "missing-rank")
    assert "different collectives" in report["verdict"]["summary"]
    assert report["dump"]["host"] == "n1, n2, n3"
    bed.await_agents(hosts, [0])


@pytest.mark.long
def test_a_killed_rank_is_a_failed_job_though_the_step_of_its_node_exits_with_0(slurm, hosts, tmp_path):
    with bed.run_job(slurm, hosts, bed.write_hang(tmp_path, hosts), tmp_path / "job.log"):
        bed.await_hang(tmp_path, len(hosts))
        own = f"rank_hang.py --ready {tmp_path}/"  # the job of the whole file hangs beside it
        pid = bed.run(*hosts["n2"].enter("pgrep", "-o", "-f", f"^{sys.executable} .*{own}")).strip()
        command = hosts["n2"].enter(*TPMON, "attach", pid, "--plain")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watch:
            assert "attached: " in watch.stdout.readline()
            bed.run(*hosts["n2"].enter("pkill", "-KILL", "-f", own))
            said = watch.stdout.read()
    assert "launcher srun step" in said
    assert "ended: the job ended: rank 1 (" in said
    assert "verdict: idle (failed)" in said


@pytest.mark.long
def test_within_an_allocation_its_nodes_are_watched(number, slurm):
    done = call("fleet", "--agent", AGENT, "--once", env={**slurm, "SLURM_JOB_ID": number}, code=0)
    assert read_states(done.stdout) == ALL_LIVE


@pytest.mark.long
def test_a_killed_head_leaves_no_step_of_slurm(number, slurm, hosts):
    head = start("fleet", "--slurm", number, "--agent", AGENT, "--plain", env=slurm, start_new_session=True)
    bed.await_agents(hosts, [6])
    os.killpg(head.pid, signal.SIGKILL)
    head.communicate()
    assert bed.await_agents(hosts, [0], GONE_S) < GONE_S


@pytest.mark.long
@pytest.mark.parametrize("other", ["999999", "-x"])
def test_a_job_that_is_not_there_is_refused(other, slurm):
    done = call("fleet", f"--slurm={other}", env=slurm)
    assert done.returncode in (ExitCode.NO_TARGET, ExitCode.USAGE)
    assert done.stderr.count("\n") == 2


@pytest.mark.long
def test_whom_ssh_does_not_let_in_is_refused(number, ssh):
    env, folder = ssh
    (folder / "user_key").write_text("no key\n")
    done = call("fleet", "--hosts", "n1", "--agent", AGENT, "--check", env=env)
    assert done.returncode == EXIT_CODES[Kind.NOT_ENOUGH_EVIDENCE]
    done = call("fleet", "--hosts", "n1", "--agent", AGENT, env=env, code=ExitCode.NO_TARGET)
    assert "refused, root@10." in done.stdout
    assert "Permission denied (publickey" in done.stdout


KUBECTL = """\
#!/bin/sh
if [ "$1" = get ]; then
  echo "$@" > {folder}/asked
  echo pod/n1; echo pod/n2
  exit 0
fi
[ "$1 $2" = "exec -i" ] && [ "$4 $5 $6 $7 $8" = "-n team -c trainer --" ] || exit 64
pod=$3; shift 8
{enter}
"""


@pytest.mark.long
def test_pods_are_reached_by_a_program_named_kubectl(number, hosts, tmp_path):
    """By contract alone: no cluster was there."""
    enter = "\n".join(f'[ $pod = {name} ] && exec {" ".join(host.enter())} "$@"' for name, host in hosts.items())
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL.format(folder=tmp_path, enter=enter))
    kubectl.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ("fleet", "--pods", "app=train", "-n", "team", "-c", "trainer", "--agent", AGENT, "--once")
    done = call(*words, env=env, code=0)
    assert read_states(done.stdout) == {"n1": "live", "n2": "live"}
    asked = (tmp_path / "asked").read_text()
    assert asked == "get pods -n team -l app=train --field-selector=status.phase=Running -o name\n"
