"""The leader: it answers fetches of followers, and commits the records that all in-sync replicas have.

Source of the rules: apache/kafka ReplicaManager.fetchMessages, Partition.updateFollowerFetchState; the answer to a
follower whose log differs from the leader's is KIP-595's diverging epoch.
"""

from __future__ import annotations

import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from replica.in_sync import InSyncReplicas
from replica.settings import ReplicaSection, address_of
from replica.wire import Peer, PeerError
from stratalog import Engine, Log, Record, TopicPartition
from stratalog.errors import OffsetOutOfRangeError, StorageError
from stratalog.spi import Clock, Service

_THREAD: Final = "replica-leader"
_MS: Final = 1_000_000


class NotEnoughReplicasError(StorageError):
    """Too few replicas are in sync. Start more followers, or lower ``min.insync.replicas``."""

    retriable = True


class Leader(Service):
    """Service that leads every log of its engine.

    Open the engine with ``watermark = "external"``, because this service moves the high watermarks.
    """

    def __init__(self, settings: ReplicaSection, clock: Clock) -> None:
        self._settings, self._clock, self._address = settings, clock, address_of(settings.listen)
        self._in_sync: dict[TopicPartition, InSyncReplicas] = {}  # under _moved
        # notified if a high watermark or a set of in-sync replicas may have changed
        self._moved = threading.Condition()
        self._peers = set[Peer]()  # under _moved
        self._stopping = threading.Event()
        self._expiry: threading.Thread | None = None
        self._engine: Engine | None = None
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        """HOST:PORT on which the leader listens; after ``start``, with the real port if the configured port is 0."""
        if self._server is None:
            return self._settings.listen
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def start(self, engine: Engine) -> None:
        """Become the leader of all logs, and listen for followers; raise OSError if the address cannot be used."""
        self._engine = engine
        for name in engine.partitions():
            self._leader_log(engine, name)
        self._server = _Server(self._address, engine, self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name=_THREAD).start()
        self._expiry = threading.Thread(target=self._expire, args=(engine,), name="replica-expiry")
        self._expiry.start()

    def stop(self, deadline_ns: int) -> None:
        """Stop listening, and close all connections. An append that waits then raises NotEnoughReplicasError."""
        server, self._server = self._server, None
        if server is None:
            return
        self._stopping.set()
        server.shutdown()
        with self._moved:
            for peer in self._peers:
                peer.close()
            self._moved.notify_all()
        server.server_close()
        if self._expiry is not None:
            self._expiry.join(max(deadline_ns - self._clock.monotonic_ns(), 0) / (1000 * _MS))

    def append(self, topic: str, partition: int, records: Sequence[Record], timeout_ms: int) -> int:
        """Append records as with ``acks=all``: wait until they are committed. Return the offset of the first record.

        If too few replicas are in sync, the call waits for them before it writes; Kafka returns an error immediately.

        Raises:
            NotEnoughReplicasError: too few replicas were in sync, and nothing was written; or the records were written
                but not committed in time: they may be committed later, or deleted when another leader is elected.
            StorageError: an error of ``Log.append``.
        """
        engine = self._engine
        if engine is None:
            raise NotEnoughReplicasError("the leader has not started: call start() first")
        log = self._leader_log(engine, TopicPartition(topic, partition))
        replicas = self._in_sync[log.name]
        if not self._wait(lambda: replicas.enough, timeout_ms):
            raise NotEnoughReplicasError(f"{log.name} has too few replicas in sync: start its followers")
        result = log.append(records)
        self._commit(log)
        if not self._wait(lambda: log.offsets().high_watermark > result.last_offset and replicas.enough, timeout_ms):
            raise NotEnoughReplicasError(
                f"{log.name} did not commit offset {result.last_offset} in {timeout_ms} ms: check its followers"
            )
        return result.base_offset

    def in_sync(self, topic: str, partition: int) -> frozenset[str]:
        """Return the names of a log's in-sync followers. Each can become leader without loss of committed records."""
        with self._moved:
            replicas = self._in_sync.get(TopicPartition(topic, partition))
            return frozenset() if replicas is None else replicas.members

    def serve(self, engine: Engine, peer: Peer) -> None:
        """Answer the requests of one follower until it closes the connection."""
        with self._moved:
            if self._stopping.is_set():
                return
            self._peers.add(peer)
        try:
            while question := peer.receive():
                if question.get("ask") == "logs":
                    logs = Counter(name.topic for name in engine.partitions())
                    peer.send({"logs": sorted(logs.items())})
                else:
                    self._answer(engine, peer, question)
        except (OSError, PeerError):
            return  # the follower connects again when it can
        finally:
            with self._moved:
                self._peers.discard(peer)

    def _wait(self, reached: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until ``reached`` returns True, but at most ``timeout_ms``, and not after ``stop``.

        Return the last result of ``reached``, which is called under the lock.
        """
        with self._moved:
            self._moved.wait_for(lambda: self._stopping.is_set() or reached(), timeout_ms / 1000)
            return reached()

    def _answer(self, engine: Engine, peer: Peer, question: dict[str, Any]) -> None:
        try:
            name = TopicPartition(str(question["topic"]), int(question["partition"]))
            log, offset = self._leader_log(engine, name), int(question["offset"])
            transfer = log.transfer(
                offset,
                int(question["max_bytes"]),
                "log_end",
                current_leader_epoch=question["epoch"],
                last_fetched_epoch=question["last_epoch"],
            )
        except OffsetOutOfRangeError as error:
            bounds = {"log_start": error.log_start, "log_end": error.log_end}
            peer.send({"error": type(error).__name__, "message": str(error), **bounds})
            return
        except StorageError as error:
            peer.send({"error": type(error).__name__, "message": str(error)})
            return
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"no question of the protocol: {error!r}") from error
        with transfer:
            if transfer.diverging is None:
                self._note(log, str(question["node"]), offset)
            bounds = {"log_start": transfer.offsets.log_start, "high_watermark": log.offsets().high_watermark}
            peer.send({"bytes": transfer.size_bytes, "diverging": transfer.diverging, **bounds})
            transfer.send(peer.socket)

    def _note(self, log: Log, node: str, offset: int) -> None:
        """Record a follower's fetch, and commit the records that all in-sync replicas now have."""
        offsets = log.offsets()
        with self._moved:
            self._in_sync[log.name].fetched(node, offset, offsets.log_end, offsets.high_watermark, self._clock.now_ms())
        self._commit(log)

    def _commit(self, log: Log) -> None:
        with self._moved:
            offsets = log.offsets()
            end = self._in_sync[log.name].committed(offsets.log_end, self._clock.now_ms(), offsets.high_watermark)
            if end > offsets.high_watermark:
                log.set_high_watermark(end)
            self._moved.notify_all()

    def _expire(self, engine: Engine) -> None:
        """Remove followers that do not catch up from the in-sync replicas, every half ``replica.lag.time.max.ms``."""
        while not self._stopping.wait(self._settings.lag_ms / 2000):
            for name in engine.partitions():
                log = self._leader_log(engine, name)
                with self._moved:
                    self._in_sync[name].expire(log.offsets().log_end, self._clock.now_ms())
                self._commit(log)

    def _leader_log(self, engine: Engine, name: TopicPartition) -> Log:
        log = engine.log(*name)
        with self._moved:
            if not log.is_leader or log.leader_epoch < self._settings.epoch:
                log.lead(self._settings.epoch)
            if name not in self._in_sync:
                settings, end = self._settings, log.offsets().log_end
                self._in_sync[name] = InSyncReplicas(settings.followers, settings.min_in_sync, settings.lag_ms, end)
        return log


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], engine: Engine, leader: Leader) -> None:
        self.engine, self.leader = engine, leader
        super().__init__(address, _Handler)


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with Peer(self.request) as peer:
            self.server.leader.serve(self.server.engine, peer)
