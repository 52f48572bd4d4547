"""Error codes of Kafka's protocol, and the error with which the gateway refuses a request."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

from stratalog.errors import StorageError, UnknownTopicError

UNKNOWN_TOPIC: Final = "This server does not host this topic-partition."


class Code(IntEnum):
    """Error codes that the gateway sets itself. A ``StorageError`` has its own code.

    Source: apache/kafka Errors.
    """

    UNKNOWN = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


class RefusedError(Exception):
    """The gateway refuses a request, or one item of a request.

    Attributes:
        kafka_code: error code for the client. A ``StorageError`` has an attribute with the same name.
    """

    def __init__(self, code: Code, message: str = "") -> None:
        super().__init__(message or code.name)
        self.kafka_code = int(code)


def client_text(error: RefusedError | StorageError) -> str:
    """Return the text of an error for a client.

    The text of an UnknownTopicError names similar topics, which the client may not be allowed to see. The client gets
    Kafka's text instead.
    """
    return UNKNOWN_TOPIC if isinstance(error, UnknownTopicError) else str(error)


ErrorCodeOf: TypeAlias = Callable[[RefusedError | StorageError], int]
"""Type of a function that returns the error code of a response for an error."""


def own_code(error: RefusedError | StorageError) -> int:
    """Return the error code in the attribute ``kafka_code`` of the error."""
    return error.kafka_code


def coordinator_code(error: RefusedError | StorageError) -> int:
    """Return the error code with which the coordinator of a group answers a request.

    Clients do not expect the codes of storage errors from a coordinator. After COORDINATOR_NOT_AVAILABLE and
    NOT_COORDINATOR, clients retry. After UNKNOWN, a consumer fails. Source: apache/kafka
    GroupCoordinatorService.handleOperationException.
    """
    if isinstance(error, RefusedError):
        return error.kafka_code
    if error.kafka_code == Code.KAFKA_STORAGE_ERROR:
        return Code.NOT_COORDINATOR
    return Code.COORDINATOR_NOT_AVAILABLE if error.retriable else Code.UNKNOWN
