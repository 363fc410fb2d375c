"""What is said of the ports, the cards and the container of a job, and what NVML allows."""

import time

import pytest

from tests.permissions import ABSENT, ALLOWED, DENIED, UNKNOWN, fix_of
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.own_command import install_command
from tpmon.probe.doctor.job import (
    check_groups,
    check_ras,
    judge_cards,
    judge_inside,
    judge_ras,
    parse_listeners,
    parse_step,
)
from tpmon.probe.doctor.nvml import (
    NvmlAnswer,
    ask_nvml,
    find_cards,
    judge_counters,
    judge_nvml,
    list_minors,
    parse_admin_only,
)
from tpmon.probe.gpu.nvml import blank_fast
from tpmon.probe.gpu.nvml_queries import NO_PERMISSION, describe_code
from tpmon.probe.gpu.wire import CardIdentity, CardLine, DriverLine, FailureLine
from tpmon.probe.proc.access import Caller, RuntimeKind
from tpmon.probe.records.servers import PORT

# the job

ENTER = "sudo nsenter --net --target 7 tpmon attach 7"


def test_listening_ports_are_parsed():
    table = (
        "  sl  local_address rem_address   st tx_queue\n"
        "   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000\n"
        "   1: 0100007F:1F90 0100007F:6D7C 01 00000000:00000000\n"
        "   2: torn\n"
    )
    six = "  sl  local\n   0: 00000000000000000000000000000000:6D7C 0000:0000 0A 0:0\n"
    assert parse_listeners(table) == {28028}
    assert parse_listeners(six) == {28028}
    assert parse_listeners("") == frozenset()


OFF = Missing("NCCL_RAS_ENABLE=0 turned it off")


@pytest.mark.parametrize(
    ("ports", "same_network", "port", "access", "why"),
    [
        ({28028}, True, PORT, ALLOWED, "NCCL's status port 28028 is open"),
        ({9000}, True, 9000, ALLOWED, "NCCL's status port 9000 is open"),
        ({28028}, False, PORT, DENIED, "network namespace of the job's own"),
        ({80}, True, PORT, ABSENT, "nothing listens on port 28028: "),
        ({28028}, True, 9000, ABSENT, "nothing listens on port 9000: "),
        ({28028}, True, OFF, ABSENT, "NCCL's status port: NCCL_RAS_ENABLE=0 turned it off"),
        (Missing("no such process"), True, PORT, UNKNOWN, "no such process"),
    ],
)
def test_whether_nccls_status_port_may_be_asked(ports, same_network, port, access, why):
    check = judge_ras(ports, same_network, 7, port)
    assert (check.access, fix_of(check)) == (access, ENTER if access is DENIED else "")
    assert why in check.why


def test_a_kernel_without_ipv6_has_one_table_of_listeners(tmp_path):
    (tmp_path / "9" / "net").mkdir(parents=True)
    for pid in ("9", "self"):
        (tmp_path / pid / "ns").mkdir(parents=True, exist_ok=True)
        (tmp_path / pid / "ns" / "net").symlink_to("net:[1]")
    (tmp_path / "9" / "environ").write_bytes(b"")
    table = b"  sl local\n   0: 0100007F:6D7C 00000000:0000 0A 0 0 0\n   1: \xff\n"
    (tmp_path / "9" / "net" / "tcp").write_bytes(table)
    assert check_ras(9, str(tmp_path)).access is ALLOWED
    (tmp_path / "9" / "net" / "tcp").unlink()
    assert check_ras(9, str(tmp_path)).access is UNKNOWN


BOTH = frozenset((0, 3))


