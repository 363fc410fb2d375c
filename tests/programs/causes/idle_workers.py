"""Train with many more workers than are needed, nearly all asleep: healthy."""

from loop import Images, Network, Program, make_loader

program = Program(__doc__)
batch = program.draw.choice((4, 8))
program.train(make_loader(Images(), batch, program.draw.randint(6, 10)), Network(program.draw.uniform(60, 150), batch))
