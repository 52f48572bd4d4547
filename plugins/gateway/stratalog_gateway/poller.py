"""One thread that answers the Produce requests of many connections, if these requests do not wait.

Python's global lock (GIL) passes to another thread at each system call. If each of four busy connections has its own
thread, the switches between the threads need half as much time as the requests.
"""

from __future__ import annotations

import selectors
import socket
import threading

from stratalog_gateway.connection import Connection, shut
from stratalog_gateway.handlers.request import Response


class _Polled:
    """A connection whose thread waits while the poller answers its requests."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arrivals = 0  # number of times that bytes arrived
        self.is_in_progress = False  # a request is being answered
        self.response = Response(())  # this and `error` are set before `may_continue` is released
        self.error: BaseException | None = None
        self.may_continue = threading.Lock()  # released when the thread of the connection may continue
        self.may_continue.acquire()


class Poller:
    """Thread that answers Produce requests of connections, from ``start`` to ``stop``. Thread-safe."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._stop_sender, stop_receiver = socket.socketpair()
        self._selector.register(stop_receiver, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._is_stopped = False  # under _lock
        self._thread = threading.Thread(
            target=self._run, args=(stop_receiver,), name="stratalog-gateway-poller", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Stop the thread, and wait up to ``wait_s`` for its request in progress. Idempotent.

        Each waiting call of ``answer`` returns.
        """
        with self._lock:
            self._is_stopped = True
        self._stop_sender.close()
        if self._thread.ident is None:
            self._thread.start()  # the thread closes its sockets, and ends
        self._thread.join(wait_s)

    def answer(self, connection: Connection, idle_s: float) -> Response:
        """Answer the Produce requests of a connection on the poller's thread, and wait.

        The wait ends in each of these cases: a response is not ``is_short``, the next request is not Produce, the
        socket's buffer is full, the connection ends, or the poller stops.

        Args:
            connection: a connection whose last response was ``is_short``. Its ``has_decrypted_bytes`` must be False.
            idle_s: time after which the connection is shut down if the client sends nothing.

        Returns:
            The last response if it was not ``is_short``; otherwise a response without pieces.

        Raises:
            MalformedRequestError: a request does not fit its schema.
            OSError: the connection failed.
            Others: the errors of the handler of requests.
        """
        timeout_s, polled = connection.socket.gettimeout(), _Polled(connection)
        connection.socket.setblocking(False)
        with self._lock:
            is_polled = not self._is_stopped
            if is_polled:  # no wake-up is needed: epoll and kqueue notice a socket that is registered while they wait
                self._selector.register(connection.socket, selectors.EVENT_READ, polled)
        seen_arrivals = 0
        while is_polled and not polled.may_continue.acquire(timeout=idle_s):
            if polled.arrivals == seen_arrivals and not polled.is_in_progress:
                shut(connection.socket)
            seen_arrivals = polled.arrivals
        connection.socket.settimeout(timeout_s)
        connection.flush()
        if polled.error is not None:
            raise polled.error
        return polled.response

    def _run(self, stop_receiver: socket.socket) -> None:
        with self._selector, stop_receiver:
            is_running = True
            while is_running:
                for key, _ in self._selector.select():
                    if key.data is None:
                        is_running = False
                    else:
                        self._serve(key.data)
            for key in list(self._selector.get_map().values()):
                if key.data is not None:
                    self._return(key.data)

    def _serve(self, polled: _Polled) -> None:
        """Answer the requests of a connection that has received bytes, or return the connection to its thread."""
        polled.is_in_progress = True
        polled.arrivals += 1
        try:
            response = polled.connection.answer_without_waiting()
        except BaseException as error:  # noqa: BLE001 - the thread of the connection raises it
            response, polled.error = Response(()), error
        polled.is_in_progress = False
        if response is not None:
            polled.response = response
            self._return(polled)

    def _return(self, polled: _Polled) -> None:
        self._selector.unregister(polled.connection.socket)
        polled.may_continue.release()