@pytest.mark.parametrize(
    ("held", "shown", "access", "why", "fix"),
    [
        (frozenset(), BOTH, ABSENT, "the job holds no NVIDIA card open", ""),
        (frozenset((3,)), BOTH, ALLOWED, "the job holds /dev/nvidia3, and NVML shows it all", ""),
        (frozenset((3, 4)), BOTH, DENIED, "but NVML does not show /dev/nvidia4 to this shell", "docker run --gpus all"),
        (Missing("permission denied"), BOTH, UNKNOWN, "permission denied", ""),
        (BOTH, Missing("NVML does not answer"), UNKNOWN, "NVML does not answer", ""),
    ],
)
def test_cards_that_the_job_holds_and_nvml_does_not_show(held, shown, access, why, fix):
    check = judge_cards(held, shown, "docker run --gpus all")
    assert (check.access, fix_of(check)) == (access, fix)
    assert check.why.endswith(why)


def test_the_step_of_a_job_is_told_by_its_environment():
    assert parse_step(b"A=1\0SLURM_JOB_ID=991\0B=2\0") == "991"
    assert parse_step(b"MY_SLURM_JOB_ID=991\0") == ""


@pytest.mark.parametrize(
    ("ns_pids", "same_network", "access", "words"),
    [
        ((7,), True, ALLOWED, "the job runs in the same PID namespace as tpmon"),
        ((7, 1), True, ALLOWED, "7 is 1 inside"),
        ((7, 1), Missing("denied"), ALLOWED, "7 is 1 inside"),
        # The panes of connections point here where they are not read for that.
        ((7,), False, DENIED, "in the same PID namespace as tpmon; its network namespace is its own"),
        ((7, 1), False, DENIED, "7 is 1 inside"),
    ],
)
def test_a_job_in_a_container_below_or_with_a_network_of_its_own_is_said(ns_pids, same_network, access, words):
    check = judge_inside(ns_pids, 7, same_network)
    assert (check.access, fix_of(check)) == (access, "" if access is ALLOWED else ENTER)
    assert words in check.why


# NVML


def make_card(index: int = 0, reason: str = "", lost: str = "", minor: Known[int] = 0) -> CardLine:
    identity = CardIdentity("H100", minor, 1980.0, 2619.0, 5, 16, 90.0, True)
    no, fast = NOT_APPLICABLE, blank_fast(reason)
    return CardLine(index, f"GPU-{index}", 0, 1.0, lost or no, fast, no, no, identity)


def make_answer(count: int, *cards: CardLine) -> NvmlAnswer:
    return NvmlAnswer(DriverLine("570.1", "12.8", count), Missing("none"), cards)


def fail(code: int, reason: str = "x") -> NvmlAnswer:
    return NvmlAnswer(Missing("none"), FailureLine(code, reason), ())


LOST, REFUSED = make_card(lost="GPU is lost"), make_card(reason=describe_code(NO_PERMISSION))
SILENT = "1 of 2 cards gave no answer in time"
XIDS = "sudo dmesg | grep -i xid"


@pytest.mark.parametrize(
    ("answer", "loaded", "access", "why", "fix"),
    [
        (make_answer(1, make_card()), True, ALLOWED, "driver 570.1: 1 card answers", ""),
        (make_answer(2, make_card(), make_card(1)), True, ALLOWED, "2 cards answer", ""),
        (make_answer(0), True, DENIED, "shows no card to this shell", "srun --overlap"),
        (make_answer(2, make_card()), True, UNKNOWN, f"{SILENT}: persistence mode may be off", "sudo nvidia-smi -pm 1"),
        (make_answer(2, LOST), True, UNKNOWN, SILENT, XIDS),
        (make_answer(1, LOST), True, UNKNOWN, "card 0: GPU is lost", "sudo dmesg | grep"),
        (make_answer(1, REFUSED), True, DENIED, "no permission for util", "sudo tpmon"),
        (fail(12, "libnvidia-ml.so.1 not found"), False, ABSENT, "no NVIDIA", ""),
        (fail(12), True, DENIED, "the driver's library package is missing", "ldconfig -p | grep libnvidia-ml"),
        (fail(9, "not loaded"), False, ABSENT, "no NVIDIA driver", ""),
        (fail(18, "driver and library differ"), True, DENIED, "was updated", "sudo reboot"),
        (fail(4, "no permission"), True, DENIED, "/dev/nvidiactl", "sudo tpmon"),
        (fail(0, "the nvidia-ml-py package"), True, DENIED, "package", install_command("nvidia-ml-py")),
        (NvmlAnswer(Missing("no answer"), Missing("none"), ()), True, UNKNOWN, "no answer", XIDS),
    ],
)
def test_what_nvml_says(answer, loaded, access, why, fix):
    check = judge_nvml(answer, loaded, Caller(), "srun --overlap")
    assert check.access is access
    assert why in check.why
    assert fix_of(check).startswith(fix)
    assert bool(fix_of(check)) == bool(fix)


