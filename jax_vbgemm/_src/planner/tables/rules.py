"""Rules: measured facts about one device that the cost model does not show, such as which tiles are faster there.

The figures are in the device's device.toml. A device without measurements has no rules: the predicted time then
decides, and tiles that only rules choose are not tried.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """The rules of a GPU.

    Which problems get row tiles or column tiles (model/tile_families.py):

    many_rows: from this many rows of the whole batch on, these tiles were the fastest in nearly all measurements: all
      of them for at most `few_columns` columns (in elements narrower than float64 already from a quarter of that number
      of rows on), and those on tensor cores for more columns.
    few_steps: below this K, tensor cores would mostly multiply zeros.
    largest_block: upper bound of the bytes that a block of these tiles reads and writes, as a multiple of its shared
      memory; beyond it, shorter tiles were faster, as there are too few blocks.
    narrow, streamed_steps: up to `narrow` columns, their waves stream rows with a K of up to `streamed_steps`.
    many_transposed_elements: for few columns and a deep K, these tiles are taken from this many elements of A on, if
      A is stored transposed.

    Which problems get deep tiles, or dot-product tiles:

    very_deep: from this K on, only deep tiles are tried.
    long_rows: the minimum K of dot products. fewest_filled: the rows fill at least 1/fewest_filled of a tile of dot
    products. many_elements: from this many elements of A on, only dot products are tried.

    How the search splits K (search/makespan.py):

    tie_tolerance: ratio of predicted times within which deep tiles get the most K slices.
    clearly_faster: ratio of predicted times below which the K slices of full rounds are taken.
    min_slot_fill: the fraction of the device's slots that the K slices of streaming tiles have to fill.
    most_read: upper bound of the bytes of A that one block of streaming tiles reads.
    slower_reads: the extra time in which other tiles than streaming ones read such operands, as a fraction of the
      bandwidth lower bound.

    Elementwise kernels:

    small_array: up to this many elements, reading an array once more in one kernel for many arrays takes less time than
      a kernel of its own.
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
    tie_tolerance: float
    clearly_faster: float
    min_slot_fill: float
    most_read: int
    slower_reads: float
    small_array: int


@dataclass(frozen=True)
class RaggedRules:
    """The rules of a GPU for the pipelined kernel of ragged products (ragged/plan.py, docs/design/ragged.md).

    few_rows: ragged rows whose groups have fewer rows get narrow tiles. Their time is that of reading the matrices, and
      there are more of these tiles to distribute over the multiprocessors.
    mixed_rows: weights of 8 or 4 bits of groups with at most this many rows of 16 bits stay narrow until they are in
      registers. Each 32 rows read them again, so that with more rows a widened copy is faster.
    paired_k: ragged rows with several wide tiles of columns run in clusters of two thread blocks, which share copies,
      if the product's K is at least this large (inf: never).
    counted_flop: with more work than this, thread blocks take tiles from a counter, which a memset clears before the
      kernel. With less, they take them in turn: some of them may end later, but there is no memset.
    gathered_columns: up to this many columns of a matrix, the kernel reads rows by index; each column of tiles reads
      them again, so that with more columns a copy of the rows before the kernel is faster.
    rates: FLOP/s of 8-bit arithmetics ("int8", "float8") while all multiprocessors have a tile. mixed_step: seconds in
      which these multiply rows of 16 bits by a step of K of narrow weights. product_seconds: of a product in a program,
      besides. They say whether a product of a list is faster by itself than in the call (ragged/cost.py).
    """

    few_rows: int
    mixed_rows: int
    paired_k: float
    counted_flop: float
    gathered_columns: int
    rates: tuple[tuple[str, float], ...]
    mixed_step: float
    product_seconds: float


@dataclass(frozen=True)
class MeshRules:
    """The rules of GPUs that share work through collectives (many_devices/).

    least_saved: seconds that dividing matrices which all devices hold has to save by prediction. With less, the
    collectives, and kernels that are too small to fill a device anyway, take longer than what is saved.
    """

    least_saved: float


