// The plan as kernels read it: plain data with the same layout on the host and on the device. jax_vbgemm/_src/matmul/descriptors.py writes
// it, with the layouts that layouts.h exports to Python.
//
// The descriptor blob is one constant of the program: ReadyTile[num_tiles] if num_runs is 0; Problem[num_problems]; Epilogue[num_problems]
// if the call has epilogues; TileRun[num_runs]; SplitTile[num_splits]; then int32 block_first[num_blocks + 1], unless every block has
// exactly one tile.
#pragma once
#include <cstdint>

namespace vbgemm {

// A batch of matrices inside a buffer. Strides are in elements and describe op(X): a transposed operand has its strides swapped.
struct Operand {
  int32_t buffer;  // index into the call's buffers: first the operands, then the results
  int32_t reserved;
  int64_t offset;  // in elements from the buffer's start
  int64_t row_stride, col_stride;
  int64_t batch_stride[2];
};

// c[b] = a[b] b[b] for b in [0, batch). Matrix b of a batch is addressed by (b / inner_batch, b % inner_batch).
struct Problem {
  int32_t m, n, k;
  int32_t batch, inner_batch;
  int32_t reserved;
  Operand a, b, c;
};

// A scalar known at trace time, or an element of a buffer of accumulators.
struct Scalar {
  double real, imag;  // the number, if buffer < 0
  int32_t buffer;
  int32_t reserved;
  int64_t offset;  // element of the buffer
};

enum class Activation : int32_t {
  none,
#define ACTIVATION(name, value) name,
#include "activations.def"
};
inline constexpr const char* kActivationNames[] = {
    "none",
#define ACTIVATION(name, value) #name,
#include "activations.def"
};
inline constexpr int32_t kActivations = sizeof(kActivationNames) / sizeof(kActivationNames[0]);  // with none

// The epilogue of a problem: c = activation(alpha sum + beta source + bias). source and bias hold elements of the result's dtype and are
// addressed like C (a broadcast dimension has stride 0); buffer < 0 means that the term is absent. If beta is 0, source is not read. source
// may be c itself. Scalars and arithmetic have the accumulator's dtype.
struct Epilogue {
  Scalar alpha, beta;
  Operand source, bias;
  Activation activation;
  int32_t reserved;
};

// A box of equal, adjacent tiles of one problem, enumerated along batch, rows and columns in that order. A single tile is a box of one.
struct TileRun {
  int32_t problem;
  int32_t tile_id;          // row of the catalogue
  int32_t row, col, batch;  // origin: elements, elements, batch index
  int32_t k_begin, k_end;
  int32_t first_tile;  // number of tiles in the runs before this one
  int32_t tiles_y, tiles_x;
  // C is symmetric: the transposes of the tiles are stored too, across its diagonal. Only NVIDIA tensor kernels support this.
  int32_t mirrored;
  int32_t reserved;
};

// Value of a tile's C buffer: the tile is one K slice of a split-K tile, and its partial sums are stored to the workspace.
inline constexpr int32_t kStoreToWorkspace = -1;

// Value of a tile's C buffer, on the CPU only: nothing is stored, and the block's next tile, which has the same part of C, continues with
// the same accumulators. So a sum of products needs no workspace.
inline constexpr int32_t kKeepAccumulators = -2;

// A part of a matrix: offset and strides, in elements of its buffer.
struct Part {
  int64_t offset;
  int32_t row_stride, col_stride;
  int32_t buffer;
  int32_t mirrored;  // of C only: see TileRun::mirrored
};

// The part of a tile's description that its matrices share: C[rows x cols] = A[rows x depth] B[depth x cols], and the tile's position in
// its problem.
struct TilePosition {
  int32_t tile_id;
  int32_t rows, cols, depth;
  int32_t problem, batch, row, col;
};

// One tile, or one K slice of a tile, with everything that a kernel would otherwise compute from the tile's run and problem: on a GPU the
// time of a small call is mostly latency (docs/design/latency.md, L1). A thread that reads a whole record does so in 16-byte vectors (L18).
struct alignas(16) ReadyTile {
  TilePosition position;
  Part part[3];  // of A, B and C
  int64_t reserved;
};

// A split-K tile: the location of its slices' partial sums, and the destination of their total. Rows of partial sums are `pitch` apart,
// slices `slice_stride`. Its position has the tile index and depth of its first slice.
struct SplitTile {
  TilePosition position;
  Part c;
  int64_t first;  // in accumulators, from the start of the workspace's partial sums
  int32_t slice_stride, slices;
  int32_t pitch;
  int32_t reserved;
};

static_assert(sizeof(Operand) == 48 && sizeof(Problem) == 168 && sizeof(Epilogue) == 168 && sizeof(TileRun) == 48 &&
                  sizeof(ReadyTile) == 112 && sizeof(SplitTile) == 80,
              "programs that were exported hold these layouts: a handler's contract never changes under one name");

// One kernel launch: a contiguous range of blocks. If block_first is null, block i is tile i.
struct Launch {
  int32_t kernel;  // the value of a Kernel
  int32_t first_block, num_blocks;
};

// A kernel's input besides the buffers. If num_runs == num_tiles, tile i is run i; otherwise kernels search for a tile's run.
struct Descriptors {
  const Problem* problems;
  const Epilogue* epilogues;  // one for each problem, or null: c = sum
  const TileRun* runs;
  const ReadyTile* tiles;  // in place of runs, or null
  const SplitTile* splits;
  const int32_t* block_first;
  int32_t num_problems, num_runs, num_tiles, num_splits, num_blocks;
};

}  // namespace vbgemm
