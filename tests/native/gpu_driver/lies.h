// Corrupts the descriptors of a call, for the checks that no descriptor can cause an access outside the call's buffers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "gpu_driver/random_call.h"

namespace vbgemm::driver {

// Corrupts a plan that is laid out. of_images: also corrupts which tiles are mirrored; the transpose of a tile that should not have one is
// written where the same or another tile writes, which is a race.
template <class T, class Out, class Right>
void corrupt_plan(RandomCall<T, Out, Right>& call, bool of_images) {
  HostPlan& plan = call.plan();
  const auto corrupt = [&call](int one_in, auto&... fields) {
    constexpr int kExtreme = std::numeric_limits<int32_t>::max();
    const auto one = [&](auto& field) {
      if (call.between(1, one_in) == 1) field = call.one_of({-kExtreme - 1, -1, 0, 1, 7, 1000, kExtreme / 2, kExtreme});
    };
    (one(fields), ...);
  };
  // Makes a result go to an operand. (Redirecting it to another result could make two threads write an element at the same time.)
  const auto corrupt_result = [&call](Part& c, int one_in) {
    if (call.between(1, one_in) == 1) c.buffer = call.between(0, call.num_operands() - 1);
  };
  for (TileRun& run : plan.runs) {
    corrupt(3, run.problem, run.tile_id, run.row, run.col, run.batch, run.k_begin, run.k_end, run.first_tile, run.tiles_y, run.tiles_x);
    if (of_images) corrupt(4, run.mirrored);
  }
  for (ReadyTile& tile : plan.tiles) {
    TilePosition& at = tile.position;
    Part &a = tile.part[0], &b = tile.part[1], &c = tile.part[2];
    if (call.between(1, 4) == 1) {  // no other fault, which would be refused first
      corrupt_result(c, 2);
      continue;
    }
    corrupt(12, at.tile_id, at.rows, at.cols, at.depth, at.problem, at.batch, at.row, at.col);
    for (Part* part : {&a, &b}) corrupt(12, part->offset, part->row_stride, part->col_stride, part->buffer);
    corrupt(12, c.offset);  // only the offset: with other strides, two threads could write an element at the same time
    corrupt_result(c, 12);
    if (of_images) corrupt(4, c.mirrored);
  }
  for (SplitTile& tile : plan.splits) {
    TilePosition& at = tile.position;
    corrupt(12, tile.first, tile.c.offset, tile.slice_stride, tile.slices, tile.pitch);
    // A tile's rows and columns are those of C; with more of them, two threads could write an element at the same time.
    corrupt(12, at.problem, at.batch, at.row, at.col);
    corrupt_result(tile.c, 12);
    if (of_images) corrupt(4, tile.c.mirrored);
  }
  for (int32_t& first : plan.block_first) corrupt(3, first);
  for (Launch& launch : plan.launches) launch.num_blocks += 3, launch.first_block -= 1;
}

// Sets buffers that the call does not have, and unknown activations.
template <class T, class Out, class Right>
void corrupt_epilogues(RandomCall<T, Out, Right>& call) {
  for (Epilogue& e : call.plan().epilogues) {
    for (int32_t* field : {&e.alpha.buffer, &e.beta.buffer, &e.source.buffer, &e.bias.buffer}) *field = std::max(*field, 0) + 1000;
    e.activation = static_cast<Activation>(1 << call.between(0, 30));
  }
}

}  // namespace vbgemm::driver
