from __future__ import annotations

from types import ModuleType

import pytest

from compiled_twin import compiled_twin
from stratalog.model import arrow, record_py

KERNELS = ("stratalog.model.record_c", "stratalog.model.arrow_c")


@pytest.fixture(scope="session", params=["python", "compiled"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    """Return the Python or the compiled module of records."""
    return record_py if request.param == "python" else compiled_twin(KERNELS[0])


@pytest.fixture(scope="session")
def record_c() -> ModuleType:
    """Return the compiled module of records."""
    return compiled_twin(KERNELS[0])


@pytest.fixture(scope="session")
def packed() -> arrow.Batches:
    """Return the compiled function that converts records to Arrow batches."""
    return arrow.compiled_batches(compiled_twin(KERNELS[1]))


@pytest.fixture(scope="session", params=["python", "compiled"])
def record_batches(request: pytest.FixtureRequest) -> arrow.Batches:
    """Return the Python or the compiled function that converts records to Arrow batches."""
    return arrow.convert_batches if request.param == "python" else arrow.compiled_batches(compiled_twin(KERNELS[1]))
