"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

Source: apache/kafka ConfigHelper, ConfigurationControlManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from stratalog import TopicSetting
from stratalog.errors import PluginError, UnknownSettingError
from stratalog.spi import TopicConfig
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.handlers.request import Outcome, Request, check_topic_name, require
from stratalog_gateway.node import Node
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, ResourceType
from stratalog_gateway.wire.messages import Maker

_TOPIC: Final = 2  # types of resources
_BROKER: Final = 4
_CLIENT_METRICS: Final = 16
_GROUP: Final = 32
_LISTED: Final = frozenset({_TOPIC, _BROKER, 8, _CLIENT_METRICS, _GROUP})  # also loggers of brokers
_DYNAMIC_TOPIC, _STATIC_BROKER, _DEFAULT = 1, 4, 5  # sources
_SOURCES: Final = {"topic": _DYNAMIC_TOPIC, "engine": _STATIC_BROKER, "default": _DEFAULT}
_TYPES: Final[Mapping[type, int]] = {bool: 1, str: 2, int: 5, float: 6, tuple: 7, list: 7}
_INT, _PASSWORD = 3, 9  # types
_INTS: Final = frozenset({  # settings of the type INT in Kafka; all other numbers without fraction are LONG
    "broker.id", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level",
    "connection.failed.authentication.delay.ms", "group.consumer.heartbeat.interval.ms",
    "group.consumer.session.timeout.ms", "group.max.session.timeout.ms", "group.min.session.timeout.ms",
    "index.interval.bytes", "max.connection.creation.rate", "max.connections", "max.connections.per.ip",
    "max.message.bytes", "min.insync.replicas", "node.id", "num.partitions", "offsets.retention.minutes",
    "sasl.oauthbearer.clock.skew.seconds", "sasl.server.max.receive.size", "segment.bytes", "segment.index.bytes",
    "socket.request.max.bytes", "socket.send.buffer.bytes", "transaction.max.timeout.ms",
})  # fmt: skip
_STRINGS: Final = frozenset({  # lists whose type in Kafka is STRING
    "listener.security.protocol.map", "max.connections.per.ip.overrides", "ssl.principal.mapping.rules",
})  # fmt: skip
_BROKER_NAMES: Final = {  # Kafka's settings of the broker that set the defaults of topics
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
_WITHOUT_DEFAULT: Final = frozenset({"flush.ms", "retention.ms", "segment.jitter.ms", "segment.ms"})  # in the broker
_OWN_SETTINGS: Final = frozenset({
    "host", "port", "insecure", "advertised.host", "cluster.id", "users.file", "acls.file", "quotas.file",
    "read.only.refresh.ms",
})  # fmt: skip
_SECRETS: Final = frozenset({"ssl.key.password"})
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


def describe_configs(request: Request) -> Any:
    """Return the response with the settings of the topics, groups and of the broker that the request names."""
    results = []
    for resource in request.body.resources:
        configs: tuple[Any, ...] = ()
        with Outcome() as outcome:
            configs = _describe(request, resource)
        identity = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        results.append(outcome.part(request.make, "DescribeConfigsResult", **identity, configs=configs))
    return request.make(results=tuple(results))


def list_config_resources(request: Request) -> Any:
    """Return the response with all topics, and with the broker, if the request selects these types of resources.

    Unlike Kafka's broker, the gateway has no settings of broker loggers, client metrics or groups.
    """
    make = request.make
    require(request.client, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    types = set(request.field("resource_types", (_CLIENT_METRICS,))) or {_TOPIC, _BROKER}
    if not types <= _LISTED:
        raise RefusedError(Code.UNSUPPORTED_VERSION)
    names = [(_TOPIC, name) for name in sorted(request.node.topics())] if _TOPIC in types else []
    names += [(_BROKER, str(request.node.settings.node_id))] if _BROKER in types else []
    resources = tuple(make.part("ConfigResource", resource_name=name, resource_type=kind) for kind, name in names)
    return make(config_resources=resources)


def _describe(request: Request, resource: Any) -> tuple[Any, ...]:
    names = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
    _require(request, Operation.DESCRIBE_CONFIGS, resource)
    if resource.resource_type == _TOPIC:
        check_topic_name(resource.resource_name)
        configs = describe_settings(
            request.node, request.make, resource.resource_name, "DescribeConfigsResourceResult",
            has_synonyms=request.body.include_synonyms, has_docs=request.field("include_documentation", False),
        )  # fmt: skip
    elif resource.resource_type == _BROKER:
        _check_broker(request.node.settings.node_id, resource.resource_name)
        # as in Kafka, "" is the resource of settings that change the defaults of all brokers
        configs = _broker_settings(request.node, request) if resource.resource_name else ()
    elif resource.resource_type == _GROUP:
        if not resource.resource_name:
            raise RefusedError(Code.INVALID_REQUEST, "Group name must not be empty")
        configs = _group_settings(request)
    else:
        raise RefusedError(Code.INVALID_REQUEST, f"resources of type {resource.resource_type} have no settings here")
    return tuple(config for config in configs if not names or config.name in names)


def _require(request: Request, operation: Operation, resource: Any) -> None:
    """Raise RefusedError unless the client may perform the operation on the topic or group.

    A broker needs permission for the cluster.
    """
    if resource.resource_type == _TOPIC:
        require(request.client, operation, ResourceType.TOPIC, resource.resource_name)
    elif resource.resource_type == _GROUP:
        require(request.client, operation, ResourceType.GROUP, resource.resource_name)
    else:
        require(request.client, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _check_broker(node_id: int, name: str) -> None:
    if name not in {"", str(node_id)}:
        raise RefusedError(
            Code.INVALID_REQUEST, f"Unexpected broker id, expected {node_id} or empty string, "
            f"but received {name}"
        )  # fmt: skip


def incremental_alter_configs(request: Request) -> Any:
    """Change the named settings of topics, or only check them if ``validate_only`` is set. Return the response."""
    return _alter_all(request, resets_others=False)


def alter_configs(request: Request) -> Any:
    """Replace the settings of topics, or only check them if ``validate_only`` is set. Return the response.

    A setting that the request does not name gets its default.
    """
    return _alter_all(request, resets_others=True)


def _alter_all(request: Request, *, resets_others: bool) -> Any:
    resources, responses = request.body.resources, []
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    for resource in resources:
        with Outcome() as outcome:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise RefusedError(Code.INVALID_REQUEST, "Each resource must appear at most once.")
            _alter(request, resource, resets_others=resets_others)
        identity = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        responses.append(outcome.part(request.make, "AlterConfigsResourceResponse", **identity))
    return request.make(responses=tuple(responses))


def _alter(request: Request, resource: Any, *, resets_others: bool) -> None:
    _require(request, Operation.ALTER_CONFIGS, resource)
    if resource.resource_type != _TOPIC:
        if resource.resource_type == _BROKER:
            _check_broker(request.node.settings.node_id, resource.resource_name)
        # kafka-reassign-partitions.sh --verify resets throttles of brokers; a reset changes nothing, since only topics
        # have settings of their own
        is_reset = all(getattr(change, "config_operation", _SET) == _DELETE for change in resource.configs)
        if is_reset and resource.resource_type in _LISTED:
            return
        raise RefusedError(Code.INVALID_REQUEST, "only the settings of topics can change")
    if not resource.resource_name:
        raise RefusedError(Code.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(resource.resource_name)
    with request.node.changing_topics:  # a concurrent APPEND reads the settings after this change
        _change(request, resource, resets_others=resets_others)


def _change(request: Request, resource: Any, *, resets_others: bool) -> None:
    topic = resource.resource_name
    settings = request.node.source.topic_settings(topic)
    changes: dict[str, object] = {}
    for change in resource.configs:
        if change.name in changes:
            raise RefusedError(Code.INVALID_REQUEST, f"{change.name} is in the request twice")
        changes[change.name] = _new_value(settings.get(change.name), change)
    if resets_others:
        names = (name for name, setting in settings.items() if setting.source == "topic")
        changes = dict.fromkeys(names) | changes
    while True:
        try:
            request.node.engine.alter_topic(topic, changes, only_check=request.body.validate_only)
            break
        except UnknownSettingError as error:
            if changes.get(error.name, "") is not None:
                raise
            del changes[error.name]  # as in Kafka, the reset of an unknown setting has no effect
        except PluginError as error:  # for example, a codec is unknown
            raise RefusedError(Code.INVALID_CONFIG, str(error)) from error


def _new_value(setting: TopicSetting | None, change: Any) -> object:
    """Return the new value of a setting, or None to reset the setting; raise RefusedError if the change is wrong."""
    operation = getattr(change, "config_operation", _SET)
    if operation == _DELETE:
        return None
    if change.value is None:
        raise RefusedError(Code.INVALID_REQUEST, f"Null value not supported for : {change.name}")
    if operation == _SET:
        return change.value
    if operation not in {_APPEND, _SUBTRACT}:
        raise RefusedError(Code.INVALID_REQUEST, f"unknown operation {operation} of {change.name}")
    if not isinstance(_default(change.name, setting), tuple):
        name = "APPEND" if operation == _APPEND else "SUBTRACT"
        raise RefusedError(Code.INVALID_CONFIG, f"Can't {name} to key {change.name} because its type is not LIST.")
    words = _text(None if setting is None else setting.value) or ""
    current_items = [word for word in words.split(",") if word]
    changed_items = [word.strip() for word in change.value.split(",") if word.strip()]
    if operation == _SUBTRACT:
        return ",".join(word for word in current_items if word not in changed_items)
    return ",".join((*current_items, *(word for word in changed_items if word not in current_items)))


def _default(name: str, setting: TopicSetting | None) -> object:
    """Return the default of a setting.

    The default of a list is a tuple, although ``TopicSetting`` has a text with commas.
    """
    key = TopicConfig.keys().get(name)
    if key is not None:
        return key.default
    return None if setting is None else setting.default


def _type(name: str, default: object) -> int:
    """Return the protocol's number of the type of a setting."""
    if name in _SECRETS:
        return _PASSWORD
    return _INT if name in _INTS else _TYPES.get(str if name in _STRINGS else type(default), _TYPES[str])


def _synonyms(make: Maker, name: str, setting: TopicSetting) -> tuple[Any, ...]:
    """Return the values of a topic's setting from all sources, with Kafka's names. The effective value is the first.

    If the topic sets a value, the value in ``[topic_defaults]`` is omitted. Source: apache/kafka
    ConfigHelper.createTopicConfigEntry, ServerTopicConfigSynonyms.
    """
    broker_name, synonyms = _BROKER_NAMES.get(name, name), []
    if setting.source != "default":
        owner = name if setting.source == "topic" else broker_name
        synonyms.append((owner, setting.value, _SOURCES[setting.source]))
    if name in _BROKER_NAMES and name not in _WITHOUT_DEFAULT:
        synonyms.append((broker_name, setting.default, _DEFAULT))
    return tuple(_synonym(make, owner, value, source) for owner, value, source in synonyms)


def _synonym(make: Maker, name: str, value: object, source: int) -> Any:
    text = None if name in _SECRETS else _text(value)
    return make.part("DescribeConfigsSynonym", name=name, value=text, source=source)


def describe_settings(
    node: Node, make: Maker, topic: str, kind: str, *, has_synonyms: bool = False, has_docs: bool = False
) -> tuple[Any, ...]:
    """Return the settings of a topic as messages of kio's class ``kind``."""
    return tuple(
        make.part(
            kind,
            name=name,
            value=_text(setting.value),
            read_only=False,
            config_source=_SOURCES[setting.source],
            is_sensitive=False,
            synonyms=_synonyms(make, name, setting) if has_synonyms else (),
            config_type=_type(name, _default(name, setting)),
            documentation=setting.doc if has_docs else None,
        )
        for name, setting in sorted(node.source.topic_settings(topic).items())
    )


def _broker_settings(node: Node, request: Request) -> tuple[Any, ...]:
    """Return the settings of the gateway as messages, except ``_OWN_SETTINGS``. Secret values are null."""
    make, settings, keys = request.make, node.settings, type(node.settings).keys()
    listener = request.client.endpoint.uri
    overrides = {"advertised.listeners": listener, "listeners": listener, "broker.id": settings.node_id}
    overrides["node.id"] = settings.node_id  # has no default in Kafka
    configured = {**settings.to_mapping(only_changed=True), **overrides}
    defaults = {
        name: value for name, value in type(settings)().to_mapping().items() if value != "" and name not in overrides
    }
    has_docs, results = request.field("include_documentation", False), []
    for name, value in sorted({**settings.to_mapping(), **overrides}.items()):
        if name in _OWN_SETTINGS:
            continue
        synonyms = [_synonym(make, name, value, _STATIC_BROKER)] if name in configured else []
        synonyms += [_synonym(make, name, defaults[name], _DEFAULT)] if name in defaults else []
        results.append(
            make.part(
                "DescribeConfigsResourceResult",
                name=name,
                value=None if name in _SECRETS else _text(value),
                read_only=True,
                config_source=_STATIC_BROKER if name in configured else _DEFAULT,
                is_sensitive=name in _SECRETS,
                synonyms=tuple(synonyms) if request.body.include_synonyms else (),
                config_type=_type(name, value if name in overrides else keys[name].default),
                documentation=keys[name].doc if has_docs and name in keys else None,
            )
        )
    return tuple(results)


def _group_settings(request: Request) -> tuple[Any, ...]:
    """Return the settings of a group as messages. All groups have the values of the gateway's settings."""
    make, settings = request.make, request.node.settings
    keys, has_docs = type(settings).keys(), request.field("include_documentation", False)
    values, results = settings.to_mapping(), []
    for name in ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"):
        key = f"group.{name}"
        results.append(
            make.part(
                "DescribeConfigsResourceResult",
                name=name,
                value=_text(values[key]),
                read_only=False,
                config_source=_DEFAULT,
                is_sensitive=False,
                synonyms=(_synonym(make, name, values[key], _DEFAULT),) if request.body.include_synonyms else (),
                config_type=_INT,
                documentation=keys[key].doc if has_docs else None,
            )
        )
    return tuple(results)


def _text(value: object) -> str | None:
    """Return a setting's value as text in Kafka's format, such as ``true``, or ``a,b`` for a list. None stays None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
