"""Convert the clicks in a Kafka broker's directory to sessions (Parquet), profiles (a compacted topic) and a chart.

    pip install '.[cli,spark]'
    python examples/pipeline/pipeline.py [--out FOLDER] [--master 'local[2, 4]']

No broker runs. Each step prints what it did. At the end, the profiles are read back and compared with the sessions.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from stratalog import open_engine

DATA: Final = Path(__file__).resolve().parent / "data" / "clicks.tar.xz"
GAP: Final = "30 minutes"
PARTITIONS: Final = 2


def main() -> None:
    """Parse the arguments, create the output folder, and run the pipeline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("pipeline-out"), help="folder to create")
    parser.add_argument("--master", default="local[2, 4]")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True)
    run(arguments.out.resolve(), arguments.master)


def run(folder: Path, master: str) -> None:
    """Run all steps. ``folder`` is an empty folder for the results, and ``master`` the master of the Spark session."""
    from stratalog_spark import local_session  # noqa: PLC0415 - after the arguments are parsed, because the import takes a second

    tier = archive(folder)
    quiet = {"spark_ui_enabled": "false", "spark_ui_showConsoleProgress": "false", "spark_log_level": "ERROR"}
    spark = local_session(master, **quiet, spark_sql_shuffle_partitions="4", spark_sql_session_timeZone="UTC")
    try:
        sessions = sessionize(spark, tier, folder)
        write_profiles(sessions, folder)
        rows = spark.read.parquet(str(folder / "sessions")).collect()
    finally:
        spark.stop()
    profiles = read_back(folder)
    compare(rows, profiles)
    (folder / "sessions.svg").write_text(picture(rows), encoding="utf-8")
    print(f"the chart is in {folder / 'sessions.svg'}")


def archive(folder: Path) -> str:
    """Copy the broker's logs to a tier, and return the tier's URI. Here, the tier is a folder and not a bucket."""
    with tarfile.open(DATA) as packed_logs:
        packed_logs.extraction_filter = getattr(tarfile, "data_filter", None)  # missing in Python before 3.11.4
        packed_logs.extractall(folder)  # noqa: S202 - our own archive
    tier = folder / "tier"
    tier.mkdir()
    with open_engine(folder / "kafka", tier=tier.as_uri()) as engine:
        for topic, partition in engine.partitions():
            engine.log(topic, partition).roll()
        engine.offload()
        records = sum(engine.log(*name).offsets().log_end for name in engine.partitions())
    print(f"archived: {records:,} clicks of a Kafka broker's directory are in {tier.as_uri()}")
    return tier.as_uri()


def sessionize(spark: Any, tier: str, folder: Path) -> Any:
    """Group the clicks into sessions, write the sessions as Parquet by date, and return them as a DataFrame.

    A session ends when a user does not click for half an hour.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everybody writes it, where Spark is

    clicks = spark.read.format("stratalog").option("subscribe", "clicks").load(tier)
    parsed = clicks.select(
        F.decode("key", "utf-8").alias("user"),
        "timestamp",
        F.get_json_object(F.decode("value", "utf-8"), "$.page").alias("page"),
    )
    sessions = parsed.groupBy("user", F.session_window("timestamp", GAP).alias("window")).agg(
        F.count("*").alias("clicks"),
        F.max((F.col("page") == "/checkout").cast("int")).alias("bought"),
        F.max("timestamp").alias("end"),
    )
    columns = sessions.select("user", F.col("window.start").alias("start"), "end", "clicks", "bought")
    dated = columns.withColumn("date", F.to_date("start"))
    dated.write.partitionBy("date").parquet(str(folder / "sessions"))
    stored_sessions = spark.read.parquet(str(folder / "sessions"))
    print(f"sessions: {stored_sessions.count():,} as Parquet in {folder / 'sessions'}")
    return stored_sessions


def write_profiles(sessions: Any, folder: Path) -> None:
    """Append the profiles of all users to a compacted topic, for each day those of the sessions up to this day.

    Compaction keeps the newest profile of each user.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the same

    with open_engine(folder / "profiles") as engine:
        engine.create_topic("profiles", partitions=PARTITIONS, config={"cleanup.policy": "compact"})
    for (day,) in sessions.select("date").distinct().orderBy("date").collect():
        so_far = sessions.where(F.col("date") <= F.lit(day)).groupBy("user")
        profile = so_far.agg(
            F.count("*").alias("sessions"), F.sum("clicks").alias("clicks"), F.sum("bought").alias("bought")
        )
        rows = profile.select(
            F.encode("user", "utf-8").alias("key"),
            F.encode(F.to_json(F.struct("sessions", "clicks", "bought")), "utf-8").alias("value"),
        )
        writing = rows.write.format("stratalog").mode("append").option("topic", "profiles")
        # the day is the number of the write: a repeated write after a crash appends no record twice
        writing.options(writeId="pipeline", writeNumber=str(day.toordinal())).save(str(folder / "profiles"))
    print(f"profiles: one a user and day, in the topic at {folder / 'profiles'}")


