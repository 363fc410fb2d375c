"""Serve samples over TCP, each after a wait, as an object store does; a program starts it as a child.

usage: store.py BYTES LATENCY_MS
"""

import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path


class Answer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while self.request.recv(1):
            time.sleep(float(sys.argv[2]) / 1000)
            self.request.sendall(os.urandom(int(sys.argv[1])))


class Store(socketserver.ThreadingTCPServer):
    daemon_threads = True


def start_store(sample_bytes: int, latency_ms: float) -> int:
    """Start the store; it ends when this process and its workers are gone. Return its port."""
    words = [sys.executable, str(Path(__file__)), str(sample_bytes), str(latency_ms)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return int(child.stdout.readline())


def fetch(connection: socket.socket, sample_bytes: int) -> bytearray:
    connection.sendall(b"1")
    sample = bytearray()
    while len(sample) < sample_bytes:
        part = connection.recv(sample_bytes - len(sample))
        if not part:
            raise ConnectionError("the store went away")
        sample += part
    return sample


if __name__ == "__main__":
    with Store(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        while os.read(0, 1):
            pass
