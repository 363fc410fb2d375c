"""Train for some seconds, then validate for longer than anyone looks."""

import torch
from loop import Images, Network, Program, make_loader


def validate() -> float:
    network.eval()
    right = seen = 0
    with torch.no_grad():
        for images, labels in held_out:
            right += int((network(images).argmax(1) == labels).sum())
            seen += len(labels)
            if program.is_over:
                break
    return right / seen


program = Program(__doc__)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(20, 60), batch)
workers = program.draw.choice((0, 1))
held_out = make_loader(Images(), 4 * batch, workers, shuffle=False)
program.train(make_loader(Images(), batch, workers), network, steps=100)
program.truth.ready()
print(f"accuracy {validate():.3f}", flush=True)
