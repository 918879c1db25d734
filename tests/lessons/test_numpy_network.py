"""The hand-written backward pass against finite differences, in float64, and against `jax.grad`, in float32."""

import jax
import numpy as np
import numpy_network
import optax
import pytest

from pmapdp import devices


def example(*, sizes=(6, 5, 4, 3), examples=7, seed=0):
    """Parameters with biases other than 0: else a layer behind one that is all 0 sits right on the ReLU's kink."""
    random = np.random.default_rng(seed)
    parameters = numpy_network.initialise(sizes, seed=seed, scale=1.0)
    parameters = [(weights, random.standard_normal(bias.shape)) for weights, bias in parameters]
    return parameters, random.standard_normal((examples, sizes[0])), random.integers(0, sizes[-1], examples)


def largest_difference(first, second):
    leaves = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return max(np.abs(a - b).max() for a, b in leaves)


@pytest.mark.parametrize("sizes", [(4, 3), (4, 3, 2), (6, 5, 4, 3), (3, 4, 4, 4, 2)])
def test_backward_equals_finite_differences(sizes):
    parameters, x, labels = example(sizes=sizes)

    def loss(parameters):
        return numpy_network.cross_entropy(numpy_network.forward(parameters, x)[-1], labels)

    by_hand = numpy_network.backward(parameters, numpy_network.forward(parameters, x), labels)
    by_trying = numpy_network.finite_differences(loss, parameters)
    assert largest_difference(by_hand, by_trying) < 1e-8  # step 1e-6 squared, and rounding of 1e-16 / 1e-6


def test_finite_differences_leave_the_parameters_as_they_were():
    parameters, x, labels = example()
    before = [(weights.copy(), bias.copy()) for weights, bias in parameters]
    numpy_network.finite_differences(
        lambda p: numpy_network.cross_entropy(numpy_network.forward(p, x)[-1], labels), parameters
    )
    assert largest_difference(before, parameters) == 0


def test_backward_equals_jax():
    devices.simulate(8)
    parameters, x, labels = example(sizes=(20, 16, 12, 10), examples=32)

    def loss(parameters):
        activations = x
        for weights, bias in parameters[:-1]:
            activations = jax.nn.relu(activations @ weights + bias)
        weights, bias = parameters[-1]
        return optax.softmax_cross_entropy_with_integer_labels(activations @ weights + bias, labels).mean()

    by_hand = numpy_network.backward(parameters, numpy_network.forward(parameters, x), labels)
    assert largest_difference(by_hand, jax.grad(loss)(parameters)) < 1e-5  # jax computes in float32


def test_shapes_and_scale_of_the_initial_parameters():
    parameters = numpy_network.initialise((784, 128, 128, 10), seed=3)
    assert [weights.shape for weights, _ in parameters] == [(784, 128), (128, 128), (128, 10)]
    assert [bias.shape for _, bias in parameters] == [(128,), (128,), (10,)]
    assert all((bias == 0).all() for _, bias in parameters)
    assert parameters[0][0].std() == pytest.approx(1e-2, rel=0.02)
    again = numpy_network.initialise((784, 128, 128, 10), seed=3)
    assert largest_difference(parameters, again) == 0


def test_loss_of_equal_logits_is_the_logarithm_of_the_number_of_classes():
    assert numpy_network.cross_entropy(np.zeros((4, 10)), np.arange(4)) == pytest.approx(np.log(10), abs=1e-12)


def test_loss_of_large_logits_is_finite():
    logits = np.array([[1000.0, 0.0], [-1000.0, 0.0]])
    assert numpy_network.cross_entropy(logits, np.array([0, 1])) == pytest.approx(0, abs=1e-12)
    assert numpy_network.cross_entropy(logits, np.array([1, 0])) == pytest.approx(1000, abs=1e-9)


def test_one_step_by_hand():
    parameters = [(np.zeros((2, 2)), np.zeros(2))]
    x, labels = np.array([[1.0, 2.0]]), np.array([0])
    gradients = numpy_network.backward(parameters, numpy_network.forward(parameters, x), labels)
    np.testing.assert_allclose(gradients[0][0], [[-0.5, 0.5], [-1.0, 1.0]], atol=1e-15)
    np.testing.assert_allclose(gradients[0][1], [-0.5, 0.5], atol=1e-15)
    (weights, bias), *_ = numpy_network.sgd(parameters, gradients, 0.1)
    np.testing.assert_allclose(weights, [[0.05, -0.05], [0.1, -0.1]], atol=1e-15)
    np.testing.assert_allclose(bias, [0.05, -0.05], atol=1e-15)
    assert parameters[0][0].max() == 0  # the old ones are left as they were
