"""NCCL's RAS report and a rank's debug server: what an answer is, who is asked, and with which deadline."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.collectives import NOW, make_entry, make_raw
from tpmon.judge.dumps.collective_words import write_report
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.collectives import RankRecord, RecordSource
from tpmon.probe.host.network import ListeningSocket, read_all_listeners, read_listeners
from tpmon.probe.records.servers import (
    LOOPBACK,
    MOST_RANKS,
    NO_SERVER,
    PORT,
    Door,
    _list_numbers,
    ask_records,
    ask_server,
    find_door,
    find_port,
    parse_answer,
    parse_ras,
    pick_door,
    read_ras,
)

HEAD = """NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


def make_ras(status: str, errors: str = "", warnings: str = "") -> str:
    return f"{HEAD}    {status}\n\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}"


HEALTHY = make_ras("0         1         2         4         8         8   RUNNING      OK")
BEHIND = make_ras(
    "0         1         2         4         8         8   RUNNING  MISMATCH",
    warnings="""\
#0-0 (00a1b2c3d4e5f607) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 4711
  Rank 3 has launched up to operation 4710 -- GPU 3 managed by process 4242 on node 10.0.0.1

  Communicator ranks have different Broadcast operation counts
  6 ranks have launched up to operation 5
  2 ranks have not launched any operations
  Rank 6 -- GPU 2 managed by process 4307 on node 10.0.0.2
  Rank 7 -- GPU 3 managed by process 4308 on node 10.0.0.2

""",
)
LOST = make_ras(
    "0         1         2         4         8         7   RUNNING  INCOMPLETE,MISMATCH",
    """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 4243 on node 10.0.0.1 managing GPU 1

DEAD
  2 job processes are considered dead (unreachable via the RAS network)
  Process 4305 on node 10.0.0.2 managing GPU 0
  Process 4306 on node 10.0.0.2 managing GPU 1

#0-0 (00a1b2c3d4e5f607) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 1 managed by process 4243 on node 10.0.0.1

#0-0 (00a1b2c3d4e5f607) ERROR
  Asynchronous error on 1 rank
  Rank 2 reported Remote process exited or network error -- GPU 2 managed by process 4244 on node 10.0.0.1

""",
    """\
TIMEOUT
  Encountered 1 communication timeout while gathering communicator data

#0-0 (00a1b2c3d4e5f607) MISMATCH
  Communicator ranks have different status
  6 ranks have status RUNNING
  Rank 5 has status ABORT -- GPU 1 managed by process 4306 on node 10.0.0.2

""",
)


def test_a_healthy_report_names_nobody_and_hosts_that_differ_leave_the_sums_unknown():
    report = parse_ras(HEALTHY)
    assert (report.version, report.processes, report.gpus) == ("2.27.5", 8, 8)
    assert (report.errors, report.ranks, report.dead, report.silent) == ((), (), 0, 0)
    text = HEALTHY.replace("      2          4            1          8        8\n", "      1          4\n")
    report = parse_ras(text)
    assert isinstance(report.processes, Missing)
    assert isinstance(report.gpus, Missing)


def test_a_rank_that_lags_is_told_from_those_that_do_not_or_are_ahead_and_kept_without_a_process():
    report = parse_ras(BEHIND)
    assert report.errors == ("MISMATCH",)
    third, sixth, seventh = report.ranks
    assert (third.rank, third.problem, third.operation) == (3, "behind", "AllReduce")
    assert (third.launched, third.most_launched) == (4710, 4711)
    assert (third.process, third.node, third.communicator) == (4242, "10.0.0.1", "00a1b2c3d4e5f607")
    assert [(one.rank, one.launched, one.most_launched) for one in (sixth, seventh)] == [(6, 0, 5), (7, 0, 5)]
    text = BEHIND.replace("operation 4710 --", "operation 4712 --")
    assert parse_ras(text).ranks[0].problem == "ahead of the rest"
    text = BEHIND.replace("GPU 3 managed by process 4242 on node 10.0.0.1", "[process information not found]")
    assert parse_ras(text).ranks[0].process is NOT_APPLICABLE


