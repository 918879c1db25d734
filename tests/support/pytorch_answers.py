"""PyTorch's side of the tables in docs/pytorch.md.

    python tests/support/pytorch_answers.py

It needs PyTorch and NumPy, and writes tests/pages/pytorch_answers.json. The tests
compare Flax and Optax with that file, so they need no PyTorch. Weights and inputs are
drawn by NumPy, the same for both sides.
"""

import json
import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pytorch.md"
STORED = ROOT / "tests" / "pages" / "pytorch_answers.json"

IMAGES = (2, 3, 4, 4)
FEATURES = (2, 8, 2, 2)
SEQUENCES = (2, 5, 8)
# The shape of a layer's input, by the first cell of its row.
INPUTS = {
    "nn.Linear(6, 3)": (2, 6),
    "nn.Conv2d(3, 8, 3, padding=1)": IMAGES,
    "nn.ConvTranspose2d(3, 8, 2, stride=2)": IMAGES,
    "nn.BatchNorm2d(8)": FEATURES,
    "nn.LayerNorm(8)": SEQUENCES,
    "nn.GroupNorm(4, 8)": FEATURES,
    "nn.Embedding(100, 8)": (2, 5),
    "nn.MultiheadAttention(8, 2, batch_first=True)": SEQUENCES,
    "nn.LSTM(8, 4, batch_first=True)": SEQUENCES,
    "nn.GRU(8, 4, batch_first=True)": SEQUENCES,
    "F.gelu(x)": (2, 6),
    "F.max_pool2d(x, 2)": IMAGES,
    "F.interpolate(x, scale_factor=2)": IMAGES,
    "x.flatten(1)": IMAGES,
}
# What a loss compares.
ARRAYS = {
    "CrossEntropyLoss()": "classes",
    "CrossEntropyLoss(label_smoothing=0.1)": "classes",
    "CrossEntropyLoss(weight=w)": "classes",
    "CrossEntropyLoss(ignore_index=-100)": "tokens",
    "BCEWithLogitsLoss()": "yes or no",
    "BCEWithLogitsLoss(pos_weight=p)": "yes or no",
    "MSELoss()": "numbers",
    "L1Loss()": "numbers",
    "HuberLoss()": "numbers",
    'KLDivLoss(reduction="batchmean")': "distributions",
}
TESTED_APART = ("nn.Dropout(0.1)", "clip_grad_norm_(parameters, 1.0)")
CLASS_WEIGHTS = np.array([1.0, 5.0, 2.0], np.float32)
RATE = 0.1
UPDATES = 100
CURVATURE = np.array([1.0, 0.3, 0.01], np.float32)
START = np.array([1.0, -2.0, 3.0], np.float32)


def rows(heading: str) -> dict[str, str]:
    """Return {first cell: second cell} of a section's table, the code without `.

    Cells in words are left out, and the rows that have a test of their own.
    """
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    section = text.split("\n## ")[0]
    found = re.findall(r"^\| `([^`]*)` \| `([^`]*)` \|", section, re.MULTILINE)
    return {theirs: ours for theirs, ours in found if theirs not in TESTED_APART}


def draw_input(cell: str) -> np.ndarray:
    """Draw a layer's input in PyTorch's layout, images as `[b, C, H, W]`."""
    random = np.random.default_rng(1)
    if "Embedding" in cell:
        return random.integers(0, 100, INPUTS[cell])
    return random.normal(size=INPUTS[cell]).astype(np.float32)


