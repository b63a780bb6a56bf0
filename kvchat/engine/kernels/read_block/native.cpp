// Reads one block's file into the layers of a pool, and checks all of it on the way.
//
// The file passes through a buffer that stays in a core's own cache: memory sees each byte twice, when it is
// read from the system's cache and when it is written to the pool. The checksum is XXH3 with 128 bits, secret and seed of its
// definition, over the file's bytes with the place of the checksum itself blank.
//
// Source: the description of XXH3 in github.com/Cyan4973/xxHash, doc/xxhash_spec.md; long inputs alone.

#include <errno.h>
#include <unistd.h>

#include "kvchat/engine/kernels/native/vector.h"

namespace {

constexpr int64_t STRIPE = 64, STRIPES = 16;
constexpr int64_t HASHED = STRIPE * STRIPES;  // bytes between two scrambles
constexpr int64_t PIECE = 8 * HASHED;         // hashed, then copied while the first cache has it
constexpr int SECRET_BYTES = 192;
constexpr int CHECKSUM_BYTES = 32;  // as hexadecimal digits
// The first reads are short: Linux takes them for the beginning of a long read, and keeps large pages.
constexpr int64_t FIRST_READS[] = {16 << 10, 48 << 10};

enum { WHOLE, ENDED_EARLY, UNREADABLE, OTHER_HEAD, OTHER_BYTES };

// The fields of native.py's `_Call`, in order.
struct Call {
  const uint8_t* head;  // what the file begins with, zeros for digits of its checksum
  uint8_t* buffer;      // STRIPE bytes, and behind them `buffer_bytes`, a multiple of PIECE
  uint8_t* starts[2];   // of keys and values of the first layer
  int64_t strides[2];   // from one layer to the next
  int64_t sizes[2];     // of one layer and block
  int64_t num_layers, buffer_bytes, head_bytes, checksum_start, descriptor;
  int64_t error;  // set: why it is unreadable
};

alignas(64) constexpr uint8_t SECRET[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
constexpr uint64_t P32_1 = 0x9E3779B1, P32_2 = 0x85EBCA77, P32_3 = 0xC2B2AE3D;
constexpr uint64_t P64_1 = 0x9E3779B185EBCA87, P64_2 = 0xC2B2AE3D27D4EB4F, P64_3 = 0x165667B19E3779F9,
                   P64_4 = 0x85EBCA77C2B2AE63, P64_5 = 0x27D4EB2F165667C5;

INLINE uint64_t word(const uint8_t* p) {
  uint64_t x;
  memcpy(&x, p, 8);
  return x;
}

// The sums of a checksum: what a stripe adds to them, and what is done with them after HASHED bytes.
#if defined(__AVX512F__)

typedef __m512i Sums;

INLINE Sums load_sums(const uint64_t* p) { return _mm512_loadu_si512(p); }
INLINE void store_sums(uint64_t* p, const Sums& sums) { _mm512_storeu_si512(p, sums); }
INLINE void mix(Sums* sums, const uint8_t* p, const uint8_t* secret) {
  const __m512i data = _mm512_loadu_si512(p);
  const __m512i key = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
  const __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
  const __m512i swapped = _mm512_shuffle_epi32(data, (_MM_PERM_ENUM)0x4E);
  *sums = _mm512_add_epi64(*sums, _mm512_add_epi64(product, swapped));
}
INLINE void scramble(Sums* sums, const uint8_t* secret) {
  const __m512i shifted = _mm512_xor_si512(*sums, _mm512_srli_epi64(*sums, 47));
  const __m512i key = _mm512_xor_si512(shifted, _mm512_loadu_si512(secret));
  const __m512i prime = _mm512_set1_epi64((int64_t)P32_1);
  const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(key, 32), prime);
  *sums = _mm512_add_epi64(_mm512_mul_epu32(key, prime), _mm512_slli_epi64(high, 32));
}
// Writes a line of the cache past it; `to` is where one begins.
INLINE void put_line(uint8_t* to, const uint8_t* from) {
  _mm512_stream_si512((__m512i*)to, _mm512_loadu_si512(from));
}
INLINE void end_lines() { _mm_sfence(); }

#elif defined(__AVX2__)

struct Sums {
  __m256i halves[2];
};

INLINE __m256i load_half(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
INLINE Sums load_sums(const uint64_t* p) { return {load_half(p), load_half(p + 4)}; }
INLINE void store_sums(uint64_t* p, const Sums& sums) {
  for (int i = 0; i < 2; i++) _mm256_storeu_si256((__m256i*)(p + 4 * i), sums.halves[i]);
}
INLINE void mix(Sums* sums, const uint8_t* p, const uint8_t* secret) {
  UNROLL for (int i = 0; i < 2; i++) {
    const __m256i data = load_half(p + 32 * i);
    const __m256i key = _mm256_xor_si256(data, load_half(secret + 32 * i));
    const __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
    const __m256i swapped = _mm256_shuffle_epi32(data, 0x4E);
    sums->halves[i] = _mm256_add_epi64(sums->halves[i], _mm256_add_epi64(product, swapped));
  }
}
INLINE void scramble(Sums* sums, const uint8_t* secret) {
  const __m256i prime = _mm256_set1_epi64x((int64_t)P32_1);
  UNROLL for (int i = 0; i < 2; i++) {
    const __m256i sum = sums->halves[i];
    const __m256i shifted = _mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47));
    const __m256i key = _mm256_xor_si256(shifted, load_half(secret + 32 * i));
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(key, 32), prime);
    sums->halves[i] = _mm256_add_epi64(_mm256_mul_epu32(key, prime), _mm256_slli_epi64(high, 32));
  }
}
INLINE void put_line(uint8_t* to, const uint8_t* from) {
  for (int i = 0; i < 64; i += 32) _mm256_stream_si256((__m256i*)(to + i), load_half(from + i));
}
INLINE void end_lines() { _mm_sfence(); }

