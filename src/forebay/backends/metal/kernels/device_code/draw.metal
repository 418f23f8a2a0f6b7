// Kernel of random fills. philox.metal precedes this text, and Python defines one LAW_..., the type BITS in which an
// element is stored and STORE(number), its bits. Each thread computes what one thread of PyTorch's kernels computes;
// native/random/draw_kernel.hpp is the model.

// As packed by Python.
struct DrawJob {
  ulong count, seed, offset, threads;
  ulong range, base;  // of integers
  ulong origin;       // of the first element, in bytes from the beginning of the bound memory
  float a, b, c;      // uniform: from, to, to - from. normal: mean, deviation. exponential: -1 / rate. bernoulli: p
  uint axes;          // 0: the destination is contiguous
  uint aligned;       // whether all elements are aligned to their size
  uint unused;
};

struct DrawAxis {
  ulong length;
  long step;  // bytes
};

inline void put(device uchar* to, constant DrawJob& job, constant DrawAxis* axes, ulong element, BITS value) {
  ulong offset = job.origin;
  if (job.axes == 0) {
    offset += element * sizeof(BITS);
  } else {
    for (uint at = 0; at < job.axes; ++at) {
      offset += element % axes[at].length * ulong(axes[at].step);
      element /= axes[at].length;
    }
  }
  device uchar* const place = to + offset;
  if (job.aligned) {
    *reinterpret_cast<device BITS*>(place) = value;
  } else {
    for (uint at = 0; at < sizeof(BITS); ++at) place[at] = uchar(ulong(value) >> 8 * at);
  }
}

#if defined(LAW_INTEGERS_64)
constant uint kPerCall = 2;
#else
constant uint kPerCall = 4;
#endif

#if defined(LAW_UNIFORM)
inline BITS uniform_element(constant DrawJob& job, uint word) {
  const bool unit = job.a == 0 && job.b == 1;  // needs no fused multiply-add
  const float u = uniform_number(word);
  const BITS value = STORE(unit ? u : fma(u, job.c, job.a)), high = STORE(job.b), low = STORE(job.a);
  const bool both_zero = BITS((value | high) << 1) == 0;
  return value == high || both_zero ? low : value;
}
#endif

inline void make(constant DrawJob& job, Words drawn, thread BITS* numbers) {
  const uint word[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
#if defined(LAW_NORMAL)
  for (uint lane = 0; lane < 4; lane += 2) {
    const float2 pair = normal_numbers(word[lane], word[lane + 1]);
    numbers[lane] = STORE(fma(pair.x, job.b, job.a));
    numbers[lane + 1] = STORE(fma(pair.y, job.b, job.a));
  }
#elif defined(LAW_INTEGERS_64)
  for (uint lane = 0; lane < 2; ++lane) {
    const ulong wide = ulong(word[2 * lane]) << 32 | word[2 * lane + 1];
    numbers[lane] = STORE(long((job.range ? wide % job.range : wide) + job.base));
  }
#else
  for (uint lane = 0; lane < 4; ++lane) {
#if defined(LAW_UNIFORM)
    numbers[lane] = uniform_element(job, word[lane]);
#elif defined(LAW_EXPONENTIAL)
    const float u = uniform_number(word[lane]);
    numbers[lane] = STORE(job.a * (u >= 1.0f - 5.96046448e-08f ? -5.96046448e-08f : log_of(u)));
#elif defined(LAW_BERNOULLI)
    numbers[lane] = uniform_number(word[lane]) < job.a ? STORE(1.0f) : STORE(0.0f);
#elif defined(LAW_INTEGERS)
    numbers[lane] = STORE(long(ulong(word[lane] % uint(job.range)) + job.base));
#endif
  }
#endif
}

kernel void draw_numbers(device uchar* to [[buffer(0)]], constant DrawJob& job [[buffer(1)]],
                         constant DrawAxis* axes [[buffer(2)]], uint index [[thread_position_in_grid]],
                         uint step [[threads_per_grid]]) {
  BITS numbers[4];
  ulong call = job.offset / 4;
  for (ulong start = 0; start < job.count; start += job.threads * kPerCall, ++call) {
    for (ulong number = index; number < job.threads && start + number < job.count; number += step) {
      make(job, words(job.seed, number, call), numbers);
      for (uint lane = 0; lane < kPerCall; ++lane) {
        const ulong element = start + number + job.threads * lane;
        if (element < job.count) put(to, job, axes, element, numbers[lane]);
      }
    }
  }
}
