// Runs ragged products on the CPU. The sizes of the groups are read when the call runs, groups are divided into pieces of about equal work,
// and the caller and helpers from a thread pool claim the pieces. No operand is expanded or copied as a whole.
#pragma once
#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/parallel_for.h"
#include "ragged.h"

namespace vbgemm {

// The product of one group, c = scale activation(a b + bias). k = 0 without an epilogue means rows without weights, which become zero.
struct GroupProduct {
  int64_t m, n, k;
  Matrix a, b, c;
  Matrix bias, scale;  // per row; addressed like c; data is null if absent
};

// The products of a call's groups, divided into pieces.
class GroupWalk {
 public:
  GroupWalk(Kind kind, DType out_dtype, Activation activation) : kind_(kind), out_dtype_(out_dtype), activation_(activation) {}

  void add(const GroupProduct& product);
  void cut(int64_t threads);                      // to be called after the last product; makes enough pieces for the threads
  void allow_streaming() { may_stream_ = true; }  // permits streaming stores

  int64_t pieces() const { return first_piece_.empty() ? 0 : first_piece_.back(); }
  double work() const { return work_; }  // in multiply-adds
  void run(int64_t begin, int64_t end) const;

 private:
  const Kind kind_;
  const DType out_dtype_;
  const Activation activation_;
  std::vector<GroupProduct> products_;
  std::vector<int64_t> first_piece_;  // of each product, and one past the last piece
  int64_t rows_ = 1, cols_ = 1;       // maximum size of a piece
  double work_ = 0;
  bool may_stream_ = false;
};

// Adds the products of a call. No group size, whatever its value, leads outside the call's buffers.
void add_products(const RaggedCall& call, GroupWalk& walk);

// Pool: any type with num_threads() and Schedule(f), such as XLA's FFI thread pool; may be null.
template <class Pool>
void run(const RaggedCall& call, Pool* pool) {
  GroupWalk walk(call.kind, call.out_dtype, call.activation);
  add_products(call, walk);
  const int64_t available = pool ? pool->num_threads() : 1;
  walk.cut(available);
  const int64_t threads = threads_for(walk.work(), available < walk.pieces() ? available : walk.pieces());
  parallel_for([&walk](int64_t begin, int64_t end) { walk.run(begin, end); }, walk.pieces(), threads, pool);
}

}  // namespace vbgemm
