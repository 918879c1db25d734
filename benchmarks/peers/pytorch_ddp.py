"""PyTorch's DistributedDataParallel over gloo, one process a device, on the CNN of the
MirroredStrategy tutorial.

    python pytorch_ddp.py DATA.npz PROCESSES PER_DEVICE_BATCH EXAMPLES EPOCHS

Prints one line of JSON an epoch: {"examples_per_second": ...}. The cores are shared out
among the processes.
"""

import json
import os
import socket
import sys
import time

import numpy as np
import torch
from torch import distributed, multiprocessing, nn


def run(
    rank: int,
    path: str,
    port: int,
    processes: int,
    per_device: int,
    examples: int,
    epochs: int,
) -> None:
    """One process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes))
    torch.manual_seed(0)
    with np.load(path) as data:
        images = (
            torch.from_numpy(data["images"][:examples]).permute(0, 3, 1, 2).float()
            / 255
        )
        labels = torch.from_numpy(data["labels"][:examples]).long()
    model: nn.Module = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(5408, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    distributed.init_process_group("gloo", rank=rank, world_size=processes)
    model = nn.parallel.DistributedDataParallel(model) if processes > 1 else model
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-3), nn.CrossEntropyLoss()
    steps = examples // (processes * per_device)
    for epoch in range(epochs):
        order = torch.randperm(examples, generator=torch.Generator().manual_seed(epoch))
        mine = order[: steps * processes * per_device].view(
            steps, processes, per_device
        )[:, rank]
        start = time.perf_counter()
        for batch in mine:
            optimizer.zero_grad()
            loss(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        distributed.barrier()
        if rank == 0:
            speed = mine.numel() * processes / (time.perf_counter() - start)
            print(json.dumps({"examples_per_second": speed}), flush=True)
    distributed.destroy_process_group()


def main() -> None:
    """Run the command."""
    processes, per_device, examples, epochs = map(int, sys.argv[2:])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(
        run,
        (sys.argv[1], port, processes, per_device, examples, epochs),
        nprocs=processes,
    )


if __name__ == "__main__":
    main()
