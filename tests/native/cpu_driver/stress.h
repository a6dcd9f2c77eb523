// A stress test: many concurrent calls on one pool.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "cpu_driver/check.h"

namespace vbgemm::driver {

// Plans and buffers are destroyed as soon as each call returns, so that a sanitizer catches a helper that starts late and still uses them.
inline void stress(double seconds) {
  Pool pool(2);
  std::atomic<int64_t> calls{0}, wrong{0};
  Workload model = random_workload(Kind::f32, DType::f32, 6);
  model.epilogues.clear();
  Problem big = model.problems[0];
  big.m = big.n = 150, big.k = 40, big.batch = big.inner_batch = 1;
  big.a = lay_out(model, DType::f32, big, big.m, big.k, false, true);
  big.b = lay_out(model, DType::f32, big, big.k, big.n, false, true);
  big.c = lay_out(model, DType::f32, big, big.m, big.n, true, true);
  model.problems.push_back(big);
  model.k_ranges.emplace_back(0, big.k);
  const PlanData plan = make_plan(model, 0, true, false, 0);
  run(make_call(model, plan).call, static_cast<Pool*>(nullptr));
  const std::vector<Bytes> expected = model.buffers;
  std::vector<std::thread> callers;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (int i = 0; i < 32; ++i) {
    callers.emplace_back([&] {
      while (std::chrono::steady_clock::now() < end) {
        auto w = std::make_unique<Workload>(model);
        auto mine = std::make_unique<PlanData>(plan);
        for (const Problem& p : w->problems) std::fill(w->buffers[p.c.buffer].begin(), w->buffers[p.c.buffer].end(), kUntouched);
        run(make_call(*w, *mine).call, &pool);
        wrong += w->buffers != expected;
        ++calls;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  failures += wrong != 0;
  std::printf("stress: %ld calls, %ld wrong\n", calls.load(), wrong.load());
}

}  // namespace vbgemm::driver
