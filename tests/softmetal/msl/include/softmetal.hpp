// The language and the library of MSL, as far as kernels of compute functions need them, in C++14.
//
// It includes no other header, so that names of C do not meet those of MSL and a kernel compiles fast.
#pragma once
#pragma GCC system_header

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using size_t = unsigned long;
using ptrdiff_t = long;

#include "softmetal_small_floats.hpp"
#include "softmetal_vectors.hpp"
//
#include "softmetal_math.hpp"
#include "softmetal_threads.hpp"
