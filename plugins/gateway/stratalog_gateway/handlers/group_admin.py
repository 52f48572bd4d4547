"""ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

from typing import Any, Final

from stratalog_gateway.error_codes import Code, coordinator_code
from stratalog_gateway.handlers.request import Outcome, Request, require
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, ResourceType

_EMPTY: Final = "Empty"
_DEAD: Final = "Dead"
_STABLE: Final = "Stable"
_SIMPLE: Final = ""  # protocol type of groups that have committed offsets and never had members
_SAYS_MISSING: Final = 6  # first version of DescribeGroups with an error for groups that do not exist
_CLASSIC: Final = "classic"


def list_groups(request: Request) -> Any:
    """Return the response with the groups that the client may see, filtered by the requested states and types.

    Raises:
        StorageError: a group cannot be loaded.
    """
    make, views, names = request.make, request.groups.table.views(), request.groups.table.names()
    states = {state.lower() for state in request.field("states_filter", ())}
    types = {kind.lower() for kind in request.field("types_filter", ())}
    found = []
    sees_all = request.client.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    for name in names:
        if not sees_all and not request.client.allows(Operation.DESCRIBE, ResourceType.GROUP, name):
            continue
        view = views.get(name)
        state, kind = (_EMPTY, _CLASSIC) if view is None else (view.state, view.kind)
        if (states and state.lower() not in states) or (types and kind.lower() not in types):
            continue
        found.append(
            make.part(
                "ListedGroup",
                group_id=name,
                protocol_type=_SIMPLE if view is None else view.protocol_type,
                group_state=state,
                group_type=kind,
            )
        )
    return make(error_code=Code.NONE, groups=tuple(found))


def describe_groups(request: Request) -> Any:
    """Return the response with states and members of classic groups.

    As in Kafka, the state is Dead for a group of the consumer protocol, and for a group that does not exist. A
    group with committed offsets exists, even if it never had members. Only a stable group has a protocol, and
    members with metadata and assignments.
    """
    return request.make(groups=tuple(_described(request, name) for name in request.body.groups))


def _described(request: Request, name: str) -> Any:
    make, view, has_offsets = request.make, None, False
    with Outcome(coordinator_code) as outcome:
        require(request.client, Operation.DESCRIBE, ResourceType.GROUP, name)
        view = request.groups.table.view(name)
        has_offsets = view is None and bool(request.node.engine.group_offsets(name))
    if outcome.code:
        return make.failed_part("DescribedGroup", outcome.code, None, group_id=name)
    if view is not None and view.kind != _CLASSIC:
        state, kind, protocol, members = _DEAD, "", "", ()
    elif view is None:
        state = _EMPTY if has_offsets else _DEAD
        kind, protocol, members = _SIMPLE, "", ()
    else:
        state, kind = view.state, view.protocol_type
        is_stable = state == _STABLE
        protocol = view.protocol if is_stable else ""
        members = tuple(
            make.part(
                "DescribedGroupMember",
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in view.members
        )
    is_missing = state == _DEAD and request.header.version >= _SAYS_MISSING
    return make.part(
        "DescribedGroup",
        error_code=Code.GROUP_ID_NOT_FOUND if is_missing else Code.NONE,
        error_message=f"Group {name} not found." if is_missing else None,
        group_id=name,
        group_state=state,
        protocol_type=kind,
        protocol_data=protocol,
        members=members,
        authorized_operations=request.authorized_operations(ResourceType.GROUP, name),
    )


def delete_groups(request: Request) -> Any:
    """Delete the requested groups with their offsets, and return the response.

    A group with members is not deleted, and the response has an error code for it. As in Kafka, a name that is in the
    request twice is in the response once.
    """
    found = []
    for name in dict.fromkeys(request.body.groups_names):
        with Outcome(coordinator_code) as outcome:
            require(request.client, Operation.DELETE, ResourceType.GROUP, name)
            request.groups.table.delete(name)
        found.append(request.make.part("DeletableGroupResult", group_id=name, error_code=outcome.code))
    return request.make(results=tuple(found))
