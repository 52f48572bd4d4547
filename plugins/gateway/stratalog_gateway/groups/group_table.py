"""All groups of the gateway, of the classic and of the consumer protocol, in memory and in storage.

Each use of a group first removes the members whose deadlines have passed. For groups without requests, the thread of
``GroupUpkeep`` removes such members each second. The thread also expires committed offsets. Source: apache/kafka GroupMetadataManager.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from stratalog.errors import StorageError
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.groups.classic_group import ClassicGroup, Joined, Synced
from stratalog_gateway.groups.consumer_group import ConsumerGroup
from stratalog_gateway.groups.consumer_records import records_of
from stratalog_gateway.groups.stored_groups import StoredGroups
from stratalog_gateway.node import Node

_LOGGER: Final = logging.getLogger(__name__)
_WARNING_NS: Final = 1_000_000_000
_STEP_MS: Final = 1000
_NS_PER_MS: Final = 1_000_000
_MS_PER_MINUTE: Final = 60_000
MAX_GROUPS: Final = 10_000  # above this number, groups without members are removed from memory


Group: TypeAlias = ClassicGroup | ConsumerGroup


class Presence(Enum):
    """Presence of a group's state in memory: not loaded yet, loaded, or removed."""

    NEW = 0
    LOADED = 1
    REMOVED = 2


@dataclass(slots=True)
class GroupEntry:
    """One group in memory, with its lock. If a group without members changes its protocol, ``group`` is replaced."""

    group: Group
    presence: Presence = Presence.NEW
    lock: threading.Lock = field(default_factory=threading.Lock)


