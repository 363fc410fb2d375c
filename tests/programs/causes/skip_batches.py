"""Load batch after batch only to skip it, as after a resume in the middle of an epoch: no step is made."""

from loop import Images, Program, make_loader, rounds_for

program = Program(__doc__)
batch = program.draw.choice((8, 16))
loader = make_loader(Images(rounds_for(program.draw.uniform(2, 5), batch)), batch, 1)
for number, _batch in enumerate(loader):
    if number == 3:
        program.truth.ready()
    if program.is_over:
        break
