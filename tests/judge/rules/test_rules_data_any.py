"""The rules of data on any finite Window: answers in bounds, no accusation without a reading."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.data_rules import ALL, NO_STACKS, causes
from tests.frames import make_gpu
from tests.judging import make_phases
from tests.starving import RANK, line_up, make_second
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import BATCH_WAIT, see
from tpmon.judge.stacks.profile import DataPart, Phase
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known

READING = st.one_of(st.floats(0, 1e12), st.just(0.0), st.just(Missing("not read")))
RATIO = st.one_of(st.floats(0, 1), st.just(Missing("not read")))
WORDS = st.sampled_from(
    [
        "running",
        BATCH_WAIT,
        "work from its rank (loader queue)",
        "sleep",
        "disk",
        "socket or tty",
        "poll",
        "NFS",
    ]
)
PROCESS = st.fixed_dictionaries(
    {
        "runnable": st.one_of(st.floats(0, 64), st.just(Missing("not read"))),
        "waiting": st.one_of(st.floats(0, 64), st.just(Missing("not read"))),
        "waits_for": st.one_of(WORDS, st.just(Missing("not read"))),
        "state": st.sampled_from("RSDTZ"),
        "busy_threads": st.one_of(st.integers(0, 64), st.just(Missing("not read"))),
        "asked_read_bytes_s": READING,
        "device_read_bytes_s": READING,
        "read_calls_s": READING,
        "major_faults_s": READING,
        "minor_faults_s": READING,
        "rss_bytes": st.integers(0, 1 << 45),
    }
)


@st.composite
def a_second(draw):
    frame = make_second(
        draw(st.floats(0, 1)),
        draw(st.lists(PROCESS, max_size=3)),
        rank=draw(PROCESS),
        loader={
            "ready_batches": draw(READING),
            "empty_ratio": draw(RATIO),
            "pin_thread": draw(st.booleans()),
            "births": draw(st.integers(0, 500)),
        },
        cpu={
            "budget_cores": draw(READING),
            "runnable": draw(READING),
            "used_cores": draw(READING),
            "oversubscription": draw(READING),
            "run_delay_ratio": draw(RATIO),
        },
    )
    memory = replace(
        frame.memory,
        anon_bytes=draw(st.one_of(st.integers(0, 1 << 45), st.just(Missing("not read")))),
        anon_growth_bytes_s=draw(READING),
        used_bytes=draw(st.one_of(st.integers(0, 1 << 45), st.just(Missing("not read")))),
        limit_bytes=draw(st.sampled_from([NOT_APPLICABLE, 0, 1 << 34, Missing("not read")])),
        swap_bytes=draw(st.one_of(st.integers(0, 1 << 40), st.just(Missing("not read")))),
        refault_bytes_s=draw(READING),
        major_faults_s=draw(READING),
        psi_some_pct=draw(READING),
        host_available_bytes=draw(st.one_of(st.integers(0, 1 << 45), st.just(Missing("not read")))),
        host_total_bytes=draw(st.sampled_from([0, 1 << 45])),
    )
    gpus = draw(st.sampled_from([frame.gpus, (make_gpu(sm_pct=draw(READING)),)]))
    looks = draw(st.sampled_from([frame.main_threads, NO_STACKS, ()]))
    return replace(frame, memory=memory, gpus=gpus, main_threads=looks)


PARTS = st.dictionaries(st.sampled_from(list(DataPart)), st.floats(0, 0.2))


@given(st.lists(a_second(), min_size=1, max_size=5), st.integers(1, 14), PARTS, st.floats(0, 1))
def test_any_finite_window_gets_an_answer_in_bounds(seconds, times, parts, wait):
    phases = make_phases({Phase.DATA_WAIT: wait, Phase.OTHER: 1 - wait}, parts=parts)
    scene = see(line_up(seconds * times), {RANK: phases})
    for rule in ALL:
        answer = rule(scene)
        assert isinstance(answer, (Suspicion, Cleared, Unsure))
        if isinstance(answer, Suspicion):
            assert 0 <= answer.weight <= 1
            assert answer.margin >= 1 - 1e-9
            assert answer.sources
            assert not is_known(answer.share) or math.isfinite(answer.share)


@given(a_second())
def test_a_window_in_which_nothing_was_read_accuses_nobody(second):
    gone = Missing("not read")
    names = ("runnable", "waiting", "waits_for", "busy_threads", "read_calls_s", "major_faults_s")
    blind = replace(
        second,
        processes=tuple(replace(one, state="S", **dict.fromkeys(names, gone)) for one in second.processes),
        main_threads=gone,
        memory=replace(
            second.memory,
            anon_bytes=gone,
            swap_bytes=gone,
            shm=gone,
            refault_bytes_s=gone,
            major_faults_s=gone,
            psi_some_pct=gone,
        ),
    )
    scene = see(line_up([blind] * 14))
    assert causes(scene, ALL) == set()
