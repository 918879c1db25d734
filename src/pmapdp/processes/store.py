"""The small shared dictionary of JAX's coordination service: how processes tell each other facts."""

import json
from typing import Any

from jax._src import distributed  # JAX offers no public way to its key-value store; Orbax uses this one too
from jax.errors import JaxRuntimeError

from pmapdp.errors import UserError


class Store:
    """What the processes publish, as JSON; process 0 holds it. They are given `timeout` seconds to say something.

    Attributes:
        process: number of this process, from 0.
        count: number of processes.
    """

    def __init__(self, timeout: float):
        state = distributed.global_state
        self.process, self.count, self.timeout = state.process_id, state.num_processes, timeout
        self.client: Any = state.client

    def publish(self, topic: str, value: Any) -> None:
        """Write what this process says on a topic, over what it said before."""
        self.client.key_value_set(f"pmapdp/{topic}/{self.process}", json.dumps(value), allow_overwrite=True)

    def read(self, topic: str) -> dict[int, Any]:
        """What the processes have said on a topic so far, by their numbers."""
        found = self.client.key_value_dir_get(f"pmapdp/{topic}/")
        return {int(key.rpartition("/")[2]): json.loads(value) for key, value in found}

    def exchange(self, topic: str, value: Any) -> list[Any]:
        """What every process says on a topic, in the order of their numbers; waits for all. A `UserError` names a
        process that has not spoken in time."""
        self.publish(topic, value)
        values = []
        for other in range(self.count):
            try:
                text = self.client.blocking_key_value_get(f"pmapdp/{topic}/{other}", int(1000 * self.timeout))
            except JaxRuntimeError:
                raise UserError(
                    f"process {other} of {self.count} did not get as far as the others within {self.timeout:.0f} s: "
                    "see its own messages, or give it more time with --join-timeout"
                ) from None
            values.append(json.loads(text))
        return values
