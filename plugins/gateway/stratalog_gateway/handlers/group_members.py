"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Source: apache/kafka GroupCoordinatorService.
"""

from __future__ import annotations

from typing import Any

from stratalog_gateway.error_codes import Code
from stratalog_gateway.groups.coordinator import GroupCoordinator, JoinRequest
from stratalog_gateway.handlers.request import Request
from stratalog_gateway.security.resources import Operation, ResourceType
from stratalog_gateway.wire.messages import Header, to_ms

_NEEDS_MEMBER_ID = (
    4  # first versions of JoinGroup that know MEMBER_ID_REQUIRED, null protocols, and skipped assignments
)
_NULL_PROTOCOL = 7
_CAN_SKIP_ASSIGNMENT = 9
_MANY_MEMBERS = 3  # first version of LeaveGroup with several members


def _refusal(request: Request) -> int:
    """Return the error code if the client has no permission to join the group, or names no group; otherwise 0."""
    refused = request.client.refusal(Operation.READ, ResourceType.GROUP, request.body.group_id)
    return refused if refused or request.body.group_id else Code.INVALID_GROUP_ID


def _no_protocol(header: Header) -> str | None:
    return "" if header.version < _NULL_PROTOCOL else None


class GroupMemberHandlers:
    """Requests of the members of groups."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def join_group(self, request: Request) -> Any:
        """Join a group, and return the response when the join phase of the rebalance has ended."""
        body, header, make = request.body, request.header, request.make
        refused = _refusal(request)
        if refused:
            return make(
                error_code=refused, generation_id=-1, protocol_type=None, protocol_name=_no_protocol(header), leader="",
                member_id="", members=(), skip_assignment=False,
            )  # fmt: skip
        session_ms = to_ms(body.session_timeout)
        rebalance = request.field("rebalance_timeout", None)
        found = self._coordinator.join(
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
        return make(
            error_code=found.error,
            generation_id=found.generation,
            protocol_type=found.protocol_type,
            protocol_name=_no_protocol(header) if found.protocol is None else found.protocol,
            leader=found.leader,
            skip_assignment=found.skip_assignment,
            member_id=found.member_id,
            members=tuple(
                make.part(
                    "JoinGroupResponseMember", member_id=member_id, group_instance_id=instance_id, metadata=metadata
                )
                for member_id, instance_id, metadata in found.members
            ),
        )

    def sync_group(self, request: Request) -> Any:
        """Return the response with the assignment of a member, after the leader has sent all assignments."""
        body = request.body
        refused = _refusal(request)
        if not refused and None in {getattr(body, "protocol_type", ""), getattr(body, "protocol_name", "")}:
            refused = Code.INCONSISTENT_GROUP_PROTOCOL
        if refused:
            return request.make(error_code=refused, protocol_type=None, protocol_name=None, assignment=b"")
        assignments = {found.member_id: found.assignment for found in body.assignments}
        instance_id = request.field("group_instance_id", None)
        found = self._coordinator.sync(
            body.group_id, body.member_id, body.generation_id, instance_id, assignments,
            request.field("protocol_type", None), request.field("protocol_name", None),
        )  # fmt: skip
        return request.make(
            error_code=found.error,
            protocol_type=found.protocol_type,
            protocol_name=found.protocol,
            assignment=found.assignment,
        )

    def heartbeat(self, request: Request) -> Any:
        """Extend the session of a member, and return the response."""
        body = request.body
        instance_id = request.field("group_instance_id", None)
        error = _refusal(request) or self._coordinator.heartbeat(
            body.group_id, body.member_id, body.generation_id, instance_id
        )
        return request.make(error_code=error)

    def leave_group(self, request: Request) -> Any:
        """Remove members from their group, and return the response."""
        body, make = request.body, request.make
        refused = _refusal(request)
        if refused:
            return make(error_code=refused, members=())
        if request.header.version < _MANY_MEMBERS:
            return make(error_code=self._coordinator.leave(body.group_id, body.member_id, None))
        members = tuple(
            make.part(
                "MemberResponse",
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=self._coordinator.leave(body.group_id, member.member_id, member.group_instance_id),
            )
            for member in body.members
        )
        return make(error_code=Code.NONE, members=members)
