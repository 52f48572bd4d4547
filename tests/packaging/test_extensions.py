from __future__ import annotations

import os
from pathlib import Path

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


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("acme_fast", "cannot be loaded: acme_library is not installed"),
        ("acme_fast.absent", "cannot be loaded: acme_library is not installed"),
        ("acme_absent", "not built: install a C compiler"),
        ("acme_absent.inner", "not built: install a C compiler"),
    ],
)
def test_the_reason_for_a_missing_library_is_not_a_missing_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, reason: str
) -> None:
    (tmp_path / "acme_fast").mkdir()
    (tmp_path / "acme_fast" / "__init__.py").write_text("import acme_library.types\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(SWITCH, raising=False)
    assert extension(module) is None
    assert absence(module).startswith(reason)
