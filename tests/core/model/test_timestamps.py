from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone

import pytest

from stratalog.model.timestamps import unix_ms

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_whole_milliseconds_stay_what_they_are() -> None:
    chance = random.Random(1)  # noqa: S311 - the same in every run
    moments = [chance.randrange(-(10**11), 4 * 10**12) for _ in range(5_000)]
    assert [unix_ms(EPOCH + timedelta(milliseconds=moment_ms)) for moment_ms in moments] == moments


@pytest.mark.parametrize(
    ("moment", "expected_ms"),
    [
        (datetime(1970, 1, 1, 0, 0, 1, 999), 1_000),  # noqa: DTZ001 - without a zone
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        (EPOCH - timedelta(microseconds=1), -1),
    ],
)
def test_zones_and_parts_of_milliseconds(moment: datetime, expected_ms: int) -> None:
    assert unix_ms(moment) == expected_ms
