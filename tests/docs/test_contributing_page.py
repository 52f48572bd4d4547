"""CONTRIBUTING shows the same order of packages and modules that import-linter checks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
LAYERS = {contract["containers"][0]: contract["layers"] for contract in CONTRACTS if "containers" in contract}


def chain(layers: list[str]) -> str:
    """Return layers in the notation of CONTRIBUTING."""
    return " > ".join(", ".join(layer.split(" | ")) for layer in layers if layer != "__main__")


def test_the_packages_are_in_the_order_that_is_checked() -> None:
    assert chain(LAYERS["stratalog"]) in PAGE


@pytest.mark.parametrize("room", sorted(LAYERS.keys() - {"stratalog"}))
def test_the_modules_of_a_large_package_are_in_the_order_that_is_checked(room: str) -> None:
    name = room.removeprefix("stratalog.")
    assert re.search(rf"^{name}: +{re.escape(chain(LAYERS[room]))}$", PAGE, re.MULTILINE)
