from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.config.settings_sources import Settings, plugin_values, read_settings
from stratalog.errors import ConfigError, UnknownSettingError

WHOLE = """
tier = "s3://bucket/prefix"
durability = "durable"
"store.retries" = 2

[log]
dirs = ["one", "two"]

[limits]
read.bytes = 2048

[topic_defaults]
"retention.ms" = 60_000
cleanup = { policy = "compact" }

[plugins]
allow = ["local", "s3"]
block = ["old"]

[plugins.s3]
region = "eu"
options = { client_kwargs = { endpoint_url = "http://localhost" } }
"""


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    path = tmp_path / "stratalog.toml"
    path.write_text(WHOLE, encoding="utf-8")
    return path


def check_whole(settings: Settings) -> None:
    assert settings.engine.tier == "s3://bucket/prefix"
    assert settings.engine.durability == "durable"
    assert settings.engine.store_retries == 2
    assert settings.engine.log_dirs == ("one", "two")
    assert settings.engine.plugins_allow == ("local", "s3")
    assert settings.engine.plugins_block == ("old",)
    assert settings.limits.read_bytes == 2048
    assert settings.topic_defaults == {"retention.ms": 60_000, "cleanup.policy": "compact"}
    assert settings.plugins == {
        "s3": {"region": "eu", "options": {"client_kwargs": {"endpoint_url": "http://localhost"}}}
    }


def test_a_file_is_read_whole(settings_file: Path) -> None:
    check_whole(read_settings(settings_file, {}))
    check_whole(read_settings(str(settings_file), {}))


def test_a_nested_mapping_equals_a_flat_one() -> None:
    check_whole(
        read_settings(
            {
                "tier": "s3://bucket/prefix",
                "durability": "durable",
                "store": {"retries": 2},
                "log.dirs": ["one", "two"],
                "limits.read.bytes": 2048,
                "topic_defaults": {"retention.ms": 60_000, "cleanup.policy": "compact"},
                "plugins.allow": "local,s3",
                "plugins": {"block": ["old"]},
                "plugins.s3": {"region": "eu", "options": {"client_kwargs": {"endpoint_url": "http://localhost"}}},
            },
            {},
        )
    )


def test_a_mapping_is_left_as_it_was() -> None:
    config = {"topic_defaults": {"retention.ms": 1}, "plugins": {"s3": {"region": "eu"}, "block": ["old"]}}
    read_settings(config, {})
    assert config == {"topic_defaults": {"retention.ms": 1}, "plugins": {"s3": {"region": "eu"}, "block": ["old"]}}


def test_without_sources_all_settings_are_defaults() -> None:
    assert read_settings(None, {}) == Settings()
    assert read_settings({}, {"PATH": "/bin", "STRATALOG_NO_EXTENSIONS": "1"}) == Settings()


def test_the_environment_wins_over_the_file(settings_file: Path) -> None:
    environment = {
        "STRATALOG_LOG_DIRS": "three,four",
        "STRATALOG_STORE_RETRIES": "9",
        "STRATALOG_LIMITS_READ_BYTES": "4096",
        "STRATALOG_TIER": "",
    }
    settings = read_settings(settings_file, environment)
    assert settings.engine.log_dirs == ("three", "four")
    assert settings.engine.store_retries == 9
    assert settings.engine.tier is None
    assert settings.limits.read_bytes == 4096
    assert settings.engine.durability == "durable"


def test_a_wrong_variable_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UnknownSettingError) as caught:
        read_settings(None, {"STRATALOG_LOGDIRS": "x"})
    assert (caught.value.source, caught.value.nearest) == ("environment", "STRATALOG_LOG_DIRS")
    with pytest.raises(ConfigError, match=r"store\.retries='many' .* source=environment"):
        read_settings(None, {"STRATALOG_STORE_RETRIES": "many"})


def test_a_variable_names_the_file_where_a_caller_names_none(settings_file: Path, tmp_path: Path) -> None:
    environment = {"STRATALOG_CONFIG": str(settings_file)}
    check_whole(read_settings(None, environment))
    assert read_settings({}, environment) == Settings()
    second_file = tmp_path / "other.toml"
    second_file.write_text("durability = 'written'", encoding="utf-8")
    assert read_settings(second_file, environment).engine.durability == "written"


