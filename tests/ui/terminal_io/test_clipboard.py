"""Copies: what is sent to the terminal, what tmux says, what a person pastes."""

import base64

from tests.frames import make_frame, make_target
from tpmon.model.frame import TargetState
from tpmon.ui.monitor.alerts import facts_text
from tpmon.ui.terminal_io.clipboard import OSC_52_LIMIT_BYTES, copied_message, load_tmux_buffer, osc_52


def test_osc_52_carries_the_text():
    sequence = osc_52("GPU 41 % · 4 workers")
    assert sequence.startswith("\x1b]52;c;")
    assert sequence.endswith("\x07")
    assert base64.b64decode(sequence[7:-1]).decode() == "GPU 41 % · 4 workers"


def test_a_text_that_terminals_would_drop_is_not_sent_and_said_so():
    assert osc_52("x" * (OSC_52_LIMIT_BYTES + 1)) == ""
    assert "terminal" not in copied_message("the screen", "", "")
    assert "printed on exit" in copied_message("the screen", "", "")


def test_tmux_is_asked_only_inside_tmux(monkeypatch, tmp_path):
    monkeypatch.delenv("TMUX", raising=False)
    assert load_tmux_buffer("text") == ""
    monkeypatch.setenv("TMUX", f"{tmp_path}/no-server,1,0")
    assert load_tmux_buffer("text") in ("tmux refused (1)", "no tmux command")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_tmux_buffer("text") == "no tmux command"
    (tmp_path / "tmux").write_text("no program")
    assert load_tmux_buffer("text") == "tmux did not start (Permission denied)"
    (tmp_path / "tmux").chmod(0o755)
    assert load_tmux_buffer("text") == "tmux did not start (Exec format error)"


def test_facts_name_the_job_the_host_and_the_time():
    frame = make_frame(
        facts="2 workers",
        notes=("CUDA_LAUNCH_BLOCKING=1 is set",),
        target=make_target(state=TargetState.ENDED, ended="SIGKILL; OOM killer"),
    )
    assert facts_text(frame).splitlines() == [
        "tpmon 4211 train.py on node-07, 2026-03-14T03:07:41+00:00",
        "2 workers",
        "target ended: SIGKILL; OOM killer",
        "note: CUDA_LAUNCH_BLOCKING=1 is set",
    ]
