"""What is made ready for a card that is lent for half an hour, as far as it can be tried without one."""

import ast
from pathlib import Path

from tests.fake_nvml import FakeNvml
from tests.gpu.nvml_latency import measure
from tests.gpu.parts import HERE, PARTS, list_files
from tests.gpu.requirements import PYPROJECT, list_requirements
from tests.gpu.running import list_ways


def test_every_test_of_a_gpu_is_in_one_part():
    assert sorted(Path(path).name for path in list_files([])) == sorted(one.name for one in HERE.glob("test_*.py"))
    assert sorted(PARTS) == [1, 2, 3, 4, 5]


def test_the_ways_that_are_recorded_are_those_of_the_program():
    module = ast.parse((HERE / "gpu_train.py").read_text())
    (table,) = (
        node.value for node in module.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "WAYS"
    )
    assert list_ways() == [key.value for key in table.keys]


def test_each_call_of_a_driver_is_timed():
    calls = measure(FakeNvml(), 2, 0.0)
    assert calls["nvmlInit"]["calls"] == 1
    assert calls["nvmlDeviceGetMemoryInfo"]["calls"] >= 2
    assert all(0 <= one["median_ms"] <= one["longest_ms"] for one in calls.values())


def test_the_wheels_are_those_of_the_package_whatever_python_asks():
    asked = list_requirements()
    assert not [one for one in asked if ";" in one]
    assert all(one.partition(";")[0] in PYPROJECT.read_text() for one in asked if one != "exceptiongroup")
