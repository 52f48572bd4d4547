from __future__ import annotations

import os

import pytest

from requirement import Requirement, missing
from stratalog.extensions import SWITCH, absence, extension
from stratalog.model import records
from stratalog.registry.registry import Registry
from stratalog.tier.manifest import page_codec


def expected_extensions() -> list[str]:
    """Return the names of the compiled modules of the core and of all installed plugins."""
    offers = [offer for plugin in Registry.load().plugins() for kind in plugin.offers.values() for offer in kind]
    return sorted(
        {*records.EXTENSIONS, *page_codec.EXTENSIONS, *(module for offer in offers for module in offer.extensions)}
    )


def test_the_formats_name_their_compiled_modules() -> None:
    assert {module.split(".")[0] for module in expected_extensions()} >= {"stratalog", "stratalog_formats"}


@pytest.mark.parametrize("module", expected_extensions())
def test_a_compiled_twin_is_not_missing_unless_it_was_switched_off(module: str) -> None:
    """Without the compiled module, pure Python code would replace it: all other tests would pass, but it is slow."""
    if os.environ.get(SWITCH):
        pytest.skip(f"{SWITCH} is set")
    if reason := absence(module):
        missing(Requirement.KERNELS, f"{module} is {reason}")
    assert extension(module) is not None
