"""Let threads of pure Python fight with the training loop for the interpreter. Fixed: processes."""

import multiprocessing
import threading

from loop import Network, Program, same_batch


def count_words() -> None:
    counts: dict[int, int] = {}
    while True:
        for word in range(100_000):
            counts[word % 97] = counts.get(word % 97, 0) + 1


program = Program(__doc__)
batch = program.draw.choice((1, 2))
network = Network(0, batch, depth=program.draw.randint(2, 4))
threads = program.draw.choice((3, 4))
for _ in range(threads):
    if program.fix:
        multiprocessing.get_context("fork").Process(target=count_words, daemon=True).start()
    else:
        threading.Thread(target=count_words, daemon=True).start()
program.train(same_batch(batch), network)