@dataclass(frozen=True)
class CoreRules:
    """The rules of a CPU: the choice of tiles (planner/cores.py), and which products are left to XLA (lowering.py).

    step: the granularity of K slices, long enough that partial sums cost little compared to the products.
    blocks_per_core: the numbers of blocks per core that are tried for the longest products; with one block for each
      core, the slowest core would decide when the call ends.
    short_k, wide_columns: products with a K of at most `short_k` and at least this many columns mostly write their
      results. Tiles with the longest rows do that fastest, which the cost model does not show.
    xla_k, xla_products: a call of at most this many products, each with a K of at most `xla_k`, is left to XLA, which
      fuses them with the operations around them. (It compiles each by itself, so that more would take long to compile.)
    """

    step: int
    blocks_per_core: tuple[int, ...]
    short_k: int
    wide_columns: int
    xla_k: int
    xla_products: int


@dataclass(frozen=True)
class DotRates:
    """The measured speed of XLA's dots on a device.

    rates: FLOP/s of a large dot by its arithmetic. launch: minimum seconds of a dot, including scaling and
    accumulation. bandwidth: byte/s.
    tiles: the output tiles that the vendor's library chooses from, as (edge, fraction of the rate); empty if small
      outputs don't leave units idle.
    bare_launch: minimum seconds of a dot with nothing after it; None: as for any dot.
    inlined: a dot whose sizes are all at most this, or that has one row or one column, is a loop that XLA compiles into
      its program, without a call of a library. Its least time, with nothing after it, is `inlined_launch`. 0: there are
      no such loops.
    narrow: (bytes, ratio) in increasing order: a dot with nothing after it, whose result has rows of at most this many
      bytes, takes this many times as long as this package's kernels by their prediction.
    """

    rates: tuple[tuple[str, float], ...]
    launch: float
    bandwidth: float
    tiles: tuple[tuple[int, float], ...] = ((128, 1.0), (64, 0.5))
    bare_launch: float | None = None
    inlined: int = 0
    inlined_launch: float = 0.0
    narrow: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class CallCosts:
    """The cost of a call in a program of dots, and the gain that it must bring (`group`, `blocksparse`).

    launch: minimum seconds of a call; None: as for any plan (`launch_seconds`). A CPU's plans count the time of waking
      the thread pool, which small calls don't use.
    array: seconds for each array that is passed to the call or returned by it.
    copy: least seconds of transposing an operand for the call. XLA's dots need no such copy: the operation that
      computes an operand usually writes it in the order of axes that the dot reads.
    clear_gain: the predicted time of the dots divided by that of the call has to be at least this. A prediction does
      not know what XLA fuses with a dot, nor that all results of a call are there only when the last one is.
    least_gain: seconds that a call has to save.
    block, element: seconds for each block, and for each element, that XLA copies into a larger block or out of one,
      where a program contracts block-sparse tensors in this way otherwise.
    small_bytes: products whose arrays all have at most this size do not become a call. XLA's CPU runtime runs a program
      whose arrays have at most 512 bytes each without scheduling. One larger array, such as the descriptors of a call,
      makes it schedule every operation, which takes longer than the operations themselves.
    fused_gain: further seconds that a call has to save in place of XLA's copies of blocks into larger ones, because
      these copies transpose the blocks as well.
    signed_gain: further seconds that such a call has to save if blocks have signs, which these copies apply as well.
    fused_side, fused_elements: `group` leaves a product to XLA if a side (M, N or K) is shorter than `fused_side` and
      an array has more than `fused_elements` elements, because XLA fuses it with the operations around it.
    fuses_operands: whether XLA computes an operand that is the result of an elementwise operation in the dot's kernel.
      For a call it is written to memory, as a copied operand is.
    """

    launch: float | None
    array: float
    copy: float
    clear_gain: float
    least_gain: float
    block: float
    element: float
    small_bytes: int
    fused_gain: float = 0.0
    signed_gain: float = 0.0
    fused_side: int = 0
    fused_elements: int = 0
    fuses_operands: bool = False


@dataclass(frozen=True)
class CollectiveRate:
    """The measured speed of one of XLA's collectives among devices of one host (benchmarks/many_gpus.sh measures it).

    latency: minimum seconds of a call. bandwidth: byte/s that a device receives; `inf` where the time of a call does
    not depend on what it sends.
    """

    latency: float
    bandwidth: float
