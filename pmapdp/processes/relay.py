"""A way to the coordinator on which its end can be seen.

When process 0 dies, JAX's client notices that its connection is closed and aborts the process in C++, where no sentence
of ours can be said. So the client speaks to a thread of its own process, which hands everything on to process 0
and sees the end of that connection first.
"""

import contextlib
import functools
import socket
import threading
from collections.abc import Callable


class Connection:
    """One connection of the client, and the one to the coordinator that goes with it."""

    def __init__(self, client: socket.socket, upstream: socket.socket):
        self.client, self.upstream = client, upstream
        self.ending = threading.Lock()
        self.ended = False


class Relay:
    """Hands bytes on between JAX's client and the coordinator.

    Args:
        coordinator: host and port of process 0.

    Attributes:
        address: `HOST:PORT` for the client.
        lost: called when process 0 has closed a connection; the client learns of it only after the call returns.
    """

    def __init__(self, coordinator: tuple[str, int]):
        self.coordinator = coordinator
        self.lost: Callable[[], None] = lambda: None
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        start_thread(self.accept)

    def accept(self) -> None:
        """Take connections until `close`."""
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            try:
                upstream = socket.create_connection(self.coordinator, timeout=30)
            except OSError:
                client.close()  # the client tries again
                continue
            upstream.settimeout(None)
            connection = Connection(client, upstream)
            start_thread(functools.partial(self.copy, connection, client, upstream))
            start_thread(functools.partial(self.copy, connection, upstream, client))

    def copy(self, connection: "Connection", source: socket.socket, target: socket.socket) -> None:
        """Hand on all bytes of `source`; then close the connection, whichever side ended it."""
        side = source
        try:
            while data := source.recv(1 << 16):
                side = target
                target.sendall(data)
                side = source
        except OSError:  # reset: an end as well
            pass
        with connection.ending:
            if not connection.ended and side is connection.upstream:
                self.lost()
            connection.ended = True
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the other thread
            each.close()

    def close(self) -> None:
        """Take no more connections."""
        self.server.close()


def start_thread(work: Callable[[], None]) -> threading.Thread:
    """Run `work` in a thread that does not keep the process alive."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
