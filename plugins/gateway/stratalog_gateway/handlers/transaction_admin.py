"""ListTransactions, DescribeTransactions, DescribeProducers and WriteTxnMarkers.

Source: apache/kafka KafkaApis, TransactionStateManager.listTransactionStates, ReplicaManager.activeProducerState.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, Final

from stratalog_gateway.error_codes import Code
from stratalog_gateway.groups.consumer_coordinator import compile_pattern
from stratalog_gateway.handlers.request import Outcome, Request, check_topic_name, require
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, ResourceType

_STATES: Final = {  # names of states, by the number of a transaction's status
    0: "Empty",
    1: "Ongoing",
    2: "PrepareCommit",
    3: "PrepareAbort",
    4: "CompleteCommit",
    5: "CompleteAbort",
    6: "Dead",
    7: "PrepareEpochFence",
}
_START: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def list_transactions(request: Request) -> Any:
    """Return the response with transactional ids, producer ids and states of transactions.

    The request can select transactions by state, producer id, minimum time since the start of the transaction, and a
    regular expression that matches the complete transactional id.
    """
    body, make, now_ms = request.body, request.make, request.node.clock.now_ms()
    unknown = tuple(name for name in body.state_filters if name not in _STATES.values())
    states, producers = set(body.state_filters), set(body.producer_id_filters)
    open_ms, pattern = request.field("duration_filter", -1), request.field("transactional_id_pattern", None)
    expression = compile_pattern("TransactionalIdPattern", pattern) if pattern else None
    listed = []
    for transactional_id, state in sorted(request.node.engine.transactions.states().items()):
        if not request.client.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            continue
        name = _STATES.get(state.status, str(state.status))
        if (states and name not in states) or (producers and state.producer_id not in producers):
            continue
        if open_ms >= 0 and now_ms - state.start_timestamp_ms <= open_ms:
            continue
        if expression is not None and not expression.fullmatch(transactional_id):
            continue
        listed.append(
            make.part(
                "TransactionState",
                transactional_id=transactional_id,
                producer_id=state.producer_id,
                transaction_state=name,
            )
        )
    return make(unknown_state_filters=unknown, transaction_states=tuple(listed))


def describe_transactions(request: Request) -> Any:
    """Return the response with the transaction's state and partitions for each transactional id."""
    return request.make(
        transaction_states=tuple(
            _describe(request, transactional_id) for transactional_id in request.body.transactional_ids
        )
    )


def _describe(request: Request, transactional_id: str) -> Any:
    make, state, client = request.make, None, request.client
    with Outcome() as outcome:
        require(client, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        state = request.node.engine.transactions.state(transactional_id)
    if state is None:
        code = outcome.code or (Code.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else Code.INVALID_REQUEST)
        return make.part(
            "TransactionState",
            error_code=code,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout=dt.timedelta(),
            transaction_start_time=_START,
            producer_id=0,
            producer_epoch=0,
            topics=(),
        )
    return make.part(
        "TransactionState",
        transactional_id=transactional_id,
        transaction_state=_STATES.get(state.status, str(state.status)),
        transaction_timeout=dt.timedelta(milliseconds=state.timeout_ms),
        transaction_start_time=_START + dt.timedelta(milliseconds=state.start_timestamp_ms),
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        topics=tuple(
            make.part("TopicData", topic=topic.topic, partitions=topic.partitions)
            for topic in state.partitions or ()
            if client.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
        ),
    )


def describe_producers(request: Request) -> Any:
    """Return the response with the producers of each log, and the first offset of each open transaction."""
    make = request.make
    return make(
        topics=tuple(
            make.part(
                "TopicResponse",
                name=topic.name,
                partitions=tuple(_producers(request, topic.name, number) for number in topic.partition_indexes),
            )
            for topic in request.body.topics
        )
    )


def _producers(request: Request, topic: str, partition: int) -> Any:
    make = request.make
    producers: Iterable[Any] = ()
    with Outcome() as outcome:
        check_topic_name(topic)
        require(request.client, Operation.READ, ResourceType.TOPIC, topic)
        producers = request.node.log(topic, partition).producers()
    return outcome.part(
        make,
        "PartitionResponse",
        partition_index=partition,
        active_producers=tuple(
            make.part(
                "ProducerState",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_first_offset,
            )
            for producer in producers
        ),
    )


def write_txn_markers(request: Request) -> Any:
    """Append end markers to partitions, and return the response.

    An administrator sends this request if the coordinator of a transaction does not end it.
    """
    make, results = request.make, []
    for marker in request.body.markers:
        topics = []
        for topic in marker.topics:
            partitions = tuple(
                make.part(
                    "WritableTxnMarkerPartitionResult",
                    partition_index=number,
                    error_code=_write_marker(request, marker, topic.name, number),
                )
                for number in topic.partition_indexes
            )
            topics.append(make.part("WritableTxnMarkerTopicResult", name=topic.name, partitions=partitions))
        results.append(make.part("WritableTxnMarkerResult", producer_id=marker.producer_id, topics=tuple(topics)))
    return make(markers=tuple(results))


def _write_marker(request: Request, marker: Any, topic: str, number: int) -> int:
    with Outcome() as outcome:
        if not request.client.allows(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
            require(request.client, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        request.node.log(topic, number).end_transaction(
            marker.producer_id,
            marker.producer_epoch,
            commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
        )
    return outcome.code
