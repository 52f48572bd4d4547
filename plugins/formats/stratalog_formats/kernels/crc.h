/* CRC-32C (Castagnoli) and CRC-32 (zlib's), as Kafka's batches and messages carry them.
 *
 * CRC-32C uses the processor's instruction where there is one, on three parts of the buffer at once because one
 * instruction waits three cycles for its predecessor; the parts' sums are joined by multiplication with a power of x
 * modulo the polynomial, tabulated. Everything else looks up eight bytes at a time in tables made at import.
 */
#ifndef STRATALOG_CRC_H
#define STRATALOG_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#define CRC_X86 1
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

static uint32_t crc32c_tables[8][256];
static uint32_t crc32_tables[8][256];
static uint32_t crc32c_skip_long[4][256]; /* the sum after CRC_LONG zero bytes, by byte of the sum before */
static uint32_t crc32c_skip_short[4][256];
static int crc32c_has_instruction;

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
    uint32_t columns[32]; /* what each bit of the sum becomes: zeros keep sums linear */
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

static void crc_setup(void) {
    crc_fill_tables(crc32c_tables, CRC32C_POLYNOMIAL);
    crc_fill_tables(crc32_tables, CRC32_POLYNOMIAL);
    crc_fill_skip(crc32c_skip_long, CRC_LONG);
    crc_fill_skip(crc32c_skip_short, CRC_SHORT);
#if defined(CRC_X86)
    crc32c_has_instruction = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(CRC_ARM)
    crc32c_has_instruction = 1;
#endif
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

static uint32_t crc32c_of(const uint8_t *at, size_t size) {
#if defined(CRC_X86) || defined(CRC_ARM)
    if (crc32c_has_instruction) return ~crc32c_by_instruction(0xFFFFFFFFu, at, size);
#endif
    return ~crc_by_tables(crc32c_tables, 0xFFFFFFFFu, at, size);
}

static uint32_t crc32_of(const uint8_t *at, size_t size) {
    return ~crc_by_tables(crc32_tables, 0xFFFFFFFFu, at, size);
}

#endif
