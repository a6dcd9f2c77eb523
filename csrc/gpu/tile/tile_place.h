// From a block's number to the matrices its tile reads and writes: every index that a descriptor holds is checked on the way, but for the
// place of an epilogue's scalar in its buffer.
#pragma once
#include "descriptor.h"
#include "gpu/arch/gpu_vendor.h"
#include "gpu/tile/epilogue.h"
#include "gpu/tile/kernel_parameters.h"
#include "gpu/tile/tile_cut.h"

namespace vbgemm {

// How a thread block goes through a rectangle of global memory: in 16-byte vectors along its rows where every row's address and length
// permit it, else element by element along the dimension that is contiguous (or along the rows, where none is).
enum class Way : int32_t { vectors, rows, columns };

// One matrix's part of a tile, from its first element on; null where there is no such matrix. Its strides fit 32 bits.
struct MatrixView {
  void* first;
  int64_t row_stride, col_stride;
  Way way;

  // A product of two numbers of 32 bits is one instruction.
  template <class T>
  __device__ T* at(uint32_t row, uint32_t col) const {
    const uint64_t down = static_cast<uint32_t>(row_stride), across = static_cast<uint32_t>(col_stride);
    return static_cast<T*>(first) + (row * down + col * across);
  }
};

// The matrices of a tile; the last two are its epilogue's.
enum { kA, kB, kC, kSource, kBias, kMatrices };

// The tiles of the plan that a block has yet to compute.
struct Walk {
  int32_t tile, end;
};

inline constexpr int kNoCode = -1;

// A tile ready to compute: C[rows x cols] = A[rows x depth] B[depth x cols], perhaps with an epilogue.
template <class T>
struct TilePlace {
  MatrixView matrix[kMatrices];
  void* mirror;  // where C has the transpose of the tile's first element, if that is to be stored too; else null
  Accumulator<T> alpha, beta;
  Activation activation;
  bool fused;      // the tile has an epilogue; otherwise what belongs to it is not set
  uint8_t result;  // the DType that is stored
  int32_t rows, cols, depth;
  int32_t code;  // which of the kernel's computes it; kNoCode where there is nothing to compute
  Walk walk;     // it is the first of these

  __device__ DType result_type() const { return static_cast<DType>(result); }
  __device__ bool stores_sums() const { return sizeof(T) < sizeof(Accumulator<T>) && result_type() == kDTypeOf<Accumulator<T>>; }
};

// Bytes of a result, of a type to which sums of T's products may be rounded.
template <class T>
__device__ inline int result_bytes(DType result) {
  int bytes = sizeof(T);
  with_result<T>(result, [&](auto element) __attribute__((always_inline)) { bytes = sizeof element; });
  return bytes;
}

// Ends the block's threads where they have no further tile: to run on to the kernel's end would be to jump over all code between, and to
// wait for instructions there.
template <class T>
__device__ inline void leave_after_last(const TilePlace<T>& place) {
  if (place.walk.tile + 1 >= place.walk.end) leave_kernel();
}

struct Extent {
  int rows, cols;
};

// A row of the catalogue: the size of its tiles, which of the kernel's codes computes them, and whether as C^T = B^T A^T.
struct TileExtent {
  int rows, cols, code;
  bool transposed;
};

__device__ inline int clamp(int64_t value, int low, int high) { return static_cast<int>(value < low ? low : value > high ? high : value); }

// A descriptor read in 8-byte words: they lie at multiples of 8, and a word that is not used is not loaded. Under the kernel ahead, too:
// descriptors are constants of the program, written before its first kernel, and a kernel of ours between has waited for that before it let
// this one come. Were they written by somebody else's kernel directly ahead, what is read might be old: a tile would be left out or wrong,
// but nothing written outside the buffers nor, but for an epilogue's scalar, read there.
template <class Record>
__device__ inline Record load_record(const Record* address) {
  static_assert(sizeof(Record) % 8 == 0);
  union Words {
    __device__ Words() {}
    uint64_t word[sizeof(Record) / 8];
    Record record;
  } words;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Record) / 8); ++i) {
    words.word[i] = load_early(reinterpret_cast<const uint64_t*>(address) + i);
  }
  return words.record;
}

// A table of descriptors on its way to the second level's cache, which is what all kernels see: each thread of the grid asks for a line.
template <int kThreads, class Record>
__device__ inline void prefetch_table(const Record* table, int64_t count) {
  constexpr int64_t kLine = 128;
  const int64_t offset = (static_cast<int64_t>(block_index()) * kThreads + thread_index()) * kLine;
  if (offset < count * static_cast<int64_t>(sizeof(Record))) prefetch_to_l2(reinterpret_cast<const char*>(table) + offset);
}

// All tiles of this block.
__device__ inline Walk tiles_of_block(const KernelParameters& parameters) {
  const Descriptors& plan = parameters.plan;
  const uint32_t block = static_cast<uint32_t>(parameters.first_block) + block_index();
  if (block >= static_cast<uint32_t>(plan.num_blocks)) return {0, 0};
  int begin = static_cast<int>(block), end = begin + 1;
  if (plan.block_first) begin = load_early(plan.block_first + block), end = load_early(plan.block_first + block + 1);
  return {begin < 0 ? 0 : begin, end < plan.num_tiles ? end : plan.num_tiles};
}

