"""Say which torch the trainings of the tests load, without loading it here."""

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="no torch in this environment")


def read_torch_version() -> str:
    """Return what ``torch.__version__`` is: pip's own record may lack the build, "+cu130" or "+cpu"."""
    version = Path(find_spec("torch").origin).with_name("version.py")
    return str(runpy.run_path(str(version))["__version__"])