DEAD = (
    HEAD
    + """    0         1         2         4         8         8   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 5

"""
)


def test_silent_dead_and_broken_processes_and_ranks_are_named():
    report = parse_ras(LOST)
    assert (report.errors, report.dead, report.silent) == (("INCOMPLETE", "MISMATCH"), 2, 1)
    broken = (2, "reported Remote process exited or network error")
    assert [(one.rank, one.problem) for one in report.ranks] == [(1, "no answer"), broken, (5, "status ABORT")]
    assert [(one.process, one.node, one.problem) for one in report.lost] == [
        (4243, "10.0.0.1", "no answer"),
        (4305, "10.0.0.2", "dead"),
        (4306, "10.0.0.2", "dead"),
    ]
    assert write_report(report) == (
        "2 processes are dead: process 4305 on 10.0.0.2, process 4306 on 10.0.0.2 (rank 5 of"
        " communicator e5f607), process 4243 on 10.0.0.1 gave no answer (rank 1 of communicator e5f607), rank 2"
        " of communicator e5f607 (process 4244 on 10.0.0.1): reported Remote process exited or network error,"
        " rank 5 of communicator e5f607 (process 4306 on 10.0.0.2): status ABORT"
    )


def test_the_missing_rank_is_that_of_the_one_dead_process_and_which_of_several_is_not_guessed():
    report = parse_ras(DEAD)
    assert [(one.rank, one.process, one.problem) for one in report.ranks] == [(5, 3487984, "no answer")]
    assert write_report(report) == "process 3487984 on 172.16.64.213 is dead (rank 5 of communicator dbe986)"
    report = parse_ras(DEAD.replace("The missing rank: 5", "The missing ranks: 5, 7-8"))
    assert [(one.rank, one.process) for one in report.ranks] == [(rank, NOT_APPLICABLE) for rank in (5, 7, 8)]


def test_ranges_are_written_out_no_further_than_ranks_are_kept():
    assert _list_numbers("21, 24-26, 30", 9) == [21, 24, 25, 26, 30]
    assert _list_numbers("21, 24-999999999", 3) == [21, 24, 25]
    assert _list_numbers("1-9", 0) == []
    many = "The missing ranks: " + "1-999999999, " * 400
    assert len(parse_ras(DEAD.replace("The missing rank: 5", many)).ranks) == MOST_RANKS


@pytest.mark.parametrize(
    "number", ["1 job process is", "operation 4711", "operation 4710", "Rank 3", "process 4242", "1 job process", "8 "]
)
def test_a_number_of_thousands_of_digits_costs_its_own_line_alone(number):
    """int() refuses it."""
    digits = "".join(char for char in number if char.isdecimal())
    for text in (BEHIND, LOST, DEAD):
        assert parse_ras(text.replace(number, number.replace(digits, "9" * 5000))).version == "2.27.5"


@given(st.text(max_size=300), st.integers(0, len(LOST)))
def test_any_text_is_a_report_or_refused(text, place):
    report = parse_ras(LOST[:place] + text + LOST[place:] if place > len("NCCL version 2") else LOST + text)
    assert report.dead >= 0
    with pytest.raises(OSError, match="no report of NCCL"):
        parse_ras(f"x{text}")


@pytest.mark.parametrize(
    ("told", "port"),
    [
        ("localhost:4444", 4444),
        ("[::1]:4445", 4445),
        *((f"localhost:{none}", PORT) for none in ("nonsense", "9" * 5000, "0", "65536", "-1", "\u00b2", "")),
    ],
)
def test_the_port_is_the_one_that_the_job_was_told_or_the_usual_one(told, port):
    assert find_port([{}, {"NCCL_RAS_ADDR": told}]) == port
    assert find_port([{}, {}]) == PORT
    assert isinstance(find_port([{}, {"NCCL_RAS_ENABLE": "0"}]), Missing)


