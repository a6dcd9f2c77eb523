"""Public programs for `whole_programs.py`, each as its package has it; a method is replaced for the time of a trace.

Importing a package here raises ImportError where it is not installed.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from whole_programs_standins import Case, of_size, with_gradient

import jax_vbgemm as vb
from jax_vbgemm import blocksparse, irreps

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import public_models


def without_init(package: str) -> None:
    """Makes the modules of a package importable without what its `__init__` imports (wandb, TPU libraries)."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ImportError(f"{package} is not installed")
    sys.modules[package] = importlib.util.module_from_spec(spec)  # which is not executed


def nequix(size: str) -> list[Case]:
    """Forces of random atoms, and the gradient of a loss of forces by all weights."""
    sys.modules.setdefault("wandb", types.ModuleType("wandb"))
    without_init("nequix")
    import e3nn_jax as e3nn
    import equinox
    from nequix.model import Nequix, NequixConvolution

    from jax_vbgemm.irreps.e3nn import tensor_product
    from jax_vbgemm.irreps.equinox import Linear

    atoms, neighbours, hidden, layers, degree = of_size(
        size,
        (16, 8, "8x0e+4x1o", 2, 1),
        (64, 16, "32x0e+16x1o+8x2e", 3, 2),
        (512, 32, "128x0e+64x1o+32x2e+32x3o", 4, 3),
    )
    model = Nequix(jax.random.key(0), 8, lmax=degree, hidden_irreps=hidden, n_layers=layers, layer_norm=True)
    rng = np.random.default_rng(0)
    positions = jnp.asarray(rng.standard_normal((atoms, 3)) * 2, jnp.float32)
    species = jnp.asarray(rng.integers(0, 8, atoms))
    senders = jnp.asarray(np.repeat(np.arange(atoms), neighbours))
    receivers = jnp.asarray(rng.integers(0, atoms, atoms * neighbours))
    weights, rest = equinox.partition(model, equinox.is_inexact_array)

    def energy(weights: Any, positions: Any) -> jax.Array:
        vectors = positions[senders] - positions[receivers] + 1e-3
        return jnp.sum(equinox.combine(weights, rest).node_energies(vectors, species, senders, receivers))

    def forces(weights: Any, positions: Any) -> jax.Array:
        return -jax.grad(energy, 1)(weights, positions)

    def training(weights: Any, positions: Any) -> Any:
        return jax.grad(lambda weights: jnp.sum(forces(weights, positions) ** 2))(weights)

    def convolution(self: Any, features: Any, species: Any, sh: Any, basis: Any, senders: Any, receivers: Any) -> Any:
        """NequixConvolution's, in which one function multiplies by the radial weights too."""
        messages, radial = self.linear_1(features)[senders], jax.vmap(self.radial_mlp)(basis)
        messages = tensor_product(messages, sh, radial, filter_ir_out=self.tp_irreps)
        messages = e3nn.scatter_sum(messages, dst=receivers, output_size=features.shape[0])
        messages = messages / jnp.sqrt(jax.lax.stop_gradient(self.avg_n_neighbors))
        features = self.linear_2(messages) + self.skip(species, features)
        gates = {"even_act": jax.nn.silu, "odd_act": jax.nn.tanh, "even_gate_act": jax.nn.silu}
        return e3nn.gate(self.layer_norm(features), **gates)

    def variants(function: Any) -> dict[str, Any]:
        product = replaced(function, NequixConvolution, "__call__", convolution)
        both = replaced(product, e3nn.equinox.Linear, "__call__", Linear.__call__)
        e3nn.equinox.Linear.instructions = None  # an attribute of ours
        return {"tensor_product": product, "irreps": both}

    args = weights, positions
    return [Case("forces", forces, args, variants(forces)), Case("training", training, args, variants(training))]


