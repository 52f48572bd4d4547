"""Trace the calls that an append, a fetch, an offload, a compaction and a recovery make inside stratalog.

    python scripts/call_paths.py [--calls]

Each call is traced once, after another call of its kind that fills caches; the cold fetch is the first fetch of its
segment. Only Python functions on the caller's thread are traced. ``--calls`` lists the functions in the order of calls.
"""

from __future__ import annotations

import inspect
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from pictures import TreeBox

from stratalog import Engine, Log, Record, open_engine, open_reader

_TIME_MS: Final = 1_700_000_000_000  # without timestamps, an append also reads the clock
_APPENDS: Final = 60
_SEGMENT_BYTES: Final = 200_000

STEPS: Final[Mapping[str, Sequence[str]]] = {
    "append": (
        "stratalog.log.log.Log.append",
        "stratalog.log.prepare.preparer.Preparer.records",
        "stratalog.log.append.append.append",
        "stratalog.log.append.append.commit",
        "stratalog.segment.appender.Appender.append",
        "stratalog_local.segment_file.LocalSegmentFile.append",
        "stratalog_local.index_file.MappedIndex.append",
        "stratalog.log.read.view.PublishedView.grow",
    ),
    "local fetch": (
        "stratalog.log.read.log_reader.LogReader.fetch",
        "stratalog.log.read.fetch.fetch",
        "stratalog.log.read.view.PublishedView.view",
        "stratalog.log.read.view.LogView.segment_at",
        "stratalog.log.read.batch_lookup.find_batches",
        "stratalog.segment.segment.Segment.index_entries",
        "stratalog_local.segment_file.LocalSegmentFile.read",
    ),
    "cold fetch": (
        "stratalog.log.read.log_reader.LogReader.fetch",
        "stratalog.log.read.fetch.fetch",
        "stratalog.log.read.view.LogView.segment_at",
        "stratalog.tier.read.remote_segment.PagedSegments.from_offset",
        "stratalog.tier.manifest.entry_tree.walk",
        "stratalog.log.read.batch_lookup.find_batches",
        "stratalog.tier.read.fetcher.Fetcher.read_index",
        "stratalog_formats.layouts.pieces.HashedLayout.read_index",
        "stratalog.tier.store.store.TierStore.read_exactly",
        "stratalog_s3.file.FileStore.read",
        "stratalog.tier.read.chunk_reader.ChunkReader.read",
    ),
    "offload": (
        "stratalog.engine.engine_duties.EngineDuties.offload",
        "stratalog.engine.tiering.tier_duties.TierDuties.offload",
        "stratalog.engine.tiering.offload_log.offload_log",
        "stratalog.log.log.Log.flush",
        "stratalog.tier.tier_log.TierLog.offload",
        "stratalog.tier.upload.uploader.SegmentUploader.offload",
        "stratalog.engine.tiering.offload_log.offload_source",
        "stratalog_formats.layouts.single.SingleLayout.write",
        "stratalog.tier.store.store.TierStore.put",
        "stratalog_s3.file.FileStore.put_file",
        "stratalog.tier.commit.committer.Committer.commit",
        "stratalog.tier.manifest.entry_tree.next_root",
        "stratalog.tier.store.store.TierStore.create",
        "stratalog.log.maintenance.LogMaintenance.refresh_remote",
        "stratalog.cleaning.plan.retention.relieve",
    ),
    "compaction": (
        "stratalog.engine.engine_duties.EngineDuties.run_cleaner",
        "stratalog.engine.duties.cleaner.Cleaner.run",
        "stratalog.engine.duties.cleaner.Cleaner.plan",
        "stratalog_compaction.compact.CompactPolicy.plan",
        "stratalog.cleaning.compact.compaction_round.compact",
        "stratalog.cleaning.compact.two_pass.observe",
        "stratalog_compaction.compact.LatestWins.observe",
        "stratalog.cleaning.compact.two_pass.rewrite",
        "stratalog.cleaning.compact.group_rewrite.GroupRewrite.run",
        "stratalog_compaction.compact.LatestWins.judge",
        "stratalog.segment.build.SegmentBuilder.append",
        "stratalog.log.change.local_publisher.LocalPublisher.replace",
        "stratalog.log.folder.swap_files.swap_in",
        "stratalog.log.maintenance.LogMaintenance.note_cleaned",
        "stratalog.engine.open.open_logs.OpenLogs.write_dirty_starts",
    ),
    "recovery": (
        "stratalog.engine.open_engine.open_engine",
        "stratalog.log.folder.directory_state.read_directory",
        "stratalog.engine.open.log_opener.LogOpener.open_all",
        "stratalog.log.load.log_loader.load",
        "stratalog.log.folder.folder.open_segments",
        "stratalog.log.folder.swap_files.plan_swap",
        "stratalog.log.load.producer_replay.newest_snapshot",
        "stratalog.segment.recover.scan_valid_part",
        "stratalog.log.load.producer_replay.write_snapshot",
        "stratalog.log.open_log.open_state",
        "stratalog.engine.open.open_logs.OpenLogs.publish",
    ),
}
"""The main functions of each path, in the order of their calls. The pictures show the first call after the step before."""


