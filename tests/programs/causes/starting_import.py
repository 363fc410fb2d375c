"""Import hundreds of large modules before the first step, as from a slow network file system."""

import importlib
import sys
import tempfile
from pathlib import Path

from loop import Network, Program, same_batch

program = Program(__doc__)
lines = program.draw.randint(4_000, 12_000)
with tempfile.TemporaryDirectory(prefix="tpmon-cause-") as folder:
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    body = "\n".join(f"def function_{line}(value): return value + {line}" for line in range(lines // 10))
    program.truth.ready()
    number = 0
    while not program.is_over:
        Path(folder, f"large_module_{number}.py").write_text(body)
        importlib.invalidate_caches()
        importlib.import_module(f"large_module_{number}")
        number += 1
program.train(same_batch(4), Network(10, 4), steps=1)
