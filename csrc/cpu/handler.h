// Declares the CPU backend's XLA FFI handlers, which module.cc exports to Python.
#pragma once
#include "xla/ffi/api/c_api.h"

extern "C" XLA_FFI_Error* vbgemm_cpu_matmul(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* vbgemm_ragged(XLA_FFI_CallFrame* call_frame);
