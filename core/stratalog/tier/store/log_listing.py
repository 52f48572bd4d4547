"""Listing of the logs of a tier by the keys of their objects, with few requests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from stratalog.model.names import TopicId, TopicPartition, unknown_topic
from stratalog.tier.store.object_keys import (
    after_log_prefix,
    log_prefix,
    manifest_key,
    manifest_prefix,
    parse_log_prefix,
    parse_manifest_key,
)
from stratalog.tier.store.store import LIST_LIMIT, TierStore


class TierLogName(NamedTuple):
    """The name of a log in a tier. A topic that was deleted and created again has its old name and a new id."""

    log: TopicPartition
    topic_id: TopicId


def list_logs(
    store: TierStore, start: str = "", known_versions: Mapping[TierLogName, int] | None = None
) -> Iterator[tuple[TierLogName, int | None]]:
    """Yield the logs whose keys begin with ``start``, each with the version of one of its roots; None if it has no root.

    With ``known_versions``, it is the newest root. Without them, it may be an older root, because the listing does not
    read all keys of a log.
    """
    prefix = after = ""
    name: TierLogName | None = None
    newest: int | None = None
    while True:
        page = store.list(start, after=after)
        for info in page:
            if not prefix or not info.key.startswith(prefix):
                if name is not None:
                    yield name, newest
                name, newest = _log_of(info.key), None
                prefix = log_prefix(*name) if name is not None else ""
            version = parse_manifest_key(prefix, info.key) if name is not None else None
            newest = newest if version is None else version  # the versions ascend with the keys
        if len(page) < LIST_LIMIT:
            break
        after = page[-1].key
        if name is not None and (known_versions is None or not after.startswith(manifest_prefix(prefix))):
            after = after_log_prefix(prefix)
        elif name is not None and known_versions is not None:
            after = max(after, manifest_key(prefix, max(known_versions.get(name, 0) - 1, 0)))
    if name is not None:
        yield name, newest


def select_topics(
    names: Sequence[TierLogName], topics: Collection[str] | None, uri: str, further_names: Sequence[TierLogName] = ()
) -> list[TierLogName]:
    """Return the ``names`` whose topic is in ``topics``; None means all topics.

    Args:
        names: logs to select from.
        topics: names of topics.
        uri: URI of the tier, for the error text.
        further_names: other logs of the tier. A topic that has only such logs is not an error.

    Raises:
        UnknownTopicError: no log in ``names`` and ``further_names`` has the topic.
    """
    if topics is None:
        return list(names)
    known_topics = {name.log.topic for name in (*names, *further_names)}
    for topic in sorted(set(topics) - known_topics):
        raise unknown_topic(topic, known_topics, uri)
    return [name for name in names if name.log.topic in topics]


def _log_of(key: str) -> TierLogName | None:
    """Return the log that ``key`` belongs to; None if ``key`` is not a key of a log of stratalog."""
    parsed_prefix = parse_log_prefix(key)
    if parsed_prefix is None or not key.startswith(log_prefix(*parsed_prefix)):
        return None
    return TierLogName(*parsed_prefix)
