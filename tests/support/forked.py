"""Calls of functions in a forked child process."""

import os
import signal
import traceback
from collections.abc import Callable

WAIT_S = 60


def fork_with_pipe(work: Callable[[int], object]) -> tuple[int, int]:
    """Fork a child that calls ``work`` with the writing end of a pipe. Return its process id and the reading end.

    The child's exit code is 0, or 1 after an error, whose traceback it prints. The caller closes the reading end, and
    waits for the child.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            work(writing)
        except BaseException:  # noqa: BLE001 - no code after a fork may continue
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    return child, reading


def in_child(*checks: Callable[[], object]) -> list[str]:
    """Call functions in a forked child. Return "" or the error of each call, as text.

    The child is killed if a call takes too long; the results of later calls are then missing.
    """

    def work(writing: int) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WAIT_S)
        for check in checks:
            os.write(writing, f"{_outcome(check)}\n".encode())

    child, reading = fork_with_pipe(work)
    with open(reading, encoding="utf-8") as answers:  # noqa: PTH123 - a descriptor
        outcomes = answers.read().splitlines()
    os.waitpid(child, 0)
    return outcomes


def _outcome(check: Callable[[], object]) -> str:
    try:
        check()
    except BaseException as error:  # noqa: BLE001 - it is the outcome
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return ""


def is_refusal(outcome: str) -> bool:
    """Return True if the object refused a call because the process was forked after it was opened."""
    return outcome.startswith("ClosedError: ") and outcome.endswith(
        "was opened before a fork: open another one in the child process"
    )
