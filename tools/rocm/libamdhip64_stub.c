/* What the ROCm backend and the stand-alone driver call of libamdhip64.so.7, to link against: every call is an error. */
typedef int hipError_t;

void** __hipRegisterFatBinary(const void* binary) {
  static void* modules;
  (void)binary;
  return &modules;
}
void __hipRegisterFunction(void) {}
void __hipUnregisterFatBinary(void** modules) { (void)modules; }

const char* hipGetErrorString(hipError_t error) {
  (void)error;
  return "this is jax_vbgemm's stub of libamdhip64.so.7, made for linking only";
}

#define FAILS(name) \
  hipError_t name(void) { return 100; /* no device */ }
FAILS(__hipPushCallConfiguration)
FAILS(__hipPopCallConfiguration)
FAILS(hipLaunchKernel)
FAILS(hipFuncGetAttributes)
FAILS(hipGetDevice)
FAILS(hipDeviceGetAttribute)
FAILS(hipMemsetAsync)
FAILS(hipGetLastError)
FAILS(hipDeviceSynchronize)
FAILS(hipMalloc)
FAILS(hipFree)
FAILS(hipMemcpy)
FAILS(hipMemGetInfo)
FAILS(hipStreamCreateWithFlags)
FAILS(hipStreamDestroy)
FAILS(hipStreamSynchronize)
FAILS(hipStreamBeginCapture)
FAILS(hipStreamEndCapture)
FAILS(hipGraphInstantiateWithFlags)
FAILS(hipGraphDestroy)
FAILS(hipGraphUpload)
FAILS(hipGraphLaunch)
FAILS(hipGraphExecDestroy)
FAILS(hipEventCreate)
FAILS(hipEventDestroy)
FAILS(hipEventRecord)
FAILS(hipEventElapsedTime)
