"""Conversion of the output of ``stratalog dump --json`` to the objects of Kafka's dump tool, to compare both."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

from dump_parser import DumpedBatch, DumpedFile, DumpedRecord
from stratalog.model.batches import TimestampType
from stratalog.model.messages.offsets_topic import OffsetsType
from stratalog.model.offsets import OffsetPosition, TimestampOffset
from stratalog.model.segment_info import AbortedTransaction
from stratalog.producers.snapshot import ProducerEntry

Item = dict[str, Any]
_TYPES: Final = {str(kind): kind for kind in TimestampType}
_COMMON: Final = ("magic", "position", "size_bytes", "last_offset", "max_timestamp_ms", "codec", "crc", "valid")
_V2: Final = (
    "base_offset", "count", "base_sequence", "last_sequence", "producer_id", "producer_epoch", "leader_epoch",
    "transactional", "control", "delete_horizon_ms",
)  # fmt: skip
_DECODED: Final = re.compile(r"key: (?P<key>\{.*?\}\}) payload: (?P<payload>.*)", re.DOTALL)
_MARKER: Final = re.compile(r"endTxnMarker: (?P<type>\w+) coordinatorEpoch: (?P<epoch>-?\d+)")


def dumped_file(name: str, items: list[Item]) -> DumpedFile:
    """Return the items of one file as the object that ``dump_parser`` makes of the tool's output."""
    dumped = DumpedFile(name)
    for item in items:
        kind = item["kind"]
        if kind == "batch":
            dumped.batches.append(_batch(item))
        elif kind == "offset_entry":
            dumped.offset_entries.append(OffsetPosition(item["offset"], item["position"]))
        elif kind == "time_entry":
            dumped.time_entries.append(TimestampOffset(item["timestamp_ms"], item["offset"]))
        elif kind == "aborted_transaction":
            names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
            dumped.aborted.append(AbortedTransaction(*(item[name] for name in names)))
        elif kind == "producer":
            dumped.producers.append(ProducerEntry(**{name: item[name] for name in ProducerEntry._fields}))
        else:
            raise AssertionError(f"{name}: {item}")
    return dumped


def _batch(item: Item) -> DumpedBatch:
    values = {name: item[name] for name in (*_COMMON, *(_V2 if item["magic"] == 2 else ()))}
    records = [
        DumpedRecord(
            record["offset"],
            _TYPES[record["timestamp_type"]],
            record["timestamp_ms"],
            record["key_size"],
            record["value_size"],
            record["sequence"],
            ",".join(record["header_keys"]),
            record.get("crc", item["crc"]) if item["magic"] < 2 else None,
        )
        for record in item["records"]
    ]
    return DumpedBatch(timestamp_type=_TYPES[item["timestamp_type"]], records=records, **values)


def agrees(record: Item, said: str) -> bool:
    """Return True if ``said``, the decoded part of a line of Kafka's tool, agrees with the record.

    stratalog does not decode the records of Kafka's cluster metadata and remote log metadata topics.
    """
    if not said or said.startswith("payload: "):
        return "decoded" not in record and "control_record" not in record
    marker = _MARKER.fullmatch(said)
    if marker:
        return bool(record["control_record"] == {"type": marker["type"], "coordinator_epoch": int(marker["epoch"])})
    if "control_record" in record:
        name, _, content = said.partition(": ")
        control: Item = dict(record["control_record"])
        kind = str(control.pop("type")).replace("_", "")
        return kind == name.upper() and _leader_change(control) == _json(content)
    decoded = _DECODED.fullmatch(said)
    assert decoded, said
    meaning: Item = record["decoded"]
    return _key(meaning) == _json(decoded["key"]) and _payload(meaning) == _json(decoded["payload"])


def _json(payload: str) -> Item | None:
    if not payload.startswith("{"):
        return None  # a tombstone, which the tool prints with other words
    item: Item = json.loads(payload)
    return item


