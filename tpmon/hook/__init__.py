"""tpmon's hook: exact steps of this training for tpmon outside. ``import tpmon.hook`` is all it needs.

Import it once, before or after torch. It patches four places of torch, and writes counters and times to
memfds that vanish with the process. It never prints, nor raises into the loop (docs/hook.md).

    import tpmon.hook

    tpmon.hook.step()                    a step ends here: for loops that it cannot see
    with tpmon.hook.mark("checkpoint"):  time a part, and name it in profiles
    tpmon.hook.ThroughputMeter()         samples a second and latencies, after a warm-up cut
    tpmon.hook.make_profiler()           torch.profiler with bounds; top_tables(), export_trace()
    tpmon.hook.allow_stacks()            let tpmon read stacks without root under Yama
    tpmon.hook.uninstall()               take all of it back; install() puts it there again
    tpmon.hook.problem()                 what went wrong, "" when nothing did
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tpmon.hook.installation import allow_stacks
    from tpmon.hook.profiling import (
        Throughput,
        ThroughputMeter,
        export_trace,
        make_profiler,
        mark,
        top_tables,
    )

__all__ = [
    "Throughput",
    "ThroughputMeter",
    "allow_stacks",
    "export_trace",
    "install",
    "make_profiler",
    "mark",
    "problem",
    "step",
    "top_tables",
    "uninstall",
]


def install() -> None:
    """Install the hook, unless it is installed: importing this package does it."""
    from tpmon.hook.installation import HOOK  # noqa: PLC0415

    HOOK.install()


def uninstall() -> None:
    """Take back every patch and close the pages; training goes on as if there had been no hook."""
    from tpmon.hook.installation import HOOK  # noqa: PLC0415

    HOOK.uninstall()


def step(samples: int = 0, *, train: bool = True) -> None:
    """End a step here. From the first call on, nothing else ends a step.

    Args:
        samples: how many samples it had; 0 takes the DataLoader's batch size.
        train: False for a step of an evaluation.
    """
    from tpmon.hook.installation import HOOK  # noqa: PLC0415

    HOOK.steps.step_called(samples, train)


def problem() -> str:
    """Return what went wrong in the hook, "" when nothing did."""
    from tpmon.hook.installation import HOOK  # noqa: PLC0415

    return HOOK.problem or HOOK.steps.problem


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    module = "installation" if name == "allow_stacks" else "profiling"  # which only who asks for it pays for
    return getattr(import_module(f"{__name__}.{module}"), name)


if "tpmon.probe" not in sys.modules:  # tpmon itself reads hook.wire, and is no training
    install()
