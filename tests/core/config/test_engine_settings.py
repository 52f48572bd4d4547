from __future__ import annotations

import pytest

from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.errors import ConfigError


def test_engine_and_limits_share_no_name_not_even_as_a_variable() -> None:
    names = [*EngineConfig.keys(), *Limits.keys()]
    variables = {name.upper().replace(".", "_") for name in names}
    assert len(variables) == len(names)


def test_limits_have_names_of_their_own() -> None:
    assert all(name.startswith("limits.") for name in Limits.keys())  # noqa: SIM118 - the same


def test_preferred_stores_are_pairs() -> None:
    config = EngineConfig.from_mapping({"plugins.prefer": "S3=obstore, gs=gcs"}, "test")
    assert config.preferred_stores == {"s3": "obstore", "gs": "gcs"}
    assert EngineConfig().preferred_stores == {}


@pytest.mark.parametrize("value", ["s3", "s3=", "=obstore", "s3=a,S3=b"])
def test_preferences_that_are_no_pairs_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"plugins\.prefer="):
        EngineConfig.from_mapping({"plugins.prefer": value}, "test")


def test_durability_is_one_of_two() -> None:
    assert EngineConfig.from_mapping({"durability": "durable"}, "test").durability == "durable"
    with pytest.raises(ConfigError, match="written, durable"):
        EngineConfig.from_mapping({"durability": "forever"}, "test")
