// Copies one operand of a tensor tile, one K step after another, from global to shared memory.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/tensor/tensor_traits.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// Whether all lines begin at multiples of 16 bytes.
template <class T>
__device__ inline bool lines_are_aligned(const MatrixView& x, int64_t line_stride) {
  return (reinterpret_cast<uintptr_t>(x.first) | static_cast<uintptr_t>(line_stride * static_cast<int>(sizeof(T)))) % kVectorBytes == 0;
}

// How an operand of a tile is copied. vectors: in 16-byte vectors. elements: element by element. shifted: in the aligned 16-byte vectors
// that contain a line's elements, after which each line is shifted into place. The last is for 2-byte elements, which are too small for an
// asynchronous copy of their own. (Bytes are copied element by element instead, four adjacent ones per thread.) across: element by element,
// transposing a matrix that is not contiguous along K into K-major lines (its line stride is 1).
enum class CopyMode { vectors, elements, shifted, across };

// Returns the fastest mode for an operand's rows x cols elements. Its lines are columns where columns are contiguous, and rows otherwise.
template <class T>
__device__ inline CopyMode copy_mode(const MatrixView& x, int rows, int cols) {
  if (x.access == Access::vectors) return CopyMode::vectors;
  constexpr int kVectorItems = kVectorBytes / static_cast<int>(sizeof(T));
  const bool down = x.access == Access::columns;
  const int64_t line_stride = down ? x.col_stride : x.row_stride;
  if ((down ? x.row_stride : x.col_stride) != 1) return CopyMode::elements;
  if ((down ? rows : cols) % kVectorItems == 0 && lines_are_aligned<T>(x, line_stride)) return CopyMode::vectors;
  return sizeof(T) == 2 && line_stride >= kVectorItems ? CopyMode::shifted : CopyMode::elements;
}

// A copy mode that is a compile-time constant, and one that is only known at run time.
template <CopyMode kWay>
struct StaticMode {
  __device__ constexpr operator CopyMode() const { return kWay; }
};
struct RuntimeMode {
  CopyMode mode;
  __device__ operator CopyMode() const { return mode; }
};

// kLinesAreRows: the lines are rows of the matrix, otherwise its columns. kKeepsAddresses: strides and addresses are kept in registers;
// otherwise each step reads them from `from` in shared memory again.
template <class T, class Lines, bool kLinesAreRows, int kThreads, bool kKeepsAddresses, class Mode>
class LineCopy {
 public:
  __device__ LineCopy(const MatrixView& from, Mode mode)
      : from_(from), thread_(thread_index()), stride_(kLinesAreRows ? from.row_stride : from.col_stride), mode_(mode) {
    const int thread = thread_;
    int line = mode_ == CopyMode::elements ? ByElements::line(thread) : ByVectors::line(thread);
    int item = mode_ == CopyMode::elements ? ByElements::item(thread) : ByVectors::item(thread);
    if constexpr (Lines::kMayTranspose) {
      if (mode_ == CopyMode::across) line = Across::line(thread), item = Across::item(thread);
    }
    source_ = from.template at<const T>(kLinesAreRows ? line : item, kLinesAreRows ? item : line);
  }

  // Starts the copies of one step. Elements outside the step's first lines x items become zero.
  __device__ void start(T* shared, int lines, int items) const {
    switch (mode_) {
      case CopyMode::vectors: return start_vectors(shared, lines, items);
      case CopyMode::elements: return start_elements(shared, lines, items);
      case CopyMode::shifted:
        if constexpr (kBytes == 2) start_shifted(shared, lines, items);
        return;
      case CopyMode::across:
        if constexpr (Lines::kMayTranspose) start_across(shared, lines, items);
    }
  }

  // Required between the arrival of this thread's copies of a step and the barrier that makes them visible to the thread block. It zeroes
  // the elements of each line after `items` if the copy did not.
  __device__ void finish(T* shared, int items) const {
    if constexpr (kBytes == 2) {
      if (mode_ == CopyMode::shifted) shift_vectors(shared, items);
    }
  }

  // Required between the arrival of a step's copies and this thread's calls of visit(): other threads may have copied its vectors.
  __device__ void wait_for_visits() const {
    if (mode_ != CopyMode::vectors) block_barrier();
  }

  // Calls action(Vector<T, kVectorItems>&) for each vector of a step that this thread is responsible for.
  template <class Action>
  __device__ void visit(T* shared, const Action& action) const {
#pragma unroll
    for (int i = 0; i < ByVectors::kCopies; ++i) {
      action(*reinterpret_cast<Vector<T, kVectorItems>*>(place_of<ByVectors>(shared, thread(), i)));
    }
  }

  __device__ void advance(int64_t elements) { source_ += elements; }

 private:
  static constexpr int kBytes = static_cast<int>(sizeof(T));