def fennol(size: str) -> list[Case]:
    """ANI: atomic environments, and a network of its own width for each element (SPECIES_INDEX_NET)."""
    from fennol import FENNIX
    from fennol.models.misc.nets import SpeciesIndexNet

    molecules = of_size(size, 2, 20, 250)
    widths = {"H": [160, 128, 96], "C": [144, 112, 96], "N": [128, 112, 96], "O": [128, 112, 96]}
    if size == "small":
        widths = {element: [5, 4 + i] for i, element in enumerate(widths)}
    rng = np.random.default_rng(0)
    numbers = np.tile([6, 6, 7, 8, 1, 1, 1, 1, 1, 1, 1, 1], molecules)
    per_molecule = 12
    data = {
        "species": numbers.astype(np.int32),
        "coordinates": rng.uniform(0, 5, (len(numbers), 3)).astype(np.float32),
        "natoms": np.full(molecules, per_molecule, np.int32),
        "batch_index": np.repeat(np.arange(molecules), per_molecule).astype(np.int32),
    }
    order = list(widths)
    model = FENNIX(
        cutoff=5.2,
        preprocessing={
            "graph": {},
            "angle": {"module_name": "GRAPH_FILTER", "cutoff": 3.5, "parent_graph": "graph",
                      "graph_key": "graph_angle"},
            "angles": {"module_name": "GRAPH_ANGULAR_EXTENSION", "graph_key": "graph_angle"},
            "index": {"module_name": "SPECIES_INDEXER", "output_key": "species_index"},
        },
        modules={
            "aev": {"module_name": "ANI_AEV", "species_order": order, "graph_angle_key": "graph_angle",
                    "embedding_key": "aev"},
            "energy": {"module_name": "SPECIES_INDEX_NET", "hidden_neurons": widths, "output_dim": 1,
                       "input_key": "aev", "species_index_key": "species_index", "output_key": "energy"},
        },
        energy_terms=["energy"],
        rng_key=jax.random.PRNGKey(0),
        example_data=data,
    )  # fmt: skip
    inputs = {k: v for k, v in model.preprocess(**data).items() if not isinstance(v, str)}
    arrays, rest = {}, {}
    for key, value in inputs.items():
        (arrays if all(hasattr(x, "dtype") for x in jax.tree.leaves(value)) else rest)[key] = value

    def forces(variables: Any, arrays: Any) -> Any:
        def total(coordinates: Any) -> jax.Array:
            return jnp.sum(model.modules.apply(variables, {**rest, **arrays, "coordinates": coordinates})["energy"])

        return jax.grad(total)(arrays["coordinates"])

    def training(variables: Any, arrays: Any) -> Any:
        return jax.grad(lambda variables: jnp.sum(forces(variables, arrays) ** 2))(variables)

    def batched(net: Any, inputs: Any) -> Any:
        """The networks of all elements, each layer as one call."""
        embedding, index = inputs[net.input_key], inputs[net.species_index_key]
        names = [name for name in net.networks if name in index]
        if net.is_initializing():
            return plain(net, inputs)
        networks, atoms = [net.networks[name].variables for name in names], [embedding[index[name]] for name in names]
        xs = vb.networks.apply(networks, atoms, "silu")
        at = jnp.concatenate([index[name] for name in names])
        out = jnp.zeros((inputs["species"].shape[0], xs[0].shape[1]), xs[0].dtype)
        return {**inputs, net.output_key: out.at[at].set(jnp.concatenate(xs), mode="drop")}

    plain = SpeciesIndexNet.__call__
    args = model.variables, arrays
    return [
        Case(step, function, args, {"networks": replaced(function, SpeciesIndexNet, "__call__", batched)})
        for step, function in (("forces", forces), ("training", training))
    ]


