"""The small helpers around torch.profiler: bounds, tables, files; on a real torch in a process of its own."""

import gzip
import json
import os
import sys
import types
from pathlib import Path

import pytest

from tests.hooks import run_program
from tests.torch_build import needs_torch
from tpmon.hook.profiling import export_trace, make_profiler, top_tables

PROGRAM = """
import json, os, sys, tpmon.hook, torch
from torch.profiler import tensorboard_trace_handler
folder = sys.argv[1]
model = torch.nn.Linear(8, 8)

def run(profiler):
    with profiler:
        for _ in range(12):
            model(torch.zeros(4, 8)).sum().backward()
            profiler.step()

told = {}
paths = []
run(tpmon.hook.make_profiler(3, wait=2, warmup=1, on_trace=lambda done: paths.append(tpmon.hook.export_trace(done, folder))))
profiler = tpmon.hook.make_profiler(2, wait=0, warmup=0, record_shapes=True)
run(profiler)
told["tables"] = {name: len(table) for name, table in tpmon.hook.top_tables(profiler).items()}
paths.append(tpmon.hook.export_trace(profiler, folder))
told["again"] = tpmon.hook.export_trace(profiler, folder)
handled = tpmon.hook.make_profiler(2, wait=0, warmup=0, on_trace=tensorboard_trace_handler(folder + "/tb"))
run(handled)
told["handled"] = tpmon.hook.export_trace(handled, folder)
told["kept"] = len(os.listdir(folder + "/tb"))
try:
    export = tpmon.hook.make_profiler(1, wait=0, warmup=0)
    run(export)
    tpmon.hook.export_trace(export, folder + "/file")
except OSError as error:
    told["error"] = type(error).__name__
told["paths"] = paths
told["problem"] = tpmon.hook.problem()
print(json.dumps(told))
"""


@pytest.mark.torch
@needs_torch
def test_a_profile_is_bounded_tabled_and_written_once_per_rank(tmp_path):
    (tmp_path / "file").write_text("no folder")
    flags = ["-W", "ignore"]
    told = json.loads(run_program(PROGRAM, str(tmp_path), flags=flags, silent=False, RANK="3", KINETO_LOG_LEVEL="99"))
    names = [os.path.basename(path) for path in told["paths"]]
    assert names == ["trace-rank3.json.gz", "trace-rank3-1.json.gz"]
    with gzip.open(told["paths"][0]) as file:
        events = json.load(file)["traceEvents"]
    steps = {one["name"] for one in events if str(one.get("name", "")).startswith("ProfilerStep#")}
    assert len(steps) == 3
    assert set(told["tables"]) == {"cpu", "shapes"}
    assert (told["again"], told["handled"], told["kept"], told["error"]) == ("", "", 1, "FileExistsError")
    assert told["problem"] == ""
    assert sorted(os.listdir(tmp_path)) == ["file", "tb", *sorted(names)]


@pytest.mark.parametrize("bad", [{"steps": 0}, {"steps": 101}, {"wait": -1}, {"warmup": -1}])
def test_a_profiler_without_bounds_is_refused(bad, monkeypatch):
    torch = types.ModuleType("torch")
    torch.profiler = types.ModuleType("torch.profiler")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.profiler", torch.profiler)
    with pytest.raises(ValueError, match="steps from 1 to 100"):
        make_profiler(**bad)


class Silent:
    """A profile whose trace torch cannot write: it returns as if it had."""

    def export_chrome_trace(self, path: str) -> None:
        pass


class Failing:
    """A profile that leaves half a file behind."""

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{")
        raise RuntimeError("no such thing")


def test_a_trace_that_torch_did_not_write_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="torch wrote no trace"):
        export_trace(Silent(), str(tmp_path))
    with pytest.raises(RuntimeError, match="no such thing"):
        export_trace(Failing(), str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_loop_that_ended_before_its_profiler_began_has_no_tables_and_no_trace(tmp_path):
    nothing = types.SimpleNamespace(profiler=None)  # as torch.profiler has it then
    assert top_tables(nothing) == {}
    with pytest.raises(OSError, match="nothing was recorded"):
        export_trace(nothing, str(tmp_path))
    assert os.listdir(tmp_path) == []
