"""Let one worker do what needs two, while a CPU is idle. Fixed: two workers."""

from loop import Images, Network, Program, make_loader, rounds_for

program = Program(__doc__)
batch = program.draw.choice((8, 16, 32))
step_ms = program.draw.uniform(20, 50)
load_ms = step_ms * program.draw.uniform(2.5, 3.5)
data = Images(rounds_for(load_ms, batch))
program.train(make_loader(data, batch, 2 if program.fix else 1), Network(step_ms, batch))
