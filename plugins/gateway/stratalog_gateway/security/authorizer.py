"""Authorization of operations of principals.

Source: apache/kafka StandardAuthorizer, StandardAuthorizerData, Authorizer.authorizeByResourceType.
"""

from __future__ import annotations

import logging
from typing import Final

from stratalog_gateway.security.acls import ANY, AclFile, Acls
from stratalog_gateway.security.resources import Operation, PatternType, Permission, ResourceType

_LOGGER: Final = logging.getLogger(__name__)
_MAX_DECISIONS: Final = 10_000


class Authorizer:
    """Authorizer with the ACLs of a file, which is reloaded when it changes. Thread-safe.

    A DENY ACL has priority over ALLOW ACLs. If no ACL matches a resource, access is denied unless ``allow_everyone`` is
    True. Super users, principals such as ``User:admin``, may perform all operations.
    """

    def __init__(self, acls: AclFile, super_users: frozenset[str], *, allow_everyone: bool) -> None:
        self._file, self._super_users, self._allow_everyone = acls, super_users, allow_everyone
        self._cache: tuple[Acls, dict[tuple[str, str, Operation, ResourceType, str], bool]] = (acls.current, {})

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return True if a principal may perform an operation on a resource from the IP address ``host``."""
        if principal in self._super_users:
            return True
        acls, (cached_acls, decisions) = self._file.current, self._cache
        if acls is not cached_acls or len(decisions) >= _MAX_DECISIONS:
            decisions = {}
            self._cache = (acls, decisions)
        question = (principal, host, operation, kind, name)
        decision = decisions.get(question)
        if decision is None:
            decision = decisions[question] = self._decide(acls, *question)
        return decision

    def allows_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return True if a principal may perform an operation on at least one resource of a type."""
        if principal in self._super_users:
            return True
        acls = self._file.current.of_type(kind)
        applicable = [acl for acl in acls if acl.concerns(principal, host, operation)]
        deny_acls = [acl for acl in applicable if acl.permission == Permission.DENY]
        if any(acl.name == ANY and acl.pattern == PatternType.LITERAL for acl in deny_acls):
            return False
        for acl in applicable:
            overriding = [
                deny
                for deny in deny_acls
                if deny.covers(acl.name) and (deny.pattern != PatternType.LITERAL or deny[:3] == acl[:3])
            ]
            if acl.permission == Permission.ALLOW and not overriding:
                return True
        return self._allow_everyone and not acls

    def _decide(
        self, acls: Acls, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        matching = acls.find(kind, name)
        effects = {acl.permission for acl in matching if acl.concerns(principal, host, operation)}
        is_allowed = Permission.DENY not in effects and (
            Permission.ALLOW in effects or (not matching and self._allow_everyone)
        )
        _LOGGER.debug(
            "%s principal=%s host=%s operation=%s resource=%s:%s",
            "allowed" if is_allowed else "denied", principal, host, operation.name, kind.name, name,
        )  # fmt: skip
        return is_allowed
