"""The store answers six requests a second and refuses all others; the workers sleep between their attempts.

Report: huggingface/datasets#6172
"""

import http.client
import signal
import socket
import time
from multiprocessing import Process

import torch
from torch.utils.data import DataLoader, Dataset


def serve(next_s: float = 0.0) -> None:
    signal.alarm(600)
    while True:
        with listener.accept()[0] as client:
            is_free = bool(client.recv(4096)) and time.monotonic() >= next_s
            next_s = time.monotonic() + 1 / 6 if is_free else next_s
            client.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + bytes(256) if is_free else b"HTTP/1.0 503 Busy\r\n\r\n")


class Remote(Dataset):
    def __getitem__(self, number: int) -> torch.Tensor:
        wait_s = 0.05
        while True:
            store = http.client.HTTPConnection(*listener.getsockname())
            store.request("GET", f"/{number}")
            if (answer := store.getresponse()).status == 200:
                return torch.frombuffer(bytearray(answer.read()), dtype=torch.uint8).float()
            time.sleep(wait_s := min(2.0, 2 * wait_s))


signal.alarm(600)
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
Process(target=serve, daemon=True).start()
for step, batch in enumerate(DataLoader(Remote(), sampler=range(100_000), batch_size=4, num_workers=4)):
    print(f"step {step} loss {torch.nn.Linear(256, 1)(batch).square().mean().item():.3f}", flush=True)
