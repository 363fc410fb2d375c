"""What is run beside the tests: benches, the tables of frameworks and of GPU parts, ``make size``; and how tests know torch."""

import ast
import importlib.metadata
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from tests.budget import measure
from tests.budget.bench_harm import Measured, Pair, Window, draw_pairs, estimate, is_counted, list_logs
from tests.fake_nvml import FakeNvml
from tests.frameworks.faults import Fault
from tests.frameworks.hooked.matrix import ROWS as HOOKED
from tests.frameworks.hooked.matrix import Told, parse_told, write_command
from tests.frameworks.matrix import HERE, choose
from tests.frameworks.table import EXPECTED, FRAMEWORKS, ROWS
from tests.gpu import nvml_latency
from tests.gpu.parts import HERE as GPU
from tests.gpu.parts import PARTS, PYPROJECT, list_files, list_requirements
from tests.gpu.running import list_ways
from tests.size import main, measure_python
from tests.torch_build import read_torch_version
from tpmon.model.verdict import TABLE, Kind


def make_pairs(random: Random, count: int, tpmon: float, placebo: float = 1.0) -> list[Pair]:
    """Make windows of a host whose speed drifts, and that stalls now and then."""
    speed = 1200.0

    def measure(window: Window) -> Measured:
        nonlocal speed
        speed *= random.gauss(1.0, 0.02)
        stall = 0.6 if random.random() < 0.03 else 1.0
        effect = (tpmon if window.tpmon else 1.0) * (placebo if window.placebo else 1.0)
        return Measured(window, speed * effect * stall, 0.0)

    return [(measure(first), measure(second)) for first, second in islice(draw_pairs(random), count)]


def test_each_factor_runs_once_in_a_pair_and_every_two_pairs_hold_all_four_combinations():
    pairs = list(islice(draw_pairs(Random(1)), 400))
    for two in zip(pairs[::2], pairs[1::2], strict=True):
        assert {one for pair in two for one in pair} == {Window(t, p) for t in (0, 1) for p in (0, 1)}
    orders = Counter(pair[0] for pair in pairs)
    assert len(orders) == 4
    assert min(orders.values()) > 70


@pytest.mark.parametrize(("tpmon", "placebo"), [(1.0, 1.0), (0.97, 1.0), (1.0, 0.97), (0.97, 1.03)])
def test_the_effect_of_each_is_found_beside_that_of_the_other(tpmon, placebo):
    pairs = make_pairs(Random(7), 400, tpmon, placebo)
    for logs, truth in ((list_logs(pairs, "tpmon"), tpmon), (list_logs(pairs, "placebo"), placebo)):
        found = estimate(logs, 7)
        assert found.ratio == pytest.approx(truth, abs=0.005)
        assert found.half < 0.006


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    held = 0
    for seed in range(100):
        found = estimate(list_logs(make_pairs(Random(seed), 100, 0.99), "tpmon"), seed)
        held += found.low <= 0.99 <= found.high
    assert 88 <= held <= 99


def test_the_same_seed_draws_the_same_and_finds_the_same():
    one, other = (make_pairs(Random(3), 40, 1.0) for _ in range(2))
    assert one == other
    assert estimate(list_logs(one, "tpmon"), 3) == estimate(list_logs(other, "tpmon"), 3)


def test_a_pair_with_a_window_that_the_hypervisor_took_from_does_not_count():
    on, off = Window(True, False), Window(False, True)
    assert is_counted((Measured(on, 100.0, 0.02), Measured(off, 90.0, 0.0)))
    assert not is_counted((Measured(on, 100.0, 0.0), Measured(off, 90.0, 0.03)))
    assert not is_counted((Measured(on, 0.0, 0.0), Measured(off, 90.0, 0.0)))


def test_a_process_that_burns_a_core_is_named_and_a_sleeping_one_is_not(monkeypatch):
    monkeypatch.setattr(measure, "BUSY_BESIDE_PCT", 1.0)  # the test shares the machine: a core may be hard to get
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        said = measure.say_neighbours(2.0)
    finally:
        for one in (burning, sleeping):
            one.kill()
            one.wait()
    assert said.startswith("beside: ")
    assert f"({burning.pid})" in said
    assert f"({sleeping.pid})" not in said


CAUSES = {row.kind: row.causes for row in TABLE}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_names_a_kind_and_a_cause_of_the_closed_table(row):
    for label in row.expected:
        assert label.kind in CAUSES
        assert label.cause in (*CAUSES[label.kind], "")


def test_every_program_is_there_and_meets_every_fault_once():
    assert all((HERE / f"{one.program}.py").is_file() for one in FRAMEWORKS)
    assert set(EXPECTED) == set(Fault)
    assert len({str(row) for row in ROWS}) == len(ROWS) == len(FRAMEWORKS) * len(Fault)


def test_only_a_hang_is_looked_at_for_longer_than_20_s():
    assert {row.fault for row in ROWS if row.look_s > 20} == {Fault.STOPPED_WORKER}
    assert all(row.expected[0].kind is Kind.HUNG for row in ROWS if row.look_s > 30)


def test_rows_are_chosen_by_program_and_by_fault():
    assert choose(ROWS, "") == list(ROWS)
    assert len(choose(ROWS, "healthy")) == len(FRAMEWORKS)
    assert {row.framework.program for row in choose(ROWS, "hf_trainer")} == {"hf_trainer"}


TOLD = Told(
    "DDP, 2 ranks", 0, (20, 20), (5, 5), (0, 0), (2.0, 1.0, 1.0, 0.5, 0.5), (2.0, 1.0, 1.0, 0.5, 0.5), (-1,), ""
)


