"""Quotas of bytes and of new connections, from a file.

The file is JSON: ``{"version": 1, "quotas": [...]}``. A quota has an entity and limits. The entity is a ``user``, a
``client-id``, both, or an ``ip``. Users and clients have the limits ``producer_byte_rate`` and ``consumer_byte_rate``
(bytes per second). An ``ip`` has the limit ``connection_creation_rate`` (connections per second). The name
``<default>`` means each user, client id or address that has no own quota.

Source: apache/kafka ClientQuotaManager, QuotaUtils, Rate, SampledStat.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stratalog.errors import ConfigError
from stratalog.spi import Clock
from stratalog_gateway.security.client import Client
from stratalog_gateway.security.json_file import read_field, replace_json
from stratalog_gateway.security.watched_files import EditedFile

PRODUCED: Final = "producer_byte_rate"
FETCHED: Final = "consumer_byte_rate"
_CONNECTIONS: Final = "connection_creation_rate"
DEFAULT: Final = "<default>"
ENTITIES: Final = ("user", "client-id", "ip")
_LIMITS: Final = (PRODUCED, FETCHED, _CONNECTIONS)
_VERSION: Final = 1
_SAMPLES: Final = 11  # quota.window.num
_SAMPLE_MS: Final = 1000  # quota.window.size.seconds
_MAX_RATES: Final = 10_000
_NS_PER_MS: Final = 1_000_000
_MAX_LIMIT: Final = 1 << 63  # Kafka's Long.MAX_VALUE, converted to a double
_INT_MAX: Final = (1 << 31) - 1
Entity = tuple[str, str, str]  # user, client id, address; "" for each that is not in the quota
Table = Mapping[tuple[Entity, str], float]


def monotonic_ms(clock: Clock) -> int:
    """Return the monotonic time (ms) for ``Rate.record``. A wall clock that is set back would increase rates."""
    return clock.monotonic_ns() // _NS_PER_MS


class Rate:
    """Rate of recorded values over the last 10 to 11 seconds, with a limit per second. Thread-safe."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._samples: deque[list[float]] = deque()  # start of the sample (ms), sum of its values

    def record(self, value: float, now_ms: int) -> int:
        """Add a value. Return the time (ms) until the rate falls to the limit; 0 if the rate is not above the limit.

        The time is at most 2^31 - 1, the largest throttle time of Kafka's responses.
        """
        with self._lock:
            samples = self._samples
            while samples and now_ms - samples[0][0] >= _SAMPLES * _SAMPLE_MS:
                samples.popleft()
            if not samples or now_ms - samples[-1][0] >= _SAMPLE_MS:
                samples.append([now_ms, 0.0])
            samples[-1][1] += value
            elapsed_ms = now_ms - samples[0][0]
            full = elapsed_ms // _SAMPLE_MS
            window_ms = elapsed_ms + max(_SAMPLES - 1 - full, 0) * _SAMPLE_MS
            rate = sum(sample[1] for sample in samples) / window_ms * 1000
        return round(min((rate - self.limit) / self.limit * window_ms, _INT_MAX)) if rate > self.limit else 0