def test_a_variable_with_a_missing_file_is_an_error_and_an_empty_variable_is_ignored(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no settings file at"):
        read_settings(None, {"STRATALOG_CONFIG": str(tmp_path / "missing.toml")})
    assert read_settings(None, {"STRATALOG_CONFIG": ""}) == Settings()


def test_a_file_in_the_working_directory_is_not_read_by_itself(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(settings_file.parent)
    assert read_settings(None, {}) == Settings()


def test_settings_of_plugins_come_from_the_environment() -> None:
    environment = {"STRATALOG_PLUGINS_S3_PART_BYTES": "6291456", "STRATALOG_PLUGINS_S3_ALLOW_HTTP": "true"}
    known_keys = {"s3": ["part.bytes", "allow_http"], "chunked": ["level"]}
    values = plugin_values(read_settings(None, environment), known_keys)
    assert values == {"s3": {"part.bytes": "6291456", "allow_http": "true"}}


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("STRATALOG_PLUGINS_S3_ALOW_HTTP", "STRATALOG_PLUGINS_S3_ALLOW_HTTP"),
        ("STRATALOG_PLUGINS_ALOW", "STRATALOG_PLUGINS_ALLOW"),
    ],
)
def test_a_variable_of_no_plugins_setting_is_an_error_with_the_nearest(variable: str, nearest: str) -> None:
    with pytest.raises(UnknownSettingError) as caught:
        plugin_values(read_settings(None, {variable: "x"}), {"s3": ["allow_http"]})
    assert (caught.value.source, caught.value.nearest) == ("environment", nearest)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("durabilty = 'durable'", "unknown setting 'durabilty' source=FILE; did you mean 'durability'"),
        ("[limits]\nreed.bytes = 5", "unknown setting 'limits.reed.bytes' source=FILE"),
        ("[topic_defaults]\n'retention.mz' = 5", "'retention.mz' source=FILE [topic_defaults]"),
        ("[topic_defaults]\n'retention.ms' = 'x'", "retention.ms='x'"),
        ("topic_defaults = 5", "[topic_defaults] must be a table source=FILE"),
        ("limits = 5", "unknown setting 'limits' source=FILE"),
        (
            "segment.bytes = 5",
            "'segment.bytes' source=FILE: write the topic setting 'segment.bytes' in [topic_defaults]",
        ),
        ("log.retention.ms = 5", "source=FILE: write the topic setting 'retention.ms' in [topic_defaults]"),
        ("plugins = 5", "unknown setting 'plugins' source=FILE"),
        ("[plugins]\nblok = ['x']", "did you mean 'plugins.block'"),
        ("'log.dirs' = ['a']\n[log]\ndirs = ['b']", "log.dirs is given twice source=FILE"),
        ("durability = 'sometimes'", "must be one of written, durable source=FILE"),
        ("durability = ", "FILE is not valid TOML"),
        ("tier = 'file:///a'\ntier.cache.dir = 'b'", 'such as "tier.cache.dir" beside tier'),
    ],
)
def test_an_error_in_a_settings_file_is_reported_with_its_path(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "stratalog.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_settings(path, {})
    assert told.replace("FILE", str(path)) in str(caught.value)


def test_a_byte_order_mark_and_line_ends_of_windows_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "stratalog.toml"
    path.write_bytes(b"\xef\xbb\xbftier = 'file:///a'\r\n[log]\r\ndirs = ['b']\r\n")
    settings = read_settings(path, {})
    assert (settings.engine.tier, settings.engine.log_dirs) == ("file:///a", ("b",))


def test_the_properties_of_a_broker_are_no_settings_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.dirs=/tmp/kafka-logs\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"not valid TOML.*: write the settings as in log.dirs = "):
        read_settings(path, {})


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no settings file at"):
        read_settings(tmp_path / "missing.toml", {})
    with pytest.raises(ConfigError, match="--set KEY=VALUE"):  # Kafka's own commands use --config for a setting
        read_settings(tmp_path / "segment.bytes=1000", {})
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_settings(tmp_path, {})
    (tmp_path / "latin.toml").write_bytes(b"tier = '\xe9'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_settings(tmp_path / "latin.toml", {})