def test_what_the_ranks_report_is_read_by_rank_and_judged():
    lines = [json.dumps({**asdict(TOLD), "rank": rank}) for rank in (1, 0)]
    told = parse_told("\n".join(["Epoch 0", *(f"tpmon {line}" for line in lines), "tpmon: a word"]))
    assert told == [TOLD, replace(TOLD, rank=1)]
    assert TOLD.is_right
    assert not replace(TOLD, steps=(20, 21)).is_right
    assert not replace(TOLD, eval_steps=(5, 4)).is_right
    assert not replace(TOLD, skipped=(3, 0)).is_right
    assert not replace(TOLD, told_s=(2.2, 1.0, 1.0, 0.5, 0.5)).is_right
    assert not replace(TOLD, fsdp=(1, 2, 0, 1, 1)).is_right
    assert not replace(TOLD, problem="ValueError").is_right
    assert replace(TOLD, told_s=(2.2, 1.0, 1.0, 0.5, 0.5)).write().endswith("| 3.8 % | no")


def test_loops_of_several_ranks_are_started_by_torchrun_under_tpmon_run():
    for row in HOOKED:
        command = write_command(row, "/x/python")
        assert command[1:5] == ["-m", "tpmon", "run", "--"]
        assert ("torch.distributed.run" in command) == (row.ranks > 1)
        assert command[-1] == (row.loop or row.name)
        assert ("accelerate.commands.launch" in command) == (row.name == "accelerate launch")


def test_every_test_of_a_gpu_is_in_one_part():
    assert sorted(Path(path).name for path in list_files([])) == sorted(one.name for one in GPU.glob("test_*.py"))
    assert sorted(PARTS) == [1, 2, 3, 4, 5]


def test_the_ways_that_are_recorded_are_those_of_the_program():
    module = ast.parse((GPU / "gpu_train.py").read_text())
    (table,) = (
        node.value for node in module.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "WAYS"
    )
    assert list_ways() == [key.value for key in table.keys]


def test_each_call_of_a_driver_is_timed():
    calls = nvml_latency.measure(FakeNvml(), 2, 0.0)
    assert calls["nvmlInit"]["calls"] == 1
    assert calls["nvmlDeviceGetMemoryInfo"]["calls"] >= 2
    assert all(0 <= one["median_ms"] <= one["longest_ms"] for one in calls.values())


def test_the_wheels_are_those_of_the_package_whatever_python_asks():
    asked = list_requirements()
    assert not [one for one in asked if ";" in one]
    assert all(one.partition(";")[0] in PYPROJECT.read_text() for one in asked if one != "exceptiongroup")


MODULE = '''"""Say what it is.

In two paragraphs.
"""

# a comment
TEXT = """
# no comment

"""  # the end


class Thing:
    LIMIT = 3
    """How many."""

    async def run(self) -> int:
        # why
        return 1  # here
'''


def test_each_line_is_of_one_kind():
    lines, longest, name = measure_python(MODULE)
    assert lines == {"docs": 5, "comment": 2, "code": 8, "blank": 4}
    assert (longest, name) == (3, "run")


@pytest.fixture
def project(tmp_path):
    for path, text in {
        "tpmon/__init__.py": "",
        "tpmon/judge/rules/loader.py": MODULE,
        "tpmon/judge/rules/causes.toml": "one = 1\n\n",
        "tpmon/picture.png": "no text",
        "tests/test_it.py": "def test_it(): ...\n",
        "docs/page.md": "# Page\n\nText.\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    git(tmp_path, "init", "--quiet")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *name, *words], cwd=folder, check=True)


def cells_of(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines() if line.strip()]


def test_a_package_counts_all_below_it(project, capsys):
    assert main([], project) == 0
    head, tpmon, judge, rules, tests, docs = cells_of(capsys.readouterr().out)
    assert head[:7] == ["files", "lines", "code", "docs", "comment", "blank", "data"]
    whole = ["21", "8", "5", "2", "5", "1", "19", "loader.py", "3", "run", "2", "tpmon/judge/rules"]
    assert tpmon == ["tpmon", "3", *whole]
    assert judge == ["judge", "2", *whole]
    assert rules == ["rules", "2", *whole]
    assert tests == ["tests", "1", "1", "1", "-", "-", "-", "-", "1", "test_it.py", "1", "test_it", "1", "tests"]
    assert docs == ["docs", "1", "3", "-", "2", "-", "1", "-", "3", "page.md", "-", "1", "docs"]


def test_the_last_tag_or_a_named_commit_stands_beside_it(project, capsys):
    git(project, "add", ".")
    git(project, "commit", "--quiet", "--message", "first")
    git(project, "tag", "v1")
    (project / "tpmon/more.py").write_text("x = 1\n" * 21)
    for words in ([], ["HEAD"]):
        assert main(words, project) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(words[0] if words else "v1")
        assert "\n\nnow\n" in printed
        assert "\ntpmon: files 3 -> 4, lines 21 -> 42 (+100.0%)\n" in printed


def test_a_commit_that_is_not_there_is_named(project, capsys):
    assert main(["nowhere"], project) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cu130", "2.14.1+cpu", "3.0.0a0+git1a2b3c4"])
def test_the_build_that_pip_does_not_record_is_part_of_the_version(tmp_path, monkeypatch, version):
    public = version.partition("+")[0]
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('torch was loaded')")
    (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\n__version__ = '{version}'\n")
    (tmp_path / f"torch-{public}.dist-info").mkdir()
    (tmp_path / f"torch-{public}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {public}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (importlib.metadata.version("torch"), read_torch_version()) == (public, version)
