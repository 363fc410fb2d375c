"""The task of the engine has ended with an error, and the futures of its requests are awaited for ever.

Report: NovaSky-AI/SkyRL#1691
"""

import asyncio
import signal

import torch


class Engine:
    def __init__(self) -> None:
        self.inbox, self.answers = asyncio.Queue(), {}
        self.task = asyncio.create_task(self.serve())

    async def serve(self) -> None:
        while (request := await self.inbox.get()) != 2410:
            self.answers.pop(request).set_result(torch.rand(16, 128))
        raise MemoryError("no room for the cache of this request")

    async def generate(self, request: int) -> torch.Tensor:
        answer = self.answers[request] = asyncio.get_running_loop().create_future()
        await self.inbox.put(request)
        return await answer


async def train() -> None:
    engine, policy = Engine(), torch.nn.Linear(128, 8)
    optimizer = torch.optim.Adam(policy.parameters())
    for step in range(5000):
        rollouts = await asyncio.gather(*map(engine.generate, range(4 * step, 4 * step + 4)))
        optimizer.zero_grad()
        policy(torch.cat(rollouts)).logsumexp(1).mean().backward()
        optimizer.step()
        print(f"step {step}", flush=True)


signal.alarm(600)
asyncio.run(train())
