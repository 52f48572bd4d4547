"""Keyed message authentication codes (MACs) of manifest roots, and the rules for roots without one.

A layout that encrypts offers an authenticator (``TierLayout.authenticator``). Once a root names a segment of such a
layout, or the topic's settings name the layout, that root and every later root of the log have a MAC. The MAC covers
all other fields of the root, including the hash of the previous root and the hashes of the pages. Without the key it is
therefore impossible to change an entry, or to continue, fork or move a chain of roots.

docs/formats/tier.md describes the bytes. docs/encryption.md describes what each command does without the key.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from stratalog.errors import ConfigError, PluginError, PluginImportError, TamperedManifestError
from stratalog.model.names import TopicPartition
from stratalog.registry.guarded_parts import guard_of
from stratalog.spi.layouts import ManifestAuthenticator, StoredSegment, Unauthenticated
from stratalog.tier.manifest.root import Head, Root, RootMac
from stratalog.tier.manifest.root_codec import content_hash
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.object_keys import manifest_key

_LOGGER: Final = logging.getLogger(__name__)
_CONTEXT: Final = b"stratalog-root-1\0"
_LAYOUT_SETTING: Final = "tier.layout"
EntryCheck = Callable[[StoredSegment], None]


class Authenticity:
    """Makes and checks the MACs of the manifest roots of a tier's logs. Thread-safe."""

    def __init__(self, layouts: LayoutTable) -> None:
        self._layouts = layouts
        self._authenticators: dict[str, ManifestAuthenticator | None] = {}  # by the layout's name
        self._warnings: set[tuple[TopicPartition, str]] = set()  # under _lock
        self._contents: dict[str, tuple[str, str]] = {}  # commit id and content hash of the latest root, by prefix
        self._lock = threading.Lock()

    def check(self, head: Head) -> None:
        """Check the MAC of a root that was read.

        If the layout of the MAC is not installed or has no keys, log a warning, and do not check the MAC. Also log a
        warning if a root has no MAC, although a layout of its segments or of its topic authenticates roots. Each log
        causes only one warning of a kind.

        Raises:
            TamperedManifestError: the MAC is wrong, or the root has none and must have one.
        """
        root = head.root
        key = manifest_key(root.prefix, root.version)
        if root.mac is None:
            self._check_without_mac(root, key)
            return
        authenticator = self._find_authenticator(root.mac.layout)
        if authenticator is None:
            self._warn(
                root.log,
                f"the MAC of the manifest is not checked: layout {root.mac.layout} is not installed or has no keys",
            )
        elif not hmac.compare_digest(_digest(authenticator, root.mac, head.content_sha256, key), root.mac.digest):
            raise TamperedManifestError("the MAC of the root is wrong", key)
        else:
            self._contents[root.prefix] = root.commit_id, head.content_sha256

    def entry_check(self, root: Root) -> EntryCheck | None:
        """Return a function that checks one entry of a root without a MAC; None if the root has a MAC.

        The function raises TamperedManifestError if only a root with a MAC may have the entry. This depends on the
        entry's layout alone.
        """
        if root.mac is not None:
            return None
        required = self._required_layout(root)
        allows_all = required is None or self._policy(required) is not Unauthenticated.WARN

        def check(entry: StoredSegment) -> None:
            authenticator = self._find_authenticator(_layout_name(entry.layout))
            if authenticator is not None and authenticator.is_required(entry.layout):
                raise TamperedManifestError(
                    f"a root without a MAC names a segment of layout {entry.layout}, which requires a MAC",
                    entry.log_key,
                )
            if authenticator is None and not allows_all:
                raise TamperedManifestError(
                    f"a root without a MAC names a segment of layout {entry.layout}, but layout {required} of the log "
                    "authenticates roots",
                    entry.log_key,
                ).advised(
                    "find the program that uploaded the segment; if it is one of your engines, set "
                    f"manifest.unauthenticated of layout {required} to accept, and run stratalog tier rewrap once"
                )

        return check

    def add_mac(
        self, root: Root, before: Root | None, entries: Iterable[StoredSegment], added_entries: Iterable[StoredSegment]
    ) -> Root:
        """Return a new root with its MAC; ``root`` itself if no layout of the log authenticates roots.

        Args:
            root: the root to be committed.
            before: the previous root, which was checked when it was read; None if ``root`` is the first one.
            entries: entries of the previous root; consumed only if that root has no MAC.
            added_entries: entries that the previous root does not have; some of them may be in pages.

        Raises:
            ConfigError: there is no key to authenticate with.
            PluginError: a plugin's authenticator returns another MAC for the previous root than before, or the same MAC
                for two roots.
            TamperedManifestError: the previous root has no MAC, but an entry that only a root with a MAC may have.
        """
        layout = (
            before.mac.layout
            if before is not None and before.mac is not None
            else self._required_layout(root, added_entries)
        )
        if layout is None:
            return root
        authenticator = self._find_authenticator(layout)
        if authenticator is None:
            raise ConfigError(
                f"the manifest of {root.log} is authenticated by layout {layout}: configure its keys to write to the log"
            )
        check = None if before is None else self.entry_check(before)
        if check is not None:
            for entry in entries:
                check(entry)
        mac = RootMac(layout, authenticator.key_id(), "")
        content = content_hash(replace(root, mac=mac))
        digest = _digest(authenticator, mac, content, manifest_key(root.prefix, root.version))
        if before is not None:
            self._check_mac(authenticator, before, digest)
        self._contents[root.prefix] = root.commit_id, content
        return replace(root, mac=replace(mac, digest=digest))

    def is_due(self, root: Root) -> bool:
        """Return True if ``root``, the latest root of a log, must be followed by a root with a MAC of the active key.

        This is necessary if ``root`` has no MAC but must have one, or if its MAC was made with another key.
        """
        if root.mac is None:
            return self._required_layout(root) is not None
        authenticator = self._find_authenticator(root.mac.layout)
        return authenticator is not None and authenticator.key_id() != root.mac.key_id

    # --- inside ------------------------------------------------------------------------------------------------------

    def _check_mac(self, authenticator: ManifestAuthenticator, before: Root, digest: str) -> None:
        """Raise PluginError if a plugin's authenticator changes the MAC of ``before``, or returns ``digest`` for it.

        ``before`` is the previous root, and ``digest`` is the MAC of the new root.
        """
        commit_id, content = self._contents.get(before.prefix, ("", ""))
        if before.mac is None or commit_id != before.commit_id:
            return
        guard = guard_of(authenticator)
        if guard is None or not guard.is_stranger:
            return
        recomputed = _digest(authenticator, before.mac, content, manifest_key(before.prefix, before.version))
        if recomputed != before.mac.digest:
            guard.refuse("mac", "returned another value for the previous manifest root than before")
        if recomputed == digest:
            guard.refuse("mac", "returned the same value for two manifest roots")

    def _check_without_mac(self, root: Root, key: str) -> None:
        required = self._required_layout(root)
        for name in sorted({*self._layouts.names(), *([required] if required else [])}):
            if self._policy(name) is Unauthenticated.REFUSE:
                raise TamperedManifestError(
                    f"the root has no MAC, and the settings of layout {name} refuse such a root", key
                ).advised(
                    f"if no key was in use when the root was written, set manifest.unauthenticated of layout {name} to warn"
                )
        if required is None:
            return
        for entry in root.entries:
            authenticator = self._find_authenticator(_layout_name(entry.layout))
            if authenticator is not None and authenticator.is_required(entry.layout):
                raise TamperedManifestError(f"the root has no MAC, but names a segment of layout {entry.layout}", key)
        self._warn(
            root.log,
            f"the manifest has no MAC, though layout {required} authenticates manifests: an earlier release wrote it; the next "
            "commit, or stratalog tier rewrap, adds a MAC",
        )

    def _required_layout(self, root: Root, added_entries: Iterable[StoredSegment] = ()) -> str | None:
        """Return the name of the layout that must authenticate a root; None if none must.

        It is a layout of the topic's settings, of the root's own entries, or of ``added_entries``.
        """
        names = {_layout_name(label) for label in {entry.layout for entry in (*root.entries, *added_entries)}}
        layout = root.topic.config.get(_LAYOUT_SETTING) if root.topic is not None else None
        if isinstance(layout, str):
            names.add(layout)
        return next((name for name in sorted(names) if self._find_authenticator(name) is not None), None)

    def _policy(self, name: str) -> Unauthenticated:
        authenticator = self._find_authenticator(name)
        return Unauthenticated.ACCEPT if authenticator is None else authenticator.unauthenticated

    def _find_authenticator(self, name: str) -> ManifestAuthenticator | None:
        """Return the authenticator of a layout; None if the layout is not installed, or has no authenticator or key."""
        if name not in self._authenticators:
            self._authenticators[name] = self._open_authenticator(name)
        return self._authenticators[name]

    def _open_authenticator(self, name: str) -> ManifestAuthenticator | None:
        try:
            layout = self._layouts.by_name(name)
        except (ConfigError, PluginError):
            return None
        try:
            return layout.authenticator()
        except (ConfigError, PluginImportError):
            return None

    def _warn(self, log: TopicPartition, text: str) -> None:
        """Log a warning once for each log."""
        with self._lock:
            if (log, text) in self._warnings:
                return
            self._warnings.add((log, text))
        _LOGGER.warning("%s: log=%s", text, log)


def _digest(authenticator: ManifestAuthenticator, mac: RootMac, content_sha256: str, key: str) -> str:
    try:
        return authenticator.mac(mac.key_id, _CONTEXT + bytes.fromhex(content_sha256)).hex()
    except ConfigError as error:
        raise ConfigError(f"the MAC of a manifest root cannot be computed: {error.reason} key={key}") from error


def _layout_name(label: str) -> str:
    return label.partition("@")[0]
