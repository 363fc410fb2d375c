"""Load in the training process itself: num_workers=0 and a transform that costs more than the step."""

from loop import Images, Network, Program, make_loader, rounds_for

program = Program(__doc__)
batch = program.draw.choice((8, 16, 32))
step_ms = program.draw.uniform(30, 80)
load_ms = step_ms * program.draw.uniform(1.2, 2.2)
data = Images(rounds_for(load_ms, batch))
program.train(make_loader(data, batch, 2 if program.fix else 0), Network(step_ms, batch))
