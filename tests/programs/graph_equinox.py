"""Equinox with jraph: a module is the parameters, a GraphsTuple the batch, and padding graphs are masked."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jraph
import numpy as np
import optax

optim = optax.adam(1e-2)


class GraphNet(eqx.Module):
    encode: jax.Array
    message: jax.Array
    readout: jax.Array
    activation: callable = eqx.field(static=True)

    def __init__(self, key):
        keys = jr.split(key, 3)
        self.encode, self.message = 0.5 * jr.normal(keys[0], (3, 8)), 0.5 * jr.normal(keys[1], (8, 8))
        self.readout, self.activation = 0.5 * jr.normal(keys[2], (8,)), jnp.tanh

    def __call__(self, graph):
        """[graphs], one number for each graph."""
        nodes = self.activation(graph.nodes @ self.encode)
        sent = nodes[graph.senders] @ self.message
        nodes = nodes + self.activation(jax.ops.segment_sum(sent, graph.receivers, nodes.shape[0]))
        graphs = graph.n_node.shape[0]
        owner = jnp.repeat(jnp.arange(graphs), graph.n_node, total_repeat_length=nodes.shape[0])
        return jax.ops.segment_sum(nodes @ self.readout, owner, graphs)


def loss_fn(model, graph, labels):
    mask = jraph.get_graph_padding_mask(graph)
    losses = jnp.where(mask, jnp.square(model(graph) - labels), 0.0)
    return losses.sum(), mask.sum()


@eqx.filter_pmap(axis_name="device")
def make_step(model, opt_state, graph, labels):
    (loss, count), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, graph, labels)
    grads, loss, count = jax.lax.psum((grads, loss, count), axis_name="device")
    grads = jax.tree_util.tree_map(lambda g: g / count, grads)
    updates, opt_state = optim.update(grads, opt_state, model)
    return eqx.apply_updates(model, updates), opt_state, loss / count


def random_graph(random):
    n = int(random.integers(2, 5))
    nodes = random.normal(size=(n, 3)).astype(np.float32)
    senders, receivers = random.integers(0, n, (2, 2 * n))
    edges = np.ones((2 * n, 1), np.float32)
    return jraph.GraphsTuple(nodes, edges, receivers, senders, None, np.array([n]), np.array([2 * n]))


def device_batch(random, graphs):
    """At most `graphs` graphs and one of padding, and a label for each."""
    graph = jraph.batch_np([random_graph(random) for _ in range(random.integers(1, graphs + 1))])
    graph = jraph.pad_with_graphs(graph, n_node=4 * graphs + 1, n_edge=8 * graphs + 1, n_graph=graphs + 1)
    return graph, random.normal(size=graphs + 1).astype(np.float32)


def main():
    devices, random = jax.local_device_count(), np.random.default_rng(0)
    model = GraphNet(jr.PRNGKey(0))
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    stack = lambda *leaves: jnp.stack(leaves)  # noqa: E731
    model, opt_state = jax.tree_util.tree_map(lambda x: jnp.stack([x] * devices), (model, opt_state))
    for _ in range(3):
        parts = [device_batch(random, 3) for _ in range(devices)]
        graph, labels = jax.tree_util.tree_map(stack, *parts)
        model, opt_state, loss = make_step(model, opt_state, graph, labels)
    model, opt_state, loss = jax.tree_util.tree_map(lambda x: x[0], (model, opt_state, loss))
    return jax.device_get(eqx.filter(model, eqx.is_array)), jax.device_get(opt_state), jax.device_get(loss)


if __name__ == "__main__":
    print(main()[2])
