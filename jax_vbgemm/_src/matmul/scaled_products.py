"""`batched_matmul` and `batched_gemm` of `Scaled` factors: what multiplies each product, and why.

    narrow   a kernel of `ragged_dot`, for groups of constant size, reads 8 or 4 bits and applies the scales
    sums     the kernel of all products multiplies 8-bit numbers, and XLA the sums by scales that hold for all of K
    wide     factors times their scales are factors like all others

`choose` decides. Products that are not narrow are one call, together with those of factors without scales. dtypes and
errors are those of `ragged_dot` (ragged/scaled_factors.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.epilogue import Epilogue, finished
from jax_vbgemm._src.matmul.call import Call, as_argument, bind, placed, unchecked, with_windows
from jax_vbgemm._src.matmul.epilogues import with_epilogues
from jax_vbgemm._src.matmul.factors import FactorTree, Flags, checked_sizes, flags_of, naming, paired, products
from jax_vbgemm._src.matmul.options import check_options, checked_implementation
from jax_vbgemm._src.matmul.packed import unpacked
from jax_vbgemm._src.matmul.precision import canonical_precision
from jax_vbgemm._src.matmul.primitive import TermSizes
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import View, dense
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.native.arithmetic import arithmetic_of
from jax_vbgemm._src.planner import resolve_planner
from jax_vbgemm._src.ragged import plan
from jax_vbgemm._src.ragged.api import ragged_dot
from jax_vbgemm._src.ragged.choice import FactorDtypes, kind_on
from jax_vbgemm._src.ragged.scaled_factors import (
    checked,
    dtype_beside_scaled,
    dtype_of_scaled_product,
    is_mixed,
    is_narrow,
    precision_of_scaled_product,
)
from jax_vbgemm._src.scaled.scaled import Scaled, spread
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import refuse_explicit_axes
from jax_vbgemm._src.util.distinct import distinct

LONGEST_INT8 = 2**17 - 1
"""The largest K of which int32 holds any sum of products of int8: 2^17 products of -128 by itself are 2^31."""


class Choice(NamedTuple):
    """What multiplies two factors of which one or both are Scaled ("narrow", "sums" or "wide"), and why."""

    how: str
    why: str


class Product(NamedTuple):
    """Two factors of which one or both are Scaled. preferred: the dtype that the caller asks for, or None."""

    lhs: Any
    rhs: Any
    flags: Flags
    sizes: TermSizes
    preferred: Any

    @property
    def are_scaled(self) -> bool:
        """Whether both factors are."""
        return is_scaled(self.lhs) and is_scaled(self.rhs)


def is_scaled(x: Any) -> bool:
    return isinstance(x, Scaled)


def has_scaled(*trees: Any) -> bool:
    """Whether a leaf of the trees is Scaled."""
    return any(is_scaled(leaf) for tree in trees for leaf in jax.tree.leaves(tree, is_leaf=is_scaled))


def choose(product: Product, precision: Any, implementation: str | None, *, alone: bool) -> Choice:
    """What multiplies a product. alone: it is the only one of its call."""
    lhs, rhs, flags, sizes, _ = product
    if not compat.is_static((*sizes.result, sizes.k)) or 0 in (*sizes.result, sizes.k):
        return Choice("wide", "a size is 0 or symbolic")
    what = "one factor has no scales"
    if product.are_scaled:
        if arithmetic_of(lhs.dtype.name, rhs.dtype.name) is None:
            return Choice("wide", f"no kernel multiplies {lhs.dtype} by {rhs.dtype}")
        of_lhs, of_rhs = -2 if flags.transpose_a else -1, -1 if flags.transpose_b else -2
        if lhs.scales.shape[of_lhs] == rhs.scales.shape[of_rhs] == 1:
            lacks = _why_not_narrow(product, precision, implementation) if alone else "all products are one call"
            if not lacks:
                return Choice("narrow", "it is the only product of the call")
            if lhs.dtype == np.int8 and sizes.k > LONGEST_INT8:
                return Choice("wide", f"int32 does not hold all sums of {sizes.k} products of int8")
            return Choice("sums", f"scales hold for all of K, and {lacks}")
        what = "scales change along K"
    lacks = _why_not_narrow(product, precision, implementation)
    return Choice("wide", f"{what}, and {lacks}") if lacks else Choice("narrow", what)


def _why_not_narrow(product: Product, precision: Any, implementation: str | None) -> str | None:
    """Why no kernel of `ragged_dot` multiplies the factors as they are on the device for which the program is traced;
    None where one does."""
    lhs, rhs, flags, sizes, preferred = product
    if implementation == "xla":
        return "the caller wants XLA's products"
    if flags.transpose_a or not flags.transpose_b or not is_scaled(rhs):
        return "kernels of 8 bits read lhs (m, k), and rhs, which is Scaled, (n, k) with transpose_b"
    batch = rhs.shape[:-2]
    if math.prod(batch) != 1 and not batch == lhs.shape[:-2] == sizes.batch:
        return f"lhs {lhs.shape} has no rows of its own for each matrix of rhs {rhs.shape}"
    groups, rows = math.prod(batch), math.prod(sizes.batch) * sizes.m
    flat_lhs, flat_rhs = jax.eval_shape(_flat, lhs, rhs)
    weights = None if product.are_scaled else rhs.dtype.name
    if not (is_mixed(lhs.dtype, flat_rhs, preferred) if weights else is_narrow(flat_lhs, flat_rhs, True)):
        return "no kernel of 8 bits has these dtypes and blocks"
    device = backends.traced_target()
    kind = kind_on(device.platform, FactorDtypes(lhs.dtype, rhs.dtype), precision)
    ragged = plan.Product(
        contraction=False, transpose_rhs=True, gated=False, m=rows, k=sizes.k, columns=sizes.n, groups=groups,
        total_groups=groups, rows=rows // groups, weights=weights,
    )  # fmt: skip
    return plan.why_not_pipelined(kind, device, ragged)


def _flat(lhs: Any, rhs: Scaled) -> tuple[Any, Scaled]:
    """Factors for `ragged_dot`: the rows of lhs with scales of single rows, and the matrices of rhs, whose scales are
    of single columns where they hold for all of K, as it knows few other blocks."""
    if is_scaled(lhs):
        lhs = _of_lines(lhs)
        scales = lhs.scales.reshape(-1, lhs.scales.shape[-1])
        lhs = Scaled(dense(lhs.values).reshape(-1, lhs.shape[-1]), scales, lhs.block[-2:])
    else:
        lhs = dense(lhs).reshape(-1, lhs.shape[-1])
    rhs = _of_lines(rhs) if rhs.scales.shape[-1] == 1 else rhs
    *leading, rows, columns = rhs.sizes
    scales = spread(rhs.scales, (*rhs.shape[:-2], *rhs.scales.shape[-2:]), (*leading, 1, 1))
    values = dense(rhs.values).reshape(-1, *rhs.shape[-2:])
    return lhs, Scaled(values, scales.reshape(-1, *scales.shape[-2:]), (rows, columns))


def _of_lines(x: Scaled) -> Scaled:
    """x with scales of single rows, in as many blocks of columns as before."""
    *leading, rows, columns = x.sizes
    scales = spread(x.scales, (*x.shape[:-1], x.scales.shape[-1]), (*leading, rows, 1))
    return Scaled(x.values, scales, (*(1,) * (x.ndim - 1), columns))


class Decision(NamedTuple):
    """What becomes of a product. factors: what is multiplied. sums: the dtype in which a call has it, as kernels round
    sums of 8 bits and of float32 to few other dtypes. dtype: of the result. Both are None where the ordinary rules for
    the factors hold."""

    product: Product
    choice: Choice
    factors: tuple[Any, Any]
    sums: Any = None
    dtype: Any = None


class _Decider:
    """Decides for the products of one call. An array that is a factor of several products is widened once."""

    def __init__(self, name: str, preferred: Any, precision: Any, implementation: str | None, *, alone: bool) -> None:
        self._name, self._preferred, self._alone = name, preferred, alone
        self._precision, self._implementation = precision, implementation
        self._widened: dict[tuple[int, Any], jax.Array] = {}

    def decision(self, names: tuple[str, str], lhs: Any, rhs: Any, flags: Flags, sizes: TermSizes) -> Decision:
        """names: those of both factors in messages."""
        product = Product(lhs, rhs, flags, sizes, self._preferred)
        factors = tuple(x.values if is_scaled(x) else x for x in (lhs, rhs))
        if product.are_scaled:
            wide, dtype = np.dtype(np.float32), dtype_of_scaled_product(self._name, self._preferred)
        else:
            other = 0 if is_scaled(rhs) else 1
            wide = dtype_beside_scaled(self._name, names[other], factors[other].dtype)
            dtype = wide if self._preferred is None else self._preferred
        choice = choose(product, self._precision, self._implementation, alone=self._alone)
        if choice.how == "wide":
            factors = tuple(self._factor(x, wide) for x in (lhs, rhs))
            if not product.are_scaled:
                return Decision(product, choice, factors)
        sums = accumulator(lhs.dtype if choice.how == "sums" else dtype)
        return Decision(product, choice, factors, sums, dtype)

    def _factor(self, x: Any, dtype: Any) -> Any:
        if not is_scaled(x):
            return x
        key = id(x), dtype
        if key not in self._widened:
            self._widened[key] = x.dequantized(dtype)
        return self._widened[key]


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
    decider = _Decider(name, preferred, precision, implementation, alone=len(flags) == 1)
    decisions: list[Decision | None] = []
    of_kernels = precision
    for index, (a, b) in enumerate(zip(_factors(name, As, lhs), _factors(name, Bs, rhs), strict=True)):
        names = lhs.written(index), rhs.written(index)
        of_kernels, _ = precision_of_scaled_product(name, names, a, b, precision)
        decision = None
        if is_scaled(a) or is_scaled(b):
            with naming(name, lhs, rhs, index, flags[index]):
                sizes = checked_sizes(lhs.arrays[index], rhs.arrays[index], flags[index])
            decision = decider.decision(names, a, b, flags[index], sizes)
            lhs.arrays[index], rhs.arrays[index] = decision.factors
        decisions.append(decision)
    call = products(
        name,
        lhs,
        rhs,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        symmetric=symmetric,
        precision=of_kernels,
        preferred=preferred,
        decided=[decision and decision.sums for decision in decisions],
    )
    special = {i: decision for i, decision in enumerate(decisions) if decision and decision.dtype is not None}
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
        checked(name, of.written(i), x) if is_scaled(x) else of.arrays[i] for i, x in zip(first, different, strict=True)
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
    lhs, rhs = _flat(product.lhs, product.rhs)
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
