"""All groups of the gateway, classic and of the consumer protocol: in memory, and as they are stored.

Each use of a group first removes the members whose deadlines have passed. ``GroupUpkeep`` does the same each second, for
members of groups that get no requests. Source: apache/kafka GroupMetadataManager.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Final

from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.groups.consumer_records import records_of
from stratalog_gateway.groups.group import Group, GroupView, Joined, Presence, Synced
from stratalog_gateway.groups.stored_groups import StoredGroups
from stratalog_gateway.node import Node

_LOGGER: Final = logging.getLogger(__name__)
_WARNING_NS: Final = 1_000_000_000
MAX_GROUPS: Final = 10_000  # if more groups are in memory, groups without members are removed from memory


class GroupTable:
    """All groups, by name. Thread-safe; each group has its own lock.

    A group is loaded at its first use. Methods raise StorageError if a group cannot be loaded, or if a change of a
    group of the consumer protocol cannot be stored.

    Args:
        node: provides the engine, the settings and the clock.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._stored = node, StoredGroups(node)
        self._groups: dict[str, Group] = {}
        self._lock = threading.Lock()  # over _groups; never taken while a group's lock is held
        self._next_warning_ns = 0

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Group]:
        """Yield a group under its lock. Load or create the group if it is not in memory.

        Members whose deadlines have passed are removed first. Changes are stored before the lock is released.
        """
        while True:
            with self._lock:
                group = self._groups.get(name) or self._groups.setdefault(name, Group(name))
            with self._held(group) as is_known:
                if is_known:
                    yield group
                    return

    @contextlib.contextmanager
    def found(self, name: str) -> Iterator[Group | None]:
        """Yield a group as ``opened`` does; yield None if the group ``is_new``."""
        with self.opened(name) as group:
            yield None if group.is_new else group

    def views(self) -> dict[str, GroupView]:
        """Return a snapshot of each group that has or had members, by the name of the group."""
        return {name: view for name in self.names() if (view := self.view(name)) is not None}

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all groups that have members, a stored state or committed offsets."""
        with self._lock:
            known = list(self._groups)
        return tuple(sorted({*known, *self._stored.names(), *self._node.engine.groups()}))

    def advance_due(self) -> None:
        """Remove members, and end phases of rebalances, whose deadline has passed, in all groups in memory."""
        now_ns = self._node.now_ns()
        with self._lock:
            groups = list(self._groups.values())
        for group in groups:
            with group.lock:
                is_due = group.presence is Presence.LOADED and group.next_deadline_ns() <= now_ns
            if is_due:
                with self._held(group):
                    pass

    def view(self, name: str) -> GroupView | None:
        """Return a snapshot of a group; None if the group never had members, or was deleted."""
        with self.unchanged(name) as view:
            return view

    @contextlib.contextmanager
    def unchanged(self, name: str) -> Iterator[GroupView | None]:
        """Yield a snapshot of a group as ``view`` returns it. Until the context ends, the group does not change."""
        with self.found(name) as group:
            if group is not None and group.modern is not None:
                modern = group.modern
                yield GroupView(modern.state, "consumer", "", (), "consumer", frozenset(modern.subscribed()))
            elif group is None or group.generation == 0:
                yield None
            else:
                yield GroupView(
                    str(group.state), group.protocol_type or "", group.protocol or "", tuple(group.members.values())
                )

    def delete(self, name: str) -> None:
        """Delete the state and the offsets of a group without members.

        Raises:
            RefusedError: the group has members, or a client has got a member id to join with; or neither a state nor
                offsets of the group are stored.
            StorageError: the deletion could not be stored.
        """
        with self.opened(name) as group:
            if not group.is_unused:
                raise RefusedError(Code.NON_EMPTY_GROUP)
            is_deleted = self._node.engine.delete_group(name)
            group.presence = Presence.REMOVED  # not after an error: stored members may have left
            if not is_deleted:
                raise RefusedError(Code.GROUP_ID_NOT_FOUND)

    def expire(self, name: str, retention_ms: int) -> None:
        """Delete the expired offsets of a group without members. If no offset remains, delete the group's state, too.

        An offset expires ``retention_ms`` after the last member left, or after its commit if that time is not stored. If
        the last member has just left, the method only stores this time.
        """
        with self.opened(name) as group:
            if not group.is_unused or group.is_empty_and_not_stored:
                return
            if self._node.engine.group_states().expire(name, retention_ms):
                group.presence = Presence.REMOVED

    def forget_topic(self, topic: str) -> None:
        """Delete the committed offsets of all groups for a topic, durably; raise StorageError if this is not possible."""
        engine = self._node.engine
        for name in engine.groups():
            gone = [found for found in engine.group_offsets(name) if found.topic == topic]
            engine.alter_group_offsets(name, dict.fromkeys(gone), "durable")

    def close(self) -> None:
        """Answer all waiting requests with COORDINATOR_NOT_AVAILABLE. The members stay in their groups."""
        with self._lock:
            groups = list(self._groups.values())
        for group in groups:
            with group.lock:
                for member in group.members.values():
                    member.end_join(Joined(Code.COORDINATOR_NOT_AVAILABLE, ""))
                    member.end_sync(Synced(Code.COORDINATOR_NOT_AVAILABLE))

    @contextlib.contextmanager
    def _held(self, group: Group) -> Iterator[bool]:
        """Hold the lock of a group, and store the changes at the end. Yield False if the group is no longer in memory.

        At the end, remove an unused group from memory if the group is new, or if too many groups are in memory.
        """
        try:
            with group.lock:
                if group.presence is Presence.NEW:
                    self._load(group)
                is_known = group.presence is Presence.LOADED
                if is_known:
                    group.advance(self._node.now_ns())
                try:
                    yield is_known
                finally:
                    self._save(group)
                    is_kept = not group.is_new and len(self._groups) <= MAX_GROUPS
                    if group.is_unused and not is_kept:
                        group.presence = Presence.REMOVED
        finally:
            if group.presence is Presence.REMOVED:
                with self._lock:
                    if self._groups.get(group.name) is group:
                        del self._groups[group.name]

    def _save(self, group: Group) -> None:
        """Store the changes of a group of the consumer protocol, or that a classic group has become empty.

        If a change of a group of the consumer protocol cannot be stored, the group is removed from memory, and the next
        request loads the stored state. For a classic group, the next request retries.

        Raises:
            StorageError: a change of a group of the consumer protocol could not be stored.
        """
        if group.presence is Presence.REMOVED:
            return
        if group.modern is None:
            if group.is_empty_and_not_stored:
                self._stored.store(group, {})
        elif not group.modern.epoch:  # no member could join
            group.presence = Presence.REMOVED
        elif group.modern.is_changed():
            group.presence = Presence.REMOVED
            self._stored.store_modern(group.modern, records_of(group.modern))
            group.presence = Presence.LOADED
            group.modern.saved()

    def _load(self, group: Group) -> None:
        try:
            self._stored.load(group)
            group.presence = Presence.LOADED
        except BaseException as error:
            group.presence = Presence.REMOVED  # the next request retries
            now_ns = self._node.now_ns()
            if now_ns >= self._next_warning_ns:  # clients only get a code, and retry several times a second
                self._next_warning_ns = now_ns + _WARNING_NS
                _LOGGER.warning("a group cannot be loaded: %s group=%s", error, group.name)
            raise
