"""A card that does not answer: whose it is, whether the run goes on, what is said, and the exit code."""

from dataclasses import replace
from typing import Any

import pytest

from tests.dumps import make_rank
from tests.frames import make_frame, make_gpu, make_output, make_process, make_target, make_view
from tests.frames import make_rank as make_row
from tests.hanging import run, sample, stand
from tests.judge.hang.test_devices import ITEM
from tests.judging import hold
from tests.waits import wait_of
from tpmon.commands.diagnose import pick_exit_code
from tpmon.model.frame import Frame
from tpmon.model.gpu import GpuProcess, GpuSample, GpuState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.text.job_words import state_facts
from tpmon.model.verdict import Confidence, Finding, Kind
from tpmon.report.once import write_once
from tpmon.ui.monitor.layout import paint_screen
from tpmon.view.layout import Size

RANKS = (make_process(4211), make_process(4212, rank=1, local_rank=1))
FIGURES = ("sm_pct", "sm_active_pct", "tensor_pct", "dram_pct", "power_w", "sm_clock_mhz", "throttle_known")
OPEN = Missing("which /dev/nvidiaN it is is not known")


def silence(index: int, age_s: float, **fields: Any) -> GpuSample:
    """Make a card that has not answered for a while."""
    unread = dict.fromkeys(FIGURES, Missing("the card does not answer"))
    return make_gpu(index, **({"state": GpuState.STALE, "age_s": age_s} | unread | fields))


def watch(seconds: int, silent_s: int, log_every_s: int = 0, ranks: Any = RANKS, **card: Any) -> list[Frame]:
    """Make a job whose second card falls silent; ``silent_s`` may be longer than tpmon watches."""
    frames = []
    for number, frame in enumerate(hold(make_frame(processes=ranks, loader=()), seconds)):
        age_s = silent_s - (seconds - number)
        second = silence(1, age_s, **{"pids": (4212,), **card}) if age_s > 3 else make_gpu(1, pids=(4212,))
        log_s = float(number % log_every_s) if log_every_s else 600.0 + number
        log = make_output(last_write_age_s=log_s)
        frames.append(replace(frame, gpus=(make_gpu(0), second), output=(log,)))
    return frames


def conclude(frames: list[Frame]) -> tuple[Finding, Frame]:
    frame = run(frames)[-1].frame
    assert is_known(frame.verdict)
    return frame.verdict, frame


STANDING = tuple(
    replace(one, state="D", waits_for=wait_of("an ioctl of the driver"), waits_unchanged_s=90.0, runnable=0.0)
    for one in RANKS
)
HELD = {"pids": (4211,), "pids_are_visible_only": True}
ONE = RANKS[:1]
ONE_STANDS = STANDING[:1]
IN_NFS = (replace(STANDING[0], waits_for=wait_of("NFS")),)

