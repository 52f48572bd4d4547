"""``stratalog verify``: check all files of a log directory or of one log's folder, or a tier."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from stratalog.cli.maintenance.verify_tier import verify_tier
from stratalog.cli.options import TierPlace, check_directory, directories_option, json_option, location_options
from stratalog.cli.output import Output, printable, size_text
from stratalog.config.settings_sources import Settings
from stratalog.env.progress import OnBytes, counted
from stratalog.epochs.checkpoint import parse_offsets
from stratalog.errors import CorruptCheckpointError, LogDirError, LogDirLockedError, NotAFileError
from stratalog.log.folder.directory_state import check_log_directory, holds_log, is_marked_clean, partition_folders
from stratalog.log.log_check import CheckpointOffset, LogReport, check_log, log_bytes
from stratalog.log.log_repair import is_repairable, repair_log
from stratalog.model.names import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_METADATA_TOPIC,
    HIGH_WATERMARKS_FILE,
    LOG_STARTS_FILE,
    RECOVERY_POINTS_FILE,
    TopicPartition,
    parse_partition_folder,
)
from stratalog.reading.component_host import ComponentHost, split_scheme
from stratalog.reading.open_reader import open_host
from stratalog.reading.topic_table import TopicTable
from stratalog.segment.finding import Finding, FindingKind
from stratalog.spi.segment_store import SegmentStore

CHECKPOINTS: Final = {
    RECOVERY_POINTS_FILE: "recovery point",
    LOG_STARTS_FILE: "log start",
    HIGH_WATERMARKS_FILE: "high watermark",
}


@click.command()
@click.option(
    "--repair", is_flag=True,
    help="Repair damage. No good record is lost. In a directory: truncate torn ends of logs, rebuild indexes, "
    "snapshots and epochs; the next engine recovers the logs, as after a crash. In a tier: upload damaged objects "
    "again from --dir, write a note about each object that cannot be repaired, and delete orphans.",
)  # fmt: skip
@click.option("--deep", is_flag=True, help="In a directory: decode every record, too. In a tier: read every segment.")
@directories_option("For a tier with --repair: a log directory with local copies of segments; can be repeated.")
@click.option("--budget", help="For a tier: limit of one run, as requests=NUMBER, bytes=NUMBER, or both with a comma.")
@click.option(
    "--state", type=click.Path(dir_okay=False),
    help="For a tier: file in which a run stores its position for the next run.",
)  # fmt: skip
@location_options
@json_option
def verify(
    output: Output,
    place: TierPlace,
    *,
    repair: bool,
    deep: bool,
    directories: tuple[str, ...],
    budget: str | None,
    state: str | None,
) -> int:
    """Check a log directory or the folder of one log at PATH, or the tier at URI.

    Checks on local disk: every batch and its CRC, offsets, indexes, snapshots, epochs, checkpoints. Checks in a tier:
    roots, pages, objects, hashes, and with --deep every batch.

    The exit code is 1 if a problem was found and not repaired, and 2 if PATH or the tier could not be checked.
    """
    if split_scheme(place.uri)[0]:
        return verify_tier(output, place, directories, budget, state, deep=deep, repair=repair)
    is_named = click.get_current_context().get_parameter_source("config") is ParameterSource.COMMANDLINE
    if directories or budget or state or place.tier_options or is_named:
        raise click.UsageError(
            "--dir, --budget, --state, --config and --tier-option are for tiers: leave them out with PATH"
        )
    return _verify_directory(output, Path(place.uri), repair=repair, deep=deep)


def _verify_directory(output: Output, path: Path, *, repair: bool, deep: bool) -> int:
    check_directory(path)
    with open_host(Settings()) as host:
        single = _log_of(host, path.resolve())
        root = path.resolve().parent if single else path
        with host.segment_store(str(root), read_only=not repair) as store:
            if single is None:
                check_log_directory(store)
            if repair:
                store.acquire()
            elif store.is_acquired_elsewhere():
                text = "another engine or a running broker is writing to the directory"
                advice = "stop the engine or broker, because changes during the check look like damage"
                raise LogDirLockedError(text, str(root)).advised(advice)
            folders = partition_folders(store) if single is None else {single: str(single)}
            verification = _Verification(output, host, store, folders, repair=repair, deep=deep)
            return verification.run(path if single is None else path.resolve())


def _log_of(host: ComponentHost, path: Path) -> TopicPartition | None:
    """Return the name of the log if ``path`` is the folder of a log; None if ``path`` is a log directory.

    The name of the folder is not sufficient, because a log directory can have the name of a log, such as ``disk-1``.
    """
    name = parse_partition_folder(path.name)
    if name is None:
        return None
    with host.segment_store(str(path.parent), read_only=True) as parent:
        return name if holds_log(parent.open_log(path.name)) else None


class _Verification:
    """One run of the command over the logs in ``folders`` of a directory."""

    def __init__(
        self,
        output: Output,
        host: ComponentHost,
        store: SegmentStore,
        folders: Mapping[TopicPartition, str],
        *,
        repair: bool,
        deep: bool,
    ) -> None:
        self._output, self._host, self._store, self._folders = output, host, store, folders
        self._repair, self._deep = repair, deep
        self._topics = TopicTable(
            store, host.settings.topic_defaults, has_tier=False, sections=host.registry.topic_sections()
        )
        self._problem_count = self._repairable_count = self._repair_count = self._size_bytes = self._record_count = 0
        self._checkpoints = {name: self._read(name) for name in CHECKPOINTS}
        self._was_clean = is_marked_clean(store)  # before a repair removes the file

    def run(self, path: Path) -> int:
        """Check all logs, and return the exit code. If logs cannot be read, raise the first error after all checks.

        ``path`` is the argument of the command that is printed as advice.
        """
        read_errors, total_bytes = list[LogDirError](), 0
        for folder in self._folders.values():
            with contextlib.suppress(LogDirError):  # the check of the log reports the error
                total_bytes += log_bytes(self._store.open_log(folder))
        with self._output.bytes_progress("verifying") as progress:
            on_bytes = counted(progress, total_bytes)
            for name, folder in self._folders.items():
                try:
                    self._log(name, folder, on_bytes)
                except LogDirError as error:
                    read_errors.append(error)
        self._output.line(
            f"{len(self._folders) - len(read_errors)} logs, {size_text(self._size_bytes)}"
            + (f", {self._record_count:,} records" if self._deep else "")
            + f": {self._problem_count or 'nothing'} wrong"
            + (f", {self._repair_count} repaired" if self._repair_count else "")
            + (f"; logs that cannot be read: {len(read_errors)}" if read_errors else "")
        )
        if self._repairable_count and not self._repair:
            command = printable(f"stratalog verify {shlex.quote(str(path))} --repair")
            self._output.line(f"run {command} to repair {self._repairable_count} of them")
        if read_errors:
            raise read_errors[0]
        return 1 if self._problem_count else 0

    def _log(self, name: TopicPartition, folder: str, on_bytes: OnBytes) -> None:
        files = self._store.open_log(folder)
        config = self._topics.config(name.topic)
        components = self._host.components(replace(config, index_extra=()))  # no extra index is built here
        checkpoints = [
            CheckpointOffset(self._store.path(file), f"{description} of {name}", self._checkpoints[file].get(name, 0))
            for file, description in CHECKPOINTS.items()
        ]
        check = partial(
            check_log, files, components, records=self._deep, checkpoints=checkpoints, was_clean=self._was_clean
        )
        report = check(on_bytes=on_bytes)
        if self._repair and name.topic != CLUSTER_METADATA_TOPIC and any(map(is_repairable, report.findings)):
            self._store.remove_small(CLEAN_SHUTDOWN_FILE)
            log_start = self._checkpoints[LOG_STARTS_FILE].get(name)
            for repair in repair_log(files, components, config, report, log_start):
                self._report(repair.finding, is_repaired=True)
                self._repair_count += 1
            losses = [finding for finding in report.findings if not is_repairable(finding)]
            report = check()
            # A loss remains a finding, even if the repair has removed its traces: the records are not restored.
            report.findings[:0] = [finding for finding in losses if finding not in report.findings]
        for finding in report.findings:
            self._report(finding, is_repaired=False)
        self._problem_count += len(report.findings)
        if name.topic != CLUSTER_METADATA_TOPIC:
            self._repairable_count += sum(map(is_repairable, report.findings))
        self._size_bytes += report.size_bytes
        self._record_count += report.records or 0
        self._summary(name, report)

    def _summary(self, name: TopicPartition, report: LogReport) -> None:
        if self._output.as_json:
            self._output.item(
                {
                    "topic": name.topic,
                    "partition": name.partition,
                    "segments": report.segments,
                    "batches": report.batches,
                    **({"records": report.records} if self._deep else {}),
                    "size_bytes": report.size_bytes,
                    "log_end": report.log_end,
                    "wrong": len(report.findings),
                }
            )

    def _report(self, finding: Finding, *, is_repaired: bool) -> None:
        if self._output.as_json:
            item = {"problem": finding.kind.value, "file": finding.place, "position": finding.position}
            self._output.item({**item, "text": finding.text, "repaired": is_repaired})
        else:
            label = f"repaired {finding.kind}" if is_repaired else finding.kind.value
            self._output.line(printable(f"{label}: {finding.text} file={finding.place} position={finding.position}"))

    # --- checkpoints of the directory --------------------------------------------------------------------------------

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return parse_offsets(self._store.read_small(name) or b"", self._store.path(name))
        except CorruptCheckpointError as error:
            finding = Finding(FindingKind.BOUNDS, error.file, error.position, error.reason)
        except NotAFileError as error:
            finding = Finding(FindingKind.BOUNDS, error.path, 0, error.reason)
        self._report(finding, is_repaired=False)
        self._problem_count += 1
        return {}
