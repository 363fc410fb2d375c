"""Train from its first second, to be looked at without stacks: it is young, and nothing else is wrong."""

from loop import Network, Program, same_batch

program = Program(__doc__)
batch = program.draw.choice((8, 16))
program.truth.ready()
program.train(same_batch(batch), Network(program.draw.uniform(20, 60), batch))
