// What every kernel file is compiled after: element types and their conversions, 16-byte accesses,
// walks over strided tensors, and reductions within a block. There are no includes, because machines
// that have the run-time compiler need not have its headers.

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct f8e4m3 { u8 bits; };
struct f8e5m2 { u8 bits; };
struct boolean { u8 bits; };

// Stands for the type of a parameter that is not there.
struct none {};

#define QUIET_NAN __int_as_float(0x7fc00000)
#define POSITIVE_INFINITY __int_as_float(0x7f800000)

template <typename A, typename B> struct same { static constexpr bool value = false; };
template <typename A> struct same<A, A> { static constexpr bool value = true; };

// ---- To float -----------------------------------------------------------------------------------

__device__ __forceinline__ float f16_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ float to_float(f16 v) { return f16_to_float(v.bits); }
__device__ __forceinline__ float to_float(bf16 v) { return __uint_as_float((u32)v.bits << 16); }

__device__ __forceinline__ float to_float(f8e4m3 v) {
    u32 magnitude = v.bits & 0x7f, sign = (u32)(v.bits & 0x80) << 24;
    float value = __uint_as_float((magnitude << 20) + (120u << 23));
    if (magnitude < 8) value = (float)magnitude * 0.001953125f;
    if (magnitude == 0x7f) value = QUIET_NAN;
    return __uint_as_float(__float_as_uint(value) | sign);
}

// The upper half of an f16.
__device__ __forceinline__ float to_float(f8e5m2 v) { return f16_to_float((u16)v.bits << 8); }

__device__ __forceinline__ float to_float(none) { return 0.0f; }
__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(double v) { return (float)v; }
__device__ __forceinline__ float to_float(boolean v) { return (float)v.bits; }
__device__ __forceinline__ float to_float(i64 v) { return (float)v; }
__device__ __forceinline__ float to_float(i32 v) { return (float)v; }
__device__ __forceinline__ float to_float(i16 v) { return (float)v; }
__device__ __forceinline__ float to_float(i8 v) { return (float)v; }
__device__ __forceinline__ float to_float(u64 v) { return (float)v; }
__device__ __forceinline__ float to_float(u32 v) { return (float)v; }
__device__ __forceinline__ float to_float(u16 v) { return (float)v; }
__device__ __forceinline__ float to_float(u8 v) { return (float)v; }

// ---- From float ---------------------------------------------------------------------------------

__device__ __forceinline__ u16 float_to_bf16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (u16)((bits >> 16) | 0x40);
    return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
}

__device__ __forceinline__ u16 float_to_f16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Rounds to `MANTISSA` bits after the point by adding in the float's own format. Below the smallest
// normal value, adding a power of two lets the addition itself round at the right place.
template <int MANTISSA, int BIAS> __device__ __forceinline__ u32 round_to_eight_bits(u32 magnitude) {
    const int drop = 23 - MANTISSA;
    const u32 smallest_normal = (u32)(128 - BIAS) << 23;
    if (magnitude < smallest_normal) {
        const u32 magic = (u32)(128 - BIAS + drop) << 23;
        return __float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(magic))) - magic;
    }
    u32 odd = (magnitude >> drop) & 1;
    return (magnitude - ((u32)(127 - BIAS) << 23) + ((1u << (drop - 1)) - 1) + odd) >> drop;
}

// Values that are too large become NaN, since e4m3 has no infinity.
__device__ __forceinline__ u8 float_to_f8e4m3(float value) {
    u32 bits = __float_as_uint(value), magnitude = bits & 0x7fffffff;
    u32 result = magnitude >= (1087u << 20) ? 0x7f : round_to_eight_bits<3, 7>(magnitude);
    return (u8)(result | ((bits >> 24) & 0x80));
}

__device__ __forceinline__ u8 float_to_f8e5m2(float value) {
    u32 bits = __float_as_uint(value), magnitude = bits & 0x7fffffff;
    u32 result = round_to_eight_bits<2, 15>(magnitude);
    if (magnitude >= (143u << 23)) result = magnitude > 0x7f800000 ? 0x7f : 0x7c;
    return (u8)(result | ((bits >> 24) & 0x80));
}

