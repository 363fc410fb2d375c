"""Keep full Frames for a minute and thin Pulses for ten, by the Frames' own clock."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import make_cpu, make_frame, make_gpu, make_loader, make_memory, make_process
from tpmon.model.frame import Window, pulse_of
from tpmon.model.host import ShmSample
from tpmon.model.known import Missing

SECOND = 1_000_000_000
REFUSED = Missing("permission denied")


def at(seconds: float, **fields):
    return make_frame(taken_ns=int(seconds * SECOND), **fields)


def test_an_empty_window_has_no_last_frame():
    window = Window()
    assert (len(window), window.pulses(), list(window)) == (0, (), [])
    with pytest.raises(IndexError):
        window.last()


def test_frames_are_kept_for_a_minute_pulses_for_ten_and_one_earlier_frame_in_ten_seconds_for_the_minutes_before():
    window = Window()
    for second in range(50):
        window.append(at(second))
    assert window.earlier() == ()
    for second in range(50, 700):
        window.append(at(second))
    earlier = [frame.taken_ns // SECOND for frame in window.earlier()]
    assert earlier == list(range(400, 639, 10))
    assert [frame.taken_ns for frame in window] == [s * SECOND for s in range(639, 700)], "what the judge sees"
    assert [pulse.taken_ns for pulse in window.pulses()] == [s * SECOND for s in range(99, 700)]
    assert len(window) == 61
    assert window.last().taken_ns == 699 * SECOND


@given(st.lists(st.floats(0.5, 200), min_size=1, max_size=60))
def test_the_spans_are_time_and_not_a_number_of_frames(gaps):
    window = Window()
    now = 0.0
    for gap in gaps:
        now += gap
        window.append(at(now))
        pulses = window.pulses()
        assert window.last().taken_ns - next(iter(window)).taken_ns <= 60 * SECOND
        assert pulses[-1].taken_ns - pulses[0].taken_ns <= 600 * SECOND
        kept = [frame.taken_ns for frame in (*window.earlier(), *window)]
        assert kept == sorted(set(kept))
        assert kept[-1] - kept[0] <= 300 * SECOND
        assert len(window.earlier()) <= 25
        assert [p.taken_ns for p in pulses] == sorted(p.taken_ns for p in pulses)
        assert len(window) == sum(pulses[-1].taken_ns - p.taken_ns <= 60 * SECOND for p in pulses)
    assert window.last().taken_ns == int(now * SECOND)


def test_a_stop_of_an_hour_leaves_the_new_frame_alone():
    window = Window()
    window.append(at(1))
    window.append(at(3601))
    assert len(window) == len(window.pulses()) == 1


def test_a_pulse_takes_the_figures_of_its_frame():
    frame = at(
        5,
        cpu=make_cpu(used_cores=1.5, runnable=2.5, run_delay_ratio=0.4),
        memory=make_memory(used_bytes=700, shm=ShmSample("/dev/shm", 30, 120)),
        loader=(make_loader(ready_batches=3.0), make_loader(4300, ready_batches=1.0)),
        processes=(make_process(device_read_bytes_s=5.0), make_process(2, device_read_bytes_s=7.0)),
        gpus=(make_gpu(0, sm_pct=11.0), make_gpu(1, sm_pct=REFUSED)),
    )
    pulse = pulse_of(frame)
    assert (pulse.used_cores, pulse.runnable, pulse.run_delay_ratio) == (1.5, 2.5, 0.4)
    assert (pulse.memory_bytes, pulse.shm_ratio) == (700, 0.25)
    assert pulse.ready_batches == 1.0, "the rank that has fewest waits next"
    assert pulse.device_read_bytes_s == 12.0
    assert pulse.gpu_pct == (11.0, REFUSED)


def test_a_pulse_of_what_could_not_be_read_is_missing_and_not_zero():
    frame = at(
        5,
        cpu=make_cpu(used_cores=REFUSED),
        memory=make_memory(used_bytes=REFUSED, rss_bytes=900, shm=REFUSED),
        loader=(make_loader(ready_batches=REFUSED),),
        processes=(make_process(device_read_bytes_s=REFUSED),),
        gpus=REFUSED,
    )
    pulse = pulse_of(frame)
    assert pulse.used_cores == REFUSED
    assert pulse.memory_bytes == 900, "without a control group the processes' own sum"
    for figure in (pulse.shm_ratio, pulse.ready_batches, pulse.device_read_bytes_s):
        assert isinstance(figure, Missing)
    assert pulse.gpu_pct == ()
    empty = replace(frame, memory=make_memory(shm=ShmSample("/dev/shm", 0, 0)))
    assert isinstance(pulse_of(empty).shm_ratio, Missing)


def test_values_are_one_figure_of_every_pulse_oldest_first():
    window = Window()
    for second in range(3):
        window.append(at(second, cpu=make_cpu(runnable=float(second) if second else REFUSED)))
    assert window.values(lambda pulse: pulse.runnable) == (REFUSED, 1.0, 2.0)
