"""Which segment an index lies in, also where jnp.searchsorted fails: in a shard_map over some of a mesh's axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_vbgemm as vb
from jax_vbgemm import moe
from jax_vbgemm._src.ragged.segments import segment_of
from jax_vbgemm.irreps import LinearMap


@pytest.mark.parametrize("segments", [0, 1, 2, 5, 32, 33, 64, 100])
def test_segments_of_any_number_and_length(segments):
    rng = np.random.default_rng(segments)
    end = np.cumsum(rng.integers(0, 3, segments))  # some are empty
    index = np.arange(60 + 2 * segments)
    found = jax.jit(segment_of)(jnp.asarray(index), jnp.asarray(end, dtype=index.dtype))
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, np.searchsorted(end, index, side="right"))


def of_dtype(dtype, **options):
    def product(x, w, sizes):
        return vb.ragged_dot(x.astype(dtype), w.astype(dtype), sizes, **options)

    return product


def packed(x, w, sizes):
    return vb.ragged_matmul(x, [w[0], w[1, :, :3]], sizes, implementation="xla")


def layer(x, w, sizes):
    del sizes
    return moe.expert_mlp(x, w, w[:, :5], moe.route(x[:, :2], experts=jnp.zeros((6, 1), jnp.int32)))


def equivariant(x, w, sizes):
    linear = LinearMap("8x0e", "10x0e")
    return linear([w], x, counts=sizes)


PRODUCTS = {
    "kernel": of_dtype("float32", implementation="kernel"),
    "xla": of_dtype("float32", implementation="xla"),
    "int8": of_dtype("int8", preferred_element_type=jnp.int32),
    "float8": of_dtype("float8_e4m3fn"),
    "a dot algorithm": of_dtype("bfloat16", precision=jax.lax.DotAlgorithmPreset.BF16_BF16_F32),
    "packed": packed,
    "a layer": layer,
    "weights by counts": equivariant,
}


@pytest.mark.multidevice(4)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_shard_map_over_one_axis_of_two(name):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4])
    partly = jax.shard_map(PRODUCTS[name], mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    operands = jnp.ones((12, 8), jnp.float32), jnp.ones((4, 8, 10), jnp.float32), jnp.array([3, 3, 1, 5])
    jax.jit(partly).lower(*operands)