#else

struct Sums {
  uint64_t lanes[8];
};

INLINE Sums load_sums(const uint64_t* p) {
  Sums sums;
  memcpy(sums.lanes, p, sizeof sums.lanes);
  return sums;
}
INLINE void store_sums(uint64_t* p, const Sums& sums) { memcpy(p, sums.lanes, sizeof sums.lanes); }
INLINE void mix(Sums* sums, const uint8_t* p, const uint8_t* secret) {
  UNROLL for (int i = 0; i < 8; i++) {
    const uint64_t data = word(p + 8 * i), key = data ^ word(secret + 8 * i);
    sums->lanes[i ^ 1] += data;
    sums->lanes[i] += (key & 0xFFFFFFFF) * (key >> 32);
  }
}
INLINE void scramble(Sums* sums, const uint8_t* secret) {
  for (int i = 0; i < 8; i++) {
    const uint64_t sum = sums->lanes[i];
    sums->lanes[i] = (sum ^ sum >> 47 ^ word(secret + 8 * i)) * P32_1;
  }
}
INLINE void put_line(uint8_t* to, const uint8_t* from) { memcpy(to, from, 64); }
INLINE void end_lines() {}

#endif

// Copies past the cache, which has no room for what a conversation brings.
INLINE void copy(uint8_t* to, const uint8_t* from, int64_t count) {
  const int64_t first = least(count, -(int64_t)(uintptr_t)to & 63);
  memcpy(to, from, first);
  int64_t at = first;
  for (; at + 64 <= count; at += 64) put_line(to + at, from + at);
  memcpy(to + at, from + at, count - at);
}

// Where the next byte of the payload goes: layer after layer, keys before values.
struct Cursor {
  const Call& call;
  int64_t layer = 0, part = 0, done = 0;
  explicit Cursor(const Call& call) : call(call) {}
  void take(const uint8_t* from, int64_t count) {
    while (count > 0) {
      const int64_t size = call.sizes[part];
      const int64_t now = least(count, size - done);
      copy(call.starts[part] + layer * call.strides[part] + done, from, now);
      from += now;
      count -= now;
      done += now;
      if (done == size) {
        done = 0;
        layer += part;
        part ^= 1;
      }
    }
  }
};

