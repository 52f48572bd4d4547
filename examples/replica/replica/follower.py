"""The follower's side: asks the leader for what comes next, and cuts its logs where they have parted from the leader's.

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
    """Makes every log of the leader one of its engine, and keeps it so. Topics of its own are left alone."""

    def __init__(self, settings: ReplicaSection, clock: Clock) -> None:
        self._settings, self._clock, self._address = settings, clock, address_of(settings.leader)
        self._stopping = threading.Event()
        self._peer: Peer | None = None
        self._thread: threading.Thread | None = None

    def start(self, engine: Engine) -> None:
        """Follow, on a thread. A leader that does not answer is asked again."""
        self._thread = threading.Thread(target=self._run, args=(engine,), name="replica-follower")
        self._thread.start()

    def stop(self, deadline_ns: int) -> None:
        """End; what has been appended stays."""
        self._stopping.set()
        peer, thread = self._peer, self._thread
        if peer is not None:
            peer.close()
        if thread is not None:
            thread.join(max(deadline_ns - self._clock.monotonic_ns(), 0) / (1000 * _MS))

    def _run(self, engine: Engine) -> None:
        told = ""
        while not self._stopping.is_set():
            try:
                connection = socket.create_connection(self._address, TIMEOUT_S)
                with Peer(connection) as self._peer:
                    self._replicate(engine, self._peer)
            except (OSError, StorageError) as error:  # a leader that has gone, a full disk: neither is for ever
                if str(error) != told and not self._stopping.is_set():
                    told = str(error)
                    _log.warning("cannot fetch from %s, will retry: %s", self._settings.leader, told)
            self._stopping.wait(self._settings.poll_ms / 1000)

    def _replicate(self, engine: Engine, peer: Peer) -> None:
        while not self._stopping.is_set():
            moved = False
            for topic, partitions in _ask(peer, {"ask": "logs"})["logs"]:
                for partition in range(partitions):
                    log = self._followed(engine, topic, partition, partitions)
                    while self._step(peer, log) and not self._stopping.is_set():
                        moved = True
            if not moved:
                self._stopping.wait(self._settings.poll_ms / 1000)

    def _followed(self, engine: Engine, topic: str, partition: int, partitions: int) -> Log:
        try:
            log = engine.log(topic, partition)
        except UnknownTopicError:
            engine.create_topic(topic, partitions=partitions)
            log = engine.log(topic, partition)
        if log.is_leader or log.leader_epoch < self._settings.epoch:
            log.follow(self._settings.epoch)
        return log

    def _step(self, peer: Peer, log: Log) -> bool:
        """One fetch of one log; whether there may be more to do at once."""
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
    """Return the answer. Raise PeerError if it is an error for which only a retry helps."""
    peer.send(question)
    answer = peer.receive()
    if "log_end" not in answer and (not answer or "error" in answer):
        raise PeerError(f"the leader answered: {answer.get('error', 'nothing')} {answer.get('message', '')}")
    return answer


def _out_of_range(log: Log, end: int, log_start: int, log_end: int) -> bool:
    """Handle a leader's log that begins above ours, ends below it, or lacks our last epoch."""
    if log_end < end:
        return log.truncate_to(log_end)
    if log_start > end:
        log.truncate_fully_and_start_at(log_start)
        return True
    return log.truncate_to(log.offsets().high_watermark)


def _cut(log: Log, theirs: EpochEnd) -> None:
    """Cut off what the leader does not have: its last common epoch ends at the lower of both ends."""
    ours, end = log.end_offset_for_epoch(theirs.epoch), log.offsets().log_end
    ends = [end] if ours.epoch < 0 else [end, ours.end_offset]
    if ours.epoch in {-1, theirs.epoch}:
        ends.append(theirs.end_offset)
    log.truncate_to(min(ends))
