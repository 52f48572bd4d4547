"""No option, environment variable, file or session turns the verification of TLS off."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from aiobotocore.session import AioSession

from stratalog.errors import ConfigError
from stratalog.spi import ObjectStore
from stratalog_s3.direct import DirectSession
from stratalog_s3.options import filesystem_options
from stratalog_s3.settings import S3Section, TransportSection
from stratalog_s3.tls import check_bundle, check_client, check_endpoint, check_options, endpoints

OpenStore = Callable[..., ObjectStore]
UNVERIFIED = [False, 0, 0.0, -0.0, "", "  ", "false", "False", "0", "no", "off", [], (), {}, b"", 1, 2.5, {"a": True}]


@pytest.mark.parametrize("value", UNVERIFIED, ids=repr)
def test_verify_is_true_or_the_path_of_a_bundle(value: object) -> None:
    with pytest.raises(ConfigError, match=r"client_kwargs\.verify: TLS is always verified"):
        filesystem_options({"client_kwargs": {"verify": value}})


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(True, True), ("true", True), ("/etc/ca.pem", "/etc/ca.pem"), (Path("/etc/ca.pem"), "/etc/ca.pem")],
)
def test_a_bundle_is_handed_on(value: object, wanted: object) -> None:
    assert filesystem_options({"client_kwargs": {"verify": value}})["client_kwargs"] == {"verify": wanted}


def test_verify_that_is_not_given_leaves_the_default() -> None:
    assert filesystem_options({"client_kwargs": {"verify": None}})["client_kwargs"] == {}


@pytest.mark.parametrize("value", [False, 0, "false", "no", "0", 0.0, [], None])
@pytest.mark.parametrize("table", [False, True], ids=["option", "client_kwargs"])
def test_tls_is_not_left_out_by_use_ssl(value: object, table: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    options: dict[str, object] = {"client_kwargs": {"use_ssl": value}} if table else {"use_ssl": value}
    if value is None:
        assert "use_ssl" not in filesystem_options(options)
        return
    with pytest.raises(ConfigError, match="use_ssl"):
        filesystem_options(options)


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
@pytest.mark.parametrize("value", ["", " ", "false", "0"])
def test_a_variable_without_a_bundle_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    """Releases of botocore before 2026 do not verify certificates if the variable is empty."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"environment variable {variable}"):
        filesystem_options({})


@pytest.mark.parametrize("value", [*UNVERIFIED[:-3], None], ids=repr)
def test_the_session_that_sends_requests_verifies_whatever_set_it_up(value: object) -> None:
    with pytest.raises(ConfigError, match="TLS is always verified"):
        DirectSession(verify=value)


class _Client:
    """Stub of a botocore client with this configuration."""

    def __init__(self, **config: object) -> None:
        self.meta = self
        self.config = type("Config", (), {"connector_args": None, "proxies_config": None, **config})()


class _Session:
    """Stub of a botocore session, whose ``ca_bundle`` comes from AWS's file or from the caller."""

    def __init__(self, ca_bundle: object) -> None:
        self._ca_bundle = ca_bundle

    def get_config_variable(self, name: str) -> object:
        assert name == "ca_bundle"
        return self._ca_bundle


@pytest.mark.parametrize("value", [False, 0, "", " "])
def test_a_session_without_a_bundle_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="ca_bundle"):
        check_client(_Client(), _Session(value))


def test_a_context_that_does_not_verify_is_refused() -> None:
    context = ssl.create_default_context()
    check_client(_Client(connector_args={"ssl_context": context}), _Session(None))
    context.check_hostname = False
    with pytest.raises(ConfigError, match="ssl_context"):
        check_client(_Client(connector_args={"ssl_context": context}), _Session(None))
    context.verify_mode = ssl.CERT_NONE
    with pytest.raises(ConfigError, match="ssl_context"):
        check_client(_Client(connector_args={"ssl_context": context}), _Session(None))


def test_tls_does_not_end_at_a_proxy() -> None:
    with pytest.raises(ConfigError, match="proxy_use_forwarding_for_https"):
        check_client(_Client(proxies_config={"proxy_use_forwarding_for_https": True}), _Session(None))


