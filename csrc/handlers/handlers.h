// The XLA FFI handlers of a backend, which its extension module exports to Python. add_scaled, square_sums, averages, quantize and
// rows_by_index exist on GPUs only.
#pragma once
#include "xla/ffi/api/c_api.h"

extern "C" XLA_FFI_Error* vbgemm_matmul(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* vbgemm_ragged(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* vbgemm_add_scaled(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* vbgemm_square_sums(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* vbgemm_averages(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* vbgemm_quantize(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* vbgemm_rows_by_index(XLA_FFI_CallFrame* call_frame);
