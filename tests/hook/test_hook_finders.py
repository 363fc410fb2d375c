"""The hook's finders come and go while other threads import."""

import json

import pytest

from tests.hooks import ROOT, run_program

SWITCHES = """
import json, sys
class Switches:
    def find_spec(self, name, path=None, target=None):
        if name == "wanted":
            change()
class Finds:
    def find_spec(self, name, path=None, target=None):
        asked.append(name)
        if name == "wanted":
            return spec_from_loader(name, self)
    def create_module(self, spec): pass
    def exec_module(self, module): pass
from importlib.util import find_spec, spec_from_loader
asked = []
"""
"""An import that meets another thread between two finders: ``change`` does there what that one does."""


@pytest.mark.parametrize("change", ["tpmon.hook.uninstall()", "tpmon.hook.install()"])
def test_a_thread_in_an_import_misses_no_finder_when_ours_comes_or_goes(tmp_path, change):
    """Taken out in place, it had that thread skip the next finder: ModuleNotFoundError of a module that is there."""
    program = f"""
import tpmon.hook
{SWITCHES}
{"tpmon.hook.uninstall()" if "uninstall" not in change else ""}
def change():
    {change}
sys.meta_path[1:1] = [Switches(), Finds()]
import wanted
print(json.dumps([asked.count("wanted"), [type(one).__name__ for one in sys.meta_path].count("Arrival")]))
"""
    assert json.loads(run_program(program, site=tmp_path)) == [1, int("uninstall" not in change)]


def test_a_thread_in_an_import_misses_no_finder_when_a_hook_that_cannot_be_loaded_goes(tmp_path):
    (tmp_path / "torch.py").touch()
    program = f"""
{SWITCHES}
sys.path.insert(0, {str(ROOT / "tpmon" / "hook" / "boot")!r})
import tpmon_awaits_torch
tpmon_awaits_torch.begin(sys.path[0])
sys.modules["tpmon.hook"] = None
def change():
    import torch
sys.meta_path[1:1] = [Switches(), Finds()]
import wanted
print(json.dumps([asked.count("wanted"), [type(one).__name__ for one in sys.meta_path].count("Awaiter")]))
"""
    assert json.loads(run_program(program, site=tmp_path)) == [1, 0]
