"""One program for one process or several: python program.py OUT DEVICES [ADDRESS PROCESSES INDEX]."""

import os
import sys

out, devices, *several = sys.argv[1:]
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
os.environ["VBGEMM_CACHE"] = "off"

import jax  # noqa: E402

if several:
    jax.distributed.initialize(several[0], num_processes=int(several[1]), process_id=int(several[2]))

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import jax_vbgemm as vb  # noqa: E402

mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Auto,))


def everywhere(x, spec=None):
    """A global array, of which each process makes the shards of its devices."""
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, NamedSharding(mesh, spec or P()), lambda index: host[index])


def numbers(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def experts(lhs, rhs, sizes):
    return vb.moe.expert_parallel(lambda rows, sizes: vb.ragged_dot(rows, rhs, sizes), lhs, sizes, mesh_axis="x")


matrices = [numbers(12, 40), numbers(37, 9), numbers(5, 6, 10)]
near = jax.jit(lambda tree: vb.newton_schulz(tree, mesh_axis="x", mesh=mesh), out_shardings=NamedSharding(mesh, P()))
results = near([everywhere(x) for x in matrices])
operands = numbers(4, 5, 8).reshape(20, 8), numbers(4, 8, 3), np.array([2, 0, 1, 2] * 4, np.int32)
spread = jax.jit(
    jax.shard_map(
        lambda *args: jax.lax.all_gather(experts(*args), "x", tiled=True),
        mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False,
    )
)  # fmt: skip
results.append(spread(*(everywhere(x, P("x")) for x in operands)))
assert jnp.isfinite(results[-1]).all()
np.savez(f"{out}{jax.process_index()}.npz", *(np.asarray(x.addressable_data(0)) for x in results))
