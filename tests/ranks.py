"""Two processes that meet as `torchrun` lets them meet: frameworks read the environment."""

import os
import socket

import torch
from torch import distributed, multiprocessing

import hidden_folders  # noqa: F401

RANKS = 2


def on_each_rank(rank, port, folder, work, arguments):
    torch.set_num_threads(1)
    meeting = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in meeting.items()}, ACCELERATE_USE_CPU="true")
    try:
        torch.save(work(rank, folder, *arguments), f"{folder}/result-{rank}.pt")
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def run(folder, work, *arguments):
    """Return what the work returns on each rank; it is called with the rank, the folder and the arguments."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    multiprocessing.spawn(on_each_rank, args=(port, str(folder), work, arguments), nprocs=RANKS)
    return [torch.load(f"{folder}/result-{rank}.pt", weights_only=False) for rank in range(RANKS)]
