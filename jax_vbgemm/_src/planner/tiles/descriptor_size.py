"""How many bytes a plan's tiles take among the descriptors, and the most that they may."""

from jax_vbgemm._src.records import READY_TILE, RUN, SPLIT_TILE

MAX_BYTES = 1 << 20  # of a descriptor constant that describes tiles one by one

RUN_BYTES, READY_TILE_BYTES, SPLIT_TILE_BYTES = RUN.itemsize, READY_TILE.itemsize, SPLIT_TILE.itemsize
BLOCK_BYTES = 4  # where a block begins, an int32

# Tiles in an order of their own are runs of one each, and where several share a block, it is said where blocks begin.
MOST_BATCHED_TILES = MAX_BYTES // (RUN_BYTES + BLOCK_BYTES)

# And those that a serialised program can hold at all: XLA's are protocol buffers, of less than 2 GiB.
MOST_DESCRIBED_TILES = (1 << 30) // (RUN_BYTES + BLOCK_BYTES)


def ready_bytes(num_tiles: float, num_splits: float = 0, num_blocks: int = 0) -> float:
    """Of tiles that kernels find ready, one by one: those whose K is split are always, with a record for each of the
    `num_splits` places that shares are added up for. `num_blocks`: those that begin where a list says, if there is one.
    """
    return num_tiles * READY_TILE_BYTES + num_splits * SPLIT_TILE_BYTES + num_blocks * BLOCK_BYTES
