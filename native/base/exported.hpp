// What Python reaches through ctypes: rare calls, which need no place in the core's face.
#pragma once

#define EXPORTED extern "C" __attribute__((visibility("default")))
