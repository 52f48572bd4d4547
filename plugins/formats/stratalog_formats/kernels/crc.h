/* CRC-32C (Castagnoli) of Kafka's batches, and CRC-32 (of zlib) of Kafka's messages.
 *
 * One of three methods is used, the fastest that the processor supports for the polynomial and the size:
 * - carry-less multiplication of 256 bytes at a time (AVX-512 with VPCLMULQDQ): a buffer is a polynomial, and bytes that
 *   are D bits before the end may be replaced by their product with x^D modulo the polynomial, which is shorter;
 * - the instruction for CRC-32C, on three parts of the buffer at once, because each instruction waits three cycles for
 *   the result of the one before it; the sums of the parts are joined by multiplication with a tabulated power of x;
 * - tables, eight bytes at a time.
 * Tables and powers are computed at import.
 *
 * Source of the method: V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction".
 */
#ifndef STRATALOG_CRC_H
#define STRATALOG_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define CRC_X86 1
#if defined(__x86_64__)
#define CRC_FOLDS 1
#define CRC_FOLD_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))
#endif
#define CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC_ARM 1
#define CRC_TARGET
#endif

#define CRC32C_POLYNOMIAL 0x82F63B78u
#define CRC32_POLYNOMIAL 0xEDB88320u
#define CRC_LONG 2048u /* bytes of each of the three parts */
#define CRC_SHORT 256u
#define CRC_FOLD_LEAST 512u /* least size for which folding is faster */

static uint32_t crc32c_tables[8][256];
static uint32_t crc32_tables[8][256];
static uint32_t crc32c_skip_long[4][256]; /* the sum after CRC_LONG zero bytes, by byte of the sum before */
static uint32_t crc32c_skip_short[4][256];
static int crc32c_has_instruction;

#if defined(CRC_FOLDS)
typedef struct { /* factors for the first and the second 8 of 16 bytes, which move these bytes by 256, 64 or 16 bytes */
    uint64_t by_256[2], by_64[2], by_16[2];
} crc_powers;

static crc_powers crc32c_powers, crc32_powers;
static int crc_can_fold;

/* x to the power of n modulo the polynomial, bits reflected as in the sums. */
static uint32_t crc_power(uint32_t polynomial, unsigned n) {
    uint32_t sum = 0x80000000u;
    while (n--) sum = sum & 1 ? sum >> 1 ^ polynomial : sum >> 1;
    return sum;
}

static void crc_fill_power(uint64_t factors[2], uint32_t polynomial, unsigned bytes) {
    /* Corrections: the product of two reflected words is shifted by one bit, and a factor of 32 bits by 32 bits. */
    factors[0] = crc_power(polynomial, 8 * bytes + 31);
    factors[1] = crc_power(polynomial, 8 * bytes - 33);
}

static void crc_fill_powers(crc_powers *powers, uint32_t polynomial) {
    crc_fill_power(powers->by_256, polynomial, 256);
    crc_fill_power(powers->by_64, polynomial, 64);
    crc_fill_power(powers->by_16, polynomial, 16);
}
#endif

static void crc_fill_tables(uint32_t tables[8][256], uint32_t polynomial) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t sum = byte;
        for (int bit = 0; bit < 8; bit++) sum = sum & 1 ? sum >> 1 ^ polynomial : sum >> 1;
        tables[0][byte] = sum;
    }
    for (int row = 1; row < 8; row++)
        for (int byte = 0; byte < 256; byte++)
            tables[row][byte] = tables[row - 1][byte] >> 8 ^ tables[0][tables[row - 1][byte] & 0xFF];
}

static void crc_fill_skip(uint32_t skip[4][256], size_t zeros) {
    uint32_t columns[32]; /* result for each single bit of the sum; the results of several bits can be joined with xor */
    for (int bit = 0; bit < 32; bit++) {
        uint32_t sum = 1u << bit;
        for (size_t i = 0; i < zeros; i++) sum = sum >> 8 ^ crc32c_tables[0][sum & 0xFF];
        columns[bit] = sum;
    }
    for (int part = 0; part < 4; part++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t sum = 0;
            for (int bit = 0; bit < 8; bit++)
                if (byte >> bit & 1) sum ^= columns[8 * part + bit];
            skip[part][byte] = sum;
        }
}

