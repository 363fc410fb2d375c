"""Write completions of shells and the manual page, of the parsers of tpmon."""

from __future__ import annotations

from pathlib import Path

from argparse_manpage.manpage import Manpage

from tpmon import __version__
from tpmon.cli import build_whole_parser
from tpmon.completion import write_completion

PAGES = {
    "share/bash-completion/completions/tpmon": "bash",
    "share/zsh/site-functions/_tpmon": "zsh",
    "share/fish/vendor_completions.d/tpmon.fish": "fish",
}
"""Where shells look below the prefix of an environment, and which one does."""
MANUAL = "share/man/man1/tpmon.1"


def write_manual() -> str:
    """Write the manual page tpmon(1)."""
    about = {
        "description": "say why a PyTorch training run is slow or stuck",
        "project_name": "tpmon",
        "version": __version__,
        "manual_title": "User Commands",
        "date": "",
    }
    return str(Manpage(build_whole_parser(), about, format="single-commands-section"))


def write_pages(folder: Path) -> list[tuple[str, list[str]]]:
    """Write all into ``folder``, and return the files as ``data_files`` of setuptools takes them."""
    written = {place: write_completion(build_whole_parser(), shell) for place, shell in PAGES.items()}
    written[MANUAL] = write_manual()
    for place, text in written.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [(str(Path(place).parent), [str(folder / place)]) for place in written]
