"""The script that counts the modules of a call, and upper limits for the modules of an append and of a fetch."""

from __future__ import annotations

from pathlib import Path

import pytest
from call_paths import STEPS, Call, main, paths, picture
from pictures import TreeBox

from stratalog_formats.kernels.dispatch import KERNELS

COMPILED = KERNELS.select is not None
MOST_MODULES = {
    "append": 10 if COMPILED else 21,
    "local fetch": 9 if COMPILED else 16,
    "cold fetch": 17 if COMPILED else 24,
}
"""A higher number needs a reason."""


def test_an_append_and_a_fetch_use_few_modules(tmp_path: Path) -> None:
    calls = paths(tmp_path)
    assert set(calls) == set(STEPS)
    modules = {path: {call.module for call in calls[path]} for path in MOST_MODULES}
    assert {"stratalog.log.read.fetch", "stratalog.log.read.batch_lookup"} <= modules["local fetch"]
    for path, max_modules in MOST_MODULES.items():
        assert len(modules[path]) <= max_modules, (path, sorted(modules[path]))
    assert "stratalog.tier.read.fetcher" in {call.module for call in calls["cold fetch"]}


def test_each_path_is_printed_with_its_modules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    output = capsys.readouterr().out
    assert "local fetch: " in output
    assert "stratalog.log.read.fetch" in output


CALLS = [
    Call(None, "stratalog.log.log", "Log.append"),
    Call(0, "stratalog.log.append.append", "commit"),
    Call(1, "stratalog.log.append.append", "_write"),
    Call(2, "stratalog.segment.appender", "Appender.append"),
    Call(0, "stratalog.log.log", "Log.flush"),
    Call(4, "stratalog.segment.appender", "Appender.append"),
]
APPEND, COMMIT, FLUSH = (
    "stratalog.log.log.Log.append",
    "stratalog.log.append.append.commit",
    "stratalog.log.log.Log.flush",
)
WRITE = "stratalog.segment.appender.Appender.append"


def test_an_arrow_leads_from_the_nearest_step_that_made_the_call() -> None:
    boxes, sentences = picture(CALLS, [APPEND, COMMIT, WRITE])
    assert boxes == [
        TreeBox(None, "caller"),
        TreeBox(0, "1  Log.append", "log/log"),
        TreeBox(1, "2  commit", "log/append/append"),
        TreeBox(2, "3  Appender.append", "segment/appender"),
    ]
    assert sentences[0].startswith("1. `Log.append` in `log/log`: Append records as leader")


def test_a_step_is_the_first_call_after_the_step_before() -> None:
    boxes, _ = picture(CALLS, [APPEND, FLUSH, WRITE])
    assert boxes[-1] == TreeBox(2, "3  Appender.append", "segment/appender")


def test_steps_that_are_not_called_in_their_order_are_refused() -> None:
    with pytest.raises(ValueError, match=f"{COMMIT} is not called after {FLUSH}"):
        picture(CALLS, [APPEND, FLUSH, COMMIT])
