"""Import hundreds of large modules before the first step, as from a slow network file system."""

import importlib
import sys
import tempfile
from pathlib import Path

from loop import Network, Program, same_batch

program = Program(__doc__)
functions, statements = program.draw.randint(400, 1_200), program.draw.randint(1, 3)
with tempfile.TemporaryDirectory(prefix="tpmon-cause-") as folder:
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    adds = "; ".join(["value += 1"] * statements)
    body = "\n".join(f"def function_{line}(value): {adds}; return value + {line}" for line in range(functions))
    program.truth.ready()
    number = 0
    while not program.is_over:
        Path(folder, f"large_module_{number}.py").write_text(body)
        importlib.invalidate_caches()
        importlib.import_module(f"large_module_{number}")
        number += 1
program.train(same_batch(4), Network(10, 4), steps=1)