@contextmanager
def serve(*answers: bytes, close: bool = True, address: str = LOOPBACK) -> Iterator[tuple[int, list[bytes]]]:
    """Answer one connection: each line that comes gets the next answer."""
    heard: list[bytes] = []
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listening:

        def run() -> None:
            link, _ = listening.accept()
            with link, link.makefile("rb") as lines:
                for answer in answers:
                    line = lines.readline()
                    if not line:
                        return
                    heard.append(line)
                    link.sendall(answer)
                if not close:
                    lines.readline()  # until the other end goes away

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listening.getsockname()[1], heard
        thread.join(10)
        assert not thread.is_alive()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("listens", "told"), [(LOOPBACK, "0.0.0.0"), ("::1", "::1"), ("::1", "::")])
def test_nccl_is_asked_where_it_listens_and_as_its_protocol_has_it(listens, told):
    if listens != LOOPBACK and not has_ipv6():
        pytest.skip("no IPv6 here")
    with serve(b"SERVER PROTOCOL 2\n", b"OK\n", BEHIND.encode(), address=listens) as (port, heard):
        assert read_ras(port, 20.0, told).ranks[0].rank == 3
    assert heard == [b"CLIENT PROTOCOL 2\n", b"TIMEOUT 2\n", b"VERBOSE STATUS\n"]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ((b"220 mail.example ESMTP\n",), "no NCCL"),
        ((b"SERVER PROTOCOL 2\n", b"ERROR: Unknown command\n"), "time limit"),
        ((b"SERVER PROTOCOL 2\n", b"OK\n", b"garbage\n"), "no report"),
        ((b"x" * 10_000,), "too long"),
        ((), "closed|reset"),
    ],
)
def test_another_server_is_left_alone(answers, words):
    with serve(*answers) as (port, _), pytest.raises(OSError, match=words):
        read_ras(port, 20.0)


def test_a_server_that_hangs_costs_the_deadline_and_no_more_and_where_nobody_listens_it_is_refused():
    with serve(b"SERVER PROTOCOL 2\n", b"OK\n", b"NCCL version", close=False) as (port, _):
        begun_s = time.monotonic()
        with pytest.raises(TimeoutError):
            read_ras(port, 0.5)
        assert time.monotonic() - begun_s < 15
    with socket.create_server((LOOPBACK, 0)) as one:
        port = one.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        read_ras(port, 5.0)


GLOO = ListeningSocket(11, 41643, LOOPBACK, 4096)
STORE = ListeningSocket(12, 29400, "::", 2048)
SERVER = ListeningSocket(13, 52007, "::", 5)


def answer(body: bytes = b'{"version":"2.10"}', status: bytes = b"200 OK", length: int = -1) -> bytes:
    size = len(body) if length < 0 else length
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, size, body)


def test_only_the_socket_of_the_server_is_picked_and_a_process_without_its_thread_is_not_asked():
    assert pick_door([GLOO, STORE, SERVER]) == Door(52007)
    for others in ([], [GLOO, STORE], [GLOO, ListeningSocket(14, 1, LOOPBACK, 5)]):
        assert isinstance(pick_door(others), Missing)
    assert pick_door([ListeningSocket(15, 2, "0.0.0.0", 5), SERVER]) == Door(52007), "a metrics server in Python"
    assert pick_door([ListeningSocket(15, 2, "0.0.0.0", 5)]) == Door(2)
    two = pick_door([SERVER, ListeningSocket(15, 2, "::", 5)])
    assert isinstance(two, Missing)
    assert "none is asked" in two.reason
    assert find_door(os.getpid(), {}, (SERVER,)) == NO_SERVER


def test_a_socket_in_the_file_system_is_found_by_the_environment(tmp_path):
    task = tmp_path / "7" / "task" / "8"
    task.mkdir(parents=True)
    (task / "comm").write_bytes(b"pt_workerserver\n")
    (tmp_path / "7" / "root").symlink_to("/")
    path = str(tmp_path / "door")
    told = {"TORCH_WORKER_SERVER_SOCKET": path}
    assert isinstance(find_door(7, told, (), str(tmp_path)), Missing)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        door = find_door(7, told, (), str(tmp_path))
        assert is_known(door)
        assert door.pid == 7
        with serve_http(answer(b"{}"), at=listening):
            assert ask_server(replace(door, pid=os.getpid()), seconds=20.0) == b"{}"


