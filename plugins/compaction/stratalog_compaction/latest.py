"""Cleanup policies that keep the record with the greatest timestamp, or number in a header, of each key.

Offsets are the order in which a broker received the records, not the order in which the records were created. With
several writers, or a writer that sends a record twice, the last record of a key may be an old record. KIP-280 describes
this problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from stratalog import RecordColumns
from stratalog.errors import ConfigError
from stratalog.spi import Action, Fields, LogSummary, RecordFilter, RewriteJob, TopicConfig
from stratalog_compaction.compact import CompactPolicy
from stratalog_compaction.header_numbers import header_numbers
from stratalog_compaction.keymap import SECRET_BYTES
from stratalog_compaction.sections import HeaderSection
from stratalog_compaction.versions import SLOT_BYTES, open_version_map

BY_TIMESTAMP: Final = "latest_by_timestamp"
BY_HEADER: Final = "latest_by_header"
_ONE_OF: Final = ("compact", BY_TIMESTAMP, BY_HEADER)
_OLDEST: Final = -(1 << 63)


class LatestByTimestampPolicy(CompactPolicy):
    """Policy ``latest_by_timestamp``. It compacts segments under the same conditions as the policy ``compact``."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return the plan that the policy ``compact`` would return.

        Raise ConfigError if ``cleanup.policy`` names a second policy that keeps one record of each key. Each of the two
        policies would drop records that the other policy keeps.
        """
        rivals = [name for name in config.cleanup_policy if name in _ONE_OF]
        if len(rivals) > 1:
            raise ConfigError(
                f"cleanup.policy of {log.log} may name only one of {', '.join(_ONE_OF)}, not {len(rivals)}"
            )
        return super().plan(log, config, now_ms)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a filter that keeps the record with the greatest timestamp of each key.

        If timestamps are equal, it keeps the latest record.
        """
        return GreatestWins(job, self._chance.randbytes(SECRET_BYTES))


class LatestByHeaderPolicy(LatestByTimestampPolicy):
    """Policy ``latest_by_header``. A record without a valid number in the header counts as the oldest."""

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a filter that keeps the record of each key with the greatest number in a header.

        The setting ``latest_by_header.name`` is the name of the header.
        """
        settings = job.config.sections.get(BY_HEADER)
        section = settings if isinstance(settings, HeaderSection) else HeaderSection()
        return GreatestHeaderWins(job, self._chance.randbytes(SECRET_BYTES), section)


class GreatestWins(RecordFilter):
    """Filter that drops a record if its key has a greater version in the map. It drops records without a key.

    A version consists of the timestamp and the offset of a record. If two timestamps are equal, the version with the
    later offset is greater. ``observe`` stores the greatest version of each key in the dirty range. ``judge`` starts at
    the oldest record, and stores each greater version. A dirty record is therefore dropped if an earlier record has a
    greater version.
    """

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY | Fields.VALUE | Fields.TIMESTAMP

    def __init__(self, job: RewriteJob, secret: bytes) -> None:
        max_slots = job.memory_bytes // SLOT_BYTES
        self._usable = int(max_slots * job.load_factor)
        slots = max(min(max_slots, int((job.end - job.dirty_start) / job.load_factor) + 2), 2)
        self._map = open_version_map(slots, min(max(self._usable, 1), slots - 1), secret)

    def observe(self, records: RecordColumns) -> int:
        """Store the greatest version of each key. Return the number of processed records; fewer if the map is full."""
        return self._map.observe(records, self._numbers(records))

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write the verdicts of ``VersionMap.judge``."""
        self._map.judge(records, self._numbers(records), verdicts)

    def _numbers(self, records: RecordColumns) -> memoryview:
        return records.timestamp_ms

    @property
    def load(self) -> float:
        """Number of keys in the map, divided by the maximum number for this memory; 1.0 if the maximum is 0."""
        return len(self._map) / self._usable if self._usable else 1.0


class GreatestHeaderWins(GreatestWins):
    """Variant of GreatestWins. Versions contain the number in a header instead of the timestamp."""

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY | Fields.VALUE | Fields.HEADERS

    def __init__(self, job: RewriteJob, secret: bytes, section: HeaderSection) -> None:
        super().__init__(job, secret)
        self._section = section

    def _numbers(self, records: RecordColumns) -> memoryview:
        return header_numbers(records, self._section.name, self._section.encoding, _OLDEST)
