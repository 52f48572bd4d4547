"""DescribeAcls, CreateAcls and DeleteAcls, for the ACLs in ``acls.file``.

Source: apache/kafka AclApis, AclBindingFilter, ResourcePatternFilter, AccessControlEntryFilter.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.handlers.request import Outcome, Request, require
from stratalog_gateway.security.acls import ANY, Acl, AclFile
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType

_ANY: Final = 1  # number of ANY in filters, for all enumerations
_MATCH: Final = 2  # pattern type in filters: all patterns that cover a name
_DISABLED: Final = "No Authorizer is configured."


def describe_acls(request: Request) -> Any:
    """Return the response with the ACLs that the filter matches, grouped by resource."""
    make, body = request.make, request.body
    require(request.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    if request.node.acls is None:
        raise RefusedError(Code.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    matches = _filter(body, body.resource_type_filter)
    matching = sorted(acl for acl in request.node.acls.current.all if matches(acl))
    resources = []
    for (kind, name, pattern), acls in groupby(matching, key=lambda acl: acl[:3]):
        resource = {"resource_type": int(kind), "resource_name": name, "pattern_type": int(pattern)}
        descriptions = tuple(make.part("AclDescription", **_permission(acl)) for acl in acls)
        resources.append(make.part("DescribeAclsResource", **resource, acls=descriptions))
    return make(resources=tuple(resources))


def create_acls(request: Request) -> Any:
    """Add ACLs, and return the response. As in Kafka, valid ACLs are added even if other ACLs are invalid."""
    make, acls = request.make, list[Acl]()
    reasons: list[str | None] = [None] * len(request.body.creations)
    with Outcome() as outcome:
        file = _require_acl_file(request)
        for number, creation in enumerate(request.body.creations):
            acl_or_reason = _acl(creation)
            if isinstance(acl_or_reason, Acl):
                acls.append(acl_or_reason)
            else:
                reasons[number] = acl_or_reason
        if acls:
            file.add(acls)
    return make(
        results=tuple(
            make.part(
                "AclCreationResult",
                error_code=outcome.code if reason is None else Code.INVALID_REQUEST,
                error_message=outcome.message if reason is None else reason,
            )
            for reason in reasons
        )
    )


def delete_acls(request: Request) -> Any:
    """Delete the ACLs that the filters match, and return the response with the deleted ACLs."""
    return request.make(filter_results=tuple(_delete(request, acl_filter) for acl_filter in request.body.filters))


def _delete(request: Request, acl_filter: Any) -> Any:
    make, deleted = request.make, list[Acl]()
    with Outcome() as outcome:
        deleted = _require_acl_file(request).remove(_filter(acl_filter, acl_filter.resource_type_filter))
    matching_acls = tuple(
        make.part(
            "DeleteAclsMatchingAcl",
            resource_type=int(acl.kind),
            resource_name=acl.name,
            pattern_type=int(acl.pattern),
            **_permission(acl),
        )
        for acl in deleted
    )
    return outcome.part(make, "DeleteAclsFilterResult", matching_acls=matching_acls)


def _permission(acl: Acl) -> dict[str, object]:
    """Return the fields of an ACL that do not describe its resource, by kio's names."""
    operation, permission = int(acl.operation), int(acl.permission)
    return {"principal": acl.principal, "host": acl.host, "operation": operation, "permission_type": permission}


def _require_acl_file(request: Request) -> AclFile:
    """Return the file of ACLs; raise RefusedError if there is none, or the client has no right to change ACLs."""
    require(request.client, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    if request.node.acls is None:
        raise RefusedError(Code.SECURITY_DISABLED, _DISABLED)
    return request.node.acls


def _acl(creation: Any) -> Acl | str:
    """Return the ACL that an item of a request describes, or the reason why the ACL is wrong."""
    try:
        kind = ResourceType(creation.resource_type)
        acl = Acl(
            kind,
            creation.resource_name,
            PatternType(creation.resource_pattern_type),
            creation.principal,
            creation.host,
            Operation(creation.operation),
            Permission(creation.permission_type),
        )
    except ValueError as error:
        return str(error)
    if kind == ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.name or not acl.host:
        return "Invalid empty resource name" if acl.host else "Invalid empty host"
    kind_of_principal, colon, user = acl.principal.partition(":")
    if not colon:  # Kafka's text
        reason = "no colon is present separating the principal type from the principal name"
        return f"Could not parse principal from `{acl.principal}` ({reason})"
    return acl if kind_of_principal and user else f"Invalid principal {acl.principal}"


def _filter(acl_filter: Any, kind: int) -> Callable[[Acl], bool]:
    """Return a function that returns True for the ACLs that a filter matches; null and ANY match all values."""
    name, pattern = acl_filter.resource_name_filter, acl_filter.pattern_type_filter

    def is_named(acl: Acl) -> bool:
        if pattern not in {_ANY, _MATCH, acl.pattern}:
            return False
        if name is None or acl.name == name:
            return True
        if pattern != _MATCH:
            return False
        return acl.name == ANY if acl.pattern == PatternType.LITERAL else name.startswith(acl.name)

    def matches(acl: Acl) -> bool:
        return (
            kind in {_ANY, acl.kind}
            and is_named(acl)
            and acl_filter.principal_filter in {None, acl.principal}
            and acl_filter.host_filter in {None, acl.host}
            and acl_filter.operation in {_ANY, acl.operation}
            and acl_filter.permission_type in {_ANY, acl.permission}
        )

    return matches
