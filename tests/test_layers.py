"""The rooms stay apart: the import contracts, and their twins at run time in fresh processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frames import make_frame
from tests.recordings import pass_by, write_recording

ROOT = Path(__file__).parents[1]

NEVER_IN_TEXT = {"textual", "rich", "asyncio", "torch", "pynvml", "numpy", "msgspec"}

IMPORTED = """
import json, sys
before = set(sys.modules)
{statement}
names = {{name.partition(".")[0] for name in set(sys.modules) - before}}
sys.stdout.flush()
print("\\n" + json.dumps(sorted(names)))
"""

WALK = """
import importlib, pkgutil
room = importlib.import_module("tpmon.{room}")
for module in pkgutil.walk_packages(getattr(room, "__path__", []), "tpmon.{room}."):
    importlib.import_module(module.name)
"""

CALL = """
from tpmon.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
"""


def run_fresh(statement: str) -> tuple[str, set[str]]:
    """Run ``statement`` in a fresh process; return its output and the top-level modules it imported."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(statement=statement)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output, _, names = done.stdout.rstrip().rpartition("\n")
    return output, set(json.loads(names))


def read_imports(statement: str) -> set[str]:
    """Return the top-level modules that ``statement`` brings into a fresh process."""
    return run_fresh(statement)[1]


def test_import_contracts_hold():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("room", ["errors", "model", "config", "commands.demo"])
def test_the_lower_rooms_need_the_standard_library_only(room):
    names = read_imports(WALK.format(room=room)) - {"tpmon"}
    assert names <= sys.stdlib_module_names
    assert not names & NEVER_IN_TEXT


@pytest.mark.parametrize("room", ["probe", "report"])
def test_rooms_below_the_screen_never_import_it(room):
    assert not read_imports(WALK.format(room=room)) & {"textual", "rich", "asyncio", "torch"}


def test_the_screen_imports_neither_torch_nor_nvml():
    names = read_imports(WALK.format(room="ui"))
    assert "textual" in names
    assert not names & {"torch", "pynvml"}


def test_the_screen_starts_without_tls_and_without_the_rules():
    statement = "import tpmon.commands.screen, tpmon.ui.monitor.app, ssl; assert ssl.OPENSSL_VERSION"
    assert "_ssl" not in read_imports("import tpmon.commands.screen, tpmon.ui.monitor.app")
    assert "_ssl" in read_imports(statement), "whoever needs it later gets it"
    rules = "import tpmon.commands.screen, tpmon.ui.monitor.app, sys; print([one for one in sys.modules if 'tpmon.judge' in one])"
    assert run_fresh(rules)[0].strip() == "[]"


def test_the_first_picture_needs_neither_textual_nor_asyncio():
    names = read_imports("import tpmon.commands.screen, tpmon.probe.collect.collector")
    assert not names & {"textual", "asyncio", "torch", "pynvml", "numpy", "msgspec"}


def test_a_stream_alone_has_msgspec_and_a_single_frame_does_without():
    value = "from tpmon.model.process import LoopThread; from tpmon.model import codec; one = LoopThread(1, 'x');"
    assert "msgspec" not in read_imports(f"{value} codec.decode(LoopThread, codec.encode(one))")
    for fast in ("codec.encode_fast(one)", "codec.encode_exact(one)", "codec.decode_fast(LoopThread, b'{}')"):
        assert "msgspec" in read_imports(f"{value}\ntry: {fast}\nexcept ValueError: pass")


def test_a_session_imports_no_driver_library():
    statement = "import tpmon.session, tpmon.probe.collect.collector, tpmon.report.once, tpmon.report.plain"
    assert not read_imports(statement) & NEVER_IN_TEXT


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["attach", "--help"],
        ["demo", "--help"],
        ["dump", "--help"],
        ["fold", "--help"],
        ["doctor", "--help"],
        ["bundle", "--help"],
        ["trace", "--help"],
        ["replay", "--help"],
        ["--print-config"],
        ["ps", "--json"],
    ],
)
def test_help_and_lists_import_almost_nothing(arguments):
    output, names = run_fresh(CALL.format(arguments=arguments))
    assert output.strip()
    assert not names & (NEVER_IN_TEXT | {"psutil"})


def call_without_screen_and_driver(*arguments: object) -> str:
    output, names = run_fresh(CALL.format(arguments=[str(one) for one in arguments]))
    assert not names & NEVER_IN_TEXT
    return output


def test_a_second_of_a_recording_as_text_imports_neither_screen_nor_driver(tmp_path):
    path = write_recording(tmp_path / "a.tpmon", pass_by([make_frame()]))
    output, names = run_fresh(CALL.format(arguments=["replay", str(path), "--once"]))
    assert "job      4211 train.py" in output
    assert not names & (NEVER_IN_TEXT - {"msgspec"})


@pytest.mark.torch
def test_a_frame_a_dump_its_fold_and_samples_import_neither_screen_nor_driver(job, tmp_path):
    frame = call_without_screen_and_driver("attach", job, "--json", "--once", "-i", "0.5")
    assert json.loads(frame)["target"]["pid"] == job
    sampled = call_without_screen_and_driver("sample", job, "--seconds", "1", "--json")
    assert json.loads(sampled)["pid"] == job
    path = tmp_path / "dump.json"
    path.write_text(call_without_screen_and_driver("dump", job, "--json"))
    assert json.loads(path.read_text())["pid"] == job
    assert call_without_screen_and_driver("fold", path).startswith("dump ")


def test_the_doctor_imports_neither_screen_nor_driver():
    output = call_without_screen_and_driver("doctor", "--json", "--no-stacks")
    assert json.loads(output)["schema"] == "tpmon.doctor/1"


def test_a_screen_that_captures_nothing_loads_no_hook_for_it_and_no_openssl():
    """OpenSSL, behind hashlib and secrets, takes 4 MB."""
    names = read_imports(
        "import tpmon.commands.screen; names = {n for n in sys.modules if 'inject' in n}; assert not names, names"
    )
    assert "tpmon" in names
    assert not names & {"_hashlib", "_ssl", "secrets"}
