"""Signs of blocks, as fermions need them: which blocks have to be negated, and the negation of windows of a buffer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.blocksparse.blocks import Blocks, Sector
from jax_vbgemm._src.blocksparse.contraction import Contraction, charges
from jax_vbgemm._src.elementwise.addition import negated
from jax_vbgemm._src.matmul.view import Operand, View
from jax_vbgemm._src.util.distinct import distinct


class Signs(NamedTuple):
    """The sectors of a, b and the result whose sign is -1."""

    a: frozenset[Sector]
    b: frozenset[Sector]
    result: frozenset[Sector]


def fewest_negations(work: Contraction, a: Blocks, b: Blocks, signs: Signs, *, by_result: bool) -> Signs:
    """Signs with the same products that need fewer negations of blocks, which are copies.

    A product keeps its sign if both factors change sign, so all blocks of a and b with the same charges of the
    contracted axes may be flipped. If the result may have signs (`by_result`, which cost nothing), it also does where
    all blocks with the same charges of a's (or of b's) free axes change their signs together with the result's blocks
    of these charges. Each such group is flipped as long as that leaves fewer elements to negate.
    """
    negative = [{sector for sector in x if sector in used} for x, used in
                ((signs.a, work.left), (signs.b, work.right), (signs.result, work.segments))]  # fmt: skip
    sizes = [
        {sector: a.blocks[sector].size for sector in work.left},
        {sector: b.blocks[sector].size for sector in work.right},
        dict.fromkeys(work.segments, 0),
    ]
    groups: dict[tuple[str, Sector], list[tuple[int, Sector]]] = defaultdict(list)
    for sector in work.left:
        groups["contracted", charges(sector, work.axes_a)].append((0, sector))
        groups["free of a", charges(sector, work.free_a)].append((0, sector))
    for sector in work.right:
        groups["contracted", charges(sector, work.axes_b)].append((1, sector))
        groups["free of b", charges(sector, work.free_b)].append((1, sector))
    for sector in work.segments:
        groups["free of a", sector[: len(work.free_a)]].append((2, sector))
        groups["free of b", sector[len(work.free_a) :]].append((2, sector))
    flips = [members for (kind, _), members in groups.items() if by_result or kind == "contracted"]
    improves = True
    while improves:
        improves = False
        for members in flips:
            gain = sum(sizes[x][sector] * (1 if sector in negative[x] else -1) for x, sector in members)
            if gain > 0:
                improves = True
                for x, sector in members:
                    negative[x] ^= {sector}
    return Signs(*map(frozenset, negative))


def with_signs(blocks: Mapping[Sector, Operand], negative: Collection[Sector]) -> dict[Sector, Operand]:
    """The blocks, with those of the sectors `negative` negated. Windows of a buffer stay windows of one buffer, which
    is negated in part by one operation; arrays are negated in one operation, too, which on a GPU is a single kernel."""
    results = dict(blocks)
    if not negative:
        return results
    alone = {sector: block for sector in negative if not isinstance(block := blocks[sector], View)}
    if all(jnp.issubdtype(block.dtype, jnp.inexact) for block in alone.values()):
        results.update(zip(alone, negated(list(alone.values())), strict=True) if alone else ())
    else:
        results.update({sector: -block for sector, block in alone.items()})
    views = {sector: block for sector, block in blocks.items() if isinstance(block, View)}
    buffers, numbers = distinct([view.buffer for view in views.values()])
    number_of = dict(zip(views, numbers, strict=True))
    for number, buffer in enumerate(buffers):
        flipped = [sector for sector in negative if number_of.get(sector) == number]
        if not flipped:
            continue
        mask = np.zeros(buffer.size, bool)
        for sector in flipped:
            mask[views[sector].layout.positions()] = True
        changed = jnp.where(mask.reshape(buffer.shape), -buffer, buffer)
        for sector, view in views.items():
            if number_of[sector] == number:
                results[sector] = type(view).with_layout(changed, view.layout)
    return results
