// emu_half.h: the two 16-bit floating-point types. Arithmetic is fp32, rounded once to nearest
// even: the same bits as the device's, as fp32 holds more than twice the digits.
#ifndef EMU_HALF_H
#define EMU_HALF_H
#include "cuda_emu.h"

namespace emu {
static inline float bf16_to_f32(uint16_t h) { return bits_as<float>((uint32_t)h << 16); }

static inline uint16_t f32_to_bf16(float x) {
    const uint32_t u = bits_as<uint32_t>(x);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;  // the device's NaN
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, digits = h & 1023;
    if (exponent == 31) return bits_as<float>(sign | 0x7f800000 | digits << 13);
    if (exponent == 0) return bits_as<float>(sign | bits_as<uint32_t>((float)digits * 0x1p-24f));
    return bits_as<float>(sign | (exponent + 112) << 23 | digits << 13);
}

static inline uint16_t f32_to_f16(float x) {
    const uint32_t u = bits_as<uint32_t>(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return 0x7fff;
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // from 65520 on: infinity
    if (magnitude < 0x38800000)  // below 2^-14: a multiple of 2^-24
        return (uint16_t)(sign | (uint32_t)nearbyintf(bits_as<float>(magnitude) * 0x1p24f));
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}
}  // namespace emu

#define EMU_HALF_TYPE(T, to_f32, from_f32)                                                        \
    struct T##_raw { unsigned short x; };                                                         \
    struct alignas(2) T {                                                                         \
        unsigned short __x;                                                                       \
        T() = default;                                                                            \
        T(const T##_raw &r) : __x(r.x) {}                                                         \
        T(float x) : __x(from_f32(x)) {}                                                          \
        T(double x) : __x(from_f32((float)x)) {}                                                  \
        T(int x) : __x(from_f32((float)x)) {}                                                     \
        T(unsigned x) : __x(from_f32((float)x)) {}                                                \
        T(long x) : __x(from_f32((float)x)) {}                                                    \
        T(unsigned long x) : __x(from_f32((float)x)) {}                                           \
        T(long long x) : __x(from_f32((float)x)) {}                                               \
        T(unsigned long long x) : __x(from_f32((float)x)) {}                                      \
        operator float() const { return to_f32(__x); }                                            \
        operator T##_raw() const { return {__x}; }                                                \
        T &operator+=(T b) { return *this = T((float)*this + (float)b); }                         \
        T &operator-=(T b) { return *this = T((float)*this - (float)b); }                         \
        T &operator*=(T b) { return *this = T((float)*this * (float)b); }                         \
    };                                                                                            \
    static inline T operator+(T a, T b) { return T((float)a + (float)b); }                        \
    static inline T operator-(T a, T b) { return T((float)a - (float)b); }                        \
    static inline T operator*(T a, T b) { return T((float)a * (float)b); }                        \
    static inline T operator/(T a, T b) { return T((float)a / (float)b); }                        \
    static inline T operator-(T a) { return T##_raw{(unsigned short)(a.__x ^ 0x8000)}; }          \
    static inline bool operator<(T a, T b) { return (float)a < (float)b; }                        \
    static inline bool operator>(T a, T b) { return (float)a > (float)b; }                        \
    static inline bool operator<=(T a, T b) { return (float)a <= (float)b; }                      \
    static inline bool operator>=(T a, T b) { return (float)a >= (float)b; }                      \
    static inline bool operator==(T a, T b) { return (float)a == (float)b; }                      \
    static inline bool operator!=(T a, T b) { return (float)a != (float)b; }                      \
    struct alignas(4) T##2 { T x, y; };

#endif