  // Adjacent threads copy adjacent vectors (or elements) of a line; a thread's copies are kStep lines apart.
  template <int kWidth>
  struct Spread {
    static constexpr int kAcross = Lines::kItems / kWidth, kStep = kThreads / kAcross, kCopies = Lines::kLines / kStep;
    static_assert(kThreads % kAcross == 0 && Lines::kLines % kStep == 0);

    __device__ static int line(int thread) { return thread / kAcross; }
    __device__ static int item(int thread) { return thread % kAcross * kWidth; }
  };
  static constexpr int kVectorItems = kVectorBytes / kBytes;
  using ByVectors = Spread<kVectorItems>;
  using ByElements = Spread<kBytes == 1 ? 4 : 1>;

  // A warp copies sixteen lines by two items at a time, or fewer lines if there are too few. This is a two-way bank conflict in
  // SwizzledLines. Eight lines by four items would have none, but touch twice as many cache lines and take longer; so do 32 lines
  // (docs/design/kernels.md, K7).
  struct Across {
    static constexpr int kLinesPerWarp = Lines::kLines * kLanes / kThreads;
    static constexpr int kWarpLines = kLinesPerWarp < 16 ? kLinesPerWarp : 16, kWarpItems = kLanes / kWarpLines;
    static constexpr int kStep = kThreads / kWarpItems, kCopies = Lines::kLines / kStep;  // along the lines

    __device__ static int line(int thread) { return thread / kLanes * kWarpLines + thread % kWarpLines; }
    __device__ static int item(int thread) { return thread / kWarpLines % kWarpItems; }
  };

  __device__ int thread() const { return kKeepsAddresses ? thread_ : thread_index(); }
  __device__ int64_t line_stride() const { return kKeepsAddresses ? stride_ : kLinesAreRows ? from_.row_stride : from_.col_stride; }
  __device__ int64_t item_stride() const { return kLinesAreRows ? from_.col_stride : 1; }  // lines are columns where these are contiguous

  // The destination of the thread's copy number `copy`, `behind` elements further on in its line.
  template <class Spread>
  __device__ static T* place_of(T* shared, int thread, int copy, int behind = 0) {
    return shared + Lines::at(Spread::line(thread), Spread::item(thread) + behind, copy * Spread::kStep);
  }

  __device__ void start_vectors(T* shared, int lines, int items) const {
    const int thread = this->thread(), limit = ByVectors::item(thread) < items ? lines - ByVectors::line(thread) : 0;
    const T* from = source_;
    const int64_t step = ByVectors::kStep * line_stride();
#pragma unroll
    for (int i = 0; i < ByVectors::kCopies; ++i, from += step) {
      cp_async<kVectorBytes>(place_of<ByVectors>(shared, thread, i), from, i * ByVectors::kStep < limit);
    }
  }

  // Copies the first `count` elements of a vector; the others become zero.
  __device__ static void start_part(T* to, const T* from, int count) {
#pragma unroll
    for (int e = 0; e < kVectorItems; ++e) cp_async<kBytes>(to + e, from + e, e < count);
  }

  // Four bytes of a line are stored together, because there is no asynchronous copy of a byte. Strides are positive and fit 32 bits.
  __device__ void start_bytes(T* shared, int lines, int items) const {
    const int thread = this->thread(), left = items - ByElements::item(thread), limit = lines - ByElements::line(thread);
    const uint32_t next = static_cast<uint32_t>(item_stride());
    const T* from = source_;
    const int64_t step = ByElements::kStep * line_stride();
#pragma unroll kKeepsAddresses ? 4 : 1  // more loads in flight if there are registers for them
    for (int i = 0; i < ByElements::kCopies; ++i, from += step) {
      gather_four_bytes(place_of<ByElements>(shared, thread, i), from, next, i * ByElements::kStep < limit ? left : 0);
    }
  }

  __device__ void start_elements(T* shared, int lines, int items) const {
    if constexpr (kBytes == 1) {
      start_bytes(shared, lines, items);
      return;
    }
    const int thread = this->thread(), limit = ByElements::item(thread) < items ? lines - ByElements::line(thread) : 0;
    const T* from = source_;
    const int64_t step = ByElements::kStep * line_stride();
#pragma unroll kBytes == 2 ? 4 : ByElements::kCopies  // 2-byte elements are staged in registers, which bounds the unrolling
    for (int i = 0; i < ByElements::kCopies; ++i, from += step) {
      cp_async<kBytes>(place_of<ByElements>(shared, thread, i), from, i * ByElements::kStep < limit);
    }
  }

  __device__ void start_across(T* shared, int lines, int items) const {
    static_assert(Lines::kLines % Across::kStep == 0 && Lines::kItems % Across::kWarpItems == 0);
    const int thread = this->thread(), line = Across::line(thread), item = Across::item(thread), left = items - item;
    const T* from = source_;
    const int64_t step = Across::kWarpItems * item_stride();
#pragma unroll
    for (int behind = 0; behind < Lines::kItems; behind += Across::kWarpItems, from += step) {
      const int limit = behind < left ? lines - line : 0;
#pragma unroll
      for (int i = 0; i < Across::kCopies; ++i) {
        const int ahead = i * Across::kStep;
        cp_async<kBytes>(shared + Lines::at(line, item + behind, ahead), from + ahead, ahead < limit);
      }
    }
  }

