"""The tests know the torch that is loaded by its own word, whatever pip calls it."""

import importlib.metadata

import pytest

from tests.torch_build import read_torch_version


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cu130", "2.14.1+cpu", "3.0.0a0+git1a2b3c4"])
def test_the_build_that_pip_does_not_record_is_part_of_the_version(tmp_path, monkeypatch, version):
    public = version.partition("+")[0]
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('torch was loaded')")
    (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\n__version__ = '{version}'\n")
    (tmp_path / f"torch-{public}.dist-info").mkdir()
    (tmp_path / f"torch-{public}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {public}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (importlib.metadata.version("torch"), read_torch_version()) == (public, version)
