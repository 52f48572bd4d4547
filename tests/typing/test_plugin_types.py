"""A type checker reports a plugin's wrong factory, method or hook, and accepts a correct plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api", reason="mypy is not installed")
pytestmark = pytest.mark.long  # mypy reads all of stratalog's types in each run

SOUND = """
from __future__ import annotations
from collections.abc import Iterable, Sequence
from stratalog.spi import Action, CleanupPolicy, Codec, LogSummary, OpenContext, Provider, TopicConfig, hookimpl


class Newest(CleanupPolicy):
    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        return []


def opened(context: OpenContext) -> CleanupPolicy:
    return Newest()


@hookimpl
def stratalog_cleanup_policies() -> Iterable[Provider[CleanupPolicy]]:
    return [Provider(name="newest", open=opened)]
"""
WRONG = {
    "a factory of another kind": """
PROVIDER = Provider[Codec](name="newest", open=opened)
""",
    "a factory without the context": """
def opened_without() -> CleanupPolicy:
    return Newest()


PROVIDER = Provider[CleanupPolicy](name="newest", open=opened_without)
""",
    "a hook that offers another kind": """
@hookimpl
def stratalog_codecs() -> Iterable[Provider[Codec]]:
    return [Provider(name="newest", open=opened)]
""",
    "a component without its method": """
class Empty(CleanupPolicy):
    pass


EMPTY = Empty()
""",
    "a method with another result": """
class Wrong(CleanupPolicy):
    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> int:
        return 0
""",
    "an asynchronous method": """
class Asynchronous(CleanupPolicy):
    async def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        return []
""",
}


def errors_of(tmp_path: Path, source: str) -> list[str]:
    file = tmp_path / "acme.py"
    file.write_text(source, encoding="utf-8")
    report, problems, _ = api.run(
        [str(file), "--strict", "--no-error-summary", "--config-file=", "--follow-imports=silent"]
    )
    assert not problems
    return [line for line in report.splitlines() if ": error: " in line]


def test_a_sound_plugin_has_no_type_errors(tmp_path: Path) -> None:
    assert errors_of(tmp_path, SOUND) == []


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_plugin_has_a_type_error(wrong: str, tmp_path: Path) -> None:
    assert errors_of(tmp_path, SOUND + WRONG[wrong])
