from __future__ import annotations

import pytest

from stratalog.errors import InvalidRecordError
from stratalog.model.messages.consumer_protocol import (
    ASSIGNMENT,
    SUBSCRIPTION,
    Assignment,
    Subscription,
    TopicPartitions,
)

OWNED = (TopicPartitions(topic="t", partitions=(1, 2)),)
WHOLE = Subscription(topics=("t",), user_data=b"u", owned_partitions=OWNED, generation=4, rack="r")
V0 = "0000000000010001740000000175"  # version, one topic, user data
V1 = "00000001000174000000020000000100000002"


@pytest.mark.parametrize(
    ("version", "layout", "read"),
    [
        (0, V0, Subscription(topics=("t",), user_data=b"u")),
        (1, V0 + V1, Subscription(topics=("t",), user_data=b"u", owned_partitions=OWNED)),
        (2, V0 + V1 + "00000004", Subscription(topics=("t",), user_data=b"u", owned_partitions=OWNED, generation=4)),
        (3, V0 + V1 + "00000004" + "000172", WHOLE),
    ],
)
def test_subscriptions_are_encoded_and_decoded(version: int, layout: str, read: Subscription) -> None:
    data = version.to_bytes(2, "big") + bytes.fromhex(layout)[2:]
    assert SUBSCRIPTION.parse(data) == (read, version)
    assert SUBSCRIPTION.encode(WHOLE, version) == data


def test_assignments_are_encoded_and_decoded() -> None:
    data = bytes.fromhex("0001" + V1 + "ffffffff")
    assert ASSIGNMENT.parse(data) == (Assignment(partitions=OWNED, user_data=None), 1)
    assert ASSIGNMENT.encode(Assignment(partitions=OWNED), 1) == data


def test_later_versions_are_read_as_the_last_known_one() -> None:
    data = b"\0\x09" + SUBSCRIPTION.encode(WHOLE, 3)[2:] + b"more"
    assert SUBSCRIPTION.parse(data) == (WHOLE, 9)
    with pytest.raises(InvalidRecordError, match="version -1"):
        SUBSCRIPTION.parse(b"\xff\xff" + data[2:])
    with pytest.raises(InvalidRecordError, match="version 9"):
        SUBSCRIPTION.encode(WHOLE, 9)
