"""The small shared dictionary of JAX's coordination service: how processes tell each other facts."""

import json
from typing import Any

from jax._src import distributed  # JAX offers no public way to its key-value store; Orbax uses this one too
from jax.errors import JaxRuntimeError

from pmapdp.errors import UserError

PREFIX = "pmapdp/"


class Store:
    """Keys and values that all `count` processes see, of which this is number `process`; process 0 holds them. They are
    given `timeout` seconds to say something."""

    def __init__(self, process: int, count: int, timeout: float):
        self.process, self.count, self.timeout = process, count, timeout
        self.client: Any = distributed.global_state.client

    def set(self, key: str, value: str) -> None:
        """Write a value, over an earlier one."""
        self.client.key_value_set(PREFIX + key, value, allow_overwrite=True)

    def entries(self, folder: str) -> dict[str, str]:
        """All keys (without the folder) and values below `folder`."""
        found = self.client.key_value_dir_get(f"{PREFIX}{folder}/")
        return {key.removeprefix(f"{PREFIX}{folder}/"): value for key, value in found}

    def exchange(self, name: str, value: Any) -> list[Any]:
        """What every process said under `name`, in the order of their numbers; waits for all. `value` is JSON. A
        `UserError` names a process that has not spoken in time."""
        self.set(f"{name}/{self.process}", json.dumps(value))
        values = []
        for other in range(self.count):
            try:
                text = self.client.blocking_key_value_get(f"{PREFIX}{name}/{other}", int(1000 * self.timeout))
            except JaxRuntimeError:
                raise UserError(
                    f"process {other} of {self.count} did not get as far as the others within {self.timeout:.0f} s: "
                    "see its own messages, or give it more time with --join-timeout"
                ) from None
            values.append(json.loads(text))
        return values

    def barrier(self, name: str, seconds: float) -> None:
        """Wait until all processes are here; each name may be used once."""
        self.client.wait_at_barrier(PREFIX + name, int(1000 * seconds))
