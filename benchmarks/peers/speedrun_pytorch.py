"""The recipe `speedrun` in PyTorch: the same network, order of the examples and schedule.

    python speedrun_pytorch.py DATA.npz SETTINGS

SETTINGS are those of the recipe, as JSON. Prints one line of JSON: the seconds of training, without the first update,
and the test accuracy.
"""

import json
import math
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def network(first: int, second: int, hidden: int) -> nn.Module:
    """The recipe's network with layers of these widths, from Glorot's uniform distribution."""
    model = nn.Sequential(
        *(nn.Conv2d(1, first, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(25 * second, hidden), nn.ReLU(), nn.Linear(hidden, 10)),
    )
    for name, parameter in model.named_parameters():
        nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.xavier_uniform_(parameter)
    return model


def moved(images: torch.Tensor, most: int) -> torch.Tensor:
    """Every image `[b, 1, 28, 28]` moved by up to `most` pixels in each direction."""
    b, _, H, W = images.shape
    padded = functional.pad(images, (most, most, most, most))
    windows = padded.unfold(2, H, 1).unfold(3, W, 1)  # [b, 1, offsets, offsets, H, W]
    rows, columns = torch.randint(0, 2 * most + 1, (2, b))
    return windows[torch.arange(b), :, rows, columns]


def main() -> None:
    """The command."""
    settings = json.loads(sys.argv[2])
    B, epochs, warmup = settings["global_batch_size"], settings["epochs"], settings["warmup_steps"]
    torch.manual_seed(settings["seed"])
    with np.load(sys.argv[1]) as data:
        parts = {part: torch.from_numpy(data[f"{part}_inputs"]).permute(0, 3, 1, 2) for part in ("train", "test")}
        labels = {part: torch.from_numpy(data[f"{part}_labels"]).long() for part in ("train", "test")}
    model = network(*settings["widths"])
    optimizer = torch.optim.Adam(model.parameters(), settings["learning_rate"], betas=tuple(settings["betas"]))
    steps = math.ceil(len(labels["train"]) / B)

    def rate(step: int) -> float:
        if step < warmup:
            return step / warmup
        return (1 + math.cos(math.pi * (step - warmup) / (epochs * steps - warmup))) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    loss = nn.CrossEntropyLoss(label_smoothing=settings["label_smoothing"])
    started = None
    for epoch in range(epochs):
        order = np.random.default_rng([settings["seed"], epoch]).permutation(len(labels["train"]))
        for rows in torch.from_numpy(order).split(B):
            images = parts["train"][rows]
            images = moved(images, settings["pixels"]) if settings["pixels"] else images
            optimizer.zero_grad()
            loss(model(images.float() / 255), labels["train"][rows]).backward()
            optimizer.step()
            schedule.step()
            started = started or time.perf_counter()  # after the first update, which compiles
    seconds = time.perf_counter() - started
    with torch.inference_mode():
        batches = zip(parts["test"].split(1000), labels["test"].split(1000), strict=True)
        right = sum((model(images.float() / 255).argmax(1) == classes).sum().item() for images, classes in batches)
    print(json.dumps({"train_seconds": seconds, "test_accuracy": right / len(labels["test"])}))


if __name__ == "__main__":
    main()
