"""Build what pyproject.toml cannot say: completions and the manual page, made of the parsers."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildPages(build_py):
    """Build the modules, and in a wheel also the files under share/."""

    def run(self) -> None:
        """Build them; one that is edited in place has no files but its own."""
        super().run()
        if self.editable_mode:
            return
        sys.path.insert(0, str(ROOT))
        from release.pages import write_pages  # noqa: PLC0415  # not needed to edit in place

        base = Path(self.get_finalized_command("build").build_base)
        self.distribution.data_files = write_pages(base / "pages")


setup(cmdclass={"build_py": BuildPages})
