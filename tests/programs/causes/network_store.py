"""Fetch every sample over TCP from a store that answers late. Fixed: more readers."""

import socket

import torch
from loop import SIDE, Images, Network, Program, make_loader
from store import fetch, start_store

PIXELS = 3 * SIDE * SIDE


class Distant(Images):
    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.connection: socket.socket | None = None

    def read(self, index: int) -> torch.Tensor:
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.port))
        return torch.frombuffer(fetch(self.connection, PIXELS), dtype=torch.uint8).view(3, SIDE, SIDE) / 255


program = Program(__doc__)
batch = program.draw.choice((8, 16))
workers = program.draw.choice((1, 2))
step_ms = program.draw.uniform(15, 40)
late_ms = step_ms * program.draw.uniform(3, 5) * workers / batch
data = Distant(start_store(PIXELS, late_ms))
program.train(make_loader(data, batch, 4 * workers if program.fix else workers), Network(step_ms, batch))
