"""The wiring of ``run`` and ``hook``, which parse their own arguments: what follows is a program's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tpmon import config
from tpmon.config import Options
from tpmon.report.write import Output

if TYPE_CHECKING:
    from tpmon.probe.job import Job


def start_with_hook(arguments: Sequence[str], watch: Callable[[Job, Options], int]) -> int:
    """Start a program with the hook in it, or write the hook to a file; the first argument says which.

    Args:
        arguments: ``run`` or ``hook``, and what follows it.
        watch: shows a job on the screen until it ends or is left.
    """
    output = Output(1, ascii_only=False)
    if arguments[0] == "hook":
        from tpmon.hook_file import run_hook  # noqa: PLC0415 each needs the other's modules never

        return run_hook(arguments[1:], output)
    from tpmon.run import run_program  # noqa: PLC0415
    from tpmon.ui.terminal import require_terminal  # noqa: PLC0415

    path = config.config_path(os.environ)
    options = config.settle(config.resolve({}, os.environ, path, config.read_file(path)))
    return run_program(arguments[1:], output, require_terminal, lambda job: watch(job, options))