// The run that holds a tile: the last whose first tile is not beyond it. The lanes of a wave probe the runs together, so that a search
// among a thousand takes two rounds of loads.
__device__ inline int run_of_tile(const Descriptors& plan, int tile) {
  if (plan.num_runs == plan.num_tiles) return tile;
  const int lane = thread_index() % kWaveSize;
  int low = 0, high = plan.num_runs;
  while (high - low > 1) {
    const int stride = (high - low + kWaveSize - 1) / kWaveSize;
    const int64_t probe = low + static_cast<int64_t>(lane) * stride;
    const int before = count_lanes(probe < high && load_early(&plan.runs[probe].first_tile) <= tile);
    low += (before > 0 ? before - 1 : 0) * stride;
    high = high - low < stride ? high : low + stride;
  }
  return low;
}

// The part of an operand from element (row, col) of op(X)[batch] on. One with a stride that no matrix has lies nowhere.
__device__ inline Part part_of(const Operand& x, const Problem& problem, int batch, int64_t row, int64_t col) {
  int outer = 0, inner = batch;
  if (problem.inner_batch > 0 && inner >= problem.inner_batch) {
    outer = inner / problem.inner_batch;
    inner -= outer * problem.inner_batch;
  }
  const int64_t offset = x.offset + outer * x.batch_stride[0] + inner * x.batch_stride[1] + row * x.row_stride + col * x.col_stride;
  const bool sane = x.row_stride == static_cast<int32_t>(x.row_stride) && x.col_stride == static_cast<int32_t>(x.col_stride);
  return {sane ? offset : -1, static_cast<int32_t>(x.row_stride), static_cast<int32_t>(x.col_stride), x.buffer, 0};
}

// Whether rows x cols elements from a part's first on lie in a buffer of so many. (Without jumps, as all tiles come this way.)
__device__ inline bool lies_inside(const Part& part, int rows, int cols, int64_t elements) {
  const uint32_t down = static_cast<uint32_t>(rows) - 1, across = static_cast<uint32_t>(cols) - 1;
  // Each product is below 2^62, an offset too.
  const uint64_t last = static_cast<uint64_t>(part.offset) + uint64_t{down} * static_cast<uint32_t>(part.row_stride) +
                        uint64_t{across} * static_cast<uint32_t>(part.col_stride);
  const bool forward = (part.offset >= 0) & (part.offset < elements) & ((part.row_stride | part.col_stride) >= 0);
  return (rows == 0) | (cols == 0) | (forward & (last < static_cast<uint64_t>(elements)));
}

// Where the transpose of the part of a symmetric matrix from (row, col) on lies.
__device__ inline Part mirrored_part(const Part& part, int row, int col) {
  const int64_t across = static_cast<int64_t>(col) - row;
  return {part.offset + across * (static_cast<int64_t>(part.row_stride) - part.col_stride), part.row_stride, part.col_stride, part.buffer,
          part.mirrored};
}

// `cols` is how far the part's rows will be used, in elements of `bytes`.
__device__ inline MatrixView view_of(const void* buffer, int bytes, const Part& part, int cols) {
  char* first = static_cast<char*>(const_cast<void*>(buffer)) + part.offset * bytes;
  const uint32_t lengths = static_cast<uint32_t>(part.row_stride) | static_cast<uint32_t>(cols);
  const bool aligned = reinterpret_cast<uintptr_t>(first) % kVectorBytes == 0 && lengths * bytes % kVectorBytes == 0;
  const Way elements = part.row_stride == 1 && part.col_stride != 1 ? Way::columns : Way::rows;
  return {first, part.row_stride, part.col_stride, part.col_stride == 1 && aligned ? Way::vectors : elements};
}

__device__ inline Buffer buffer_of(const KernelParameters& parameters, int index) {
  return parameters.overflow ? load_awaited(parameters.overflow + index) : parameters.table[index];
}

// A scalar of an epilogue; one in a buffer that the call does not have counts as its literal value. Where in the buffer it lies the handler
// has checked, in its copy of the epilogues (check_epilogue, ../ffi_common.h), and nothing does here.
template <class Sum>
__device__ inline Sum value_of(const KernelParameters& parameters, const Scalar& scalar) {
  if (scalar.buffer < 0 || scalar.buffer >= parameters.num_buffers) return make_scalar<Sum>(scalar.real, scalar.imag);
  return load_awaited(static_cast<const Sum*>(buffer_of(parameters, scalar.buffer).data) + scalar.offset);
}

