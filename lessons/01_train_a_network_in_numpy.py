# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01. Train a network in NumPy
#
# After this lesson you can write the forward pass, the loss and the backward pass of a small network by hand, check
# the gradients, and train on real handwritten digits.
#
# About 25 minutes · before: [00 Meet your devices](00_meet_your_devices.ipynb) · next:
# [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb)
#
# No JAX yet. What a gradient is stays the same when a compiler finds it (lesson 02) and when eight devices share the
# work (lesson 06), so it pays to have written one. Letters in all lessons: B examples, D features, H hidden units,
# C classes; shapes stand in square brackets.

# %%
import inspect
import time

import drawing
import matplotlib.pyplot as plt
import numpy as np
from checks import check

from pmapdp import devices
from pmapdp.models import numpy_mlp as numpy_network
from pmapdp.registry import load_data

drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
data = load_data(DATASET)
print("train", data.train.inputs.shape, data.train.inputs.dtype, "| test", data.test.inputs.shape)

# %% [markdown]
# Each example is a grey image of 28 x 28 pixels and the digit that somebody meant to write. The network sees an image
# as a row of D = 784 numbers from 0 to 1.

# %%
x, labels = data.train.inputs.reshape(-1, 784) / 255, data.train.labels  # [n, D], [n]
x_test, labels_test = data.test.inputs.reshape(-1, 784) / 255, data.test.labels

figure, places = plt.subplots(1, 10, figsize=(7, 0.9))
for digit, axes in enumerate(places):
    axes.imshow(x[labels == digit][0].reshape(28, 28)[::2, ::2], cmap="Greys", interpolation="nearest")
    axes.set_title(digit, fontsize=9)
    axes.set_axis_off()
plt.show()

# %% [markdown]
# ## The way of the data
#
# Two layers. Each multiplies by a matrix and adds a bias; between them a ReLU sets what is negative to 0. The last
# numbers, one a class, are the **logits**. Backward, the slope of the loss takes the same way in the other direction.

# %%
axes = drawing.canvas(17, 3.6)
stations = ((0, "x\n[B, 784]"), (4.6, "hidden\n[B, 64]"), (9.2, "logits\n[B, 10]"), (13.8, "loss\n[ ]"))
for place, text in stations:
    drawing.box(axes, place, 1.2, text, device=0, width=2.8, height=1.2)
for place, forward, back in ((2.8, "W1, b1, ReLU", "gradient of W1, b1"), (7.4, "W2, b2", "gradient of W2, b2")):
    drawing.arrow(axes, (place, 1.5), (place + 1.8, 1.5), device=0)
    drawing.arrow(axes, (place + 1.8, 2.1), (place, 2.1), device=1)
    axes.text(place + 0.9, 0.7, forward, ha="center", fontsize=9)
    axes.text(place + 0.9, 3.1, back, ha="center", fontsize=9)
drawing.arrow(axes, (12.0, 1.5), (13.8, 1.5), device=0)
drawing.arrow(axes, (13.8, 2.1), (12.0, 2.1), device=1)
axes.text(12.9, 0.7, "cross-entropy", ha="center", fontsize=9)
axes.text(12.9, 3.1, "p - target", ha="center", fontsize=9)
plt.show()

# %% [markdown]
# ## Forward and loss
#
# The logits become probabilities by softmax. The loss of an example is minus the logarithm of the probability of its
# class: 0 if the network is sure and right. **The smallest case:** with all parameters near 0 every class is equally
# likely. What is the loss with ten classes?


# %%
def forward(parameters, x):
    (W1, b1), (W2, b2) = parameters
    hidden = np.maximum(x @ W1 + b1, 0)  # [B, H]
    return hidden, hidden @ W2 + b2  # [B, C]


def loss(parameters, x, labels):
    logits = forward(parameters, x)[1]
    return -numpy_network.log_softmax(logits)[np.arange(len(labels)), labels].mean()


parameters = numpy_network.initialise((784, 64, 10), seed=0, scale=1e-2)
print([(weights.shape, bias.shape) for weights, bias in parameters])
print(f"loss {loss(parameters, x, labels):.4f}, log(10) = {np.log(10):.4f}")
assert abs(loss(parameters, x, labels) - np.log(10)) < 0.01

# %% [markdown]
# ## Backward, by hand
#
# Go back from the loss. Three rules are enough:
#
# 1. the slope with respect to the logits is *probabilities minus target*, divided by B because the loss is a mean;
# 2. a product `h @ W` gives `h.T @ slope` for W and `slope @ W.T` for h;
# 3. a ReLU lets the slope through where its result is positive.


# %%
def backward(parameters, x, labels):
    hidden, logits = forward(parameters, x)
    slope = np.exp(numpy_network.log_softmax(logits))  # [B, C], probabilities
    slope[np.arange(len(labels)), labels] -= 1
    slope /= len(labels)
    second = hidden.T @ slope, slope.sum(0)
    slope = (slope @ parameters[1][0].T) * (hidden > 0)  # [B, H]
    return [(x.T @ slope, slope.sum(0)), second]


gradients = backward(parameters, x[:32], labels[:32])
print([(weights.shape, bias.shape) for weights, bias in gradients])

# %% [markdown]
# The gradients have the shapes of the parameters. Are they right? **Never trust a gradient you have not checked.** Move one
# parameter a little up and down, and see how much the loss changes. That is slow, one parameter at a time, but it
# needs no calculus. A small network and three examples do.

