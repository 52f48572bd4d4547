from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path

import pytest

from broken_bed import DISTRIBUTION, SOURCE, Bed
from broken_parts import Breaker, Fault
from stratalog.spi import Codec, OpenContext, Provider, hookimpl

MakePlugin = Callable[..., types.ModuleType]


def _refuse_to_open(context: OpenContext) -> Codec:
    raise AssertionError(f"nothing may be opened here, not even with {context}")


@pytest.fixture
def make_plugin() -> MakePlugin:
    """Return a function that makes a module with hooks, as ``make_plugin("acme", codecs=[provider])``.

    If the value of a hook is callable, it becomes the hook's body.
    """

    def make(name: str, **hooks: object) -> types.ModuleType:
        module = types.ModuleType(name)
        for key, answer in hooks.items():
            body: Callable[..., object] = answer if callable(answer) else lambda answer=answer: answer
            setattr(module, f"stratalog_{key}", hookimpl(body))
        return module

    return make


@pytest.fixture
def provider() -> Callable[..., Provider[Codec]]:
    """Return a function that makes a provider that must not be opened: ``provider("zstd", version=2)``."""

    def make(name: str, version: int = 1, schemes: frozenset[str] = frozenset()) -> Provider[Codec]:
        return Provider(name=name, version=version, schemes=schemes, open=_refuse_to_open)

    return make


@pytest.fixture
def make_bed(tmp_path: Path, install_distribution: Callable[..., None]) -> Callable[[str, Fault], Bed]:
    """Return a function that makes a bed in which one method is broken in one way."""

    def make(method: str, fault: Fault) -> Bed:
        install_distribution(DISTRIBUTION, entry_points={"acme": "acme_parts"}, modules={"acme_parts": SOURCE})
        return Bed(tmp_path, Breaker(method, fault))

    return make
