"""Divide the tests of a GPU into five parts of at most nine minutes: a card may be lent for half an hour.

``python -m tests.gpu.parts 2`` prints the files of part 2; without a number those of all parts; with the word
"requirements" what they need besides torch, a requirement a line: tpmon's own packages and pytest.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OF_TESTS = ("pytest>=8", "exceptiongroup")
PARTS: dict[int, tuple[str, ...]] = {
    1: ("test_machine_gpu.py", "test_gpu_real.py", "test_hook_gpu.py", "test_capture_gpu.py", "test_nsys_gpu.py"),
    2: ("test_fork_gpu.py",),
    3: ("test_verdicts_gpu.py",),
    4: ("test_hangs_gpu.py", "test_slowdown_gpu.py"),
    5: ("test_frames_gpu.py",),
}


def list_files(parts: list[int]) -> list[str]:
    return [str(HERE / name) for part in parts or sorted(PARTS) for name in PARTS[part]]


def list_requirements() -> list[str]:
    """Return them without markers: pip takes those for its own Python, not for the one that it downloads for."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    return [one.partition(";")[0].strip() for one in (*project["dependencies"], *OF_TESTS)]


if __name__ == "__main__":
    if sys.argv[1:] == ["requirements"]:
        print(*list_requirements(), sep="\n")
    else:
        print(*list_files([int(one) for one in sys.argv[1:]]))