class Quotas:
    """Quotas of a file, and the current rates of clients. The file is reloaded when it changes. Thread-safe.

    Args:
        path: path of the file; "" means no quotas.

    Attributes:
        file: the limits in the file; None if ``path`` is empty.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self.file = EditedFile(path, load_quotas, save_quotas, clock) if path else None
        self._rates: OrderedDict[tuple[Entity, str], Rate] = OrderedDict()  # under _lock

    def record(self, limit: str, client: Client, client_id: str, count: int) -> int:
        """Add ``count`` bytes to a client's rate for ``limit``, which is ``PRODUCED`` or ``FETCHED``.

        A negative ``count`` subtracts bytes that were added before. Return the throttle time (ms) of the client; 0 if
        no quota applies, or if the rate is not above the quota.
        """
        if self.file is None:
            return 0
        table = self.file.current
        for quota_entity, rate_entity in _entities(client.principal.partition(":")[2], client_id):
            quota = table.get((quota_entity, limit))
            if quota is not None:
                return self._rate(rate_entity, limit, quota).record(count, monotonic_ms(self._clock))
        return 0

    def window_bytes(self, client: Client, client_id: str) -> int | None:
        """Return the maximum size (bytes) of a fetch without throttling, for an idle client; None without a quota."""
        table = {} if self.file is None else self.file.current
        for quota_entity, _ in _entities(client.principal.partition(":")[2], client_id) if table else ():
            quota = table.get((quota_entity, FETCHED))
            if quota is not None:
                return int(quota * (_SAMPLES - 1) * _SAMPLE_MS / 1000)
        return None

    def refuses_connection(self, host: str) -> bool:
        """Return True if a new connection would exceed the limit of its IP address. Otherwise count the connection."""
        if self.file is None:
            return False
        table = self.file.current
        limit = table.get((("", "", host), _CONNECTIONS), table.get((("", "", DEFAULT), _CONNECTIONS)))
        if limit is None:
            return False
        rate, now_ms = self._rate(("", "", host), _CONNECTIONS, limit), monotonic_ms(self._clock)
        is_above = rate.record(1, now_ms) > 0
        if is_above:
            rate.record(-1, now_ms)
        return is_above

    def _rate(self, entity: Entity, name: str, limit: float) -> Rate:
        with self._lock:
            rate = self._rates.pop((entity, name), None) or Rate(limit)
            self._rates[entity, name] = rate  # the most recently used rate is at the end
            if len(self._rates) > _MAX_RATES:
                self._rates.popitem(last=False)
        rate.limit = limit
        return rate


def _entities(user: str, client_id: str) -> tuple[tuple[Entity, Entity], ...]:
    """Return the entities whose quotas can apply to a client, in Kafka's order of priority, as pairs.

    The first entity of a pair is the entity of the quota. The second entity is the entity whose rate this quota limits.
    """
    user_client, of_user, of_client = (user, client_id, ""), (user, "", ""), ("", client_id, "")
    return (
        (user_client, user_client),
        ((user, DEFAULT, ""), user_client),
        (of_user, of_user),
        ((DEFAULT, client_id, ""), user_client),
        ((DEFAULT, DEFAULT, ""), user_client),
        ((DEFAULT, "", ""), of_user),
        (of_client, of_client),
        (("", DEFAULT, ""), of_client),
    )


def load_quotas(path: Path) -> Table:
    """Return the limits in a file, by entity and name of the limit.

    Raises:
        ConfigError: the file or one of its quotas is wrong. If a quota is wrong, the error contains its index, from 0.
    """
    items: Any = read_field(path, _VERSION, "quotas", list)
    table: dict[tuple[Entity, str], float] = {}
    for number, item in enumerate(items):
        table |= limits_of(item, f"{path} quotas[{number}]")
    return table


def save_quotas(path: Path, table: Table) -> None:
    """Replace a file of quotas durably. Raise OSError if the file cannot be written."""
    items: dict[Entity, dict[str, object]] = {}
    for (entity, name), limit in table.items():
        named_entity = {kind: entity_name for kind, entity_name in zip(ENTITIES, entity, strict=True) if entity_name}
        items.setdefault(entity, dict(named_entity))[name] = limit
    replace_json(path, {"version": _VERSION, "quotas": list(items.values())})


def limits_of(item: object, place: str) -> Table:
    """Return the limits of one quota in a file, by entity and name of the limit.

    Raise ConfigError if the quota is wrong. ``place`` describes the position of the quota for the error.
    """
    if not isinstance(item, Mapping):
        raise ConfigError(f"{place} is not an object")
    unknown = [name for name in item if name not in {*ENTITIES, *_LIMITS}]
    if unknown:
        raise ConfigError(f"{place}: unknown field {unknown[0]}")
    user, client_id, host = (item.get(name, "") for name in ENTITIES)
    limits = {name: item[name] for name in _LIMITS if name in item}
    if not all(isinstance(name, str) for name in (user, client_id, host)) or bool(user or client_id) == bool(host):
        raise ConfigError(f"{place}: name a user, a client-id or both, or an ip")
    if host not in {"", DEFAULT}:
        try:
            host = str(ipaddress.ip_address(host))
        except ValueError as error:  # the quota of a host name would apply to no client
            raise ConfigError(f"{place}: {error}") from error
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= _MAX_LIMIT:
            raise ConfigError(f"{place}: {name} must be a number above 0 and at most 2^63")
        if (name == _CONNECTIONS) != bool(host):
            raise ConfigError(f"{place}: {name} is not a limit of {'an ip' if host else 'users and clients'}")
    if not limits:
        raise ConfigError(f"{place} has no limit")
    return {((user, client_id, host), name): float(limit) for name, limit in limits.items()}
