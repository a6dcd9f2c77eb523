// The prototypes behind L17 and L18 (latency.md): a kernel for one tile of the catalogue, of 16-bit row-major operands whose rows are
// aligned, that reads one record for each tile. lean_checked: every thread reads the tile's record of 64 bytes and checks it against the
// table of buffers in the launch parameters; csrc/gpu/tensor/aligned_tile.h is this with the records of 112 bytes that plans have. lean: a
// record with addresses, unchecked. lean_find: the catalogue's lookup. Persistent ones, which are not built, start to copy the next tile
// while they multiply and store this one.
template <int kRow>
struct Lean {
  static constexpr bool kWg = TensorTraits<Kind::bf16, kRow>::kSuitsWgmma;
  using Tr = TensorTraits<Kind::bf16, kRow, kWg>;
  static constexpr int kThreads = Tr::kThreads;
  using LA = typename Tr::template A<true>;
  using LB = typename Tr::template B<false>;
  static constexpr bool kDirect = Tr::kSplit == 1;
  static constexpr int kAcrossA = LA::kItems / 8, kStepA = kThreads / kAcrossA, kCopiesA = LA::kLines / kStepA;
  static constexpr int kAcrossB = LB::kItems / 8, kStepB = kThreads / kAcrossB, kCopiesB = LB::kLines / kStepB;
  static constexpr int bytes(int stages, bool persistent) {
    const int pipe = stages * Tr::kStageElements * 2, planes = kDirect ? 0 : Tr::kSumElements * 2;
    return 1024 + (persistent ? pipe + planes : pipe > planes ? pipe : planes);
  }
};

struct Entry { char* c; int ldc, rows, cols, steps; };