def qwen3(size: str) -> list[Case]:
    """The mixture-of-experts layer of Qwen3 in the path that tunix takes without a mesh: a loop over all experts."""
    without_init("tunix")
    without_init("tunix.models.qwen3")
    from flax import nnx
    from tunix.models.qwen3.model import ModelConfig, MoELayer

    tokens, width, hidden, experts, k = of_size(size, (6, 4, 6, 3, 2), (64, 128, 96, 16, 4), (1024, 2048, 768, 64, 8))
    dtype = of_size(size, jnp.float32, jnp.float32, jnp.bfloat16)
    config = ModelConfig(num_layers=1, vocab_size=32, embed_dim=width, hidden_dim=hidden, num_heads=2, head_dim=4,
                         num_kv_heads=1, rope_theta=1e4, norm_eps=1e-6, num_experts=experts, num_experts_per_tok=k,
                         dtype=dtype, param_dtype=dtype)  # fmt: skip
    layer, state = nnx.split(MoELayer(config, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, tokens, width)), dtype)

    def loss(state: Any, x: Any) -> jax.Array:
        return jnp.sum(nnx.merge(layer, state)(x).astype(jnp.float32) ** 2)

    def routed(self: Any, x: Any) -> tuple[jax.Array, vb.moe.Routing]:
        tokens = x.reshape(-1, x.shape[-1])
        return tokens, vb.moe.route(self.router(tokens).astype(jnp.float32), self.experts_per_tok, normalize=True)

    def by_ragged_dot(self: Any, x: Any, use_megablox: bool = True) -> jax.Array:
        tokens, routing = routed(self, x)
        rows, sizes = vb.moe.dispatch(tokens, routing), routing.group_sizes
        inner = nnx.silu(vb.ragged_dot(rows, self.gate_proj[...], sizes)) * vb.ragged_dot(
            rows, self.up_proj[...], sizes
        )
        return vb.moe.combine(vb.ragged_dot(inner, self.down_proj[...], sizes), routing).reshape(x.shape)

    def by_expert_mlp(self: Any, x: Any, use_megablox: bool = True) -> jax.Array:
        tokens, routing = routed(self, x)
        gate_up = self.gate_proj[...], self.up_proj[...]
        return vb.moe.expert_mlp(tokens, gate_up, self.down_proj[...], routing).reshape(x.shape)

    variants = {"ragged_dot": by_ragged_dot, "expert_mlp": by_expert_mlp}
    return with_gradient(
        loss, (state, x), **{name: replaced(loss, MoELayer, "__call__", f) for name, f in variants.items()}
    )


def gemma4(size: str) -> list[Case]:
    """The mixture-of-experts layer of Gemma 4, at size gpu with the numbers of Gemma 4 26B-A4B."""
    without_init("tunix")
    without_init("tunix.models.gemma4")
    from flax import nnx
    from tunix.models.gemma4 import moe
    from tunix.models.gemma4.model import ModelConfig

    sizes = of_size(
        size,
        {"embed_dim": 4, "expert_dim": 6, "num_experts": 3, "num_experts_per_tok": 2},
        {"embed_dim": 128, "expert_dim": 96, "num_experts": 16, "num_experts_per_tok": 4},
        {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16},
    )
    config = replace(ModelConfig.gemma4_26b_a4b(), **sizes)
    layer, state = nnx.split(moe.MoERagged(config, rngs=nnx.Rngs(0)))

    def loss(state: Any, x: Any) -> jax.Array:
        return jnp.sum(nnx.merge(layer, state)(x).astype(jnp.float32) ** 2)

    def by_transpose_rhs(self: Any, x: Any, experts: Any, probabilities: Any) -> jax.Array:
        """MoERagged's with `vb.ragged_dot`, which takes the weights of gate and up as they are stored."""
        sizes, rows, slots, factors = moe._expert_dispatch(x, experts, probabilities)
        gate_up = self.gating_einsum[...].reshape(self.num_experts, 2 * self.hidden_dim, self.features)
        gate, up = jnp.split(vb.ragged_dot(rows, gate_up, sizes, transpose_rhs=True), 2, axis=1)
        results = vb.ragged_dot(nnx.gelu(gate) * up, self.linear[...], sizes)
        results = moe._expert_collect(results, slots, factors) * self.per_expert_scale[...][experts][..., None]
        return jnp.einsum("blkd,blk->bld", results, factors, preferred_element_type=results.dtype)

    def by_expert_mlp(self: Any, x: Any) -> jax.Array:
        weights = {name: weight[...] for name, weight in nnx.state(self).items()}
        tokens = x.reshape(-1, x.shape[-1])
        return public_models.tunix_gemma4(tokens, weights, self.num_experts_per_datapoint).reshape(x.shape)

    variants = {
        "ragged_dot": replaced(loss, jax.lax, "ragged_dot", vb.ragged_dot),
        "transpose_rhs": replaced(loss, moe.MoERagged, "_run_ffw_and_routing", by_transpose_rhs),
        "expert_mlp": replaced(loss, moe.MoERagged, "__call__", by_expert_mlp),
    }
    rng = np.random.default_rng(0)
    cases = []
    for tokens in of_size(size, (6,), (64,), (1024, 4096)):
        x = jnp.asarray(rng.standard_normal((1, tokens, config.embed_dim)), config.dtype)
        cases += [
            case._replace(step=f"{tokens} tokens {case.step}") for case in with_gradient(loss, (state, x), **variants)
        ]
    return cases


