"""What a worker waits for, in shares of its time: looks, corrected by what is known exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpmon.judge.io_waits import share_waits, weigh_rest
from tpmon.model.known import Missing
from tpmon.model.process import ON_A_CPU

READ, WORK = "direct disk read", "work (loader queue)"


@pytest.mark.parametrize(
    ("states", "demands", "rest"),
    [
        ("RRRD", (0.32,) * 4, 0.68 / 0.25),
        ("DDDD", (0.25,) * 4, 0.75),
        ("RDSD", (0.25,) * 4, 1.0),
        # Nothing but running was seen: what the rest was is not known.
        ("RRRR", (0.5,) * 4, 1.0),
        # Several threads want CPUs: the looks are at one of them.
        ("RDDD", (1.7,) * 4, 1.0),
        ("RRDD", (Missing("first"), 0.2, 0.2, 0.2), 0.8 / 0.5),
        ("RRDD", (Missing("no"), Missing("no"), Missing("no"), 0.2), 1.0),
    ],
)
def test_the_looks_share_what_demand_leaves(states, demands, rest):
    assert weigh_rest(states, demands) == pytest.approx(rest)


def test_shares_of_waits_add_up_with_the_demand():
    rest = weigh_rest("RRRD", (0.2,) * 4)
    shares = share_waits((ON_A_CPU, ON_A_CPU, READ, WORK), rest=0.8 / 0.5)
    assert shares == {ON_A_CPU: pytest.approx(0.2), READ: pytest.approx(0.4), WORK: pytest.approx(0.4)}
    assert share_waits((ON_A_CPU,) * 3 + (READ,), rest)[READ] == pytest.approx(0.8)
    # Waits that were not read leave no share below 0.
    assert share_waits((READ, READ, Missing("no"), WORK), rest=1.5)[READ] == pytest.approx(1.0)
    assert min(share_waits((ON_A_CPU, READ, Missing("no"), WORK), rest=1.6).values()) >= 0.0


@given(
    st.lists(
        st.tuples(st.sampled_from("RSDT"), st.floats(0, 3) | st.just(Missing("no"))), min_size=1, max_size=30
    )
)
def test_no_share_leaves_its_bounds(looks):
    states, demands = zip(*looks, strict=True)
    rest = weigh_rest(states, demands)
    looked = 1.0 - states.count("R") / len(states)
    assert rest >= 0.0
    assert rest * looked <= 1.0 + 1e-9
