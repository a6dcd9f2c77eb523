"""Muon, a drop-in for optax.contrib.muon that orthogonalises all matrices together.

Arguments, state (optax's own MuonState, so that checkpoints are interchangeable), numerics and errors are those of
optax 0.2.8, which documents the arguments. The structure follows optax/contrib/_muon.py (Apache-2.0, DeepMind).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers, MuonState

from jax_vbgemm._src.matmul.norms import root
from jax_vbgemm._src.newton_schulz.coefficients import MUON_COEFFS, coefficients
from jax_vbgemm._src.newton_schulz.orthogonal import newton_schulz
from jax_vbgemm._src.optax.folding import folded
from jax_vbgemm._src.optax.hyperparameters import static_integer
from jax_vbgemm._src.optax.matrices import Fused
from jax_vbgemm._src.optax.momenta import momenta
from jax_vbgemm._src.optax.packed import by_member, is_ragged
from jax_vbgemm._src.optax.partition import Partition, shape_factor
from jax_vbgemm._src.optax.placement import Placement
from jax_vbgemm._src.optax.splitting import by_part, joined, parts_of, sliced
from jax_vbgemm._src.optax.variants import add_cautious_decayed_weights, scale_by_normuon
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import refuse_explicit_axes
from jax_vbgemm._src.util.structure import path_of


def scale_by_muon(
    ns_coeffs: Any = MUON_COEFFS,
    ns_steps: int = 5,
    beta: Any = 0.95,
    eps: Any = 1e-8,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: str = "frobenius",
    weight_dimension_numbers: Any = None,
    split: Any = None,
    ns_dtype: Any = None,
    ns_gram: bool | str = False,
    mesh_axis: Any = None,
    mesh: Any = None,
    shardings: Any = None,
) -> optax.GradientTransformation:
    """optax.contrib.scale_by_muon with three calls for each Newton-Schulz step, for all matrices together.

    Products take `jax.default_matmul_precision`, as optax's do. `ns_coeffs`: numbers or a name, as for `newton_schulz`;
    the state holds the numbers. `weight_dimension_numbers`: a tree of MuonDimensionNumbers (None: a 2-D leaf) or a
    callable that returns one; None: all leaves are matrices. `split`: as for `muon`. `ns_dtype` is the dtype of the
    iterates, `ns_gram` says whether steps are taken with Gram matrices, and `mesh_axis`, `mesh` and `shardings` divide
    the matrices among devices: `dtype`, `gram`, `mesh_axis`, `mesh` and `shardings` of `newton_schulz`.

    Raises:
      ValueError: in `init`, ns_coeffs is not (3,) or (n, 3) or has more rows than steps; in `update`, a leaf is not a
        matrix and has no dimension numbers, its axes overlap, preconditioning is unknown, or mesh_axis is not an axis
        of the mesh.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> gradients = [jnp.ones((4, 6)), jnp.ones((2, 3))]
      >>> transformation = jax_vbgemm.optax.scale_by_muon()
      >>> updates, state = transformation.update(gradients, transformation.init(gradients))
      >>> [update.shape for update in updates]
      [(4, 6), (2, 3)]
    """

    if isinstance(ns_coeffs, str):
        ns_steps = static_integer("scale_by_muon", "ns_steps", ns_steps, 0)
        ns_coeffs = coefficients(ns_coeffs, ns_steps)

    placement = Placement(mesh_axis, mesh, shardings)

    def init(params: Any) -> MuonState:
        coeffs = jnp.asarray(ns_coeffs)
        if coeffs.ndim > 2 or coeffs.shape[-1] != 3:
            raise ValueError(f"ns_coeffs must have shape (3,) or (n, 3), got {coeffs.shape}")
        if coeffs.ndim == 2:
            if coeffs.shape[0] > ns_steps:
                raise ValueError(f"Not enough coeffs to perform {ns_steps} steps")
            coeffs = coeffs[-ns_steps:]
        mu = optax.tree.zeros_like(params, dtype=mu_dtype)
        return MuonState(count=jnp.zeros([], jnp.int32), mu=mu, ns_coeffs=coeffs)

    def update(updates: Any, state: MuonState, params: Any = None, *, scale: Any = None) -> tuple[Any, MuonState]:
        del params
        numbers = weight_dimension_numbers
        if callable(numbers):
            numbers = numbers(updates)  # from the updates: only shapes matter, and params may be None
        if adaptive:
            placement.refuse_slices("scale_by_muon", "the dual norm of adaptive=True", updates)
        count = optax.safe_increment(state.count)
        mu, momentum, squares = momenta(updates, state.mu, beta, count, nesterov, placement)
        updates = orthogonalize(
            momentum, state.ns_coeffs, ns_steps, preconditioning, eps, numbers, scale,
            norms=None if squares is None else root(squares), split=split,
            ns_dtype=ns_dtype, ns_gram=ns_gram, mesh_axis=mesh_axis, mesh=mesh, shardings=shardings,
        )  # fmt: skip
        if adaptive:  # scaled by the dual norm of the momentum: arXiv 2409.20325
            updates = _with_dual_norms(momentum, updates, split)
        return updates, MuonState(count=count, mu=optax.tree.cast(mu, mu_dtype), ns_coeffs=state.ns_coeffs)

    return optax.GradientTransformation(init, update)


def _with_dual_norms(momentum: Any, updates: Any, split: Any) -> Any:
    """The updates times their products with the momentum, of each matrix."""

    def scaled(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum(x.conj() * y) * y

    if split is None:
        return by_member(scaled, momentum, updates)
    leaves, structure = jax.tree.flatten(updates)
    found = [
        scaled(x, y) if parts is None else joined(list(map(scaled, sliced(x, parts), sliced(y, parts))), parts)
        for x, y, parts in zip(jax.tree.leaves(momentum), leaves, parts_of(updates, split), strict=True)
    ]
    return jax.tree.unflatten(structure, found)


def orthogonalize(
    tree: Any,
    ns_coeffs: Any = MUON_COEFFS,
    ns_steps: int = 5,
    preconditioning: str = "frobenius",
    eps: Any = 1e-8,
    dimension_numbers: Any = None,
    scale: Any = None,
    *,
    norms: Any = None,
    split: Any = None,
    ns_dtype: Any = None,
    ns_gram: bool | str = False,
    mesh_axis: Any = None,
    mesh: Any = None,
    shardings: Any = None,
) -> Any:
    """optax.contrib's orthogonalize_via_newton_schulz for a whole tree.

    Args:
      tree: arrays, or RaggedArrays of matrices.
      ns_coeffs, ns_steps, preconditioning, eps: as in optax, and names as for `newton_schulz`.
      dimension_numbers: a tree with a MuonDimensionNumbers or None for each leaf; None: all leaves are matrices.
      scale: a factor of the results, a number or a 1-D array with one entry for each matrix: each leaf, member of a
        RaggedArray or part of a leaf that is split.
      norms: the Frobenius norm of each leaf, a 1-D array, as for `newton_schulz`; not used where a leaf is split or is
        a RaggedArray.
      split: as for `muon`. The parts of 2-D leaves are read and written in place.
      ns_dtype, ns_gram, mesh_axis, mesh, shardings: `dtype`, `gram`, `mesh_axis`, `mesh` and `shardings` of
        `newton_schulz`. Leaves that are split are gathered.

    Raises:
      ValueError: as `newton_schulz`; shardings are given for packed parameters; or, inside shard_map, a leaf that is
        split is a slice of the parameter.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> tree = {"w": 3 * jnp.eye(2)}
      >>> result = jax_vbgemm.optax.orthogonalize(tree, ns_coeffs=(1.5, -0.5, 0.0), ns_steps=10)
      >>> result["w"].round(3).tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    leaves = jax.tree.leaves(tree, is_leaf=is_ragged)
    structure: Any = jax.tree.structure(tree, is_leaf=is_ragged)
    numbers = [None] * len(leaves) if dimension_numbers is None else structure.flatten_up_to(dimension_numbers)
    parts = parts_of(tree, split)
    counts = [
        len(x) if is_ragged(x) else 1 if x_parts is None else len(x_parts)
        for x, x_parts in zip(leaves, parts, strict=True)
    ]
    placement = Placement(mesh_axis, mesh, shardings)
    placement.refuse_slices("orthogonalize", "its split", tree, [x_parts is not None for x_parts in parts])
    specs = placement.specs("orthogonalize", tree)
    ends = np.cumsum(counts)
    entries = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]

    def orthogonalized(x: Any, entries: Any, into: Any = None, shardings: Any = None, norms: Any = None) -> Any:
        part = scale if scale is None or np.ndim(scale) == 0 or len(entries) == len(scale) else scale[entries]
        return newton_schulz(
            x, ns_steps, ns_coeffs,
            preconditioning=preconditioning, eps=eps, scale=part, norms=norms, dtype=ns_dtype, gram=ns_gram, into=into,
            mesh_axis=mesh_axis, mesh=mesh, shardings=shardings,
        )  # fmt: skip

    # One call for each RaggedArray, whose members need no folding, and one call for all arrays.
    results = [orthogonalized(x, x_parts) if is_ragged(x) else x for x, x_parts in zip(leaves, entries, strict=True)]
    matrices: list[Fused | None] = []
    for index, (x, x_parts, spec) in enumerate(zip(leaves, parts, specs, strict=True)):
        if x_parts is not None and mesh_axis is None:
            refuse_explicit_axes("newton_schulz", [x], ["tree" + path_of(structure, index)].__getitem__)
        whole = x if x_parts is None else compat.replicated(x)
        matrices.append(None if is_ragged(x) else Fused(whole, numbers[index], x_parts, None if x_parts else spec))

    def with_structure(values: Sequence[Any]) -> Any:
        """A tree in which each split leaf is a list, so that messages show the parameter's path."""
        leaf_updates = [v if v is None or x_parts else v[0] for v, x_parts in zip(values, parts, strict=True)]
        return jax.tree.unflatten(structure, leaf_updates)

    array_parts = [x_parts for x_parts, leaf in zip(entries, matrices, strict=True) if leaf is not None]
    found = orthogonalized(
        with_structure([leaf and leaf.operands for leaf in matrices]),
        np.concatenate([np.arange(0), *array_parts]),
        with_structure([leaf and leaf.into for leaf in matrices]) if any(parts) else None,
        None if shardings is None else with_structure([leaf and leaf.specs for leaf in matrices]),
        norms if counts == [1] * len(leaves) and not any(map(is_ragged, leaves)) else None,
    )
    for index, (leaf, values) in enumerate(zip(matrices, structure.flatten_up_to(found), strict=True)):
        if leaf is not None:
            results[index] = leaf.result(values if parts[index] else [values])
            results[index] = compat.placed_as(results[index], leaves[index]) if parts[index] else results[index]
    return jax.tree.unflatten(structure, results)


