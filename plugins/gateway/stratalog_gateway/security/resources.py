"""Operations and resources of ACLs, with the numbers of Kafka's protocol.

Source: apache/kafka AclOperation, ResourceType, PatternType, AclPermissionType, AclEntry.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from stratalog_gateway.error_codes import Code

CLUSTER_NAME: Final = "kafka-cluster"  # name of the only resource of the type CLUSTER
NOT_REQUESTED: Final = -(1 << 31)  # value of the authorized operations if the client does not request them


class Operation(IntEnum):
    """Operations that an ACL allows or denies, with the numbers of Kafka's protocol."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class ResourceType(IntEnum):
    """Types of resources, with the numbers of Kafka's protocol."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Comparison of the name of a resource with the name in an ACL, with the numbers of Kafka's protocol."""

    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Effect of an ACL, with the numbers of Kafka's protocol."""

    DENY = 2
    ALLOW = 3


SUPPORTED: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.DELETE, Operation.ALTER,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ, Operation.DESCRIBE, Operation.DELETE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE, Operation.ALTER, Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE),
}  # fmt: skip
"""Operations that exist for each type of resource."""

DENIED: Final[Mapping[ResourceType, Code]] = {
    ResourceType.TOPIC: Code.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""Error code of a refused operation, by the type of its resource."""
