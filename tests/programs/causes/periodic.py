"""Wait long for one batch in many, as when a new shard is opened. Fixed: a longer queue hides it."""

import time

from loop import Images, Network, Program, make_loader, rounds_for


def open_shard(index: int) -> None:
    if index % (every * batch) == 0:
        time.sleep(open_s)


program = Program(__doc__)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(25, 50)
every = program.draw.randint(30, 60)
open_s = every * step_ms / 1000 * program.draw.uniform(1.5, 2.0)
data = Images(rounds_for(step_ms / 4, batch), before=open_shard)
loader = make_loader(data, batch, 2, shuffle=False, prefetch_factor=every if program.fix else 2)
program.train(loader, Network(step_ms, batch))
