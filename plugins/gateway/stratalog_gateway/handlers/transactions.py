"""Requests of transactional producers. As in Kafka, the coordinator stores the states in ``__transaction_state``.

Source: apache/kafka KafkaApis, TransactionCoordinator, AddPartitionsToTxnManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from stratalog import CommittedOffset, ProducerId, TopicPartition, TransactionState
from stratalog.errors import ConfigError, StorageError
from stratalog_gateway.error_codes import Code, RefusedError, coordinator_code
from stratalog_gateway.handlers.group_offsets import check_offsets
from stratalog_gateway.handlers.request import Outcome, Request, answer_partitions, code_answer, require, require_group
from stratalog_gateway.node import INTERNAL_TOPICS
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, ResourceType
from stratalog_gateway.wire.messages import to_ms

_NOBODY: Final = ProducerId(-1, -1)
_EPOCH_RAISING: Final = 2  # in this version, the end of a transaction increases the producer's epoch (KIP-890)
_FIRST_FENCED: Final = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
_FIRST_RAISING_END: Final = 5
_FIRST_ADDING_COMMIT: Final = 5
_FIRST_ABORTABLE_COMMIT: Final = 4
_FIRST_MANY: Final = 4  # first version of AddPartitionsToTxn with several transactions


def init_producer_id(request: Request) -> Any:
    """Return the response with a producer's id and epoch. Fence the previous producer of a transactional id."""
    producer = _NOBODY
    with Outcome() as outcome:
        producer = _new_producer(request)
    code = _coordinator_code(outcome.code, "InitProducerId", request.header.version)
    return request.make(error_code=code, producer_id=producer.producer_id, producer_epoch=producer.epoch)


