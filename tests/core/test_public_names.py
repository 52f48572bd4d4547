from __future__ import annotations

import subprocess
import sys

import pytest

import stratalog

LOADED = "import stratalog, sys; print(*(name for name in sys.modules if name.startswith('stratalog.')))"


def run(program: str) -> str:
    """Run ``program`` in a new interpreter, and return its output."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603 - our own interpreter


def test_importing_the_package_imports_no_room() -> None:
    assert run(LOADED) == ""


def test_importing_the_package_imports_nothing_that_is_not_used() -> None:
    program = "import sys; before = set(sys.modules); import stratalog; print(*sorted(set(sys.modules) - before))"
    assert [name for name in run(program).split() if name.partition(".")[0] not in sys.stdlib_module_names] == [
        "stratalog"
    ]


def test_every_public_name_is_imported_at_its_first_use() -> None:
    for name in stratalog.__all__:
        assert getattr(stratalog, name).__module__.startswith("stratalog."), name


def test_the_public_names_are_listed_before_they_are_imported() -> None:
    names = run("import stratalog; print(*dir(stratalog))").split()
    assert set(stratalog.__all__) <= set(names)


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'stratalog' has no attribute 'nothing'"):
        getattr(stratalog, "nothing")  # noqa: B009 - a type checker refuses the plain access, as it should
