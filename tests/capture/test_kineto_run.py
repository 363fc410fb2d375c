"""What ``tpmon run --kineto`` puts into the environment, and what it clears away."""

import os
import socket
from pathlib import Path

import pytest

from tpmon.capture import kineto_window as kineto_run
from tpmon.capture.kineto_daemon import LONGEST_FOLDER
from tpmon.errors import UsageError


def test_run_kineto_arms_a_run_and_says_its_price(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(kineto_run.tempfile, "tempdir", "/tmp")
    armed = kineto_run.prepare({"A": "1"})
    place = Path(armed["KINETO_IPC_SOCKET_DIR"])
    try:
        assert (armed["KINETO_USE_DAEMON"], armed["KINETO_LOG_LEVEL"], armed["A"]) == ("1", "99", "1")
        assert place.stat().st_mode & 0o777 == 0o700
        assert len(str(place)) <= LONGEST_FOLDER
        if not os.path.exists(kineto_run.SYSTEM_CONFIG):
            assert "INTERVAL_SECS=1\n" in Path(armed["KINETO_CONFIG"]).read_text()
        told = capfd.readouterr()
        assert told.out == ""
        assert "one more thread, of libkineto" in told.err
        theirs = kineto_run.prepare({"KINETO_CONFIG": "/mine", "KINETO_LOG_LEVEL": "1"})
        assert (theirs["KINETO_CONFIG"], theirs["KINETO_LOG_LEVEL"]) == ("/mine", "1")
        os.rmdir(theirs["KINETO_IPC_SOCKET_DIR"])
        with pytest.raises(UsageError, match="is set already"):
            kineto_run.prepare({"KINETO_USE_DAEMON": "1"})
    finally:
        for one in place.iterdir():
            one.unlink()
        place.rmdir()


def test_only_old_folders_in_which_nobody_asks_are_removed(tmp_path):
    for name in ("tpmon-kineto-old", "tpmon-kineto-new", "other-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "conf").write_text("")
    used = tmp_path / "tpmon-kineto-used"
    used.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(f"/proc/self/fd/{os.open(used, os.O_RDONLY)}/s" if len(str(used)) > 100 else str(used / "s"))
        for name in ("tpmon-kineto-old", "other-old", "tpmon-kineto-used"):
            os.utime(tmp_path / name, (0, 0))
        kineto_run.sweep(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other-old", "tpmon-kineto-new", "tpmon-kineto-used",
    ]  # fmt: skip
