"""Word the facts line and the debug taxes, exactly as a person reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import GIB, make_cpu, make_gpu, make_log_pace
from tests.paces import make_pace
from tpmon.model.gpu import GpuProcess
from tpmon.model.known import Missing
from tpmon.model.process import EnvironmentSetting
from tpmon.model.text.job_words import list_taxes, state_facts

REFUSED = Missing("permission denied")
NO_DRIVER = Missing("no NVIDIA driver on this machine")
IDLE = make_cpu(
    used_cores=REFUSED, runnable=REFUSED, budget_cores=2.0, throttled_ratio=REFUSED, oversubscription=REFUSED
)


def busy(**fields):
    plain = {"budget_cores": 2.0, "used_cores": 1.98, "runnable": 14.2}
    proof = {"oversubscription": 7.1, "run_delay_ratio": 0.82, "throttled_ratio": 0.0}
    return make_cpu(**(plain | proof | fields))


def test_the_facts_say_the_pace_of_the_log_where_no_hook_tells_one():
    pace = make_log_pace(rate_hz=9.4, unit="it")
    assert state_facts(1, 2, IDLE, NO_DRIVER, pace=pace).startswith("9.40 it/s (log) · 2 workers")
    old = make_log_pace(age_s=95.0)
    assert state_facts(1, 2, IDLE, NO_DRIVER, pace=old).startswith("3.21 steps/s (log, 1m35s old)")
    hooked = state_facts(1, 2, IDLE, NO_DRIVER, pace=pace, steps=make_pace())
    assert "(log)" not in hooked
    assert "steps/s" in hooked
    assert "/s" not in state_facts(1, 2, IDLE, NO_DRIVER, pace=Missing("no line of the log counts steps"))


def test_the_example_of_the_guide_and_that_no_rank_is_left_before_all_else():
    line = state_facts(1, 4, busy(), (make_gpu(sm_pct=41.0),))
    expected = "GPU 41 % busy · 4 workers · 99 % of 2 CPUs · 14.2 runnable on 2 CPUs (pool 7.1x, waiting 82 %)"
    assert line == expected
    line = state_facts(0, 2, busy(), (make_gpu(sm_pct=41.0),), had_ranks=True)
    assert line.startswith("no rank left · GPU 41 % busy · 2 workers · ")


CPU_WORDS = [
    ({}, "99 % of 2 CPUs · 14.2 runnable on 2 CPUs (pool 7.1x, waiting 82 %)"),
    ({"oversubscription": 0.0}, "99 % of 2 CPUs · 14.2 runnable on 2 CPUs (waiting 82 %)"),
    ({"oversubscription": 0.0, "run_delay_ratio": REFUSED}, "99 % of 2 CPUs · 14.2 runnable on 2 CPUs"),
    ({"budget_cores": 1.0}, "198 % of 1 CPU · 14.2 runnable on 1 CPU (pool 7.1x, waiting 82 %)"),
    ({"budget_cores": 0.5}, "396 % of 0.5 CPUs · 14.2 runnable on 0.5 CPUs (pool 7.1x, waiting 82 %)"),
    ({"budget_cores": 1.5}, "132 % of 1.5 CPUs · 14.2 runnable on 1.5 CPUs (pool 7.1x, waiting 82 %)"),
    (
        {"budget_cores": 128.0, "used_cores": 0.0},
        "0 % of 128 CPUs · 14.2 runnable on 128 CPUs (pool 7.1x, waiting 82 %)",
    ),
    ({"runnable": 0.4, "oversubscription": 0.0}, "99 % of 2 CPUs · 0.4 runnable on 2 CPUs"),
    ({"budget_cores": REFUSED}, "2.0 CPUs used"),
    ({"used_cores": REFUSED}, "14.2 runnable on 2 CPUs (pool 7.1x, waiting 82 %)"),
    ({"runnable": REFUSED}, "99 % of 2 CPUs"),
    ({"throttled_ratio": 0.4, "runnable": REFUSED}, "99 % of 2 CPUs · throttled by its quota in 40 % of periods"),
    ({"throttled_ratio": 0.01, "runnable": REFUSED}, "99 % of 2 CPUs"),
]


@pytest.mark.parametrize(("fields", "words"), CPU_WORDS, ids=[str(i) for i in range(len(CPU_WORDS))])
def test_cpu_and_oversubscription_in_words(fields, words):
    assert state_facts(1, 2, busy(**fields), NO_DRIVER) == f"2 workers · {words}"


@pytest.mark.parametrize(
    ("ranks", "workers", "had", "words"),
    [
        (1, 0, True, "no loader workers"),
        (1, 1, True, "1 worker"),
        (1, 4, True, "4 workers"),
        (2, 4, True, "2 ranks · 4 workers"),
        (0, 4, True, "no rank left · 4 workers"),
        (0, 0, False, "no rank yet · no loader workers"),
    ],
)
def test_ranks_and_workers_are_counted(ranks, workers, had, words):
    assert state_facts(ranks, workers, IDLE, NO_DRIVER, had_ranks=had) == words


STRAY = make_gpu(0, sm_pct=3.0, processes=(GpuProcess(4211, GIB // 2, REFUSED, True),))
OWN = make_gpu(3, sm_pct=97.0, processes=(GpuProcess(4211, 60 * GIB, 97.0, True),))


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ((make_gpu(sm_pct=41.4),), "GPU 41 % busy"),
        ((make_gpu(sm_pct=7.34),), "GPU 7.3 % busy"),
        ((make_gpu(sm_pct=0.0),), "GPU 0 % busy"),
        ((make_gpu(0, sm_pct=50.0), make_gpu(1, sm_pct=53.0)), "2 GPUs 52 % busy"),
        ((make_gpu(0, sm_pct=20.0), make_gpu(1, sm_pct=80.0)), "2 GPUs 50 % busy (20 to 80)"),
        ((make_gpu(0, sm_pct=20.0), make_gpu(1, sm_pct=99.0, pids=())), "GPU 20 % busy"),
        ((make_gpu(0, sm_pct=20.0), make_gpu(1, sm_pct=REFUSED)), "GPU 20 % busy"),
        ((STRAY, OWN), "GPU 97 % busy"),
        ((make_gpu(sm_pct=REFUSED),), ""),
        ((make_gpu(pids=REFUSED),), ""),
        ((make_gpu(pids=()),), ""),
        ((), ""),
        (NO_DRIVER, ""),
    ],
)
def test_the_cards_that_the_job_computes_on_alone_are_counted(gpus, words):
    line = state_facts(1, 0, IDLE, gpus)
    assert line == (f"{words} · no loader workers" if words else "no loader workers")


@given(
    st.one_of(st.floats(0, 1e6), st.just(REFUSED)),
    st.one_of(st.floats(0, 4096), st.just(REFUSED)),
    st.one_of(st.floats(0, 1e4), st.just(REFUSED)),
    st.one_of(st.floats(0, 1), st.just(REFUSED)),
)
def test_the_line_never_leaves_a_hole_or_a_missing_value(used, budget, runnable, delay):
    demand = {"runnable": runnable, "oversubscription": runnable, "run_delay_ratio": delay, "throttled_ratio": delay}
    line = state_facts(1, 0, make_cpu(used_cores=used, budget_cores=budget, **demand), NO_DRIVER)
    assert not any(hole in line for hole in ("Missing", "()"))
    assert all(part.strip() for part in line.split("·"))


@pytest.mark.parametrize(
    ("name", "taxed", "free"),
    [
        ("CUDA_LAUNCH_BLOCKING", ["1"], ["0", ""]),
        ("TORCH_DISTRIBUTED_DEBUG", ["DETAIL"], ["OFF", "INFO"]),
        ("NCCL_DEBUG", ["trace"], ["INFO", "WARN", "version"]),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", ["1"], []),
        ("TORCH_LOGS", [], ["+dynamo"]),
        ("OMP_NUM_THREADS", [], ["1"]),
    ],
)
def test_a_debug_setting_is_a_tax_unless_it_is_off(name, taxed, free):
    for value in taxed:
        (line,) = list_taxes((EnvironmentSetting(name, value),))
        assert line.startswith(f"{name}={value}: ")
    assert [value for value in free if list_taxes((EnvironmentSetting(name, value),))] == []


@pytest.mark.parametrize(
    ("parts", "taxed"),
    [("INIT,ENV", False), ("COLL", True), ("init,coll", True), ("ALL", True), ("^INIT", True), ("^COLL", False)],
)
def test_nccl_that_logs_every_collective_is_a_tax_and_its_start_is_none(parts, taxed):
    settings = (EnvironmentSetting("NCCL_DEBUG", "INFO"), EnvironmentSetting("NCCL_DEBUG_SUBSYS", parts))
    assert bool(list_taxes(settings)) == taxed
    assert not list_taxes((EnvironmentSetting("NCCL_DEBUG", "WARN"), EnvironmentSetting("NCCL_DEBUG_SUBSYS", parts)))
    both = (EnvironmentSetting("NCCL_DEBUG", "TRACE"), EnvironmentSetting("CUDA_LAUNCH_BLOCKING", "1"))
    assert [line.partition("=")[0] for line in list_taxes(both)] == ["CUDA_LAUNCH_BLOCKING", "NCCL_DEBUG"]
