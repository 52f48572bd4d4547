"""``stratalog verify URI``: check a tier in runs with a cost limit, and restore damaged segments from local copies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import click

from stratalog.cli.options import TierPlace, check_directory
from stratalog.cli.output import Output, printable, size_text, write_file
from stratalog.config.topic import TopicConfig
from stratalog.env.progress import Progress, ProgressSum, counted
from stratalog.errors import ConfigError
from stratalog.log.folder.directory_state import partition_folders
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.segment.components import Components
from stratalog.segment.finding import Finding
from stratalog.spi.segment_store import SegmentStore
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.tier_check import TierLogCheck
from stratalog.tier.upkeep.tier_repair import FolderCopies, TierRepair

_STATE_VERSION: Final = 1


class Budget(NamedTuple):
    """Cost limit of one run; None means no limit. A run checks at least one segment or one whole log."""

    requests: int | None = None
    size_bytes: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> Budget:
        """Parse ``requests=1000,bytes=1000000000``, or only one of these limits. None and "" mean no limit.

        Raise UsageError for any other text.
        """
        limits: dict[str, int] = {}
        for part in (text or "").split(",") if text else ():
            name, _, value = part.strip().partition("=")
            if name not in {"requests", "bytes"} or not value.isdecimal() or name in limits or not int(value):
                raise click.UsageError(
                    f"--budget {text!r} is not of the form requests=NUMBER, bytes=NUMBER, or both with a comma"
                )
            limits[name] = int(value)
        return cls(limits.get("requests"), limits.get("bytes"))


@dataclass(slots=True)
class _State:
    """State for the next run: it begins at ``offset`` of ``log``. ``problem_count`` counts the problems so far."""

    path: Path | None
    uri: str
    deep: bool
    log: str = ""
    offset: int = 0
    problem_count: int = 0

    def load(self) -> None:
        """Read the state if the file exists. Raise ConfigError if the file belongs to another URI or option --deep."""
        if self.path is None or not self.path.exists():
            return
        try:
            body = json.loads(self.path.read_text(encoding="utf-8"))
            identity = (body["version"], body["uri"], body["deep"])
            self.log, self.offset, self.problem_count = str(body["log"]), int(body["offset"]), int(body["wrong"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"--state {self.path} is not a state file of verify: delete it to start from the beginning"
            ) from error
        if identity != (_STATE_VERSION, self.uri, self.deep):
            raise ConfigError(
                f"--state {self.path} is the state of another verify ({identity[1]}): delete it to start from the "
                "beginning"
            )

    def store(self) -> None:
        """Replace the file atomically by a file with this state. Do nothing if ``path`` is None."""
        if self.path is not None:
            body = {"version": _STATE_VERSION, "uri": self.uri, "deep": self.deep}
            body |= {"log": self.log, "offset": self.offset, "wrong": self.problem_count}
            write_file(self.path, json.dumps(body) + "\n")

    def forget(self) -> None:
        """Remove the file, so the next run begins at the start. Called after a run has checked the whole tier."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def verify_tier(
    output: Output,
    place: TierPlace,
    directories: Sequence[str],
    budget: str | None,
    state_file: str | None,
    *,
    deep: bool,
    repair: bool,
) -> int:
    """Check a tier, print the findings, and return the exit code: 1 if problems remain, or 0.

    With ``repair``, restore segments from the log directories, write notes about segments that cannot be restored, and
    delete orphans. Raise UsageError if an option needs another option, and ConfigError if the tier has no logs.
    """
    limits = Budget.parse(budget)
    if limits != Budget() and state_file is None:
        raise click.UsageError("--budget needs --state FILE, which keeps the position for the next run")
    if directories and not repair:
        raise click.UsageError("--dir needs --repair, because it names where the segments are restored from")
    state = _State(Path(state_file) if state_file else None, place.uri, deep)
    state.load()
    settings = place.settings()
    with ExitStack() as stack:
        host = stack.enter_context(open_host(settings))
        stores = []
        for directory in directories:
            check_directory(Path(directory))
            stores.append(stack.enter_context(host.segment_store(directory, read_only=True)))
        tier = stack.enter_context(open_tier(host, place.uri, place.tier_options, read_only=not repair))
        components, history_ms = host.components(TopicConfig()), settings.engine.tier_history_ms
        run = _Run(output, place, tier, components, state, stores, limits, history_ms=history_ms, repair=repair)
        return run.run()


