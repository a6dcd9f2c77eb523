"""The plan of a ragged product on a GPU: the tile shape, and whether thread blocks take tiles from a counter."""

from jax_vbgemm import _core
from jax_vbgemm._src.planner.tables.rules import RaggedRules

SHAPES: tuple[str, ...] = tuple(_core.ragged_shapes())
"""The tile shapes of the pipelined kernel; a call refers to a shape by its position here (RaggedShape in
csrc/ragged.h)."""

NARROW, WIDE = 128, 256  # columns of tiles


def tile_shape(rules: RaggedRules | None, *, contraction: bool, rows: int, k: int, columns: int) -> str:
    """The fastest shape by a device's rules; without rules the narrowest that holds all columns, in single blocks.

    rows: of a typical group. columns: of a matrix of rhs. In clusters of two thread blocks these share the copies of
    what two neighbouring tiles have in common: the columns of rhs, or the rows of lhs. Contractions have no clusters.
    """
    few_rows, paired_k = (0, None) if rules is None else (rules.few_rows, rules.paired_k)
    if columns <= NARROW or (not contraction and rows < few_rows):
        return "narrow"
    pairs = not contraction and paired_k is not None and k >= paired_k and columns > WIDE
    return "wide_pair" if pairs else "wide"


def takes_from_counter(rules: RaggedRules | None, *, rows: int, k: int, columns: int) -> bool:
    """Whether thread blocks take tiles from a counter, so that the call needs a workspace."""
    return rules is not None and 2.0 * rows * k * columns > rules.counted_flop