INLINE uint64_t folded(uint64_t a, uint64_t b) {
  const unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t merged(const uint64_t* sums, const uint8_t* secret, uint64_t start) {
  for (int i = 0; i < 8; i += 2) {
    start += folded(sums[i] ^ word(secret + 8 * i), sums[i + 1] ^ word(secret + 8 * i + 8));
  }
  start ^= start >> 37;
  start *= 0x165667919E3779F9;
  return start ^ start >> 32;
}

void digits(char* to, uint64_t x) {
  for (int i = 0; i < 16; i++) to[i] = "0123456789abcdef"[x >> (60 - 4 * i) & 15];
}

class Checksum {
 public:
  explicit Checksum(int64_t total) : total(total) {
    const uint64_t start[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    sums = load_sums(start);
  }

  // Takes whole HASHED bytes, but for the last call; the 64 bytes before `p` are those before it.
  void add(const uint8_t* p, int64_t count) {
    Sums now = sums;
    for (; count >= HASHED && done + HASHED < total; p += HASHED, count -= HASHED, done += HASHED) {
      UNROLL for (int i = 0; i < STRIPES; i++) mix(&now, p + STRIPE * i, SECRET + 8 * i);
      scramble(&now, SECRET + SECRET_BYTES - STRIPE);
    }
    if (done + count == total) {
      for (int i = 0; i < (count - 1) / STRIPE; i++) mix(&now, p + STRIPE * i, SECRET + 8 * i);
      mix(&now, p + count - STRIPE, SECRET + SECRET_BYTES - STRIPE - 7);
    }
    sums = now;
  }

  void write(char* to) const {
    uint64_t all[8];
    store_sums(all, sums);
    digits(to, merged(all, SECRET + SECRET_BYTES - STRIPE - 11, ~((uint64_t)total * P64_2)));
    digits(to + 16, merged(all, SECRET + 11, (uint64_t)total * P64_1));
  }

 private:
  Sums sums;
  int64_t total, done = 0;
};

class Reading {
 public:
  explicit Reading(Call& call)
      : call(call),
        total(call.head_bytes + call.num_layers * (call.sizes[0] + call.sizes[1])),
        cursor(call),
        sum(total) {}

  int run() {
    const int found = read();
    end_lines();
    return found;
  }

 private:
  int read() {
    uint8_t* const buffer = call.buffer + STRIPE;
    int64_t step = 0;
    for (int64_t at = 0; at < total;) {
      const int64_t wanted = least(total - at, step < 2 ? FIRST_READS[step++] : call.buffer_bytes);
      const int problem = fill(buffer, at, wanted);
      if (problem) return problem;
      const int64_t of_head = most(0, least(call.head_bytes - at, wanted));
      if (of_head && !is_head(buffer, at, of_head)) return OTHER_HEAD;
      for (int64_t done = 0; done < wanted; done += PIECE) {
        const int64_t count = least(PIECE, wanted - done);
        sum.add(buffer + done, count);
        const int64_t skip = least(count, most(0, of_head - done));
        cursor.take(buffer + done + skip, count - skip);
      }
      at += wanted;
      if (at < total) memcpy(call.buffer, buffer + wanted - STRIPE, STRIPE);
    }
    char wanted[CHECKSUM_BYTES];
    sum.write(wanted);
    return memcmp(wanted, claimed, CHECKSUM_BYTES) ? OTHER_BYTES : WHOLE;
  }

  int fill(uint8_t* to, int64_t at, int64_t count) {
    while (count > 0) {
      const ssize_t got = pread((int)call.descriptor, to, count, at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) call.error = errno;
      if (got <= 0) return got < 0 ? UNREADABLE : ENDED_EARLY;
      to += got;
      at += got;
      count -= got;
    }
    return WHOLE;
  }

  // Takes out the checksum where it is among these bytes of the head, and compares the others.
  bool is_head(uint8_t* p, int64_t at, int64_t count) {
    const int64_t start = most(call.checksum_start, at);
    const int64_t end = least(call.checksum_start + CHECKSUM_BYTES, at + count);
    if (start < end) {
      memcpy(claimed + (start - call.checksum_start), p + (start - at), end - start);
      memset(p + (start - at), '0', end - start);
    }
    return memcmp(p, call.head + at, count) == 0;
  }

  Call& call;
  const int64_t total;
  Cursor cursor;
  Checksum sum;
  char claimed[CHECKSUM_BYTES] = {};
};

}  // namespace

// Returns what was found; only where it is WHOLE does memory hold the block.
EXPORT(read_block)(Call* call) { return Reading(*call).run(); }