def peps(size: str) -> list[Case]:
    """The norm of a fermionic PEPS in float64, contracted by quimb with symmray's blocks."""
    jax.config.update("jax_enable_x64", True)
    import autoray
    import quimb.tensor as qtn
    import symmray

    theirs = autoray.get_lib_fn("symmray", "tensordot")

    def ours(function: Callable[..., Any], packed: bool | None = None) -> Callable[..., Any]:
        def traced(*args: Any) -> Any:
            autoray.register_function("symmray", "tensordot", partial(blocksparse.tensordot, packed=packed))
            try:
                return function(*args)
            finally:
                autoray.register_function("symmray", "tensordot", theirs)

        return traced

    def case(rows: int, columns: int, bond: int) -> list[Case]:
        state = symmray.networks.PEPS_fermionic_rand(
            "U1", rows, columns, bond_dim=bond, phys_dim=2, seed=1, dtype="float64"
        )
        state.apply_to_arrays(jnp.asarray)
        params, skeleton = qtn.pack(state)

        def norm(params: Any) -> jax.Array:
            tensors = qtn.unpack(params, skeleton)
            return (tensors.H & tensors).contract(all, optimize="greedy")

        name = f"{rows}x{columns} bond {bond}"
        return [
            Case(title, function, (params,), {"blocksparse": ours(function), "packed": ours(function, packed=True)})
            for title, function in ((name, norm), (f"{name} gradient", jax.grad(norm)))
        ]

    shapes = of_size(size, [(2, 2, 2)], [(2, 2, 4), (2, 2, 8)], [(2, 2, 6), (2, 3, 18)])
    return [each for shape in shapes for each in case(*shape)]


