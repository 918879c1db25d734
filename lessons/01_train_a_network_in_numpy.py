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
# After this lesson you can write the forward pass, the loss and the backward pass of a small network by hand, check the
# gradients, and split a batch into eight parts whose gradients average to that of the whole batch. The last point is
# all that data parallelism needs.
#
# About 25 minutes · **optional**: no later lesson needs it, but it helps if you have never written a backward pass ·
# you need NumPy · next: [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb)
#
# There is no JAX in this lesson. A gradient means the same when a compiler finds it (lesson 02) and when eight devices
# share the work (lesson 05). All lessons use the same letters for dimensions: B examples in a batch, D features, H
# hidden units, C classes; n is the number of examples in the data set. Shapes stand in square brackets.

# %%
# In Colab: clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import itertools

import numpy as np

from pmapdp.lessons import digits  # scans of handwritten digits as NumPy arrays
from pmapdp.lessons.pictures import lesson_01

data = digits.load()
x, labels = data.train  # [n, D], [n]
x_test, labels_test = data.test
print("train", x.shape, x.dtype, "| test", x_test.shape)
lesson_01.digits(x, labels)

# %% [markdown]
# Each example is a scan of 8 x 8 pixels and its label, which is the digit that the image shows. The picture has one
# image of each class. The network sees an image as a row of D = 64 numbers from 0 to 1.
#
# ## Forward: from an image to a loss
#
# The network has two layers. Each layer multiplies by a matrix and adds a bias. Between them, a ReLU sets negative
# numbers to 0. The results of the last layer, one for each class, are called **logits**. In the picture, the forward
# pass goes from left to right, and the gradients go back from right to left.

# %%
lesson_01.forward_and_backward()

# %% [markdown]
# Softmax turns the logits into probabilities: exp(logit), divided by the sum over the classes. The loss of an example
# is minus the logarithm of the probability of its class (**cross-entropy**), which is 0 if the network is sure and
# right. `log_softmax` subtracts the largest logit first. The result stays the same, and exp cannot overflow. The
# parameters are a list with one pair of arrays for each layer: the weights and the bias.


# %%
def forward(parameters, x):
    (W1, b1), (W2, b2) = parameters
    hidden = np.maximum(x @ W1 + b1, 0)  # [B, H]
    return hidden, hidden @ W2 + b2  # [B, C]


def log_softmax(logits):  # [B, C] to [B, C]
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def loss(parameters, x, labels):
    logits = forward(parameters, x)[1]
    return -log_softmax(logits)[np.arange(len(labels)), labels].mean()


assert np.isfinite(log_softmax(np.array([[1000.0, 0.0]]))).all()

# %% [markdown]
# A logit of 1000 does not overflow. Now a case that you can check in your head: with all weights near 0, every class is
# equally likely. **Predict** the loss with ten classes.


# %% tags=["prediction"]
def initialise(sizes, seed, scale):
    random = np.random.default_rng(seed)
    return [(scale * random.normal(size=(m, k)), np.zeros(k)) for m, k in itertools.pairwise(sizes)]


parameters = initialise((64, 32, 10), seed=0, scale=1e-2)
print(f"loss {loss(parameters, x, labels):.4f}")

# %% tags=["proof"]
# The asserts behind the answer.
assert abs(loss(parameters, x, labels) - np.log(10)) < 0.01

# %% [markdown]
# <details><summary>Answer</summary>
#
# Every class has probability 1/10, so the loss is log(10) = 2.30. Remember this number: a classifier with ten classes
# that starts far above it has a mistake, or initial weights that are too large.
#
# </details>
#
# ## Backward, by hand
#
# The backward pass applies the chain rule, from the loss back to the parameters. On its way it keeps one array, `g`:
# the gradient of the loss with respect to the activations at that point. Three rules are enough:
#
# 1. The gradient with respect to the logits is *probabilities minus target*, divided by B because the loss is a mean.
#    The target is 1 for the class of the example, and 0 for the others.
# 2. Let `g` be the gradient with respect to the result of `h @ W + b`. Then the gradient of W is `h.T @ g`, the
#    gradient of h is `g @ W.T`, and the gradient of b is the sum of `g` over the examples.
# 3. A ReLU lets the gradient through where its result is positive, and sets it to 0 elsewhere.


