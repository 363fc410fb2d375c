"""How agents are started: argument lists, names of hosts, what Slurm and kubectl say."""

import shlex

import pytest

from tests.command_line import read
from tpmon.commands.command import WatchOptions
from tpmon.commands.nodes.agent import AgentOptions
from tpmon.commands.nodes.fleet import FleetOptions, choose_place, write_agent
from tpmon.errors import NoTargetError, UsageError
from tpmon.fleet import launch
from tpmon.fleet.launch import (
    MOST_CONNECTIONS,
    AgentLaunch,
    Place,
    Way,
    check_programs,
    keep_environment,
    parse_hosts,
    parse_pods,
    parse_squeue,
    parse_template,
    plan_launches,
    read_pods,
    read_slurm_nodes,
)

AGENT = ("tpmon", "agent")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b, c", ["a", "b", "c"]),
        ("a,a", ["a"]),
        ("c[1-3]", ["c1", "c2", "c3"]),
        ("c[08-11]", ["c08", "c09", "c10", "c11"]),
        ("a,c[1-2,7]x,b", ["a", "c1x", "c2x", "c7x", "b"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("me@gpu-1.site.org", ["me@gpu-1.site.org"]),
        ("fe80::1%eth0", ["fe80::1%eth0"]),
        ("", []),
        (",,", []),
    ],
)
def test_sets_of_hosts_are_read(text, names):
    assert list(parse_hosts(text)) == names


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=touch x",
        "a,-l",
        "me@-oProxyCommand=x",
        "a b",
        "a;b",
        "$(x)",
        "a\nb",
        "c[1-",
        "c[3-1]",
        "c[x]",
        "c[1-999999999]",
        "c[1-99][1-99]",
        "c[]",
        "\x1b[2J",
        "ä",
        "a" * 200,
    ],
)
def test_what_is_no_host_is_refused_and_reaches_no_program(text):
    with pytest.raises(UsageError):
        parse_hosts(text)


def test_no_host_and_too_many_are_refused_with_the_number():
    with pytest.raises(UsageError, match="no node"):
        plan_launches(Place(Way.SSH), (), AGENT)
    many = tuple(f"n{number}" for number in range(5000))
    with pytest.raises(UsageError, match="5000 nodes"):
        plan_launches(Place(Way.SSH), many, AGENT)
    with pytest.raises(UsageError, match="5000 nodes"):
        plan_launches(Place(Way.SLURM, job="7"), many, AGENT)
    assert len(plan_launches(Place(Way.SSH), many[:MOST_CONNECTIONS], AGENT)) == MOST_CONNECTIONS


def test_a_name_that_a_program_would_take_for_an_option_is_refused_wherever_it_comes_from():
    for way in Way:
        with pytest.raises(UsageError, match="no name of a host"):
            plan_launches(Place(way, job="7", command=("x", "{host}")), ("-oProxyCommand=x",), AGENT)


def test_slurm_starts_one_step_for_all_nodes_and_never_without_a_buffer():
    (one,) = plan_launches(Place(Way.SLURM, job="77"), ("n1", "n2"), AGENT)
    assert one.nodes == ("n1", "n2")
    assert one.argv[0] == "srun"
    assert {"--jobid=77", "--overlap", "--nodelist=n1,n2", "--input=all", "--ntasks-per-node=1"} <= set(one.argv)
    assert "--unbuffered" not in one.argv
    assert one.argv[-2:] == AGENT


def test_nodes_of_a_step_that_fall_silent_get_a_step_of_their_own():
    (one,) = plan_launches(Place(Way.SLURM, job="77"), ("n1", "n2", "n3"), AGENT)
    own = one.again(("n2",))
    assert own.nodes == ("n2",)
    assert "--nodelist=n2" in own.argv
    assert own.argv[own.argv.index("-N") + 1] == "1"


def test_ssh_asks_no_password_and_leaves_all_else_to_the_users_configuration():
    one, other = plan_launches(Place(Way.SSH), ("me@a", "b"), ("/opt/my tpmon", "agent"))
    assert one == AgentLaunch(
        ("ssh", "-T", "-o", "BatchMode=yes", "--", "me@a", "'/opt/my tpmon' agent --node me@a"), ("me@a",)
    )
    assert other.argv[-2:] == ("b", "'/opt/my tpmon' agent --node b")


