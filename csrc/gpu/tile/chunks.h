// How one launch works on many arrays of different sizes: each thread block takes a chunk of one array. The elementwise kernels share this.
#pragma once
#include <algorithm>

#include "gpu/tile/kernel_parameters.h"
#include "gpu/tile/tile_traits.h"

namespace vbgemm {

static_assert(kVectorBytes == kVectorLoadBytes);

inline constexpr int kArrayThreads = 256;
inline constexpr int kVectorsInFlight = 4;  // vectors of each operand in flight

// The number of elements per thread block: the same number of bytes for every element type.
static_assert(kArrayChunkBytes == kArrayThreads * kVectorsInFlight * kVectorBytes);
constexpr __host__ __device__ int chunk_of(size_t element_bytes) { return kArrayChunkBytes / static_cast<int>(element_bytes); }

constexpr int64_t chunks_of(int64_t elements, int chunk) { return elements / chunk + (elements % chunk != 0); }

// Adds as many of the `left` remaining members as one launch can hold. Returns false if not even the first one fits.
template <class Member>
bool take_members(const Member* first, int left, int chunk, Members<Member>& members) {
  int64_t blocks = 0;
  members.count = members.first_block[0] = 0;
  while (members.count < std::min(left, Members<Member>::kMax)) {
    const Member& next = first[members.count];
    blocks += chunks_of(next.elements, chunk);
    if (next.elements < 0 || blocks > max_blocks(kArrayThreads)) break;
    members.member[members.count++] = next;
    members.first_block[members.count] = static_cast<int32_t>(blocks);
  }
  return members.count > 0;
}

// The range of one member's elements that a thread block works on.
struct Chunk {
  int member, count;
  int64_t first;
};

template <int kChunk, class Member>
__device__ inline Chunk chunk_of_block(const Members<Member>& members) {
  const auto block = static_cast<int32_t>(block_index());
  // Finds the last member that begins at this thread block or before. A member without elements has no thread blocks and is never found.
  int low = 0, high = members.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (members.first_block[middle] <= block ? low : high) = middle;
  }
  const int64_t first = static_cast<int64_t>(block - members.first_block[low]) * kChunk, left = members.member[low].elements - first;
  return {low, left < kChunk ? static_cast<int>(left) : kChunk, first};
}

}  // namespace vbgemm
