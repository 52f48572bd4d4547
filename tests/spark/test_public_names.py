"""Public names of ``stratalog_spark``, which are imported at their first use."""

from __future__ import annotations

import sys

import pytest

import stratalog_spark
from stratalog.errors import PluginImportError


def test_a_name_whose_library_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stratalog_spark.session", raising=False)
    monkeypatch.delitem(vars(stratalog_spark), "local_session", raising=False)
    for module in (
        "pyspark",
        "pyspark.errors",
        "pyspark.sql",
    ):  # an import of a loaded submodule does not ask its package
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PluginImportError, match=r"local_session needs pyspark.*'stratalog\[spark\]'"):
        stratalog_spark.local_session  # noqa: B018 - the access imports


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'local_sesion'"):
        stratalog_spark.local_sesion  # noqa: B018 - a mistyped name
