"""Kill the head of a fleet at many moments: ``python -m tests.fleet.kills 50``, as root. How long do agents stay?

Half of the times through Slurm, half by a command that enters the hosts. What is counted is processes on the hosts.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.command_line import TPMON, start
from tests.fleet import bed

KILLED_AT_S = (0.4, 1.2, 6.0)
"""After the start: while srun or ssh starts, while agents do, while they speak."""
MOST_S = 12.0
WAIT_S = 60.0
"""How long agents are waited for that do not end."""


def kill_head(hosts: bed.Hosts, words: Sequence[str], env: Mapping[str, str], at_s: float) -> float:
    """Start a head, kill it after so many seconds, and return for how long agents ran on."""
    head = start("fleet", *words, "--plain", env=env, start_new_session=True)
    time.sleep(at_s)
    os.killpg(head.pid, signal.SIGKILL)
    head.communicate()
    begun_s = last_s = time.monotonic()
    while time.monotonic() - last_s < 2.0 and time.monotonic() - begun_s < WAIT_S:
        if bed.count_agents(hosts):
            last_s = time.monotonic()  # those that were on their way come later
        time.sleep(0.1)
    return last_s - begun_s


def main(times: int) -> None:
    """Print a line for each kill, and how many left no agent 15 s later."""
    chance, left_s = random.Random(), list[float]()
    with tempfile.TemporaryDirectory() as name, bed.make_hosts("n1", "n2", network=True) as hosts:
        folder, agent = Path(name), ("--agent", " ".join(TPMON))
        entry, command = bed.write_entry(hosts, folder), bed.write_hang(folder, hosts)
        with bed.run_slurm(hosts, folder) as slurm, bed.run_job(slurm, hosts, command, folder / "job.log") as job:
            bed.await_hang(folder, len(hosts))
            ways = (("--slurm", job, *agent), slurm), (("--hosts", "n1,n2", "--exec", entry, *agent), dict(os.environ))
            for number in range(times):
                words, env = ways[number % 2]
                at_s = chance.uniform(0.1, MOST_S)
                left_s.append(kill_head(hosts, words, env, at_s))
                print(f"{words[0]}, killed after {at_s:.1f} s: agents for {left_s[-1]:.1f} s more", flush=True)
    gone = sum(one < 15.0 for one in left_s)
    print(f"0 agents left 15 s later in {gone} of {times}; the longest {max(left_s):.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]))
