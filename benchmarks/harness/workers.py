"""Sides in other processes, in any language: a worker answers each line on its standard input with one line.

=========================== =================================================================================
``load NAME PATH``          prepare the input in the file ``PATH``, and call it ``NAME``
``sample JOB NAME CALLS``   do the job this many times, and answer ``WALL_NS CPU_NS``
``outcome JOB NAME PATH``   do the job once, and write its outcome to the file ``PATH``
=========================== =================================================================================

An answer that begins with ``error`` describes an error. Arguments must not contain a space; the benchmark chooses the
names of all files.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from harness.sides import Sample, Side, WrongOutcomeError, time_calls

_ERROR: Final = "error"
_LEAVE_S: Final = 10.0


class WorkerError(Exception):
    """A worker could not be started, has ended, or could not do a job; the text names the cause."""


class Worker:
    """A process that answers lines. As a context manager, it ends the process at the exit.

    Args:
        command: the command line of the process; its standard error is that of this process.
        environment: environment variables of the process; None to inherit them.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._name = Path(command[0]).name
        self._input_names: set[str] = set()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
            )
        except OSError as error:
            raise WorkerError(f"{self._name} cannot be started: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, *words: str | int) -> list[str]:
        """Send a line with these words, and return the words of the answer.

        Raises:
            WorkerError: the answer is an error, or there is none.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(*words, file=self._process.stdin, flush=True)
        except OSError as error:
            raise WorkerError(f"{self._name} has ended with code {self._process.poll()}") from error
        answer = self._process.stdout.readline()
        if not answer:
            raise WorkerError(f"{self._name} has ended instead of answering to {words[0]}")
        if answer.startswith(_ERROR):
            raise WorkerError(f"{self._name}: {answer.removeprefix(_ERROR).strip()}")
        return answer.split()

    def load(self, name: str, path: Path) -> None:
        """Make the worker prepare an input, unless an input with this name is already loaded."""
        if name not in self._input_names:
            self.ask("load", name, str(path))
            self._input_names.add(name)

    def close(self) -> None:
        """Close the worker's standard input, and wait for the end of the process. Kill the process after 10 seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # it may have ended without reading its input
            self._process.stdin.close()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class WorkerSide(Side):
    """A job of a worker.

    Args:
        name: unique in its case.
        worker: the worker; the caller closes it.
        job: name of the job.
        load: name of the input, which is already loaded.
        scratch: a folder for the file with the outcome.
        check: raises WrongOutcomeError if the outcome is wrong.
        warm_up_times: factor for the duration of the warm-up; more than 1 for a worker with a just-in-time compiler.
    """

    def __init__(
        self,
        name: str,
        worker: Worker,
        job: str,
        load: str,
        scratch: Path,
        check: Callable[[bytes], None],
        warm_up_times: float = 1,
    ) -> None:
        self.name, self.warm_up_times = name, warm_up_times
        self._worker, self._job, self._load, self._check = worker, job, load, check
        self._outcome = scratch / "outcome"

    def check(self) -> None:
        """Make the worker do the job once, and check its outcome."""
        try:
            self._worker.ask("outcome", self._job, self._load, str(self._outcome))
        except WorkerError as error:
            raise WrongOutcomeError(f"{self.name}: {error}") from error
        self._check(self._outcome.read_bytes())
        self._outcome.unlink()

    def sample(self, calls: int) -> Sample:
        """Return the time that the worker measured for this many calls."""
        wall_ns, cpu_ns = map(int, self._worker.ask("sample", self._job, self._load, calls))
        return Sample(wall_ns / 1e9, cpu_ns / 1e9)


@dataclass(frozen=True, slots=True)
class Job:
    """Work on one input.

    Attributes:
        call: does the work; it is measured.
        outcome: does the same work, and returns the result as bytes that can be compared; it is never measured.
    """

    call: Callable[[], object]
    outcome: Callable[[], bytes]


def serve(job_of: Callable[[str, bytes], Job]) -> None:
    """Run a worker in Python until the standard input ends.

    Args:
        job_of: returns the job for the name of a job and an input; called once for each pair.
    """
    inputs: dict[str, bytes] = {}
    jobs: dict[tuple[str, str], Job] = {}
    for line in sys.stdin:
        try:
            print(_answer(line.split(), inputs, jobs, job_of), flush=True)
        except Exception as error:  # noqa: BLE001 - any error is sent to the process that asked
            print(_ERROR, type(error).__name__, str(error).replace("\n", " "), flush=True)


def _answer(
    words: Sequence[str],
    inputs: dict[str, bytes],
    jobs: dict[tuple[str, str], Job],
    job_of: Callable[[str, bytes], Job],
) -> str:
    match words:
        case ["load", name, path]:
            inputs[name] = Path(path).read_bytes()
            return "ok"
        case ["sample", job, name, calls]:
            sample = time_calls(_job(job, name, inputs, jobs, job_of).call, int(calls))
            return f"{round(sample.wall_s * 1e9)} {round(sample.cpu_s * 1e9)}"
        case ["outcome", job, name, path]:
            Path(path).write_bytes(_job(job, name, inputs, jobs, job_of).outcome())
            return "ok"
    raise ValueError(f"not understood: {' '.join(words)}")


def _job(
    job: str,
    name: str,
    inputs: Mapping[str, bytes],
    jobs: dict[tuple[str, str], Job],
    job_of: Callable[[str, bytes], Job],
) -> Job:
    if (job, name) not in jobs:
        jobs[job, name] = job_of(job, inputs[name])
    return jobs[job, name]
