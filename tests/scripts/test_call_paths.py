"""The script that counts the modules of a call, and upper limits for the modules of an append and of a fetch."""

from __future__ import annotations

from pathlib import Path

import pytest
from call_paths import Call, main, paths, picture
from pictures import TreeBox

from stratalog_formats.kernels.dispatch import KERNELS

COMPILED = KERNELS.select is not None
MOST_MODULES = {
    "append": 11 if COMPILED else 30,
    "local fetch": 12 if COMPILED else 30,
    "cold fetch": 28 if COMPILED else 40,
}
"""A higher number needs a reason."""


def test_an_append_and_a_fetch_use_few_modules(tmp_path: Path) -> None:
    found = paths(tmp_path)
    assert set(found) == {"append", "local fetch", "cold fetch", "offload"}
    modules = {path: {call.module for call in found[path]} for path in MOST_MODULES}
    assert {"stratalog.log.read.fetch", "stratalog.segment.batch_lookup"} <= modules["local fetch"]
    for path, most in MOST_MODULES.items():
        assert len(modules[path]) <= most, (path, sorted(modules[path]))
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
