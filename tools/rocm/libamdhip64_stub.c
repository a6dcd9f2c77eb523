/* What the ROCm backend calls of libamdhip64.so.7, to link against: nothing works here, and every call says so. */
typedef int hipError_t;
enum { kNoDevice = 100 };

void** __hipRegisterFatBinary(const void* binary) {
  static void* modules;
  (void)binary;
  return &modules;
}
void __hipRegisterFunction(void) {}
void __hipUnregisterFatBinary(void** modules) { (void)modules; }
hipError_t __hipPushCallConfiguration(void) { return kNoDevice; }
hipError_t __hipPopCallConfiguration(void) { return kNoDevice; }
hipError_t hipLaunchKernel(void) { return kNoDevice; }
hipError_t hipFuncGetAttributes(void) { return kNoDevice; }
hipError_t hipMemsetAsync(void) { return kNoDevice; }
const char* hipGetErrorString(hipError_t error) {
  (void)error;
  return "this is jax_vbgemm's stub of libamdhip64.so.7, made for linking only";
}
