"""Fetch sessions. A client sends its partitions only once, and responses contain only partitions that have changed.

Source: apache/kafka FetchSession; KIP-227.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.wire.fetch_codec import FetchRequest, FetchResult, WantedPartition

_OPENS: Final = 0  # epoch of a request that opens a session
_ENDS: Final = -1  # epoch of a request that has no session, or that ends its session
_LARGEST: Final = (1 << 31) - 1  # largest value of ids and epochs
_MAX_SESSIONS: Final = 1000  # max.incremental.fetch.session.cache.slots
_MAX_PARTITIONS: Final = 200_000  # maximum for all sessions together; a partition takes about 400 bytes
_UNUSED_NS: Final = 120_000_000_000  # a session may be ended to make room after this time without a request

_Key: TypeAlias = tuple[str | bytes, int]


@dataclass(slots=True)
class _SessionPartition:
    """A partition of a session, and the last bounds that were sent to the client; -1 if the bounds must be sent."""

    requested: WantedPartition
    high_watermark: int = -1
    log_start: int = -1

    def changes(self, result: FetchResult) -> bool:
        """Return True if this result must be sent to the client. Store the bounds in the result."""
        has_batches = result.batches is not None and result.batches.size_bytes > 0
        bounds = result.high_watermark, result.log_start
        is_new = bounds != (self.high_watermark, self.log_start)
        # After an error, the bounds are sent again, even if they have not changed.
        self.high_watermark, self.log_start = (-1, -1) if result.error else bounds
        return has_batches or is_new or bool(result.error) or result.diverging is not None


@dataclass(slots=True)
class _Session:
    """The partitions of one client, in the order in which they are read. Used under the lock of all sessions."""

    id: int
    has_ids: bool
    used_ns: int
    partitions: dict[_Key, _SessionPartition]
    epoch: int = 1

    def update(self, request: FetchRequest, now_ns: int) -> None:
        """Check a request, and increase the session's epoch by one. The epoch after the largest one is 1.

        Add the partitions of the request to the session, and remove the partitions that the request lists as forgotten.

        Raises:
            RefusedError: the request's session epoch is not the expected one, or the request uses topic ids and the
                session does not, or the reverse.
        """
        if request.session_epoch != self.epoch:
            raise RefusedError(Code.INVALID_FETCH_SESSION_EPOCH)
        if request.has_ids is not self.has_ids:
            raise RefusedError(Code.FETCH_SESSION_TOPIC_ID_ERROR)
        self.epoch, self.used_ns = (1 if self.epoch == _LARGEST else self.epoch + 1), now_ns
        for partition in request.partitions:
            self.partitions.setdefault(
                (partition.topic, partition.partition), _SessionPartition(partition)
            ).requested = partition
        for key in request.forgotten:
            self.partitions.pop(key, None)

    def select_changed(self, results: Iterable[FetchResult]) -> list[FetchResult]:
        """Return the results that must be sent to the client. The next request reads partitions with batches last."""
        changed_results = []
        for result in results:
            key = result.topic, result.partition
            partition = self.partitions.get(key)
            if partition is None or partition.changes(result):
                changed_results.append(result)
            if partition is not None and result.batches is not None and result.batches.size_bytes:
                self.partitions[key] = self.partitions.pop(key)
        return changed_results


class FetchSessions:
    """The sessions of all clients. Thread-safe. ``now_ns`` returns the monotonic time."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._sessions: dict[int, _Session] = {}  # ordered by last use, the most recent session at the end
        self._partition_count = 0  # number of partitions of all sessions

    def partitions_to_read(self, request: FetchRequest) -> list[WantedPartition]:
        """Return the partitions to read.

        For a request in a session, apply its changes, and return the session's partitions.

        A request that opens or ends a session also ends the session whose id it has.

        Raises:
            RefusedError: the session does not exist, there is no room for the partitions of the request, or
                ``_Session.update`` refuses the request.
        """
        if request.session_epoch == _ENDS and not request.session_id:  # all requests of clients without sessions
            return request.partitions
        with self._lock:
            session = self._sessions.get(request.session_id)
            if request.session_epoch in {_OPENS, _ENDS}:
                self._end(session)
                return request.partitions
            if session is None:
                raise RefusedError(Code.FETCH_SESSION_ID_NOT_FOUND)
            before = len(session.partitions)
            session.update(request, self._now_ns())
            self._partition_count += len(session.partitions) - before
            self._sessions[session.id] = self._sessions.pop(session.id)
            if not self._make_room(0, 0):
                self._end(session)
                raise RefusedError(Code.FETCH_SESSION_ID_NOT_FOUND)  # the client then sends all partitions again
            return [partition.requested for partition in session.partitions.values()]

    def results_to_send(
        self, request: FetchRequest, results: Sequence[FetchResult]
    ) -> tuple[int, Sequence[FetchResult]]:
        """Return the session id of the response, and the results to send. The id is 0 without a session.

        If the request opens a session, the session is created now.
        """
        if request.session_epoch == _ENDS:
            return 0, results
        with self._lock:
            if request.session_epoch == _OPENS:
                return self._open(request, results), results
            session = self._sessions.get(request.session_id)
            return request.session_id, results if session is None else session.select_changed(results)

    def withhold_results(self, request: FetchRequest, session_id: int) -> int:
        """Undo ``results_to_send`` for a response that is sent without results. Return the session id of the response.

        The next response of the session contains results for all partitions. If the request opened the session, the
        session is ended, and the id is 0. The id is also 0 if there is no session.
        """
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None or request.session_epoch == _OPENS:
                self._end(session)
                return 0
            for partition in session.partitions.values():
                partition.high_watermark = -1
            return session_id

    def _open(self, request: FetchRequest, results: Iterable[FetchResult]) -> int:
        """Open a session, and return its id. Return 0 if there is no room, or if the request contains no partitions."""
        if not request.partitions or not self._make_room(1, len(request.partitions)):
            return 0
        session_id = secrets.randbelow(_LARGEST) + 1
        while session_id in self._sessions:
            session_id = secrets.randbelow(_LARGEST) + 1
        partitions = {
            (partition.topic, partition.partition): _SessionPartition(partition) for partition in request.partitions
        }
        session = _Session(session_id, request.has_ids, self._now_ns(), partitions)
        session.select_changed(results)
        self._sessions[session_id] = session
        self._partition_count += len(partitions)
        return session_id

    def _make_room(self, sessions: int, partitions: int) -> bool:
        """Return True if this number of sessions and partitions can be added.

        If necessary, sessions that were unused for two minutes are ended, the longest unused first.
        """
        while len(self._sessions) + sessions > _MAX_SESSIONS or self._partition_count + partitions > _MAX_PARTITIONS:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or self._now_ns() - oldest.used_ns <= _UNUSED_NS:
                return False
            self._end(oldest)
        return True

    def _end(self, session: _Session | None) -> None:
        if session is not None:
            del self._sessions[session.id]
            self._partition_count -= len(session.partitions)