struct alignas(16) Rec2 {
  int64_t a, b, c;  // elements
  int lda, ldb, ldc, depth;
  int16_t rows, cols;
  int16_t buffer[3];
  int16_t pad;
};
static_assert(sizeof(Rec2) == 64);
__device__ inline bool inside(int64_t offset, int down, int across, int stride, int64_t elements) {  // row-major
  const uint64_t last = offset + uint64_t{uint32_t(down - 1)} * uint32_t(stride) + uint32_t(across - 1);
  return (offset >= 0) & (stride >= 0) & (last < uint64_t(elements)) & (offset < elements);
}
struct Checked {
  const KernelParameters& p;
  Rec2 raw;
  __device__ __forceinline__ void fetch(int i) {
    union U { __device__ U() {} uint4 w[4]; Rec2 r; } u;
#pragma unroll
    for (int n = 0; n < 4; ++n) u.w[n] = __ldcg(static_cast<const uint4*>(p.maps) + 4 * i + n);
    raw = u.r;
  }
  __device__ __forceinline__ Rec get() const {
    const int n = p.num_operands, all = p.num_buffers;
    const uint32_t ia = raw.buffer[0], ib = raw.buffer[1], ic = raw.buffer[2];
    bool ok = (ia < uint32_t(all)) & (ib < uint32_t(all)) & (ic < uint32_t(all)) & (int(ic) >= n);
    const Buffer a = p.table[ia < all ? ia : 0], b = p.table[ib < all ? ib : 0], c = p.table[ic < all ? ic : 0];
    ok = ok & inside(raw.a, raw.rows, raw.depth, raw.lda, a.elements) & inside(raw.b, raw.depth, raw.cols, raw.ldb, b.elements) &
         inside(raw.c, raw.rows, raw.cols, raw.ldc, c.elements);
    const int64_t pa = (int64_t)a.data + 2 * raw.a, pb = (int64_t)b.data + 2 * raw.b, pc = (int64_t)c.data + 2 * raw.c;
    ok = ok & (((pa | pb | pc | int64_t(2 * (raw.lda | raw.ldb | raw.ldc | raw.cols | raw.depth))) & 15) == 0);
    return {pa, pb, pc, raw.lda, raw.ldb, raw.ldc, raw.depth, int16_t(ok ? raw.rows : 0), int16_t(ok ? raw.cols : 0), 0};
  }
};
struct Resolved {
  const LeanParameters& p;
  Rec raw;
  __device__ __forceinline__ void fetch(int i) { raw = load_rec(p.recs + i); }
  __device__ __forceinline__ Rec get() const { Rec r = raw; r.a += (int64_t)p.base, r.b += (int64_t)p.base, r.c += (int64_t)p.base; return r; }
};
struct Given {
  Rec raw;
  __device__ __forceinline__ void fetch(int) {}
  __device__ __forceinline__ Rec get() const { return raw; }
};
template <int kRow, int kStages, bool kPersistent, class Source>
__device__ __forceinline__ void lean_body(Source source, int next, int end) {
  using L = Lean<kRow>;
  using Tr = typename L::Tr;
  using LA = typename L::LA;
  using LB = typename L::LB;
  using T = BFloat16;
  extern __shared__ __align__(1024) unsigned char raw[];
  Entry* ring = reinterpret_cast<Entry*>(raw);  // 8 entries
  T* shared = reinterpret_cast<T*>(raw + 1024);
  const int thread = threadIdx.x;
  const int count = end - next;
  const int lineA = thread / L::kAcrossA, itemA = thread % L::kAcrossA * 8, lineB = thread / L::kAcrossB, itemB = thread % L::kAcrossB * 8;
  const T *a, *b;
  int64_t stepA, stepB, advB;
  int limA, limB, left, entries = 0;
  const auto take = [&]() __attribute__((always_inline)) {
    const Rec rec = source.get();
    a = reinterpret_cast<const T*>(rec.a) + lineA * int64_t{rec.lda} + itemA;
    b = reinterpret_cast<const T*>(rec.b) + lineB * int64_t{rec.ldb} + itemB;
    stepA = int64_t{L::kStepA} * rec.lda;
    stepB = int64_t{L::kStepB} * rec.ldb;
    advB = int64_t{Tr::kDepth} * rec.ldb;
    limA = rec.rows - lineA;
    limB = itemB < rec.cols ? lineB : 1 << 20;
    left = rec.depth;
    if (thread == 0) ring[entries % 8] = {reinterpret_cast<char*>(rec.c), rec.ldc, rec.rows, rec.cols, (rec.depth + Tr::kDepth - 1) / Tr::kDepth};
    ++entries;
    ++next;
    if (kPersistent && next < end) source.fetch(next);
  };
  take();
  const auto start_step = [&](T* stage) __attribute__((always_inline)) {
    if (kPersistent && left <= 0 && next < end) take();
    if (left > 0) {
      const int la = itemA < left ? limA : 0, lb = left - limB;
      const T* from = a;
#pragma unroll
      for (int i = 0; i < L::kCopiesA; ++i, from += stepA) cp_async<16>(stage + LA::at(lineA, itemA, i * L::kStepA), from, i * L::kStepA < la);
      from = b;
      T* const sb = stage + Tr::kElementsA;
#pragma unroll
      for (int i = 0; i < L::kCopiesB; ++i, from += stepB) cp_async<16>(sb + LB::at(lineB, itemB, i * L::kStepB), from, i * L::kStepB < lb);
      a += Tr::kDepth;
      b += advB;
      left -= Tr::kDepth;
    }
    cp_async_commit_group();
  };
  await_previous_kernel();
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) start_step(shared + s * Tr::kStageElements);
  using Products = std::conditional_t<L::kWg, WarpgroupMma<Tr, LA, LB>, WarpMma<Tr, LA, LB>>;
  Products products(shared);
  T* const last_stage = shared + (kStages - 1) * Tr::kStageElements;
  T* stage = shared;
  const int warp = thread / 32, lane = thread % 32;
  const WarpPosition<Tr> wave(warp);
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    Sums<Tr> sums = {};
    cp_async_wait_group<kStages - 2>();
    if (L::kWg) fence_proxy_async();
    block_barrier();
    int steps = ring[t % 8].steps;
