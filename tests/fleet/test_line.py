"""Messages survive a stream that srun cuts and mixes, and nothing else passes for one."""

import random
import zlib

import pytest

from tpmon.fleet.line import LINE_BYTES, MESSAGE_BYTES, NODE_CHARS, REST_BYTES, Joiner, Whole, parse_line, split_message

LONG = "n" * NODE_CHARS
NOISE = random.Random(1)


def make_noise(size: int) -> bytes:
    return NOISE.randbytes(size)


@pytest.mark.parametrize("node", ["n1", "gpu-01.cluster", "me@host", "fe80::1%eth0", LONG])
@pytest.mark.parametrize("size", [0, 1, 700, 900, 20_000, 300_000])
def test_a_message_comes_back_and_no_line_is_longer_than_srun_takes(node, size):
    message = make_noise(size)
    lines = split_message(node, 999_999_999, message)
    assert all(len(line) <= LINE_BYTES and line.endswith(b"\n") for line in lines)
    assert Joiner([node]).add(b"".join(lines)) == [Whole(node, message)]


def test_a_second_of_a_node_is_one_line():
    assert len(split_message("gpu-node-0123", 1, make_noise(650))) == 1


def test_it_does_not_matter_where_the_stream_is_cut():
    message = make_noise(5_000)
    stream = b"".join(split_message("n1", 7, message))
    joiner = Joiner(["n1"])
    found = [one for byte in stream for one in joiner.add(bytes([byte]))]
    assert found == [Whole("n1", message)]


def test_nodes_may_write_by_turns():
    sent = {f"n{number}": make_noise(9_000) for number in range(8)}
    queues = {node: split_message(node, 1, message) for node, message in sent.items()}
    joiner, got = Joiner(sent), {}
    while any(queues.values()):
        node = NOISE.choice([one for one, queue in queues.items() if queue])
        for whole in joiner.add(queues[node].pop(0)):
            got[whole.node] = whole.message
    assert got == sent
    assert joiner.torn == 0


def test_lines_of_others_are_no_messages_and_the_last_is_kept():
    joiner = Joiner(["n1"])
    stream = b"Welcome to cluster A\n" + b"".join(split_message("n1", 1, b"x")) + b"bash: tpmon: command not found\n"
    assert joiner.add(stream) == [Whole("n1", b"x")]
    assert joiner.said == b"bash: tpmon: command not found"
    assert joiner.said_bytes == len(joiner.said)
    assert joiner.torn == 0


def change(line: bytes, at: int) -> bytes:
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


def test_no_torn_line_passes():
    """Of 100,000 lines that are changed, cut or glued together none is taken for a message."""
    lines = split_message("n1", 1, make_noise(40_000))
    for number in range(100_000):
        line = lines[number % len(lines)][:-1]
        at = NOISE.randrange(len("tpmon/1 "), len(line))
        bad = (change(line, at), line[:at], line[:at] + lines[0][:-1])[number % 3]
        assert parse_line(bad) is None


@pytest.mark.parametrize(
    "lose",
    [
        lambda lines: lines[1:],
        lambda lines: lines[:-1] + split_message("n1", 2, b"next"),
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [lines[0], *lines],
        lambda lines: [*lines[:2], lines[2][:500] + b"\n", *lines[3:]],
    ],
    ids=["first", "last", "order", "twice", "torn"],
)
def test_a_message_that_lost_a_line_is_torn_and_the_next_one_comes(lose):
    joiner = Joiner(["n1"])
    stream = lose(split_message("n1", 1, make_noise(4_000)))
    assert all(len(whole.message) < 100 for whole in joiner.add(b"".join(stream)))
    assert joiner.torn > 0
    assert joiner.add(b"".join(split_message("n1", 3, b"later"))) == [Whole("n1", b"later")]


def pack(node: str, payload: bytes, part: str = "1/1") -> bytes:
    said = f"{node} 1 {part}".encode()
    return b"tpmon/1 %s %08x %s\n" % (said, zlib.crc32(payload, zlib.crc32(said)), payload)


@pytest.mark.parametrize(
    "stream",
    [
        b"x" * (REST_BYTES + 1),
        pack("n1", b"!!!!"),
        pack("n1", b"AAAA"),
        pack("n1", b"A"),
        pack("n2", b"AAAA"),
        pack("n1", b"AAAA", "0/1"),
        pack("n1", b"AAAA", "2/1"),
        pack("n1", b"AAAA", "1/9999999999"),
        pack("n1\x1b[2J", b"AAAA"),
        pack("-oProxyCommand=x", b"AA\nAA"),
    ],
)
def test_a_hostile_line_is_counted_and_nothing_else(stream):
    joiner = Joiner(["n1"])
    assert joiner.add(stream) == []
    assert joiner.torn == 1


def test_a_line_without_end_takes_no_memory_and_the_next_is_read():
    joiner = Joiner(["n1"])
    for _ in range(100):
        assert joiner.add(b"x" * REST_BYTES) == []
    assert joiner.add(b"\n" + b"".join(split_message("n1", 1, b"x"))) == [Whole("n1", b"x")]


def test_a_message_that_unpacks_to_more_than_the_most_is_none():
    import binascii

    bomb = binascii.b2a_base64(zlib.compress(bytes(MESSAGE_BYTES + 1), 9), newline=False)
    joiner = Joiner(["n1"])
    parts = [bomb[at : at + 800] for at in range(0, len(bomb), 800)]
    stream = b"".join(pack("n1", part, f"{number}/{len(parts)}") for number, part in enumerate(parts, 1))
    assert joiner.add(stream) == []
    assert joiner.torn == 1


def test_a_message_that_is_too_long_is_not_sent():
    with pytest.raises(ValueError, match="bytes"):
        split_message("n1", 1, bytes(MESSAGE_BYTES + 1))
