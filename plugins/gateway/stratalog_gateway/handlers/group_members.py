"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Source: apache/kafka GroupCoordinatorService.
"""

from __future__ import annotations

from typing import Any

from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.groups.classic_coordinator import JoinRequest
from stratalog_gateway.handlers.request import Request, require_group
from stratalog_gateway.wire.messages import to_ms

_NEEDS_MEMBER_ID = 4  # first versions of JoinGroup with MEMBER_ID_REQUIRED, null protocols, and skipped assignments
_NULL_PROTOCOL = 7
_CAN_SKIP_ASSIGNMENT = 9
_MANY_MEMBERS = 3  # first version of LeaveGroup with several members


def join_group(request: Request) -> Any:
    """Join a group, and return the response when the join phase of the rebalance has ended."""
    require_group(request)
    body, header, make = request.body, request.header, request.make
    session_ms = to_ms(body.session_timeout)
    rebalance = request.field("rebalance_timeout", None)
    result = request.groups.classic.join(
        JoinRequest(
            group=body.group_id,
            member_id=body.member_id,
            instance_id=request.field("group_instance_id", None),
            client_id=header.client_id,
            client_host=f"/{request.client.host}",
            protocol_type=body.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
            session_ms=session_ms,
            rebalance_ms=session_ms if rebalance is None or to_ms(rebalance) < 0 else to_ms(rebalance),
            needs_id=header.version >= _NEEDS_MEMBER_ID,
            can_skip_assignment=header.version >= _CAN_SKIP_ASSIGNMENT,
        )
    )
    no_protocol = "" if header.version < _NULL_PROTOCOL else None
    return make(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=no_protocol if result.protocol is None else result.protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=tuple(
            make.part("JoinGroupResponseMember", member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in result.members
        ),
    )


def sync_group(request: Request) -> Any:
    """Return the response with the assignment of a member, after the leader has sent all assignments."""
    require_group(request)
    body = request.body
    if None in {request.field("protocol_type", ""), request.field("protocol_name", "")}:
        raise RefusedError(Code.INCONSISTENT_GROUP_PROTOCOL)
    assignments = {item.member_id: item.assignment for item in body.assignments}
    instance_id = request.field("group_instance_id", None)
    result = request.groups.classic.sync(
        body.group_id, body.member_id, body.generation_id, instance_id, assignments,
        request.field("protocol_type", None), request.field("protocol_name", None),
    )  # fmt: skip
    return request.make(protocol_type=result.protocol_type, protocol_name=result.protocol, assignment=result.assignment)


def heartbeat(request: Request) -> Any:
    """Extend the session of a member, and return the response."""
    require_group(request)
    body, instance_id = request.body, request.field("group_instance_id", None)
    request.groups.classic.heartbeat(body.group_id, body.member_id, body.generation_id, instance_id)
    return request.make()


def leave_group(request: Request) -> Any:
    """Remove members from their group, and return the response."""
    require_group(request)
    body, make = request.body, request.make
    if request.header.version < _MANY_MEMBERS:
        request.groups.classic.leave(body.group_id, body.member_id, None)
        return make()
    members = []
    for member in body.members:
        code: int = Code.NONE
        try:
            request.groups.classic.leave(body.group_id, member.member_id, member.group_instance_id)
        except RefusedError as error:
            code = error.kafka_code  # not a StorageError: clients retry only after an error code of the whole response
        members.append(
            make.part(
                "MemberResponse",
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=code,
            )
        )
    return make(members=tuple(members))
