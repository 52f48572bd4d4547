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
    set. Super users may perform all operations.

    Args:
        acls: the file of ACLs.
        super_users: principals, such as ``User:admin``.
        allow_everyone: True if each principal may access a resource that no ACL matches.
    """

    def __init__(self, acls: AclFile, super_users: frozenset[str], *, allow_everyone: bool) -> None:
        self._file, self._super_users, self._allow_everyone = acls, super_users, allow_everyone
        self._decided: tuple[Acls, dict[tuple[str, str, Operation, ResourceType, str], bool]] = (acls.current, {})

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return True if a principal may perform an operation on a resource from the IP address ``host``."""
        if principal in self._super_users:
            return True
        acls, (known, decisions) = self._file.current, self._decided
        if acls is not known or len(decisions) >= _MAX_DECISIONS:
            decisions = {}
            self._decided = (acls, decisions)
        question = (principal, host, operation, kind, name)
        found = decisions.get(question)
        if found is None:
            found = decisions[question] = self._decide(acls, *question)
        return found

    def allows_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return True if a principal may perform an operation on at least one resource of a type."""
        if principal in self._super_users:
            return True
        acls = self._file.current.of_type(kind)
        found = [acl for acl in acls if acl.concerns(principal, host, operation)]
        denied = [acl for acl in found if acl.permission == Permission.DENY]
        if any(acl.name == ANY and acl.pattern == PatternType.LITERAL for acl in denied):
            return False
        for acl in found:
            covers = [
                deny
                for deny in denied
                if deny.covers(acl.name) and (deny.pattern != PatternType.LITERAL or deny[:3] == acl[:3])
            ]
            if acl.permission == Permission.ALLOW and not covers:
                return True
        return self._allow_everyone and not acls

    def _decide(
        self, acls: Acls, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        about = acls.about(kind, name)
        effects = {acl.permission for acl in about if acl.concerns(principal, host, operation)}
        found = Permission.DENY not in effects and (Permission.ALLOW in effects or (not about and self._allow_everyone))
        _LOGGER.debug(
            "%s principal=%s host=%s operation=%s resource=%s:%s",
            "allowed" if found else "denied", principal, host, operation.name, kind.name, name,
        )  # fmt: skip
        return found