def scale_by_shape(
    weight_dimension_numbers: Any = None,
    consistent_rms: Any = None,
    *,
    split: Any = None,
    mesh_axis: Any = None,
    mesh: Any = None,
    shardings: Any = None,
) -> optax.GradientTransformation:
    """Scales each leaf by sqrt(max(1, fan out / fan in)), or by sqrt(max(fan in, fan out)) * consistent_rms.

    optax has the same transformation as a private function. weight_dimension_numbers: as for `scale_by_muon`, without
    None leaves. split: as for `muon`; each part has its own factor. mesh_axis, mesh, shardings: as for `muon`; they
    matter inside shard_map only, where a leaf may be a slice of its parameter.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> from optax.contrib import MuonDimensionNumbers
      >>> transformation = jax_vbgemm.optax.scale_by_shape([MuonDimensionNumbers()])
      >>> updates = [jnp.ones((1, 4))]
      >>> scaled, _ = transformation.update(updates, transformation.init(updates))
      >>> scaled[0].tolist()
      [[2.0, 2.0, 2.0, 2.0]]
    """

    placement = Placement(mesh_axis, mesh, shardings)

    def scaled(x: jax.Array, numbers: MuonDimensionNumbers, whole: Any = None) -> Any:
        return shape_factor(x if whole is None else whole, numbers, consistent_rms) * x

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        numbers = weight_dimension_numbers
        if callable(numbers):
            numbers = numbers(updates)
        if split is None:
            buffer_structure: Any = jax.tree.structure(updates, is_leaf=is_ragged)
            whole_leaves = [None if is_ragged(x) else x for x in placement.whole_leaves("scale_by_shape", updates)]
            return by_member(scaled, updates, numbers, buffer_structure.unflatten(whole_leaves)), state
        leaves: list[Any] = jax.tree.leaves(updates)
        structure: Any = jax.tree.structure(updates)
        columns = zip(leaves, parts_of(updates, split), structure.flatten_up_to(numbers), strict=True)
        return structure.unflatten([by_part(scaled, *column) for column in columns]), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def muon(
    learning_rate: Any,
    ns_coeffs: Any = MUON_COEFFS,
    ns_steps: int = 5,
    beta: Any = 0.95,
    eps: Any = 1e-8,
    weight_decay: Any = 0.0,
    weight_decay_mask: Any = None,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: str = "frobenius",
    adam_b1: Any = 0.9,
    adam_b2: Any = 0.999,
    adam_eps_root: Any = 0.0,
    adam_weight_decay: Any = 0.0,
    adam_learning_rate: Any = None,
    muon_weight_dimension_numbers: Any = None,
    consistent_rms: Any = None,
    normuon_beta2: Any = None,
    cautious: bool = False,
    split: Any = None,
    ns_dtype: Any = None,
    ns_gram: bool | str = False,
    mesh_axis: Any = None,
    mesh: Any = None,
    shardings: Any = None,
) -> optax.GradientTransformation:
    """optax.contrib.muon, all matrices together: matrices go to Muon, everything else to AdamW.

    `normuon_beta2`: a number for NorMuon, `scale_by_normuon` of it behind the orthogonalisation, whose state stands
    behind Muon's; None for plain Muon. `cautious`: decays only weights that the step moves towards zero
    (`add_cautious_decayed_weights`), of the matrices.

    `split`: which parameters of several fused matrices are orthogonalised and scaled in parts: query, key and value,
    gate and up, or the heads of a projection. A mapping whose keys are shapes, or regular expressions that are searched
    for in the path ("layers/0/qkv/kernel"), and whose values are the sizes of the parts along the last axis, or the
    number of equal parts, or a `MuonSplit` for another axis, or None for no split; the first key that fits counts. Or a
    function of path and shape that returns such a value. The state does not depend on it.

    `ns_dtype`: the dtype of Newton-Schulz iterates ("float16", "bfloat16"), and `ns_gram`: whether steps are taken with
    Gram matrices (True, or "auto": where it is predicted to be faster). Both change the rounding only.

    `mesh_axis`: a mesh axis, or a tuple of axes, among whose devices the matrices are divided by predicted time;
    `mesh`: the mesh, where neither jax.set_mesh nor shard_map defines it; `shardings`: how the parameters are sharded
    on a mesh with automatic axes or inside shard_map, a tree or prefix tree of them with PartitionSpecs or
    NamedShardings, or a function of the tree of updates. A sharded parameter is then not gathered: the slices of each
    matrix are sent to the device that treats it. See `newton_schulz`. Under optax.inject_hyperparams, pass
    static_args=("mesh", "split", "ns_dtype", "shardings"): a Mesh, a function and a type are callable and would be
    taken for schedules. Names of coefficients need "ns_steps" there, too.

    Parameters may be packed by `pack_tree`: gradients, momenta and updates are then packed too, and a step is called
    with a few arrays. Buffers of matrices go to Muon, all other buffers to AdamW.

    Raises:
      ValueError: as `scale_by_muon`; also if `ns_coeffs` is an unknown preset, if matrices and other leaves lie
        in one buffer, where packed parameters come with a weight_decay_mask, NorMuon, split or shardings, where
        shardings don't fit the parameters or the mesh, where parts don't fit their parameter, and where, inside
        shard_map, NorMuon, a dual norm or a split would need the whole of a sharded parameter; the message names it.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> params = {"w": jnp.ones((4, 6)), "b": jnp.zeros(6)}
      >>> optimizer = jax_vbgemm.optax.muon(learning_rate=0.1)
      >>> state = optimizer.init(params)
      >>> updates, state = optimizer.update(params, state, params)  # gradients in the place of the first `params`
      >>> updates["w"].shape
      (4, 6)
    """
    placement = Placement(mesh_axis, mesh, shardings)
    partition = Partition(muon_weight_dimension_numbers, weight_decay_mask, split, placement)
    decayed = add_cautious_decayed_weights if cautious else optax.add_decayed_weights
    parts = (
        scale_by_muon(
            ns_coeffs, ns_steps, beta, eps, mu_dtype,
            nesterov=nesterov, adaptive=adaptive, preconditioning=preconditioning,
            weight_dimension_numbers=partition.numbers, split=split, ns_dtype=ns_dtype, ns_gram=ns_gram,
            mesh_axis=mesh_axis, mesh=mesh, shardings=shardings,
        ),
        scale_by_shape(
            partition.numbers, consistent_rms, split=split, mesh_axis=mesh_axis, mesh=mesh, shardings=shardings
        ),
        decayed(weight_decay, weight_decay_mask),
        optax.scale_by_learning_rate(learning_rate),
    )  # fmt: skip
    # The dual norm and the neurons' averages need unscaled results, and cautious weight decay needs whole updates.
    if normuon_beta2 is not None:
        neuron_transform = scale_by_normuon(normuon_beta2, weight_dimension_numbers=partition.numbers, split=split)
        matrix_transform = optax.chain(
            parts[0], placement.refusing_slices(neuron_transform, "normuon_beta2"), *parts[1:]
        )
    elif adaptive or cautious:
        matrix_transform = optax.chain(*parts)
    else:
        matrix_transform = folded(
            parts,
            partition.shape_factors(consistent_rms),
            weight_decay,
            weight_decay_mask,
            learning_rate,
            placement,
        )
    other_transform = optax.adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate,
        b1=adam_b1, b2=adam_b2, eps=eps, eps_root=adam_eps_root, weight_decay=adam_weight_decay,
        mu_dtype=mu_dtype, nesterov=nesterov,
    )  # fmt: skip
    return optax.partition({"muon": matrix_transform, "adam": other_transform}, partition.labels)
