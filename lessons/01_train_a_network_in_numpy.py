# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01. Train a network in NumPy
#
# You call `loss.backward()`, and every weight knows how to change. What happens in that line? Only the chain rule: three
# small rules, in five lines of NumPy. Once you've written them yourself, you know where a gradient comes from, and
# why eight devices can share the work of one.
#
# **You will** write a backward pass by hand, check it, and find out when the mean of eight gradients is the gradient of
# the whole batch. 22 minutes, 47 with exercises. You need NumPy. **Optional:** if you've written a backward pass before, go
# straight to [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb).

# %%
# Colab: clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import numpy as np

from pmapdp.lessons.pictures import lesson_01

# %% [markdown]
# ## Forward
#
# Our network has two layers. Each multiplies by a matrix and adds a bias, and between them a **ReLU** replaces negative
# numbers by 0. The second layer gives you the **logits**, one number for each of ten classes. **Softmax** turns them into
# probabilities: take exp of each logit, then divide by the sum of all ten. The loss of an example is -log p, where p is
# the probability of the correct class. It's close to 0 if the network is almost certain of the correct class, and huge
# if it's almost certain of a wrong one.
#
# **Predict:** a network that knows nothing yet gives every class the same probability. What's its loss?

# %% tags=["prediction"]
p = np.full(10, 0.1)
print("loss:", -np.log(p[3]).round(3))

# %% [markdown]
# <details><summary>Answer</summary>
#
# -log(1/10) = log(10) = 2.303. If a classifier with ten classes starts far above this number, the network is sure of
# something it can't know yet, and you should look at the scale of its inputs and of its weights. Ours will start at 3.8,
# because our inputs are large. If we divided them by their standard deviation, 2.7, it would start at 2.6.
#
# </details>
#
# ## Backward
#
# How much does the output of a network change if you nudge one weight? Take the smallest network: one input x = 2, one
# hidden unit and one output, with the weights 3 and 0.5. The hidden unit is 2 * 3 = 6, and the output is 6 * 0.5 = 3.
# Nudge the first weight from 3 to 3.01. The hidden unit rises by 0.02, and the output by half of that, 0.01. The slope
# is 2 * 0.5 = 1: the input, times the weight that the signal still has to pass through. Multiplying along the way is
# the **chain rule**.
#
# **Predict:** what's the slope if the first weight is -3?


# %% tags=["prediction"]
def output(first, second=0.5, x=2.0):
    return max(x * first, 0) * second  # max is the ReLU


