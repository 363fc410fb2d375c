"""The thread that fills the queue has died of an error; the loop waits for it for the nine minutes of its time-out.

Report: RadarML/red-rover#23
"""

import queue
import signal
import threading

import torch

SHAPES = {"radar": (64, 128), "camera": (64, 128)}


def read_frames(frames: queue.Queue, last: int) -> None:
    for number in range(10_000):
        sensor = "lidar" if number == last else ("radar", "camera")[number % 2]
        frames.put((number, torch.rand(SHAPES[sensor])))


if __name__ == "__main__":
    signal.alarm(600)
    frames: queue.Queue = queue.Queue(4)
    threading.Thread(target=read_frames, args=(frames, 500), daemon=True).start()
    network = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Tanh(), torch.nn.Linear(256, 4))
    optimizer = torch.optim.Adam(network.parameters())
    while True:
        number, frame = frames.get(timeout=540)
        optimizer.zero_grad()
        network(frame).square().mean().backward()
        optimizer.step()
        if number % 20 == 19:
            print(f"frame {number}", flush=True)
