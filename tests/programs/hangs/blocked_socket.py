"""Let a loader worker wait for the answer of a store that took the request and never gives one."""

import socket

from hang import Hang, Sticky
from loop import Network, make_loader


class Distant(Sticky):
    """Fetch one image over TCP."""

    def stick(self) -> None:
        """Ask, and wait for the answer."""
        connection = socket.create_connection(server.getsockname())
        connection.sendall(b"GET /image.raw HTTP/1.0\r\n\r\n")
        program.tell()
        connection.recv(3072)


program = Hang(__doc__)
server = socket.create_server(("127.0.0.1", 0))
workers = program.draw.randint(1, 3)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(10, 40), batch)
program.train(make_loader(Distant(program, workers), batch, workers), network)
