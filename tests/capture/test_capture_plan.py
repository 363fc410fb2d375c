"""What a capture may cost and where it begins, told before anything is recorded."""

import json
import os
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.captures import parse_conditions
from tests.children import child
from tpmon.capture import kineto_daemon
from tpmon.capture.bus import NoHookError, open_bus
from tpmon.capture.files import CapturePlace, clear_parts, hold_folder, pack
from tpmon.capture.kineto_daemon import KinetoClient
from tpmon.capture.plan import (
    MOST_EVENTS,
    MeasuredPace,
    StepPlace,
    choose_collectives,
    choose_options,
    choose_start,
    count_alike,
    fit_seconds,
    fit_steps,
    mean_call,
    mean_step,
    median_before,
    median_step,
    median_step_of,
    parse_pace,
    say_dear,
    say_price,
    size_window,
    stretch_seconds,
)
from tpmon.commands import capture as capture_command
from tpmon.commands.capture import CaptureOptions, parse_asked
from tpmon.commands.hook import write_export
from tpmon.commands.run import BOOT
from tpmon.errors import UsageError
from tpmon.foreign_file import own
from tpmon.hook import tensors as models
from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.bus.headroom import read_memory_left
from tpmon.hook.capture.conditions import read_conditions
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Identity
from tpmon.model.results.capture import CaptureAsked, CaptureKind, StepTime
from tpmon.probe.base.procread import read_stat
from tpmon.probe.job import discovery
from tpmon.probe.job.discovery import can_start_again, is_armed, write_restart

TWELVE = Identity(12, 1)
ASKED = CaptureAsked(CaptureKind.TRACE, 5, 60.0, False, False, False, NOT_APPLICABLE, "/tmp/x")


def record(steps: int, time_ms: float, evals: int = 0, rule: int = wire.RULE_DATA_AFTER_UPDATE) -> list[int]:
    words = [0] * wire.RECORD_WORDS
    words[wire.REC_STEPS] = steps
    words[wire.REC_EVAL_STEPS] = evals
    words[wire.REC_TIME_NS] = int(time_ms * 1e6)
    words[wire.REC_EVAL_FORWARD_NS if rule == wire.RULE_BATCH else wire.REC_FORWARD_NS] = int(time_ms * 1e6)
    words[wire.REC_RULE] = rule
    return words


