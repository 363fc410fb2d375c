"""What can be chosen of a capture, by keys and by the run, and the talk about it: a yes is to the question that stands."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.goldens import capture_views
from tests.members import member
from tpmon.capture import dialog
from tpmon.capture.dialog import (
    COUNT_APART,
    NO_CUDA,
    STAYS_SLOWER,
    CaptureDialog,
    ChosenAnewError,
    RankHook,
    advise_on_slot,
    judge_offers,
    say_plan,
    say_plan_of_kineto,
)
from tpmon.capture.nsys import HOLDS_SLOT, judge_nsys, traces_cuda, write_nsys_command
from tpmon.capture.plan import MeasuredPace
from tpmon.commands import capture as capture_command
from tpmon.commands.capture import MOST_STEPS, STEPS
from tpmon.commands.screen import find_shown
from tpmon.errors import UsageError
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.capture import (
    STEP_CHOICES,
    UNKNOWN,
    CaptureAnswer,
    CaptureAsked,
    CaptureChoice,
    CaptureKind,
    CaptureOffers,
    CaptureStage,
    CaptureState,
    can_be,
    next_kind,
    refuse,
)
from tpmon.probe.job import discovery
from tpmon.probe.job.discovery import read_ancestors, runs_cuda_11, stays_slower, uses_cuda
from tpmon.report.capture import write_capture_line

TRACE, SNAPSHOT, NSYS = CaptureKind.TRACE, CaptureKind.SNAPSHOT, CaptureKind.NSYS_RANGE
ALL = CaptureOffers("rank 0", 2)
NO_SNAPSHOT = replace(ALL, refused=((SNAPSHOT, NO_CUDA),))
WELL = [write_nsys_command("nsys", ["python", "x.py"])]
ENDS_RUN = [["nsys", "profile", "-c", "cudaProfilerApi", "python", "x.py"]]


def test_a_choice_begins_as_the_command_does():
    assert CaptureChoice() == CaptureChoice(TRACE, STEPS, every=False)
    assert STEPS in STEP_CHOICES
    assert STEP_CHOICES[-1] == MOST_STEPS


def test_kinds_go_round_and_pass_by_what_cannot_be():
    kinds = [CaptureChoice()]
    for _ in range(3):
        kinds.append(next_kind(kinds[-1], ALL))
    assert [one.kind for one in kinds] == [TRACE, SNAPSHOT, NSYS, TRACE]
    assert next_kind(CaptureChoice(), NO_SNAPSHOT).kind is NSYS
    neither = replace(ALL, refused=((SNAPSHOT, "a"), (NSYS, "b")))
    assert next_kind(CaptureChoice(steps=2), neither) == CaptureChoice(steps=2)


def test_what_cannot_be_gives_way_to_what_can():
    wanted = CaptureChoice(SNAPSHOT, 20, every=True)
    assert can_be(wanted, ALL) == wanted
    assert can_be(wanted, NO_SNAPSHOT) == replace(wanted, kind=TRACE)
    assert can_be(wanted, replace(ALL, every="x")) == replace(wanted, every=False)
    nothing = replace(ALL, refused=tuple((kind, "x") for kind in CaptureKind))
    assert can_be(CaptureChoice(), nothing) == CaptureChoice(), "its own reason is said then"


def test_a_refusal_takes_back_what_was_chosen_beyond_the_choice_before():
    good = CaptureChoice()
    assert refuse(replace(good, kind=SNAPSHOT, every=True), good, "why", ALL) == replace(
        ALL, refused=((SNAPSHOT, "why"),)
    )
    assert refuse(replace(good, every=True), good, "why", ALL) == replace(ALL, every="why")
    assert refuse(replace(good, steps=20), good, "why", ALL) is None


def hook(rank: int, lacks: str = "", steps: int = 100) -> RankHook:
    pace = Missing(lacks) if lacks else MeasuredPace(steps, 10.0, evaluates=False)
    return RankHook(4200 + rank, rank, lacks, pace)


def test_the_line_that_is_written_is_one_that_is_accepted():
    words = write_nsys_command("/opt/nsys", ["torchrun", "--capture-range=none", "x.py"])
    assert words[-3:] == ["torchrun", "--capture-range=none", "x.py"]
    assert judge_nsys([words]) == ""
    assert traces_cuda([words])


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("nsys profile -c cudaProfilerApi --capture-range-end=stop python x", ""),
        ("nsys profile --capture-range=cudaProfilerApi --capture-range-end repeat:3 python x", ""),
        ("/opt/nsys launch --capture-range=cudaProfilerApi --capture-range-end=repeat python x", ""),
        ("nsys profile -t cuda,nvtx -o report -c cudaProfilerApi --capture-range-end=repeat:3 python x", ""),
        ("nsys profile --trace cuda --capture-range cudaProfilerApi --capture-range-end stop python x", ""),
        ("/bin/sh /usr/bin/nsys profile --capture-range=cudaProfilerApi --capture-range-end=repeat python x", ""),
        ("nsys profile --capture-range=cudaProfilerApi python x", "can end the run"),
        ("nsys profile -c cudaProfilerApi --capture-range-end=stop-shutdown python x", "can end the run"),
        ("nsys profile -o report python --capture-range=cudaProfilerApi", "lacks --capture-range"),
        ("torchrun x.py", "cannot be added to a running process"),
    ],
)
def test_a_range_is_opened_only_where_nsys_lets_the_run_live(words, refusal):
    told = judge_nsys([["bash"], words.split(" ")])
    assert (told == "") == (refusal == "")
    assert refusal in told


def test_helpers_of_nsys_between_it_and_the_run_hide_nothing():
    helper = ["/opt/nsight/nsys-launcher", "python", "x"]
    nsys = ["/opt/nsight/nsys", "profile", "-c", "cudaProfilerApi", "--capture-range-end=repeat", "python", "x"]
    assert judge_nsys([helper, nsys]) == ""
    assert "lacks --capture-range" in judge_nsys([helper])
    assert "cannot be added" in judge_nsys([["sh", "-c", "nsys profile python x"], ["sh"], []])


def test_what_nsys_records_decides_who_has_the_gpu():
    assert traces_cuda([["bash"], ["nsys", "profile", "python", "x"]])
    assert traces_cuda([["nsys", "profile", "-t", "nvtx,cuda", "python", "x"]])
    assert not traces_cuda([["nsys", "profile", "--trace=osrt", "python", "x"]])
    assert not traces_cuda([["python", "nsys"]])


def test_on_a_cpu_without_nsys_a_trace_alone_can_be():
    offers = judge_offers(hook(0), [hook(0), hook(1)], [["bash"]], uses_cuda=False)
    assert (offers.who, offers.ranks, offers.every) == ("rank 0", 2, "")
    assert offers.kinds() == (TRACE,)
    reasons = dict(offers.refused)
    assert reasons[SNAPSHOT] == NO_CUDA
    assert reasons[NSYS] == "nsys is not in front of this run, and cannot be added to a running process"


@pytest.mark.parametrize(
    ("above", "kinds", "reason"),
    [
        ([["bash"]], (TRACE, SNAPSHOT), "nsys is not in front"),
        (WELL, (SNAPSHOT, NSYS), ""),
        (ENDS_RUN, (SNAPSHOT,), "--capture-range-end=stop-shutdown of nsys can end the run with the window"),
        ([["nsys", "profile", "--trace=osrt", "python"]], (TRACE, SNAPSHOT), "nsys in front of this run does not"),
    ],
)
def test_on_a_gpu_the_nsys_in_front_decides(above, kinds, reason):
    offers = judge_offers(hook(0), [hook(0)], above, uses_cuda=True)
    assert offers.kinds() == kinds
    reasons = dict(offers.refused)
    assert reasons.get(NSYS, "").startswith(reason)
    assert reasons.get(TRACE, HOLDS_SLOT) == HOLDS_SLOT


def test_all_ranks_need_hooks_that_count_alike():
    def every(*hooks):
        return judge_offers(hooks[0], hooks, [], uses_cuda=False).every

    assert every(hook(0), hook(1, steps=101)) == ""
    assert every(hook(0)) == "it is the only rank on this machine"
    assert every(hook(0), hook(1, "process 4201 has no hook")) == "process 4201 has no hook"
    assert every(hook(0), hook(1, steps=900)) == COUNT_APART
    late = replace(hook(1), pace=Missing(dialog.COUNTS_LATE))
    assert every(hook(0, steps=900), late) == "", "they begin by their count of collectives"


def test_without_a_hook_nothing_but_a_trace_of_kineto_can_be():
    bare = replace(hook(0, "process 4200 has no hook"), rank=NOT_APPLICABLE)
    offers = judge_offers(bare, [bare], WELL, uses_cuda=True)
    assert offers.who == "process 4200"
    reasons = dict(offers.refused)
    assert reasons[SNAPSHOT] == reasons[NSYS] == "process 4200 has no hook"


def test_the_advice_where_nsys_has_the_slot_leads_to_no_second_refusal():
    assert advise_on_slot(7, "", WELL) == "tpmon capture 7 --cuda-profiler has nsys record"
    for lacks, above, why in (
        ("", ENDS_RUN, "--capture-range-end=stop-shutdown of nsys can end the run"),
        ("", [["nsys", "profile", "python"]], "lacks --capture-range=cudaProfilerApi"),
        ("process 7 has no hook", WELL, "process 7 has no hook"),
    ):
        advice = advise_on_slot(7, lacks, above)
        assert "--cuda-profiler" not in advice
        assert "tpmon run --nsys -- COMMAND" in advice
        assert why in advice


@pytest.mark.parametrize(
    ("kind", "above", "said"),
    [
        (TRACE, WELL, (HOLDS_SLOT, "--cuda-profiler has nsys record")),
        (TRACE, ENDS_RUN, (HOLDS_SLOT, "start the run again")),
        (NSYS, ENDS_RUN, ("can end the run with the window", "run --nsys -- COMMAND")),
    ],
)
def test_a_refused_trace_says_that_advice_and_a_range_that_can_end_the_run_is_never_asked_for(
    monkeypatch, tmp_path, kind, above, said
):
    monkeypatch.setattr(discovery, "read_ancestors", lambda _pid: above)
    monkeypatch.setattr(discovery, "uses_cuda", lambda _pid: True)
    monkeypatch.setattr(dialog, "read_hook", lambda process, rank: hook(0))
    monkeypatch.setattr(capture_command, "choose_ranks", lambda *_, **_more: [member(os.getpid())])
    with pytest.raises(UsageError) as refused:
        capture_command.capture_job(None, asked(tmp_path, kind), None, None)
    assert (said[0] in refused.value.what, said[1] in refused.value.try_this) == (True, True), refused.value


def test_a_trace_of_a_run_that_another_tool_has_is_refused_whatever_records_it(monkeypatch):
    monkeypatch.setattr(discovery, "read_ancestors", lambda _pid: [])
    monkeypatch.setattr(discovery, "uses_cuda", lambda _pid: True)
    environment = {**os.environ, "CUDA_INJECTION64_PATH": "/opt/odd tool/lib/libwatches.so"}
    with subprocess.Popen(["sleep", "60"], env=environment) as run:
        try:
            with pytest.raises(UsageError, match=r"libwatches\.so in this run holds the GPU's one profiling"):
                capture_command._check_slot(member(run.pid), TRACE)
        finally:
            run.kill()
    capture_command._check_slot(member(os.getpid()), TRACE)


def test_what_stands_in_front_and_cuda_are_read_from_outside(tmp_path):
    with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
        parent = file.read().rstrip(b"\0").decode().split("\0")
    assert read_ancestors(os.getpid())[0] == parent
    assert not uses_cuda(os.getpid())
    maps = tmp_path / "7" / "maps"
    maps.parent.mkdir()
    maps.write_text("7f00-7f01 r--p 00000000 08:01 42 /usr/lib/x86_64-linux-gnu/libcuda.so.550.54\n")
    assert uses_cuda(7, str(tmp_path))
    assert not uses_cuda(8, str(tmp_path))
    environ = tmp_path / "7" / "environ"
    assert stays_slower(7, str(tmp_path)), "an environment that cannot be read tells nothing"
    for text, slower in ((b"A=1\0TEARDOWN_CUPTI=0\0", True), (b"A=1\0TEARDOWN_CUPTI=1\0B=2\0", False)):
        environ.write_bytes(text)
        assert stays_slower(7, str(tmp_path)) is slower
    assert not stays_slower(os.getpid())


@pytest.mark.parametrize(
    ("library", "is_of_11"),
    [
        ("/venv/nvidia/cuda_runtime/lib/libcudart.so.11.0", True),
        ("/venv/torch/lib/libcudart-d0da41ae.so.11.0", True),
        ("/conda/lib/libcudart.so.11.8.89", True),
        ("/venv/nvidia/cuda_runtime/lib/libcudart.so.12", False),
        ("/venv/nvidia/cufft/lib/libcufft.so.11", False),
        ("/venv/nvidia/cusolver/lib/libcusolver.so.11", False),
    ],
)
def test_cuda_11_is_told_by_the_runtime_that_is_loaded(tmp_path, library, is_of_11):
    maps = tmp_path / "7" / "maps"
    maps.parent.mkdir()
    maps.write_text(f"7f00-7f01 r--p 00000000 08:01 42 /usr/lib/libc.so.6\n7f02-7f03 r--p 0 08:01 43 {library}\n")
    assert runs_cuda_11(7, str(tmp_path)) is is_of_11
    assert not runs_cuda_11(8, str(tmp_path))


def test_of_several_ranks_one_line_names_the_folder_that_a_screen_shows():
    one = capture_views.result()
    first = one.files[0]
    second = replace(first, rank=1, host_path=first.host_path.replace("rank0", "rank1"))
    both = replace(one, files=(first, second))
    summary = capture_views.summary()
    line = write_capture_line(both, (summary, replace(summary, rank=1)))
    assert line == "capture done: 5 steps of 13.10 ms, most in aten::addmm, 2 files in /runs/a"
    assert (find_shown(one), find_shown(both)) == (first.host_path, "/runs/a")
    snapshots = replace(both, files=tuple(replace(file, kind=SNAPSHOT) for file in both.files))
    assert find_shown(snapshots) == first.host_path, "a folder stands for its traces alone"
    ranged = replace(one, files=(), backend="cudaProfilerStart and Stop for nsys")
    assert find_shown(ranged) == ""
    assert write_capture_line(ranged, ()) == "capture done: cudaProfilerStart and Stop for nsys"
    failed = replace(ranged, state=CaptureState.FAILED)
    assert write_capture_line(failed, ()) == "capture failed: no file"


PLANNED, SIZING, PRICED, RECORDING = (
    CaptureStage.PLANNED,
    CaptureStage.SIZING,
    CaptureStage.PRICED,
    CaptureStage.RECORDING,
)


@pytest.fixture
def told():
    return []


@pytest.fixture
def talk(told):
    return CaptureDialog(told.append)


def agree(talk: CaptureDialog, stage: CaptureStage, *said: str, choice: CaptureChoice | None = None) -> None:
    """Have a question put, say yes to it, and see that it was heard."""
    assert not talk.agreed(stage, said)
    talk.answer(CaptureAnswer(stage, True, choice or CaptureChoice()))
    assert talk.agreed(stage, ())


def test_each_question_takes_a_yes_of_its_own(talk, told):
    talk.tell("waits for the first step of the loop")
    talk.answer(CaptureAnswer(PLANNED, goes=True))
    assert not talk.agreed(PLANNED, ("5 steps", "12 ms"))
    assert not talk.agreed(PLANNED, ("5 steps", "12 ms")), "what was said before the question is no yes to it"
    assert (told[-1].stage, told[-1].plan, len(told)) == (PLANNED, ("5 steps", "12 ms"), 2)
    talk.answer(CaptureAnswer(PRICED, goes=True))
    assert not talk.agreed(PLANNED, ())
    talk.answer(CaptureAnswer(PLANNED, goes=True))
    assert talk.agreed(PLANNED, ())
    talk.answer(CaptureAnswer(PLANNED, goes=True))
    assert not talk.agreed(PRICED, ("31 ms",)), "a key that was pressed twice says one yes"
    talk.answer(CaptureAnswer(PRICED, goes=True))
    assert talk.agreed(PRICED, ("31 ms",))
    talk.tell("recording step 1 of 5")
    assert [one.stage for one in told[1:]] == [PLANNED, SIZING, PRICED, RECORDING, RECORDING]
    assert (told[-1].plan, told[-1].price) == (("5 steps", "12 ms"), ("31 ms",))


def test_a_dear_price_takes_a_second_yes(talk, told):
    agree(talk, PRICED, "13 s")
    dear = CaptureStage.DEAR
    assert not talk.agreed(dear, ("13 s", "more than 2 s"))
    talk.answer(CaptureAnswer(PRICED, goes=True))
    assert not talk.agreed(dear, ()), "that yes was to the price"
    assert (told[-1].stage, told[-1].price) == (dear, ("13 s", "more than 2 s"))
    talk.answer(CaptureAnswer(dear, goes=True))
    assert talk.agreed(dear, ())
    assert told[-1].stage is RECORDING


def test_a_hook_is_put_in_after_two_yeses_of_its_own_and_another_choice_asks_anew(talk, told):
    hookless, hooking = CaptureStage.HOOKLESS, CaptureStage.HOOKING
    agree(talk, hookless, "384 bytes", "can go wrong")
    assert told[-1].plan == ("384 bytes", "can go wrong")
    assert not talk.agreed(hooking, ())
    talk.answer(CaptureAnswer(hookless, goes=True))
    assert not talk.agreed(hooking, ()), "a key that was pressed twice says one yes"
    assert (told[-1].stage, told[-1].plan) == (hooking, ("384 bytes", "can go wrong"))
    talk.choose(TEN)
    with pytest.raises(ChosenAnewError):
        talk.agreed(hooking, ())
    talk.begin()
    for stage in (hookless, hooking):
        agree(talk, stage, choice=TEN)
    assert (told[-1].stage, told[-1].line) == (SIZING, "puts the hook in")
    agree(talk, PLANNED, "10 steps", choice=TEN)


def test_a_hook_that_stayed_in_is_said_to_who_left_too(talk, told):
    talk.agreed(PLANNED, ("5 steps",))
    talk.answer(CaptureAnswer(PLANNED, goes=False))
    talk.warn("the hook is still in pid 7")
    talk.end("capture cancelled")
    assert told[-1].line == "the hook is still in pid 7"


def test_a_window_that_begins_anew_asks_anew(talk, told):
    for stage in (PLANNED, PRICED, PLANNED, PRICED):
        agree(talk, stage, "x")
    assert told[-3].price == (), "the price before is none of this window"


@pytest.mark.parametrize(("stage", "line"), [(PLANNED, ""), (PRICED, ""), (RECORDING, "capture cancelled")])
def test_a_no_stops_it_and_a_price_that_was_left_says_nothing(talk, told, stage, line):
    for asked in (PLANNED, PRICED):
        if asked is stage:
            talk.agreed(asked, ())
            break
        agree(talk, asked)
    assert not talk.stopped()
    talk.answer(CaptureAnswer(stage, goes=False))
    assert talk.stopped()
    before = len(told)
    talk.tell("reading what was written")
    assert len(told) - before == bool(line), "of a price that was left nothing more is said"
    talk.end("capture cancelled", ("cancelled: by torch.profiler",))
    assert (told[-1].stage, told[-1].line) == (CaptureStage.ENDED, line)


def test_a_reason_that_there_is_no_capture_is_said(talk, told):
    talk.end("no capture: process 7 has no hook")
    assert told[-1].line == "no capture: process 7 has no hook"
    assert CaptureDialog(told.append, lambda: True).stopped()


TEN = CaptureChoice(steps=10)
EVERY = CaptureChoice(every=True)
HISTORY = CaptureChoice(CaptureKind.SNAPSHOT)
OFFERS = CaptureOffers("rank 0", 2)


@pytest.mark.parametrize("stage", [PLANNED, PRICED])
def test_who_chooses_otherwise_is_planned_for_anew_and_a_yes_before_is_none(talk, told, stage):
    talk.offer(OFFERS)
    assert talk.begin() == CaptureChoice()
    assert not talk.agreed(PLANNED, ("5 steps",))
    talk.answer(CaptureAnswer(PLANNED, goes=True))
    if stage is PRICED:
        assert talk.agreed(PLANNED, ())
        assert not talk.agreed(PRICED, ("31 ms",))
        talk.answer(CaptureAnswer(PRICED, goes=True))
    talk.choose(TEN)
    assert (told[-1].stage, told[-1].choice) == (CaptureStage.ASKED, TEN)
    assert (told[-1].plan, told[-1].price, told[-1].offers) == ((), (), OFFERS)
    with pytest.raises(ChosenAnewError):
        talk.agreed(stage, ("5 steps",))
    assert talk.begin() == TEN
    assert not talk.agreed(PLANNED, ("10 steps",))
    talk.answer(CaptureAnswer(PLANNED, goes=True))
    assert not talk.agreed(PLANNED, ()), "that yes is to 5 steps, which stood there before"
    talk.answer(CaptureAnswer(PLANNED, goes=True, choice=TEN))
    assert talk.agreed(PLANNED, ())


def test_too_late_to_choose_once_it_acts(talk, told):
    agree(talk, PLANNED)
    before = len(told)
    talk.choose(TEN)
    assert told[before:] == [told[before - 1]], "the screen is told again what stands"
    assert (told[-1].stage, talk.begin()) == (SIZING, CaptureChoice())


def test_what_no_probe_sizes_is_recorded_after_one_yes(talk, told):
    talk.choose(HISTORY)
    talk.begin()
    agree(talk, PLANNED, "history of 5 steps", choice=HISTORY)
    assert told[-1].stage is RECORDING


def test_what_cannot_be_is_not_begun_with(talk, told):
    talk.offer(CaptureOffers("rank 0", 1, ((CaptureKind.TRACE, "nsys has the slot"),)))
    assert talk.begin().kind is CaptureKind.SNAPSHOT
    assert told[-1].choice.kind is CaptureKind.SNAPSHOT


def test_a_choice_that_fails_is_taken_back_with_its_reason(talk, told):
    talk.offer(OFFERS)
    talk.begin()
    assert not talk.take_back("no step ends"), "there is no choice before the first"
    talk.agreed(PLANNED, ("5 steps",))
    assert not talk.take_back("no step ends"), "the plan that stands is a good one"
    talk.choose(EVERY)
    talk.begin()
    assert talk.take_back("no step ends")
    assert (told[-1].choice, told[-1].offers) == (CaptureChoice(), CaptureOffers("rank 0", 2, every="no step ends"))
    talk.begin()
    talk.agreed(PLANNED, ("5 steps",))
    talk.choose(HISTORY)
    talk.begin()
    talk.choose(CaptureChoice(CaptureKind.SNAPSHOT, 10))
    assert talk.take_back("no CUDA")
    assert talk.begin() == TEN, "what was chosen meanwhile stays, as far as it can be"
    talk.choose(CaptureChoice(steps=20))
    talk.begin()
    assert not talk.take_back("the process ended"), "more steps are no reason"


def asked(folder: Path, kind: CaptureKind = CaptureKind.TRACE, *, timed: bool = False) -> CaptureAsked:
    return CaptureAsked(kind, 5, 10.0, False, False, False, NOT_APPLICABLE, str(folder), timed=timed)


def test_a_plan_says_what_is_known_and_what_is_not(tmp_path):
    what, pace, room, unknown = say_plan(asked(tmp_path / "out"), os.getpid(), 3, 412.5)
    assert what == f"5 steps of rank 3, process {os.getpid()}, by torch.profiler from its step hook"
    assert pace == "a step takes 412.5 ms now: about 2.1 s are recorded"
    assert str(tmp_path / "out") in room
    assert room.endswith("free there")
    assert unknown.startswith(UNKNOWN)
    _, pace, room, _ = say_plan(asked(tmp_path / "a" / "b" / "c"), os.getpid(), -1, Missing("too few steps"))
    assert pace == "how long a step takes is not known: too few steps"
    assert room.endswith("free space not read: No such file or directory")
    assert say_plan(asked(tmp_path, timed=True), 7, -1, 1.0)[0].startswith("10 s of process 7, which ends no")
    plan = say_plan_of_kineto(asked(tmp_path), 7, hooked=False)
    assert plan[0].startswith("5 updates of an optimizer in process 7")
    assert any("no limit of time or size ends it" in line for line in plan)
    for planned in (
        say_plan_of_kineto(asked(tmp_path), 7, hooked=False, stays_slower=True),
        say_plan(asked(tmp_path), 7, -1, 1.0, stays_slower=True),
    ):
        assert planned[-2] == STAYS_SLOWER
        assert "TEARDOWN_CUPTI=1" in planned[-2]
    hooked = say_plan_of_kineto(asked(tmp_path), 7, hooked=True)
    (more,) = set(hooked) - set(plan)
    assert "the loop pauses" in more


def test_a_plan_is_that_of_what_is_chosen(tmp_path):
    every = say_plan(asked(tmp_path), 7, 0, 12.0, 4)
    for timeout_s, limit in ((1800, "30m00s"), (0, "10 min, unless the program sets another one")):
        waited = say_plan(asked(tmp_path), 7, 0, 12.0, timeout_s=timeout_s)
        assert len(waited) == len(every) + 1
        assert "the other ranks wait in their collectives" in waited[-2]
        assert waited[-2].endswith(f"the timeout of their group: {limit}")
    assert every[0] == "5 steps of all 4 ranks here, by torch.profiler from their step hook"
    assert "512M of each, packed" in every[2]
    assert "One step of each is profiled" in every[3]
    what, pace, room, unknown = say_plan(asked(tmp_path, CaptureKind.SNAPSHOT), 7, 0, 12.0)
    assert what == "the CUDA allocator's history over 5 steps of rank 0, process 7"
    assert pace == "a step takes 12.0 ms now: about 60 ms are recorded"
    assert room.startswith("the newest 100,000 allocations and their stacks, at most some 391M of memory")
    assert str(tmp_path) in room
    assert unknown.startswith(UNKNOWN)
    one = replace(asked(tmp_path), steps=1)
    assert say_plan(one, 7, 0, 12.0)[0].startswith("1 step of rank 0, ")
    assert say_plan_of_kineto(one, 7, hooked=False)[0].startswith("1 update of an optimizer")
    what, _, room, unknown = say_plan(asked(tmp_path, CaptureKind.NSYS_RANGE), 7, 0, 12.0)
    assert what == "5 steps of rank 0, process 7, as a range for the nsys in front of the run"
    assert (str(tmp_path) in room, unknown.startswith(UNKNOWN)) == (False, True)
