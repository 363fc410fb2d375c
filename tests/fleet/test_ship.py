"""tpmon.pyz goes to a node once a build, into a folder that is this user's alone, and runs from there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet import bed
from tests.fleet.test_head import watch
from tpmon.errors import UsageError
from tpmon.fleet.head import FleetHead
from tpmon.fleet.launch import Place, Way, plan_launches
from tpmon.fleet.ship import pack_parcel
from tpmon.model.known import is_known
from tpmon.model.results.fleet import NodeState

ROOT = Path(__file__).parents[2]
ODD = Path(__file__).with_name("odd_agent.py")
STAND_IN = f"""\
import runpy, sys
assert sys.argv[1:3] == ["agent", "--node"]
sys.argv[1:2] = ["live"]
runpy.run_path({str(ODD)!r})
"""


@pytest.fixture
def parcel(tmp_path, monkeypatch):
    """Pack a program that stands for tpmon.pyz; the folder of each node is below the temporary one."""
    file = tmp_path / "tpmon.pyz"
    file.write_text(STAND_IN)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return pack_parcel(str(file))


def put(parcel, data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(parcel.put, check=False, input=data, capture_output=True)


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / f"tpmon-ship-{os.geteuid()}"


def test_it_is_put_there_once(parcel, tmp_path):
    data = Path(parcel.path).read_bytes()
    assert put(parcel, data).returncode == 0
    (file,) = folder_of(tmp_path).iterdir()
    assert file.read_bytes() == data
    assert folder_of(tmp_path).stat().st_mode & 0o777 == 0o700
    before = file.stat().st_mtime_ns
    assert put(parcel, b"").returncode == 0, "it is there, so nothing is read"
    assert file.stat().st_mtime_ns == before


@pytest.mark.parametrize("data", [b"", b"x" * 10, STAND_IN.replace("live", "dead").encode()])
def test_what_came_in_part_or_changed_is_left_out(parcel, tmp_path, data):
    done = put(parcel, data)
    assert done.returncode != 0
    assert b"came whole" in done.stderr
    assert list(folder_of(tmp_path).iterdir()) == []


def test_a_folder_that_others_may_enter_is_refused(parcel, tmp_path):
    folder_of(tmp_path).mkdir(mode=0o755)
    done = put(parcel, Path(parcel.path).read_bytes())
    assert b"not this user's alone" in done.stderr
    assert list(folder_of(tmp_path).iterdir()) == []


def test_a_link_in_its_place_is_refused(parcel, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder_of(tmp_path).symlink_to(tmp_path / "elsewhere")
    assert put(parcel, Path(parcel.path).read_bytes()).returncode != 0
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_agents_start_once_it_has_come(parcel, tmp_path):
    place = Place(Way.EXEC, command=("env", "HOST={host}"))
    head = FleetHead(plan_launches(place, ("n0", "n1"), (*parcel.run, "agent"), parcel))
    try:
        watch(head, 0, NodeState.LIVE)
        watch(head, 1, NodeState.LIVE)
        assert len(list(folder_of(tmp_path).iterdir())) == 1
    finally:
        head.close()


def test_a_node_that_cannot_take_it_is_refused_with_the_reason(parcel, tmp_path):
    folder_of(tmp_path).mkdir(mode=0o755)
    head = FleetHead(plan_launches(Place(Way.EXEC, command=("env", "HOST={host}")), ("n0",), parcel.run, parcel))
    try:
        row = watch(head, 0, NodeState.REFUSED)
        assert is_known(row.reason)
        assert row.reason.endswith("is not this user's alone")
    finally:
        head.close()


def test_a_full_disk_is_named_and_nothing_is_left_of_it(parcel, tmp_path):
    bed.require()
    Path(parcel.path).write_text(f"{STAND_IN}#{'x' * 100_000}")
    large, listed = pack_parcel(parcel.path), tmp_path / "listed"
    fill = f'mount -t tmpfs -o size=64k tmpfs $TMPDIR && "$@"; code=$?; ls -A $TMPDIR/* > {listed}; exit $code'
    listed.touch()
    (tmp_path / "full").mkdir()
    shell = ("env", f"TMPDIR={tmp_path / 'full'}", "unshare", "--mount", "sh", "-c", fill, "{host}")
    head = FleetHead(plan_launches(Place(Way.EXEC, command=shell), ("n0",), large.run, large))
    try:
        row = watch(head, 0, NodeState.REFUSED)
        assert row.reason == f"{tmp_path}/full/tpmon-ship-{os.geteuid()}: No space left on device"
        assert listed.read_text() == ""
    finally:
        head.close()


def test_a_node_without_python_is_refused_with_the_reason(parcel):
    head = FleetHead(plan_launches(Place(Way.EXEC, command=("env", "PATH={host}")), ("n0",), parcel.run, parcel))
    try:
        reason = watch(head, 0, NodeState.REFUSED).reason
        assert "python3" in reason
        assert "No such file" in reason
    finally:
        head.close()


def test_an_installed_tpmon_has_nothing_to_send():
    with pytest.raises(UsageError, match=r"only tpmon\.pyz can be sent"):
        pack_parcel("")
