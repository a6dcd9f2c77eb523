// The backend that this folder's handlers are compiled for: the CPU (VBGEMM_CPU), a GPU, or an emulated GPU (tests/native/emulation) on
// XLA's CPU platform. `Context` is the FFI context type, and `Where` the type that a handler receives for it.
#pragma once
#include "ffi_common.h"

#ifndef VBGEMM_CPU
#include "gpu/arch/gpu_vendor.h"
#include "gpu/host/status.h"
#endif

namespace vbgemm {

#ifdef VBGEMM_CPU
using Context = ffi::ThreadPool;
#elif defined(VBGEMM_GPU_VENDOR_HEADER)
struct Context {};
#else
using Context = ffi::PlatformStream<Stream>;
#endif

}  // namespace vbgemm

#ifdef VBGEMM_GPU_VENDOR_HEADER
template <>
struct xla::ffi::CtxDecoding<vbgemm::Context> {
  using Type = vbgemm::Stream;
  static std::optional<Type> Decode(const XLA_FFI_Api*, XLA_FFI_ExecutionContext*, DiagnosticEngine&) { return Type{}; }
};
#endif

namespace vbgemm {

using Where = ffi::CtxDecoding<Context>::Type;

// The CPU and the emulation have no command buffers.
#if defined(VBGEMM_CPU) || defined(VBGEMM_GPU_VENDOR_HEADER)
#define VBGEMM_DEFINE_HANDLER(symbol, function, binding) XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, function, binding)
#else
#define VBGEMM_DEFINE_HANDLER(symbol, function, binding) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, function, binding, {::xla::ffi::Traits::kCmdBufferCompatible})
#endif

}  // namespace vbgemm