// A tile's position and the part of it that this lane sees to, worked out from its run. False where the run is not a run of its problem.
template <class ExtentOf>
__device__ inline bool find_in_run(const Descriptors& plan, int tile, int lane, const ExtentOf& extent_of, TilePosition& at, Part& part) {
  const TileRun run = load_record(plan.runs + run_of_tile(plan, tile));
  if (run.problem < 0 || run.problem >= plan.num_problems) return false;
  const Problem* address = plan.problems + run.problem;
  const Problem problem = load_record(address);
  const Operand x = load_record(lane == kA ? &address->a : lane == kB ? &address->b : &address->c);

  // Position in the run: batch, row, column, the column fastest.
  uint32_t index = static_cast<uint32_t>(tile) - static_cast<uint32_t>(run.first_tile), tile_y = 0, tile_x = 0;
  if (index > 0) {
    const uint32_t tiles_x = run.tiles_x > 0 ? run.tiles_x : 1, tiles_y = run.tiles_y > 0 ? run.tiles_y : 1;
    tile_x = index % tiles_x;
    index /= tiles_x;
    tile_y = index % tiles_y;
    index /= tiles_y;
  }
  const TileExtent extent = extent_of(run.strategy);
  const int64_t batch = static_cast<int64_t>(run.batch) + index;
  const int64_t row = run.row + static_cast<int64_t>(tile_y) * extent.rows, col = run.col + static_cast<int64_t>(tile_x) * extent.cols;
  if (batch < 0 || batch >= problem.batch || row < 0 || row >= problem.m || col < 0 || col >= problem.n) return false;
  const int whole_depth = problem.k > 0 ? problem.k : 0;
  const int k_begin = clamp(run.k_begin, 0, whole_depth);
  at = {run.strategy,
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

// A tile's position and a lane's part of it, seen as C^T = B^T A^T: A becomes B^T, and B A^T. All lanes of the wave call this.
__device__ inline void transpose(TilePosition& at, Part& part, int lane) {
  Part other = part;
  swap_lanes<1>(other);
  if (lane < kC) part = other;
  const int32_t row_stride = part.row_stride, rows = at.rows;
  part.row_stride = part.col_stride;
  part.col_stride = row_stride;
  at.rows = at.cols;
  at.cols = rows;
}

// Fills in a tile of which each of a wave's first lanes knows its matrix's part: lanes kFirst to kC, and the two after them see to the
// epilogue's, where there is one. Whatever the descriptors hold, `place` stays without code where the tile is larger than `extent`, would
// touch an element outside the call's buffers, or write to an operand. is_share: C lies among the call's sums. kMirrors: whether the kernel
// can store a tile's transpose too. All this is done under the kernel ahead, unless there are scalars or buffers to be read from memory.
template <bool kMirrors, int kFirst, class T>
__device__ __forceinline__ void place_tile(const KernelParameters& parameters, TilePosition at, Part part, const TileExtent& extent,
                                           bool is_share, TilePlace<T>& place) {
  const Descriptors& plan = parameters.plan;
  const int lane = thread_index();
  const bool finished = plan.epilogues && !is_share, optional = finished && (lane == kSource || lane == kBias);
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
  bool there = part.buffer >= (lane == kC ? parameters.num_operands : 0) && part.buffer < parameters.num_buffers;
  if (there) buffer = buffer_of(parameters, part.buffer);
  if (lane == kC && is_share) buffer = parameters.sums, there = true;
  const bool inside = there && lies_inside(part, lane == kB ? at.depth : at.rows, lane == kA ? at.depth : at.cols, buffer.elements);
  const bool needed = lane >= kFirst && (lane <= kC || optional);
  if (count_lanes(needed && !inside && !(optional && part.buffer < 0)) > 0 || (lane > kC && !optional)) return;

  const DType result = is_share ? kDTypeOf<Accumulator<T>> : parameters.result;
  if (there) {
    const int bytes = lane >= kC ? result_bytes<T>(result) : static_cast<int>(sizeof(T));
    place.matrix[lane] = view_of(buffer.data, bytes, part, lane == kA ? at.depth : at.cols);
  } else {
    place.matrix[lane].first = nullptr;
  }
  if (kMirrors && lane == kC) {
    const int bytes = result_bytes<T>(result);
    const Part image = mirrored_part(part, at.row, at.col);
    const bool mirrored = part.mirrored != 0 && !is_share && lies_inside(image, at.cols, at.rows, buffer.elements);
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

// Fills in `place`, but for its walk, with a tile of the plan. The first wave of a block calls this. `extent_of` gives the size of a
// strategy's tiles, 0 x 0 for one that this kernel lacks.
template <bool kMirrors, class T, class ExtentOf>
__device__ inline void find_tile(const KernelParameters& parameters, int index, const ExtentOf& extent_of, TilePlace<T>& place) {
  const Descriptors& plan = parameters.plan;
  const int lane = thread_index();
  if (lane == 0) place.code = kNoCode;
  TilePosition at;
  Part part;
  if (plan.tiles) {
    const ReadyTile* tile = plan.tiles + index;
    at = load_record(&tile->position);
    part = load_record(&tile->part[lane < kC ? lane : kC]);
  } else if (!find_in_run(plan, index, lane, extent_of, at, part)) {
    return;
  }
  const bool is_share = count_lanes(lane == kC && part.buffer == kAmongSums) > 0;
  place_tile<kMirrors, kA>(parameters, at, part, extent_of(at.strategy), is_share, place);
}

}  // namespace vbgemm