def read_back(folder: Path) -> dict[str, Mapping[str, int]]:
    """Compact the topic with the engine, and return the remaining profile of each user: the newest."""
    with open_engine(folder / "profiles", config={"topic_defaults": {"min.cleanable.dirty.ratio": 0.0}}) as engine:
        before = [sum(1 for _ in engine.log("profiles", number).records()) for number in range(PARTITIONS)]
        for number in range(PARTITIONS):
            engine.log("profiles", number).roll()
        engine.run_cleaner()
        rows = [row for number in range(PARTITIONS) for row in engine.log("profiles", number).records()]
    print(f"compacted: {sum(before):,} profiles became {len(rows):,}")
    return {(row.key or b"").decode(): json.loads(row.value or b"{}") for row in rows}


def compare(sessions: list[Any], profiles: Mapping[str, Mapping[str, int]]) -> None:
    """Exit with an error if the engine's profiles differ from the sessions, user by user."""
    expected: dict[str, Counter[str]] = {}
    for row in sessions:
        expected.setdefault(row["user"], Counter()).update(sessions=1, clicks=row["clicks"], bought=row["bought"])
    actual = {
        user: {name: profile[name] for name in ("sessions", "clicks", "bought")} for user, profile in profiles.items()
    }
    if actual != {user: dict(counts) for user, counts in expected.items()}:
        raise SystemExit("the profiles that were read back are not those of the sessions")
    clicks, buyers = (
        sum(profile["clicks"] for profile in actual.values()),
        sum(1 for profile in actual.values() if profile["bought"]),
    )
    print(f"compared: {len(actual):,} users, {clicks:,} clicks, {buyers:,} of them bought: the same on both sides")


def picture(sessions: list[Any]) -> str:
    """Return a bar chart as SVG: sessions by the hour in which they began, one panel per day.

    The part of a bar for sessions with a purchase is darker.
    """
    days = sorted({row["date"] for row in sessions})
    counts = Counter((row["date"], row["start"].hour, bool(row["bought"])) for row in sessions)
    largest = max(sum(counts[day, hour, bought] for bought in (False, True)) for day in days for hour in range(24))
    width, height, bar = 300 * len(days) + 40, 260, 11
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<style>text{font:12px system-ui,sans-serif;fill:#333}.t{font-size:16px;font-weight:600}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text class="t" x="20" y="28">{len(sessions):,} sessions by the hour they began (UTC)</text>',
        '<rect x="20" y="40" width="12" height="12" fill="#9ecae1"/><text x="38" y="51">looked</text>',
        '<rect x="95" y="40" width="12" height="12" fill="#08519c"/><text x="113" y="51">bought</text>',
    ]
    for number, day in enumerate(days):
        panel_x = 20 + 300 * number
        parts.append(f'<text x="{panel_x}" y="{height - 8}">{day}</text>')
        for hour in range(24):
            parts += _bar(panel_x + hour * bar, [counts[day, hour, True], counts[day, hour, False]], largest, bar - 2)
            if hour % 6 == 0:
                parts.append(f'<text x="{panel_x + hour * bar}" y="{height - 28}">{hour}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _bar(x: int, counts: list[int], largest: int, width: int) -> Iterator[str]:
    y = 215.0
    for count, color in zip(counts, ("#08519c", "#9ecae1"), strict=True):
        size = 145 * count / largest
        y -= size
        yield f'<rect x="{x}" y="{y:.1f}" width="{width}" height="{size:.1f}" fill="{color}"/>'


if __name__ == "__main__":
    main()
