"""Train with workers that have little to do and a full queue: healthy."""

from loop import Images, Network, Program, make_loader, rounds_for

program = Program(__doc__)
batch = program.draw.choice((8, 16, 32))
step_ms = program.draw.uniform(40, 120)
data = Images(rounds_for(step_ms * program.draw.uniform(0.05, 0.4), batch))
workers = program.draw.choice((1, 2))
program.train(make_loader(data, batch, workers), Network(step_ms, batch))