def test_kubectl_enters_a_container_of_each_pod():
    place = Place(Way.PODS, namespace="team", container="trainer")
    (one,) = plan_launches(place, ("train-0",), AGENT)
    assert shlex.join(one.argv) == "kubectl exec -i train-0 -n team -c trainer -- tpmon agent --node train-0"
    (bare,) = plan_launches(Place(Way.PODS), ("train-0",), AGENT)
    assert shlex.join(bare.argv) == "kubectl exec -i train-0 -- tpmon agent --node train-0"


def test_a_command_of_the_user_gets_the_host_and_no_shell():
    place = Place(Way.EXEC, command=parse_template("docker exec -i 'job {host}' env X={host}"))
    (one,) = plan_launches(place, ("n1",), AGENT)
    assert one.argv == ("docker", "exec", "-i", "job n1", "env", "X=n1", "tpmon", "agent", "--node", "n1")


@pytest.mark.parametrize("text", ["docker exec", "", "docker 'exec {host}"])
def test_a_command_without_a_host_is_refused(text):
    with pytest.raises(UsageError, match="--exec"):
        parse_template(text)


RUN = {
    "one": ("RUNNING 7 7 n[1-3]\n", [("7", "", "n[1-3]")]),
    "odd blanks": ("  RUNNING   7  7   n[1-2],m7", [("7", "", "n[1-2],m7")]),
    "a task of an array, whose number srun knows": ("RUNNING 7_2 9 n1\nPENDING 7_3 7 \n", [("9", "", "n1")]),
    "the parts of a heterogeneous job": (
        "RUNNING 7+0 7 n1\nRUNNING 7+1 8 n[2-3]\n",
        [("7", "0", "n1"), ("7", "1", "n[2-3]")],
    ),
    "a part of it": ("RUNNING 7+1 8 n[2-3]\n", [("7", "1", "n[2-3]")]),
}


@pytest.mark.parametrize(("text", "parts"), RUN.values(), ids=RUN)
def test_the_nodes_of_a_job_that_runs(text, parts):
    assert [(one.job, one.group, one.nodes) for one in parse_squeue(text, "7")] == parts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PENDING 7 7 \n", "is pending"),
        ("", "not in the queue"),
        ("COMPLETING 7 7 n1", "completing"),
        ("RUNNING 7_1 8 n1\nRUNNING 7_2 9 n2\nPENDING 7_3 7 \n", "several that run: 7_1, 7_2$"),
    ],
)
def test_a_job_that_does_not_run_has_none(text, said):
    with pytest.raises(NoTargetError, match=said):
        parse_squeue(text, "7")


def test_each_part_of_a_heterogeneous_job_has_a_step_of_its_own(monkeypatch):
    printed = {"squeue": "RUNNING 7+0 7 n1\nRUNNING 7+1 8 n[1-2]\n", "n1": "n1\n", "n[1-2]": "n1\nn2\n"}
    monkeypatch.setattr(launch, "read_output", lambda *argv: printed.get(argv[0]) or printed[argv[-1]])
    found = read_slurm_nodes("7")
    assert found == ((Place(Way.SLURM, job="7", group="0"), ("n1",)), (Place(Way.SLURM, job="7", group="1"), ("n2",)))
    (one,) = plan_launches(*found[1], AGENT)
    assert one.argv[:8] == ("srun", "--jobid=7", "--overlap", "-N", "1", "-n", "1", "--het-group=1")


def test_the_allocation_around_has_no_say_in_a_step():
    around = {"SLURM_CONF": "/c", "SLURM_LABELIO": "1", "SLURM_GPUS_PER_TASK": "8", "SLURM_HET_SIZE": "2", "HOME": "/"}
    (step,) = plan_launches(Place(Way.SLURM, job="7"), ("n1",), AGENT)
    assert keep_environment(around, step.drops) == {"SLURM_CONF": "/c", "HOME": "/"}
    (other,) = plan_launches(Place(Way.EXEC, command=("srun", "-w", "{host}")), ("n1",), AGENT)
    assert keep_environment(around, other.drops) == around


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("me@a:2222", ("-p", "2222", "--", "me@a")),
        ("::1", ("--", "::1")),
        ("fe80::1:22", ("--", "fe80::1:22")),
        ("a:b", ("--", "a:b")),
    ],
)
def test_a_port_is_given_as_ssh_takes_it(host, words):
    (one,) = plan_launches(Place(Way.SSH), (host,), AGENT)
    assert one.argv[4:-1] == words
    assert one.argv[-1].endswith(f"--node {host}")


