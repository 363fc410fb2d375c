"""Run another program of this folder in a thread, while the main thread only waits for it, as Ray and wandb do.

Usage: in_thread.py NAME [options of that program]
"""

import runpy
import sys
import threading
from pathlib import Path

path = Path(__file__).with_name(f"{sys.argv.pop(1)}.py")
trainer = threading.Thread(target=runpy.run_path, args=(str(path),), kwargs={"run_name": "__main__"}, name="trainer")
trainer.start()
trainer.join()
