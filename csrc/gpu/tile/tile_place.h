// From a thread block's index to the matrices that its tile reads and writes. Every index in a descriptor is checked on the way, so that no
// descriptor can cause an access outside the call's buffers. One index is not checked here: the offset of an epilogue's scalar in its
// buffer.
#pragma once
#include "descriptor.h"
#include "gpu/arch/gpu_vendor.h"
#include "gpu/tile/epilogue.h"
#include "gpu/tile/kernel_parameters.h"
#include "gpu/tile/tile_traits.h"

namespace vbgemm {

// How a thread block traverses a rectangle of global memory: in 16-byte vectors along its rows if the address and length of every row
// permit it, otherwise element by element along the contiguous dimension (along the rows if neither dimension is contiguous).
enum class Access : int32_t { vectors, rows, columns };

// A tile's part of one matrix. `first` points to its first element and is null if the tile has no such matrix. Its strides fit 32 bits.
struct MatrixView {
  void* first;
  int64_t row_stride, col_stride;
  Access access;

  // The strides are truncated to 32 bits because a 32 x 32 -> 64-bit product is one instruction.
  template <class T>
  __device__ T* at(uint32_t row, uint32_t col) const {
    const uint64_t down = static_cast<uint32_t>(row_stride), across = static_cast<uint32_t>(col_stride);
    return static_cast<T*>(first) + (row * down + col * across);
  }
};

// The matrices of a tile; the last two, source and bias, belong to its epilogue.
enum { kA, kB, kC, kSource, kBias, kMatrices };

// The range of the plan's tiles that a thread block has yet to compute.
struct TileRange {
  int32_t tile, end;
};

// The value of ResolvedTile::code if there is nothing to compute.
inline constexpr int kNoCode = -1;

// A tile resolved to pointers and extents, ready to be computed: C[rows x cols] = A[rows x depth] B[depth x cols], with an epilogue where
// `fused` is set.
template <class T>
struct ResolvedTile {
  MatrixView matrix[kMatrices];
  void* mirror;  // address of the first element of the mirror image in a symmetric C, or null
  Accumulator<T> alpha, beta;
  Activation activation;
  bool fused;      // the tile has an epilogue; otherwise alpha, beta, activation and the last two matrices are not set
  uint8_t result;  // the DType in which C is stored
  int32_t rows, cols, depth;
  int32_t code;     // which of the kernel's code variants computes the tile; kNoCode if there is nothing to compute
  TileRange range;  // this tile is the first of the range

