"""Table of an engine's topics and their settings: one JSON file in the first log directory.

Unlike stratalog, Kafka stores topics in its cluster metadata. A broker ignores unknown files in a log directory, but
refuses unknown folders; therefore the table is a file.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from stratalog.config.keys import Section
from stratalog.config.topic import TopicConfig, is_of_plugin
from stratalog.errors import ConfigError, CorruptCheckpointError
from stratalog.model.names import TOPICS_FILE, TopicId, check_topic
from stratalog.model.notes import readable
from stratalog.spi.segment_store import SegmentStore

FORMAT_VERSION: Final = 1
_LOGGER: Final = logging.getLogger(__name__)
KEEP_EVERYTHING: Final[Mapping[str, object]] = {"retention.ms": -1}


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """Stored data of a topic: its id, and the topic's own settings, without defaults."""

    topic_id: TopicId
    config: Mapping[str, object]


class TopicSetting(NamedTuple):
    """One setting of a topic.

    Attributes:
        value: the effective value, in the form that ``create_topic`` accepts.
        default: the built-in value, which applies if neither the topic nor ``[topic_defaults]`` sets one. For
            ``remote.storage.enable``, it is True if the engine has a tier.
        source: ``topic`` if the topic sets the value, ``engine`` if ``[topic_defaults]`` sets it, otherwise
            ``default``. It is also ``topic`` for the unlimited retention of a topic that is not stored.
        doc: description of the setting.
    """

    value: object
    default: object
    source: str
    doc: str