class _Run:
    """One run over a tier."""

    def __init__(
        self,
        output: Output,
        place: TierPlace,
        tier: Tier,
        components: Components,
        state: _State,
        stores: Sequence[SegmentStore],
        budget: Budget,
        *,
        history_ms: int,
        repair: bool,
    ) -> None:
        self._output, self._place, self._tier, self._components = output, place, tier, components
        self._state, self._stores, self._budget = state, stores, budget
        self._history_ms, self._repair = history_ms, repair
        self._start_metrics = tier.metrics().store
        self._repair_count = self._orphan_count = self._collected_count = 0

    def run(self) -> int:
        names = self._tier.logs()
        if not names:
            raise self._place.no_logs_error()
        labelled = sorted((f"{name.log}/{name.topic_id}", name) for name in names)
        logs = [(label, name) for label, name in labelled if label >= self._state.log]
        log_count = segment_count = 0
        is_stopped = False
        with self._output.bytes_progress("verifying") as progress:
            total_progress = ProgressSum(progress)
            for label, name in logs:
                is_stopped = bool(log_count) and self._is_spent()
                if is_stopped:
                    break
                start = self._state.offset if label == self._state.log else 0
                checked_segments, is_stopped = self._log(label, name, start, total_progress.part())
                segment_count += checked_segments
                if is_stopped:
                    break
                log_count += 1
                self._state.log, self._state.offset = label + "\0", 0  # after this log
        self._summary(log_count, segment_count, is_stopped=is_stopped)
        if is_stopped:
            self._state.store()
        else:
            self._state.forget()
        return 1 if self._state.problem_count else 0

    def _log(self, label: str, name: TierLogName, start: int, progress: Progress) -> tuple[int, bool]:
        """Check one log from an offset on.

        Return the number of checked segments, and True if the budget ended the check before the end of the log.
        """
        log = self._tier.log(*name)
        repair = TierRepair(log, self._copies(log)) if self._repair else None
        if repair is not None and not start:
            for result in repair.manifest():  # the check below finds unrepaired problems, and writes notes about them
                if result.done:
                    self._repair_count += 1
                    self._report(result.finding, result.done)
        check = TierLogCheck(log, self._components, contents=self._state.deep)
        root_findings = list(check.roots())
        on_bytes = counted(progress, check.size_bytes)
        if not start:
            self._handle(repair, root_findings)
        checked_segments = 0
        for item in check.segments(start):
            if isinstance(item, Finding):
                self._handle(repair, [item])
                continue
            if checked_segments and self._is_spent():
                self._state.log, self._state.offset = label, item.info.base_offset
                return checked_segments, True
            self._handle(repair, check.check(item, on_bytes))
            checked_segments += 1
        self._report_orphans(log, list(check.orphans()))
        if self._output.as_json:
            self._output.item({"topic": name.log.topic, "partition": name.log.partition, "segments": checked_segments})
        return checked_segments, False

    def _copies(self, log: TierLog) -> list[FolderCopies]:
        folders = ((store, partition_folders(store).get(log.name)) for store in self._stores)
        return [FolderCopies(store.open_log(folder), log, self._components) for store, folder in folders if folder]

    def _handle(self, repair: TierRepair | None, findings: Sequence[Finding]) -> None:
        """Report findings. With ``repair``, first restore segments from local copies, or write notes about findings."""
        self._state.problem_count += len(findings)
        if repair is None:
            for finding in findings:
                self._report(finding, "")
            return
        for result in repair.segments(findings):
            if result.failure:
                self._output.note(f"the local copy cannot be used: {result.failure}")
            if result.done:
                self._repair_count += 1
                self._state.problem_count -= 1
            self._report(result.finding, result.done or f"noted in {repair.note(result.finding)}")

    def _report_orphans(self, log: TierLog, orphans: Sequence[Finding]) -> None:
        """Report orphans. With ``--repair``, run the collector, which deletes the orphans that are old enough."""
        for finding in orphans:
            self._report(finding, "")
        self._orphan_count += len(orphans)
        if self._repair and orphans:
            self._collected_count += log.collect(history_ms=self._history_ms).orphans

    def _report(self, finding: Finding, outcome: str) -> None:
        if self._output.as_json:
            self._output.item(
                {
                    "flaw": str(finding.kind),
                    "log": str(finding.log),
                    "key": finding.place,
                    "position": finding.position,
                    "text": finding.text,
                    "done": outcome,
                }
            )
            return
        ending = f" ({outcome})" if outcome else ""
        self._output.line(
            printable(f"{finding.kind}: {finding.text} key={finding.place} position={finding.position}{ending}")
        )

    def _is_spent(self) -> bool:
        traffic, budget = self._tier.metrics().store - self._start_metrics, self._budget
        return (budget.requests is not None and traffic.requests >= budget.requests) or (
            budget.size_bytes is not None and traffic.reads.moved_bytes >= budget.size_bytes
        )

    def _summary(self, logs: int, segments: int, *, is_stopped: bool) -> None:
        traffic = self._tier.metrics().store - self._start_metrics
        counts: Mapping[str, object] = {
            "complete": not is_stopped,
            "logs": logs,
            "segments": segments,
            "requests": traffic.requests,
            "bytes": traffic.reads.moved_bytes,
            "wrong": self._state.problem_count,
            "repaired": self._repair_count,
            "orphans": self._orphan_count,
            "collected": self._collected_count,
        }
        if self._output.as_json:
            self._output.item(counts)
            return
        traffic_text = f"{traffic.requests:,} requests, {size_text(traffic.reads.moved_bytes)} read"
        self._output.line(
            f"{logs} logs, {segments} segments, {traffic_text}: {self._state.problem_count or 'nothing'} wrong"
            + (f", {self._repair_count} repaired" if self._repair_count else "")
            + (
                f", {self._orphan_count} orphans, {self._collected_count} of them collected"
                if self._orphan_count
                else ""
            )
        )
        if is_stopped:
            self._output.line("the budget is spent: run the command again to continue")
