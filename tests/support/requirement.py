"""Programs and packages that some tests need in addition to Python.

If one is missing, the tests that need it are skipped, or fail where it is required.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Final, NoReturn

import pytest

from stratalog.extensions import SWITCH

VARIABLE: Final = "TEST_REQUIRES"


class Requirement(StrEnum):
    """One thing that a machine with Python alone lacks.

    Attributes:
        KERNELS: the compiled modules, which a C compiler builds at installation.
        KAFKA: Java 17 and Maven, which fetch and run a real Kafka.
        S3_SERVER: Go, which builds versitygw.
        SPARK: PySpark with Spark Connect and a Java, and a second environment with Spark 4.0.
    """

    KERNELS = "kernels"
    KAFKA = "kafka"
    S3_SERVER = "s3-server"
    SPARK = "spark"


def is_required(requirement: Requirement) -> bool:
    """Return True if tests with this requirement must run in this environment.

    ``TEST_REQUIRES`` lists the requirements of this run, with commas. Without it, ``CI=true`` requires all of them.
    Kernels that ``STRATALOG_NO_EXTENSIONS`` switches off are never required.

    Raises:
        ValueError: the variable lists a name that is no requirement.
    """
    if requirement is Requirement.KERNELS and os.environ.get(SWITCH):
        return False
    names = os.environ.get(VARIABLE)
    if names is None:
        return os.environ.get("CI") == "true"
    return requirement in {Requirement(name) for name in names.split(",") if name}


def missing(requirement: Requirement, reason: str) -> NoReturn:
    """Skip the running test with ``reason``, or fail it if the requirement is required here."""
    if is_required(requirement):
        pytest.fail(f"{reason}; {VARIABLE} or CI=true requires it")
    pytest.skip(reason)