class GroupTable:
    """All groups, by name. Thread-safe; each group has its own lock.

    A group is loaded at its first use. Methods raise StorageError if a group cannot be loaded, or if a change of a
    group of the consumer protocol cannot be stored.

    Attributes:
        storage: storage of the state of groups.
    """

    def __init__(self, node: Node) -> None:
        self._node, self.storage = node, StoredGroups(node)
        self._entries: dict[str, GroupEntry] = {}
        self._lock = threading.Lock()  # protects _entries; never acquired while a group's lock is held
        self._next_warning_ns = 0

    @contextlib.contextmanager
    def lock_entry(self, name: str) -> Iterator[GroupEntry]:
        """Yield the entry of a group under its lock. Load or create the group if it is not in memory.

        Members whose deadlines have passed are removed first. Changes are stored before the lock is released.
        """
        while True:
            with self._lock:
                entry = self._entries.get(name)
                if entry is None:
                    entry = self._entries[name] = GroupEntry(ClassicGroup(name))
            with self._hold(entry) as is_loaded:
                if is_loaded:
                    yield entry
                    return

    @contextlib.contextmanager
    def lock_group(self, name: str) -> Iterator[Group | None]:
        """Yield a group under its lock, like ``lock_entry``. Yield None if the group ``is_new``.

        No other thread changes the group until the context ends.
        """
        with self.lock_entry(name) as entry:
            yield None if entry.group.is_new else entry.group

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all groups that have members, a stored state or committed offsets."""
        with self._lock:
            in_memory = list(self._entries)
        return tuple(sorted({*in_memory, *self.storage.names(), *self._node.engine.groups()}))

    def advance_due(self) -> None:
        """Process passed deadlines in all groups in memory: remove members, and end phases of rebalances."""
        now_ns = self._node.now_ns()
        for entry in self._all():
            with entry.lock:
                is_due = entry.presence is Presence.LOADED and entry.group.next_deadline_ns() <= now_ns
            if is_due:
                with self._hold(entry):
                    pass

    def _all(self) -> list[GroupEntry]:
        with self._lock:
            return list(self._entries.values())

    def delete(self, name: str) -> None:
        """Delete the state and the offsets of a group without members.

        Raises:
            RefusedError: the group has members, or does not exist. As in Kafka, a reserved member id does not prevent the
                deletion: its client gets UNKNOWN_MEMBER_ID, and requests a new id.
            StorageError: the deletion could not be stored.
        """
        with self.lock_entry(name) as entry:
            if entry.group.members:
                raise RefusedError(Code.NON_EMPTY_GROUP)
            is_deleted = self._node.engine.delete_group(name)
            entry.presence = Presence.REMOVED  # not after an error, because stored members may have left
            if not is_deleted and entry.group.is_new:
                raise RefusedError(Code.GROUP_ID_NOT_FOUND)

    def expire(self, name: str, retention_ms: int) -> None:
        """Delete the expired offsets of a group without members. If no offset remains, delete the group's state, too.

        An offset expires ``retention_ms`` after the last member left. If this time is not stored, the offset expires
        ``retention_ms`` after its commit. If the last member has just left, the method only stores the time.
        """
        with self.lock_entry(name) as entry:
            group = entry.group
            if not group.is_unused or (isinstance(group, ClassicGroup) and group.is_empty_and_not_stored):
                return
            if self._node.engine.group_states().expire(name, retention_ms):
                entry.presence = Presence.REMOVED

    @contextlib.contextmanager
    def committing(
        self, name: str, member_id: str, generation: int, instance_id: str | None, *,
        knows_epochs: bool = True, is_transactional: bool = False,
    ) -> Iterator[None]:  # fmt: skip
        """Return a context manager in which the caller appends offsets.

        Raise RefusedError if the commit is not allowed.

        No other thread changes the group until the context ends. A commit of an earlier generation is therefore never
        appended after a commit of a later generation, and the offsets do not expire. ``check_commit`` of the group
        decides if the commit is allowed. As part of a transaction, a client without a member id, a generation and an
        instance id may always commit.

        Args:
            name: name of the group.
            member_id: id of the member; empty if the client has none.
            generation: generation of the member, or its epoch in a group of the consumer protocol.
            instance_id: instance id of a static member; None for a dynamic member.
            knows_epochs: False if the version of the request has no member epochs.
            is_transactional: True if the offsets become valid with the commit of a transaction.
        """
        is_anonymous = not member_id and generation < 0 and instance_id is None
        with self.lock_group(name) as group:
            if group is None:
                if generation >= 0:
                    raise RefusedError(self._missing(name, knows_epochs=knows_epochs))
            elif not (is_transactional and is_anonymous):
                if isinstance(group, ConsumerGroup):
                    group.check_commit(member_id, generation, knows_epochs=knows_epochs)
                else:
                    now_ns = self._node.now_ns()
                    group.check_commit(member_id, generation, instance_id, now_ns, is_transactional=is_transactional)
            yield

    def _missing(self, name: str, *, knows_epochs: bool) -> Code:
        """Return the error code for a commit with a member id in a group that never had members.

        As in Kafka, a group exists if it has committed offsets.
        """
        if self._node.engine.group_offsets(name):
            return Code.UNKNOWN_MEMBER_ID
        return Code.GROUP_ID_NOT_FOUND if knows_epochs else Code.ILLEGAL_GENERATION

    def forget_topic(self, topic: str) -> None:
        """Delete the committed offsets of all groups for a topic durably. Raise StorageError if the deletion fails."""
        engine = self._node.engine
        for name in engine.groups():
            partitions = [partition for partition in engine.group_offsets(name) if partition.topic == topic]
            engine.alter_group_offsets(name, dict.fromkeys(partitions), "durable")

    def close(self) -> None:
        """Answer all waiting requests with COORDINATOR_NOT_AVAILABLE. The members stay in their groups."""
        for entry in self._all():
            with entry.lock:
                for member in entry.group.members.values() if isinstance(entry.group, ClassicGroup) else ():
                    member.end_join(Joined(Code.COORDINATOR_NOT_AVAILABLE, ""))
                    member.end_sync(Synced(Code.COORDINATOR_NOT_AVAILABLE))

    @contextlib.contextmanager
    def _hold(self, entry: GroupEntry) -> Iterator[bool]:
        """Hold the lock of a group, and store the changes at the end. Yield False if the group is no longer in memory.

        At the end, if the group is unused, remove it from memory when it is new, or when too many groups are in memory.
        """
        try:
            with entry.lock:
                if entry.presence is Presence.NEW:
                    self._load(entry)
                is_loaded = entry.presence is Presence.LOADED
                if is_loaded:
                    entry.group.advance(self._node.now_ns())
                try:
                    yield is_loaded
                finally:
                    self._save(entry)
                    is_kept = not entry.group.is_new and len(self._entries) <= MAX_GROUPS
                    if entry.group.is_unused and not is_kept:
                        entry.presence = Presence.REMOVED
        finally:
            if entry.presence is Presence.REMOVED:
                with self._lock:
                    if self._entries.get(entry.group.name) is entry:
                        del self._entries[entry.group.name]

    def _save(self, entry: GroupEntry) -> None:
        """Store the changes of a group of the consumer protocol.

        For a classic group, store that the group has become empty.

        If the change cannot be stored, a group of the consumer protocol is removed from memory, StorageError is raised,
        and the next request loads the stored state. For a classic group, no error is raised, and the next request stores
        the change.
        """
        group = entry.group
        if entry.presence is Presence.REMOVED:
            return
        if isinstance(group, ClassicGroup):
            if group.is_empty_and_not_stored:
                with contextlib.suppress(StorageError):
                    self.storage.store_classic(group, {})
        elif group.is_new:  # no member could join
            entry.presence = Presence.REMOVED
        elif group.is_changed():
            entry.presence = Presence.REMOVED
            self.storage.store_consumer(group, records_of(group))
            entry.presence = Presence.LOADED
            group.mark_saved()

    def _load(self, entry: GroupEntry) -> None:
        try:
            entry.group = self.storage.load(entry.group.name)
            entry.presence = Presence.LOADED
        except BaseException as error:
            entry.presence = Presence.REMOVED  # the next request retries
            now_ns = self._node.now_ns()
            if now_ns >= self._next_warning_ns:  # limited: clients retry several times a second
                self._next_warning_ns = now_ns + _WARNING_NS
                _LOGGER.warning("a group cannot be loaded: %s group=%s", error, entry.group.name)
            raise


class GroupUpkeep:
    """Thread that calls ``step`` each second, from ``start`` to ``stop``."""

    def __init__(self, node: Node, groups: GroupTable) -> None:
        self._node, self._groups = node, groups
        self._next_ns = node.now_ns() + self._interval_ns
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stratalog-gateway-groups", daemon=True)

    @property
    def _interval_ns(self) -> int:
        return self._node.settings.retention_check_ms * _NS_PER_MS

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Stop the thread, and wait up to ``wait_s`` for its end. Idempotent; allowed before ``start``."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def step(self) -> None:
        """Remove members whose deadlines have passed, and expire offsets.

        Offsets expire only once per ``offsets.retention.check.interval.ms``. Errors of the expiration are logged.

        Raises:
            StorageError: the removal of a member could not be stored, or the names of groups cannot be read.
        """
        self._groups.advance_due()
        if self._node.now_ns() < self._next_ns:
            return
        self._next_ns = self._node.now_ns() + self._interval_ns
        retention_ms = self._node.settings.retention_minutes * _MS_PER_MINUTE
        for name in self._groups.names():
            try:
                self._groups.expire(name, retention_ms)
            except StorageError:
                _LOGGER.exception("the offsets of a group could not be expired group=%s", name)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._node.clock.wait(self._stopping, _STEP_MS)
            try:
                self.step()
            except BaseException:  # even a SystemExit of a plugin must not end this thread
                _LOGGER.exception("the deadlines of groups could not be checked")
