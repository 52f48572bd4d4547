"""State that all requests share: the engine, the settings, the security files, and caches of topics and logs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from stratalog import Engine, Log, LogOffsets, TopicInfo, TopicPartition, TopicSetting
from stratalog.errors import StorageError, UnknownTopicError
from stratalog.spi import Clock
from stratalog_gateway.error_codes import UNKNOWN_TOPIC, Code
from stratalog_gateway.security.acls import AclFile
from stratalog_gateway.security.quotas import Quotas
from stratalog_gateway.security.users import load_users, save_users
from stratalog_gateway.security.watched_files import EditedFile
from stratalog_gateway.settings import GatewaySection

OFFSETS_TOPIC: Final = "__consumer_offsets"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})
_CLUSTER_ID: Final = "stratalog"
_NS_PER_MS: Final = 1_000_000

T = TypeVar("T")


class UnknownTopicIdError(UnknownTopicError):
    """The topic with the id in the request was deleted."""

    kafka_code = Code.UNKNOWN_TOPIC_ID


class LogSource(Protocol):
    """Source of the topics and logs that clients see: an engine, or a reader."""

    @property
    def topic_changes(self) -> int:
        """Number that increases with each change of a topic."""

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics, by name."""

    def log(self, topic: str, partition: int) -> Log:
        """Return the log of a partition.

        Raises:
            UnknownTopicError: the partition does not exist.
            StorageError: the log cannot be opened.
        """

    def topic_settings(self, name: str) -> dict[str, TopicSetting]:
        """Return the settings of a topic by key; raise UnknownTopicError if the topic does not exist."""

    def log_directories(self) -> Mapping[str, Iterable[TopicPartition]]:
        """Return the paths of the directories in service, each with the partitions whose logs are in it."""

    def offline_log_directories(self) -> tuple[str, ...]:
        """Return the paths of the directories that are out of service."""


class Node:
    """The only broker of the cluster that clients see. Thread-safe.

    Args:
        engine: stores groups and transactions, and creates and changes topics. The caller closes the engine.
        source: topics and logs that clients see; None means the engine.

    Attributes:
        cluster_id: the cluster id that clients see.
        quotas: quotas of bytes and of new connections.
        quota_file: the file of quotas; None if ``quotas.file`` is not set.
        acls: the file of ACLs; None if ``acls.file`` is not set.
        users: the file of users; None if ``users.file`` is not set.
        changing_topics: lock that a handler holds while it creates, deletes or configures a topic.
    """

    def __init__(self, engine: Engine, settings: GatewaySection, clock: Clock, source: LogSource | None = None) -> None:
        self.engine, self.settings, self.clock = engine, settings, clock
        self.source: LogSource = engine if source is None else source
        self.cluster_id = settings.cluster_id or engine.cluster_id or _CLUSTER_ID
        self.quotas = Quotas(settings.quotas_file, clock)
        self.quota_file = self.quotas.file
        self.acls = AclFile(settings.acls_file, clock) if settings.acls_file else None
        users_file = settings.users_file
        self.users = EditedFile(users_file, load_users, save_users, clock) if users_file else None
        self.changing_topics = threading.Lock()
        self._lock = threading.Lock()
        self._caches = _Caches(self.source)
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """True after ``close``. Waiting Fetch and group requests check this property at least once a second."""
        return self._closed

    def now_ns(self) -> int:
        """Return the monotonic time (ns)."""
        return self.clock.monotonic_ns()

    def wait(self, event: threading.Event, until_ns: int) -> None:
        """Wait until an event is set, at most until the monotonic time ``until_ns``."""
        remaining_ms = (until_ns - self.now_ns() + _NS_PER_MS - 1) // _NS_PER_MS
        if remaining_ms > 0:
            self.clock.wait(event, remaining_ms)

    def log(self, topic: str, partition: int, topic_id: bytes | None = None) -> Log:
        """Return the log of a partition, from a cache if possible. Raises the errors of ``LogSource.log``.

        ``topic_id`` is the id of the topic if the client has sent it. Raise UnknownTopicIdError if ``topic`` was
        deleted and created again with another id after its name was looked up.
        """
        return self._current_caches().log(topic, partition, topic_id)

    def has_log(self, topic: str, partition: int) -> bool:
        """Return True if the partition exists, even if its log cannot be opened."""
        try:
            self.log(topic, partition)
        except UnknownTopicError:
            return False
        except StorageError:
            return True
        return True

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics, by name."""
        return self._current_caches().topics()

    def topic_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id of 16 bytes; None if no topic has this id."""
        return self._current_caches().names().get(topic_id)

    def watch(self, topic: str, partition: int) -> Watch:
        """Return the ``Watch`` that wakes the fetches of a log. Raises the errors of ``LogSource.log``."""
        caches = self._current_caches()
        log = caches.log(topic, partition)
        with self._lock:
            watch = caches.watches.get((topic, partition))
            if watch is None:
                watch = caches.watches[topic, partition] = Watch(log)
                if caches is not self._caches:  # a topic has changed, so the watches of ``caches`` are already closed
                    watch.close()
        return watch

    def wake_fetches(self, topic: str, partition: int) -> None:
        """Wake the fetches that wait for a log; answer one of them on the calling thread.

        Call this method after an append: the log itself would wake them later.
        """
        watch = self._caches.watches.get((topic, partition))
        if watch is not None:
            watch.wake(may_answer=True)

    def close(self) -> None:
        """Wake waiting fetches, unsubscribe from all logs, and set ``is_closed``. Idempotent."""
        with self._lock:
            self._closed = True
            caches = self._caches
        caches.close()

    def _current_caches(self) -> _Caches:
        """Return the caches. If a topic has changed, return new, empty caches."""
        caches = self._caches
        if caches.version == self.source.topic_changes:
            return caches
        with self._lock:
            if self._caches is caches:
                self._caches = _Caches(self.source)
            replaced, current = caches, self._caches
        replaced.close()
        return current


