"""Takes all of a GPU's memory but FREE_BYTES, says so, and keeps it until standard input closes."""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def check(code, call):
    if code:
        raise SystemExit(f"{call}: error {code}")


device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
check(cuda.cuInit(0), "cuInit")
check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(free.value - int(sys.argv[1]))), "cuMemAlloc")
check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
print(free.value, flush=True)
sys.stdin.read()
