// The plan as kernels read it: plain data, the same bytes on the host and on the device. jax_vbgemm/_src/matmul/descriptors.py
// writes it, by the layouts that layouts.h tells Python.
//
// The descriptor blob is one constant of the program: Problem[num_problems], Epilogue[num_problems] where the call has epilogues,
// TileRun[num_runs] or, where num_runs is 0, ReadyTile[num_tiles] and SplitTile[num_splits], then int32 block_first[num_blocks + 1] unless
// every block holds one tile.
#pragma once
#include <cstdint>

namespace vbgemm {

// A batch of matrices inside a buffer. Strides are in elements, of op(X): a transposed operand has its strides swapped.
struct Operand {
  int32_t buffer;  // index into the call's buffers: operands first, then results
  int32_t reserved;
  int64_t offset;  // elements from the buffer's start
  int64_t row_stride, col_stride;
  int64_t batch_stride[2];
};

// c[b] = a[b] b[b] for b in [0, batch); b addresses (b / inner_batch, b % inner_batch).
struct Problem {
  int32_t m, n, k;
  int32_t batch, inner_batch;
  int32_t reserved;
  Operand a, b, c;
};

// A number known at trace time, or an element of a buffer that holds accumulators.
struct Scalar {
  double real, imag;  // where buffer < 0
  int32_t buffer;
  int32_t reserved;
  int64_t offset;  // element of the buffer
};

enum class Activation : int32_t { none, relu, gelu, silu, tanh, sigmoid };
inline constexpr const char* kActivationNames[] = {"none", "relu", "gelu", "silu", "tanh", "sigmoid"};

// What happens to a problem's sums on their way to C: c = activation(alpha sum + beta source + bias). source and bias hold elements of the
// result's dtype and are addressed like C (a broadcast dimension has stride 0); buffer < 0: there is none. Where beta is 0, source is not
// read. source may be c itself. Scalars and arithmetic are of the accumulator's dtype.
struct Epilogue {
  Scalar alpha, beta;
  Operand source, bias;
  Activation activation;
  int32_t reserved;
};

// A box of equal tiles of one problem, one beside the other: tiles along batch, rows and columns, enumerated in that order.
// One single tile is a box of one.
struct TileRun {
  int32_t problem;
  int32_t strategy;         // row of the catalogue
  int32_t row, col, batch;  // origin: elements, elements, batch index
  int32_t k_begin, k_end;
  int32_t first_tile;  // number of tiles in the runs before this one
  int32_t tiles_y, tiles_x;
  int32_t mirrored;  // C is symmetric: the tiles' transposes are stored too, across its diagonal. On tensor cores with waves of 32 alone
  int32_t reserved;
};

// In place of the buffer of C: the tile is a share of one that is summed over K by several blocks, and its C lies among the call's sums.
inline constexpr int32_t kAmongSums = -1;

// Likewise, on the CPU alone: the next tile of the block, of the same place in C, goes on with this one's sums. So a sum of products is
// computed without a detour through memory.
inline constexpr int32_t kContinued = -2;

// A part of a matrix: where it begins and how it is walked, in elements of its buffer.
struct Part {
  int64_t offset;
  int32_t row_stride, col_stride;
  int32_t buffer;
  int32_t mirrored;  // of C alone: as a run's
};

// What is the same for all matrices of a tile: C[rows x cols] = A[rows x depth] B[depth x cols], and where in its problem it lies.
struct TilePosition {
  int32_t strategy;
  int32_t rows, cols, depth;
  int32_t problem, batch, row, col;
};

// One tile, or one share of its K, with all that a kernel would have to work out from its run and its problem: on a GPU a small call is
// mostly waiting.
struct ReadyTile {
  TilePosition position;
  Part part[3];  // of A, B and C
};

// A tile whose K is split: where the sums of its shares lie, rows of `pitch`, one share `share_stride` behind the other, and where their
// sum goes. Of its position, strategy and depth are those of its first share.
struct SplitTile {
  TilePosition position;
  Part c;
  int64_t first;  // in accumulators, among the call's sums
  int32_t share_stride, shares;
  int32_t pitch;
  int32_t reserved;
};

static_assert(sizeof(Operand) == 48 && sizeof(Problem) == 168 && sizeof(Epilogue) == 168 && sizeof(TileRun) == 48 &&
                  sizeof(ReadyTile) == 104 && sizeof(SplitTile) == 80,
              "programs that were exported hold these layouts: a handler's contract never changes under one name");

// One kernel launch: a contiguous range of blocks. Where block_first is null, block i is tile i.
struct Launch {
  int32_t kernel;  // Kernel
  int32_t first_block, num_blocks;
};

// Everything a kernel is given, beside the buffers. Where num_runs == num_tiles, tile i is run i; otherwise its run is searched.
struct Descriptors {
  const Problem* problems;
  const Epilogue* epilogues;  // one a problem, or null: c = sum
  const TileRun* runs;
  const ReadyTile* tiles;   // in place of runs, or null
  const SplitTile* splits;  // behind them
  const int32_t* block_first;
  int32_t num_problems, num_runs, num_tiles, num_splits, num_blocks;
};

}  // namespace vbgemm
