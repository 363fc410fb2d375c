"""Serve samples over TCP on this machine, each after a wait, as a distant object store does.

usage: store.py BYTES. Prints its port, then serves until its stdin closes. Standard library only.
"""

from __future__ import annotations

import os
import socket
import socketserver
import sys
import threading
import time

LATENCY_S = 0.025


class StoreHandler(socketserver.BaseRequestHandler):
    """Answer each 4-byte index on one connection with the bytes of that sample."""

    def handle(self) -> None:
        """Wait, send, and start over until the client hangs up."""
        size = int(sys.argv[1])
        while len(index := self.request.recv(4, socket.MSG_WAITALL)) == 4:
            time.sleep(LATENCY_S)
            self.request.sendall(index * (size // 4))


class StoreServer(socketserver.ThreadingTCPServer):
    """Listen on a free port of the loopback interface."""

    daemon_threads = True


if __name__ == "__main__":
    with StoreServer(("127.0.0.1", 0), StoreHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        while os.read(0, 1):
            pass
