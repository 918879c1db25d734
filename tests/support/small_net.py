"""A network that is compiled quickly and has state of all kinds: parameters, running statistics, random masks."""

from flax import nnx


class Net(nnx.Module):
    def __init__(self, *, rngs, dtype, param_dtype):
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.hidden, self.norm = nnx.Linear(784, 32, **types), nnx.BatchNorm(32, **types)
        self.dropout, self.out = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(32, 10, **types)

    def __call__(self, x):
        x = self.norm(self.hidden(x.reshape(len(x), -1)))
        return self.out(self.dropout(nnx.relu(x)))
