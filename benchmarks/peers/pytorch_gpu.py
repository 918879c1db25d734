"""PyTorch on one GPU, eager and compiled, on the networks of `benchmarks.accelerators`.

    python pytorch_gpu.py UPDATES      # of an epoch; 0: as many as the benchmark takes

channels_last, fused Adam, TF32, cudnn.benchmark, pinned copies, autocast for bfloat16;
not tuned further. Prints one line of JSON: {work: {"eager": examples/s, "compiled":
examples/s}}, of the second epoch.
"""

import contextlib
import json
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torchvision.models import resnet18

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_resnet() -> nn.Module:
    """ResNet-18 for images of 32 x 32.

    No stride and no pooling before the first block.
    """
    model = resnet18(num_classes=10)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return model


def make_cnn() -> nn.Module:
    """The CNN of the MirroredStrategy tutorial."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(5408, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


WORKS = {
    "CNN, 64": (make_cnn, (28, 28, 1), 64, 1000, None),
    "CNN, 4,096": (make_cnn, (28, 28, 1), 4096, 100, None),
    "ResNet-18, 512": (make_resnet, (32, 32, 3), 512, 60, None),
    "ResNet-18, 512, bfloat16": (make_resnet, (32, 32, 3), 512, 100, torch.bfloat16),
}


def measure(make, shape, batch: int, updates: int, dtype, compile_it: bool) -> float:
    """Return the examples/s of the second epoch."""
    random, n = np.random.default_rng(0), batch * updates
    images = torch.from_numpy(random.integers(0, 256, (n, *shape), np.uint8))
    labels = torch.from_numpy(random.integers(0, 10, n))
    model = make().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=DEVICE == "cuda")

    def loss_of(images, labels):
        x = (
            images.permute(0, 3, 1, 2).to(memory_format=torch.channels_last).float()
            / 255
        )
        cast = torch.autocast(DEVICE, dtype) if dtype else contextlib.nullcontext()
        with cast:
            return functional.cross_entropy(model(x), labels)

    compiled = (
        torch.compile(loss_of, mode="reduce-overhead", dynamic=False)
        if compile_it
        else loss_of
    )

    def place(x):
        return x.pin_memory().to(DEVICE, non_blocking=True) if DEVICE == "cuda" else x

    for _ in range(2):
        order, started = torch.randperm(n).view(updates, batch), time.perf_counter()
        for rows in order:
            optimizer.zero_grad()
            compiled(place(images[rows]), place(labels[rows])).backward()
            optimizer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    return n / (time.perf_counter() - started)


def main() -> None:
    """Run the command."""
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    found = {}
    for name, (make, shape, batch, updates, dtype) in WORKS.items():
        updates = int(sys.argv[1]) or updates
        speeds = [
            measure(make, shape, batch, updates, dtype, compile_it)
            for compile_it in (False, True)
        ]
        found[name] = dict(zip(("eager", "compiled"), speeds, strict=True))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
