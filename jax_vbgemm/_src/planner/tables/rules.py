"""What was measured on one device and its costs do not show: which tiles, shares and sizes are faster there.

The figures are in the device's device.toml. A device on which none was measured has no rules: what they decide is then
left to the predicted time, and tiles that only rules choose are not tried.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """A GPU's.

    Which problems take tiles of whole rows or columns (model/tile_families.py):

    many_rows: of so many rows or more, in all, they were the fastest in nearly all that was measured: up to
      `few_columns` columns all of them, and of elements narrower than float64 from a quarter of those rows on; of more
      columns those on tensor cores.
    few_steps: below so many steps of K tensor cores would be given zeros for the most part.
    largest_block: bytes that a block of them reads and writes, as a multiple of its shared memory, beyond which shorter
      tiles were faster: there are too few blocks.
    narrow, streamed_steps: up to `narrow` columns their waves stream rows of `streamed_steps` steps of K.
    many_transposed_elements: elements of A, stored transposed, from which they are taken for few columns and a deep K.

    Which take tiles that share a deep K, or of dot products of rows of A with columns of B:

    very_deep: a K from which tiles of shared depth alone are tried.
    long_rows: the least K of dot products; fewest_filled: rows fill at least one part in so many of their tile.
    many_elements: elements of A from which dot products alone are tried.

    How the search splits K (search/makespan.py):

    hardly_slower: the ratio of predicted times within which tiles of shared depth take the most shares.
    clearly_faster: the ratio of predicted times that shares in full rounds have to stay below.
    full_enough: the part of the device's slots that shares of tiles that wait for the memory alone have to fill.
    most_read: bytes of A that one of their blocks may read.
    slower_reads: what other tiles than those that stream take longer to read such operands, as a fraction of the
      bandwidth lower bound.

    And elementwise:

    small_array: elements up to which one more read of an array, in one kernel for many, takes less than a kernel of
      its own.
    """

    many_rows: int
    few_columns: int
    few_steps: int
    largest_block: float
    narrow: int
    streamed_steps: int
    very_deep: int
    long_rows: int
    fewest_filled: int
    many_elements: int
    many_transposed_elements: int
    hardly_slower: float
    clearly_faster: float
    full_enough: float
    most_read: int
    slower_reads: float
    small_array: int


@dataclass(frozen=True)
class CoreRules:
    """A CPU's: how K is split among cores (planner/cores.py).

    step: of K; a share is whole steps, long enough that its sums cost little beside its products.
    blocks_per_core: as many blocks as the longest products are cut for are tried; one each would end when the slower
      core does.
    """

    step: int
    blocks_per_core: tuple[int, ...]


@dataclass(frozen=True)
class DotRates:
    """What XLA's dots reach on a device.

    rates: FLOP/s of a large dot by what it multiplies in. launch: seconds of a dot, however small. bandwidth: byte/s.
    tiles: the output tiles its library chooses from, (edge, share of the rate); none where small outputs don't leave
    units idle.
    """

    rates: tuple[tuple[str, float], ...]
    launch: float
    bandwidth: float
    tiles: tuple[tuple[int, float], ...] = ((128, 1.0), (64, 0.5))
