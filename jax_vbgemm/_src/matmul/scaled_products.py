"""`batched_matmul` and `batched_gemm` of `Scaled` factors, multiplied as scaled_choice.py chooses. dtypes and errors
are those of `ragged_dot` (ragged/scaled_factors.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.epilogue import Epilogue, finished
from jax_vbgemm._src.matmul.call import Call, as_argument, bind, placed, unchecked, with_windows
from jax_vbgemm._src.matmul.epilogues import with_epilogues
from jax_vbgemm._src.matmul.factors import FactorTree, checked_sizes, flags_of, naming, paired, products
from jax_vbgemm._src.matmul.options import check_options, checked_implementation
from jax_vbgemm._src.matmul.packed import unpacked
from jax_vbgemm._src.matmul.precision import canonical_precision
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.scaled_choice import Choice, Product, choose, flat, is_scaled
from jax_vbgemm._src.matmul.view import View, dense
from jax_vbgemm._src.planner import resolve_planner
from jax_vbgemm._src.ragged.api import ragged_dot
from jax_vbgemm._src.ragged.scaled_factors import (
    checked_scaled,
    dtype_beside_scaled,
    dtype_of_scaled_product,
    precision_of_scaled_product,
)
from jax_vbgemm._src.scaled.scaled import Scaled, spread
from jax_vbgemm._src.util.arguments import refuse_explicit_axes
from jax_vbgemm._src.util.distinct import distinct


def has_scaled(*trees: Any) -> bool:
    """Whether a leaf of the trees is Scaled."""
    return any(is_scaled(leaf) for tree in trees for leaf in jax.tree.leaves(tree, is_leaf=is_scaled))


class Decision(NamedTuple):
    """What becomes of a product. factors: what is multiplied. sums: the dtype in which a call has it, as kernels round
    sums of 8 bits and of float32 to few other dtypes. dtype: of the result. Both are None where the ordinary rules for
    the factors hold."""

    product: Product
    choice: Choice
    factors: tuple[Any, Any]
    sums: Any = None
    dtype: Any = None


class _Asked(NamedTuple):
    """A product of a call, and the dtype of its result."""

    product: Product
    dtype: Any

    @classmethod
    def of(cls, name: str, names: tuple[str, str], product: Product) -> _Asked:
        """name, names: of the public function and of both factors, for messages."""
        lhs, rhs, *_, preferred = product
        if product.are_scaled:
            return cls(product, dtype_of_scaled_product(name, preferred))
        other = 0 if is_scaled(rhs) else 1
        wide = dtype_beside_scaled(name, names[other], (lhs, rhs)[other].dtype)
        return cls(product, wide if preferred is None else preferred)


def _decisions(asked: Sequence[_Asked], choices: Sequence[Choice]) -> list[Decision]:
    """An array that is a factor of several products is widened once."""
    widened: dict[tuple[int, Any], jax.Array] = {}

    def factor(x: Any, wide: Any) -> Any:
        if not is_scaled(x):
            return x
        if wide is None:
            return x.values
        key = id(x), wide
        if key not in widened:
            widened[key] = x.dequantized(wide)
        return widened[key]

    found = []
    for (product, dtype), choice in zip(asked, choices, strict=True):
        factors = tuple(factor(x, product.wide if choice.how == "wide" else None) for x in (product.lhs, product.rhs))
        if choice.how == "wide" and not product.are_scaled:
            found.append(Decision(product, choice, factors))
        else:
            sums = accumulator(product.lhs.dtype if choice.how == "sums" else dtype)
            found.append(Decision(product, choice, factors, sums, dtype))
    return found


def scaled_gemm(
    name: str, As: Any, Bs: Any, Cs: Any = None, *, alpha: Any = 1, beta: Any = 0, bias: Any = None,
    activation: Any = None, transpose_a: Any, transpose_b: Any, symmetric: Any, into: Any, precision: Any,
    preferred: Any, planner: Any, implementation: Any,
) -> Any:  # fmt: skip
    """`batched_gemm` where factors are Scaled. name: of the public function, for messages."""
    planner, implementation = resolve_planner(planner), checked_implementation(name, implementation)
    precision = canonical_precision(precision)
    check_options(name, precision, preferred)
    preferred = None if preferred is None else jax.dtypes.canonicalize_dtype(preferred)
    lhs, rhs = paired(name, _values_of(As), _values_of(Bs))
    flags = flags_of(name, lhs, rhs, transpose_a, transpose_b, symmetric)
    asked: dict[int, _Asked] = {}
    of_kernels = precision
    for index, (a, b) in enumerate(zip(_factors(name, As, lhs), _factors(name, Bs, rhs), strict=True)):
        names = lhs.written(index), rhs.written(index)
        of_kernels, _ = precision_of_scaled_product(name, names, a, b, precision)
        if is_scaled(a) or is_scaled(b):
            with naming(name, lhs, rhs, index, flags[index]):
                sizes = checked_sizes(lhs.arrays[index], rhs.arrays[index], flags[index])
            asked[index] = _Asked.of(name, names, Product(a, b, flags[index], sizes, preferred))
    choices = choose([x.product for x in asked.values()], precision, implementation, planner)
    decisions = dict(zip(asked, _decisions(list(asked.values()), choices), strict=True))
    for index, decision in decisions.items():
        lhs.arrays[index], rhs.arrays[index] = decision.factors
    call = products(
        name,
        lhs,
        rhs,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        symmetric=symmetric,
        precision=of_kernels,
        preferred=preferred,
        decided=[decisions[i].sums if i in decisions else None for i in range(len(flags))],
    )
    special = {i: decision for i, decision in decisions.items() if decision.dtype is not None}
    dtypes = tuple(special[i].dtype if i in special else dtype for i, dtype in enumerate(call.dtypes))
    call = with_epilogues(call._replace(dtypes=dtypes), Cs, alpha, beta, bias, activation)
    call = with_windows(call, into)
    run = partial(_results, call, special, precision, planner, implementation)
    return placed(call, unchecked(run, call.epilogues)())


def _values_of(tree: Any) -> Any:
    """The tree with its values in place of each Scaled."""
    return jax.tree.map(lambda x: x.values if is_scaled(x) else x, tree, is_leaf=_is_factor)


def _is_factor(x: Any) -> bool:
    return isinstance(x, Scaled | View)


def _factors(name: str, tree: Any, of: FactorTree) -> list[Any]:
    """The factor of each product, checked. One that occurs several times stays one object."""
    leaves = jax.tree.leaves(unpacked(tree), is_leaf=_is_factor)
    different, number = distinct(leaves * len(of.arrays) if len(leaves) == 1 else leaves)
    first = [number.index(i) for i in range(len(different))]
    factors: list[Any] = [
        checked_scaled(name, of.written(i), x) if is_scaled(x) else of.arrays[i]
        for i, x in zip(first, different, strict=True)
    ]
    scales = {f"{of.written(i)}.scales": x.scales for i, x in zip(first, factors, strict=True) if is_scaled(x)}
    refuse_explicit_axes(name, scales.values(), list(scales).__getitem__)
    return [factors[i] for i in number]


def _results(
    call: Call, special: dict[int, Decision], precision: Any, planner: Any, implementation: Any
) -> list[jax.Array]:
    """The results of a call, whose windows are left out. special: the products that are more than a product of ordinary
    factors, by the index of the result."""
    count = len(call.dtypes)
    epilogues = call.epilogues or (Epilogue(),) * count
    results: list[Any] = [None] * count
    bound = [i for i in range(count) if i not in special or special[i].choice.how != "narrow"]
    unscaled = {i for i, decision in special.items() if decision.choice.how == "sums"}
    if bound:
        rest = call._replace(
            structure=jax.tree.structure(bound),
            terms=tuple(
                # A result may be symmetric although its sums before they have scales are not.
                call.terms[i]._replace(out=out, symmetric=call.terms[i].symmetric and i not in unscaled)
                for out, i in enumerate(bound)
            ),
            shapes=tuple(call.shapes[i] for i in bound),
            dtypes=tuple(special[i].sums if i in special else call.dtypes[i] for i in bound),
            epilogues=tuple(Epilogue() if i in special else epilogues[i] for i in bound),
            after=(),
            is_packed=False,
            views=None,
            members=None,
        )
        for i, result in zip(bound, bind(rest, planner, implementation), strict=True):
            results[i] = result
    for i, decision in special.items():
        epilogue, wide = epilogues[i], accumulator(decision.dtype)
        if decision.choice.how == "narrow":
            # An epilogue is applied to sums that have not been rounded.
            dtype = decision.dtype if epilogue == Epilogue() else wide
            results[i] = _narrow(decision.product, dtype, precision, implementation)
        total = results[i].astype(wide)
        if i in unscaled:
            total = _times_scales(total, decision.product)
        operands = {key: call.operands[key] for key in epilogue.operands()}
        arrays = {key: as_argument(dense(x.array), x.shape, x.dtype) for key, x in operands.items()}
        results[i] = finished(total, epilogue, arrays, decision.dtype)
    after = call.after or (None,) * count
    return [x if function is None else function(x) for x, function in zip(results, after, strict=True)]


def _narrow(product: Product, dtype: Any, precision: Any, implementation: Any) -> jax.Array:
    """A product by `ragged_dot`: each matrix of rhs is a group."""
    lhs, rhs = flat(product.lhs, product.rhs)
    groups = rhs.shape[0]
    sizes = jnp.full(groups, lhs.shape[0] // groups, np.int32)
    rows = ragged_dot(lhs, rhs, sizes, precision, dtype, transpose_rhs=True, implementation=implementation)
    return rows.reshape(product.sizes.result)


def _times_scales(sums: jax.Array, product: Product) -> jax.Array:
    """Sums of products of 8 bits times the scales of their rows and columns."""
    for x, of_columns, transposed in (
        (product.lhs, False, product.flags.transpose_a),
        (product.rhs, True, not product.flags.transpose_b),
    ):
        *leading, lines, others = x.shape
        scales, sizes = x.scales, x.sizes
        if transposed:
            lines, scales, sizes = others, scales.mT, (*sizes[:-2], sizes[-1], sizes[-2])
        of_lines = spread(scales, (*leading, lines, 1), (*sizes[:-1], 1))
        of_lines = of_lines.mT if of_columns else of_lines
        sums = sums * of_lines.reshape((1,) * (sums.ndim - of_lines.ndim) + of_lines.shape).astype(sums.dtype)
    return sums
