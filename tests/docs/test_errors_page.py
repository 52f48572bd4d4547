from __future__ import annotations

import inspect
import re
from pathlib import Path

import error_examples
import pytest

from stratalog import errors

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/errors.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
CLASSES = {name: kind for name in errors.__all__ if inspect.isclass(kind := getattr(errors, name))}
BASES = {kind.__mro__[1].__name__ for kind in CLASSES.values() if kind.__mro__[1].__subclasses__()[1:]}


def test_the_page_has_every_public_class_and_its_meaning() -> None:
    assert set(SECTIONS) == set(CLASSES)
    for name, kind in CLASSES.items():
        assert (inspect.getdoc(kind) or "").splitlines()[0].replace("``", "`") in SECTIONS[name]


@pytest.mark.parametrize("name", sorted(error_examples.EXAMPLES))
def test_the_example_of_the_page_is_the_text_that_the_code_raises(name: str, tmp_path: Path) -> None:
    assert f"```\n{error_examples.text_of(name, tmp_path)}\n```" in SECTIONS[name]


def test_every_class_that_the_code_raises_has_an_example() -> None:
    assert set(CLASSES) - set(error_examples.EXAMPLES) <= BASES
