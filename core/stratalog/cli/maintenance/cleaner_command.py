"""``stratalog cleaner``: compact the logs whose topics have cleanup.policy=compact."""

from __future__ import annotations

from typing import Final

import click

from stratalog.cleaning.compact.compaction_round import CompactionResult
from stratalog.cleaning.plan.compaction_plan import CompactionPlan
from stratalog.cli.options import LogPlace, json_option, place_options
from stratalog.cli.output import Columns, Output
from stratalog.engine.engine import Engine
from stratalog.errors import StorageError

_COMPACTED: Final[Columns[CompactionResult]] = {
    "topic": lambda result: result.log.topic,
    "partition": lambda result: result.log.partition,
    "part": lambda result: result.part,
    "dirty_start": lambda result: result.dirty_start,
    "end": lambda result: result.end,
    "dirty_ratio": lambda result: round(result.dirty_ratio, 4),
    "bytes_read": lambda result: result.stats.bytes_observed + result.stats.bytes_read,
    "bytes_written": lambda result: result.stats.bytes_written,
    "bytes_downloaded": lambda result: result.traffic.downloaded_bytes,
    "bytes_uploaded": lambda result: result.traffic.uploaded_bytes,
    "records_read": lambda result: result.stats.records_read,
    "records_kept": lambda result: result.stats.records_kept,
    "map_load": lambda result: round(result.map_load, 4),
    "elapsed_ms": lambda result: result.elapsed_ms,
    "reason": lambda result: result.stopped or result.reason,
    "error": lambda result: "" if result.error is None else str(result.error),
}
_PLANNED: Final = (
    "topic", "partition", "part", "start", "dirty_start", "end", "dirty_ratio", "bytes_to_download", "bytes_to_upload",
    "bytes_freed", "reason", "error",
)  # fmt: skip


@click.command()
@click.option("--dry-run", is_flag=True, help="Show for each log if it would be compacted, and why. Change nothing.")
@place_options
@json_option
def cleaner(place: LogPlace, output: Output, *, dry_run: bool) -> int:
    """Compact the logs of topics with cleanup.policy=compact, the log with the largest dirty ratio first.

    Prints one row for each compaction round. The exit code is 1 if a log could not be compacted. This log loses no
    record, and the other logs are compacted.
    """
    with output.bytes_progress("compacting") as progress, place.engine() as engine:
        if dry_run:
            rows = [_preview(engine, plan) for plan in engine.plan_cleaner()]
            output.table("would be compacted", _PLANNED, rows)
            return 1 if any(row[-1] for row in rows) else 0
        results = engine.run_cleaner(progress=progress)
    output.table_of("compacted", _COMPACTED, results)
    return 1 if any(result.error is not None for result in results) else 0


def _preview(engine: Engine, plan: CompactionPlan) -> tuple[object, ...]:
    rewrite, error, reason = plan.rewrite, "" if plan.error is None else str(plan.error), plan.reason
    freed_bytes: int | None = None
    uploaded_bytes: int | None = None
    try:
        preview = engine.preview_cleaner(plan)
        if preview is not None:
            reason = preview.reason
            freed_bytes = sum(segment.bytes_before - segment.bytes_after for segment in preview.segments)
            uploaded_bytes = 0 if plan.tier is None else sum(segment.bytes_after for segment in preview.segments)
    except StorageError as failure:  # the round of this log would fail with this error; other logs continue
        error = str(failure)
    bounds: tuple[object, ...] = (None,) * 5
    if rewrite is not None:
        bounds = rewrite.start, rewrite.dirty_start, rewrite.end, round(rewrite.dirty_ratio, 4), plan.download_bytes
    return (*plan.log.name, plan.part, *bounds, uploaded_bytes, freed_bytes, reason, error)