class _Caches:
    """Caches that are valid until the next change of a topic."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self.version = source.topic_changes  # read first, so that a later change of a topic makes the caches stale
        self._logs: dict[tuple[str | bytes, int], Log] = {}  # by topic name, or by topic id if clients send ids
        self.watches: dict[tuple[str, int], Watch] = {}
        self._topics: dict[str, TopicInfo] | None = None
        self._names: dict[bytes, str] | None = None

    def log(self, topic: str, partition: int, topic_id: bytes | None = None) -> Log:
        key = topic if topic_id is None else topic_id, partition
        log = self._logs.get(key)
        if log is None:
            if topic not in self.topics() and not self._source.offline_log_directories():
                raise UnknownTopicError(UNKNOWN_TOPIC)  # the source would search all topics for similar names
            log = self._source.log(topic, partition)
            if topic_id is not None and log.topic_id is not None and log.topic_id.as_uuid.bytes != topic_id:
                raise UnknownTopicIdError(f"the topic {topic} has another id now: {log.topic_id}")
            self._logs[key] = log
        return log

    def topics(self) -> dict[str, TopicInfo]:
        topics = self._topics
        if topics is None:
            topics = self._topics = self._source.topics()
        return topics

    def names(self) -> dict[bytes, str]:
        names = self._names
        if names is None:
            names = self._names = {
                info.topic_id.as_uuid.bytes: name for name, info in self.topics().items() if info.topic_id is not None
            }
        return names

    def close(self) -> None:
        for watch in list(self.watches.values()):
            watch.close()


class WaitingFetch(Generic[T]):
    """A Fetch request that waits for records. The thread that appends them may answer it. Thread-safe.

    The wake-up of the client's thread, and its wait for Python's global lock, would take as long as the answer.

    Args:
        answer_now: answers the request on any thread, and returns the response that the client's thread has to send;
            returns None if there are not enough records.

    Attributes:
        event: set when the client's thread should continue.
    """

    def __init__(self, answer_now: Callable[[], T | None]) -> None:
        self.event, self._answer_now, self._lock = threading.Event(), answer_now, threading.Lock()
        self._is_over = False  # under _lock, as are all below
        self._response: T | None = None
        self._error: BaseException | None = None

    def wake(self) -> None:
        """Wake the client's thread."""
        self.event.set()

    def answer(self) -> None:
        """Answer the request if that is possible, and wake the client's thread."""
        if self._lock.acquire(blocking=False):  # else another thread answers the request, or its wait has ended
            try:
                if not self._is_over:
                    self._response = self._answer_now()
            except BaseException as error:  # noqa: BLE001 - the client's thread raises it
                self._error = error
            finally:
                self._is_over = self._is_over or self._response is not None or self._error is not None
                self._lock.release()
        self.event.set()

    def end(self) -> T | None:
        """End the wait. Return the response, or raise its error, if another thread has answered; else return None."""
        with self._lock:
            self._is_over = True
            if self._error is not None:
                raise self._error
            return self._response


class Watch:
    """Waiting fetches of one log. A change of the log's bounds (``LogOffsets``) wakes them. Thread-safe."""

    def __init__(self, log: Log) -> None:
        self._log, self._lock = log, threading.Lock()
        self._waiting: set[WaitingFetch[Any]] = set()
        self._closed = False
        self._unsubscribe = log.subscribe(lambda _: self.wake())

    def add(self, fetch: WaitingFetch[Any], bounds: LogOffsets) -> bool:
        """Register a fetch to be woken at the next change of the log's bounds. Return True if the caller may wait.

        Return False if the bounds already differ from ``bounds``, or if the watch is closed. Raise StorageError if the
        bounds cannot be read. Call ``leave`` in all cases, even after False or an error.
        """
        with self._lock:
            if self._closed:
                return False
            self._waiting.add(fetch)
        return self._log.offsets() == bounds

    def leave(self, fetch: WaitingFetch[Any]) -> None:
        """Remove a fetch. Do nothing if it is not registered."""
        with self._lock:
            self._waiting.discard(fetch)

    def wake(self, *, may_answer: bool = False) -> None:
        """Wake and remove all registered fetches. With ``may_answer``, answer one of them on the calling thread."""
        if not self._waiting:  # no race: a fetch that registers itself now reads the bounds afterwards
            return
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        answered = waiting.pop() if may_answer and waiting else None
        for fetch in waiting:
            fetch.wake()
        if answered is not None:
            answered.answer()

    def close(self) -> None:
        """Wake and remove all registered fetches, and unsubscribe from the log."""
        with self._lock:
            self._closed = True
        self._unsubscribe()
        self.wake()