  __device__ DType result_type() const { return static_cast<DType>(result); }
  __device__ bool stores_sums() const { return sizeof(T) < sizeof(Accumulator<T>) && result_type() == kDTypeOf<Accumulator<T>>; }
};

// Size in bytes of an element of type `result`, one of the types to which sums of products of T may be rounded.
template <class T>
__device__ inline int result_bytes(DType result) {
  int bytes = sizeof(T);
  with_result<T>(result, [&](auto element) __attribute__((always_inline)) { bytes = sizeof element; });
  return bytes;
}

// Ends the thread block's threads if they have no further tile. Falling through to the end of the kernel would jump over the code of other
// tiles, and a jump costs an instruction fetch (docs/design/latency.md, L12).
template <class T>
__device__ inline void leave_after_last(const ResolvedTile<T>& place) {
  if (place.range.tile + 1 >= place.range.end) leave_kernel();
}

struct Extent {
  int rows, cols;
};

// A kernel's view of a catalogue row: the size of its tiles, which code variant computes them, and whether it computes the transpose, C^T =
// B^T A^T.
struct TileExtent {
  int rows, cols, code;
  bool transposed;
};

__device__ inline int clamp(int64_t value, int low, int high) { return static_cast<int>(value < low ? low : value > high ? high : value); }

// Reads a descriptor in words of 16 bytes, or of 8 where its alignment is less; the compiler drops loads of words that are not used. The
// loads may run before the previous kernel in the stream has ended: descriptors are constants of the program, written before its first
// kernel or by a kernel of XLA, none of which lets the next one start before its thread blocks have ended. (A kernel that reads what the
// kernel ahead has written, the list of a ragged product's tiles, is launched so that it starts in order: GpuCall::plan_is_computed.) If
// another library's kernel directly ahead wrote them, this read might return old data. A tile would then be left out or wrong, but nothing
// outside the buffers would be written, and only an epilogue's scalar could be read from outside them.
template <class Record>
__device__ inline Record load_record(const Record* address) {
  constexpr int kWord = alignof(Record) % 16 == 0 ? 16 : 8, kWords = static_cast<int>(sizeof(Record)) / kWord;
  static_assert(sizeof(Record) % kWord == 0);
  union Words {
    __device__ Words() {}
    char word[kWords][kWord];
    Record record;
  } words;
#pragma unroll
  for (int i = 0; i < kWords; ++i) load_bytes_before_wait<kWord>(words.word[i], reinterpret_cast<const char*>(address) + i * kWord);
  return words.record;
}

// Prefetches a table of descriptors to the L2 cache, which all multiprocessors share: each of kThreads threads of every thread block
// requests one cache line.
template <int kThreads, class Record>
__device__ inline void prefetch_table(const Record* table, int64_t count, int thread) {
  constexpr int64_t kLine = 128;
  const int64_t offset = (static_cast<int64_t>(block_index()) * kThreads + thread) * kLine;
  if (offset < count * static_cast<int64_t>(sizeof(Record))) prefetch_to_l2(reinterpret_cast<const char*>(table) + offset);
}

// A tile is known only once its record has been loaded, and a tile of a run only once its problem has been loaded too. Each load may go to
// device memory, so the first thread blocks request all records at once.
template <int kThreads>
__device__ inline void prefetch_descriptors(const Descriptors& plan, int thread) {
  if (plan.tiles) {
    prefetch_table<kThreads>(plan.tiles, plan.num_tiles, thread);
  } else {
    prefetch_table<kThreads>(plan.problems, plan.num_problems, thread);
  }
}

// The range of tiles that thread block `index` of the launch computes.
__device__ inline TileRange tiles_of_block(const KernelParameters& parameters, uint32_t index) {
  const Descriptors& plan = parameters.plan;
  const uint32_t block = static_cast<uint32_t>(parameters.first_block) + index;
  if (block >= static_cast<uint32_t>(plan.num_blocks)) return {0, 0};
  int begin = static_cast<int>(block), end = begin + 1;
  if (plan.block_first) begin = load_before_wait(plan.block_first + block), end = load_before_wait(plan.block_first + block + 1);
  return {begin < 0 ? 0 : begin, end < plan.num_tiles ? end : plan.num_tiles};
}

// Returns the run that holds a tile: the last run whose first tile does not come after it. The lanes of a warp probe the runs together: a
// search among a thousand runs takes two rounds of loads.
__device__ inline int run_of_tile(const Descriptors& plan, int tile) {
  if (plan.num_runs == plan.num_tiles) return tile;
  const int lane = thread_index() % kWaveSize;
  int low = 0, high = plan.num_runs;
  while (high - low > 1) {
    const int stride = (high - low + kWaveSize - 1) / kWaveSize;
    const int64_t probe = low + static_cast<int64_t>(lane) * stride;
    const int before = popc_ballot(probe < high && load_before_wait(&plan.runs[probe].first_tile) <= tile);
    low += (before > 0 ? before - 1 : 0) * stride;
    high = high - low < stride ? high : low + stride;
  }
  return low;
}

// Returns the part of an operand that begins at element (row, col) of op(X)[batch]. If a stride does not fit 32 bits, which cannot happen
// for a valid matrix, the offset becomes -1 and a later check rejects the part.
__device__ inline Part part_of(const Operand& x, const Problem& problem, int batch, int64_t row, int64_t col) {
  int outer = 0, inner = batch;
  if (problem.inner_batch > 0 && inner >= problem.inner_batch) {
    outer = inner / problem.inner_batch;
    inner -= outer * problem.inner_batch;
  }
  const int64_t offset = x.offset + outer * x.batch_stride[0] + inner * x.batch_stride[1] + row * x.row_stride + col * x.col_stride;
  const bool fits_int32 = x.row_stride == static_cast<int32_t>(x.row_stride) && x.col_stride == static_cast<int32_t>(x.col_stride);
  return {fits_int32 ? offset : -1, static_cast<int32_t>(x.row_stride), static_cast<int32_t>(x.col_stride), x.buffer, 0};
}

// Whether rows x cols elements, counted from a part's first element, lie in a buffer of `elements` elements. It has no branches, because
// every tile passes through it.
__device__ inline bool lies_inside(const Part& part, int rows, int cols, int64_t elements) {
  const uint32_t down = static_cast<uint32_t>(rows) - 1, across = static_cast<uint32_t>(cols) - 1;
  // Negative strides and offsets are rejected below. Otherwise each product is below 2^62 and the offset below 2^63, so that the sum does
  // not overflow.
  const uint64_t last = static_cast<uint64_t>(part.offset) + uint64_t{down} * static_cast<uint32_t>(part.row_stride) +
                        uint64_t{across} * static_cast<uint32_t>(part.col_stride);
  const bool forward = (part.offset >= 0) & (part.offset < elements) & ((part.row_stride | part.col_stride) >= 0);
  return (rows == 0) | (cols == 0) | (forward & (last < static_cast<uint64_t>(elements)));
}

// Returns where the transpose of a part of a symmetric matrix is stored, if the part begins at (row, col).
__device__ inline Part mirrored_part(const Part& part, int row, int col) {
  const int64_t distance = static_cast<int64_t>(col) - row;
  return {part.offset + distance * (static_cast<int64_t>(part.row_stride) - part.col_stride), part.row_stride, part.col_stride, part.buffer,
          part.mirrored};
}

// `cols` is the used length of the part's rows, `bytes` the size of an element.
__device__ inline MatrixView view_of(const void* buffer, int bytes, const Part& part, int cols) {
  char* first = static_cast<char*>(const_cast<void*>(buffer)) + part.offset * bytes;
  const uint32_t lengths = static_cast<uint32_t>(part.row_stride) | static_cast<uint32_t>(cols);
  const bool aligned = reinterpret_cast<uintptr_t>(first) % kVectorBytes == 0 && lengths * bytes % kVectorBytes == 0;
  const Access elements = part.row_stride == 1 && part.col_stride != 1 ? Access::columns : Access::rows;
  return {first, part.row_stride, part.col_stride, part.col_stride == 1 && aligned ? Access::vectors : elements};
}

__device__ inline Buffer buffer_of(const KernelParameters& parameters, int index) {
  return parameters.overflow ? load_after_wait(parameters.overflow + index) : parameters.table[index];
}

// Returns a scalar of an epilogue. If it refers to a buffer that the call does not have, its literal value is used. The offset in the
// buffer is not checked here: the handler has checked it in its own copy of the epilogues (check_epilogue, ffi_common.h).
template <class Sum>
__device__ inline Sum value_of(const KernelParameters& parameters, const Scalar& scalar) {
  if (scalar.buffer < 0 || scalar.buffer >= parameters.num_buffers) return make_scalar<Sum>(scalar.real, scalar.imag);
  return load_after_wait(static_cast<const Sum*>(buffer_of(parameters, scalar.buffer).data) + scalar.offset);
}

// Computes a tile's position, and this lane's part of the tile, from the tile's run. Returns false where the run does not fit its problem.
template <class ExtentOf>
__device__ inline bool find_in_run(const Descriptors& plan, int tile, int lane, const ExtentOf& extent_of, TilePosition& at, Part& part) {
  const TileRun run = load_record(plan.runs + run_of_tile(plan, tile));
  if (run.problem < 0 || run.problem >= plan.num_problems) return false;
  const Problem* address = plan.problems + run.problem;
  const Problem problem = load_record(address);
  const Operand x = load_record(lane == kA ? &address->a : lane == kB ? &address->b : &address->c);

  // Position of the tile in its run: batch, row and column; the column varies fastest.
  uint32_t index = static_cast<uint32_t>(tile) - static_cast<uint32_t>(run.first_tile), tile_y = 0, tile_x = 0;
  if (index > 0) {
    const uint32_t tiles_x = run.tiles_x > 0 ? run.tiles_x : 1, tiles_y = run.tiles_y > 0 ? run.tiles_y : 1;
    tile_x = index % tiles_x;
    index /= tiles_x;
    tile_y = index % tiles_y;
    index /= tiles_y;
  }
  const TileExtent extent = extent_of(run.tile_id);
  const int64_t batch = static_cast<int64_t>(run.batch) + index;
  const int64_t row = run.row + static_cast<int64_t>(tile_y) * extent.rows, col = run.col + static_cast<int64_t>(tile_x) * extent.cols;
  if (batch < 0 || batch >= problem.batch || row < 0 || row >= problem.m || col < 0 || col >= problem.n) return false;
  const int whole_depth = problem.k > 0 ? problem.k : 0;
  const int k_begin = clamp(run.k_begin, 0, whole_depth);
  at = {run.tile_id,
        clamp(problem.m - row, 0, extent.rows),
        clamp(problem.n - col, 0, extent.cols),
        clamp(run.k_end, k_begin, whole_depth) - k_begin,
        run.problem,
        static_cast<int32_t>(batch),
        static_cast<int32_t>(row),
        static_cast<int32_t>(col)};
  part = part_of(x, problem, at.batch, lane == kB ? k_begin : row, lane == kA ? k_begin : col);
  part.mirrored = run.mirrored != 0 && at.col + at.cols <= problem.m && at.row + at.rows <= problem.n;
  return true;
}

// Turns a tile's position and this lane's part into the transposed product C^T = B^T A^T: A becomes B^T, and B becomes A^T. All lanes of
// the warp call this together.
__device__ inline void transpose(TilePosition& at, Part& part, int lane) {
  Part other = part;
  shfl_xor<1>(other);
  if (lane < kC) part = other;
  const int32_t row_stride = part.row_stride, rows = at.rows;
  part.row_stride = part.col_stride;
  part.col_stride = row_stride;
  at.rows = at.cols;
  at.cols = rows;
}

// Fills in `place` for a tile. Each of a warp's first lanes handles one matrix: lanes kFirst to kC the product's, and the two lanes after
// them the epilogue's, if any. Whatever the descriptors hold, `place` remains without code (kNoCode) if the tile is larger than `extent`,
// would touch an element outside the call's buffers, or would write to an operand. is_slice: C is a set of split-K partial sums in the
// workspace. kMirrors: whether the kernel can store a tile's transpose as well. kPlain: the tile has no epilogue and no transpose to store,
// and the table of buffers is in the launch parameters. All of this runs before the previous kernel has ended, unless scalars or a buffer
// table have to be read from global memory.
template <bool kPlain, bool kMirrors, int kFirst, class T>
__device__ __forceinline__ void place_tile(const KernelParameters& parameters, TilePosition at, Part part, const TileExtent& extent,
                                           bool is_slice, ResolvedTile<T>& place) {
  const Descriptors& plan = parameters.plan;
  const int lane = thread_index();
  const bool finished = !kPlain && plan.epilogues && !is_slice, optional = finished && (lane == kSource || lane == kBias);
  Scalar factor = {};
  const Epilogue* epilogue = nullptr;
  if (finished) {
    if (at.problem < 0 || at.problem >= plan.num_problems) return;
    epilogue = plan.epilogues + at.problem;
    factor = load_record(lane == kSource ? &epilogue->beta : &epilogue->alpha);
    const Operand x = load_record(lane == kSource ? &epilogue->source : &epilogue->bias);
    if (optional) part = part_of(x, load_record(plan.problems + at.problem), at.batch, at.row, at.col);
  }

  if (at.rows <= 0 || at.rows > extent.rows || at.cols <= 0 || at.cols > extent.cols || at.depth < 0) return;
  if (extent.transposed) transpose(at, part, lane);
  Buffer buffer{nullptr, 0};
  bool is_valid = part.buffer >= (lane == kC ? parameters.num_operands : 0) && part.buffer < parameters.num_buffers;
  if (is_valid) buffer = kPlain ? parameters.table[part.buffer] : buffer_of(parameters, part.buffer);
  if (lane == kC && is_slice) buffer = parameters.sums, is_valid = true;
  const bool inside = is_valid && lies_inside(part, lane == kB ? at.depth : at.rows, lane == kA ? at.depth : at.cols, buffer.elements);
  const bool needed = lane >= kFirst && (lane <= kC || optional);
  if (popc_ballot(needed && !inside && !(optional && part.buffer < 0)) > 0 || (lane > kC && !optional)) return;

  const DType result = is_slice ? kDTypeOf<Accumulator<T>> : parameters.result;
  if (kPlain || is_valid) {
    const int bytes = lane >= kC ? result_bytes<T>(result) : static_cast<int>(sizeof(T));
    place.matrix[lane] = view_of(buffer.data, bytes, part, lane == kA ? at.depth : at.cols);
  } else {
    place.matrix[lane].first = nullptr;
  }
  if (kMirrors && kPlain && lane == kC) place.mirror = nullptr;
  if (kMirrors && !kPlain && lane == kC) {
    const int bytes = result_bytes<T>(result);
    const Part image = mirrored_part(part, at.row, at.col);
    const bool mirrored = part.mirrored != 0 && !is_slice && lies_inside(image, at.cols, at.rows, buffer.elements);
    place.mirror = mirrored ? static_cast<char*>(const_cast<void*>(buffer.data)) + image.offset * bytes : nullptr;
  }
  if (optional) {
    const Accumulator<T> value = value_of<Accumulator<T>>(parameters, factor);
    if (lane == kBias) {
      place.alpha = value;
    } else {
      place.beta = value;
      if (is_zero(value)) place.matrix[kSource].first = nullptr;
    }
  }
  if (lane > 0) return;
  place.fused = finished;
  place.result = static_cast<uint8_t>(result);
  if (finished) place.activation = epilogue->activation;
  place.rows = at.rows;
  place.cols = at.cols;
  place.depth = at.depth;
  place.code = extent.code;
}

// Fills in `place`, except for its walk, from a tile of the plan. The first warp of a thread block calls this. `extent_of` returns the tile
// size of a row of the catalogue, 0 x 0 for a row that this kernel does not hold.
template <bool kMirrors, class T, class ExtentOf>
__device__ inline void find_tile(const KernelParameters& parameters, int index, const ExtentOf& extent_of, ResolvedTile<T>& place) {
  const Descriptors& plan = parameters.plan;
  const int lane = thread_index();
  if (lane == 0) place.code = kNoCode;
  TilePosition at;
  Part part;
  if (plan.tiles) {
    const ReadyTile* tile = plan.tiles + index;
    at = load_record(&tile->position);
    part = load_record(&tile->part[lane < kC ? lane : kC]);
    // Most tiles of small calls. They have a template instance of their own, because code that the warp jumps over delays the first MMA
    // (docs/design/latency.md, L16).
    if (!plan.epilogues && !parameters.overflow && popc_ballot(kMirrors && part.mirrored != 0) == 0) {
      const bool is_slice = popc_ballot(part.buffer == kStoreToWorkspace) > 0;
      return place_tile<true, kMirrors, kA>(parameters, at, part, extent_of(at.tile_id), is_slice, place);
    }
  } else if (!find_in_run(plan, index, lane, extent_of, at, part)) {
    return;
  }
  const bool is_slice = popc_ballot(lane == kC && part.buffer == kStoreToWorkspace) > 0;
  place_tile<false, kMirrors, kA>(parameters, at, part, extent_of(at.tile_id), is_slice, place);
}

}  // namespace vbgemm
