"""Rewrite the golden Frames and pictures and docs/screens.md; read the diff before committing it.

Run as ``python -m tests.goldens.update``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.goldens import pictures, trace_views
from tests.goldens.states import STATES


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


def _remove_others(folder: Path, kept: Iterable[Path]) -> None:
    for path in set(folder.iterdir()) - set(kept):
        path.unlink()
        print(f"removed {path}")


def main() -> None:
    pictures.FRAMES.mkdir(exist_ok=True)
    pictures.PICTURES.mkdir(exist_ok=True)
    for state in STATES:
        _write(pictures.frame_path(state), pictures.encode_state(state))
    listed = list(pictures.list_pictures())
    for picture in listed:
        _write(pictures.picture_path(picture), pictures.write_text(pictures.paint_picture(picture)))
    _remove_others(pictures.FRAMES, map(pictures.frame_path, STATES))
    _remove_others(pictures.PICTURES, map(pictures.picture_path, listed))
    trace_views.FOLDER.mkdir(exist_ok=True)
    traces = list(trace_views.list_pictures())
    for one in traces:
        _write(trace_views.picture_path(one), pictures.write_text(trace_views.paint_picture(one)))
    _remove_others(trace_views.FOLDER, map(trace_views.picture_path, traces))
    _write(pictures.SCREENS_PAGE, pictures.write_screens_page())


if __name__ == "__main__":
    main()
