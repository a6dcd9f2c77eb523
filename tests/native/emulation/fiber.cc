// The switch between fibers (fiber.h): in assembly on x86-64, by ucontext elsewhere.
#include "emulation/fiber.h"

#include <cstdint>

namespace vbgemm::emulation {

Fiber::Fiber() : stack_(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  if (stack_ == MAP_FAILED) {
    std::perror("emulation: no memory for a fiber's stack");
    std::abort();
  }
}

#ifdef __x86_64__

// Saves the registers that a call must preserve on the current stack, stores the stack's top in *from, and switches to the stack `to`.
extern "C" void vbgemm_switch_stack(void** from, void* to);
asm(R"(
  .text
  .type vbgemm_switch_stack, @function
vbgemm_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size vbgemm_switch_stack, . - vbgemm_switch_stack
)");

void switch_context(StackContext& from, const StackContext& to) { vbgemm_switch_stack(&from.stack_top, to.stack_top); }

void Fiber::begin(void (*entry)()) {
  // The stack as if `entry` had been called: six registers, the address of `entry` for `ret`, and a return address that is never used.
  constexpr int kRegisters = 6, kWords = kRegisters + 2;
  uintptr_t* top = static_cast<uintptr_t*>(stack_) + kStackBytes / sizeof(uintptr_t) - kWords;
  for (int i = 0; i < kWords; ++i) top[i] = 0;
  top[kRegisters] = reinterpret_cast<uintptr_t>(entry);
  inside_.stack_top = top;
}

#else

void switch_context(StackContext& from, const StackContext& to) { swapcontext(&from.state, &to.state); }

void Fiber::begin(void (*entry)()) {
  getcontext(&inside_.state);
  inside_.state.uc_stack.ss_sp = stack_;
  inside_.state.uc_stack.ss_size = kStackBytes;
  inside_.state.uc_link = nullptr;
  makecontext(&inside_.state, entry, 0);
}

#endif

}  // namespace vbgemm::emulation
