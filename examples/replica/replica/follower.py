"""The follower: it fetches records from the leader, and truncates its logs where they differ from the leader's logs.

Source of the rules: apache/kafka ReplicaFetcherThread, AbstractFetcherThread.truncateToEpochEndOffsets and
fetchOffsetAndTruncate.
"""

from __future__ import annotations

import logging
import socket
import threading
from typing import Any, Final

from replica.settings import ReplicaSection, address_of
from replica.wire import TIMEOUT_S, Peer, PeerError
from stratalog import Engine, EpochEnd, Log
from stratalog.errors import StorageError, UnknownTopicError
from stratalog.spi import Clock, Service

_log: Final = logging.getLogger(__name__)
_MS: Final = 1_000_000


class Follower(Service):
    """Service that copies every log of the leader to its engine. Topics that the leader lacks are not changed."""

    def __init__(self, settings: ReplicaSection, clock: Clock) -> None:
        self._settings, self._clock, self._address = settings, clock, address_of(settings.leader)
        self._stopping = threading.Event()
        self._peer: Peer | None = None
        self._thread: threading.Thread | None = None

    def start(self, engine: Engine) -> None:
        """Start a thread that fetches from the leader. After an error, the thread connects again."""
        self._thread = threading.Thread(target=self._run, args=(engine,), name="replica-follower")
        self._thread.start()

    def stop(self, deadline_ns: int) -> None:
        """Stop the thread, and wait for its end until the deadline. Records that were appended stay in the logs."""
        self._stopping.set()
        peer, thread = self._peer, self._thread
        if peer is not None:
            peer.close()
        if thread is not None:
            thread.join(max(deadline_ns - self._clock.monotonic_ns(), 0) / (1000 * _MS))

    def _run(self, engine: Engine) -> None:
        logged = ""
        while not self._stopping.is_set():
            try:
                connection = socket.create_connection(self._address, TIMEOUT_S)
                with Peer(connection) as self._peer:
                    self._replicate(engine, self._peer)
            except (OSError, StorageError) as error:  # such as a stopped leader or a full disk, which may be repaired
                if str(error) != logged and not self._stopping.is_set():
                    logged = str(error)
                    _log.warning("cannot fetch from %s, will retry: %s", self._settings.leader, logged)
            self._stopping.wait(self._settings.poll_ms / 1000)

    def _replicate(self, engine: Engine, peer: Peer) -> None:
        while not self._stopping.is_set():
            has_fetched = False
            for topic, partitions in _ask(peer, {"ask": "logs"})["logs"]:
                for partition in range(partitions):
                    log = self._open_follower(engine, topic, partition, partitions)
                    while self._step(peer, log) and not self._stopping.is_set():
                        has_fetched = True
            if not has_fetched:
                self._stopping.wait(self._settings.poll_ms / 1000)

    def _open_follower(self, engine: Engine, topic: str, partition: int, partitions: int) -> Log:
        try:
            log = engine.log(topic, partition)
        except UnknownTopicError:
            engine.create_topic(topic, partitions=partitions)
            log = engine.log(topic, partition)
        if log.is_leader or log.leader_epoch < self._settings.epoch:
            log.follow(self._settings.epoch)
        return log

    def _step(self, peer: Peer, log: Log) -> bool:
        """Fetch once for one log; return True if another fetch should follow immediately."""
        end, last_epoch = log.offsets().log_end, log.latest_epoch
        question = {
            "ask": "fetch",
            "node": self._settings.node,
            "topic": log.name.topic,
            "partition": log.name.partition,
            "offset": end,
            "max_bytes": self._settings.max_bytes,
            "epoch": log.leader_epoch,
            "last_epoch": last_epoch if last_epoch >= 0 else None,
        }
        answer = _ask(peer, question)
        if "log_end" in answer:
            return _out_of_range(log, end, answer["log_start"], answer["log_end"])
        if answer["diverging"] is not None:
            _cut(log, EpochEnd(*answer["diverging"]))
            return True
        data = peer.read(answer["bytes"])
        log.append_as_follower(data, answer["high_watermark"], answer["log_start"])
        return bool(data)


def _ask(peer: Peer, question: dict[str, object]) -> dict[str, Any]:
    """Send a request, and return the answer, which can be an error with the bounds of the leader's log.

    Raises:
        PeerError: the connection was closed, or the answer is another error.
    """
    peer.send(question)
    answer = peer.receive()
    if "log_end" not in answer and (not answer or "error" in answer):
        raise PeerError(f"the leader answered: {answer.get('error', 'nothing')} {answer.get('message', '')}")
    return answer


def _out_of_range(log: Log, end: int, log_start: int, log_end: int) -> bool:
    """Adapt the follower's log if its end is outside the leader's log, or if the leader lacks the log's last epoch.

    Return True if another fetch should follow immediately.
    """
    if log_end < end:
        return log.truncate_to(log_end)
    if log_start > end:
        log.truncate_fully_and_start_at(log_start)
        return True
    return log.truncate_to(log.offsets().high_watermark)


def _cut(log: Log, leader_end: EpochEnd) -> None:
    """Truncate the follower's log to the end of the records that the leader also has.

    ``leader_end`` is the diverging epoch of the leader's answer, with its end offset in the leader's log.
    """
    own_end, log_end = log.end_offset_for_epoch(leader_end.epoch), log.offsets().log_end
    ends = [log_end] if own_end.epoch < 0 else [log_end, own_end.end_offset]
    if own_end.epoch in {-1, leader_end.epoch}:
        ends.append(leader_end.end_offset)
    log.truncate_to(min(ends))
