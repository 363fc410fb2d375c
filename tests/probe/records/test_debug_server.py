"""The debug server of a rank is told for certain from its other sockets, and asked with a deadline."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.collectives import NOW, make_entry, make_raw
from tpmon.model.known import Missing, is_known
from tpmon.model.results.collectives import RankRecord, RecordSource
from tpmon.probe.host.network import ListeningSocket, read_all_listeners, read_listeners
from tpmon.probe.records.servers import (
    LOOPBACK,
    NO_SERVER,
    Door,
    ask_records,
    ask_server,
    find_door,
    parse_answer,
    pick_door,
)

GLOO = ListeningSocket(11, 41643, LOOPBACK, 4096)
STORE = ListeningSocket(12, 29400, "::", 2048)
SERVER = ListeningSocket(13, 52007, "::", 5)


def answer(body: bytes = b'{"version":"2.10"}', status: bytes = b"200 OK", length: int = -1) -> bytes:
    size = len(body) if length < 0 else length
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, size, body)


def test_only_the_socket_of_the_server_is_picked():
    assert pick_door([GLOO, STORE, SERVER]) == Door(52007)
    for others in ([], [GLOO, STORE], [GLOO, ListeningSocket(14, 1, LOOPBACK, 5)]):
        assert isinstance(pick_door(others), Missing)
    assert pick_door([ListeningSocket(15, 2, "0.0.0.0", 5), SERVER]) == Door(52007), "a metrics server in Python"
    assert pick_door([ListeningSocket(15, 2, "0.0.0.0", 5)]) == Door(2)
    two = pick_door([SERVER, ListeningSocket(15, 2, "::", 5)])
    assert isinstance(two, Missing)
    assert "none is asked" in two.reason


def test_a_process_without_the_servers_thread_is_not_asked():
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
        thread = threading.Thread(target=answer_once, args=(listening, answer(b"{}")), daemon=True)
        thread.start()
        assert door.pid == 7
        assert ask_server(replace(door, pid=os.getpid()), seconds=20.0) == b"{}"
        thread.join(10)


def answer_once(listening: socket.socket, data: bytes, *, hold: threading.Event | None = None) -> None:
    link, _ = listening.accept()
    with link:
        link.recv(4096)
        link.sendall(data)
        if hold is not None:
            hold.wait(20)


@contextmanager
def serve(data: bytes, hold: threading.Event | None = None) -> Iterator[Door]:
    with socket.create_server((LOOPBACK, 0)) as listening:
        thread = threading.Thread(target=answer_once, args=(listening, data), kwargs={"hold": hold}, daemon=True)
        thread.start()
        yield Door(listening.getsockname()[1])
        thread.join(25)


def answer_by_path(listening: socket.socket, answers: dict[bytes, bytes], asked: list[bytes]) -> None:
    for _ in answers:
        link, _ = listening.accept()
        with link:
            path = link.recv(4096).split()[1]
            asked.append(path)
            link.sendall(answers.get(path, answer(status=b"404 Not Found")))


def dumped(*entries) -> bytes:
    return answer(json.dumps(make_raw(entries)).encode())


def test_the_recorder_of_nccl_is_asked_where_it_may_be_and_both_are_one_record():
    own = dumped(make_entry(4, group=("1", "cpu")), make_entry(2))
    nccl = dumped(make_entry(9, "nccl:all_reduce"))
    origin = RankRecord("node-01", 7, 0, RecordSource.SERVER, NOW, False, ())
    answers = {b"/handler/fr_trace_json": own, b"/handler/dump_nccl_trace_json": nccl}
    asked: list[bytes] = []
    with socket.create_server((LOOPBACK, 0)) as listening:
        thread = threading.Thread(target=answer_by_path, args=(listening, answers, asked), daemon=True)
        thread.start()
        record = ask_records(Door(listening.getsockname()[1]), origin, with_nccl=True, seconds=20.0)
        thread.join(10)
    assert asked == list(answers)
    assert {(one.description, one.backend, one.last_called) for one in record.groups} == {
        ("cpu", "gloo", 4),
        ("default_pg", "gloo", 2),
        ("default_pg", "nccl", 9),
    }
    with serve(own) as door:
        alone = ask_records(door, origin, with_nccl=False, seconds=20.0)
    assert [one.last_called for one in alone.groups] == [4, 2]


def test_the_answer_is_read_whole():
    body = b"[" + b"1," * 300_000 + b"1]"
    with serve(answer(body)) as door:
        assert ask_server(door, seconds=20.0) == body


def test_a_server_that_does_not_end_costs_the_deadline():
    hold = threading.Event()
    with serve(answer(b"{}", length=100), hold) as door:
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


def test_our_own_listening_sockets_are_found_with_their_backlog():
    with socket.create_server((LOOPBACK, 0), backlog=5) as one, socket.create_server(("0.0.0.0", 0), backlog=7) as two:
        mine = read_listeners(os.getpid(), read_all_listeners())
        found = {listener.port: listener for listener in mine}
        first, second = found[one.getsockname()[1]], found[two.getsockname()[1]]
        assert (first.address, first.backlog, first.is_everywhere) == (LOOPBACK, 5, False)
        assert (second.address, second.backlog, second.is_everywhere) == ("0.0.0.0", 7, True)
        assert first.inode == os.fstat(one.fileno()).st_ino


def test_sockets_of_others_are_left_out():
    with socket.create_server((LOOPBACK, 0)) as mine:
        inode = os.fstat(mine.fileno()).st_ino
        found = read_listeners(
            os.getpid(), (ListeningSocket(inode, 1, LOOPBACK, 5), ListeningSocket(inode + 10**7, 2, "::", 5))
        )
        assert [one.port for one in found] == [1]
