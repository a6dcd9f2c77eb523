// Copies one operand of a tile, step by step along K, from global memory through registers to shared memory, for CDNA's matrix cores.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/mfma/mfma_traits.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// Distributes the 16-byte vectors of all lines, along K, over the thread block's threads. If the operand is K-major in global memory,
// adjacent threads take adjacent vectors of a line, otherwise the same vector of adjacent lines. A wave's loads coalesce in both cases.
template <class T, class Lines, int kThreads>
class VectorCopy {
 public:
  // lines_are_rows: the lines are rows of the matrix, otherwise its columns. `from` is in shared memory.
  __device__ VectorCopy(const MatrixView& from, bool lines_are_rows)
      : first_(static_cast<const T*>(from.first)),
        line_stride_(lines_are_rows ? from.row_stride : from.col_stride),
        item_stride_(lines_are_rows ? from.col_stride : from.row_stride) {
    const bool aligned = (reinterpret_cast<uintptr_t>(first_) | static_cast<uintptr_t>(line_stride_ * kBytes)) % kVectorBytes == 0;
    along_k_ = item_stride_ == 1;
    whole_ = along_k_ && aligned;
  }

  // Starts loading this thread's vectors of a step that has lines x items elements, at least one. Elements outside are read from the last
  // line or item instead, because the compiler would wait immediately for a load inside a branch.
  __device__ void load(int lines, int items) {
    const auto line_of = [&](const Place& place) { return first_ + (place.line < lines ? place.line : lines - 1) * line_stride_; };
    if (whole_ && items >= kItems) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const Place place(i, true);
        load_bytes<kVectorBytes>(&vectors_[i], line_of(place) + place.vector * kVectorItems);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const Place place(i, along_k_);
        const T* const line = line_of(place);
#pragma unroll
        for (int e = 0; e < kVectorItems; ++e) {
          const int item = place.vector * kVectorItems + e;
          load_bytes<kBytes>(&vectors_[i].element[e], line + (item < items ? item : items - 1) * item_stride_);
        }
      }
    }
    first_ += kItems * item_stride_;
  }

  // Stores the vectors to shared memory. Items outside become zero. Values in lines outside do not matter: they only contribute to sums
  // outside C.
  __device__ void store(T* shared, int items) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const Place place(i, along_k_);
      const int item = place.vector * kVectorItems;
      if (items < kItems) {
#pragma unroll
        for (int e = 0; e < kVectorItems; ++e) vectors_[i].element[e] = item + e < items ? vectors_[i].element[e] : T{};
      }
      if (place.line < Lines::kLines) *reinterpret_cast<Vector16*>(shared + place.line * Lines::kPitch + item) = vectors_[i];
    }
  }

 private:
  static constexpr int kBytes = static_cast<int>(sizeof(T)), kVectorItems = Lines::kVectorItems;
  static constexpr int kItems = Lines::kVectors * kVectorItems;  // in a step
  static constexpr int kAll = Lines::kLines * Lines::kVectors, kCopies = (kAll + kThreads - 1) / kThreads;
  using Vector16 = Vector<T, kVectorItems>;

  // The position of this thread's i-th vector. If there are more threads than vectors, some threads get a line after the last one.
  struct Place {
    int line, vector;

    __device__ Place(int i, bool along) {
      const int index = i * kThreads + thread_index();
      line = along ? index / Lines::kVectors : index < kAll ? index % Lines::kLines : Lines::kLines;
      vector = along ? index % Lines::kVectors : index / Lines::kLines % Lines::kVectors;
    }
  };

  const T* first_;  // the first element of the next step
  int64_t line_stride_, item_stride_;
  bool along_k_, whole_;
  Vector16 vectors_[kCopies];
};

}  // namespace vbgemm
