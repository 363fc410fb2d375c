"""What a tpmon that was killed left of a capture goes with the next one, and nothing else does."""

import os
from pathlib import Path

import pytest

from tests.children import child
from tests.hooks import ROOT
from tpmon.capture import files as leftovers
from tpmon.capture.files import hold, name_part, sweep

HOLDS = f"""
sys.path.insert(0, {str(ROOT)!r})
from tpmon.capture.files import hold
hold(os.open(sys.argv[1], os.O_RDONLY))
say("held"); hear()
"""


def leave(folder: Path, name: str = "") -> Path:
    """Leave a folder as a tpmon that is killed does, with what kineto had begun to write."""
    part = folder / (name or name_part(5))
    part.mkdir(parents=True, mode=0o700)
    (part / "probe_7.json").touch()
    (part / "trace_7.json.tmp").touch()
    return part


def test_what_was_left_goes(tmp_path):
    part = leave(tmp_path)
    assert sweep(f"{tmp_path}/") == [str(part)]
    assert os.listdir(tmp_path) == []
    assert sweep(str(tmp_path / "not there")) == []


def test_what_a_tpmon_holds_stays_until_it_is_killed(tmp_path):
    part = leave(tmp_path)
    with child(HOLDS, str(part)) as tool:
        assert sweep(str(tmp_path)) == []
        assert len(os.listdir(part)) == 2
        tool.kill()
    assert sweep(str(tmp_path)) == [str(part)]


@pytest.mark.parametrize("name", ["kineto-elsewhere-5.part", "kineto-5.part", "mine.part", name_part(5) + "x"])
def test_other_names_stay(tmp_path, name):
    leave(tmp_path, name)
    assert sweep(str(tmp_path)) == []
    assert len(os.listdir(tmp_path / name)) == 2


def test_what_kineto_did_not_write_stays_with_its_folder(tmp_path):
    part = leave(tmp_path)
    (part / "notes").touch()
    (part / "trace").mkdir()
    os.symlink("/", part / "trace_8.json")
    assert sweep(str(tmp_path)) == []
    assert sorted(os.listdir(part)) == ["notes", "trace", "trace_8.json"]


def test_a_link_in_its_place_is_not_followed(tmp_path):
    other = leave(tmp_path / "elsewhere", "other")
    os.symlink(other, tmp_path / name_part(5))
    assert sweep(str(tmp_path)) == []
    assert len(os.listdir(other)) == 2


def test_another_users_stays(tmp_path, monkeypatch):
    part = leave(tmp_path)
    monkeypatch.setattr(leftovers.os, "geteuid", lambda: os.stat(part).st_uid + 1)
    assert sweep(str(tmp_path)) == []
    assert len(os.listdir(part)) == 2


def test_a_file_system_without_locks_keeps_them(tmp_path, monkeypatch):
    part = leave(tmp_path)

    def fail(folder, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(leftovers.fcntl, "flock", fail)
    hold(0)
    assert sweep(str(tmp_path)) == []
    assert part.exists()


def test_new_folders_beside_a_new_one_are_swept_and_go_when_they_are_empty(tmp_path):
    first, second = leave(tmp_path / "tpmon-capture-a-1"), leave(tmp_path / "tpmon-capture-a-2")
    (second.parent / "kept.json.gz").touch()
    other = leave(tmp_path / "mine")
    os.symlink(other.parent, tmp_path / "tpmon-capture-link")
    assert sweep(str(tmp_path / "tpmon-capture-a-3")) == [str(first), str(second)]
    assert sorted(os.listdir(tmp_path)) == ["mine", "tpmon-capture-a-2", "tpmon-capture-link"]
    assert os.listdir(second.parent) == ["kept.json.gz"]
    assert other.exists()