#pragma unroll 1
    while (true) {
      products.multiply(stage, sums, [&] { start_step(stage == shared ? last_stage : stage - Tr::kStageElements); });
      stage = stage == last_stage ? shared : stage + Tr::kStageElements;
      if (--steps == 0) break;
      cp_async_wait_group<kStages - 2>();
      if (L::kWg) fence_proxy_async();
      block_barrier();
    }
    const Entry e = ring[t % 8];
    if constexpr (L::kDirect) {
      const int g = lane / 4, q = lane % 4;
      T* const c = reinterpret_cast<T*>(e.c);
#pragma unroll
      for (int half = 0; half < 2 * Tr::kBlocksM; ++half) {
        const int row = wave.row + 8 * half + g;
        uint32_t w[Tr::kBlocksN];
#pragma unroll
        for (int j = 0; j < Tr::kBlocksN; ++j) {
          Vector<T, 2> r;
          narrow(sums[half / 2][j][half % 2 * 2], r.element[0]);
          narrow(sums[half / 2][j][half % 2 * 2 + 1], r.element[1]);
          memcpy(&w[j], &r, 4);
        }
        // 16 bytes a lane: words 4q..4q+3 of 16 words (blocks of four columns groups): transposes a 4 x 4 of words among four lanes
        static_assert(Tr::kBlocksN % 4 == 0);
        const auto swap = [&](uint32_t& x, uint32_t& y, int distance, bool upper) __attribute__((always_inline)) {
          const uint32_t give = upper ? x : y, got = __shfl_xor_sync(~0u, give, distance);
          if (upper) x = got; else y = got;
        };
#pragma unroll
        for (int j = 0; j < Tr::kBlocksN; j += 4) {
          uint32_t* const v = w + j;
          swap(v[0], v[1], 1, q & 1), swap(v[2], v[3], 1, q & 1), swap(v[0], v[2], 2, q & 2), swap(v[1], v[3], 2, q & 2);
          const int col = wave.col + 8 * (j + q);
          store_bytes_if<16>(row < e.rows && col < e.cols, c + row * int64_t{e.ldc} + col, v);
        }
      }
    } else {
      float* const planes = reinterpret_cast<float*>(kPersistent ? last_stage + Tr::kStageElements : shared);
      if (!kPersistent || t > 0) block_barrier();
      keep_sums<Tr>(sums, planes);
      block_barrier();
      const Planes<Tr, 4> mine(thread, planes);
      const int n = mine.col < e.cols ? (e.rows - mine.row + mine.kStep - 1) / mine.kStep : 0;
      T* to = reinterpret_cast<T*>(e.c) + mine.row * int64_t{e.ldc} + mine.col;
      for (int i = 0; i < n; ++i, to += int64_t{mine.kStep} * e.ldc) {
        const auto sum = total<Tr>(mine.elements(i), Tr::kSplit);
        Vector<T, 4> r;
#pragma unroll
        for (int v = 0; v < 4; ++v) narrow(sum.element[v], r.element[v]);
        *reinterpret_cast<Vector<T, 4>*>(to) = r;
      }
    }
  }
}

template <int kRow, int kStages, bool kPersistent, int kMin>
__global__ void __launch_bounds__(kTiles[kRow].threads, kMin) lean(const __grid_constant__ LeanParameters p) {
  int next = blockIdx.x, end = next + 1;
  if (kPersistent) next = __ldcg(p.first + blockIdx.x), end = __ldcg(p.first + blockIdx.x + 1);
  Resolved source{p};
  source.fetch(next);
  lean_body<kRow, kStages, kPersistent>(source, next, end);
}
template <int kRow, int kStages, bool kPersistent, int kMin>
__global__ void __launch_bounds__(kTiles[kRow].threads, kMin) lean_checked(const __grid_constant__ KernelParameters p) {
  int next = blockIdx.x, end = next + 1;
  if (kPersistent) next = __ldcg(p.plan.block_first + blockIdx.x), end = __ldcg(p.plan.block_first + blockIdx.x + 1);
  Checked source{p};
  source.fetch(next);
  lean_body<kRow, kStages, kPersistent>(source, next, end);
}
template <int kRow, int kStages, int kMin>
__global__ void __launch_bounds__(kTiles[kRow].threads, kMin) lean_find(const __grid_constant__ KernelParameters p) {
  __shared__ ResolvedTile<BFloat16> place;
  if (threadIdx.x >= 32) prefetch_descriptors<kTiles[kRow].threads - 32>(p.plan, threadIdx.x - 32);
  const TileRange range = tiles_of_block(p, blockIdx.x);
  if (threadIdx.x < 32) {
    find_tile<true>(p, range.tile, [](int id) { return TileExtent{id == kRow ? kTiles[kRow].m : 0, id == kRow ? kTiles[kRow].n : 0, 0, false}; }, place);
  }
  block_barrier();
  if (place.code != 0) return;
  const auto at = [&](int i) { return reinterpret_cast<int64_t>(place.matrix[i].first); };
  const Rec rec{at(0), at(1), at(2), (int)place.matrix[0].row_stride, (int)place.matrix[1].row_stride, (int)place.matrix[2].row_stride, place.depth,
                (int16_t)place.rows, (int16_t)place.cols, 0};
  lean_body<kRow, kStages, false>(Given{rec}, 0, 1);
