"""Which segment an index lies in, also where jnp.searchsorted fails: in a shard_map over some of a mesh's axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_vbgemm as vb
from jax_vbgemm import moe
from jax_vbgemm._src.ragged.group_order import sorted_by_group
from jax_vbgemm._src.ragged.segments import ends_of, segment_of
from jax_vbgemm.irreps import LinearMap


@pytest.mark.parametrize("segments", [0, 1, 2, 5, 32, 33, 64, 100])
def test_segments_of_any_number_and_length(segments):
    rng = np.random.default_rng(segments)
    end = np.cumsum(rng.integers(0, 3, segments))  # some are empty
    index = np.arange(60 + 2 * segments)
    found = jax.jit(segment_of)(jnp.asarray(index), jnp.asarray(end, dtype=index.dtype))
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, np.searchsorted(end, index, side="right"))


@pytest.mark.parametrize("segments", [0, 1, 7, 256, 257])
@pytest.mark.parametrize("most", [0, 40, 2**31 - 1])
def test_ends_saturate(segments, most):
    """Of few segments as sums of all sizes before, of many and where such sums may overflow by a scan."""
    sizes = np.random.default_rng(segments).integers(0, min(most, 2**30), segments, endpoint=True)
    found = jax.jit(lambda sizes: ends_of(sizes, most))(jnp.asarray(sizes, np.int32))
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, np.minimum(np.cumsum(sizes), most))


@pytest.mark.parametrize("count", [1, 9, 256, 257])
def test_items_are_counted_alike_for_each_device(count):
    """A GPU compares items with groups where there are few groups."""
    group = np.random.default_rng(count).integers(0, count, 100).astype(np.int32)
    order = np.argsort(group, kind="stable")
    for device in ("h100", "cpu"):
        with vb.target(device):
            found = jax.jit(lambda group: sorted_by_group(group, count))(group)
        assert [x.dtype for x in found] == [jnp.int32] * 2
        np.testing.assert_array_equal(found[0], np.bincount(group, minlength=count))
        np.testing.assert_array_equal(found[1], order)


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
