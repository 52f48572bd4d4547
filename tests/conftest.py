from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.reading.open_reader import open_host
from stratalog.segment.components import Components
from stratalog.testing.s3 import LocalS3

# The examples are the same in every run, and have no deadline: a slow machine must not fail a test.
hypothesis.settings.register_profile("stratalog", deadline=None, derandomize=True)
hypothesis.settings.load_profile("stratalog")

InstallDistribution = Callable[..., None]

# Folders whose tests all belong to the long tier: they start brokers, Spark or benchmarks, or try many mutants.
LONG_FOLDERS = {Path(__file__).parent / name for name in ("benchmarks", "fuzz", "oracle", "spark")}
LONG_PREFIXES = tuple(f"{folder}/" for folder in LONG_FOLDERS)

# Files whose long tests take minutes. They start first, so that none of them is left for one process at the end.
SLOWEST = (
    "tests/plugins/s3/test_killed.py",
    "tests/core/tier/test_search.py",
    "tests/core/registry/test_wrong_beside_s3.py",
    "tests/core/registry/test_wrong_components.py",
    "tests/core/engine/test_changed_files.py",
    "tests/benchmarks/test_tier_benchmark.py",
    "tests/core/log/test_power_loss.py",
    "tests/core/writing/test_tier_faults.py",
    "tests/core/engine/test_two_tiers.py",
    "tests/core/engine/test_tier_damage.py",
    "tests/core/log/test_replication.py",
)

GC_THRESHOLDS = (10_000, 10, 10)  # 14 times fewer collections than by default

STATE_PARTITIONS = ("STRATALOG_OFFSETS_TOPIC_NUM_PARTITIONS", "STRATALOG_TRANSACTION_STATE_LOG_NUM_PARTITIONS")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip folders that have only long tests, or files without long tests, if no test of them is selected.

    Importing these files takes seconds.
    """
    if config.option.markexpr == "not long":
        return True if collection_path in LONG_FOLDERS else None
    return True if config.option.markexpr == "long" and not may_have_long_tests(collection_path) else None


def may_have_long_tests(path: Path) -> bool:
    """Return False if ``path`` is a test file without a long test."""
    if str(path).startswith(LONG_PREFIXES) or path.suffix != ".py" or not path.name.startswith("test_"):
        return True
    return "mark.long" in path.read_text(encoding="utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of some folders as long, and move the slowest files to the front.

    Fails if a file has a long test, but does not contain the mark: ``-m long`` would not collect the file.
    """
    for item in items:
        if str(item.path).startswith(LONG_PREFIXES):
            item.add_marker(pytest.mark.long)
    for path in {item.path for item in items if item.get_closest_marker("long")}:
        if not may_have_long_tests(path):
            raise pytest.UsageError(f"{path} has long tests without pytest.mark.long in the file")
    first = {str(Path(__file__).parents[1] / name): place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: first.get(str(item.path), len(first)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected, and exclude their objects, a million, from later collections.

    The tests create many objects and leave few. With Python's thresholds, every tenth second of a run is spent on
    searches for garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        # in Python 3.14, Hypothesis warns if it makes its random generator after gc.freeze()
        hypothesis.given(hypothesis.strategies.none())(lambda _: None)()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """Make ``fsync`` check only its descriptor: no test cuts the power, and syncs would take a minute in total."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session", autouse=True)
def _plugins_found_once() -> Iterator[None]:
    """Read the entry points and the metadata of the installed packages only once, unless the import path changes.

    If only folders were added at its beginning, only these folders are read again.
    """
    search, path = importlib.metadata.entry_points, tuple(sys.path)
    installed: Any = search()

    def found(**criteria: Any) -> Any:
        added = sys.path[: max(0, len(sys.path) - len(path))]
        if tuple(sys.path) == path:
            return installed.select(**criteria) if criteria else installed
        if not criteria or (*added, *path) != tuple(sys.path):  # without criteria, Python 3.11 returns a mapping
            return search(**criteria)
        distributions = [*importlib.metadata.distributions(path=added)]
        # from Python 3.12 on, reading the name of a distribution without metadata is a warning
        hidden = {distribution.name for distribution in distributions if "Name" in set(distribution.metadata)}
        points = [point for one in distributions for point in one.entry_points if point.matches(**criteria)]
        points += (point for point in installed.select(**criteria) if point.dist.name not in hidden)
        return importlib.metadata.EntryPoints(points)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", found)
        # entry points that were found once have the same distributions each time
        kind = importlib.metadata.Distribution
        patch.setattr(kind, "metadata", property(functools.cache(vars(kind)["metadata"].fget)))
        yield


@pytest.fixture(scope="session", autouse=True)
def _few_state_partitions() -> Iterator[None]:
    """Create the internal topics of groups and transactions with 4 partitions instead of Kafka's 50."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in STATE_PARTITIONS:
            patch.setenv(variable, "4")
        yield


@pytest.fixture
def kafkas_state_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the internal topics of groups and transactions with Kafka's number of partitions."""
    for variable in STATE_PARTITIONS:
        monkeypatch.delenv(variable)


@pytest.fixture(scope="session")
def local_s3(local_s3: LocalS3) -> Iterator[LocalS3]:
    """Return the shared S3 server. Its clients load no certificates, not even those that the environment names."""
    from s3_client_data import client_data_loaded_once  # noqa: PLC0415 - slow to import

    with pytest.MonkeyPatch.context() as patch, client_data_loaded_once():
        for variable in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
            patch.delenv(variable, raising=False)
        yield local_s3


@pytest.fixture(scope="session")
def components() -> Iterator[Components]:
    """Yield the installed formats, codecs and indexes, with the default settings of a topic."""
    with open_host(Settings(), (), None) as host:
        yield host.components(TopicConfig())


@pytest.fixture
def only_new_objects() -> None:
    """Exclude the objects of earlier tests from ``gc.get_objects``, which would take seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def install_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstallDistribution]:
    """Return a function that makes a distribution look installed: a dist-info folder and modules on the import path.

    The fixture is ``install(name, entry_points={"acme": "acme_plugin"}, modules={"acme_plugin": "source"},
    requires=["lib; extra == 'x'"], version="1.0")``. Its modules are removed from ``sys.modules`` after the test.
    """
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(
        name: str,
        *,
        entry_points: Mapping[str, str],
        modules: Mapping[str, str] | None = None,
        requires: Sequence[str] = (),
        version: str = "1.0",
        metadata: bool = True,
    ) -> None:
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        if metadata:
            lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
            lines += [f"Requires-Dist: {line}" for line in requires]
            (folder / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        points = "\n".join(f"{key} = {value}" for key, value in entry_points.items())
        (folder / "entry_points.txt").write_text(f"[stratalog.v1]\n{points}\n", encoding="utf-8")
        for module, source in (modules or {}).items():
            (site / f"{module}.py").write_text(source, encoding="utf-8")

    yield install
    for module, loaded_module in list(sys.modules.items()):
        if str(getattr(loaded_module, "__file__", None) or "").startswith(str(site)):
            del sys.modules[module]
