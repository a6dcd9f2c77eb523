import pytest
from free_calls import FREE_CALLS

import jax_vbgemm as vb


@pytest.fixture(autouse=True)
def planned_for_one_device():
    """The device decides which products are grouped."""
    with vb.target(FREE_CALLS):
        yield
