// Rotary position embeddings: of a pair (a, b) comes (a·cos − b·sin, a·sin + b·cos).
//
// Definitions: T, the element type; HALF_SPLIT, 0 where neighbours form pairs and 1 where the halves do;
// VECTOR, elements that a thread takes at once; ALIGNED, 1 where those stand at aligned addresses and
// rows are whole multiples of them; INDEX, u32 or u64; W, the type of the weights with which each head is first
// normalised by its root mean square, or `none`. Then all of a head is rotated, and its pieces are 1, 2, 4 … 32
// neighbouring threads.

// Strides are in elements: batch, position, head. `tables` is 1 where each batch has its own angles.
struct Call {
    u32 positions, heads, size, rotated, pieces, tables;
    i64 x[3], out[3];
};

__device__ __forceinline__ void load_piece(const T *from, u32 left, float (&to)[VECTOR]) {
#if ALIGNED
    load_floats<VECTOR>(from, to);
#else
#pragma unroll
    for (int i = 0; i < VECTOR; i++) to[i] = i < left ? to_float(from[i]) : 0.0f;
#endif
}

__device__ __forceinline__ void store_piece(T *to, u32 left, const float (&from)[VECTOR]) {
#if ALIGNED
    store_floats<VECTOR>(to, from);
#else
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        if (i < left) to[i] = from_float<T>(from[i]);
#endif
}

template <int N> __device__ __forceinline__ void load_angles(const float *from, float (&to)[N]) {
#if ALIGNED
    load_floats<N>(from, to);
#else
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = from[i];
#endif
}

constexpr bool NORMED = !same<W, none>::value;

__device__ __forceinline__ float squares(const float (&x)[VECTOR]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum += x[i] * x[i];
    return sum;
}

// What the values of a head are multiplied with, from the part of their squares that this thread has.
__device__ __forceinline__ float head_scale(float sum, const Call &call, float eps) {
    for (u32 step = call.pieces / 2; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    return 1.0f / sqrtf(sum / (float)call.size + eps);
}

__device__ __forceinline__ void scale_piece(float (&x)[VECTOR], float by, const W *weight, u32 at) {
    if constexpr (NORMED) {
        float w[VECTOR];
        load_floats<VECTOR>(weight + at, w);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) x[i] = x[i] * by * w[i];
    }
}

extern "C" __global__ void __launch_bounds__(256)
    rope(const T *x, const W *weight, const float *cosines, const float *sines, T *out, const Call call,
         u64 count, float eps) {
    INDEX index = (INDEX)blockIdx.x * 256 + threadIdx.x;
    bool inside = index < (INDEX)count;
    if constexpr (NORMED) {
        // Threads of a warp add up together, so those past the end work along and write nothing.
        if (!inside) index = (INDEX)count - 1;
    } else if (!inside) {
        return;
    }
    u32 piece = (u32)(index % call.pieces);
    index /= call.pieces;
    u32 head = (u32)(index % call.heads);
    index /= call.heads;
    u32 position = (u32)(index % call.positions), batch = (u32)(index / call.positions);
    x += batch * call.x[0] + position * call.x[1] + head * call.x[2];
    out += batch * call.out[0] + position * call.out[1] + head * call.out[2];
    u32 half = call.rotated / 2, at = piece * VECTOR;
    i64 angles = ((i64)(batch * call.tables) * call.positions + position) * half;
    float a[VECTOR];
#if HALF_SPLIT
    if (at >= half) {
        // Past the pairs: what follows the rotated values.
        at += half;
        load_piece(x + at, call.size - at, a);
        store_piece(out + at, call.size - at, a);
        return;
    }
    float b[VECTOR], c[VECTOR], s[VECTOR], low[VECTOR], high[VECTOR];
    load_piece(x + at, VECTOR, a);
    load_piece(x + at + half, VECTOR, b);
    if constexpr (NORMED) {
        float by = head_scale(squares(a) + squares(b), call, eps);
        scale_piece(a, by, weight, at);
        scale_piece(b, by, weight, at + half);
        if (!inside) return;
    }
    load_angles<VECTOR>(cosines + angles + at, c);
    load_angles<VECTOR>(sines + angles + at, s);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        low[i] = a[i] * c[i] - b[i] * s[i];
        high[i] = a[i] * s[i] + b[i] * c[i];
    }
    store_piece(out + at, VECTOR, low);
    store_piece(out + at + half, VECTOR, high);
#else
    load_piece(x + at, call.size - at, a);
    if constexpr (NORMED) {
        scale_piece(a, head_scale(squares(a), call, eps), weight, at);
        if (!inside) return;
    }
    if (at < call.rotated) {
        float c[VECTOR / 2], s[VECTOR / 2];
        load_angles<VECTOR / 2>(cosines + angles + at / 2, c);
        load_angles<VECTOR / 2>(sines + angles + at / 2, s);
#pragma unroll
        for (int i = 0; i < VECTOR / 2; i++) {
            float even = a[2 * i], odd = a[2 * i + 1];
            a[2 * i] = even * c[i] - odd * s[i];
            a[2 * i + 1] = even * s[i] + odd * c[i];
        }
    }
    store_piece(out + at, call.size - at, a);
#endif
}
