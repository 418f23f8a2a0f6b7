// Export of C functions that Python calls through ctypes: rare calls, which need no Cython binding.
#pragma once

#define EXPORTED extern "C" __attribute__((visibility("default")))
