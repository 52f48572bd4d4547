/* The keyed hash of siphash.pxd for four keys at a time: each key has one lane of a vector.
 *
 * The operations of one hash wait for each other, so four hashes in vectors take little longer than one hash. The lane of
 * a key that has ended keeps its state while the other lanes continue. Without such vectors, the caller hashes the keys
 * one by one.
 */
#ifndef STRATALOG_LANES_H
#define STRATALOG_LANES_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define LANES_X86 1
#endif

static int lanes_kind; /* 0: none, 1: AVX2, 2: AVX-512 */

/* Use the vectors that the processor has, up to the allowed kind. */
static void lanes_choose(int allowed) {
    lanes_kind = 0;
#if defined(LANES_X86)
    if (allowed >= 1 && __builtin_cpu_supports("avx2")) lanes_kind = 1;
    if (allowed >= 2 && __builtin_cpu_supports("avx512vl")) lanes_kind = 2;
#else
    (void)allowed;
#endif
}

#if defined(LANES_X86)
typedef uint64_t lanes_of_4 __attribute__((vector_size(32)));

#define LANES_ROTATE(v, bits) ((v) << (bits) | (v) >> (64 - (bits)))
#define LANES_ROUND()                        \
    do {                                     \
        a += b;                              \
        c += d;                              \
        b = LANES_ROTATE(b, 13) ^ a;         \
        d = LANES_ROTATE(d, 16) ^ c;         \
        a = LANES_ROTATE(a, 32);             \
        a += d;                              \
        c += b;                              \
        d = LANES_ROTATE(d, 21) ^ a;         \
        b = LANES_ROTATE(b, 17) ^ c;         \
        c = LANES_ROTATE(c, 32);             \
    } while (0)
#define LANES_ALL(of) {of(0), of(1), of(2), of(3)}

static inline uint64_t lanes_word(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Return the last word of a key: its last size % 8 bytes, and its size in the highest byte. */
static inline uint64_t lanes_last(const uint8_t *key, int64_t size) {
    const int64_t left = size & 7;
    uint64_t word = 0;
    if (left && size >= 8) return (uint64_t)size << 56 | lanes_word(key + size - 8) >> 8 * (8 - left);
    for (int64_t i = 0; i < left; i++) word |= (uint64_t)key[i] << 8 * i;
    return (uint64_t)size << 56 | word;
}

/* Write the hashes of four keys to `into`, two words each. The caller has checked that the keys are inside the arena. */
static inline __attribute__((always_inline)) void lanes_hash(
    const uint8_t *arena, const int32_t *position, const int32_t *size, const uint64_t secret[2], uint64_t *into) {
    const lanes_of_4 none = {0};
    const uint8_t *key[4];
    int64_t words[4], least = INT64_MAX, most = 0;
    uint64_t last[4], first_half[4], second_half[4];
    lanes_of_4 a = none + (secret[0] ^ 0x736F6D6570736575u), b = none + (secret[1] ^ 0x646F72616E646F6Du ^ 0xEE);
    lanes_of_4 c = none + (secret[0] ^ 0x6C7967656E657261u), d = none + (secret[1] ^ 0x7465646279746573u);
    lanes_of_4 word, made;
    for (int lane = 0; lane < 4; lane++) {
        key[lane] = arena + position[lane];
        words[lane] = size[lane] >> 3;
        last[lane] = lanes_last(key[lane], size[lane]);
        if (words[lane] < least) least = words[lane];
        if (words[lane] > most) most = words[lane];
    }
    for (int64_t at = 0; at < least; at++) {
#define LANES_WHOLE(lane) lanes_word(key[lane] + 8 * at)
        word = (lanes_of_4)LANES_ALL(LANES_WHOLE);
        d ^= word;
        LANES_ROUND();
        a ^= word;
    }
    for (int64_t at = least; at <= most; at++) {
#define LANES_REST(lane) (at < words[lane] ? LANES_WHOLE(lane) : at == words[lane] ? last[lane] : 0)
#define LANES_GOES_ON(lane) (at <= words[lane] ? ~(uint64_t)0 : 0)
        const lanes_of_4 old_a = a, old_b = b, old_c = c, old_d = d;
        word = (lanes_of_4)LANES_ALL(LANES_REST);
        d ^= word;
        LANES_ROUND();
        a ^= word;
        if (least != most) {
            const lanes_of_4 goes_on = LANES_ALL(LANES_GOES_ON);
            a = (a & goes_on) | (old_a & ~goes_on);
            b = (b & goes_on) | (old_b & ~goes_on);
            c = (c & goes_on) | (old_c & ~goes_on);
            d = (d & goes_on) | (old_d & ~goes_on);
        }
    }
    c ^= 0xEE;
    LANES_ROUND();
    LANES_ROUND();
    LANES_ROUND();
    made = a ^ b ^ c ^ d;
    memcpy(first_half, &made, sizeof made);
    b ^= 0xDD;
    LANES_ROUND();
    LANES_ROUND();
    LANES_ROUND();
    made = a ^ b ^ c ^ d;
    memcpy(second_half, &made, sizeof made);
    for (int lane = 0; lane < 4; lane++) {
        into[2 * lane] = first_half[lane];
        into[2 * lane + 1] = first_half[lane] || second_half[lane] ? second_half[lane] : 1;
    }
}

__attribute__((target("avx2"))) static void lanes_by_avx2(
    const uint8_t *arena, const int32_t *position, const int32_t *size, const uint64_t secret[2], uint64_t *into) {
    lanes_hash(arena, position, size, secret, into);
}

__attribute__((target("avx512vl"))) static void lanes_by_avx512(
    const uint8_t *arena, const int32_t *position, const int32_t *size, const uint64_t secret[2], uint64_t *into) {
    lanes_hash(arena, position, size, secret, into);
}
#endif

/* Write the hashes of four keys, and return 1; return 0 if the processor has no such vectors. */
static int hash_four(
    const uint8_t *arena, const int32_t *position, const int32_t *size, const uint64_t secret[2], uint64_t *into) {
#if defined(LANES_X86)
    if (lanes_kind == 2) {
        lanes_by_avx512(arena, position, size, secret, into);
        return 1;
    }
    if (lanes_kind == 1) {
        lanes_by_avx2(arena, position, size, secret, into);
        return 1;
    }
#else
    (void)arena, (void)position, (void)size, (void)secret, (void)into;
#endif
    return 0;
}

#endif
