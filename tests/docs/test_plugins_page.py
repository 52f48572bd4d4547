from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog import LogOffsets, TopicPartition
from stratalog.config.engine_settings import Limits
from stratalog.registry import Registry
from stratalog.spi import (
    CleanupPolicy,
    CodecTable,
    DeletePrefix,
    Env,
    HandlePool,
    LogSummary,
    OpenContext,
    SegmentSummary,
    TopicConfig,
)
from stratalog.testing import contracts

pytest_plugins = ["pytester"]
Install = Callable[..., None]

PAGE = (Path(__file__).resolve().parents[2] / "docs/plugins.md").read_text(encoding="utf-8")
SOURCE, _, CHECK, CONTRACT, ENGINE_CONTRACT, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PROJECT,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def installed(install_distribution: Install) -> str:
    """Install the plugin of the page as the page describes, and return the name of its entry point."""
    project: dict[str, Any] = tomllib.loads(PROJECT)["project"]
    points: dict[str, str] = project["entry-points"]["stratalog.v1"]
    (name,) = points
    install_distribution(
        project["name"], version=project["version"], entry_points=points, modules={points[name]: SOURCE}
    )
    return name


def a_log(closed: int) -> LogSummary:
    segments = tuple(
        SegmentSummary(
            base_offset=number * 10,
            end_offset=number * 10 + 10,
            size_bytes=100,
            age_from_ms=0,
            is_local=True,
            is_remote=False,
            is_active=number == closed,
        )
        for number in range(closed + 1)
    )
    end = segments[-1].end_offset
    return LogSummary(TopicPartition("orders", 0), LogOffsets(0, 0, 0, end, end, end), segments, has_tier=False)


def opened(registry: Registry) -> CleanupPolicy:
    env, limits = Env(), Limits()
    handles = HandlePool(env.files, limits.open_files)
    context = OpenContext(env=env, limits=limits, handles=handles, codecs=CodecTable())
    policy = registry.cleanup_policies().by_name("newest").open(context)
    handles.close()
    return policy


def test_the_example_is_short() -> None:
    assert len([line for line in SOURCE.splitlines() if line.strip()]) <= 15


def test_the_example_is_found_and_works_as_the_page_describes(installed: str) -> None:
    policy = opened(Registry.load(allow=(installed,)))
    assert list(policy.plan(a_log(10), TopicConfig(), 0)) == []
    (action,) = policy.plan(a_log(13), TopicConfig(), 0)
    assert isinstance(action, DeletePrefix)
    assert (action.start, action.end) == (0, 30)


@pytest.mark.usefixtures("installed")
def test_the_check_on_the_page_passes() -> None:
    exec(compile(CHECK, "docs/plugins.md", "exec"), {})  # noqa: S102 - the page's own example


@pytest.mark.usefixtures("installed")
def test_the_example_can_be_passed_without_its_entry_point() -> None:
    project = tomllib.loads(PROJECT)["project"]
    (module,) = project["entry-points"]["stratalog.v1"].values()
    registry = Registry.load([module], block=("acme",))
    assert registry.cleanup_policies().by_name("newest").label == "newest@1"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("source", [CONTRACT, pytest.param(ENGINE_CONTRACT, marks=pytest.mark.long)])
def test_the_contracts_are_passed_by_the_example(pytester: pytest.Pytester, source: str) -> None:
    pytester.makepyfile(source)
    outcome = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert outcome.ret == 0
    assert outcome.parseoutcomes()["passed"] > 5


def test_all_contracts_are_named_with_their_fixtures() -> None:
    contract_fixtures = dict(re.findall(r"^\| `(\w+Contract)` \| (.+?) \|", PAGE, re.MULTILINE))
    assert contract_fixtures.keys() == {name for name in contracts.__all__ if name.endswith("Contract")}
    for name, fixtures in contract_fixtures.items():
        for fixture in re.findall(r"`(\w+)`", fixtures):
            assert hasattr(getattr(contracts, name), fixture), (name, fixture)
