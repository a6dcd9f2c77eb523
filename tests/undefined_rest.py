"""A fixture under which rows that a product leaves undefined are NaN."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_vbgemm._src.ragged import lowering
from jax_vbgemm._src.ragged.reference import rows_with_weights


@pytest.fixture(scope="module")
def undefined_rows_are_nan() -> Iterator[None]:
    call = lowering._call

    def with_nan(operands, platform, ragged, planned):
        value = call(operands, platform, ragged, planned)
        if not ragged.undefined_rest:
            return value
        given = dict(zip(ragged.names, operands, strict=True))
        known = rows_with_weights(given["group_sizes"], given.get("group_offset"), value.shape[-2], ragged.groups)
        return jnp.where(known[..., None], value, jnp.asarray(np.nan, value.dtype))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "_call", with_nan)
        jax.clear_caches()
        yield
    jax.clear_caches()
