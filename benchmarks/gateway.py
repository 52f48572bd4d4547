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
            report.verdicts(_measured(servers, options, report))
        except WrongOutcomeError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def _measured(servers: Sequence[Server], options: Options, report: Reporter) -> list[Verdict]:
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
    taken: dict[str, list[float]] = {server.name: [] for server in servers}
    round_s = (_QUICK_LATENCY_S if options.quick else _LATENCY_S) / _LATENCY_ROUNDS
    for number in range(_LATENCY_ROUNDS):
        for server in servers if number % 2 == 0 else reversed(servers):
            taken[server.name] += latencies_s(server, round_s, _RATE)
    for each in taken.values():
        each.sort()
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        found = {side: each[min(len(each) - 1, int(len(each) * share))] * 1e3 for side, each in taken.items()}
        verdicts.append(_compared(target, f"latency/{name}", found, "ms", 1.0))
    return verdicts


def _start(servers: Sequence[Server], options: Options) -> list[Verdict]:
    del options
    found = {server.name: server.start_s * 1e3 for server in servers}
    return [_compared("start to the first accepted produce", "start", found, "ms", 1 / 20)]


def _memory(servers: Sequence[Server], options: Options) -> list[Verdict]:
    count, found = _QUICK_CONNECTIONS if options.quick else _CONNECTIONS, {}
    for server in servers:
        with contextlib.ExitStack() as opened:
            for _ in range(count):
                connection = opened.enter_context(Connection(server.port))
                connection.ask(API_VERSIONS, 0)
            found[server.name] = server.memory_mib()
    return [_compared(f"memory with {count} idle connections", "memory", found, "MiB", 1 / 10)]


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
        _compared(
            "kafka-producer-perf-test, a million records of 100 bytes",
            f"java/{name}",
            {side: median(found[1:]) for side, found in taken.items()},
            unit,
            1.0,
        )
        for name, taken, unit in (("wall", walls, "s"), ("cpu", cpus, "s of the server"))
    ]


def _fixture(servers: Sequence[Server], options: Options) -> list[Verdict]:
    del servers, options
    taken = []
    for _ in range(_FIXTURES):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            with kafka_server(folder):
                taken.append((time.perf_counter() - began) * 1e3)
    best = min(taken)
    measured = f"{GATEWAY}: {best:.0f} ms at best of {_FIXTURES}, {max(taken):.0f} ms at worst"
    return [Verdict("fixture kafka_server", "fixture", measured, f"{_FIXTURE_MS} ms", best, best <= _FIXTURE_MS)]


def _compared(target: str, case: str, found: dict[str, float], unit: str, at_most: float) -> Verdict:
    """Return the verdict that compares the gateway's figure with the broker's."""
    bound, ours, theirs = f"{at_most:g} x {KAFKA}", found[GATEWAY], found.get(KAFKA)
    if theirs is None:
        return Verdict(target, case, f"{GATEWAY}: {ours:.3g} {unit}, no figure of {KAFKA}", bound, None, None)
    measured = f"{GATEWAY}: {ours:.3g} {unit} beside {theirs:.3g} {unit}"
    return Verdict(target, case, measured, bound, ours / theirs, ours <= at_most * theirs)


_ROWS: Final[dict[str, _Row]] = {
    "latency": _latency,
    "start": _start,
    "memory": _memory,
    "java": _java,
    "fixture": _fixture,
}


if __name__ == "__main__":
    sys.exit(main())
