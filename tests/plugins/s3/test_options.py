from __future__ import annotations

import logging

import pytest

from stratalog import __version__
from stratalog.errors import ConfigError
from stratalog_s3.options import filesystem_options, quieten_botocore
from stratalog_s3.settings import S3Section
from stratalog_s3.tls import check_endpoint


@pytest.mark.parametrize(
    "url",
    [
        "https://store.example", "https://store.example:9000/", "http://127.0.0.1:9000", "http://127.1.2.3",
        "http://[::1]:9000", "http://localhost:9000", "http://bucket.localhost:9000",
    ],
)  # fmt: skip
def test_encrypted_and_loopback_endpoints_pass(url: str) -> None:
    check_endpoint(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://store.example", "http://10.0.0.1:9000", "http://localhost.example", "http://[::2]", "ftp://localhost",
        "localhost:9000", "", "https://", "https://user@store.example", "https://user:word@store.example",
        "http://127.0.0.1.example", "http://[::1", "http://0.0.0.0:9000",
    ],
)  # fmt: skip
def test_other_endpoints_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        check_endpoint(url)


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint_url": "http://store.example"},
        {"client_kwargs": {"endpoint_url": "http://store.example"}},
        {"client_kwargs": {"verify": False}},
        {"client_kwargs": {"endpoint_url": 9000}},
        {"endpoint_url": 9000},
        {"secret": 12345},
        {"anon": "perhaps"},
        {"s3_additional_kwargs": "a"},
        {"client_kwargs": "region"},
        {"config_kwargs": ["a"]},
        {"asynchronous": True},
        {"loop": None},
        {"use_listings_cache": True},
    ],
    ids=str,
)
def test_options_that_would_break_a_promise_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        filesystem_options(options)


def test_the_users_options_reach_s3fs_and_one_try_is_kept() -> None:
    options = filesystem_options(
        {
            "key": "k",
            "client_kwargs": {"region_name": "eu-north-1"},
            "config_kwargs": {"read_timeout": 3, "retries": {"max_attempts": 9}},
            "s3_additional_kwargs": {"ServerSideEncryption": "AES256"},
        }
    )
    assert options["key"] == "k"
    assert options["client_kwargs"] == {"region_name": "eu-north-1"}
    assert options["s3_additional_kwargs"] == {"ServerSideEncryption": "AES256"}
    assert options["config_kwargs"]["read_timeout"] == 3
    assert options["config_kwargs"]["retries"] == {"total_max_attempts": 1, "mode": "standard"}
    assert options["use_listings_cache"] is False


def test_requests_name_stratalog_unless_the_user_names_another_program() -> None:
    assert filesystem_options({})["config_kwargs"]["user_agent"] == f"stratalog/{__version__}"
    assert filesystem_options({"config_kwargs": {"user_agent": "mine"}})["config_kwargs"]["user_agent"] == "mine"


def test_a_wrong_credential_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        filesystem_options({"secret": 918_273_645})
    assert "918" not in str(caught.value)


def test_words_of_a_command_line_become_what_they_mean() -> None:
    options = filesystem_options({"anon": "false", "requester_pays": "TRUE", "max_concurrency": "3"})
    assert (options["anon"], options["requester_pays"], options["max_concurrency"]) == (False, True, 3)


def test_settings_determine_the_address_of_the_service() -> None:
    settings = S3Section(endpoint_url="https://store.example:9000", region="eu-north-1", addressing="virtual")
    options = filesystem_options({}, settings)
    assert options["endpoint_url"] == "https://store.example:9000"
    assert options["client_kwargs"] == {"region_name": "eu-north-1"}
    assert options["config_kwargs"]["s3"] == {"addressing_style": "virtual"}


def test_options_win_over_settings() -> None:
    settings = S3Section(endpoint_url="https://store.example", region="eu-north-1", addressing="virtual")
    options = filesystem_options(
        {
            "client_kwargs": {"endpoint_url": "https://other.example", "region_name": "us-east-1"},
            "config_kwargs": {"s3": {"addressing_style": "path", "payload_signing_enabled": True}},
        },
        settings,
    )
    assert "endpoint_url" not in options
    assert options["client_kwargs"] == {"endpoint_url": "https://other.example", "region_name": "us-east-1"}
    assert options["config_kwargs"]["s3"] == {"addressing_style": "path", "payload_signing_enabled": True}


def test_an_option_that_is_not_set_is_left_to_the_library() -> None:
    options = filesystem_options({"endpoint_url": None, "token": None})
    assert not {"endpoint_url", "token"} & set(options)
    assert options["client_kwargs"] == {}
    assert "s3" not in options["config_kwargs"]


@pytest.mark.parametrize(("before", "after"), [(0, logging.INFO), (logging.DEBUG, logging.INFO), (40, 40)])
def test_botocore_is_kept_at_info_or_above(before: int, after: int) -> None:
    logger = logging.getLogger("botocore")
    was = logger.level
    try:
        logger.setLevel(before)
        quieten_botocore()
        assert logger.level == after
    finally:
        logger.setLevel(was)
