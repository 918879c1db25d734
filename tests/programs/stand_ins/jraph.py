"""What the programs call of jraph, for tests where it is not installed: a batch of graphs as one, and its padding."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class GraphsTuple(NamedTuple):
    """Nodes `[nodes, D]` and edges `[edges, E]` of all graphs, one after the other."""

    nodes: Any
    edges: Any
    receivers: Any
    senders: Any
    globals: Any
    n_node: Any
    n_edge: Any


def batch_np(graphs):
    """One GraphsTuple of several."""
    offsets = np.cumsum([0] + [int(graph.n_node.sum()) for graph in graphs[:-1]])
    names = ("nodes", "edges", "n_node", "n_edge")
    joined = {name: np.concatenate([getattr(graph, name) for graph in graphs]) for name in names}
    for name in ("receivers", "senders"):
        joined[name] = np.concatenate([getattr(graph, name) + o for graph, o in zip(graphs, offsets, strict=True)])
    return GraphsTuple(**joined, globals=None)


def pad_with_graphs(graph, n_node, n_edge, n_graph):
    """The batch with one graph that holds the nodes and edges of padding, then empty ones."""
    nodes, edges, graphs = n_node - len(graph.nodes), n_edge - len(graph.edges), n_graph - len(graph.n_node)
    at = len(graph.nodes)
    pad = lambda x, rows, value=0: np.concatenate([x, np.full((rows, *x.shape[1:]), value, x.dtype)])  # noqa: E731
    first = lambda x, n: np.concatenate([x, [n], np.zeros(graphs - 1, x.dtype)])  # noqa: E731
    return GraphsTuple(
        nodes=pad(graph.nodes, nodes),
        edges=pad(graph.edges, edges),
        receivers=pad(graph.receivers, edges, at),
        senders=pad(graph.senders, edges, at),
        globals=None,
        n_node=first(graph.n_node, nodes),
        n_edge=first(graph.n_edge, edges),
    )


def get_graph_padding_mask(graph):
    """[graphs], False for the graphs of padding: the first after the real ones, which has nodes, and the empty ones."""
    n = graph.n_node.shape[0]
    empty = jnp.argmin(graph.n_node[::-1] == 0)  # empty graphs at the end
    return jnp.arange(n) < n - empty - 1