/* Use the features that the processor has and the arguments allow. */
static void crc_choose(int may_fold, int may_use_instruction) {
#if defined(CRC_FOLDS)
    crc_can_fold = may_fold && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul");
#else
    (void)may_fold;
#endif
#if defined(CRC_X86)
    crc32c_has_instruction = may_use_instruction && __builtin_cpu_supports("sse4.2");
#else
    crc32c_has_instruction = may_use_instruction;
#endif
}

static void crc_setup(void) {
    crc_fill_tables(crc32c_tables, CRC32C_POLYNOMIAL);
    crc_fill_tables(crc32_tables, CRC32_POLYNOMIAL);
    crc_fill_skip(crc32c_skip_long, CRC_LONG);
    crc_fill_skip(crc32c_skip_short, CRC_SHORT);
#if defined(CRC_FOLDS)
    crc_fill_powers(&crc32c_powers, CRC32C_POLYNOMIAL);
    crc_fill_powers(&crc32_powers, CRC32_POLYNOMIAL);
#endif
    crc_choose(1, 1);
}

static uint64_t crc_load_64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t crc_by_tables(uint32_t tables[8][256], uint32_t sum, const uint8_t *at, size_t size) {
    for (; size >= 8; size -= 8, at += 8) {
        const uint32_t low = sum ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        sum = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^ tables[4][low >> 24] ^
              tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^ tables[0][at[7]];
    }
    while (size--) sum = sum >> 8 ^ tables[0][(sum ^ *at++) & 0xFF];
    return sum;
}

#if defined(CRC_X86) || defined(CRC_ARM)
#if defined(CRC_X86)
#define CRC_STEP_64(sum, word) ((uint32_t)_mm_crc32_u64((sum), (word)))
#define CRC_STEP_8(sum, byte) _mm_crc32_u8((sum), (byte))
#else
#define CRC_STEP_64(sum, word) __crc32cd((sum), (word))
#define CRC_STEP_8(sum, byte) __crc32cb((sum), (byte))
#endif

static uint32_t crc_skip(uint32_t skip[4][256], uint32_t sum) {
    return skip[0][sum & 0xFF] ^ skip[1][sum >> 8 & 0xFF] ^ skip[2][sum >> 16 & 0xFF] ^ skip[3][sum >> 24];
}

CRC_TARGET static uint32_t crc32c_by_instruction(uint32_t sum, const uint8_t *at, size_t size) {
    uint32_t second, third;
    const uint8_t *end;
#if defined(__x86_64__) || defined(CRC_ARM)
    for (; size >= 3 * CRC_LONG; size -= 3 * CRC_LONG, at += 2 * CRC_LONG) {
        second = third = 0;
        for (end = at + CRC_LONG; at < end; at += 8) {
            sum = CRC_STEP_64(sum, crc_load_64(at));
            second = CRC_STEP_64(second, crc_load_64(at + CRC_LONG));
            third = CRC_STEP_64(third, crc_load_64(at + 2 * CRC_LONG));
        }
        sum = crc_skip(crc32c_skip_long, crc_skip(crc32c_skip_long, sum) ^ second) ^ third;
    }
    for (; size >= 3 * CRC_SHORT; size -= 3 * CRC_SHORT, at += 2 * CRC_SHORT) {
        second = third = 0;
        for (end = at + CRC_SHORT; at < end; at += 8) {
            sum = CRC_STEP_64(sum, crc_load_64(at));
            second = CRC_STEP_64(second, crc_load_64(at + CRC_SHORT));
            third = CRC_STEP_64(third, crc_load_64(at + 2 * CRC_SHORT));
        }
        sum = crc_skip(crc32c_skip_short, crc_skip(crc32c_skip_short, sum) ^ second) ^ third;
    }
    for (; size >= 8; size -= 8, at += 8) sum = CRC_STEP_64(sum, crc_load_64(at));
#endif
    while (size--) sum = CRC_STEP_8(sum, *at++);
    return sum;
}
#endif