# %%
def backward(parameters, x, labels):
    hidden, logits = forward(parameters, x)
    g = np.exp(log_softmax(logits))  # [B, C], probabilities
    g[np.arange(len(labels)), labels] -= 1
    g /= len(labels)  # rule 1
    second = hidden.T @ g, g.sum(0)  # rule 2
    g = (g @ parameters[1][0].T) * (hidden > 0)  # [B, H], rules 2 and 3
    return [(x.T @ g, g.sum(0)), second]


gradients = backward(parameters, x[:32], labels[:32])
print([(weights.shape, bias.shape) for weights, bias in gradients])

# %% [markdown]
# The gradients have the shapes of the parameters. Are they right? **Never trust a gradient that you have not checked.**
# Move one parameter a little up and a little down, and see how much the loss changes. These **finite differences** need
# no calculus, but they are slow: two forward passes for each parameter. Compare them with the backward pass, on a small
# network and three examples.


# %%
def finite_differences(loss, parameters, step=1e-6):
    def gradient(array):
        result = np.empty_like(array)
        for index in np.ndindex(array.shape):
            value = array[index]
            array[index] = value + step
            above = loss(parameters)
            array[index] = value - step
            result[index] = (above - loss(parameters)) / (2 * step)
            array[index] = value
        return result

    return [(gradient(weights), gradient(bias)) for weights, bias in parameters]


def difference(ours, theirs):
    return max(abs(a - b).max() for p in zip(ours, theirs, strict=True) for a, b in zip(*p, strict=True))


small = initialise((5, 4, 3), seed=1, scale=1.0)
few, classes = np.random.default_rng(2).standard_normal((3, 5)), np.array([0, 2, 1])
measured = finite_differences(lambda p: loss(p, few, classes), small)
by_hand = backward(small, few, classes)
print(f"largest difference {difference(measured, by_hand):.1e}")
assert difference(measured, by_hand) < 1e-8

# %% [markdown]
# The largest difference is below 1e-8, so the backward pass is right.
#
# ## How it fails
#
# Leave out rule 3, as if there were no ReLU. **Predict:** which gradients are wrong, those of the first layer or those
# of the second? And does the loss still fall in training?


# %% tags=["prediction"]
def wrong_backward(parameters, x, labels):
    hidden, logits = forward(parameters, x)
    g = np.exp(log_softmax(logits))
    g[np.arange(len(labels)), labels] -= 1
    g /= len(labels)
    second = hidden.T @ g, g.sum(0)
    g = g @ parameters[1][0].T  # <- changed: without the rule of the ReLU
    return [(x.T @ g, g.sum(0)), second]


wrong = wrong_backward(small, few, classes)
print(f"first layer {difference(wrong[:1], measured[:1]):.1e}")
print(f"second layer {difference(wrong[1:], measured[1:]):.1e}")


def descend(parameters, gradients, rate):
    pairs = zip(parameters, gradients, strict=True)
    return [(W - rate * dW, b - rate * db) for (W, b), (dW, db) in pairs]


misled = parameters
for _ in range(300):
    misled = descend(misled, wrong_backward(misled, x[:256], labels[:256]), 0.2)
print(f"300 updates with the wrong gradient: loss {loss(misled, x[:256], labels[:256]):.3f}")