def draw_weights(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Draw a state_dict."""
    random = np.random.default_rng(2)
    weights = {}
    for name, shape in shapes.items():
        if name == "running_var":
            weights[name] = random.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            weights[name] = random.normal(0, 0.5, shape).astype(np.float32)
    # Flax's GRU has no bias that the reset gate multiplies.
    if shapes.get("bias_hh_l0") == [12]:
        weights["bias_hh_l0"][8:] = 0
    return weights


def draw_arrays(what: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw a model's outputs, the classes last, and the labels."""
    random = np.random.default_rng(3)
    outputs = random.normal(size=(6, 3)).astype(np.float32)
    if what == "classes":
        return outputs, random.integers(0, 3, 6)
    if what == "tokens":
        outputs = random.normal(size=(2, 5, 3)).astype(np.float32)
        labels = random.integers(0, 3, (2, 5))
        labels[:, 3:] = -100
        return outputs, labels
    if what == "yes or no":
        return outputs, (random.normal(size=(6, 3)) > 0).astype(np.float32)
    labels = random.normal(size=(6, 3)).astype(np.float32)
    if what == "distributions":
        outputs -= np.log(np.exp(outputs).sum(1, keepdims=True))
        labels = np.exp(labels) / np.exp(labels).sum(1, keepdims=True)
    return outputs, labels


def layer_answer(cell: str) -> dict:
    """Return the shapes of a layer's state_dict, and its answer."""
    import torch

    x = torch.tensor(draw_input(cell))
    layer = eval(cell, {"nn": torch.nn, "F": torch.nn.functional, "x": x})
    shapes = {}
    if isinstance(layer, torch.nn.Module):
        for name, values in layer.state_dict().items():
            if name != "num_batches_tracked":
                shapes[name] = list(values.shape)
        weights = draw_weights(shapes)
        tensors = {name: torch.tensor(values) for name, values in weights.items()}
        layer.load_state_dict(tensors, strict=False)
        layer.eval()
        if "Attention" in cell:
            answer, _ = layer(x, x, x)
        elif "LSTM" in cell or "GRU" in cell:
            answer, _ = layer(x)
        else:
            answer = layer(x)
    else:
        answer = layer
    return {"shapes": shapes, "answer": answer.detach().numpy().tolist()}


def running_statistics() -> dict[str, list[float]]:
    """Return PyTorch's running statistics after one batch of training."""
    import torch

    norm = torch.nn.BatchNorm2d(8)
    norm(torch.tensor(draw_input("nn.BatchNorm2d(8)")))
    return {
        "mean": norm.running_mean.tolist(),
        "var": norm.running_var.tolist(),
    }


def causal_attention() -> list:
    """Return PyTorch's attention in which nobody looks ahead."""
    import torch

    cell = "nn.MultiheadAttention(8, 2, batch_first=True)"
    x = torch.tensor(draw_input(cell))
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    shapes = {name: list(values.shape) for name, values in layer.state_dict().items()}
    weights = draw_weights(shapes)
    layer.load_state_dict({name: torch.tensor(weights[name]) for name in shapes})
    is_ahead = torch.triu(torch.ones(5, 5), 1).bool()
    answer, _ = layer(x, x, x, attn_mask=is_ahead)
    return answer.tolist()


def transformer_block() -> dict:
    """Return the shapes of a transformer block's state_dict, and its answer."""
    import torch

    x = torch.tensor(draw_input("nn.MultiheadAttention(8, 2, batch_first=True)"))
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    shapes = {name: list(values.shape) for name, values in layer.state_dict().items()}
    weights = draw_weights(shapes)
    layer.load_state_dict({name: torch.tensor(weights[name]) for name in shapes})
    answer = layer.eval()(x)
    return {"shapes": shapes, "answer": answer.detach().numpy().tolist()}


def clipped_gradient() -> list[float]:
    """Return a gradient of norm 5 after PyTorch has clipped it."""
    import torch

    params = torch.nn.Parameter(torch.zeros(2))
    params.grad = torch.tensor([3.0, 4.0])
    torch.nn.utils.clip_grad_norm_([params], 1.0)
    return params.grad.tolist()


def loss_answer(cell: str) -> float:
    """Return the mean that PyTorch's loss gives."""
    import torch

    outputs, labels = map(torch.tensor, draw_arrays(ARRAYS[cell]))
    if labels.ndim == 2 and outputs.ndim == 3:
        outputs = outputs.transpose(1, 2)  # PyTorch wants [b, C, T]
    w = torch.tensor(CLASS_WEIGHTS)
    function = eval(cell, vars(torch.nn) | {"w": w, "p": w})
    return function(outputs, labels).item()


def schedule_answer(cell: str) -> list[float]:
    """Return the learning rates of the first updates."""
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], RATE)
    names = vars(torch.optim.lr_scheduler) | {"optimizer": optimizer}
    scheduler = eval(cell, names | {"f": falling})
    rates = []
    for _ in range(UPDATES):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def falling(step):
    """Return a factor of the learning rate for an update."""
    return 1 / (1 + step)


def optimizer_answer(cell: str) -> list[float]:
    """Return the parameters after five updates on a bowl."""
    import torch

    params = torch.nn.Parameter(torch.tensor(START))
    optimizer = eval(cell, vars(torch.optim) | {"params": [params]})
    for _ in range(5):
        params.grad = torch.tensor(CURVATURE) * params.detach()
        optimizer.step()
    return params.tolist()


def rounded(answers):
    """Round the numbers in lists and dictionaries to seven digits."""
    if isinstance(answers, float):
        return float(f"{answers:.7g}")
    if isinstance(answers, list):
        return [rounded(answer) for answer in answers]
    if isinstance(answers, dict):
        return {name: rounded(answer) for name, answer in answers.items()}
    return answers


def answers() -> dict:
    """Return PyTorch's answer to every row of the page."""
    exact = {
        "Layers": {cell: layer_answer(cell) for cell in rows("Layers")},
        "running statistics": running_statistics(),
        "causal attention": causal_attention(),
        "transformer block": transformer_block(),
        "clipped gradient": clipped_gradient(),
        "Losses": {cell: loss_answer(cell) for cell in rows("Losses")},
        "Schedules": {cell: schedule_answer(cell) for cell in rows("Schedules")},
        "Optimizers": {cell: optimizer_answer(cell) for cell in rows("Optimizers")},
    }
    return rounded(exact)


if __name__ == "__main__":
    STORED.write_text(json.dumps(answers()) + "\n")
