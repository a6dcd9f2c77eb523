import jax
import pytest


@pytest.fixture
def standard_promotion():
    """The strict promotion of this suite refuses optax's own arithmetic (beta ** count)."""
    with jax.numpy_dtype_promotion("standard"):
        yield