# %% tags=["proof"]
# The asserts behind the answer.
assert difference(wrong[:1], measured[:1]) > 1e-3
assert difference(wrong[1:], measured[1:]) < 1e-8
assert loss(misled, x[:256], labels[:256]) < 1

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the first layer is wrong, because the backward pass meets the second layer first. No error is raised, and the
# loss falls far below 2.30. Only the comparison with finite differences shows the mistake.
#
# </details>
#
# ## Train
#
# Stochastic gradient descent (SGD) takes a **mini-batch** of examples, here 32, and moves the parameters a little
# against the gradient of its loss. The factor is the **learning rate**, here 0.2. An **epoch** visits each example
# once, in a new order. The last batch of an epoch is smaller; no example is dropped. The next cell has all of it, and
# needs nothing but NumPy. It trains on points in ten clouds; put your own arrays in their place.

# %% tags=["take-home"]
import numpy as np


def forward(parameters, x):
    (W1, b1), (W2, b2) = parameters
    hidden = np.maximum(x @ W1 + b1, 0)  # [B, H]
    return hidden, hidden @ W2 + b2  # [B, C]


def log_softmax(logits):  # [B, C] to [B, C]
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def backward(parameters, x, labels):
    """The gradient of the mean loss, nested like the parameters."""
    hidden, logits = forward(parameters, x)
    g = np.exp(log_softmax(logits))
    g[np.arange(len(labels)), labels] -= 1
    g /= len(labels)
    second = hidden.T @ g, g.sum(0)
    g = (g @ parameters[1][0].T) * (hidden > 0)
    return [(x.T @ g, g.sum(0)), second]


def descend(parameters, gradients, rate):
    pairs = zip(parameters, gradients, strict=True)
    return [(W - rate * dW, b - rate * db) for (W, b), (dW, db) in pairs]


def train(x, labels, classes, hidden=32, epochs=20, rate=0.2, batch_size=32):
    """The trained parameters."""
    random = np.random.default_rng(0)
    sizes = ((x.shape[1], hidden), (hidden, classes))
    parameters = [(random.normal(size=(m, k)) / np.sqrt(m), np.zeros(k)) for m, k in sizes]
    for _ in range(epochs):
        order = random.permutation(len(x))
        for start in range(0, len(x), batch_size):
            batch = order[start : start + batch_size]
            parameters = descend(parameters, backward(parameters, x[batch], labels[batch]), rate)
    return parameters


def accuracy(parameters, x, labels):
    return (forward(parameters, x)[1].argmax(1) == labels).mean()


random = np.random.default_rng(1)
cloud_labels = random.integers(0, 10, 600)
clouds = 2 * random.normal(size=(10, 8))[cloud_labels] + random.normal(size=(600, 8))
cloud_parameters = train(clouds[:500], cloud_labels[:500], classes=10)
print(f"test accuracy on clouds {accuracy(cloud_parameters, clouds[500:], cloud_labels[500:]):.3f}")
assert accuracy(cloud_parameters, clouds[500:], cloud_labels[500:]) > 0.8

# %% [markdown]
# Now the digits, with the same functions. **Predict** the test accuracy.

# %% tags=["prediction"]
trained = train(x, labels, classes=10)
print(f"test accuracy {accuracy(trained, x_test, labels_test):.3f}")

# %% tags=["proof"]
# The asserts behind the answer.
assert accuracy(trained, x_test, labels_test) > 0.95

# %% [markdown]
# <details><summary>Answer</summary>
#
# More than nineteen of twenty digits are right.
#
# </details>
#
# ## Eight parts of a batch
#
# Cut a batch of 64 examples into eight parts of 8, and run the backward pass for each part alone, as eight devices
# would. Then average the eight gradients. **Predict:** how far is the average from the gradient of all 64? And what if
# the parts are not equal, say one of 29 and seven of 5?

# %% tags=["prediction"]
lesson_01.eight_parts()


def averaged(parts):
    """The mean of the gradients of these parts of the batch."""
    of_parts = [backward(trained, x[part], labels[part]) for part in parts]
    layers = zip(*of_parts, strict=True)
    return [tuple(np.mean(arrays, axis=0) for arrays in zip(*layer, strict=True)) for layer in layers]


