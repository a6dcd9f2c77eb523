"""The size of a plan's tiles in the descriptor constant, and its upper bounds."""

from jax_vbgemm._src.native.records import READY_TILE, RUN, SPLIT_TILE

MAX_BYTES = 1 << 20  # upper bound of a descriptor constant with one record per tile

RUN_BYTES, READY_TILE_BYTES, SPLIT_TILE_BYTES = RUN.itemsize, READY_TILE.itemsize, SPLIT_TILE.itemsize
BLOCK_BYTES = 4  # an entry of block_first, an int32

# Tiles that are batched into blocks are runs of one tile each, with a list of the first tile of each block.
MOST_BATCHED_TILES = MAX_BYTES // (RUN_BYTES + BLOCK_BYTES)

# The maximum number of tiles in a serialised program: XLA's programs are protocol buffers, limited to 2 GiB.
MOST_DESCRIBED_TILES = (1 << 30) // (RUN_BYTES + BLOCK_BYTES)


def ready_bytes(num_tiles: float, num_splits: float = 0, num_blocks: int = 0) -> float:
    """The bytes of tiles with one record each (READY_TILE), as tiles with split K always have, and of one further
    record (SPLIT_TILE) for each of the `num_splits` places in C whose partial sums are reduced. `num_blocks`: the
    length of the list block_first, 0 if there is none.
    """
    return num_tiles * READY_TILE_BYTES + num_splits * SPLIT_TILE_BYTES + num_blocks * BLOCK_BYTES
