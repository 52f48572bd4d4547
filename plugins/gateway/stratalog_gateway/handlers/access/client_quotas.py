"""DescribeClientQuotas and AlterClientQuotas, for the quotas in ``quotas.file``.

Source: apache/kafka ClientQuotaControlManager, ClientQuotasImage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from stratalog.errors import ConfigError
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.handlers.request import Outcome, Request, require
from stratalog_gateway.security.quotas import DEFAULT, ENTITIES, Entity, Table, limits_of
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, ResourceType

_EXACT: Final = 0  # match types
_DEFAULT: Final = 1
_ANY: Final = 2


def describe_client_quotas(request: Request) -> Any:
    """Return the response with the quotas whose entity (user, client id or IP address) the filter matches."""
    make, file = request.make, request.node.quota_file
    require(request.client, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    matches = _filter(request.body.components, strict=request.body.strict)
    found: dict[Entity, list[Any]] = {}
    for (entity, name), limit in ({} if file is None else file.current).items():
        if matches(entity):
            found.setdefault(entity, []).append(make.part("ValueData", key=name, value=limit))
    entries = tuple(
        make.part("EntryData", entity=_parts(make, entity), values=tuple(values)) for entity, values in found.items()
    )
    return make(error_code=Code.NONE, error_message=None, entries=entries)


def alter_client_quotas(request: Request) -> Any:
    """Set and remove limits, or only check the changes if ``validate_only`` is set. Return the response.

    If a change of an entity is invalid, the entity keeps its limits. Valid changes of other entities are stored.
    """
    make, body = request.make, request.body
    results: list[tuple[int, str | None]] = [(Code.NONE, None)] * len(body.entries)

    def changed(known: Table) -> Table:
        table: Table = dict(known)
        for number, entry in enumerate(body.entries):
            try:
                altered = _altered(table, entry, [one.entity for one in body.entries])
            except RefusedError as error:
                results[number] = error.kafka_code, str(error)
            else:
                table = altered
        return known if body.validate_only or table == known else table

    with Outcome() as outcome:
        require(request.client, Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        if request.node.quota_file is None:
            raise RefusedError(Code.INVALID_REQUEST, "quotas.file is not set")
        request.node.quota_file.change(changed)
    return make(
        entries=tuple(
            make.part(
                "EntryData",
                error_code=code or outcome.code,
                error_message=text or outcome.message,
                entity=tuple(
                    make.part("EntityData", entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ),
            )
            for entry, (code, text) in zip(body.entries, results, strict=True)
        )
    )


def _parts(make: Any, entity: Entity) -> tuple[Any, ...]:
    """Return an entity as messages with a type, such as ``user``, and a name, which is None for the default entity."""
    return tuple(
        make.part("EntityData", entity_type=kind, entity_name=None if name == DEFAULT else name)
        for kind, name in zip(ENTITIES, entity, strict=True)
        if name
    )


def _altered(table: Table, entry: Any, entities: Sequence[Any]) -> Table:
    """Return the limits of all entities after the changes of one entity; raise RefusedError if a change is wrong."""
    named: dict[str, str] = {}
    for part in entry.entity:
        if part.entity_type in named or part.entity_type not in ENTITIES:
            raise RefusedError(Code.INVALID_REQUEST, f"Unhandled client quota entity type: {part.entity_type}")
        if part.entity_name in {"", DEFAULT}:
            raise RefusedError(Code.INVALID_REQUEST, f"Empty or reserved {part.entity_type} not supported")
        named[part.entity_type] = DEFAULT if part.entity_name is None else part.entity_name
    if entities.count(entry.entity) > 1:
        raise RefusedError(Code.INVALID_REQUEST, "an entity is in the request twice")
    found = dict(table)
    for change in entry.ops:
        try:
            [(place, limit)] = limits_of({**named, change.key: change.value or 1.0}, "the quota").items()
        except ConfigError as error:
            raise RefusedError(Code.INVALID_REQUEST, str(error)) from error
        if change.remove:
            found.pop(place, None)
        elif not change.value > 0:
            raise RefusedError(Code.INVALID_REQUEST, f"Quota {change.key} must be greater than 0")
        else:
            found[place] = limit
    return found


def _filter(components: Sequence[Any], *, strict: bool) -> Callable[[Entity], bool]:
    """Return a function that returns True for the entities that a filter matches; raise RefusedError if it is wrong.

    If ``strict`` is True, an entity must have exactly the types of the filter.
    """
    wanted: dict[str, str | None] = {}  # None matches all names
    for part in components:
        kind = part.entity_type
        if kind not in ENTITIES:
            raise RefusedError(Code.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported")
        if kind in wanted:
            raise RefusedError(Code.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
        if part.match_type not in {_EXACT, _DEFAULT, _ANY}:
            raise RefusedError(Code.INVALID_REQUEST, f"Unknown match type {part.match_type}")
        if (part.match is None) == (part.match_type == _EXACT):
            raise RefusedError(Code.INVALID_REQUEST, f"the match of entity type {kind} does not fit its match type")
        wanted[kind] = {_EXACT: part.match, _DEFAULT: DEFAULT, _ANY: None}[part.match_type]
    if "ip" in wanted and len(wanted) > 1:
        raise RefusedError(
            Code.INVALID_REQUEST,
            "Invalid entity filter component combination: IP filter component should not be used with user or "
            "clientId filter component.",
        )

    def matches(entity: Entity) -> bool:
        named = {kind: name for kind, name in zip(ENTITIES, entity, strict=True) if name}
        if strict and named.keys() != wanted.keys():
            return False
        return all(kind in named and name in {None, named[kind]} for kind, name in wanted.items())

    return matches
