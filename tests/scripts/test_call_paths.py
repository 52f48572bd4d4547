"""The script that counts modules on the way of a call; and how many a local fetch goes through."""

from __future__ import annotations

from pathlib import Path

import pytest
from call_paths import Call, main, paths, picture
from pictures import TreeBox

from stratalog_formats.kernels.choice import KERNELS

MOST_MODULES = 13 if KERNELS.select_batches is not None else 30  # of a local fetch; a higher number needs a reason


def test_a_local_fetch_goes_through_few_modules(tmp_path: Path) -> None:
    found = paths(tmp_path)
    assert set(found) == {"append", "local fetch", "cold fetch", "offload"}
    modules = {call.module for call in found["local fetch"]}
    assert {"stratalog.log.read.fetch", "stratalog.segment.batch_lookup"} <= modules
    assert len(modules) <= MOST_MODULES, sorted(modules)
    assert "stratalog.tier.read.fetcher" in {call.module for call in found["cold fetch"]}


def test_each_path_is_printed_with_its_modules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "local fetch: " in shown
    assert "stratalog.log.read.fetch" in shown


def test_a_picture_shows_the_first_call_into_each_room_that_is_no_constructor() -> None:
    calls = [
        Call("", "stratalog.log.log", "Log.append"),
        Call("stratalog.log.log", "stratalog.env.clock", "SystemClock.now_ms"),
        Call("stratalog.log.log", "stratalog.log.append.commit", "commit"),
        Call("stratalog.log.append.commit", "stratalog.log.append.append", "append"),
        Call("stratalog.log.append.commit", "stratalog_local.folder", "Folder.__init__"),
        Call("stratalog.log.log", "stratalog_local.folder", "Folder.list"),
    ]
    boxes, steps = picture(calls)
    assert boxes == [
        TreeBox(None, "", ("caller",)),
        TreeBox(0, "1 append", ("log", "log")),
        TreeBox(1, "2 commit", ("log/append", "commit, append")),
        TreeBox(1, "3 list", ("stratalog_local", "folder")),
    ]
    described, _, chosen = steps
    assert described.startswith("1. `append` in `log`: Append records as leader")
    assert chosen == "3. `list` in `folder`: Return the entries of the folder, sorted by name."


def test_a_picture_of_many_rooms_merges_the_rooms_inside_a_large_room() -> None:
    calls = [
        Call("", "stratalog.engine.engine", "Engine.offload"),
        *(Call("stratalog.engine.engine", f"stratalog.tier.room{n}.module{n}", f"step{n}") for n in range(10)),
    ]
    modules = ("module0, module1", "module2, module3", "module4, module5", "module6, 3 more")
    assert picture(calls)[0] == [
        TreeBox(None, "", ("caller",)),
        TreeBox(0, "1 offload", ("engine", "engine")),
        TreeBox(1, "2 step0", ("tier", *modules)),
    ]