def test_the_home_is_that_of_the_host():
    (one,) = plan_launches(Place(Way.SSH), ("a",), ("~/my env/bin/tpmon", "$x"))
    assert one.argv[-1] == "~/'my env/bin/tpmon' '$x' --node a"


def test_pods_are_named_without_their_kind():
    assert parse_pods("pod/train-0\npod/train-1\n", "app=x") == ("train-0", "train-1")
    with pytest.raises(NoTargetError, match="app=x"):
        parse_pods("\n", "app=x")


@pytest.mark.parametrize("job", ["-x", "7;ls", "", "--me", "7 8", "a"])
def test_what_is_no_job_reaches_no_program(job):
    with pytest.raises(UsageError, match="no job"):
        read_slurm_nodes(job)


@pytest.mark.parametrize(
    ("selector", "place"),
    [
        ("-A", Place(Way.PODS)),
        ("app=x", Place(Way.PODS, namespace="--all-namespaces")),
        ("app=x", Place(Way.PODS, container="-it")),
        ("a\nb", Place(Way.PODS)),
    ],
)
def test_what_is_no_selector_reaches_no_program(selector, place):
    with pytest.raises(UsageError, match="no name"):
        read_pods(selector, place)


def test_a_program_that_is_not_here_is_named():
    with pytest.raises(UsageError, match="'srun'"):
        check_programs(Place(Way.SLURM, job="7"), which=lambda _: None)
    with pytest.raises(UsageError, match="'lxc'"):
        check_programs(Place(Way.EXEC, command=("lxc", "{host}")), which=lambda _: None)
    check_programs(Place(Way.SSH), which=lambda name: name)


PLACES = {
    "an allocation": ({}, {"SLURM_JOB_ID": "9"}, Place(Way.SLURM, job="9")),
    "a job": ({"slurm": "7"}, {"SLURM_JOB_ID": "9"}, Place(Way.SLURM, job="7")),
    "hosts within an allocation": ({"hosts": "a"}, {"SLURM_JOB_ID": "9"}, Place(Way.SSH)),
    "pods": ({"pods": "app=x", "namespace": "t"}, {}, Place(Way.PODS, namespace="t")),
    "a command": ({"hosts": "a", "exec": "in {host}"}, {}, Place(Way.EXEC, command=("in", "{host}"))),
}


@pytest.mark.parametrize(("flags", "environment", "place"), PLACES.values(), ids=PLACES)
def test_where_the_nodes_are(flags, environment, place):
    assert choose_place(read(FleetOptions, **flags), environment) == place


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"slurm": "7", "hosts": "a"},
        {"exec": "in {host}"},
        {"hosts": "a", "namespace": "t"},
        {"pods": "x", "hosts": "a"},
    ],
)
def test_where_they_are_must_be_said_once(flags):
    with pytest.raises(UsageError):
        choose_place(read(FleetOptions, **flags), {})


def test_an_agent_watches_as_the_head_was_told_to():
    options = read(FleetOptions, agent="/opt/tpmon -v", no_stacks=True, hang_after="90s")
    assert write_agent(options, Place(Way.SSH)) == ("/opt/tpmon", "-v", "agent", "--no-stacks", "--hang-after", "90s")
    assert write_agent(read(FleetOptions), Place(Way.PODS)) == AGENT
    assert write_agent(read(FleetOptions), Place(Way.SLURM, job="7"))[-1] == "agent"


def test_an_agent_reads_each_second_whatever_its_node_is_configured_to():
    table = {"interval": 10.0}
    assert read(WatchOptions, tables=table).interval_s == 10.0
    assert read(AgentOptions, tables=table).interval_s == 1.0


def test_of_several_jobs_on_a_node_the_agent_takes_the_one_that_is_named():
    options = read(FleetOptions, name="train.py")
    assert write_agent(options, Place(Way.SSH)) == (*AGENT, "--name", "train.py")
