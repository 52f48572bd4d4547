"""Names and ids for tests with drawn data, valid ones and hostile text."""

from __future__ import annotations

from hypothesis import strategies as st

from stratalog.model.names import TopicId, TopicPartition

TOPIC_CHARACTERS = "abcXYZ019._-"
LONG_MAX = (1 << 63) - 1

topics = st.text(TOPIC_CHARACTERS, min_size=1, max_size=249).filter(lambda topic: topic not in {".", ".."})
partitions = st.integers(0, (1 << 31) - 1)
offsets = st.integers(0, LONG_MAX)
uuids = st.uuids().filter(lambda value: value.int != 0)
logs = st.builds(TopicPartition, topics, partitions)
topic_ids = st.builds(TopicId.from_uuid, uuids)
hostile = st.text(
    st.sampled_from([*TOPIC_CHARACTERS, "/", "\\", "\0", "\n", " ", "=", "é", "٣", "%", ":"]), max_size=40
)