# %%
small = numpy_network.initialise((5, 4, 3), seed=1, scale=1.0)
few = np.random.default_rng(2).standard_normal((3, 5))
classes = np.array([0, 2, 1])
tried = numpy_network.finite_differences(lambda p: loss(p, few, classes), small)
by_hand = backward(small, few, classes)
largest = max(abs(a - b).max() for pair in zip(tried, by_hand, strict=True) for a, b in zip(*pair, strict=True))
print(f"largest difference {largest:.1e}")
assert largest < 1e-8

# %% [markdown]
# **A failure on purpose.** Leave out the ReLU's rule. Nothing complains, the loss may even fall; only the check shows it.


# %%
def wrong_backward(parameters, x, labels):
    hidden, logits = forward(parameters, x)
    slope = np.exp(numpy_network.log_softmax(logits))
    slope[np.arange(len(labels)), labels] -= 1
    slope /= len(labels)
    second = hidden.T @ slope, slope.sum(0)
    slope = slope @ parameters[1][0].T  # <- changed: without the ReLU's rule
    return [(x.T @ slope, slope.sum(0)), second]


wrong = wrong_backward(small, few, classes)
print(f"W2: {abs(wrong[1][0] - tried[1][0]).max():.1e} | W1: {abs(wrong[0][0] - tried[0][0]).max():.1e}")
assert abs(wrong[0][0] - tried[0][0]).max() > 1e-3

# %% [markdown]
# ## Train
#
# Stochastic gradient descent: take a **mini-batch**, here 32 examples, and step against the gradient. An epoch visits each
# example once, in a new order; the last batch is smaller, and no example is dropped.

# %%
random = np.random.default_rng(0)
history = []
started = time.perf_counter()
for _ in range(20):
    order = random.permutation(len(x))
    for start in range(0, len(x), 32):
        batch = order[start : start + 32]
        gradients = backward(parameters, x[batch], labels[batch])
        parameters = [
            (W - 0.2 * dW, b - 0.2 * db) for (W, b), (dW, db) in zip(parameters, gradients, strict=True)
        ]
    history.append((loss(parameters, x, labels), loss(parameters, x_test, labels_test)))
seconds = time.perf_counter() - started
accuracy = numpy_network.accuracy(parameters, x_test, labels_test)
print(f"20 epochs in {seconds:.1f} s on {devices.cores()} cores, test accuracy {accuracy:.3f}")
assert accuracy > 0.9

# %% [markdown]
# The test loss, on images the network never saw, follows the train loss and then stays above it. **Predict:** which
# digits does the network confuse most often?

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.4), width_ratios=(2, 1.2))
for number, name in enumerate(("train", "test")):
    left.plot(range(1, 21), [losses[number] for losses in history], color=drawing.DEVICE_COLOURS[number], label=name)
left.set(xlabel="epoch", ylabel="loss")
left.legend(labelcolor="linecolor")
guesses = forward(parameters, x_test)[1].argmax(1)
confusion = np.zeros((10, 10), int)
np.add.at(confusion, (labels_test, guesses), 1)
np.fill_diagonal(confusion, 0)
right.imshow(confusion, cmap="Blues")
right.set(xlabel="guess", ylabel="digit", xticks=range(10), yticks=range(10))
plt.show()
assert confusion.sum() == round((1 - accuracy) * len(labels_test))

# %% [markdown]
# ## Exercises
#
# **1. `softmax_slope`**: the slope of the *mean* loss with respect to the logits, from `probabilities` `[B, C]` and
# `labels` `[B]`; an array `[B, C]`. Do not change `probabilities`.
#
# <details><summary>Hint</summary><code>np.eye(C)[labels]</code> is the target.</details>
#
# **2. `layer_backward`**: for one layer `y = x @ W + b`, from `x` `[B, D]`, `W` `[D, H]` and the slope of the loss with
# respect to `y` `[B, H]`: the slopes of x, W and b.
#
# <details><summary>Hint</summary>Let the shapes guide you. Each bias is added to all examples.</details>
#
# **3. `batches`**: cut `order` `[n]` into a list of batches of `size`, the last one with what is left.
#
# <details><summary>Hint</summary>Slicing past the end of an array is allowed.</details>


# %%
def softmax_slope(probabilities, labels):
    """Slope of the mean cross-entropy with respect to the logits `[B, C]`."""
    ...  # your code: 1 or 2 lines


def layer_backward(x, W, slope):
    """The slopes of x `[B, D]`, W `[D, H]` and b `[H]`."""
    ...  # your code: 1 to 3 lines


def batches(order, size):
    """A list of arrays: all of `order`, `size` at a time."""
    ...  # your code: 1 line


for exercise in (softmax_slope, layer_backward, batches):
    check("01_train_a_network_in_numpy", exercise.__name__, exercise)

# %% [markdown]
# Solutions: [solutions/01_train_a_network_in_numpy.py](solutions/01_train_a_network_in_numpy.py)
#
# ## Take away
#
# - Forward keeps the activations; backward goes through the layers from the last to the first and needs them.
# - The loss is a mean over the batch, so the gradient is one too. Lesson 06 is about nothing else.
# - Check a gradient against finite differences before you believe it.
#
# In pmapdp this network, for any number of layers, is [numpy_network.py](../pmapdp/models/numpy_mlp.py). Its backward pass:

# %%
print(inspect.getsource(numpy_network.backward))
again = numpy_network.backward(small, numpy_network.forward(small, few), classes)
assert all(np.allclose(a, b, rtol=0, atol=1e-15) for p in zip(again, by_hand, strict=True) for a, b in zip(*p, strict=True))
