"""Put the golden picture into README.md, so that it shows what the screen looks like now.

Run as ``python -m tests.readme``; ``make docs`` does.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "tests" / "goldens" / "pictures" / "data-bound.80x24.txt"


def write_readme() -> str:
    """Return README.md with the picture of today in its first text block."""
    picture = PICTURE.read_text(encoding="utf-8").rstrip("\n")
    block = re.compile(r"(?<=```text\n).*?(?=\n```)", re.DOTALL)
    return block.sub(lambda _: picture, README.read_text(encoding="utf-8"), count=1)


if __name__ == "__main__":
    README.write_text(write_readme(), encoding="utf-8")
