"""What goes over the wire, both ways; text of another machine reaches no terminal as it came."""

import pytest

from tests.fleet.nodes import look_at_pair, make_rank_summary, make_summary, make_verdict
from tests.frames import NOW, make_frame
from tpmon.fleet.line import split_message
from tpmon.fleet.messages import ALL, Verb, VerbName, decode_message, encode_message, parse_verb, write_verb
from tpmon.model.codec import CodecError
from tpmon.model.known import Missing
from tpmon.model.results.fleet import AgentStatus, Hello, NodeDump, NodeSample, NodeState

MESSAGES = [
    Hello("0.1.0", "n1", NOW),
    AgentStatus(NodeState.NO_JOB, "this user runs no training job on this machine"),
    make_summary(make_rank_summary(0, own_ms=12.5, step_ms=40.0, wait_ratio=0.4)),
    make_verdict(),
    make_frame(),
    NodeDump(3, look_at_pair()["n2"]),
    NodeDump(3, Missing("no job is watched here")),
    NodeSample(4, Missing("nothing was read")),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_a_message_comes_back(message):
    assert decode_message(encode_message(message)) == message


def test_a_second_of_a_node_with_eight_ranks_and_cards_is_one_line():
    ranks = [make_rank_summary(rank, own_ms=123.4567, step_ms=456.789, wait_ratio=0.1234) for rank in range(8, 16)]
    summary = make_summary(*ranks, gpu_pct=tuple(float(91 + at) for at in range(8)), step_rate_hz=1.2345)
    assert len(split_message("gpu-node-0123", 123_456, encode_message(summary))) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"hello {}",
        b"hello []",
        b"summary {" + b'"a":' * 100,
        b"summary " + b"[" * 100_000,
        b"frame 1",
        b"gossip {}",
        b"\xff\xfe {}",
        b'status {"state":"well","reason":""}',
        b'hello {"version":"1","host":"n","clock":"today"}',
    ],
)
def test_what_no_agent_says_is_refused(data):
    with pytest.raises(CodecError):
        decode_message(data)


def test_control_characters_and_long_texts_of_another_machine_are_cleaned():
    evil = "\x1b]0;owned\x07\x1b[2J" + "x" * 5_000
    hello = decode_message(encode_message(Hello("0.1.0", evil, NOW)))
    assert hello.host.isprintable()
    assert len(hello.host) < 500
    finding = decode_message(encode_message(make_verdict(summary=evil, try_=f"one\n{evil}\n" + "more\n" * 50)))
    assert finding.summary.isprintable()
    assert all(line.isprintable() for line in finding.try_.split("\n"))
    assert finding.try_.startswith("one\n")
    assert finding.try_.count("\n") < 10
    pasted = decode_message(encode_message(make_verdict(try_="look:\nls\ncd", try_code="ls\ncd")))
    assert pasted.try_.endswith(pasted.try_code), "what is pasted keeps its lines, too"


VERBS = [
    Verb(VerbName.PING),
    Verb(VerbName.FULL, 1, 0),
    Verb(VerbName.DUMP, 2),
    Verb(VerbName.ROUNDS, 3, 3, 5.0),
    Verb(VerbName.SAMPLE, 4, 1, 10.0),
    Verb(VerbName.BYE),
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda one: one.name.value)
def test_a_request_reaches_the_node_that_it_is_for_and_no_other(verb):
    line = write_verb(verb, "n1").rstrip(b"\n")
    assert parse_verb(line, "n1") == verb
    assert parse_verb(line, "n11") is None
    assert parse_verb(write_verb(verb, ALL), "n1") == verb


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"n1",
        b"n1 ping",
        b"n1 stop 0 1 0",
        b"n1 rounds 1 1000 5",
        b"n1 rounds 1 -1 5",
        b"n1 rounds 1 3 1e9",
        b"n1 rounds 1 3 nan",
        b"n1 rounds x 3 5",
        b"n1 rounds 99999999999 3 5",
        b"n1 ping 0 1 0 0",
        b"n1 ping 0 1 0" + b" " * 500,
        b"\xff\xff\xff\xff\xff",
    ],
)
def test_what_no_head_asks_is_not_done(line):
    assert parse_verb(line, "n1") is None