@contextmanager
def serve_http(
    *answers: bytes, hold: threading.Event | None = None, at: socket.socket | None = None
) -> Iterator[tuple[Door, list[bytes]]]:
    """Give one answer a connection, and keep the path that was asked; ``hold`` keeps the connections open."""
    asked: list[bytes] = []
    with at or socket.create_server((LOOPBACK, 0)) as listening:

        def run() -> None:
            for data in answers:
                link, _ = listening.accept()
                with link:
                    asked.append(link.recv(4096).split()[1])
                    link.sendall(data)
                    if hold is not None:
                        hold.wait(20)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield Door(0 if at else listening.getsockname()[1]), asked
        thread.join(25)


def dumped(*entries) -> bytes:
    return answer(json.dumps(make_raw(entries)).encode())


def test_the_recorder_of_nccl_is_asked_where_it_may_be_and_both_are_one_record():
    own = dumped(make_entry(4, group=("1", "cpu")), make_entry(2))
    nccl = dumped(make_entry(9, "nccl:all_reduce"))
    origin = RankRecord("node-01", 7, 0, RecordSource.SERVER, NOW, False, ())
    with serve_http(own, nccl) as (door, asked):
        record = ask_records(door, origin, with_nccl=True, seconds=20.0)
    assert asked == [b"/handler/fr_trace_json", b"/handler/dump_nccl_trace_json"]
    assert {(one.description, one.backend, one.last_called) for one in record.groups} == {
        ("cpu", "gloo", 4),
        ("default_pg", "gloo", 2),
        ("default_pg", "nccl", 9),
    }
    with serve_http(own) as (door, _):
        alone = ask_records(door, origin, with_nccl=False, seconds=20.0)
    assert [one.last_called for one in alone.groups] == [4, 2]


def test_the_answer_is_read_whole_and_a_server_that_does_not_end_costs_the_deadline():
    body = b"[" + b"1," * 300_000 + b"1]"
    with serve_http(answer(body)) as (door, _):
        assert ask_server(door, seconds=20.0) == body
    hold = threading.Event()
    with serve_http(answer(b"{}", length=100), hold=hold) as (door, _):
        with pytest.raises(TimeoutError):
            ask_server(door, seconds=0.5)
        hold.set()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no HTTP"),
        (b"SSH-2.0-x\r\n\r\n", "no HTTP"),
        (answer(status=b"404 Not Found"), "answered 404"),
        (answer(status=b"500 \xff"), "answered 500"),
        (answer(length=5), "cut"),
        (answer(length=10**14), "cut"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "cut"),
    ],
)
def test_what_is_no_whole_answer_is_refused(data, words):
    with pytest.raises(OSError, match=words):
        parse_answer(data)


def test_our_own_listening_sockets_are_found_with_their_backlog_and_those_of_others_are_left_out():
    with socket.create_server((LOOPBACK, 0), backlog=5) as one, socket.create_server(("0.0.0.0", 0), backlog=7) as two:
        mine = read_listeners(os.getpid(), read_all_listeners())
        found = {listener.port: listener for listener in mine}
        first, second = found[one.getsockname()[1]], found[two.getsockname()[1]]
        assert (first.address, first.backlog, first.is_everywhere) == (LOOPBACK, 5, False)
        assert (second.address, second.backlog, second.is_everywhere) == ("0.0.0.0", 7, True)
        assert first.inode == os.fstat(one.fileno()).st_ino
    with socket.create_server((LOOPBACK, 0)) as mine:
        inode = os.fstat(mine.fileno()).st_ino
        found = read_listeners(
            os.getpid(), (ListeningSocket(inode, 1, LOOPBACK, 5), ListeningSocket(inode + 10**7, 2, "::", 5))
        )
        assert [one.port for one in found] == [1]
