"""Print what the tests of a GPU need besides torch, a requirement a line: tpmon's own packages and pytest.

Markers of a requirement go: pip takes them for those of its own Python, not of the one that it downloads for.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OF_TESTS = ("pytest>=8", "exceptiongroup")


def list_requirements() -> list[str]:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    return [one.partition(";")[0].strip() for one in (*project["dependencies"], *OF_TESTS)]


if __name__ == "__main__":
    print(*list_requirements(), sep="\n")