batch = np.arange(64)
whole = backward(trained, x[batch], labels[batch])
equal = averaged(np.split(batch, 8))
unequal = averaged(np.split(batch, 29 + 5 * np.arange(7)))
print(f"eight equal parts: largest difference {difference(equal, whole):.1e}")
print(f"one of 29 and seven of 5: largest difference {difference(unequal, whole):.1e}")

# %% tags=["proof"]
# The asserts behind the answer.
assert difference(equal, whole) < 1e-12
assert difference(unequal, whole) > 1e-4

# %% [markdown]
# <details><summary>Answer</summary>
#
# With equal parts, the average is the gradient of the whole batch, up to the rounding of float64: **the mean of the
# means is the mean**. With unequal parts it is another number, because an example in a small part counts more. Lesson
# 05 replaces the loop over the parts by eight devices, and the average by one line.
#
# </details>
#
# ## Exercises
#
# Solutions, with reasons: [solutions/01_train_a_network_in_numpy.py](solutions/01_train_a_network_in_numpy.py).
#
# 1. `softmax_gradient` (5 minutes): return the gradient `[B, C]` of the *mean* loss with respect to the logits, from
#    `probabilities` `[B, C]` and `labels` `[B]`. Do not change `probabilities`.
#    <details><summary>Hint</summary><code>np.eye(C)[labels]</code> is the target.</details>
# 2. `standardize_backward` (10 minutes): the backward pass of batch norm, which lesson 07 computes on several devices.
#    The forward pass is `y = (x - x.mean(0)) / x.std(0)`, for each column of `x` `[B, D]`. You get `x` and the gradient
#    `g` of the loss with respect to `y`. Return the gradient with respect to `x`. Every output depends on every
#    example, through the mean and the standard deviation. <details><summary>Hint</summary>Divide g by the standard
#    deviation. Then subtract two terms: the mean of g, which comes from the mean of x, and y times the mean of g * y,
#    which comes from the standard deviation.</details>
# 3. `fixed_update` (find the mistake): `broken_update` makes one step of gradient descent. It raises no error, and the
#    loss falls. But the step does not follow the gradient. Write it correctly.
#    <details><summary>Hint</summary>With which W2 was the forward pass computed?</details>


# %%
def broken_update(parameters, x, labels, rate):
    (W1, b1), (W2, b2) = parameters
    hidden, logits = forward(parameters, x)
    g = (np.exp(log_softmax(logits)) - np.eye(logits.shape[1])[labels]) / len(labels)
    W2, b2 = W2 - rate * hidden.T @ g, b2 - rate * g.sum(0)
    g = (g @ W2.T) * (hidden > 0)
    W1, b1 = W1 - rate * x.T @ g, b1 - rate * g.sum(0)
    return [(W1, b1), (W2, b2)]


from pmapdp.lessons.checks import check


def softmax_gradient(probabilities, labels):
    """Gradient of the mean cross-entropy with respect to the logits `[B, C]`."""
    ...  # your code: 1 or 2 lines


def standardize_backward(x, g):
    """Gradient `[B, D]` with respect to x; `g` `[B, D]` is that with respect to the standardized x."""
    ...  # your code: 2 to 4 lines


def fixed_update(parameters, x, labels, rate):
    """The parameters after one step of gradient descent."""
    ...  # your code: about 6 lines; you may call forward, log_softmax and backward


for exercise in (softmax_gradient, standardize_backward, fixed_update):
    check("01_train_a_network_in_numpy", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - The forward pass keeps the activations. The backward pass goes through the layers from the last to the first, and
#   needs them.
# - The loss is a mean over the batch, so the gradient is a mean, too: eight equal parts give eight gradients whose mean
#   is the gradient of the batch.
# - Check a gradient against finite differences before you believe it.
#
# pmapdp has no backward pass written by hand, but its tests have one:
# [tests/support/numpy_mlp.py](../tests/support/numpy_mlp.py) trains a network in NumPy, and JAX must give the same. To
# read on: [Calculus on computational graphs](https://colah.github.io/posts/2015-08-Backprop/),
# [micrograd](https://github.com/karpathy/micrograd). Next:
# [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb).