template <typename T> __device__ __forceinline__ T from_float(float value) {
    if constexpr (same<T, float>::value) return value;
    else if constexpr (same<T, bf16>::value) return bf16{float_to_bf16(value)};
    else if constexpr (same<T, f16>::value) return f16{float_to_f16(value)};
    else if constexpr (same<T, f8e4m3>::value) return f8e4m3{float_to_f8e4m3(value)};
    else if constexpr (same<T, f8e5m2>::value) return f8e5m2{float_to_f8e5m2(value)};
    else return (T)value;
}

// ---- Accesses of several elements ---------------------------------------------------------------

// `N` elements side by side, loaded and stored by as few instructions as 16 bytes each allow.
template <typename T, int N>
struct alignas(sizeof(T) * N >= 16 ? 16 : sizeof(T) * N) Pack {
    T value[N];
};

template <int N, typename T> __device__ __forceinline__ void load_floats(const T *from, float (&to)[N]) {
    if constexpr (N == 1) {
        to[0] = to_float(*from);
    } else {
        Pack<T, N> pack = *reinterpret_cast<const Pack<T, N> *>(from);
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = to_float(pack.value[i]);
    }
}

template <int N, typename T> __device__ __forceinline__ void store_floats(T *to, const float (&from)[N]) {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; i++) pack.value[i] = from_float<T>(from[i]);
    if constexpr (N == 1) *to = pack.value[0];
    else *reinterpret_cast<Pack<T, N> *>(to) = pack;
}

// ---- Walks --------------------------------------------------------------------------------------

// The common dimensions of `N` operands and the step of each operand along each, in elements. The host
// merges dimensions where it can and writes this structure.
template <int N> struct Walk {
    u32 rank;
    u32 unused;
    i64 dims[8];
    i64 strides[N][8];
    void *base[N];
};

// Where the `index`-th element of each operand is.
template <int N, typename I>
__device__ __forceinline__ void locate(const Walk<N> &walk, I index, i64 (&at)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) at[n] = 0;
    for (int d = (int)walk.rank - 1; d > 0; d--) {
        I size = (I)walk.dims[d], rest = index / size;
        i64 here = (i64)(index - rest * size);
#pragma unroll
        for (int n = 0; n < N; n++) at[n] += here * walk.strides[n][d];
        index = rest;
    }
#pragma unroll
    for (int n = 0; n < N; n++) at[n] += (i64)index * walk.strides[n][0];
}

// ---- Reductions ---------------------------------------------------------------------------------

struct Sum {
    static __device__ __forceinline__ float join(float a, float b) { return a + b; }
    static __device__ __forceinline__ float empty() { return 0.0f; }
};

// The larger and the smaller value; NaN if either is.
struct Largest {
    static __device__ __forceinline__ float join(float a, float b) { return a > b || a != a ? a : b; }
    static __device__ __forceinline__ float empty() { return -POSITIVE_INFINITY; }
};

struct Smallest {
    static __device__ __forceinline__ float join(float a, float b) { return a < b || a != a ? a : b; }
    static __device__ __forceinline__ float empty() { return POSITIVE_INFINITY; }
};

template <typename R> __device__ __forceinline__ float across_warp(float value) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) value = R::join(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

// Across the `THREADS` neighbouring threads (less than 32 if a power of two, 32, or the whole block of up to 1024) that
// share a row. Every one of them gets the result.
template <typename R, int THREADS> __device__ __forceinline__ float across_row(float value) {
    if constexpr (THREADS < 32) {
        u32 row = ((1u << (THREADS % 32)) - 1) << (threadIdx.x % 32 / THREADS * THREADS);
#pragma unroll
        for (int step = THREADS / 2; step > 0; step >>= 1)
            value = R::join(value, __shfl_xor_sync(row, value, step));
        return value;
    }
    value = across_warp<R>(value);
    if constexpr (THREADS > 32) {
        __shared__ float partial[32];
        __syncthreads();
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
        __syncthreads();
        value = threadIdx.x % 32 < THREADS / 32 ? partial[threadIdx.x % 32] : R::empty();
        value = across_warp<R>(value);
    }
    return value;
}
