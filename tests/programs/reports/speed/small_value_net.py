"""Operators of microseconds on a small network: the threads of the pool spin between them, and one is as fast.

Report: DLR-RM/stable-baselines3#283
"""

import copy
import signal

import torch


def make_network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(12, 128), torch.nn.ReLU(), torch.nn.Linear(128, 6))


if __name__ == "__main__":
    signal.alarm(600)
    online = make_network()
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    states, rewards = torch.zeros(20_000, 12), torch.zeros(20_000)
    actions = torch.zeros(20_000, dtype=torch.int64)
    state = torch.zeros(12)
    for step in range(10**8):
        place = step % len(states)
        with torch.no_grad():
            action = online(state).argmax() if step % 10 else torch.randint(6, ())
        states[place], actions[place], rewards[place] = state, action, -state.abs().mean()
        state = (0.9 * state + 0.1 * torch.randn(12) * action).clamp(-2, 2)
        rows = torch.randint(min(step + 1, len(states) - 1), (256,))
        with torch.no_grad():
            wanted = rewards[rows] + 0.97 * target(states[rows + 1]).amax(1)
        chosen = online(states[rows]).gather(1, actions[rows, None]).squeeze(1)
        optimizer.zero_grad()
        torch.nn.functional.smooth_l1_loss(chosen, wanted).backward()
        optimizer.step()
        if step % 500 == 0:
            target.load_state_dict(online.state_dict())
            print(f"step {step} ", flush=True)
