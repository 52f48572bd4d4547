"""The gateway compared with a real Kafka broker: processor time of the server, latency, start and memory.

    python benchmarks/gateway.py [--only PART] [--quick] [--rounds N] [--json]

Both servers run at the same time, and get requests alternately. benchmarks/README.md explains the output.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from gateway_parts.loads import FETCH, PRODUCE, cases, latencies_s
from gateway_parts.servers import Server, broker, gateway, java_producer
from gateway_parts.wire import API_VERSIONS, Connection, prepare_client
from harness import (
    GATEWAY,
    KAFKA,
    CpuBound,
    JavaMissingError,
    Machine,
    Options,
    Plan,
    Reporter,
    Verdict,
    WrongOutcomeError,
    measure,
    parse_options,
)
from stratalog.testing.kafka_server import kafka_server

_SAMPLE_S: Final = 1.0  # long enough to contain the work of the JVM's garbage collector and compilers
_WARM_UP_S: Final = 3.0  # the JVM compiles during the warm-up
_PRODUCE_SHARE: Final = 1 / 1.3
_RATE: Final = 1000
_LATENCY_S: Final = 10.0
_QUICK_LATENCY_S: Final = 0.2
_LATENCY_ROUNDS: Final = 4  # each round measures both servers, one after the other
_CONNECTIONS: Final = 1000
_QUICK_CONNECTIONS: Final = 20
_JAVA_RECORDS: Final = 1_000_000
_QUICK_JAVA_RECORDS: Final = 1000
_FIXTURES: Final = 9
_FIXTURE_MS: Final = 150
_Row = Callable[[Sequence[Server], Options], list[Verdict]]


def main() -> int:
    """Run the benchmark. Return 1 if a server does not do the work, otherwise 0."""
    options = parse_options(__doc__ or "")
    report = Reporter(as_json=options.json)
    report.machine(Machine.now(["kio"]))
    if not options.quick:
        options = Options(
            Plan(options.plan.rounds, _SAMPLE_S, _WARM_UP_S), options.json, options.quick, options.full, options.only
        )
    prepare_client()  # before the start of the first server, so that its cost does not count there
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        servers = [running.enter_context(gateway(folder / "gateway"))]
        try:
            servers.append(running.enter_context(broker(folder)))
        except JavaMissingError as error:
            report.missing([str(error)])
        try:
            report.verdicts(_measure_all(servers, options, report))
        except WrongOutcomeError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def _measure_all(servers: Sequence[Server], options: Options, report: Reporter) -> list[Verdict]:
    results = {}
    for case in cases(servers, options.wants):
        results[case.name] = result = measure(case, options.plan)
        report.result(result)
    verdicts = [bound.verdict(results) for bound in bounds() if options.wants(bound.case)]
    for name, row in _ROWS.items():
        if options.wants(name):
            try:
                verdicts += row(servers, options)
            except JavaMissingError as error:
                report.missing([str(error)])
    return verdicts


def bounds() -> list[CpuBound]:
    """Return the bounds on processor time."""
    produce = [CpuBound("produce: CPU seconds a GiB", name, GATEWAY, KAFKA, _PRODUCE_SHARE) for name in PRODUCE]
    return produce + [CpuBound("fetch: CPU seconds a GiB", name, GATEWAY, KAFKA, 1.0) for name in FETCH]


def _latency(servers: Sequence[Server], options: Options) -> list[Verdict]:
    target, verdicts = f"end to end at {_RATE} records a second", []
    latencies: dict[str, list[float]] = {server.name: [] for server in servers}
    round_s = (_QUICK_LATENCY_S if options.quick else _LATENCY_S) / _LATENCY_ROUNDS
    for number in range(_LATENCY_ROUNDS):
        for server in servers if number % 2 == 0 else reversed(servers):
            latencies[server.name] += latencies_s(server, round_s, _RATE)
    for latencies_of_server in latencies.values():
        latencies_of_server.sort()
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        percentile_by_side = {
            side: latencies_of_server[min(len(latencies_of_server) - 1, int(len(latencies_of_server) * share))] * 1e3
            for side, latencies_of_server in latencies.items()
        }
        verdicts.append(_compare(target, f"latency/{name}", percentile_by_side, "ms", 1.0))
    return verdicts


def _start(servers: Sequence[Server], options: Options) -> list[Verdict]:
    del options
    start_by_side = {server.name: server.start_s * 1e3 for server in servers}
    return [_compare("start to the first accepted produce", "start", start_by_side, "ms", 1 / 20)]


def _memory(servers: Sequence[Server], options: Options) -> list[Verdict]:
    count, memory_by_side = _QUICK_CONNECTIONS if options.quick else _CONNECTIONS, {}
    for server in servers:
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                connection = stack.enter_context(Connection(server.port))
                connection.ask(API_VERSIONS, 0)
            memory_by_side[server.name] = server.memory_mib()
    return [_compare(f"memory with {count} idle connections", "memory", memory_by_side, "MiB", 1 / 10)]


def _java(servers: Sequence[Server], options: Options) -> list[Verdict]:
    """Compare the speed of Kafka's own producer, whose batches grow while the server is busy."""
    count, rounds = (_QUICK_JAVA_RECORDS, 1) if options.quick else (_JAVA_RECORDS, options.plan.rounds)
    walls, cpus = ({server.name: list[float]() for server in servers} for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):  # the first round warms up
            for server in servers if number % 2 == 0 else reversed(servers):
                with Connection(server.port) as connection:
                    connection.create(topic := f"java-{number}", 1)
                cpu_s = server.cpu_s()
                walls[server.name].append(java_producer(server, topic, count, Path(folder)) / count * 1e6)
                cpus[server.name].append((server.cpu_s() - cpu_s) / count * 1e6)
    return [
        _compare(
            "kafka-producer-perf-test, a million records of 100 bytes",
            f"java/{name}",
            {side: median(sample_values[1:]) for side, sample_values in samples.items()},
            unit,
            1.0,
        )
        for name, samples, unit in (("wall", walls, "s"), ("cpu", cpus, "s of the server"))
    ]


def _fixture(servers: Sequence[Server], options: Options) -> list[Verdict]:
    del servers, options
    start_times_ms = []
    for _ in range(_FIXTURES):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            with kafka_server(folder):
                start_times_ms.append((time.perf_counter() - began) * 1e3)
    best = min(start_times_ms)
    measured = f"{GATEWAY}: {best:.0f} ms at best of {_FIXTURES}, {max(start_times_ms):.0f} ms at worst"
    return [Verdict("fixture kafka_server", "fixture", measured, f"{_FIXTURE_MS} ms", best, best <= _FIXTURE_MS)]


def _compare(target: str, case: str, figure_by_side: dict[str, float], unit: str, at_most: float) -> Verdict:
    """Return the verdict that compares the gateway's figure with the broker's."""
    bound, own_figure, peer_figure = f"{at_most:g} x {KAFKA}", figure_by_side[GATEWAY], figure_by_side.get(KAFKA)
    if peer_figure is None:
        return Verdict(target, case, f"{GATEWAY}: {own_figure:.3g} {unit}, no figure of {KAFKA}", bound, None, None)
    measured = f"{GATEWAY}: {own_figure:.3g} {unit} beside {peer_figure:.3g} {unit}"
    return Verdict(target, case, measured, bound, own_figure / peer_figure, own_figure <= at_most * peer_figure)


_ROWS: Final[dict[str, _Row]] = {
    "latency": _latency,
    "start": _start,
    "memory": _memory,
    "java": _java,
    "fixture": _fixture,
}


if __name__ == "__main__":
    sys.exit(main())
