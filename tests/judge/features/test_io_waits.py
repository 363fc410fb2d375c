"""What a worker waits for, in shares of its time: looks, corrected by what is known exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import NOW_NS, make_frame, make_process
from tpmon.judge.features.readings import share_waits, weigh_rest
from tpmon.judge.features.snapshot import see
from tpmon.model.known import Missing
from tpmon.model.process import Role, ThreadGroup, ThreadKind
from tpmon.model.waits import RUNNING, Wait, WaitReason

READ, WORK = Wait(WaitReason.DIRECT_READ), Wait(WaitReason.WORK)


@pytest.mark.parametrize(
    ("states", "demands", "rest"),
    [
        ("RRRRRDDD", (0.32,) * 8, 0.68 * 8 / 3),
        ("DDDD", (0.25,) * 4, 0.75),
        ("RDSD", (0.25,) * 4, 1.0),
        # Two looks are no share of anything, and nothing but running tells nothing.
        ("RRRRRRDD", (0.3,) * 8, 1.0),
        ("RRRR", (0.5,) * 4, 1.0),
        # Read a moment apart, so that it may come out above one thread.
        ("RDDD", (1.02,) * 4, 0.0),
        ("RDDD", (Missing("first"), 0.25, 0.25, 0.25), 1.0),
        ("RDDD", (Missing("no"), Missing("no"), Missing("no"), 0.2), 1.0),
    ],
)
def test_the_looks_share_what_demand_leaves(states, demands, rest):
    assert weigh_rest(states, demands) == pytest.approx(rest)


def test_shares_of_waits_add_up_with_the_demand():
    shares = share_waits((RUNNING, RUNNING, READ, WORK), rest=0.8 / 0.5)
    assert shares == {RUNNING: pytest.approx(0.2), READ: pytest.approx(0.4), WORK: pytest.approx(0.4)}
    # Waits that were not read leave no share below 0.
    assert min(share_waits((RUNNING, READ, Missing("no"), WORK), rest=1.6).values()) >= 0.0


@given(st.lists(st.tuples(st.sampled_from("RSDT"), st.floats(0, 3) | st.just(Missing("no"))), min_size=1, max_size=30))
def test_no_share_leaves_its_bounds(looks):
    states, demands = zip(*looks, strict=True)
    rest = weigh_rest(states, demands)
    looked = 1.0 - states.count("R") / len(states)
    assert rest >= 0.0
    assert rest * looked <= 1.0 + 1e-9


def test_a_worker_whose_other_threads_compute_is_blocked_as_long_as_its_main_one():
    """A queue feeder pickles while the main thread reads from a slow disk."""
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.1), ThreadGroup(ThreadKind.OTHER, 2, 0.5))
    states = "RDDDDDDDDD"
    frames = [
        make_frame(
            taken_ns=NOW_NS + second * 10**9,
            processes=(
                make_process(1),
                make_process(
                    2,
                    role=Role.WORKER,
                    rank_pid=1,
                    state=state,
                    waits_for=RUNNING if state == "R" else READ,
                    runnable=0.6,
                    thread_groups=groups,
                ),
            ),
        )
        for second, state in enumerate(states)
    ]
    (worker,) = see(frames).ranks[0].workers
    assert worker.blocked_ratio == pytest.approx(0.9)
    assert worker.waits[READ] == pytest.approx(0.9)
