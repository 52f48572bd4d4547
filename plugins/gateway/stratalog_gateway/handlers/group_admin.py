"""ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

from typing import Any, Final

from stratalog_gateway.error_codes import Code, coordinator_code
from stratalog_gateway.groups.classic_group import ClassicGroup, State
from stratalog_gateway.handlers.request import Outcome, Request, require
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, ResourceType

_DEAD: Final = "Dead"
_FIRST_WITH_NOT_FOUND: Final = 6  # first version of DescribeGroups with an error for groups that do not exist


def list_groups(request: Request) -> Any:
    """Return the response with the groups that the client may see, filtered by the requested states and types."""
    make, table = request.make, request.groups.table
    states = {state.lower() for state in request.field("states_filter", ())}
    types = {kind.lower() for kind in request.field("types_filter", ())}
    descriptions = []
    sees_all = request.client.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    for name in table.names():
        if not sees_all and not request.client.allows(Operation.DESCRIBE, ResourceType.GROUP, name):
            continue
        with table.lock_group(name) as existing_group:
            group = existing_group or ClassicGroup(name)  # a group that only has committed offsets
            state, kind, protocol_type = str(group.state), group.kind, group.protocol_type or ""
        if (states and state.lower() not in states) or (types and kind not in types):
            continue
        descriptions.append(
            make.part("ListedGroup", group_id=name, protocol_type=protocol_type, group_state=state, group_type=kind)
        )
    return make(groups=tuple(descriptions))


def describe_groups(request: Request) -> Any:
    """Return the response with states and members of classic groups.

    As in Kafka, the state is Dead for a group of the consumer protocol, and for a group that does not exist. A group
    with committed offsets exists, even if it never had members. The response contains protocol and metadata only if the
    group is stable. During a rebalance, it contains the last assignments.
    """
    return request.make(groups=tuple(_describe(request, name) for name in request.body.groups))


def _describe(request: Request, name: str) -> Any:
    with Outcome(coordinator_code) as outcome:
        require(request.client, Operation.DESCRIBE, ResourceType.GROUP, name)
        with request.groups.table.lock_group(name) as existing_group:
            group = existing_group if isinstance(existing_group, ClassicGroup) else None
            if existing_group is None and request.node.engine.group_offsets(name):
                group = ClassicGroup(name)
            return _describe_group(request, name, group)
    return request.make.error_part("DescribedGroup", outcome.code, None, group_id=name)


def _describe_group(request: Request, name: str, group: ClassicGroup | None) -> Any:
    """Return the message that describes a classic group, or that there is no such group."""
    make, is_missing = request.make, group is None and request.header.version >= _FIRST_WITH_NOT_FOUND
    is_stable = group is not None and group.state is State.STABLE
    protocol = group.protocol or "" if group is not None and is_stable else ""
    members = tuple(
        make.part(
            "DescribedGroupMember",
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(protocol) if is_stable else b"",
            member_assignment=member.assignment,
        )
        for member in (() if group is None else group.members.values())
    )
    return make.part(
        "DescribedGroup",
        error_code=Code.GROUP_ID_NOT_FOUND if is_missing else Code.NONE,
        error_message=f"Group {name} not found." if is_missing else None,
        group_id=name,
        group_state=_DEAD if group is None else str(group.state),
        protocol_type="" if group is None else group.protocol_type or "",
        protocol_data=protocol,
        members=members,
        authorized_operations=request.authorized_operations(ResourceType.GROUP, name),
    )


def delete_groups(request: Request) -> Any:
    """Delete the requested groups with their offsets, and return the response.

    A group with members is not deleted, and the response has an error code for the group. As in Kafka, if a name is in
    the request twice, it is in the response once.
    """
    results = []
    for name in dict.fromkeys(request.body.groups_names):
        with Outcome(coordinator_code) as outcome:
            require(request.client, Operation.DELETE, ResourceType.GROUP, name)
            request.groups.table.delete(name)
        results.append(outcome.part(request.make, "DeletableGroupResult", group_id=name))
    return request.make(results=tuple(results))
