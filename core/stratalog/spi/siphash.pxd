"""A keyed 128-bit hash for kernels that compare record keys by hash.

Keys that collide cannot be constructed without the secret.

Source: J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", with 128 bits of output. This is the
variant with one round per word and three rounds at the end, which the hash tables of several languages use.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef struct Hash:
    uint64_t a
    uint64_t b

cdef struct State:
    uint64_t a
    uint64_t b
    uint64_t c
    uint64_t d


cdef inline uint64_t rotate(uint64_t value, int bits) noexcept nogil:
    return value << bits | value >> (64 - bits)


cdef inline void rounds(State* v, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        v.a += v.b
        v.b = rotate(v.b, 13) ^ v.a
        v.a = rotate(v.a, 32)
        v.c += v.d
        v.d = rotate(v.d, 16) ^ v.c
        v.a += v.d
        v.d = rotate(v.d, 21) ^ v.a
        v.c += v.b
        v.b = rotate(v.b, 17) ^ v.c
        v.c = rotate(v.c, 32)


cdef inline void mix(State* v, uint64_t word) noexcept nogil:
    v.d ^= word
    rounds(v, 1)
    v.a ^= word


cdef inline Hash hash_of(const uint8_t* key, int64_t size, const uint64_t* secret) noexcept nogil:
    """Return the hash of ``key``. The two halves are never both 0: callers use 0 for "no hash"."""
    cdef State v
    cdef uint64_t word
    cdef int64_t left = size
    cdef Hash made
    v.a = secret[0] ^ <uint64_t>0x736F6D6570736575
    v.b = secret[1] ^ <uint64_t>0x646F72616E646F6D ^ 0xEE
    v.c = secret[0] ^ <uint64_t>0x6C7967656E657261
    v.d = secret[1] ^ <uint64_t>0x7465646279746573
    while left >= 8:
        memcpy(&word, key, 8)
        mix(&v, word)
        key += 8
        left -= 8
    word = <uint64_t>size << 56
    while left > 0:
        left -= 1
        word |= <uint64_t>key[left] << 8 * left
    mix(&v, word)
    v.c ^= 0xEE
    rounds(&v, 3)
    made.a = v.a ^ v.b ^ v.c ^ v.d
    v.b ^= 0xDD
    rounds(&v, 3)
    made.b = v.a ^ v.b ^ v.c ^ v.d
    if made.a == 0 and made.b == 0:
        made.b = 1
    return made
