"""DescribeClientQuotas and AlterClientQuotas, for the quotas in ``quotas.file``.

Source: apache/kafka ClientQuotaControlManager, ClientQuotasImage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from stratalog.errors import ConfigError
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.handlers.request import Outcome, Request, require
from stratalog_gateway.security.endpoints import normalize_host
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
    values_by_entity: dict[Entity, list[Any]] = {}
    for (entity, name), limit in ({} if file is None else file.current).items():
        if matches(entity):
            values_by_entity.setdefault(entity, []).append(make.part("ValueData", key=name, value=limit))
    entries = tuple(
        make.part("EntryData", entity=_parts(make, entity), values=tuple(values))
        for entity, values in values_by_entity.items()
    )
    return make(entries=entries)


def alter_client_quotas(request: Request) -> Any:
    """Set and remove limits, or only check the changes if ``validate_only`` is set. Return the response.

    If a change of an entity is invalid, the entity keeps its limits. Valid changes of other entities are stored.
    """
    make, body = request.make, request.body
    results: list[tuple[int, str | None]] = [(Code.NONE, None)] * len(body.entries)

    def apply_changes(current: Table) -> Table:
        table: Table = dict(current)
        for number, entry in enumerate(body.entries):
            try:
                table = _apply_entry(table, entry, [item.entity for item in body.entries])
            except RefusedError as error:
                results[number] = error.kafka_code, str(error)
        return current if body.validate_only or table == current else table

    with Outcome() as outcome:
        require(request.client, Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        if request.node.quota_file is None:
            raise RefusedError(Code.INVALID_REQUEST, "quotas.file is not set")
        request.node.quota_file.change(apply_changes)
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
    """Return an entity as messages.

    Each message has a type, such as ``user``, and a name; None means the default entity.
    """
    return tuple(
        make.part("EntityData", entity_type=kind, entity_name=None if name == DEFAULT else name)
        for kind, name in zip(ENTITIES, entity, strict=True)
        if name
    )


def _apply_entry(table: Table, entry: Any, entities: Sequence[Any]) -> Table:
    """Return the limits of all entities after the changes of one entity. Raise RefusedError if a change is wrong."""
    names: dict[str, str] = {}
    for part in entry.entity:
        if part.entity_type in names or part.entity_type not in ENTITIES:
            raise RefusedError(Code.INVALID_REQUEST, f"Unhandled client quota entity type: {part.entity_type}")
        if part.entity_name in {"", DEFAULT}:
            raise RefusedError(Code.INVALID_REQUEST, f"Empty or reserved {part.entity_type} not supported")
        names[part.entity_type] = DEFAULT if part.entity_name is None else part.entity_name
    if entities.count(entry.entity) > 1:
        raise RefusedError(Code.INVALID_REQUEST, "an entity is in the request twice")
    limits = dict(table)
    for change in entry.ops:
        try:
            [(key, limit)] = limits_of({**names, change.key: change.value or 1.0}, "the quota").items()
        except ConfigError as error:
            raise RefusedError(Code.INVALID_REQUEST, str(error)) from error
        if change.remove:
            limits.pop(key, None)
        elif not change.value > 0:
            raise RefusedError(Code.INVALID_REQUEST, f"Quota {change.key} must be greater than 0")
        else:
            limits[key] = limit
    return limits


def _filter(components: Sequence[Any], *, strict: bool) -> Callable[[Entity], bool]:
    """Return a function that returns True for the entities that a filter matches.

    Raise RefusedError if the filter is wrong.

    If ``strict`` is True, an entity must have exactly the types of the filter.
    """
    names: dict[str, str | None] = {}  # None matches all names
    for part in components:
        kind = part.entity_type
        if kind not in ENTITIES:
            raise RefusedError(Code.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported")
        if kind in names:
            raise RefusedError(Code.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
        if part.match_type not in {_EXACT, _DEFAULT, _ANY}:
            raise RefusedError(Code.INVALID_REQUEST, f"Unknown match type {part.match_type}")
        if (part.match is None) == (part.match_type == _EXACT):
            raise RefusedError(Code.INVALID_REQUEST, f"the match of entity type {kind} does not fit its match type")
        names[kind] = {_EXACT: part.match, _DEFAULT: DEFAULT, _ANY: None}[part.match_type]
        if kind == "ip" and part.match is not None:
            names[kind] = normalize_host(part.match)
    if "ip" in names and len(names) > 1:
        raise RefusedError(
            Code.INVALID_REQUEST,
            "Invalid entity filter component combination: IP filter component should not be used with user or "
            "clientId filter component.",
        )

    def matches(entity: Entity) -> bool:
        entity_names = {kind: name for kind, name in zip(ENTITIES, entity, strict=True) if name}
        if strict and entity_names.keys() != names.keys():
            return False
        return all(kind in entity_names and name in {None, entity_names[kind]} for kind, name in names.items())

    return matches