class Call(NamedTuple):
    """One call of a function of stratalog.

    Attributes:
        caller: number of the call that made this call, directly or through functions of other libraries; None for the
            program.
        module: the module of the called function.
        function: the qualified name of the called function.
    """

    caller: int | None
    module: str
    function: str


def main(arguments: list[str]) -> int:
    """Print the modules of each path with the number of calls into each, or with ``--calls`` each call; return 0."""
    with tempfile.TemporaryDirectory(prefix="call-paths-") as scratch:
        for name, calls in paths(Path(scratch)).items():
            modules = Counter(call.module for call in calls)
            print(f"{name}: {len(modules)} modules, {len(calls)} calls")
            if "--calls" in arguments:
                for call in calls:
                    print(f"    {call.module}.{call.function}")
            else:
                for module, count in modules.items():
                    print(f"    {count:3} {module}")
    return 0


def paths(scratch: Path) -> dict[str, list[Call]]:
    """Return the calls of each path in order; ``scratch`` is an empty folder."""
    (scratch / "tier").mkdir()
    records = _records(0)
    tier = (scratch / "tier").as_uri()
    with open_engine(scratch / "local") as engine:
        log = _create_log(engine, {"segment.bytes": _SEGMENT_BYTES, "cleanup.policy": "compact"})
        offset = log.segments()[-1].base_offset + 1
        log.fetch(offset, 1).release()
        calls_by_path = {
            "append": _calls(lambda: log.append(records)),
            "local fetch": _calls(lambda: log.fetch(offset, 1).release()),
        }
        engine.run_cleaner()
        _fill(log, _APPENDS)
        compaction = _calls(engine.run_cleaner)
        shutil.copytree(scratch / "local", scratch / "killed")
    with open_engine(scratch / "tiered", tier=tier) as engine:
        config = {"segment.bytes": _SEGMENT_BYTES, "remote.storage.enable": True, "local.retention.bytes": 1}
        log = _create_log(engine, config)
        engine.offload()
        offloaded = len(log.segments())
        while len(log.segments()) == offloaded:  # until one more segment is closed
            log.append(records)
        offload = _calls(engine.offload)
    with open_reader(tier) as reader:
        cold_log = reader.log("paths", 0)
        middle = cold_log.segments()[1].base_offset + 1
        cold_log.fetch(0, 1).release()
        calls_by_path |= {"cold fetch": _calls(lambda: cold_log.fetch(middle, 1).release()), "offload": offload}
    recovery = _calls(lambda: open_engine(scratch / "killed").close())
    return calls_by_path | {"compaction": compaction, "recovery": recovery}


def picture(calls: Sequence[Call], steps: Sequence[str]) -> tuple[list[TreeBox], list[str]]:
    """Return a box for each function in ``steps``, and a sentence about each.

    An arrow leads from the nearest other step that called the function.

    Raises:
        ValueError: the functions are not called in this order.
    """
    names = [f"{call.module}.{call.function}" for call in calls]
    boxes, sentences, places = [TreeBox(None, "caller")], list[str](), dict[int, int]()
    number = -1
    for place, step in enumerate(steps, 1):
        if step not in names[number + 1 :]:
            before = f"after {steps[place - 2]}" if place > 1 else "first"
            raise ValueError(f"{step} is not called {before}: change STEPS in {__file__}")
        number = names.index(step, number + 1)
        places[number] = place
        caller = calls[number].caller
        while caller is not None and caller not in places:
            caller = calls[caller].caller
        label, module = calls[number].function, calls[number].module.removeprefix("stratalog.").replace(".", "/")
        boxes.append(TreeBox(0 if caller is None else places[caller], f"{place}  {label}", module))
        sentences.append(f"{place}. `{label}` in `{module}`: {_sentence(calls[number])}")
    return boxes, sentences


def _sentence(call: Call) -> str:
    """Return the first sentence of the documentation of the called function."""
    definition: object = import_module(call.module)
    for name in call.function.split("."):
        definition = inspect.getattr_static(definition, name)
    text = inspect.getdoc(definition) or ""
    sentence = " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].replace("``", "`")
    return f"{sentence.rstrip('.')}."


def _create_log(engine: Engine, config: Mapping[str, object]) -> Log:
    """Create a topic whose log has several segments, and return the log."""
    engine.create_topic("paths", config=config)
    log = engine.log("paths", 0)
    _fill(log, 0)
    return log


def _fill(log: Log, first_number: int) -> None:
    for number in range(first_number, first_number + _APPENDS):
        log.append(_records(number))


def _records(number: int) -> list[Record]:
    """Return records for one append: compaction keeps half of them, because other appends do not have their keys."""
    keys = [b"%d" % key for key in range(50)] + [b"%d-%d" % (number, key) for key in range(50)]
    return [Record(key=key, value=b"v" * 100, timestamp_ms=_TIME_MS) for key in keys]


def _calls(work: Callable[[], object]) -> list[Call]:
    """Return the calls of stratalog's functions that ``work`` makes on this thread."""
    calls, running = list[Call](), list[int]()

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        del argument
        module = frame.f_globals.get("__name__", "")
        if not isinstance(module, str) or not module.startswith("stratalog"):
            return
        if event == "call":
            calls.append(Call(running[-1] if running else None, module, frame.f_code.co_qualname))
            running.append(len(calls) - 1)
        elif event == "return":
            running.pop()

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
