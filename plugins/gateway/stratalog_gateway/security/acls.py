"""ACLs, their file, and the search for the ACLs that apply to an operation.

The file is JSON: ``{"version": 1, "acls": [...]}``. The fields of an ACL have the names of Kafka's ``AclBinding``. The
values are Kafka's words, such as ``Topic``, ``Prefixed``, ``DescribeConfigs`` and ``Allow``. The words are
case-insensitive.

Source: apache/kafka StandardAuthorizerData, AclEntry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from stratalog.errors import ConfigError
from stratalog.spi import Clock
from stratalog_gateway.security.endpoints import normalize_host
from stratalog_gateway.security.json_file import read_field, replace_json
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from stratalog_gateway.security.watched_files import EditedFile

ANY: Final = "*"  # matches each resource or host
ANY_PRINCIPAL: Final = "User:*"
VERSION: Final = 1
_FIELDS: Final = frozenset({
    "resourceType", "resourceName", "patternType", "principal", "host", "operation", "permissionType",
})  # fmt: skip
_OPTIONAL: Final = {"patternType": "Literal", "host": ANY, "permissionType": "Allow"}
_IMPLIES_DESCRIBE: Final = frozenset({
    Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER,
})  # fmt: skip
_IMPLIES_DESCRIBE_CONFIGS: Final = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS})
Word = TypeVar("Word", bound=IntEnum)


class Acl(NamedTuple):
    """One ACL. With the pattern type LITERAL, the name ``*`` matches each resource of the type."""

    kind: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def to_json(self) -> dict[str, str]:
        """Return the ACL as an object of the JSON file."""
        return {
            "resourceType": word(self.kind),
            "resourceName": self.name,
            "patternType": word(self.pattern),
            "principal": self.principal,
            "host": self.host,
            "operation": word(self.operation),
            "permissionType": word(self.permission),
        }

    def concerns(self, principal: str, host: str, operation: Operation) -> bool:
        """Return True if the ACL applies to an operation of a principal from the IP address ``host``.

        The method does not compare the resource. As in Kafka, an ACL that allows READ, WRITE, DELETE or ALTER also
        allows DESCRIBE. An ACL that allows ALTER_CONFIGS also allows DESCRIBE_CONFIGS.
        """
        if self.principal not in {principal, ANY_PRINCIPAL}:
            return False
        # the ACLs of a broker have Java's text of IPv6 addresses, such as 0:0:0:0:0:0:0:1
        if self.host not in {host, ANY} and normalize_host(self.host) != host:
            return False
        if self.operation in {Operation.ALL, operation}:
            return True
        if self.permission != Permission.ALLOW:
            return False
        if operation == Operation.DESCRIBE:
            return self.operation in _IMPLIES_DESCRIBE
        return operation == Operation.DESCRIBE_CONFIGS and self.operation in _IMPLIES_DESCRIBE_CONFIGS

    def covers(self, name: str) -> bool:
        """Return True if the pattern of the ACL matches the name of a resource. Resource types are not compared."""
        if self.pattern == PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in {name, ANY}


class Acls:
    """A set of ACLs with an index by resource. Immutable."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self.all = tuple(dict.fromkeys(acls))
        self._literal: dict[tuple[ResourceType, str], list[Acl]] = defaultdict(list)
        self._prefixed: dict[tuple[ResourceType, str], list[Acl]] = defaultdict(list)
        lengths: dict[ResourceType, set[int]] = defaultdict(set)
        for acl in self.all:
            if acl.pattern == PatternType.PREFIXED:
                self._prefixed[acl.kind, acl.name].append(acl)
                lengths[acl.kind].add(len(acl.name))
            else:
                self._literal[acl.kind, acl.name].append(acl)
        self._lengths = {kind: sorted(distinct) for kind, distinct in lengths.items()}

    def find(self, kind: ResourceType, name: str) -> list[Acl]:
        """Return the ACLs whose resource type and pattern match a resource."""
        acls = [*self._literal.get((kind, name), ()), *self._literal.get((kind, ANY), ())]
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            acls += self._prefixed.get((kind, name[:length]), ())
        return acls

    def of_type(self, kind: ResourceType) -> list[Acl]:
        """Return the ACLs for resources of one type, in the order of the file."""
        return [acl for acl in self.all if acl.kind == kind]


