"""The builder that all tests of the emulated kernels share."""

import pytest
from emulated_check import Builder


@pytest.fixture(scope="session")
def builder(request: pytest.FixtureRequest) -> Builder:
    return Builder(request.config.cache.mkdir("emulation"))
