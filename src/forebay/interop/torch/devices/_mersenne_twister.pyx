# cython: language_level=3, boundscheck=False, wraparound=False
"""The Mersenne Twister of PyTorch's generator of the CPU, without its numbers; documented in _mersenne_twister.pyi."""

from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    SIZE = 624  # words of the state
    SHIFT = 397
    WORDS = 3 + SIZE  # of 64 bits: the seed, two numbers of 32 bits, the position, and the state
    MANY = 1 << 19  # blocks without the GIL

cdef uint32_t UPPER = 0x80000000u, LOWER = 0x7fffffffu, MATRIX = 0x9908b0dfu


cdef inline uint32_t twisted(uint32_t one, uint32_t other) noexcept nogil:
    return (((one & UPPER) | (other & LOWER)) >> 1) ^ (MATRIX & -(other & 1))


cdef void next_block(uint32_t* state) noexcept nogil:
    cdef int at
    for at in range(SIZE - SHIFT):
        state[at] = state[at + SHIFT] ^ twisted(state[at], state[at + 1])
    for at in range(SIZE - SHIFT, SIZE - 1):
        state[at] = state[at + SHIFT - SIZE] ^ twisted(state[at], state[at + 1])
    state[SIZE - 1] = state[SHIFT - 1] ^ twisted(state[SIZE - 1], state[0])


def advance(uint64_t[::1] words, uint64_t count):
    cdef uint32_t state[SIZE]
    cdef int at
    cdef uint64_t blocks, some, left
    if words.shape[0] < WORDS:
        raise ValueError(f"a state has at least {WORDS} words, not {words.shape[0]}")
    left = words[1] & 0xffffffffu
    if not 1 <= left <= SIZE or words[2] > SIZE:
        raise ValueError("these words are no state of a generator")
    if count < left:
        words[1] -= count
        words[2] += count
        return
    count -= left - 1
    blocks = (count + SIZE - 1) // SIZE
    count -= (blocks - 1) * SIZE
    for at in range(SIZE):
        state[at] = <uint32_t>words[3 + at]
    while blocks:
        some = min(blocks, <uint64_t>MANY)
        blocks -= some
        with nogil:
            while some:
                next_block(state)
                some -= 1
    for at in range(SIZE):
        words[3 + at] = state[at]
    words[1] = (words[1] & <uint64_t>0xffffffff00000000u) | (SIZE + 1 - count)
    words[2] = count
