"""The file of a capture: nobody else may read it while it is written, and nothing of others is written over."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpmon.hook.bus import wire_capture as w
from tpmon.hook.capture.recorder import rename_cut
from tpmon.hook.capture.trace_file import CaptureFile


@pytest.fixture(autouse=True)
def usual_mask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def write(folder: Path, save: Callable[[str], None]) -> tuple[int, int]:
    told = w.Progress(first_step=5)
    file = CaptureFile(w.Request(kind=w.KIND_CAPTURE, folder=str(folder), name="x"), {})
    file.write_window(SimpleNamespace(save=save, ending=".json"), told, cut=False)
    return told.events, told.bytes


def test_a_trace_is_its_users_alone_also_while_torch_writes(tmp_path):
    modes = []

    def save(path):
        """Do as libkineto does."""
        with open(path + ".tmp", "w") as file:
            modes.append(os.fstat(file.fileno()).st_mode & 0o777)
            file.write("{}")
        os.rename(path + ".tmp", path)
        modes.append(os.stat(path).st_mode & 0o777)

    assert write(tmp_path, save) == (0, 2)
    assert modes == [0o600, 0o600]
    assert os.listdir(tmp_path) == ["x-step5.json"]
    assert os.stat(tmp_path / "x-step5.json").st_mode & 0o777 == 0o600


def test_where_torch_writes_without_a_second_file_none_is_left(tmp_path):
    assert write(tmp_path, lambda path: Path(path).write_text("{}") and None) == (0, 2)
    assert os.listdir(tmp_path) == ["x-step5.json"]


def test_nothing_is_left_where_it_fails(tmp_path):
    def fail(path):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, fail)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("ending", [".part", ".part.tmp"])
def test_what_lies_in_its_place_is_left_as_it_is(tmp_path, ending):
    theirs = tmp_path / "theirs"
    theirs.write_text("of others")
    link = tmp_path / f"x-step5.json{ending}"
    link.symlink_to(theirs)
    with pytest.raises(FileExistsError):
        write(tmp_path, lambda _: None)
    assert theirs.read_text() == "of others"
    assert sorted(os.listdir(tmp_path)) == ["theirs", link.name]


def test_the_mark_of_a_step_that_did_not_end_is_renamed_in_its_place(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"name": "ProfilerStep#10"}, {"name": "ProfilerStep#1"}, {"name": "ProfilerStep#1"}]')
    rename_cut(str(path), 1)
    assert path.read_text() == ('[{"name": "ProfilerStep#10"}, {"name": "StepCutShort#1"}, {"name": "StepCutShort#1"}]')
