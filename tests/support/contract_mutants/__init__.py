"""Mutants of contracts: small components that each break one rule, and a run that finds which tests fail for them.

A rule is a test method of a contract class. Each module of this package has the mutants of one contract, in
``MUTANTS``.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from stratalog.errors import StorageError

_TESTS: Final = "from contract_mutants import collected\nglobals().update(collected())\n"
_NOTICED: Final = (AssertionError, pytest.fail.Exception, StorageError)


class MutantError(Exception):
    """An error of a type that no contract allows."""


@dataclass(frozen=True, kw_only=True)
class ContractMutants:
    """The mutants of one contract.

    Attributes:
        contract: subclass of the contract for the correct component.
        fixture: name of the fixture that returns the component.
        sound: returns a component that keeps all rules; its argument is a new folder.
        mutants: for each rule, a function like ``sound`` that returns a component that breaks the rule.
        fixtures: further fixtures, by name. Each function gets the component, and returns the value of the fixture.
        attributes: attributes of the contract class for the mutant of a rule.
    """

    contract: type[Any]
    fixture: str
    sound: Callable[[Path], Any]
    mutants: Mapping[str, Callable[[Path], Any]]
    fixtures: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def rules(self) -> set[str]:
        """Return the names of the test methods of the contract class and of its base classes."""
        return {name for name in dir(self.contract) if name.startswith("test_")}


def altered(sound: Any, **changes: Any) -> Any:
    """Replace methods and attributes of a component, and return it."""
    kind = type(sound)
    altered_type = type(f"Wrong{kind.__name__}", (kind,), {"__slots__": (), **changes})
    object.__setattr__(sound, "__class__", altered_type)
    for name in changes:
        # remove a compiled function that the instance has in place of the method
        getattr(sound, "__dict__", {}).pop(name, None)
    return sound


def result_of(kind: type[Any], method: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a method that calls ``kind.method`` and changes its result."""
    sound = getattr(kind, method)

    def changed(self: Any, *args: Any, **keywords: Any) -> Any:
        return change(sound(self, *args, **keywords))

    return changed


_classes: dict[str, type[Any]] = {}


def collected() -> Mapping[str, type[Any]]:
    """Return the test classes of the current run, for the file that pytest collects."""
    return _classes


class _Recorder:
    """Pytest plugin that records the outcomes of the tests of each rule."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[str]] = {}

    @staticmethod
    def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
        """Keep one test for each mutant: the rule that it breaks. Keep all tests of the correct component."""
        items[:] = [item for item in items if item.cls.rule in {"", item.originalname}]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Function, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Record the outcome of a test."""
        error = call.excinfo
        if call.when == "call" or error is not None:
            outcome = "passed"
            if error is not None:
                is_noticed = call.when == "call" and error.errisinstance((*_NOTICED, MutantError))
                outcome = "noticed" if is_noticed else f"{call.when}: {error.exconly()}"
                outcome = "skipped" if error.errisinstance(pytest.skip.Exception) else outcome
            self.outcomes.setdefault(item.originalname, []).append(outcome)
        return (yield)


def outcomes(found: ContractMutants, folder: Path, *, is_sound: bool = False) -> dict[str, list[str]]:
    """Run each rule of a contract in this process, with the mutant that breaks the rule, or with the correct component.

    Args:
        found: the mutants.
        folder: new folder for the tests.
        is_sound: True to run the correct component.

    Returns:
        For each rule, the outcome of each of its tests: ``passed``, ``noticed`` (the test failed as intended),
            ``skipped``, or the text of an unexpected error.
    """
    _classes.clear()
    if is_sound:
        _classes["TestSound"] = type("TestSound", (found.contract,), {"rule": "", **_fixtures(found, found.sound)})
    for rule, make in () if is_sound else found.mutants.items():
        body = {"rule": rule, **found.attributes.get(rule, {}), **_fixtures(found, make)}
        _classes[f"Test_{rule}"] = type(f"Test_{rule}", (found.contract,), body)
    folder.mkdir()
    file, settings = folder / "test_mutants.py", folder / "none.ini"
    file.write_text(_TESTS, encoding="utf-8")
    settings.write_text("[pytest]\n", encoding="utf-8")
    options = [f"-c{settings}", f"--rootdir={folder}", f"--basetemp={folder / 'temp'}", "--import-mode=importlib"]
    options += ["-q", "-Wignore", "--tb=no", "-pno:cacheprovider", "-pno:faulthandler", "-pno:xdist"]
    options += ["-pno:unraisableexception"]  # collects the garbage of the whole process twice
    recorder = _Recorder()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in ("CI", "BUILD_NUMBER"):
            patch.delenv(name, raising=False)  # with these, pytest compares large values for minutes
        pytest.main([*options, str(file)], plugins=[recorder])
    sys.modules.pop(file.stem, None)
    return recorder.outcomes


def _fixtures(mutants: ContractMutants, make: Callable[[Path], Any]) -> dict[str, Any]:
    def component(self: Any, tmp_path: Path) -> Any:  # noqa: ARG001 - a method of a test class
        return make(tmp_path)

    fixtures = {mutants.fixture: pytest.fixture(name=mutants.fixture)(component)}
    for name, part_of in mutants.fixtures.items():
        fixtures[name] = _derived(name, mutants.fixture, part_of)
    return fixtures


def _derived(name: str, fixture: str, part_of: Callable[[Any], Any]) -> Any:
    def derived(self: Any, request: pytest.FixtureRequest) -> Any:  # noqa: ARG001 - a method of a test class
        return part_of(request.getfixturevalue(fixture))

    return pytest.fixture(name=name)(derived)
