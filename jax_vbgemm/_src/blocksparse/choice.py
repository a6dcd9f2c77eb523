"""Chooses how a block-sparse contraction is computed: by one call, by XLA's dots, or by symmray's default method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Any

import jax

from jax_vbgemm._src.blocksparse.blocks import Sector
from jax_vbgemm._src.blocksparse.contraction import Contraction, charges
from jax_vbgemm._src.matmul.precision import canonical_precision, precision_name
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.planner import Auto, resolve_planner
from jax_vbgemm._src.planner.single_dots import Alternative, ChosenSplit, Member, worthwhile
from jax_vbgemm._src.problem import LARGEST_SIZE, Problem
from jax_vbgemm._src.util import compat

_MOST_DOTS = 48  # dots per contraction: XLA compiles each one separately, which takes a few milliseconds


def left_to_xla(
    work: Contraction, *, has_native: bool, signed: bool = False, **options: Any
) -> frozenset[Sector] | None:
    """The sectors of the result that XLA should compute by dots, by the cost model: all, or none, or those with large
    products. None if symmray's default method is predicted to be the fastest, which is only considered with
    `has_native`.

    signed: whether the contraction multiplies blocks by signs.
    """
    choice = _choice(work, has_native, signed, **options)
    if choice is None:
        return frozenset()
    if choice.alternative:
        return None
    if work.packed and not all(choice.alone):
        return frozenset()  # dots copy blocks between buffers: 1400 us for a chain of 1050 us
    return frozenset(sector for sector, alone in zip(work.segments, choice.alone, strict=True) if alone)


def _choice(
    work: Contraction,
    has_native: bool,
    signed: bool,
    *,
    precision: Any,
    preferred_element_type: Any,
    planner: Any,
    implementation: str | None,
) -> ChosenSplit | None:
    """The fastest method; None if the caller asks for one, or if the cost model does not know the products."""
    device, (dtype, other), precision = backends.traced_target(), work.dtypes, canonical_precision(precision)
    if implementation is not None or resolve_planner(planner) != Auto() or not work.segments:
        return None
    if dtype is None or dtype != other or preferred_element_type not in (None, dtype):
        return None
    has_algorithm = isinstance(precision, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm)
    if dtype.name not in backends.BACKENDS[device.platform].dtypes or has_algorithm:
        return None
    if not all(compat.is_static(form.shape) for form in (*work.left.values(), *work.right.values())):
        return None
    members = members_of(work)
    if max(max(x.problem.m, x.problem.n, x.problem.k) for x in members) > LARGEST_SIZE:
        return None
    native_seconds = native_alternative(work, signed) if has_native and precision is None and work.axes_a else None
    return worthwhile(
        members,
        dtype.name,
        precision_name(precision),
        device,
        planner,
        alternative=native_seconds,
        most_dots=_MOST_DOTS,
    )


def members_of(work: Contraction) -> tuple[Member, ...]:
    """The blocks of the result as members of one call."""
    members: list[Member] = []
    passed: set[int] = set()
    for pairs in work.segments.values():
        # The result, or the buffer of all results, is one array; the first member accounts for it and for the copies.
        dots, arrays, copied = [], 0 if work.packed and members else 1, []
        copied += [moved.elements for moved in work.moved if moved is not None and not members]
        for pair in pairs:
            x, y = work.left[pair[0]], work.right[pair[1]]
            for array, form in ((work.passed[0][pair[0]], x), (work.passed[1][pair[1]], y)):
                if array not in passed:
                    passed.add(array)
                    arrays += 1
                    copied += [] if form.order is None else [form.shape[0] * form.shape[1]]
            dots.append(Problem(x.shape[0], y.shape[1], x.shape[1], 1, x.transposed, y.transposed))
        flags = all(dot.transpose_a for dot in dots), all(dot.transpose_b for dot in dots)
        total = Problem(dots[0].m, dots[0].n, sum(dot.k for dot in dots), 1, *flags)
        members.append(Member(total, tuple(dots), arrays, tuple(copied)))
    return tuple(members)


def native_alternative(work: Contraction, signed: bool = False) -> Alternative:
    """symmray's default method, which copies blocks into larger ones before it multiplies them.

    Charges are conserved. So the blocks of a tensor fall into classes, in which each combination of charges of the free
    axes meets each one of the contracted axes: a class is one larger block.
    """
    parent: dict[Hashable, Hashable] = {}

    def root(x: Hashable) -> Hashable:
        parent.setdefault(x, x)
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    sizes: tuple[dict[Hashable, int], ...] = ({}, {}, {})
    for a, b in (pair for pairs in work.segments.values() for pair in pairs):
        (m, k), (_, n) = work.left[a].shape, work.right[b].shape
        nodes: tuple[Hashable, ...] = (
            ("m", charges(a, work.free_a)), ("k", charges(a, work.axes_a)), ("n", charges(b, work.free_b))
        )  # fmt: skip
        for size, node, node_sizes in zip((m, k, n), nodes, sizes, strict=True):
            node_sizes[node] = size
        parent[root(nodes[0])] = root(nodes[1])
        parent[root(nodes[2])] = root(nodes[1])
    classes: dict[Hashable, tuple[list[int], ...]] = defaultdict(lambda: ([], [], []))
    for place, node_sizes in enumerate(sizes):
        for node, size in node_sizes.items():
            classes[root(node)][place].append(size)
    dots, copies, elements = [], 0, 0
    for ms, ks, ns in classes.values():
        dots.append(Problem(sum(ms), sum(ns), sum(ks)))
        for rows, columns in ((ms, ks), (ks, ns), (ms, ns)):
            if len(rows) * len(columns) > 1:
                copies += 1
                elements += sum(rows) * sum(columns)
    return Alternative(tuple(dots), copies, len(work.left) + len(work.right) + len(work.segments), elements, signed)
