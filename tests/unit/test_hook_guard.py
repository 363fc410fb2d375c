"""Who else holds the GPU's profiling slot: told by the libraries that a process has mapped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpmon.hook.guard import find_cupti_user

TORCH = "7f10a4000000-7f10a5000000 r-xp 00000000 08:01 4211                       /opt/venv/lib/python3.11/site-packages"
OWN = f"{TORCH}/torch/lib/libtorch_cuda.so\n{TORCH}/nvidia/cuda_cupti/lib/libcupti.so.12\n"
AT = "7f20a4000000-7f20a5000000 r-xp 00000000 08:01 17                         "
NSYS = "/opt/nvidia/nsight-systems/2025.1.1/target-linux-x64"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (f"{AT}{NSYS}/libToolsInjection64.so\n", "libToolsInjection64.so"),
        (f"{AT}/tmp/nvidia/libToolsInjection64.so (deleted)\n", "libToolsInjection64.so (deleted)"),
        (f"{AT}/usr/lib/libnsys-mpi.so\n", "libnsys-mpi.so"),
        (f"{AT}/usr/local/cuda/lib64/libcupti_injection.so\n", "libcupti_injection.so"),
        (f"{AT}{NSYS}/libInterceptorInjection\udcff.so\n", "libInterceptorInjection\ufffd.so"),
        (f"{AT}/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12\n", ""),
        ("7fff00000000-7fff00021000 rw-p 00000000 00:00 0                          [stack]\n", ""),
        ("", ""),
    ],
)
def test_the_tool_in_front_of_a_run_is_known_by_its_library_and_torchs_own_is_none(
    tmp_path: Path, line: str, name: str
) -> None:
    maps = tmp_path / "maps"
    for text in (f"{line}{OWN}", f"{OWN}{line}"):
        maps.write_text(text, encoding="utf-8", errors="surrogateescape")
        assert find_cupti_user(str(maps)) == name


def test_maps_that_cannot_be_read_name_nobody(tmp_path: Path) -> None:
    assert find_cupti_user(str(tmp_path / "gone")) == ""
    assert find_cupti_user() == ""
