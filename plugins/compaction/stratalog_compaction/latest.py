"""Compaction by version: of each key the record with the greatest timestamp, or the greatest number in a header, stays.

Offsets say in which order a broker got the records, not in which order they were made: with several writers, or one that
sends anew, the last record of a key may be an old one. The wish is that of KIP-280.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar, Final

from stratalog.spi import (
    Action,
    CleanupPolicy,
    ConfigError,
    Fields,
    LogSummary,
    RecordColumns,
    RecordFilter,
    RewriteJob,
    TopicConfig,
)
from stratalog_compaction.compact import CompactPolicy
from stratalog_compaction.header_numbers import header_numbers
from stratalog_compaction.sections import HeaderSection
from stratalog_compaction.versions import SLOT_BYTES, open_version_map

BY_TIMESTAMP: Final = "latest_by_timestamp"
BY_HEADER: Final = "latest_by_header"
_ONE_OF: Final = ("compact", BY_TIMESTAMP, BY_HEADER)
_OLDEST: Final = -(1 << 63)
_SECRET_BITS: Final = 128


class LatestByTimestampPolicy(CleanupPolicy):
    """``cleanup.policy=latest_by_timestamp``: due as ``compact`` is, and by the same settings.

    Args:
        chance: where the secrets of the maps come from.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._compact = chance, CompactPolicy(chance)

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """As ``compact``.

        Raises:
            ConfigError: another policy keeps one record a key too: each would drop what the other one keeps.
        """
        rivals = [name for name in config.cleanup_policy if name in _ONE_OF]
        if len(rivals) > 1:
            raise ConfigError(f"cleanup.policy of {log.log} may name one of {', '.join(_ONE_OF)}, not {len(rivals)}")
        return self._compact.plan(log, config, now_ms)

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """As ``compact``."""
        return self._compact.local_plan(log, config, now_ms)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """A filter that goes by timestamps."""
        return GreatestWins(job, self._secret())

    def _secret(self) -> bytes:
        return self._chance.getrandbits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "little")


class LatestByHeaderPolicy(LatestByTimestampPolicy):
    """``cleanup.policy=latest_by_header``: a record without a version is older than all that have one."""

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """A filter that goes by the header that the topic's settings name."""
        section = job.config.sections.get(BY_HEADER)
        return GreatestHeaderWins(
            job, self._secret(), section if isinstance(section, HeaderSection) else HeaderSection()
        )


class GreatestWins(RecordFilter):
    """Drops a record if one with its key has a greater version; among equal ones the later wins. Also those without key.

    The map knows the dirty records when judging begins, and takes in the others on the way: these come first, so that a
    dirty record older than what was kept before is dropped though it is the last one. No record is dropped but for one that
    stays or stands further on.
    """

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY | Fields.VALUE | Fields.TIMESTAMP

    def __init__(self, job: RewriteJob, secret: bytes) -> None:
        allowed = job.memory_bytes // SLOT_BYTES
        self._usable = int(allowed * job.load_factor)
        slots = max(min(allowed, int((job.end - job.dirty_start) / job.load_factor) + 2), 2)
        self._map = open_version_map(slots, min(max(self._usable, 1), slots - 1), secret)

    def observe(self, records: RecordColumns) -> int:
        """Remember the greatest version of each key."""
        return self._map.observe(records, self._numbers(records))

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """The greatest of each key stays, a tombstone until its horizon."""
        self._map.judge(records, self._numbers(records), verdicts)

    def _numbers(self, records: RecordColumns) -> memoryview:
        return records.timestamp_ms

    @property
    def load(self) -> float:
        """Keys, of those that the memory it was given could hold."""
        return len(self._map) / self._usable if self._usable else 1.0


class GreatestHeaderWins(GreatestWins):
    """The same by the number in a header."""

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY | Fields.VALUE | Fields.HEADERS

    def __init__(self, job: RewriteJob, secret: bytes, section: HeaderSection) -> None:
        super().__init__(job, secret)
        self._section = section

    def _numbers(self, records: RecordColumns) -> memoryview:
        return header_numbers(records, self._section.name, self._section.encoding, _OLDEST)
