"""Facts about records in segments of brokers, compared with the records of a reader, for all formats."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import golden_data
from golden_data import Golden
from stratalog import TopicId, TopicPartition, open_reader
from stratalog.segment.components import Components
from stratalog.spi import SegmentInfo
from stratalog.tier.upload.segment_source import add_record_facts

LOGS = [
    pytest.param(*found, id="/".join(map(str, found)))
    for found in golden_data.expected_logs(*golden_data.plain_directories())
]


@pytest.mark.parametrize(("directory", "name"), LOGS)
def test_the_facts_are_those_of_the_records(
    golden: Callable[[str], Golden], components: Components, directory: str, name: TopicPartition
) -> None:
    with open_reader(golden(directory).logs) as reader:
        log = reader.log(*name)
        end = log.offsets().high_watermark
        for segment in log.view().segments:
            first, last = max(segment.base_offset, log.offsets().log_start), min(segment.end_offset, end)
            if (first, last) != (segment.base_offset, segment.end_offset):
                continue  # readers see only a part of this segment
            stamps = [record.timestamp_ms for record in log.records(first, last)] if first < last else []
            blank = SegmentInfo(name, TopicId("AAAAAAAAAAAAAAAAAAAAAQ"), first, last, segment.size_bytes, -1, 0)
            facts = add_record_facts(blank, segment, components)
            assert (facts.records, facts.min_timestamp_ms) == (len(stamps), max(min(stamps, default=-1), -1))