#if defined(CRC_FOLDS)
CRC_FOLD_TARGET static __m512i crc_moved(__m512i lanes, __m512i factors, __m512i next) {
    return _mm512_ternarylogic_epi64(
        _mm512_clmulepi64_epi128(lanes, factors, 0x00), _mm512_clmulepi64_epi128(lanes, factors, 0x11), next, 0x96);
}

CRC_FOLD_TARGET static __m128i crc_moved_16(__m128i lane, __m128i factors, __m128i next) {
    return _mm_xor_si128(
        _mm_xor_si128(_mm_clmulepi64_si128(lane, factors, 0x00), _mm_clmulepi64_si128(lane, factors, 0x11)), next);
}

/* Write 16 bytes to `into` whose sum, begun with 0, equals the sum of the first size - size % 64 bytes begun with `sum`.
 * `size` is at least 256. */
CRC_FOLD_TARGET static void crc_fold(const crc_powers *powers, uint32_t sum, const uint8_t *at, size_t size, uint8_t into[16]) {
    __m512i lanes[4], factors;
    __m128i lane, by_16;
    for (int i = 0; i < 4; i++) lanes[i] = _mm512_loadu_si512(at + 64 * i);
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)sum)));
    factors = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)powers->by_256));
    for (at += 256, size -= 256; size >= 256; at += 256, size -= 256)
        for (int i = 0; i < 4; i++) lanes[i] = crc_moved(lanes[i], factors, _mm512_loadu_si512(at + 64 * i));
    factors = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)powers->by_64));
    for (int i = 1; i < 4; i++) lanes[0] = crc_moved(lanes[0], factors, lanes[i]);
    for (; size >= 64; at += 64, size -= 64) lanes[0] = crc_moved(lanes[0], factors, _mm512_loadu_si512(at));
    by_16 = _mm_loadu_si128((const __m128i *)powers->by_16);
    lane = _mm512_castsi512_si128(lanes[0]);
    lane = crc_moved_16(lane, by_16, _mm512_extracti32x4_epi32(lanes[0], 1));
    lane = crc_moved_16(lane, by_16, _mm512_extracti32x4_epi32(lanes[0], 2));
    lane = crc_moved_16(lane, by_16, _mm512_extracti32x4_epi32(lanes[0], 3));
    _mm_storeu_si128((__m128i *)into, lane);
}
#endif

static uint32_t crc32c_by_size(uint32_t sum, const uint8_t *at, size_t size) {
#if defined(CRC_X86) || defined(CRC_ARM)
    if (crc32c_has_instruction) return crc32c_by_instruction(sum, at, size);
#endif
    return crc_by_tables(crc32c_tables, sum, at, size);
}

static uint32_t crc32c_of(const uint8_t *at, size_t size) {
#if defined(CRC_FOLDS)
    if (crc_can_fold && size >= CRC_FOLD_LEAST) {
        uint8_t folded[16];
        crc_fold(&crc32c_powers, 0xFFFFFFFFu, at, size, folded);
        return ~crc32c_by_size(crc32c_by_size(0, folded, 16), at + size - size % 64, size % 64);
    }
#endif
    return ~crc32c_by_size(0xFFFFFFFFu, at, size);
}

static uint32_t crc32_of(const uint8_t *at, size_t size) {
#if defined(CRC_FOLDS)
    if (crc_can_fold && size >= CRC_FOLD_LEAST) {
        uint8_t folded[16];
        crc_fold(&crc32_powers, 0xFFFFFFFFu, at, size, folded);
        return ~crc_by_tables(crc32_tables, crc_by_tables(crc32_tables, 0, folded, 16), at + size - size % 64, size % 64);
    }
#endif
    return ~crc_by_tables(crc32_tables, 0xFFFFFFFFu, at, size);
}

#endif
