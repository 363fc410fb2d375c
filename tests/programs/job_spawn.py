"""Start ranks with torch.multiprocessing, so that none has RANK in its start environment."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch.multiprocessing as mp
from job_train import parse, train


def rank_main(rank: int, options: argparse.Namespace) -> None:
    train(options, rank, options.ranks)


if __name__ == "__main__":
    settings = parse()
    method = settings.context
    settings.context = "fork"
    settings.init = f"file://{Path(settings.ready).resolve()}/rendezvous"
    mp.start_processes(rank_main, args=(settings,), nprocs=settings.ranks, start_method=method)
