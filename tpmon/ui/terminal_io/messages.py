"""What threads of the screen send to its loop."""

from __future__ import annotations

from textual.message import Message

from tpmon.model.known import Known
from tpmon.ui.terminal_io.editor import EditorCall


class SessionTold(Message):
    """Say one line that a thread has found: where a copy or a bundle went."""

    def __init__(self, text: str, seconds: float) -> None:
        """Keep the line, and how long it stands where no key is pressed."""
        super().__init__()
        self.text = text
        self.seconds = seconds


class Captured(Message):
    """Say which trace was written."""

    def __init__(self, path: str) -> None:
        """Keep its path."""
        super().__init__()
        self.path = path


class Planned(Message):
    """Say how to open a line in an editor, or why it cannot be opened."""

    def __init__(self, call: Known[EditorCall], *, late: bool = False) -> None:
        """Keep the command; ``late`` when it took long to find."""
        super().__init__()
        self.call = call
        self.late = late
