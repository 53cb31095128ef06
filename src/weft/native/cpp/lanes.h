// A few floats at once, written once for every instruction set: GCC and Clang vector types.
// Compiled once per level; WEFT_LEVEL names the namespace, -march sets the width.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace WEFT_LEVEL {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

// Not std::min: one copy of it, made for the widest instructions, could serve all levels.
template <class T>
constexpr T least(T a, T b) {
    return b < a ? b : a;
}
template <class T>
constexpr T most(T a, T b) {
    return a < b ? b : a;
}

template <class V, class T>
inline V raw(const T* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline Vec load(const float* p) { return raw<Vec>(p); }

inline Vec load(const uint16_t* p) {  // bfloat16: the upper half of a float
#if defined(__AVX2__) && !defined(__AVX512F__)  // GCC's own widening takes two halves
    return (Vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
    return (Vec)(__builtin_convertvector(raw<Halves>(p), Words) << 16);
#endif
}

inline Vec load(const int8_t* p) {
#if defined(__AVX512F__)  // GCC's own widening takes the numbers one by one
    Ints wide = (Ints)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    Ints wide = (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    Ints wide = __builtin_convertvector(raw<Bytes>(p), Ints);
#endif
    return __builtin_convertvector(wide, Vec);
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

inline float one(float v) { return v; }
inline float one(int8_t v) { return v; }
inline float one(uint16_t v) {
    uint32_t wide = (uint32_t)v << 16;
    float f;
    std::memcpy(&f, &wide, 4);
    return f;
}

inline Vec all(float v) { return v - Vec{}; }  // v + 0 would not be optimised away

inline float sum(Vec v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#elif defined(__AVX2__)
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
#endif
}

// The sums of four vectors in one: half the work of four times `sum`.
inline void sums_of_four(const Vec* v, float* out) {
#if defined(__AVX2__)
    __m256 half[4];
    for (int r = 0; r < 4; r++)
#if defined(__AVX512F__)
        half[r] = _mm256_add_ps(_mm512_castps512_ps256((__m512)v[r]),
                                _mm512_extractf32x8_ps((__m512)v[r], 1));
#else
        half[r] = (__m256)v[r];
#endif
    __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
#else
    for (int r = 0; r < 4; r++) out[r] = sum(v[r]);
#endif
}

// e^x for x <= 0 to about one unit in the last place: 2^n times a polynomial (Cephes).
inline Vec exp_lanes(Vec x) {
    x = x < -87.0f ? all(-87.0f) : x;
    Vec n = x * 1.44269504088896341f - 0.5f;
    Ints whole = __builtin_convertvector(n, Ints);  // towards zero: n <= 0 rounds to nearest
    n = __builtin_convertvector(whole, Vec);
    x = x - n * 0.693359375f;
    x = x + n * 2.12194440e-4f;
    Vec y = all(1.9875691500e-4f);
    y = y * x + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * (x * x) + x + 1.0f;
    return y * (Vec)((whole + 127) << 23);
}

}  // namespace WEFT_LEVEL
