"""End the workers with each short epoch and start them anew. Fixed: persistent_workers=True."""

import time

from loop import Images, Network, Program, make_loader, rounds_for


class Indexed(Images):
    """Read an index when a worker begins, as many a data set does."""

    def __init__(self, rounds: int, length: int, index_s: float) -> None:
        super().__init__(rounds, length)
        self.index_s = index_s

    def prepare(self, _worker: int) -> None:
        end = time.thread_time() + self.index_s
        while time.thread_time() < end:
            sorted(range(10_000), key=hash)


def main() -> None:
    program = Program(__doc__)
    batch = program.draw.choice((8, 16))
    step_ms = program.draw.uniform(20, 50)
    epoch = program.draw.randint(20, 50)
    context = program.draw.choice(("fork", "spawn"))
    index_s = epoch * step_ms / 1000 * program.draw.uniform(0.8, 1.4) if context == "fork" else 0.0
    data = Indexed(rounds_for(step_ms / 4, batch), epoch * batch, index_s)
    loader = make_loader(
        data,
        batch,
        program.draw.choice((1, 2)),
        persistent_workers=program.fix,
        worker_init_fn=data.prepare,
        multiprocessing_context=context,
    )
    program.train(loader, Network(step_ms, batch))


if __name__ == "__main__":
    main()