def _leader_change(control: Item) -> Item:
    def voters(voter_items: list[Item]) -> list[Item]:
        return [{"voterId": voter["voter_id"]} for voter in voter_items]

    return {
        "version": control["version"],
        "leaderId": control["leader_id"],
        "voters": voters(control["voters"]),
        "grantingVoters": voters(control["granting_voters"]),
    }


def _key(decoded: Item) -> Item:
    if decoded["type"] == "TRANSACTION_STATE":
        return {"type": "0", "data": {"transactionalId": decoded["key"]["transactional_id"]}}
    return {"type": str(OffsetsType[decoded["type"]].value), "data": decoded["key"]}


def _payload(decoded: Item) -> Item | None:
    value, version = decoded["value"], decoded["value_version"]
    if value is None:
        return None
    forms = {
        "TRANSACTION_STATE": _transaction,
        "OFFSET_COMMIT": _commit,
        "OLD_OFFSET_COMMIT": _commit,
        "GROUP_METADATA": _group,
    }
    return {"version": str(version), "data": forms[decoded["type"]](value, version)}


def _commit(value: Item, version: int) -> Item:
    item = {
        "offset": value["offset"],
        "metadata": value["metadata"],
        "commitTimestamp": value["commit_timestamp_ms"],
    }
    if version == 1:
        item["expireTimestamp"] = value["expire_timestamp_ms"]
    if version >= 3:
        item["leaderEpoch"] = value["leader_epoch"]
    return item


def _group(value: Item, version: int) -> Item:
    item = {name: value[name] for name in ("generation", "protocol", "leader")}
    if version >= 2:
        item["currentStateTimestamp"] = value["state_timestamp_ms"]
    members = [_member(member, version) for member in value["members"]]
    return {**item, "protocolType": value["protocol_type"], "members": members}


def _member(member: Item, version: int) -> Item:
    subscription, assignment = member["subscription"], member["assignment"]
    item = {
        "memberId": member["member"],
        "clientId": member["client_id"],
        "clientHost": member["client_host"],
        "sessionTimeout": member["session_timeout_ms"],
        "subscription": {
            "topics": subscription["topics"],
            "userData": _base64(subscription, "user_data"),
            "ownedPartitions": subscription["owned_partitions"],
            "generationId": subscription["generation"],
            "rackId": subscription["rack"],
        },
        "assignment": {
            "assignedPartitions": assignment["partitions"],
            "userData": _base64(assignment, "user_data"),
        },
    }
    if version >= 1:
        item["rebalanceTimeout"] = member["rebalance_timeout_ms"]
    if version >= 3:
        item["groupInstanceId"] = member["instance"]
    return item


def _base64(item: Item, name: str) -> str | None:
    """Return a field in base64, as Kafka's tool always prints bytes; None if it is null."""
    if f"{name}_base64" in item:
        return str(item[f"{name}_base64"])
    return None if item[name] is None else base64.b64encode(item[name].encode()).decode()


def _transaction(value: Item, version: int) -> Item:
    partitions = value["partitions"]
    item = {
        "producerId": value["producer_id"],
        "producerEpoch": value["producer_epoch"],
        "transactionTimeoutMs": value["timeout_ms"],
        "transactionStatus": value["status"],
        "transactionPartitions": None
        if partitions is None
        else [{"topic": place["topic"], "partitionIds": place["partitions"]} for place in partitions],
        "transactionLastUpdateTimestampMs": value["last_update_timestamp_ms"],
        "transactionStartTimestampMs": value["start_timestamp_ms"],
    }
    tagged = {
        "previousProducerId": (value["previous_producer_id"], -1),
        "nextProducerId": (value["next_producer_id"], -1),
        "clientTransactionVersion": (value["client_transaction_version"], 0),
    }
    return item | {
        name: field_value for name, (field_value, default) in tagged.items() if version >= 1 and field_value != default
    }
