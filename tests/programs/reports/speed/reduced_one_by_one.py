"""The gradient of each of some hundred small parameters is reduced by itself, one after another, over gloo.

Report: Denys88/rl_games#191
"""

import signal

import torch
import torch.distributed as dist


def reduce_gradients(network: torch.nn.Module) -> None:
    for parameter in network.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


if __name__ == "__main__":
    signal.alarm(600)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    blocks = [layer for _ in range(80) for layer in (torch.nn.Linear(24, 24), torch.nn.LayerNorm(24))]
    network = torch.nn.Sequential(*blocks, torch.nn.Linear(24, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, foreach=True)
    torch.manual_seed(dist.get_rank())
    for step in range(10**8):
        optimizer.zero_grad()
        network(torch.rand(8, 24)).square().mean().backward()
        reduce_gradients(network)
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step} ", flush=True)