CASES = [
    # name, how long it is silent, log every, ranks, fields of the card, kind, cause, exit code
    ("just late", 6, 2, RANKS, {}, Kind.COMPUTE_BOUND, "gpu-compute", 11),
    ("late, and the run goes on", 14, 2, RANKS, {}, Kind.GPU_UNHEALTHY, NOT_APPLICABLE, 10),
    ("silent for long, and the run goes on", 35, 2, RANKS, {}, Kind.GPU_UNHEALTHY, NOT_APPLICABLE, 10),
    ("silent, and the run stands", 24, 0, STANDING, {}, Kind.HUNG, "gpu-lost", 12),
    ("lost, and the run stands", 8, 0, STANDING, {"state": GpuState.LOST}, Kind.HUNG, "gpu-lost", 12),
    ("lost, and the log is fresh", 30, 2, RANKS, {"state": GpuState.LOST}, Kind.GPU_UNHEALTHY, NOT_APPLICABLE, 10),
    ("before the attach, two ranks hold two", 60, 0, STANDING, HELD, Kind.HUNG, "gpu-lost", 12),
    ("before the attach, one rank stands", 60, 0, ONE_STANDS, HELD, Kind.HUNG, "gpu-lost", 12),
    ("before the attach, one rank goes on", 60, 2, ONE, HELD, Kind.NOT_ENOUGH_EVIDENCE, NOT_APPLICABLE, 11),
    ("nobody knows whose", 60, 2, ONE, {"pids": OPEN}, Kind.NOT_ENOUGH_EVIDENCE, NOT_APPLICABLE, 11),
    ("NVML as a whole", 60, 2, RANKS, {"unheard": "it hangs"}, Kind.NOT_ENOUGH_EVIDENCE, NOT_APPLICABLE, 11),
    ("held, and the rank waits for files", 60, 0, IN_NFS, HELD, Kind.HUNG, "blocked-io", 12),
    ("another job's", 60, 2, ONE, {"pids": ()}, Kind.COMPUTE_BOUND, "gpu-compute", 0),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_silent_card_is_a_sign(case):
    _, silent_s, log_s, ranks, card, kind, cause, code = case
    finding, frame = conclude(watch(40, silent_s, log_s, ranks, **card))
    assert (finding.kind, finding.cause, pick_exit_code(frame)) == (kind, cause, code)
    if silent_s >= 8 and code and cause != "blocked-io":
        assert f"card 1 {'does' if 'state' in card else 'has'} not answer" in finding.summary


def test_the_word_is_there_within_25_s_of_silence_and_nothing_healthy_stands_beside_it():
    judged = run(watch(60, 25, 2))
    kinds = [one.frame.verdict.kind for one in judged]
    assert kinds[30] is Kind.COMPUTE_BOUND
    assert kinds[-12:] == [Kind.GPU_UNHEALTHY] * 12
    assert judged[-1].frame.verdict.summary == "card 1 has not answered the driver for 25 s, and the run goes on"


def test_a_sign_of_life_ends_a_lost_card_s_hang_at_once():
    frames = watch(40, 20, 0, state=GpuState.LOST)
    assert conclude(frames)[0].kind is Kind.HUNG
    fresh = replace(frames[-1], taken_ns=frames[-1].taken_ns + 10**9, output=(make_output(last_write_age_s=0.5),))
    assert conclude([*frames, fresh])[0].kind is Kind.GPU_UNHEALTHY


def test_no_silence_is_a_hang_at_high_confidence_where_the_driver_does_not_call_the_card_lost():
    assert conclude(watch(40, 35, 0, STANDING))[0].confidence is Confidence.MEDIUM
    assert conclude(watch(40, 35, 0, ONE_STANDS, **HELD))[0].confidence is not Confidence.HIGH
    assert conclude(watch(40, 35, 0, STANDING, state=GpuState.LOST))[0].confidence is Confidence.HIGH


@pytest.mark.parametrize(("pids", "code"), [((4211, 4212), 0), ((4211, 4212, 9), 11)])
def test_a_dead_card_that_all_hold_open_who_have_one_of_their_own_is_not_theirs(pids, code):
    """CUDA opens every card of the machine; the dead one is another's, unless somebody without a card holds it."""
    frames = [
        replace(
            frame,
            gpus=(
                make_gpu(0, pids=(4211,)),
                make_gpu(1, pids=(4212,)),
                silence(2, 60.0 + number, pids=pids, pids_are_visible_only=True),
            ),
        )
        for number, frame in enumerate(watch(40, 0, 2))
    ]
    finding, frame = conclude(frames)
    assert (finding.kind is Kind.COMPUTE_BOUND, pick_exit_code(frame)) == (not code, code)
    assert any(note.startswith("silent: card 2") for note in frame.notes)


def test_a_card_that_refuses_has_answered():
    finding, frame = conclude(watch(40, 35, 2, state=GpuState.REFUSED))
    assert "answer" not in finding.summary
    assert pick_exit_code(frame) != 12


def test_where_no_sign_of_life_can_be_read_that_there_is_none_is_no_hang():
    """A driver that is busy for 20 s beside ranks that spin, without stacks, log and hook."""
    frames = [
        replace(frame, output=(), gpus=tuple(silence(i, age_s, pids=(4211 + i,)) for i in (0, 1)))
        if (age_s := number - 10.0) > 3
        else replace(frame, output=())
        for number, frame in enumerate(watch(40, 0, 2))
    ]
    assert conclude(frames)[0].kind is Kind.GPU_UNHEALTHY


def test_names_that_users_give_change_nothing():
    for script in ("train.py", "gpu_lost_hung.py"):
        frames = [replace(one, target=make_target(script=script)) for one in watch(40, 24, 0, STANDING)]
        assert conclude(frames)[0].cause == "gpu-lost"


def test_an_open_silence_is_a_note_and_the_headline_where_nothing_else_is_found():
    finding, frame = conclude(watch(40, 60, 2, ONE, pids=OPEN))
    said = "card 1 has not answered the driver for 1m00s; whether it is the job's is not known"
    assert (finding.summary, finding.card) == (said, 1)
    assert f"silent: {said}" in frame.notes
    assert "dmesg" in finding.try_
    held = conclude(watch(40, 60, 2, ONE, **HELD))[0]
    assert held.summary.endswith("; the job holds it open, but whether it computes there is not known")


@pytest.mark.parametrize(
    ("cards", "fact"),
    [
        ((make_gpu(0), silence(1, 5.0)), "1 of 2 cards answers · GPU 96 % busy"),
        ((make_gpu(0), silence(1, 5.0, pids=OPEN)), "1 of 2 cards answers · GPU 96 % busy"),
        ((make_gpu(0), make_gpu(1), silence(2, 5.0)), "2 of 3 cards answer · 2 GPUs 96 % busy"),
        ((silence(0, 5.0),), "the card does not answer"),
        ((silence(0, 5.0), silence(1, 5.0)), "none of 2 cards answers"),
        ((make_gpu(0), silence(1, 5.0, pids=())), "GPU 96 % busy"),
    ],
)
def test_the_facts_say_how_many_cards_answer(cards, fact):
    facts = state_facts(1, 0, make_frame().cpu, cards)
    assert facts.split(" · no loader")[0] == fact


def test_an_xid_that_ends_a_card_is_told_at_once_behind_a_healthy_verdict():
    frames = watch(90, 0, 2)
    told = [replace(one, gpus=(one.gpus[0], replace(one.gpus[1], xids=(79,)))) for one in frames[-3:]]
    judged = run([*frames[:-3], *told])
    assert judged[-4].frame.verdict.kind is Kind.COMPUTE_BOUND
    assert judged[-1].frame.verdict.kind is Kind.GPU_UNHEALTHY
    assert judged[-1].frame.verdict.summary == "card 1 reports: Xid 79"


def test_a_rank_does_not_wait_five_minutes_for_a_silent_card():
    rank = make_rank(0, frames=ITEM, holds_gil=False, state="R", waits_for="running", wchan="0", call="")
    gpus = (silence(0, 60.0, pids=(rank.pid,)),)
    frames = sample(stand(rank, gpus=gpus, seconds=45), rank.pid, ITEM)
    finding = conclude(frames)[0]
    assert (finding.kind, finding.cause) == (Kind.HUNG, "gpu-lost")
    assert "may work" not in finding.summary


def paint(frame: Frame, width: int, height: int) -> str:
    lines = paint_screen(make_view(frame), Size(width, height))
    return "\n".join("".join(text for text, _ in line) for line in lines)


def test_a_verdict_about_a_card_keeps_the_cards_on_a_small_screen():
    finding, frame = conclude(watch(40, 24, 0, STANDING))
    assert finding.cause == "gpu-lost"
    assert "4 GPUs" in paint(frame, 40, 24)
    assert "GPU 1 STALE: last" in paint(frame, 80, 24)


def test_a_rank_on_several_cards_shows_them():
    both = Missing("it uses several cards: 0, 1")
    listed = (GpuProcess(4211, 1 << 30, 90.0, True),)
    cards = (make_gpu(0, processes=listed), make_gpu(1, processes=listed))
    frame = make_frame(gpus=cards, ranks=(make_row(gpu=both),))
    assert " 0,1 " in paint(frame, 120, 40)
    assert "0,1" in "\n".join(write_once(frame))
