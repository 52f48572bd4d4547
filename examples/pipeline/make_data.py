"""Make ``data/clicks.tar.xz``: four days of clicks, written by a real Kafka 4.1.0 broker. Needs Java 17 and Maven.

PYTHONPATH=tests/support python examples/pipeline/make_data.py
"""

from __future__ import annotations

import json
import random
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kafka_broker import KafkaBroker
from kafka_tools import KafkaTools

HERE: Final = Path(__file__).resolve().parent
POM: Final = HERE.parent.parent / "tests" / "oracle" / "pom.xml"
TOPIC: Final = "clicks"
PARTITIONS: Final = 3
START_MS: Final = 1_788_220_800_000  # 2026-09-01T00:00:00Z
DAYS: Final = 4
USERS: Final = 400
PAGES: Final = ("/", "/search", "/product", "/cart", "/checkout", "/help")


def clicks() -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the time in ms, the user and the click of each event, ordered by time.

    The result is the same in every run.
    """
    chance = random.Random(11)  # noqa: S311 - the same in every run
    events = []
    for user in range(USERS):
        for day in range(DAYS):
            for _ in range(chance.choice((0, 1, 1, 2, 3))):
                hour = min(max(chance.gauss(15, 4), 0), 23.9)
                time_ms = START_MS + day * 86_400_000 + round(hour * 3_600_000)
                for _ in range(chance.randrange(1, 14)):
                    page = chance.choices(PAGES, (6, 8, 12, 4, 2, 1))[0]
                    events.append((time_ms, b"user-%03d" % user, page))
                    time_ms += chance.randrange(2_000, 240_000)
    for time_ms, user_id, page in sorted(events):
        yield time_ms, user_id, json.dumps({"page": page}).encode()


def main() -> None:
    """Produce the clicks to a broker, stop the broker, and pack its log directory into the archive."""
    with tempfile.TemporaryDirectory() as scratch:
        with KafkaBroker(KafkaTools.find(POM), Path(scratch)) as broker:
            broker.create_topics({TOPIC: PARTITIONS}, {TOPIC: {"compression.type": "zstd", "segment.bytes": 1 << 20}})
            producer = broker.producer(**{"linger.ms": "50", "enable.idempotence": "true"})
            for time_ms, user, click in clicks():
                producer.produce(TOPIC, click, user, timestamp=time_ms)
                producer.poll(0)
            assert producer.flush(60) == 0
        with tarfile.open(HERE / "data" / "clicks.tar.xz", "w:xz") as archive:
            for path in sorted(broker.log_dir.iterdir()):
                if not path.name.startswith("__"):  # without the internal topics: metadata of the cluster, and groups
                    archive.add(path, f"kafka/{path.name}", filter=_remove_owner)


def _remove_owner(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.name.endswith((".index", ".timeindex")):
        member.mode = 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = START_MS // 1000
    return member


if __name__ == "__main__":
    main()