  // The misalignment of this thread's lines, in elements after a 16-byte boundary. It is the same for all of its lines and all K steps.
  __device__ int shift() const {
    static_assert(ByVectors::kStep % kVectorItems == 0);
    return static_cast<int>(reinterpret_cast<uintptr_t>(source_) / kBytes % kVectorItems);
  }

  // A line's first vector may begin before the line, and its last vector may end after it. The extra elements belong to another line or to
  // the gap between lines, so reading them is safe, except for the last line, whose end is copied element by element. A shifted line has
  // one vector more than an aligned line; the thread that copies the last vector copies it too.
  __device__ void start_shifted(T* shared, int lines, int items) const {
    const int thread = this->thread(), shift = this->shift(), item = ByVectors::item(thread), limit = lines - ByVectors::line(thread);
    const int left = shift + items - item;
    const T* const first = source_ - shift;
    const T* from = first;
    const int64_t step = ByVectors::kStep * line_stride();
    const bool last = item == Lines::kItems - kVectorItems;
    const int place = last && left > kVectorItems ? kVectorItems : 0, count = left - place;
    const bool is_part = count > 0 && count < kVectorItems;
    const int last_line = limit - 1, apart = is_part ? last_line : -1;  // the line whose last vector is copied by elements
#pragma unroll
    for (int i = 0; i < ByVectors::kCopies; ++i, from += step) {
      const int line = i * ByVectors::kStep, there = line < limit ? left : 0;
      const auto copy = [&](int behind) {
        if (line != apart || place != behind) {
          cp_async<kVectorBytes>(place_of<ByVectors>(shared, thread, i, behind), from + behind, there > behind);
        }
      };
      copy(0);
      if (last) copy(kVectorItems);
    }
    if (!is_part || last_line < 0 || last_line % ByVectors::kStep != 0) return;
    const int copy = last_line / ByVectors::kStep;
    if (copy < ByVectors::kCopies) start_part(place_of<ByVectors>(shared, thread, copy, place), first + copy * step + place, count);
  }

  using Words = Vector<uint32_t, 4>;

  // Returns the eight 2-byte elements from the `shift`-th on. (Written without loops, as is the code below: nvcc's optimizer walks the
  // whole kernel for every loop that it unrolls, and this code occurs in a kernel a hundred times.)
  __device__ static Words shifted_vector(const Words& low, const Words& high, int shift) {
    const bool by_two = shift & 4, by_one = shift & 2;  // words
    const uint32_t* const l = low.element;
    const uint32_t* const h = high.element;
    const uint32_t a0 = by_two ? l[2] : l[0], a1 = by_two ? l[3] : l[1], a2 = by_two ? h[0] : l[2];
    const uint32_t a3 = by_two ? h[1] : l[3], a4 = by_two ? h[2] : h[0], a5 = by_two ? h[3] : h[1];
    const uint32_t b0 = by_one ? a1 : a0, b1 = by_one ? a2 : a1, b2 = by_one ? a3 : a2, b3 = by_one ? a4 : a3, b4 = by_one ? a5 : a4;
    const int bits = shift % 2 * 16;
    return {{shifted_word(b0, b1, bits), shifted_word(b1, b2, bits), shifted_word(b2, b3, bits), shifted_word(b3, b4, bits)}};
  }

  // Returns the first `count` elements of a vector, followed by zeros.
  __device__ static Words first_items(const Words& x, int count) {
    return {{first_of_word<0>(x, count), first_of_word<1>(x, count), first_of_word<2>(x, count), first_of_word<3>(x, count)}};
  }
  template <int kWord>
  __device__ static uint32_t first_of_word(const Words& x, int count) {
    const uint32_t word = x.element[kWord];
    return count > 2 * kWord + 1 ? word : count > 2 * kWord ? word & 0xffffu : 0;
  }

  // Each thread shifts the vectors that it has copied. A line belongs to one warp, so warp barriers are sufficient.
  __device__ void shift_vectors(T* shared, int items) const {
    static_assert(kLanes % ByVectors::kAcross == 0);
    const int shift = this->shift();
    const int thread = this->thread();
    wave_barrier();
#pragma unroll
    for (int i = 0; i < ByVectors::kCopies; ++i) {
      Words* const words = reinterpret_cast<Words*>(place_of<ByVectors>(shared, thread, i));
      const Words low = *words, high = *reinterpret_cast<const Words*>(place_of<ByVectors>(shared, thread, i, kVectorItems));
      wave_barrier();
      Words result = shifted_vector(low, high, shift);
      if (items < Lines::kItems) result = first_items(result, items - ByVectors::item(thread));
      *words = result;
    }
  }

  const MatrixView& from_;
  int thread_;
  int64_t stride_;
  const T* source_;  // this thread's first element of the next step
  Mode mode_;
};

}  // namespace vbgemm
