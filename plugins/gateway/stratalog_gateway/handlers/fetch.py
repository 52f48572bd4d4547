"""Handler of Fetch requests, which may wait for new records.

Source: apache/kafka KafkaApis.handleFetchRequest, DelayedFetch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stratalog import LogOffsets, Transfer
from stratalog.errors import StorageError
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.handlers.fetch_sessions import FetchSessions
from stratalog_gateway.handlers.request import ISOLATIONS, Response
from stratalog_gateway.node import Node, WaitingFetch, Watch
from stratalog_gateway.security.client import Client
from stratalog_gateway.security.quotas import FETCHED
from stratalog_gateway.security.resources import Operation, ResourceType
from stratalog_gateway.wire.fetch_codec import (
    READ_BYTES,
    FetchRequest,
    FetchResult,
    WantedPartition,
    decode_fetch,
    encode_fetch,
    frame_bytes,
)
from stratalog_gateway.wire.messages import Header
from stratalog_gateway.wire.primitives import MalformedRequestError

_NS_PER_MS: Final = 1_000_000
_STEP_NS: Final = 500_000_000  # maximum time until a wait notices a deleted topic
_MAX_PARTITIONS_NOW: Final = 8  # a request for more partitions is answered by the thread of its client only
_MAX_BYTES: Final = 55 << 20  # Kafka's fetch.max.bytes of the broker


class _ReadPass:
    """The results of one pass over all partitions.

    Attributes:
        remaining_bytes: maximum size of the batches that can still be added.
        results: one result for each partition.
        size_bytes: size of all batches in ``results``.
        readable_bytes: number of bytes that is compared with the minimum of the request. If a partition has more
            batches than its result contains, the limit of the partition is counted, because Kafka fills results to
            their limits. Otherwise the size of the result is counted.
        is_done: True if the response must not wait: a partition has an error, or the client's log diverges.
        ends: topic, partition and bounds of each log that was read.
        transfers: the batches of the results.
    """

    def __init__(self, remaining_bytes: int) -> None:
        self.remaining_bytes, self.size_bytes, self.readable_bytes, self.is_done = remaining_bytes, 0, 0, False
        self.results: list[FetchResult] = []
        self.ends: list[tuple[str, int, LogOffsets]] = []
        self.transfers: list[Transfer] = []

    def release(self) -> None:
        """Release the transfers. They are not sent."""
        for transfer in self.transfers:
            transfer.release()


class FetchHandler:
    """Handler of Fetch requests. It waits until ``min_bytes`` can be read, or the request's maximum wait has passed."""

    def __init__(self, node: Node) -> None:
        self._node, self._sessions = node, FetchSessions(node.now_ns)

    def __call__(self, header: Header, data: memoryview, client: Client) -> Response:
        """Return the response. Raise MalformedRequestError if the request does not fit its schema.

        If the client is above its quota, the response has no results.
        """
        request = decode_fetch(header, data)
        if request.isolation not in ISOLATIONS:
            raise MalformedRequestError(f"unknown isolation level {request.isolation}")
        try:
            partitions = self._sessions.partitions_to_read(request)
        except RefusedError as error:
            return Response(encode_fetch(header, (), error=error.kafka_code))
        if partitions is not request.partitions:
            request = request._replace(partitions=partitions)
        window_bytes = self._node.quotas.window_bytes(client, header.client_id)
        if window_bytes is not None:
            request = request._replace(
                max_bytes=min(request.max_bytes, window_bytes), min_bytes=min(request.min_bytes, window_bytes)
            )
        return self._answer(header, request, client)

    def _response(self, header: Header, request: FetchRequest, client: Client, read_pass: _ReadPass) -> Response:
        try:
            return self._encode(header, request, client, read_pass)
        except BaseException:
            read_pass.release()
            raise

    def _encode(self, header: Header, request: FetchRequest, client: Client, read_pass: _ReadPass) -> Response:
        session_id, results = self._sessions.results_to_send(
            request, [_read_small_batches(result) for result in read_pass.results]
        )
        pieces = encode_fetch(header, results, session_id=session_id)
        size = frame_bytes(pieces)
        throttle_ms = self._node.quotas.record(FETCHED, client, header.client_id, size)
        if throttle_ms:  # nothing is sent, so no bytes count for the quota
            self._node.quotas.record(FETCHED, client, header.client_id, -size)
            read_pass.release()
            session_id = self._sessions.withhold_results(request, session_id)
            return Response(
                encode_fetch(header, (), session_id=session_id, throttle_ms=throttle_ms), throttle_ms=throttle_ms
            )
        return Response(pieces, read_pass.transfers)

    def _answer(self, header: Header, request: FetchRequest, client: Client) -> Response:
        """Read until there are enough bytes or an error, or the request's maximum wait has passed.

        Return the response, or its unsent bytes if another thread has already sent the others.
        """
        min_bytes = min(request.min_bytes, request.max_bytes, _MAX_BYTES)
        until_ns: int | None = None
        while True:
            read_pass = self._read(request, client)
            if (
                read_pass.readable_bytes >= min_bytes
                or read_pass.is_done
                or self._node.is_closed
                or not request.partitions
            ):
                return self._response(header, request, client, read_pass)
            now_ns = self._node.now_ns()
            if until_ns is None:
                until_ns = now_ns + request.max_wait_ms * _NS_PER_MS
            if now_ns >= until_ns:
                return self._response(header, request, client, read_pass)
            read_pass.release()
            waiting = WaitingFetch(lambda: self._answer_now(header, request, client, min_bytes))
            self._wait(waiting, read_pass.ends, min(until_ns, now_ns + _STEP_NS))
            response = waiting.end()
            if response is not None:
                return response

    def _answer_now(self, header: Header, request: FetchRequest, client: Client, min_bytes: int) -> Response | None:
        """Send the response if there are new records, and if they are few bytes. Return the unsent bytes of the response.

        Return None if the thread of the client has to answer the request, or to wait again. That is also so if the client
        waits for more than one byte: older records of another partition could be in the tier, and their read would delay
        the thread that appends.
        """
        if client.send_now is None or min_bytes > 1 or len(request.partitions) > _MAX_PARTITIONS_NOW:
            return None
        read_pass = self._read(request, client)
        if read_pass.readable_bytes < min_bytes or read_pass.size_bytes > READ_BYTES:
            read_pass.release()
            return None
        response = self._response(header, request, client, read_pass)
        try:
            data = b"".join(piece for piece in response.pieces if not isinstance(piece, Transfer))
            return response._replace(pieces=[client.send_now(data)], transfers=())
        finally:
            response.release()

    def _wait(
        self, waiting: WaitingFetch[Response], ends: Iterable[tuple[str, int, LogOffsets]], until_ns: int
    ) -> None:
        """Wait until the bounds of one of the logs change, at most until the monotonic time ``until_ns``.

        The fetch is added to each watch before the bounds of the log are compared with ``ends``, so no change is
        missed.
        """
        watches: list[Watch] = []
        try:
            for topic, partition, bounds in ends:
                watch = self._node.watch(topic, partition)
                watches.append(watch)
                if not watch.add(waiting, bounds):
                    return
            self._node.wait(waiting.event, until_ns)
        except StorageError:
            return  # the log was deleted; the next read returns its error
        finally:
            for watch in watches:
                watch.leave(waiting)

    def _read(self, request: FetchRequest, client: Client) -> _ReadPass:
        read_pass = _ReadPass(min(request.max_bytes, _MAX_BYTES))
        try:
            for requested in request.partitions:
                read_pass.results.append(self._read_partition(request, requested, read_pass, client))
        except BaseException:
            read_pass.release()
            raise
        return read_pass

    def _read_partition(
        self, request: FetchRequest, requested: WantedPartition, read_pass: _ReadPass, client: Client
    ) -> FetchResult:
        """Return the result for a partition, and count its batches in ``read_pass``."""
        name_or_id, partition, leader_epoch, offset, last_epoch, limit_bytes = requested
        topic, topic_id = (
            (name_or_id, None) if isinstance(name_or_id, str) else (self._node.topic_of(name_or_id), name_or_id)
        )
        refusal = Code.UNKNOWN_TOPIC_ID if topic is None else client.refusal(Operation.READ, ResourceType.TOPIC, topic)
        if topic is None or refusal:
            read_pass.is_done = True
            return FetchResult(name_or_id, partition, refusal)
        try:
            log = self._node.log(topic, partition, topic_id)
            bounds = log.offsets()
            end = bounds.last_stable if request.isolation else bounds.high_watermark
            is_current = last_epoch < 0 and leader_epoch in (-1, log.leader_epoch)
            if is_current and offset == end:  # the client has read all records: this usual case costs little
                read_pass.ends.append((topic, partition, bounds))
                return FetchResult(
                    name_or_id, partition, 0, bounds.high_watermark, bounds.last_stable, bounds.log_start
                )
            batches = log.transfer(
                offset,
                max(min(limit_bytes, read_pass.remaining_bytes), 0),
                ISOLATIONS[request.isolation],
                min_one_batch=read_pass.size_bytes == 0,
                current_leader_epoch=leader_epoch if leader_epoch >= 0 else None,
                last_fetched_epoch=last_epoch if last_epoch >= 0 else None,
            )
        except StorageError as error:
            read_pass.is_done = True
            return FetchResult(name_or_id, partition, error.kafka_code)
        bounds, size_bytes, diverging = batches.offsets, batches.size_bytes, None
        read_pass.ends.append((topic, partition, bounds))
        end = bounds.last_stable if request.isolation else bounds.high_watermark
        is_cut = size_bytes > 0 and batches.next_offset < end
        read_pass.readable_bytes += (
            max(size_bytes, min(limit_bytes, read_pass.remaining_bytes)) if is_cut else size_bytes
        )
        read_pass.transfers.append(batches)
        read_pass.size_bytes += size_bytes
        read_pass.remaining_bytes -= size_bytes
        if batches.diverging is not None:
            diverging, read_pass.is_done = (batches.diverging.epoch, batches.diverging.end_offset), True
        aborted = [(transaction.producer_id, transaction.first_offset) for transaction in batches.aborted_transactions]
        return FetchResult(
            name_or_id,
            partition,
            0,
            bounds.high_watermark,
            bounds.last_stable,
            bounds.log_start,
            aborted,
            batches,
            diverging,
        )


def _read_small_batches(result: FetchResult) -> FetchResult:
    """Read the batches now if they are small enough to be sent from memory, and return ``result``.

    If the batches cannot be read, return a result with the error code and without batches.
    """
    try:
        if result.batches is not None and result.batches.size_bytes <= READ_BYTES:
            result.batches.read()
    except StorageError as error:
        return FetchResult(result.topic, result.partition, error.kafka_code)
    return result