def load_acls(path: Path) -> Acls:
    """Return the ACLs of a file.

    Raises:
        ConfigError: the file or one of its ACLs is wrong. If an ACL is wrong, the error contains its index, from 0.
    """
    items: Any = read_field(path, VERSION, "acls", list)
    return Acls(_acl(item, f"{path} acls[{number}]") for number, item in enumerate(items))


def save_acls(path: Path, acls: Acls) -> None:
    """Replace a file of ACLs durably. Raise OSError if the file cannot be written."""
    replace_json(path, {"version": VERSION, "acls": [acl.to_json() for acl in acls.all]})


class AclFile(EditedFile[Acls]):
    """The ACLs of a file. See ``EditedFile`` for the arguments and errors. Thread-safe."""

    def __init__(self, path: str, clock: Clock) -> None:
        super().__init__(path, load_acls, save_acls, clock)

    def add(self, acls: Sequence[Acl]) -> None:
        """Add the ACLs that the file does not contain yet, durably. Raises the errors of ``change``."""
        self.change(lambda current: Acls((*current.all, *acls)))

    def remove(self, matches: Callable[[Acl], bool]) -> list[Acl]:
        """Remove the ACLs for which ``matches`` returns True, durably. Return the removed ACLs.

        Raises the errors of ``change``.
        """
        removed: list[Acl] = []

        def remove_matching(current: Acls) -> Acls:
            removed.extend(acl for acl in current.all if matches(acl))
            return Acls(acl for acl in current.all if acl not in removed) if removed else current

        self.change(remove_matching)
        return removed


def _acl(item: object, place: str) -> Acl:
    if not isinstance(item, Mapping) or not all(isinstance(value, str) for value in item.values()):
        raise ConfigError(f"{place} is not an object of texts")
    names = sorted(item.keys() ^ _FIELDS, key=str)
    names = [name for name in names if name not in _OPTIONAL]
    if names:
        raise ConfigError(f"{place} has no {names[0]}" if names[0] in _FIELDS else f"{place}: unknown field {names[0]}")
    fields = {**_OPTIONAL, **item}
    kind = _word(ResourceType, fields["resourceType"], place)
    name = fields["resourceName"]
    if not name:
        raise ConfigError(f"{place}: resourceName is empty")
    if kind == ResourceType.CLUSTER and name not in {CLUSTER_NAME, ANY}:
        raise ConfigError(f"{place}: resourceName of a cluster must be {CLUSTER_NAME} or {ANY}, not {name!r}")
    kind_of_principal, colon, user = fields["principal"].partition(":")
    if not colon or not kind_of_principal or not user:
        raise ConfigError(f"{place}: principal {fields['principal']!r} is not of the form User:NAME")
    return Acl(
        kind,
        name,
        _word(PatternType, fields["patternType"], place),
        fields["principal"],
        fields["host"],
        _word(Operation, fields["operation"], place),
        _word(Permission, fields["permissionType"], place),
    )


def _word(words: type[Word], text: str, place: str) -> Word:
    for member in words:
        if text.replace("_", "").lower() == member.name.replace("_", "").lower():
            return member
    raise ConfigError(f"{place}: {text!r} is not one of {', '.join(map(word, words))}")


def word(member: IntEnum) -> str:
    """Return Kafka's word for a value, such as ``DescribeConfigs`` for ``Operation.DESCRIBE_CONFIGS``."""
    return "".join(part.capitalize() for part in member.name.split("_"))
