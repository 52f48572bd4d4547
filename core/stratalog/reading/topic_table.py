"""The topics of an engine and their settings: one plain JSON file in the first log directory.

Kafka keeps these in its cluster metadata. It ignores plain files in a log directory and refuses unknown folders.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.config.keys import Section
from stratalog.config.topic import TopicConfig
from stratalog.errors import ConfigError, CorruptCheckpointError
from stratalog.model.names import TOPICS_FILE, TopicId, check_topic
from stratalog.model.notes import readable
from stratalog.spi.segment_store import SegmentStore

FORMAT_VERSION: Final = 1
_LOGGER: Final = logging.getLogger(__name__)
KEEP_EVERYTHING: Final[Mapping[str, object]] = {"retention.ms": -1}


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """What is stored of a topic: its id and the settings that somebody chose."""

    topic_id: TopicId
    config: Mapping[str, object]


class TopicTable:
    """Stored topics, and the settings of any topic.

    Args:
        store: the first log directory; borrowed.
        defaults: ``[topic_defaults]``.
        sections: the plugins' topic settings as they are by default, by provider name.
        has_tier: whether the engine has a tier: ``remote.storage.enable`` is then on unless somebody says otherwise.
        entries: the topics, if the directory with the file is out of reach; None reads the file.
    """

    def __init__(
        self,
        store: SegmentStore,
        defaults: Mapping[str, object],
        *,
        has_tier: bool,
        sections: Mapping[str, Section] | None = None,
        entries: Mapping[str, TopicEntry] | None = None,
    ) -> None:
        self._store, self._given = store, frozenset(defaults)
        chosen = {"remote.storage.enable": has_tier, **defaults}
        plain = TopicConfig(sections=dict(sections or {}))
        self.defaults = plain.replaced(chosen, "topic_defaults")
        self._found = plain.replaced({**KEEP_EVERYTHING, **chosen}, "topic_defaults")
        self._configs: dict[str, TopicConfig] = {}
        if entries is None:
            entries = parse_topics(store.read_small(TOPICS_FILE), store.path(TOPICS_FILE))
        self._entries = dict(entries)
        for topic in self._entries:
            unknown = self.unknown(topic)
            if unknown:
                _LOGGER.warning(
                    "topic %s has settings that no installed plugin knows: they are kept, and have no effect: %s",
                    topic,
                    ", ".join(sorted(unknown)),
                )

    @property
    def entries(self) -> Mapping[str, TopicEntry]:
        """All that is stored, by topic."""
        return self._entries

    def entry(self, topic: str) -> TopicEntry | None:
        """What is stored of a topic, None for one that was found in a directory and never configured here."""
        return self._entries.get(topic)

    def topic_id(self, topic: str) -> TopicId | None:
        """The id under which a topic was created, None for one that was found in a directory."""
        entry = self.entry(topic)
        return entry.topic_id if entry is not None else None

    def config(self, topic: str) -> TopicConfig:
        """The settings of a topic: its own over the defaults.

        A topic that was found without settings keeps everything unless the defaults say how long: what its owner had
        configured is not known here, and deleting is not a guess to make. What contradicts defaults that have changed since is
        taken as it is: the stricter of two limits holds.
        """
        entry = self._entries.get(topic)
        if entry is None:
            return self._found
        found = self._configs.get(topic)
        if found is None:
            kept = self.defaults.recognised(entry.config)  # a plugin that is missing keeps nobody from reading
            found = self._configs[topic] = self.defaults.merged(kept, f"topic {topic}")
        return found

    def chosen(self, topic: str) -> dict[str, object]:
        """The settings that go over the defaults: chosen by somebody, or for a topic that was found, keeping everything."""
        entry = self._entries.get(topic)
        if entry is not None:
            return dict(entry.config)
        return {name: value for name, value in KEEP_EVERYTHING.items() if name not in self._given}

    def unknown(self, topic: str) -> dict[str, object]:
        """The stored settings of a topic that nothing installed knows, such as those of a plugin that was removed."""
        chosen = self.chosen(topic)
        return {name: value for name, value in chosen.items() if name not in self.defaults.recognised(chosen)}

    def checked(self, config: Mapping[str, object], source: str) -> TopicConfig:
        """Settings over the defaults; errors as ``Section.from_mapping``."""
        return self.defaults.replaced(config, source)

    def put(self, topic: str, entry: TopicEntry | None) -> None:
        """Store a topic, or forget it; durable on return. What cannot be stored changes nothing."""
        self.put_all({topic: entry})

    def put_all(self, changed: Mapping[str, TopicEntry | None]) -> None:
        """The same of several topics, all at once."""
        merged = {**self._entries, **changed}
        entries = {name: entry for name, entry in merged.items() if entry is not None}
        # What is not changed was read from the file, or was parsed when it was added.
        new = {name: entry for name, entry in changed.items() if entry is not None}
        readable(format_topics(new), parse_topics, self._store.path(TOPICS_FILE))
        self._store.replace_small(TOPICS_FILE, format_topics(entries))
        self._entries = entries
        for topic in changed:
            self._configs.pop(topic, None)


def format_topics(entries: Mapping[str, TopicEntry]) -> bytes:
    """Return the bytes of a topics file."""
    topics = {
        name: {"id": str(found.topic_id), "config": dict(found.config)} for name, found in sorted(entries.items())
    }
    return json.dumps({"version": FORMAT_VERSION, "topics": topics}, indent=1).encode() + b"\n"


def parse_topics(data: bytes | None, file: str) -> dict[str, TopicEntry]:
    """The topics that a topics file stores; none if there is no file.

    Raises:
        CorruptCheckpointError: it is malformed, or of a later release.
    """
    if data is None:
        return {}
    entries, plain = {}, TopicConfig()
    try:
        body = json.loads(data)
        version = body["version"]
        for name, found in body["topics"].items():
            plain.merged(plain.recognised(found["config"]), file)
            entries[check_topic(name)] = TopicEntry(TopicId(found["id"]), found["config"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        position = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise CorruptCheckpointError(f"the topics file is malformed: {error}", file, position) from error
    if version != FORMAT_VERSION:
        raise CorruptCheckpointError(f"topics file version {version!r} is not supported by this release", file)
    return entries
