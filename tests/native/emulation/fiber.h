// A fiber: an execution with a stack of its own that is entered and left explicitly. A switch costs a few nanoseconds, so that a block of
// 256 threads can be emulated from barrier to barrier.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "emulation/race_detector.h"

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace vbgemm::emulation {

// A place where execution has stopped, to be resumed later.
#ifdef __x86_64__
struct StackContext {
  void* stack_top = nullptr;  // the saved registers are on this stack
};
#else
struct StackContext {
  ucontext_t state;
};
#endif

void switch_context(StackContext& from, const StackContext& to);

class Fiber {
 public:
  Fiber();
  ~Fiber() { munmap(stack_, kStackBytes); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() enters `entry`, which must not return.
  void begin(void (*entry)());

  // Runs the fiber until it pauses.
  void resume() {
    thread_.enter();
    switch_context(outside_, inside_);
  }
  void pause() {
    thread_.leave();
    switch_context(inside_, outside_);
  }

 private:
  static constexpr size_t kStackBytes = size_t{1} << 18;
  void* stack_;
  StackContext inside_, outside_;
  RaceDetectorThread thread_;
};

}  // namespace vbgemm::emulation
