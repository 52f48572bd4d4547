"""The leader's side: answers fetches, and shows readers what enough followers hold.

Source of the rules: apache/kafka ReplicaManager.fetchMessages, Partition.updateFollowerFetchState; the answer to a replica
whose log has parted from the leader's is KIP-595's diverging epoch.
"""

from __future__ import annotations

import socketserver
import threading
from collections import Counter, defaultdict
from typing import Any, Final

from replica.settings import ReplicaSection, address_of
from replica.wire import Peer, PeerError
from stratalog import Engine, Log, TopicPartition
from stratalog.errors import OffsetOutOfRangeError, StorageError
from stratalog.spi import Service

_THREAD: Final = "replica-leader"


class Leader(Service):
    """Leads every log of its engine. Open the engine with ``watermark = "external"``: this moves the high watermark."""

    def __init__(self, settings: ReplicaSection) -> None:
        self._settings, self._address = settings, address_of(settings.listen)
        self._held: dict[TopicPartition, dict[str, int]] = defaultdict(
            dict
        )  # by follower: it has all below; under _lock
        self._lock = threading.Lock()
        self._peers = set[Peer]()  # under _lock
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        """HOST:PORT where it listens, once it is started: the port that was taken for port 0."""
        if self._server is None:
            return self._settings.listen
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def start(self, engine: Engine) -> None:
        """Lead all logs, and listen."""
        for name in engine.partitions():
            self._led(engine, name)
        self._server = _Server(self._address, engine, self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name=_THREAD).start()

    def stop(self, deadline_ns: int) -> None:
        """Hang up on everybody."""
        del deadline_ns  # nothing here waits for anybody
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        with self._lock:
            for peer in self._peers:
                peer.close()
        server.server_close()

    def serve(self, engine: Engine, peer: Peer) -> None:
        """Answer one follower until it hangs up."""
        with self._lock:
            self._peers.add(peer)
        try:
            while question := peer.receive():
                if question.get("ask") == "logs":
                    logs = Counter(name.topic for name in engine.partitions())
                    peer.send({"logs": sorted(logs.items())})
                else:
                    self._answer(engine, peer, question)
        except (OSError, PeerError):
            return  # the follower asks again when it can
        finally:
            with self._lock:
                self._peers.discard(peer)

    def _answer(self, engine: Engine, peer: Peer, asked: dict[str, Any]) -> None:
        try:
            name = TopicPartition(str(asked["topic"]), int(asked["partition"]))
            log, offset = self._led(engine, name), int(asked["offset"])
            found = log.transfer(
                offset,
                int(asked["max_bytes"]),
                "log_end",
                current_leader_epoch=asked["epoch"],
                last_fetched_epoch=asked["last_epoch"],
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
        with found:
            if found.diverging is None:
                self._note(log, str(asked["node"]), offset)
            bounds = {"log_start": found.offsets.log_start, "high_watermark": log.offsets().high_watermark}
            peer.send({"bytes": found.size_bytes, "diverging": found.diverging, **bounds})
            found.send(peer.socket)

    def _note(self, log: Log, node: str, offset: int) -> None:
        """Note the offset of a follower's request: the follower has all records below it."""
        with self._lock:
            held = self._held[log.name]
            held[node] = offset
            if len(held) >= self._settings.acks:
                log.set_high_watermark(sorted(held.values())[-self._settings.acks])

    def _led(self, engine: Engine, name: TopicPartition) -> Log:
        log = engine.log(*name)
        if not log.is_leader or log.leader_epoch < self._settings.epoch:
            log.lead(self._settings.epoch)
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