def mace(size: str) -> list[Case]:
    """mace-jax, with the settings of MACE-MP-0 (medium) at size gpu: forces and a training step as of nequix."""
    for package in ("mace_jax", "mace_jax.tools", "mace_jax.modules"):
        without_init(package)
    if importlib.util.find_spec("ase") is None:  # of which it takes the radii of another cutoff's
        sys.modules["ase"] = types.ModuleType("ase")
    from e3nn_jax import Irreps
    from flax import nnx
    from mace_jax.adapters.cuequivariance.linear import Linear
    from mace_jax.adapters.cuequivariance.symmetric_contraction import SymmetricContraction
    from mace_jax.adapters.cuequivariance.tensor_product import TensorProduct
    from mace_jax.adapters.cuequivariance.utility import ir_mul_to_mul_ir
    from mace_jax.modules import blocks, models
    from mace_jax.modules.wrapper_ops import CuEquivarianceConfig

    atoms, neighbours, hidden, degree, correlation, width = of_size(
        size,
        (8, 4, "4x0e+4x1o", 1, 2, 8),
        (64, 16, "32x0e+32x1o", 2, 2, 32),
        (512, 32, "128x0e+128x1o", 3, 3, 64),
    )
    elements = 8
    block = blocks.RealAgnosticResidualInteractionBlock
    model = models.MACE(
        r_max=5.0,
        num_bessel=8,
        num_polynomial_cutoff=5,
        max_ell=degree,
        interaction_cls=block,
        interaction_cls_first=block,
        num_interactions=2,
        num_elements=elements,
        hidden_irreps=Irreps(hidden),
        MLP_irreps=Irreps("16x0e"),
        atomic_energies=np.zeros(elements),
        atomic_numbers=tuple(range(1, elements + 1)),
        avg_num_neighbors=float(neighbours),
        correlation=correlation,
        gate=jax.nn.silu,
        radial_MLP=[width] * 3,
        cueq_config=CuEquivarianceConfig(group="O3"),  # its default group takes coefficients from e3nn and torch
        rngs=nnx.Rngs(0),
    )
    rng = np.random.default_rng(0)
    positions = jnp.asarray(rng.standard_normal((atoms, 3)) * 2, jnp.float32)
    graph = {
        "node_attrs": jax.nn.one_hot(rng.integers(0, elements, atoms), elements),
        "edge_index": jnp.asarray(
            [np.repeat(np.arange(atoms), neighbours), rng.integers(0, atoms, atoms * neighbours)]
        ),
        "shifts": jnp.full((atoms * neighbours, 3), 1e-3),
        "cell": jnp.zeros((1, 3, 3)),
        "batch": jnp.zeros(atoms, jnp.int32),
        "ptr": jnp.asarray([0, atoms]),
    }
    split, weights, rest = nnx.split(model, nnx.Param, ...)

    def energy(weights: Any, positions: Any) -> jax.Array:
        found = nnx.merge(split, weights, rest)._energy_fn({**graph, "positions": positions})
        return jnp.sum(found["energy"])

    def forces(weights: Any, positions: Any) -> jax.Array:
        return -jax.grad(energy, 1)(weights, positions)

    def training(weights: Any, positions: Any) -> Any:
        return jax.grad(lambda weights: jnp.sum(forces(weights, positions) ** 2))(weights)

    def linear(self: Any, x: Any, weights: Any = None) -> Any:
        return irreps.LinearMap(self.irreps_in_o3, self.irreps_out_o3)(self.weight[...][0], x)

    def product(self: Any, x: Any, y: Any, weights: Any, *, dtype: Any) -> Any:
        """The layer's tensor product, with the paths and coefficients of its descriptor."""
        ((_, descriptor),) = self.descriptor.polynomial.operations
        paths = sorted(descriptor.paths, key=lambda path: path.indices[3])
        given = [(path.indices[1], path.indices[2], path.coefficients) for path in paths]
        return irreps.TensorProduct(self.irreps_in1_o3, self.irreps_in2_o3, given)(x, y, weights)

    def contraction(self: Any, x: Any, attributes: Any) -> Any:
        """The layer's symmetric contraction, with the terms of its descriptor; an atom has one species."""
        polynomial, mul = self.descriptor.polynomial, self.mul
        sizes = [operand.num_segments for operand in polynomial.operands]
        terms = [
            (weight, components, component, coefficient)
            for _, of_degree in polynomial.operations
            for (weight, *components, component), coefficient in zip(
                of_degree.indices, of_degree.stacked_coefficients, strict=True
            )
        ]
        x = x.reshape(len(x), mul, -1).swapaxes(1, 2) if self.input_layout == "mul_ir" else x.reshape(len(x), -1, mul)
        weights = self._project_basis_weights(self.weight[...], x.dtype)
        species = attributes if attributes.ndim == 1 else attributes.argmax(1)
        y = irreps.SymmetricContraction(*sizes, terms)(weights, x, indices=species)
        return ir_mul_to_mul_ir(y.reshape(len(x), -1), Irreps(self.irreps_out_o3_str))

    def variants(function: Any) -> dict[str, Any]:
        products = replaced(function, TensorProduct, "_channelwise_apply", product)
        contractions = replaced(products, SymmetricContraction, "__call__", contraction)
        linears = replaced(contractions, Linear, "__call__", linear)
        return {"tensor_product": products, "symmetric_contraction": contractions, "irreps": linears}

    args = weights, positions
    return [Case("forces", forces, args, variants(forces)), Case("training", training, args, variants(training))]


def replaced(function: Callable[..., Any], owner: Any, name: str, method: Any) -> Callable[..., Any]:
    """The function, traced while a class has another method."""

    def traced(*args: Any) -> Any:
        before = getattr(owner, name)
        setattr(owner, name, method)
        try:
            return function(*args)
        finally:
            setattr(owner, name, before)

    return traced
