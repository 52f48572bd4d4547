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
from stratalog_gateway.security.resources import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

_ANY: Final = 1  # in filters, for each enumeration
_MATCH: Final = 2  # pattern type in filters: all patterns that cover a name
_DISABLED: Final = "No Authorizer is configured."


def describe_acls(request: Request) -> Any:
    """Return the response with the ACLs that the filter matches, grouped by resource."""
    make, body = request.make, request.body
    require(request.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    if request.node.acls is None:
        raise RefusedError(Code.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    matches = _filter(body, body.resource_type_filter)
    found = sorted(acl for acl in request.node.acls.current.all if matches(acl))
    resources = []
    for (kind, name, pattern), acls in groupby(found, key=lambda acl: acl[:3]):
        descriptions = tuple(
            make.part(
                "AclDescription",
                principal=acl.principal,
                host=acl.host,
                operation=int(acl.operation),
                permission_type=int(acl.permission),
            )
            for acl in acls
        )
        resources.append(
            make.part(
                "DescribeAclsResource",
                resource_type=int(kind),
                resource_name=name,
                pattern_type=int(pattern),
                acls=descriptions,
            )
        )
    return make(error_code=Code.NONE, error_message=None, resources=tuple(resources))


def create_acls(request: Request) -> Any:
    """Add ACLs, and return the response. As in Kafka, valid ACLs are added even if other ACLs are invalid."""
    make, acls = request.make, list[Acl]()
    wrong: list[str | None] = [None] * len(request.body.creations)
    with Outcome() as outcome:
        file = _changeable(request)
        for number, creation in enumerate(request.body.creations):
            found = _acl(creation)
            if isinstance(found, Acl):
                acls.append(found)
            else:
                wrong[number] = found
        if acls:
            file.add(acls)
    return make(
        results=tuple(
            make.part(
                "AclCreationResult",
                error_code=outcome.code if reason is None else Code.INVALID_REQUEST,
                error_message=outcome.message if reason is None else reason,
            )
            for reason in wrong
        )
    )


def delete_acls(request: Request) -> Any:
    """Delete the ACLs that the filters match, and return the response with the deleted ACLs."""
    return request.make(filter_results=tuple(_deleted(request, wanted) for wanted in request.body.filters))


def _deleted(request: Request, wanted: Any) -> Any:
    make, gone = request.make, list[Acl]()
    with Outcome() as outcome:
        gone = _changeable(request).remove(_filter(wanted, wanted.resource_type_filter))
    matching = tuple(
        make.part(
            "DeleteAclsMatchingAcl",
            error_code=Code.NONE,
            error_message=None,
            resource_type=int(acl.kind),
            resource_name=acl.name,
            pattern_type=int(acl.pattern),
            principal=acl.principal,
            host=acl.host,
            operation=int(acl.operation),
            permission_type=int(acl.permission),
        )
        for acl in gone
    )
    return make.part(
        "DeleteAclsFilterResult", error_code=outcome.code, error_message=outcome.message, matching_acls=matching
    )


def _changeable(request: Request) -> AclFile:
    """Return the file of ACLs; raise RefusedError if the client may not change ACLs, or if ``acls.file`` is not set."""
    require(request.client, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    if request.node.acls is None:
        raise RefusedError(Code.SECURITY_DISABLED, _DISABLED)
    return request.node.acls


def _acl(wanted: Any) -> Acl | str:
    """Return the ACL that a request describes, or the reason why the ACL is wrong."""
    try:
        kind = ResourceType(wanted.resource_type)
        found = Acl(
            kind,
            wanted.resource_name,
            PatternType(wanted.resource_pattern_type),
            wanted.principal,
            wanted.host,
            Operation(wanted.operation),
            Permission(wanted.permission_type),
        )
    except ValueError as error:
        return str(error)
    if kind == ResourceType.CLUSTER and found.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not found.name or not found.host:
        return "Invalid empty resource name" if found.host else "Invalid empty host"
    kind_of_principal, colon, user = found.principal.partition(":")
    return found if kind_of_principal and colon and user else f"Invalid principal {found.principal}"


def _filter(wanted: Any, kind: int) -> Callable[[Acl], bool]:
    """Return a function that returns True for the ACLs that a filter matches; null and ANY match all values."""
    name, pattern = wanted.resource_name_filter, wanted.pattern_type_filter

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
            and wanted.principal_filter in {None, acl.principal}
            and wanted.host_filter in {None, acl.host}
            and wanted.operation in {_ANY, acl.operation}
            and wanted.permission_type in {_ANY, acl.permission}
        )

    return matches
