"""Start the pool of one library, larger than there are CPUs, in every loader worker or in the rank."""

import os

THREADS = 6
for name in ("OPENBLAS_NUM_THREADS", "NUMEXPR_MAX_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[name] = str(THREADS)  # read when the library is loaded, which torch does for numpy

import importlib.util  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from multiprocessing import get_context  # noqa: E402

from loop import Images, Network, Program, make_loader, same_batch  # noqa: E402
from torch import Tensor  # noqa: E402

WIDE = 512


def multiply(times: int) -> None:
    import numpy as np

    matrix = np.random.default_rng(0).random((WIDE, WIDE), dtype=np.float32)
    for _ in range(times):
        matrix = np.clip(matrix @ matrix, 0, 1)


def blur(times: int) -> None:
    import cv2
    import numpy as np

    cv2.setNumThreads(THREADS)
    image = np.zeros((WIDE, WIDE, 3), dtype=np.uint8)
    for _ in range(times):
        cv2.bilateralFilter(image, 9, 75, 75)


def compute(times: int) -> None:
    import numexpr
    import numpy as np

    values = {"x": np.linspace(0, 1, 1 << 20)}
    for _ in range(times):
        numexpr.evaluate("sin(x) * cos(x) + 0.5 * x", values)


WORK = {"numpy": multiply, "cv2": blur, "numexpr": compute}


class Worked(Images):
    def __init__(self, work: Callable[[int], None], times: int) -> None:
        super().__init__()
        self.work, self.times = work, times

    def transform(self, image: Tensor) -> Tensor:
        self.work(self.times)
        return image


def count_times(work: Callable[[int], None], cpu_ms: float) -> int:
    """Return how often a call costs ``cpu_ms``, all its threads together."""
    work(2)
    before = time.process_time()
    work(8)
    return max(1, round(8 * cpu_ms / 1000 / max(time.process_time() - before, 1e-6)))


def times_for(work: Callable[[int], None], cpu_ms: float) -> int:
    """Count in a process of its own: a pool that this one had started would not work in its loader workers."""
    with get_context("fork").Pool(1) as pool:
        return pool.apply(count_times, (work, cpu_ms))


program = Program(__doc__, ("--library", str, "numpy"), ("--in-rank", int, 0))
library: str = program.options.library
if importlib.util.find_spec(library) is None:
    program.cannot(f"{library} is not installed")
work = WORK[library]
batch = program.draw.choice((4, 8))
step_ms = program.draw.uniform(15, 30)
network = Network(step_ms, batch)
if program.options.in_rank:
    times = times_for(work, 8 * step_ms)
    program.train(same_batch(batch), network, lambda _images, _loss: work(times))
else:
    loader = make_loader(Worked(work, times_for(work, 16 * step_ms / batch)), batch, program.draw.choice((3, 4)))
    program.train(loader, network)