def test_a_session_of_the_caller_is_checked_before_its_first_request(
    open_store: OpenStore, raw_server: Callable[[bytes | None], str], deadline_ns: int
) -> None:
    session = AioSession()
    session.set_config_variable("ca_bundle", "")
    endpoint = raw_server(b"HTTP/1.1 500 Never asked\r\nContent-Length: 0\r\n\r\n")
    store = open_store("s3://bucket", {"session": session, "endpoint_url": endpoint})
    with pytest.raises(ConfigError, match=r"(?i)bundle"):
        store.read("key", deadline_ns=deadline_ns)


def test_a_configuration_file_of_aws_without_a_bundle_is_refused(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline_ns: int
) -> None:
    (tmp_path / "config").write_text("[default]\nca_bundle =\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    store = open_store("s3://bucket", {"key": "k", "secret": "s", "endpoint_url": "https://127.0.0.1:1"})
    with pytest.raises(ConfigError, match=r"(?i)bundle"):
        store.read("key", deadline_ns=deadline_ns)


# --- other libraries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"verify": 0}, {"ssl_verify": False}, {"session_kwargs": {"verify_ssl": ""}}, {"a": {"b": {"verify": []}}}],
    ids=repr,
)
@pytest.mark.parametrize("uri", ["gs://bucket", "abfs://bucket", "webhdfs://host/folder"])
def test_options_of_other_libraries_keep_verification_on(
    open_store: OpenStore, uri: str, options: Mapping[str, object]
) -> None:
    with pytest.raises(ConfigError, match="TLS is always verified"):
        open_store(uri, options)


def test_contexts_and_bundles_are_handed_on_to_other_libraries() -> None:
    check_options({"verify": True, "ssl_verify": "/etc/ca.pem", "connection_verify": ssl.create_default_context()})


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint_url": "http://store.example:4443"},
        {"connection_string": "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=b=="},
        {"connection_string": "BlobEndpoint=http://store.example:10000/a;AccountName=a"},
    ],
    ids=repr,
)
def test_other_clouds_are_not_reached_in_the_clear_either(open_store: OpenStore, options: Mapping[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^the endpoint .*allow_http"):
        open_store("abfs://bucket", options)
    open_store("abfs://bucket", options, section=TransportSection(allow_http=True))


def test_addresses_are_found_in_a_connection_string() -> None:
    assert endpoints({"connection_string": "DefaultEndpointsProtocol=https;AccountName=a"}) == []
    addresses = endpoints({"endpoint_url": "https://one", "connection_string": "BlobEndpoint=http://two:1/a=b;X=y"})
    assert addresses == ["https://one", "http://two:1/a=b"]


# --- unencrypted endpoints ---------------------------------------------------------------------------------------


def test_an_endpoint_on_another_machine_needs_consent() -> None:
    with pytest.raises(ConfigError, match="allow_http"):
        check_endpoint("http://store.example:9000")
    assert check_endpoint("http://store.example:9000", allow_http=True) == "store.example"
    assert check_endpoint("https://store.example", allow_http=True) == ""
    assert check_endpoint("http://127.0.0.1:9000", allow_http=True) == ""


@pytest.mark.parametrize("url", ["http://user:word@store.example", "ftp://store.example", "store.example", ""])
def test_consent_allows_nothing_else(url: str) -> None:
    with pytest.raises(ConfigError):
        check_endpoint(url, allow_http=True)


def test_consent_does_not_turn_verification_off() -> None:
    with pytest.raises(ConfigError, match="use_ssl"):
        filesystem_options({"use_ssl": False}, S3Section(allow_http=True))
    with pytest.raises(ConfigError, match="verify"):
        filesystem_options({"client_kwargs": {"verify": False}}, S3Section(allow_http=True))


def test_a_bundle_is_typed_by_one_function() -> None:
    assert [check_bundle(value, "x") for value in (None, True, "TRUE", "/ca")] == [None, True, True, "/ca"]


@pytest.fixture(autouse=True)
def _no_files_of_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for variable in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
