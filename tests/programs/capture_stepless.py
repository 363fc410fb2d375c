"""Run backwards without an optimizer or a DataLoader, with the hook, until killed: no step ends.

With --takes-the-signal the program handles SIGURG itself, touches FOLDER/signal for each, and reports that
it runs once the hook has said so.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)

import torch  # noqa: E402

import tpmon.hook  # noqa: E402
from tpmon.hook.bus import wire  # noqa: E402
from tpmon.hook.installation import HOOK  # noqa: E402

torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
takes = "--takes-the-signal" in sys.argv
while not tpmon.hook.problem():
    net(torch.ones(2, 8)).sum().backward()
    if takes:
        signal.signal(signal.SIGURG, lambda *_: Path(sys.argv[1], "signal").touch())
    if not takes or not wire.parse_signal(HOOK.steps.pages.page):
        Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(0.01)