for first in (3.0, -3.0):
    slope = (output(first + 0.01) - output(first)) / 0.01
    print(f"first weight {first}: output {output(first)}, slope {slope:.2f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 0. The ReLU sets the hidden unit to 0 both before and after the nudge, so the output never notices.
#
# </details>
#
# The backward pass does this for all weights at once. It walks from the loss back to the inputs, carrying one array `g`.
# At every stop, g says how the loss would change if you nudged the numbers at that stop. Three rules are all you need:
#
# 1. **At the logits,** g is the probabilities, minus 1 at the correct class.
# 2. **At a layer** `h @ W + b`: the gradient of W is `h.T @ g`, which adds up the examples. The gradient of b is the sum
#    of g over the examples. The gradient you pass back to h is `g @ W.T`.
# 3. **At the ReLU,** keep g where the ReLU let the number through. Set it to 0 elsewhere.
#
# In the picture, g goes back along the bottom. Each weight's gradient needs both what went into the layer and the g that
# came back.

# %%
lesson_01.forward_and_backward()

# %% [markdown]
# Rule 3 is the answer to your last prediction. Where do the other two come from?
#
# **Rule 1.** Written in terms of the logits z, the loss is log(exp(z_1) + ... + exp(z_10)) minus the logit of the
# correct class. The slope of the logarithm along z_i is exp(z_i) / (exp(z_1) + ... + exp(z_10)), and that's the
# probability p_i. The loss also has minus the correct logit, and its slope along that logit is -1. Say the
# probabilities are 0.7, 0.2 and 0.1, and the first class is correct. Then g is -0.3, 0.2 and 0.1, and a step against it
# raises the first logit and lowers the other two.
#
# **Rule 2.** Say an example has h = [2, 5], and g = [0.3, -0.1] comes back. The weight W[i, j] carries h[i] to output j,
# so its slope is h[i] * g[j], the input times what comes back. All four together are `h.T @ g`, [[0.6, -0.2], [1.5,
# -0.5]], and with more examples the product adds up their slopes. On the way forward, h[i] feeds every output j
# through W[i, j]. So its slope is the sum of g[j] * W[i, j] over the outputs, and that's `g @ W.T`.
#
# Now write the three rules in NumPy. Because rule 2 adds up the examples, you get the gradient of the **summed** loss.
# Later we divide it by the count, which makes it the gradient of the **mean** loss.
#
# 1. `backward` (10 minutes): `model` is a dictionary with the arrays W1, b1, W2 and b2. `inputs` `[B, 64]`, `hidden`
#    `[B, 32]` and `probabilities` `[B, 10]` come from the forward pass, and `hidden` is what the ReLU returned. `labels`
#    `[B]` are the correct classes. Return a dictionary with the gradient of each of the four arrays, and leave the
#    arguments as they are. <details><summary>Hint</summary>Take <code>g = probabilities.copy()</code>.
#    <code>g[np.arange(len(labels)), labels]</code> picks the number at each example's correct class.</details>

# %%
from pmapdp.lessons.checks import check


def backward(model, inputs, labels, hidden, probabilities):
    """Gradients of the summed loss, last layer first."""
    ...  # your code: about 5 lines


verdict = check("01_train_a_network_in_numpy", "backward", backward)
your_backward = backward

# %% [markdown]
# ## The program
#
# The points come from ten clouds in 64 dimensions, and the clouds overlap: even if you knew their true centres, you'd
# classify only 92 % of the points correctly. **Stochastic gradient descent** takes 128 examples at a time and moves the
# weights a little against the gradient of their mean loss. An **epoch** visits each example once. The cell is folded,
# because its `backward` is the solution of the exercise. Once you've written yours, unfold it, because the next lessons
# change this program step by step.

# %% jupyter={"source_hidden": true} tags=["take-home"]
# include program/01_numpy.py

# %% [markdown]
# If the check has accepted your `backward`, the rest of the lesson runs yours. After one epoch you should see the test
# loss of epoch 0 again.

# %%
if verdict.solved:
    backward = your_backward  # train_step calls it from now on
model = init_model()
for batch in batches(*train_data, seed=0):
    model, _ = train_step(model, batch)
print("test:", report([eval_step(model, batch) for batch in batches(*test_data, seed=0)]))
print("with", "your" if verdict.solved else "the program's own", "backward")

# %% [markdown]
# ## Is the gradient correct?
#
# The loss falls, but it also falls with some wrong gradients. To test a gradient, nudge each weight a little up and a
# little down, and see how much the summed loss changes. These **finite differences** cost two forward passes for each
# weight, so we test a small network on three examples. Dividing one tiny number by another magnifies rounding errors, so
# here we use float64.


# %%
def finite_differences(loss, model, step=1e-6):
    """Return the slope of the loss along each number of the model."""
    slopes = {name: np.zeros_like(array) for name, array in model.items()}
    for name, array in model.items():
        for index in np.ndindex(array.shape):
            nudge = np.zeros_like(array)
            nudge[index] = step
            rise = loss(model | {name: array + nudge}) - loss(model | {name: array - nudge})
            slopes[name][index] = rise / (2 * step)
    return slopes


# %%
random = np.random.default_rng(1)
small = {
    "W1": random.normal(size=(5, 4)),
    "b1": np.zeros(4),
    "W2": random.normal(size=(4, 3)),
    "b2": np.zeros(3),
}
x = random.normal(size=(3, 5))
y = np.array([0, 2, 1])
slopes = finite_differences(lambda model: eval_step(model, (x, y))["loss"], small)
hidden, logits = forward(small, x)
probabilities = np.exp(log_softmax(logits))
gradients = backward(small, x, y, hidden, probabilities)
for name in small:
    print(f"{name}: largest difference {abs(gradients[name] - slopes[name]).max():.0e}")
assert all(np.allclose(slopes[name], gradients[name], rtol=0, atol=1e-8) for name in small)

# %% [markdown]
# They agree to eight decimals. What would a real mistake look like?
#
# ## How it fails
#
# Forget rule 3, as if there were no ReLU.
#
# **Predict:** which weights get a wrong gradient, W1 or W2?


# %% tags=["prediction"]
def wrong_backward(model, inputs, labels, hidden, probabilities):
    g = probabilities.copy()
    g[np.arange(len(labels)), labels] -= 1
    gradients = {"W2": hidden.T @ g, "b2": g.sum(0)}
    g = g @ model["W2"].T  # and nothing about the ReLU
    return gradients | {"W1": inputs.T @ g, "b1": g.sum(0)}


wrong_gradients = wrong_backward(small, x, y, hidden, probabilities)
for name in small:
    print(f"{name}: largest difference {abs(wrong_gradients[name] - slopes[name]).max():.0e}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# W1, and b1 with it. The gradient of W2 is still correct, because the backward pass computes it before it reaches the
# ReLU.
#
# </details>
#
# Nothing raised an error. Would the loss tell you? We train for two epochs with each gradient:


# %%
def train_with(backward, epochs):
    """The trained model, and the loss of each update."""
    model = init_model()
    losses = []
    for epoch in range(epochs):
        for inputs, labels in batches(*train_data, seed=epoch):
            hidden, logits = forward(model, inputs)
            losses.append(loss_sums(logits, labels)["loss"] / len(labels))
            gradients = backward(model, inputs, labels, hidden, np.exp(log_softmax(logits)))
            model = {name: w - RATE * gradients[name] / len(labels) for name, w in model.items()}
    return model, losses


_, right_losses = train_with(backward, 2)
_, wrong_losses = train_with(wrong_backward, 2)
lesson_01.two_losses(right_losses, wrong_losses)
assert wrong_losses[-1] < 0.5 * wrong_losses[0]
assert np.mean(wrong_losses) < np.mean(right_losses)

# %% [markdown]
# In these two epochs the wrong gradient even beats the correct one. Its steps are larger, because it also pushes the
# hidden units that were off. After five epochs at this rate, the two test accuracies differ by less than one point. So
# you'd only see such a mistake beside a correct run, which you don't have. But you have finite differences.
#
# ## Eight parts of a batch
#
# What does this have to do with eight devices? You can run the backward pass on just a part of a batch, too. That's what
# `mean_gradient` does, in float64, so that rounding doesn't matter.


# %%
def mean_gradient(model, rows):
    """The gradient of the mean loss of some rows of the training data, with respect to W1."""
    inputs = train_data[0][rows].astype(np.float64)
    labels = train_data[1][rows]
    hidden, logits = forward(model, inputs)
    probabilities = np.exp(log_softmax(logits))
    return backward(model, inputs, labels, hidden, probabilities)["W1"] / len(labels)


model = {name: w.astype(np.float64) for name, w in init_model().items()}

# %% [markdown]
# Cut a batch of 128 examples into eight parts of 16, and average their mean gradients. Then do the same with one part of
# 58 examples and seven parts of 10.
#
# **Predict:** which average equals the mean gradient of the whole batch?

# %% tags=["prediction"]
rows = np.arange(128)
whole = mean_gradient(model, rows)
equal = [mean_gradient(model, part) for part in np.split(rows, 8)]
unequal = [mean_gradient(model, part) for part in np.split(rows, range(58, 128, 10))]  # 58, 10, ...
print(f"eight equal parts: {abs(np.mean(equal, axis=0) - whole).max():.0e}")
print(f"unequal parts:     {abs(np.mean(unequal, axis=0) - whole).max():.0e}")
lesson_01.eight_parts(np.array(equal)[:, 0, 0], whole[0, 0])

# %% [markdown]
# <details><summary>Answer</summary>
#
# The average over equal parts: **the mean of the means is the mean**, up to float64's rounding. With unequal parts, an
# example in a part of 10 weighs more than one in the part of 58, and the average is wrong by 46 % of the gradient's
# length. The picture shows the gradient of one weight on each of the equal parts. The parts don't even agree about its
# sign, and yet their mean is the gradient of the whole batch.
#
# </details>
#
# In lesson 05 the eight parts go to eight devices, and taking the mean becomes one line of code.
#
# ## Exercises
#
# Solutions, with reasons: [solutions/01_train_a_network_in_numpy.py](solutions/01_train_a_network_in_numpy.py).
#
# 2. `standardize_backward` (10 minutes): the backward pass of batch norm, which lesson 07 computes on eight devices.
#    The forward pass is `y = (x - x.mean(0)) / x.std(0)`, for each column of `x` `[B, D]`. You get `x` and the gradient
#    `g` of the loss with respect to `y`. Return the gradient with respect to `x`. Every output depends on every
#    example, through the mean and the standard deviation. <details><summary>Hint</summary>First divide g by the
#    standard deviation, and call the result h. Then subtract two terms from h: the mean of h, which comes from the mean
#    of x, and y times the mean of h * y, which comes from the standard deviation.</details>
# 3. `fixed_update` (5 minutes, find the mistake): `broken_update` makes one step of gradient descent. There's no error,
#    and the loss falls, but the step doesn't follow the gradient. <details><summary>Hint</summary>With which W2 was the
#    forward pass computed?</details>


# %%
def broken_update(parameters, x, labels, rate):
    (W1, b1), (W2, b2) = parameters
    hidden = np.maximum(x @ W1 + b1, 0)
    logits = hidden @ W2 + b2
    g = (np.exp(log_softmax(logits)) - np.eye(logits.shape[1])[labels]) / len(labels)
    W2 = W2 - rate * hidden.T @ g
    b2 = b2 - rate * g.sum(0)
    g = (g @ W2.T) * (hidden > 0)
    W1 = W1 - rate * x.T @ g
    b1 = b1 - rate * g.sum(0)
    return [(W1, b1), (W2, b2)]


def standardize_backward(x, g):
    """Gradient `[B, D]` with respect to x, from `g` `[B, D]`, the gradient with respect to y."""
    ...  # your code: 2 to 4 lines


def fixed_update(parameters, x, labels, rate):
    """The parameters [(W1, b1), (W2, b2)] after one step of gradient descent."""
    ...  # your code: about 8 lines; you may call log_softmax


for exercise in (standardize_backward, fixed_update):
    check("01_train_a_network_in_numpy", exercise.__name__, exercise)

# %% tags=["proof"]
# The asserts behind the answers. You can skip this cell.
assert (np.array([[2, 5]]).T @ [[0.3, -0.1]]).tolist() == [[0.6, -0.2], [1.5, -0.5]]
assert output(3.0) == 3
assert np.isclose((output(3.01) - output(3.0)) / 0.01, 1)
assert slope == output(first) == 0
centres = np.random.default_rng(0).normal(size=(10, 64))
distances = np.linalg.norm(train_data[0][:, None] - centres, axis=-1)
assert round((distances.argmin(1) == train_data[1]).mean(), 2) == 0.92
accuracies = []
for each in (backward, wrong_backward):
    trained, _ = train_with(each, 5)
    accuracies.append(eval_step(trained, test_data)["correct"] / len(test_data[1]))
assert abs(accuracies[0] - accuracies[1]) < 0.01
inputs, labels = next(batches(*train_data, seed=0))
hidden, logits = forward(init_model(), inputs)
arguments = (init_model(), inputs, labels, hidden, np.exp(log_softmax(logits)))
lengths = [np.linalg.norm(each(*arguments)["W1"]) for each in (wrong_backward, backward)]
assert round(lengths[0] / lengths[1], 1) == 1.6
assert abs(slopes["W1"] - wrong_gradients["W1"]).max() > 1e-3
assert abs(slopes["W2"] - wrong_gradients["W2"]).max() < 1e-8
np.testing.assert_allclose(np.mean(equal, axis=0), whole, atol=1e-14)
error = np.mean(unequal, axis=0) - whole
assert (np.linalg.norm(error) / np.linalg.norm(whole)).round(2) == 0.46
for scale, start in ((1, 3.8), (inputs.std(), 2.6)):
    _, logits = forward(init_model(), inputs / scale)
    assert round(loss_sums(logits, labels)["loss"] / len(labels), 1) == start
assert round(inputs.std(), 1) == 2.7

# %% [markdown]
# ## Take away
#
# - The backward pass goes from the last layer to the first. It needs the activations that the forward pass kept.
# - Check a gradient against finite differences before you believe it, because a falling loss is no proof.
# - Eight equal parts of a batch give eight gradients, and their mean is the gradient of the batch.
#
# pmapdp leaves the backward pass to JAX, and [its tests](../tests/support/numpy_mlp.py) compare JAX with one by hand. To
# read on: [micrograd](https://github.com/karpathy/micrograd). Next, you delete what you've just written: [02
# Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb).
