from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import InvalidRecordError
from stratalog.model.messages.transactions_topic import (
    TRANSACTION_KEY,
    TRANSACTION_STATE,
    TransactionKey,
    TransactionPartitions,
    TransactionRecord,
    TransactionState,
    TransactionStatus,
    parse_transaction_record,
)
from vectors import VECTORS as CHECKED

VECTORS = {vector["name"]: vector for vector in CHECKED["vectors"]}
STATES = [name for name in VECTORS if name.startswith("txn_log_value_")]
KEY = TransactionKey(transactional_id="tx")


def raw(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name]["hex"])


def state_of(inputs: dict[str, Any]) -> TransactionState:
    partitions = inputs["partitions"]
    return TransactionState(
        producer_id=inputs["producer_id"],
        producer_epoch=inputs["epoch"],
        timeout_ms=inputs["timeout_ms"],
        status=inputs["status"],
        partitions=None
        if partitions is None
        else tuple(TransactionPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in partitions),
        last_update_timestamp_ms=inputs["last_update"],
        start_timestamp_ms=inputs["start"],
        previous_producer_id=inputs.get("previous_producer_id", -1),
        next_producer_id=inputs.get("next_producer_id", -1),
        client_transaction_version=inputs.get("client_transaction_version", 0),
    )


@pytest.mark.parametrize("name", STATES)
def test_states_of_every_version(name: str) -> None:
    inputs = VECTORS[name]["inputs"]
    state = state_of(inputs)
    assert parse_transaction_record(raw("txn_log_key_v0"), raw(name)) == TransactionRecord(
        KEY, state, inputs["version"]
    )
    assert TRANSACTION_STATE.encode(state, inputs["version"]) == raw(name)
    assert TransactionStatus(state.status).name in {"EMPTY", "ONGOING"}


def test_keys_and_tombstones() -> None:
    assert parse_transaction_record(raw("txn_log_key_v0"), None) == TransactionRecord(KEY, None, None)
    assert TRANSACTION_KEY.encode(KEY, 0) == raw("txn_log_key_v0")


def test_unknown_tagged_fields_are_skipped() -> None:
    data = raw("txn_log_value_v1_ongoing")
    end = len(bytes.fromhex("000200080000000000000f9f02020002")) - 1
    tagged = data[:-end]
    assert data[-end] == 2
    extended = tagged + b"\3" + data[-end + 1 :] + b"\x09\x03abc"
    result, expected = (parse_transaction_record(raw("txn_log_key_v0"), value) for value in (extended, data))
    assert result == expected


def test_a_key_of_a_later_version_is_passed_over() -> None:
    assert parse_transaction_record(b"\0\1anything", None) is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (None, None, "no key"),
        (b"", None, "inside its fields"),
        (raw("txn_log_key_v0")[:-1], None, "inside its fields"),
        (raw("txn_log_key_v0"), b"\0\2" + raw("txn_log_value_v1_ongoing")[2:], "version 2"),
        (raw("txn_log_key_v0"), raw("txn_log_value_v0_ongoing")[:-1], "inside its fields"),
    ],
)
def test_bad_bytes_are_refused(key: bytes | None, value: bytes | None, said: str) -> None:
    with pytest.raises(InvalidRecordError, match=said):
        parse_transaction_record(key, value)


@given(st.sampled_from([b"\0\0", b"\0\1"]), st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(version: bytes, rest: bytes) -> None:
    with contextlib.suppress(InvalidRecordError):
        parse_transaction_record(raw("txn_log_key_v0"), version + rest)