def _new_producer(request: Request) -> ProducerId:
    body, client, engine = request.body, request.client, request.node.engine
    expected = ProducerId(request.field("producer_id", -1), request.field("producer_epoch", -1))
    if (expected.producer_id == -1) != (expected.epoch == -1) or body.transactional_id == "":
        raise RefusedError(Code.INVALID_REQUEST)
    if body.transactional_id is None:
        if not client.allows_any(Operation.WRITE, ResourceType.TOPIC):
            require(client, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
        return ProducerId(engine.new_producer_id(), 0)  # as in Kafka, always a new id
    require(client, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id)
    timeout_ms = to_ms(body.transaction_timeout)
    if not 0 < timeout_ms <= request.node.settings.transaction_max_ms:
        raise RefusedError(Code.INVALID_TRANSACTION_TIMEOUT)
    current = None if expected == _NOBODY else expected
    return engine.transactions.init_producer(body.transactional_id, timeout_ms, current)


def add_partitions_to_txn(request: Request) -> Any:
    """Add partitions to transactions, or check that transactions contain them. Return the response.

    If a partition of a transaction has an error, none of the transaction's requested partitions is added.
    """
    body, make = request.body, request.make
    if request.header.version >= _FIRST_MANY:  # only brokers send these versions
        require(request.client, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        results = []
        for transaction in body.transactions:
            producer = ProducerId(transaction.producer_id, transaction.producer_epoch)
            errors = _add_partitions(
                request, transaction.transactional_id, producer, transaction.topics, only_checks=transaction.verify_only
            )
            results.append(
                make.part(
                    "AddPartitionsToTxnResult",
                    transactional_id=transaction.transactional_id,
                    topic_results=_topic_results(request, transaction.topics, errors),
                )
            )
        return make(results_by_transaction=tuple(results))
    producer = ProducerId(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
    topics = body.v3_and_below_topics
    errors = _add_partitions(request, body.v3_and_below_transactional_id, producer, topics)
    return make(results_by_topic_v3_and_below=_topic_results(request, topics, errors))


def _add_partitions(
    request: Request, transactional_id: str, producer: ProducerId, topics: Iterable[Any], *, only_checks: bool = False
) -> dict[TopicPartition, int]:
    """Add partitions to a transaction. With ``only_checks``, only check that the transaction contains the partitions.

    Return an error code for each partition.
    """
    names = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
    version, client = request.header.version, request.client
    refusal = client.refusal(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    if refusal and version < _FIRST_MANY:
        return dict.fromkeys(names, refusal)
    errors = {name: _refusal(request, name) for name in names}
    if any(errors.values()):
        return {name: error or Code.OPERATION_NOT_ATTEMPTED for name, error in errors.items()}
    with Outcome() as outcome:
        if not transactional_id:
            raise RefusedError(Code.INVALID_REQUEST)
        transactions = request.node.engine.transactions
        act = transactions.check_partitions if only_checks else transactions.add_partitions
        act(transactional_id, producer, names)
    code = _coordinator_code(outcome.code, "AddPartitionsToTxn", version)
    if code == Code.INVALID_TXN_STATE:  # only of a check
        code = Code.TRANSACTION_ABORTABLE
    return dict.fromkeys(names, code)


def _refusal(request: Request, name: TopicPartition) -> int:
    if name.topic in INTERNAL_TOPICS or not request.client.allows(Operation.WRITE, ResourceType.TOPIC, name.topic):
        return Code.TOPIC_AUTHORIZATION_FAILED
    return Code.NONE if request.node.has_log(*name) else Code.UNKNOWN_TOPIC_OR_PARTITION


def add_offsets_to_txn(request: Request) -> Any:
    """Add a group's partition of ``__consumer_offsets`` to a transaction, and return the response."""
    body = request.body
    with Outcome() as outcome:
        require(request.client, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id)
        require_group(request)
        if not body.transactional_id:
            raise RefusedError(Code.INVALID_REQUEST)
        producer = ProducerId(body.producer_id, body.producer_epoch)
        request.node.engine.transactions.add_offsets(body.transactional_id, producer, body.group_id)
    return request.make(error_code=_coordinator_code(outcome.code, "AddOffsetsToTxn", request.header.version))


def end_txn(request: Request) -> Any:
    """Commit or abort a transaction, and return the response.

    From version 5 on, the end of a transaction increases the producer's epoch, and the response contains the new epoch.
    """
    body, version, producer = request.body, request.header.version, _NOBODY
    with Outcome() as outcome:
        require(request.client, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id)
        if not body.transactional_id:
            raise RefusedError(Code.INVALID_REQUEST)
        transactions = request.node.engine.transactions
        state = transactions.state(body.transactional_id)
        producer = transactions.end_decided(
            body.transactional_id,
            ProducerId(body.producer_id, body.producer_epoch),
            commit=body.committed,
            version=_EPOCH_RAISING if version >= _FIRST_RAISING_END else 0,
        )
        _wake(request, state)
    code = _coordinator_code(outcome.code, "EndTxn", version)
    return request.make(error_code=code, producer_id=producer.producer_id, producer_epoch=producer.epoch)


def _wake(request: Request, state: TransactionState | None) -> None:
    """Wake the fetches that wait for the partitions of a transaction.

    ``state`` is None if the transactional id is unknown.
    """
    for topic in () if state is None else state.partitions or ():
        for number in topic.partitions:
            request.node.wake_fetches(topic.topic, number)


def txn_offset_commit(request: Request) -> Any:
    """Store offsets of a group in a transaction. The commit of the transaction makes the offsets visible.

    Return the response with an error code for each partition.
    """
    body = request.body
    try:
        require(request.client, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id)
        require_group(request)
        member_id, generation = request.field("member_id", ""), request.field("generation_id", -1)
        instance_id = request.field("group_instance_id", None)
        with request.groups.table.committing(
            body.group_id, member_id, generation, instance_id, is_transactional=True
        ):  # fmt: skip
            errors = _commit_all(request, Code.NONE)
    except (RefusedError, StorageError) as error:
        code = coordinator_code(error)
        # producers do not know these codes, and treat them as fatal
        is_unknown = code in {Code.STALE_MEMBER_EPOCH, Code.GROUP_ID_NOT_FOUND}
        errors = _commit_all(request, Code.ILLEGAL_GENERATION if is_unknown else code)
    answer = code_answer(request, "TxnOffsetCommitResponsePartition", errors)
    return request.make(topics=answer_partitions(request, "TxnOffsetCommitResponseTopic", answer))


def _commit_all(request: Request, code_for_all: int) -> dict[tuple[str, int], int]:
    """Store the offsets of the request. Return the error code of each partition; 0 if the offset was stored.

    ``code_for_all`` is the error code for all partitions. It is 0 if the client may commit.
    """
    errors, offsets = check_offsets(request, [topic.name for topic in request.body.topics], code_for_all)
    if offsets:
        code = _commit(request, offsets)
        errors |= dict.fromkeys(offsets, code) if code else {}
    return errors


def _commit(request: Request, offsets: dict[TopicPartition, CommittedOffset]) -> int:
    body, version = request.body, request.header.version
    try:
        request.node.engine.transactions.commit_offsets(
            body.transactional_id,
            ProducerId(body.producer_id, body.producer_epoch),
            body.group_id,
            offsets,
            version=_EPOCH_RAISING if version >= _FIRST_ADDING_COMMIT else 0,
        )
    except ConfigError:  # a negative offset
        return Code.INVALID_REQUEST
    except StorageError as error:
        busy = Code.CONCURRENT_TRANSACTIONS if version >= _FIRST_ADDING_COMMIT else Code.COORDINATOR_NOT_AVAILABLE
        code = write_code(error, is_abortable=version >= _FIRST_ABORTABLE_COMMIT, busy=busy)
        return Code.NOT_COORDINATOR if code == Code.KAFKA_STORAGE_ERROR else code
    return Code.NONE


def write_code(error: StorageError, *, is_abortable: bool, busy: int) -> int:
    """Return Kafka's error code for an error of a write in a transaction.

    ``is_abortable`` is True if the version of the request knows TRANSACTION_ABORTABLE. ``busy`` is the code to return
    instead of CONCURRENT_TRANSACTIONS, which means that the end of a transaction is in progress.
    """
    if error.kafka_code == Code.PRODUCER_FENCED:
        return Code.INVALID_PRODUCER_EPOCH
    if error.kafka_code == Code.CONCURRENT_TRANSACTIONS:
        return busy
    if error.kafka_code == Code.INVALID_TXN_STATE and is_abortable:
        return Code.TRANSACTION_ABORTABLE
    return error.kafka_code


def _coordinator_code(code: int, api: str, version: int) -> int:
    """Return the error code of a coordinator's response.

    KAFKA_STORAGE_ERROR becomes NOT_COORDINATOR: in a coordinator's response, clients treat KAFKA_STORAGE_ERROR as fatal,
    and retry after NOT_COORDINATOR. PRODUCER_FENCED becomes INVALID_PRODUCER_EPOCH in versions of the API without
    PRODUCER_FENCED.

    Source: apache/kafka TransactionStateManager.appendTransactionToLog.
    """
    if code == Code.KAFKA_STORAGE_ERROR:
        return Code.NOT_COORDINATOR
    is_unknown = code == Code.PRODUCER_FENCED and version < _FIRST_FENCED[api]
    return Code.INVALID_PRODUCER_EPOCH if is_unknown else code


def _topic_results(request: Request, topics: Iterable[Any], errors: dict[TopicPartition, int]) -> tuple[Any, ...]:
    make = request.make
    return tuple(
        make.part(
            "AddPartitionsToTxnTopicResult",
            name=topic.name,
            results_by_partition=tuple(
                make.part(
                    "AddPartitionsToTxnPartitionResult",
                    partition_index=number,
                    partition_error_code=errors[TopicPartition(topic.name, number)],
                )
                for number in topic.partitions
            ),
        )
        for topic in topics
    )