def test_cards_that_this_shell_does_not_see_are_looked_for_where_they_can_be():
    inside = Caller(0, RuntimeKind.ENGINE, root_may=False)
    step = "srun --overlap --pty --jobid=991 tpmon attach 7"
    assert find_cards(Caller(), "991", "7") == find_cards(inside, "991", "7") == step
    assert find_cards(inside, "", "7") == "docker run --gpus all"
    assert find_cards(Caller(), "", "7") == "lspci | grep -i nvidia; sudo dmesg | grep -i nvrm"
    missing = judge_nvml(fail(12), True, inside, "")
    assert (missing.fix, "(a container without GPUs?)" in missing.why) == ("docker run --gpus all", True)
    for card in (REFUSED, LOST):
        assert "sudo" not in fix_of(judge_nvml(make_answer(1, card), True, Caller(0), ""))


def test_a_job_in_no_control_group_misses_nothing_and_one_out_of_view_needs_the_hosts_namespace(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (python) S 1\n")
    (tmp_path / "7" / "cgroup").write_text("0::/\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text("")
    idle = check_groups((7,), str(tmp_path))
    assert (idle.access, fix_of(idle)) == (ABSENT, "")
    (tmp_path / "self" / "mountinfo").write_text("30 22 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n")
    (tmp_path / "7" / "cgroup").write_text("0::/../other\n")
    beside = check_groups((7,), str(tmp_path))
    assert beside.access is ABSENT
    assert fix_of(beside) in (
        "",  # no engine is around this machine
        "docker run --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:ro  # at its next start",
    )
    assert "outside this container's view; seen from the job's own container" in beside.why


def test_minors_are_those_of_the_cards_that_said_one():
    assert list_minors(make_answer(2, make_card(minor=3), make_card(1, minor=Missing("?")))) == {3}
    assert not is_known(list_minors(fail(12)))


def test_the_child_that_asks_nvml_has_a_deadline_and_may_fail(tmp_path):
    begun = time.monotonic()
    late = ask_nvml(0.3, ("sleep", "60"))
    assert time.monotonic() - begun < 20
    assert isinstance(late.driver, Missing)
    assert "no answer in time" in late.driver.reason
    ended = ask_nvml(20.0, ("true",))
    assert isinstance(ended.driver, Missing)
    assert "ended without a word (exit 0)" in ended.driver.reason
    garbage = tmp_path / "garbage"
    garbage.write_text("#!/bin/sh\necho garbage\necho '{\"driver\": 3}'\n")
    garbage.chmod(0o755)
    assert not is_known(ask_nvml(20.0, (str(garbage),)).driver)
    assert not is_known(ask_nvml(20.0, ("/no/such/program",)).driver)


def test_counters_of_profilers():
    text = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: %d\nDmaRemapPeerMmio: 1\n"
    assert parse_admin_only(text % 1) is True
    assert parse_admin_only(text % 0) is False
    assert not is_known(parse_admin_only(""))
    closed = judge_counters(True, privileged=False)
    assert closed.access is DENIED
    assert "NVreg_RestrictProfilingToAdminUsers=0" in fix_of(closed)
    assert judge_counters(True, privileged=True).access is ALLOWED
    assert judge_counters(False, privileged=False).access is ALLOWED
    assert judge_counters(Missing("no driver"), privileged=False).access is ABSENT
