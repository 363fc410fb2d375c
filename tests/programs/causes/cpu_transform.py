"""Transform samples at great cost: two workers use up both CPUs. Fixed: transformed beforehand."""

from loop import Images, Network, Program, make_loader, rounds_for

program = Program(__doc__)
batch = program.draw.choice((8, 16, 32))
step_ms = program.draw.uniform(20, 40)
load_ms = step_ms * program.draw.uniform(6, 10)
data = Images(1 if program.fix else rounds_for(load_ms, batch))
program.train(make_loader(data, batch, program.draw.choice((2, 3))), Network(step_ms, batch))