@pytest.mark.parametrize(
    ("probes", "ranks", "price", "said"),
    [
        (
            [(242, 67_000, 10.0), (300, 60_000, 12.0)],
            2,
            (5, 1500, 335_000, 60.0),
            "5 steps: each rank pauses for about 60",
        ),
        (
            [(MOST_EVENTS // 2, 1000, 400.0)],
            1,
            (2, MOST_EVENTS, 2000, 800.0),
            "2 steps (fewer than asked: more would not",
        ),
        ([(MOST_EVENTS + 1, 1000, 400.0)], 1, (0, 0, 0, 0.0), "0 steps (fewer than asked"),
    ],
    ids=["as asked", "cut to what a run can bear", "not even one fits"],
)
def test_a_window_is_as_long_as_asked_where_it_fits(probes, ranks, price, said):
    told = size_window(ASKED, probes)
    assert (told.steps, told.events, told.bytes, told.pause_ms) == price
    assert say_price(told, ASKED, ranks).startswith(said)


def test_a_window_by_time_is_cut_too():
    asked = replace(ASKED, timed=True, seconds=10.0)
    probes = [(MOST_EVENTS // 10, 1000, 5.0)]
    assert fit_seconds(asked, size_window(asked, probes), probes) == pytest.approx(2.0)


@pytest.mark.parametrize(("named", "seconds", "dear"), [(False, 1.0, False), (True, 10.0, True)])
def test_a_window_by_time_that_nobody_named_needs_no_yes_for_its_pause(named, seconds, dear):
    asked = replace(ASKED, timed=True, seconds=10.0, named_seconds=named)
    probes = [(10, 1000, 200.0)]
    price = size_window(asked, probes)
    assert fit_seconds(asked, price, probes) == pytest.approx(seconds, rel=0.1)
    said = say_dear(price)
    assert bool(said) is dear
    assert not dear or said[1].startswith("fewer --seconds, ")


@pytest.mark.parametrize(
    ("steps_ms", "steps"),
    [([100.0], 200), ([100.0, 50.0], 400), ([0.2], 1000), ([30_000.0], 1), ([Missing("why")], 1000), ([0.0], 1000)],
)
def test_steps_that_seconds_end_are_as_many_as_fit_twice(steps_ms, steps):
    asked = replace(ASKED, steps=1000, seconds=10.0, by_seconds=True)
    assert fit_steps(asked, steps_ms).steps == steps
    assert fit_steps(ASKED, steps_ms) == ASKED
    price = size_window(asked, [(MOST_EVENTS // 500, 1000, 1.0)])
    assert say_price(price, asked, 1).startswith("10 s, 500 steps at most (more would not fit): the loop")


@pytest.mark.parametrize(
    ("steps_ms", "seconds"),
    [([100.0], 60.0), ([30_000.0], 225.0), ([8_000.0, 9_000.0], 67.5), ([150_000.0], 600.0), ([Missing("why")], 60.0)],
)
def test_seconds_that_nobody_named_are_as_many_as_the_steps_need(steps_ms, seconds):
    asked = replace(ASKED, named_seconds=False)
    assert stretch_seconds(asked, steps_ms).seconds == seconds
    assert stretch_seconds(ASKED, steps_ms) == ASKED
    timed = replace(asked, timed=True)
    assert stretch_seconds(timed, steps_ms) == timed


def test_seconds_alone_are_not_ended_by_a_number_of_steps():
    asked = [parse_asked(CaptureOptions(**given)) for given in ({}, {"seconds": "10"}, {"seconds": "10", "steps": "7"})]
    assert [(one.steps, one.seconds, one.by_seconds, one.named_seconds) for one in asked] == [
        (5, 60.0, False, False),
        (capture_command.MOST_STEPS, 10.0, True, True),
        (7, 10.0, False, True),
    ]


@pytest.mark.parametrize(
    ("paces", "start", "alike"),
    [
        ([(100, 10.0), (101, 10.0)], 104, True),
        ([(100, 0.1)], 102, True),
        ([(9000, 4000.0)], 10_000, True),
        ([(100, 1.0), (140, 1.0)], 142, False),
    ],
)
def test_all_ranks_hear_of_the_step_before_they_come_to_it_and_count_alike_or_not(paces, start, alike):
    told = [MeasuredPace(*pace, evaluates=False) for pace in paces]
    assert (choose_start(told), count_alike(told)) == (start, alike)


def test_a_pace_is_told_by_what_ends_steps():
    pace = parse_pace([record(10, 0), record(30, 1000)])
    assert pace == MeasuredPace(30, 20.0, False)
    validates = parse_pace([record(10, 0), record(10, 100, 5)])
    assert validates.evaluates
    inference = parse_pace([record(0, 0, 5, wire.RULE_BATCH), record(0, 100, 7, wire.RULE_BATCH)])
    assert inference == MeasuredPace(7, 20.0, False)
    assert parse_pace([]) == parse_pace([record(0, 0)]) == Missing("no step ended yet")


def test_kineto_counts_calls_of_optimizers_and_not_steps():
    records = [record(steps, steps * 10.0) for steps in range(5)]
    assert mean_call(records) == Missing("no optimizer was called")
    for one in records:
        one[wire.REC_OPTIMIZER_CALLS] = 2 * one[wire.REC_STEPS]  # two of a GAN
    assert mean_call(records) == 5.0
    assert mean_call(records[:2]) == Missing("too few steps to tell")


def test_the_mean_step_is_of_the_time_asked_for():
    records = [record(at, at * 10) for at in range(10)]
    assert mean_step(records, 0, 10**12) == 10.0
    assert mean_step(records, int(85e6), 10**12) == Missing("too few steps to tell")


def test_the_median_step_is_of_steps_and_not_of_records_and_no_stall_moves_it():
    ends = [0.0, 10.0, 20.0, 520.0, 530.0, 540.0]
    stalled = [record(at, end) for at, end in enumerate(ends)]
    assert median_step(stalled, 0, 10**12) == StepTime(10.0, 4), "the first record has none before it"
    short = [record(0, 0.0), record(1, 1.0), record(9, 5.0), record(11, 25.0)]
    assert median_step(short, 0, 10**12) == StepTime(0.5, 10), "eight of 0.5 ms share a record"
    drift = [record(at, 100.0 * at) for at in range(100)] + [record(100 + at, 1e4 + 200.0 * at) for at in range(20)]
    assert median_before(drift, int(14e9)) == StepTime(200.0, 29), "what was longer ago tells less"
    assert median_before(drift[:5], int(14e9)) == StepTime(100.0, 3)
    assert median_step(short, 0, 0) == median_step([], 0, 0) == Missing("too few steps to tell")


def test_a_validation_is_no_part_of_the_mean_step():
    records = [record(at, at * 50) for at in range(5)]
    for at in range(1, 4):
        records.append(record(4, 200 + at * 40, at))
        records[-1][wire.REC_FORWARD_NS] = int(200 * 1e6)
    for at in range(5, 9):
        records.append(record(at, at * 50 + 120, 3))
        records[-1][wire.REC_FORWARD_NS] = int(at * 50 * 1e6)
    assert mean_step(records, 0, 10**12) == 50.0
    assert median_step(records, 0, 10**12) == StepTime(50.0, 7)
    assert median_step_of(records, 3, 4) == StepTime(50.0, 4)
    assert median_step_of(records, 8, 4) == Missing("too few steps to tell")
    within = record(8, 999, 3)  # in the middle of a step, as a slow loop publishes
    assert mean_step([*records, within], 0, 10**12) == 50.0
    evals = [record(0, at * 30, at, wire.RULE_BATCH) for at in range(4)]
    assert mean_step(evals, 0, 10**12) == 30.0


def test_a_request_carries_what_was_asked_of_a_trace():
    asked = replace(ASKED, stacks=True, memory=True)
    assert choose_options(asked) == wire_capture.OPTION_STACKS | wire_capture.OPTION_MEMORY
    assert choose_options(replace(asked, kind=CaptureKind.SNAPSHOT)) == 0


def test_conditions_are_read_from_either_end_and_believed_by_type_alone():
    told = {"model": "Net", "parameters": "many", "inputs": [1], "batch_size": {"missing": "why"}, "training": True}
    text = json.dumps({"tpmon": told}).encode()[:-1] + b","
    for head, tail in ((text, b""), (b"{", text)):
        told = parse_conditions(head, tail)
        assert (told.model, told.training) == ("Net", True)
        assert told.parameters == told.inputs == Missing("the trace does not say it")
        assert told.batch_size == Missing("why")
    for broken in (b'{"tpmon": [1', b'{"tpmon": ' + b"[" * 60_000):
        assert parse_conditions(broken, b"") == Missing("the trace does not say it")


GROUPS_2 = {
    "a/memory.max": "1000000\n",
    "a/memory.current": "900000\n",
    "a/memory.stat": "file 5\ninactive_file 30000\nactive_file 20000\nshmem 70\n",
    "a/b/memory.max": "max\n",
}
GROUPS_1 = {
    "memory/a/memory.limit_in_bytes": "1000000\n",
    "memory/a/memory.usage_in_bytes": "900000\n",
    # Those of the groups below count too.
    "memory/a/memory.stat": "inactive_file 1\nactive_file 2\ntotal_inactive_file 30000\ntotal_active_file 40000\n",
}


@pytest.mark.parametrize(
    ("member", "files", "left"),
    [
        ("0::/a/b\n", {}, 8_000 * 1024),
        ("0::/a/b\n", GROUPS_2, 150_000),
        ("7:cpu,cpuacct:/a\n3:memory:/a\n", GROUPS_1, 170_000),
    ],
    ids=["no limit", "version 2", "version 1"],
)
def test_the_nearest_limit_of_memory_counts(tmp_path, member, files, left):
    meminfo = "MemTotal: 99 kB\nMemAvailable: 8000 kB\n"
    groups = {f"cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/meminfo": meminfo, "proc/self/cgroup": member, **groups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_memory_left(str(tmp_path / "proc"), str(tmp_path / "cgroup")) == left


def test_a_process_without_the_hook_is_told_so():
    with child("say('up'); hear()") as one, pytest.raises(NoHookError, match="has no hook"):
        open_bus(Identity(one.pid, read_stat(one.pid).start_ticks))


COMMAND = "tpmon run -- COMMAND"


@pytest.mark.parametrize(
    ("words", "folder", "again"),
    [
        (
            b"python\0train.py\0--name\0a b",
            "/home/me/my run",
            "cd '/home/me/my run' && tpmon run -- python train.py --name 'a b'",
        ),
        *(
            (title + b"\0train.py", "/home/me", COMMAND)
            for title in (b"ray::train", b"train: epoch 3", b"trainer", b"/no/such/python")
        ),
        (b"python\0train.py\0a\x1b]0;title\x07", "/home/me", COMMAND),
        (b"python\0train.py\0x", "/home/m\x1b[31me", COMMAND),
        (b"python\0train.py\0--token=abcdefgh9", "/home/me", COMMAND),
        (b"python\0train.py\0\xff", "/home/me", COMMAND),
        (b"python\0train.py\0" + b"x" * 5000, "/home/me", COMMAND),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_command_is_repeated_where_it_is_one_and_is_for_a_terminal(tmp_path, words, folder, again):
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "cmdline").write_bytes(words + b"\0")
    (tmp_path / "12" / "cwd").symlink_to(folder)
    (tmp_path / "12" / "exe").symlink_to("/usr/bin/python3.11")
    assert write_restart(12, str(tmp_path)) == again
    assert write_restart(13, str(tmp_path)) == COMMAND


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["python", "train.py", "-"], True),
        (["/usr/bin/python3.13t", "-X", "dev", "-um", "package.train"], True),
        (["python", "-c", "import x"], True),
        (["./train", "--steps", "5"], True),
        (["torchrun", "train.py"], True),
        (["bash", "job.sh"], True),
        (["python"], False),
        (["python", "-u", "-X", "dev"], False),
        (["python", "-"], False),
        (["-bash"], False),
        (["python", "/dev/fd/63"], False),
        (["python", "train.py", "/proc/self/fd/11"], False),
    ],
)
def test_a_command_is_started_again_where_it_names_its_program(words, again):
    assert can_start_again(words) == again


def test_a_run_that_waits_for_its_hook_is_told_what_would_begin_it(monkeypatch):
    monkeypatch.setattr(discovery, "is_armed", lambda _: True)
    told = capture_command._offer(NoHookError("process 12 has no hook", ""), SimpleNamespace(), TWELVE)
    assert "tpmon.hook.step() at the end of each pass" in told.try_this
    assert "-S" in told.try_this


@pytest.mark.parametrize("asks", [True, False])
def test_who_needs_a_hook_where_kineto_asks_is_told_what_kineto_can(monkeypatch, asks):
    client = KinetoClient(TWELVE, "/tmp/x") if asks else Missing("no thread of kineto asks for profiles")
    monkeypatch.setattr(discovery, "is_armed", lambda _: False)
    monkeypatch.setattr(kineto_daemon, "find_client", lambda _: client)
    monkeypatch.setattr(discovery, "write_restart", lambda pid: f"tpmon run -- of {pid}")
    job = SimpleNamespace(root=SimpleNamespace(pid=11))
    told = capture_command._offer(NoHookError("process 12 has no hook", ""), job, TWELVE)
    assert ("no profile of it is possible" in told.what) is not asks
    assert told.try_this.startswith("tpmon sample 11, which shows hot functions and stops nothing") is not asks
    assert ("--at, --all-ranks, --snapshot" in told.what) is asks
    assert ("tpmon capture 12, which records by kineto" in told.try_this) is asks
    assert told.try_this.endswith("start it again: tpmon run -- of 11")
    refused = RefusedError(RefusalReason.TURNED_OFF)
    told = capture_command._offer(NoHookError("process 12 has no hook", ""), job, TWELVE, refused)
    assert f"none is put in: {refused.what}" in told.what
    assert (refused.try_this in told.try_this) is not asks
    assert told.try_this.endswith("start it again: tpmon run -- of 11")


@pytest.mark.parametrize(
    ("places", "rate_hz", "place"),
    [
        ([(10, 40), (7, 40), (12, 44)], 1.0, (14, 48)),  # two steps ahead
        ([(10, 40), (7, 48), (11, 42)], 1.0, (16, 52)),  # of the rank that is furthest
        ([(10, 40), (7, 40), (20, 60)], 100.0, (45, 110)),  # a quarter of a second ahead
        ([(10, 40), (7, 41), (13, 50)], 1.0, (15, 57)),  # three steps and ten collectives
        ([(10, 40), (7, 40), (12, 40)], 1.0, None),
        ([(10, 40), (7, 40), (10, 44)], 1.0, None),
    ],
)
def test_ranks_that_count_from_different_steps_begin_by_collectives(places, rate_hz, place):
    found = choose_collectives([StepPlace(*one) for one in places], rate_hz)
    assert (found == StepPlace(*place)) if place else isinstance(found, Missing)


def test_a_program_that_was_started_with_the_hook_is_known_by_its_path(tmp_path):
    write_export(str(tmp_path / "hook.zip"))
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "root").symlink_to("/")
    for path, armed in (
        (f"/mine:{BOOT}", True),
        (f"{tmp_path}/hook.zip", True),
        (str(tmp_path), False),
        ("/nowhere/other.zip", False),
    ):
        (tmp_path / "12" / "environ").write_bytes(b"A=1\0PYTHONPATH=" + os.fsencode(path) + b"\0")
        assert is_armed(12, str(tmp_path)) == armed
    assert not is_armed(13, str(tmp_path))


def test_only_what_a_dead_rank_left_is_removed_and_no_file_is_written_over(tmp_path):
    names = [
        "host-12-rank0-step5.json.part",
        "host-12-rank1-step5.json.part",
        "host-123-rank0-step5.json.part",
        "host-12-rank0-step1.json",
    ]
    for name in names:
        (tmp_path / name).write_text("{}")
    place = CapturePlace(str(tmp_path), str(tmp_path))
    assert clear_parts(place, "host-12", 0) == [names[0]]
    assert sorted(os.listdir(tmp_path)) == sorted(names[1:])
    earlier = tmp_path / f"{names[3]}.gz"
    earlier.write_text("earlier")
    with hold_folder(place) as folder, open(tmp_path / names[3], "rb") as source:
        assert pack(source, names[3], folder, own()) == names[3]
    assert earlier.read_text() == "earlier"


def test_looking_for_the_model_keeps_nothing_of_the_loop_and_leaves_its_variables_alone(monkeypatch):
    class Module:
        """A module, by what torch's has."""

        training = True

        def __init__(self, *parts):
            self._modules = {str(at): part for at, part in enumerate(parts)}
            self._parameters = {"weight": SimpleNamespace(numel=lambda: 4, dtype="float32", device="cpu")}

        def parameters(self):
            return [*self._parameters.values(), *(one for part in self._modules.values() for one in part.parameters())]

    class Net(Module):
        """The model that is trained."""

    class Wrapper(Module):
        """What DDP makes of a model."""

    class Batch:
        """What a loop replaces with each step."""

    class Optimizer:
        """An optimizer, by what torch's has."""

        def __init__(self, parameters):
            self.param_groups = [{"params": parameters}]

    def loop():
        config = locals()
        net, other, batch = Net(Module()), Module(Module(), Module(), Module()), Batch()
        optimizer = Optimizer(net.parameters())
        before = dict(config)
        gone = weakref.ref(batch)
        watcher = SimpleNamespace(optimizer=weakref.ref(optimizer), inputs=[])
        steps = SimpleNamespace(rule=0, batch_size=0, watcher=watcher, page=memoryview(b""), ddp=[], fsdp=[])
        for _ in range(2):
            told = read_conditions(steps)
            assert (told["model"], told["parameters"]) == ("Net", 8)
        wrapper = Wrapper(net)
        steps.ddp = [weakref.ref(wrapper)]
        assert read_conditions(steps)["model"] == "Wrapper"
        steps.fsdp = [weakref.ref(other)]  # a frozen reference that was wrapped last
        assert read_conditions(steps)["model"] == "Wrapper"
        del steps.ddp, wrapper
        assert read_conditions(steps)["model"] == "Net"
        assert config == before
        del batch
        assert gone() is None
        assert net.training

    monkeypatch.setattr(models, "_FOUND", [])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(nn=SimpleNamespace(Module=Module), __version__="2"))
    loop()


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"rank": "0", "all_ranks": True}, "exclude"),
        ({"snapshot": True, "cuda_profiler": True}, "exclude"),
        ({"snapshot": True, "stacks": True}, "belongs to a trace"),
        ({"steps": "0"}, "--steps"),
        ({"steps": "many"}, "--steps"),
        ({"seconds": "9h"}, "--seconds"),
        ({"at": "-1"}, "--at"),
        ({"rank": "x"}, "--rank"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_looked_at(given, refusal):
    with pytest.raises(UsageError, match=refusal):
        parse_asked(CaptureOptions(**given))
    with pytest.raises(UsageError, match="readonly"):
        parse_asked(CaptureOptions(readonly=True))
    asked = parse_asked(CaptureOptions(steps="7", shapes=True))
    assert (asked.steps, asked.shapes, asked.stacks) == (7, True, False)
