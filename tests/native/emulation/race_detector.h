// What ThreadSanitizer is told if VBGEMM_RACES is defined: each emulated thread is a thread, and only its barriers order it with other
// threads.
//
// The kernels are then compiled with -fsanitize=thread and the emulation without, because the emulation's own accesses are not the
// kernels'.
#pragma once

#ifdef VBGEMM_RACES
#include <sanitizer/tsan_interface.h>
#endif

namespace vbgemm::emulation {

#ifdef VBGEMM_RACES

class RaceDetectorThread {
 public:
  RaceDetectorThread() : inside_(__tsan_create_fiber(0)) {}
  ~RaceDetectorThread() { __tsan_destroy_fiber(inside_); }
  RaceDetectorThread(const RaceDetectorThread&) = delete;
  RaceDetectorThread& operator=(const RaceDetectorThread&) = delete;

  void enter() {
    outside_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(inside_, __tsan_switch_to_fiber_no_sync);
  }
  void leave() { __tsan_switch_to_fiber(outside_, __tsan_switch_to_fiber_no_sync); }

 private:
  void *inside_, *outside_ = nullptr;
};

// Everything before happens_before(place) is ordered before everything after a later happens_after of the same place.
inline void happens_before(const void* place) { __tsan_release(const_cast<void*>(place)); }
inline void happens_after(const void* place) { __tsan_acquire(const_cast<void*>(place)); }

#else

struct RaceDetectorThread {
  void enter() {}
  void leave() {}
};
inline void happens_before(const void*) {}
inline void happens_after(const void*) {}

#endif

}  // namespace vbgemm::emulation