class TopicTable:
    """The topics that an engine stores in its first log directory, and the effective settings of all topics.

    Args:
        store: the first log directory; not closed here.
        defaults: the table ``[topic_defaults]`` of the engine's settings.
        has_tier: True if the engine has a tier: ``remote.storage.enable`` is then on by default.
        sections: default values of the plugins' topic settings, by provider name.
        entries: the topics, if the directory with the file cannot be read; None reads the file.

    Raises:
        CorruptCheckpointError: the file is malformed, or was written by a later release.
        LogDirError: the file cannot be read.
        ConfigError: ``defaults`` has an unknown or wrong setting.
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
        self._store, self._given_defaults, self._has_tier = store, frozenset(defaults), has_tier
        default_settings = {"remote.storage.enable": has_tier, **defaults}
        built_in = TopicConfig(sections=dict(sections or {}))
        self.defaults = built_in.replaced(default_settings, "topic_defaults")
        self._unstored_config = built_in.replaced({**KEEP_EVERYTHING, **default_settings}, "topic_defaults")
        self._configs: dict[str, TopicConfig] = {}
        if entries is None:
            entries = parse_topics(store.read_small(TOPICS_FILE), store.path(TOPICS_FILE))
        self._entries = dict(entries)
        for topic in self._entries:
            unknown = self.unknown(topic)
            if unknown:
                _LOGGER.warning(
                    "topic %s has settings that no installed plugin knows; they are kept without effect: %s",
                    topic,
                    ", ".join(sorted(unknown)),
                )

    @property
    def entries(self) -> Mapping[str, TopicEntry]:
        """All stored topics, by name."""
        return self._entries

    def entry(self, topic: str) -> TopicEntry | None:
        """Return the entry of a topic; None for a topic that is not stored, such as a topic of a Kafka broker."""
        return self._entries.get(topic)

    def topic_id(self, topic: str) -> TopicId | None:
        """Return the stored id of a topic; None for a topic that is not stored, such as a topic of a Kafka broker."""
        entry = self.entry(topic)
        return entry.topic_id if entry is not None else None

    def config(self, topic: str) -> TopicConfig:
        """Return the effective settings of a topic: its stored settings, and the defaults for all others.

        A topic that is not stored, such as a topic of a Kafka broker, has unlimited retention unless
        ``[topic_defaults]`` limits it. If stored settings contradict the defaults, the stricter of two limits applies.
        """
        entry = self._entries.get(topic)
        if entry is None:
            return self._unstored_config
        config = self._configs.get(topic)
        if config is None:
            config = self._configs[topic] = self._stored_config(topic, entry)
        return config

    def _stored_config(self, topic: str, entry: TopicEntry) -> TopicConfig:
        """Return the effective settings of an entry, without settings that plugins refuse (``TopicConfig.refusal``)."""
        known_settings, source = self.defaults.recognised(entry.config), f"topic {topic}"
        try:
            return self.defaults.merged(known_settings, source)
        except ConfigError as error:
            core_settings = {name: value for name, value in known_settings.items() if not is_of_plugin(name)}
            if len(core_settings) == len(known_settings):
                raise
            _LOGGER.warning("a plugin refuses settings of topic %s, which no policy cleans: %s", topic, error)
            return dataclasses.replace(self.defaults.merged(core_settings, source), refusal=str(error))

    def own_settings(self, topic: str) -> dict[str, object]:
        """Return the stored settings of a topic, which override the defaults.

        For a topic that is not stored, return ``{"retention.ms": -1}``, which means unlimited retention, or {} if
        ``[topic_defaults]`` sets ``retention.ms``.
        """
        entry = self._entries.get(topic)
        if entry is not None:
            return dict(entry.config)
        return {name: value for name, value in KEEP_EVERYTHING.items() if name not in self._given_defaults}

    def settings(self, topic: str) -> dict[str, TopicSetting]:
        """Return all settings of a topic that stratalog or an installed plugin knows, by name."""
        values, own_settings = self.config(topic).to_mapping(), self.own_settings(topic)
        descriptions = {**TopicConfig.keys()}
        for section in self.defaults.sections.values():
            descriptions |= section.keys()
        sections = {name: type(section)() for name, section in self.defaults.sections.items()}
        built_in = TopicConfig(remote_storage_enable=self._has_tier, sections=sections).to_mapping()
        result = {}
        for name, value in values.items():
            source = "topic" if name in own_settings else "engine" if name in self._given_defaults else "default"
            result[name] = TopicSetting(value, built_in[name], source, descriptions[name].doc)
        return result

    def unknown(self, topic: str) -> dict[str, object]:
        """Return the settings in a topic's entry whose names neither stratalog nor an installed plugin knows."""
        own_settings = self.own_settings(topic)
        return {
            name: value for name, value in own_settings.items() if name not in self.defaults.recognised(own_settings)
        }

    def check_settings(self, config: Mapping[str, object], source: str) -> TopicConfig:
        """Return ``config`` merged with the defaults; raise ConfigError if it has an unknown or wrong setting.

        ``source`` names the origin of ``config`` in error texts.
        """
        return self.defaults.replaced(config, source)

    def put(self, topic: str, entry: TopicEntry | None) -> None:
        """Store a topic, or remove it if ``entry`` is None; see ``put_all``."""
        self.put_all({topic: entry})

    def put_all(self, changed: Mapping[str, TopicEntry | None]) -> None:
        """Store several topics, or remove those whose entry is None; durable on return.

        A failed call changes nothing. It raises LogDirError if the file cannot be written, or StorageError if an entry
        cannot be parsed.
        """
        merged = {**self._entries, **changed}
        entries = {name: entry for name, entry in merged.items() if entry is not None}
        # Unchanged entries were read from the file, or were parsed when they were added.
        new = {name: entry for name, entry in changed.items() if entry is not None}
        readable(format_topics(new), parse_topics, self._store.path(TOPICS_FILE))
        self._store.replace_small(TOPICS_FILE, format_topics(entries))
        self._entries = entries
        for topic in changed:
            self._configs.pop(topic, None)


def format_topics(entries: Mapping[str, TopicEntry]) -> bytes:
    """Return the bytes of a topics file with these entries; ``parse_topics`` reads them."""
    topics = {
        name: {"id": str(entry.topic_id), "config": dict(entry.config)} for name, entry in sorted(entries.items())
    }
    return json.dumps({"version": FORMAT_VERSION, "topics": topics}, indent=1).encode() + b"\n"


def parse_topics(data: bytes | None, file: str) -> dict[str, TopicEntry]:
    """Return the entries of a topics file by topic; empty if ``data`` is None, because there is no file.

    Raises:
        CorruptCheckpointError: the file is malformed, or was written by a later release.
    """
    if data is None:
        return {}
    entries, built_in = {}, TopicConfig()
    try:
        body = json.loads(data)
        version = body["version"]
        for name, stored_topic in body["topics"].items():
            built_in.merged(built_in.recognised(stored_topic["config"]), file)
            entries[check_topic(name)] = TopicEntry(TopicId(stored_topic["id"]), stored_topic["config"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        position = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise CorruptCheckpointError(f"the topics file is malformed: {error}", file, position).advised(
            "restore the file from a copy, or delete it: topics without stored settings keep all their records"
        ) from error
    if version != FORMAT_VERSION:
        raise CorruptCheckpointError(f"topics file version {version!r} is not supported by this release", file).advised(
            "install the release that wrote the file"
        )
    return entries
