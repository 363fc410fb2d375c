"""A user without HOME and without an entry in passwd: no file is read or written below a folder named "~"."""

import pytest

from tpmon.config import config_path, describe_config, read_file, resolve
from tpmon.ui.terminal_io.terminal import report_crash


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in an empty folder without a home."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_crash_without_a_home_is_told_and_written_nowhere(here):
    try:
        raise ZeroDivisionError("seen")
    except ZeroDivisionError as error:
        said = report_crash(error)
    assert said.startswith("Traceback")
    assert "tpmon: bug: ZeroDivisionError: seen" in said
    assert said.endswith("Try: copy the lines above; no report file: no home folder is known.")
    assert list(here.iterdir()) == []


def test_a_configuration_without_a_home_is_none(here):
    path = config_path({})
    file = here / path
    file.parent.mkdir(parents=True)
    file.write_text("interval = 5\n")
    assert read_file(path) == {}
    assert describe_config(resolve({}, {}, path, {}), {}, path)[0] == f"# {path} (not there)"
