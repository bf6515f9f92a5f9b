// Activations as e4m3 codes with a scale for each row, and what products of such codes leave to do.

#define LARGEST_CODE 448.0f

#ifdef ROW_THREADS

// What the largest value of a row counts as at least, so that rows of nothing have a scale, too.
constexpr float SMALLEST_LARGEST = 1e-12f;

// Definitions: T, the element type; VECTOR, how many elements a thread takes at once; ROW_THREADS, the threads of a row,
// which are a block; LONG, 1 where they cannot hold it and read it again; BEFORE, what is done to the row first: NOTHING, NORM
// (it is normalised, scaled and shifted, by operands of the walk after the input) or GELU (of the values from `first` on).

#define NOTHING 0
#define NORM 1
#define GELU 2

constexpr bool MODULATED = BEFORE == NORM;
constexpr int OPERANDS = MODULATED ? 3 : 1;

// GELU approximated with tanh. What becomes a code of 16 bits' worth can do with the card's own tanh.
__device__ __forceinline__ float gelu_tanh(float x) {
    float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    if constexpr (!same<T, float>::value) {
        float tangent;
        asm("tanh.approx.f32 %0, %1;" : "=f"(tangent) : "f"(inner));
        return 0.5f * x * (1.0f + tangent);
    }
#endif
    return 0.5f * x * (1.0f + tanhf(inner));
}

// The larger magnitude; NaN if either is.
struct Magnitude {
    static __device__ __forceinline__ float join(float a, float b) { return Largest::join(fabsf(a), fabsf(b)); }
    static __device__ __forceinline__ float empty() { return 0.0f; }
};

// Two codes in the order of memory.
__device__ __forceinline__ u16 two_codes(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u16 codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    return codes;
#else
    return (u16)(float_to_f8e4m3(first) | (u32)float_to_f8e4m3(second) << 8);
#endif
}

__device__ __forceinline__ void write_codes(u8 *to, const float (&y)[VECTOR], float by) {
#if VECTOR == 1
    *to = (u8)two_codes(y[0] * by, 0.0f);
#else
    Pack<u16, VECTOR / 2> codes;
#pragma unroll
    for (int i = 0; i < VECTOR / 2; i++) codes.value[i] = two_codes(y[2 * i] * by, y[2 * i + 1] * by);
    *reinterpret_cast<Pack<u16, VECTOR / 2> *>(to) = codes;
#endif
}

// A row of the input, and what moves it.
struct Row {
    const T *from, *scale, *shift;
    float mean, by;
    u32 first;

    __device__ __forceinline__ void load(u32 piece, float (&x)[VECTOR]) const {
        load_floats<VECTOR>(from + (i64)piece * VECTOR, x);
    }

    // From what was loaded to what becomes codes.
    __device__ __forceinline__ void move(u32 piece, float (&x)[VECTOR]) const {
        if constexpr (MODULATED) {
            float more[VECTOR], add[VECTOR];
            load_floats<VECTOR>(scale + (i64)piece * VECTOR, more);
            load_floats<VECTOR>(shift + (i64)piece * VECTOR, add);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) x[i] = (x[i] - mean) * by * (1.0f + more[i]) + add[i];
        }
        if (BEFORE == GELU && piece * VECTOR >= first) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++) x[i] = gelu_tanh(x[i]);
        }
    }
};

__device__ __forceinline__ float total(const float (&x)[VECTOR]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum += x[i];
    return sum;
}

__device__ __forceinline__ float spread(const float (&x)[VECTOR], float mean) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum += (x[i] - mean) * (x[i] - mean);
    return sum;
}

__device__ __forceinline__ float largest(const float (&x)[VECTOR]) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) most = Magnitude::join(most, x[i]);
    return most;
}

// What a row is multiplied with; its scale is written.
__device__ __forceinline__ float factor_of(float most, float *scale) {
    // Comparisons with NaN are false: a row with one stays one.
    if (most < SMALLEST_LARGEST) most = SMALLEST_LARGEST;
    if (threadIdx.x == 0) *scale = most / LARGEST_CODE;
    return LARGEST_CODE / most;
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    quantise_rows(const Walk<OPERANDS> walk, u8 *codes, float *scales, u32 size, u32 first, float eps) {
    u32 lane = threadIdx.x, pieces = size / VECTOR;
    i64 at[OPERANDS];
    locate(walk, blockIdx.x, at);
    Row row{static_cast<const T *>(walk.base[0]) + at[0], nullptr, nullptr, 0.0f, 1.0f, first};
    if constexpr (MODULATED) {
        row.scale = static_cast<const T *>(walk.base[OPERANDS - 2]) + at[OPERANDS - 2];
        row.shift = static_cast<const T *>(walk.base[OPERANDS - 1]) + at[OPERANDS - 1];
    }
    codes += (i64)blockIdx.x * size;
    scales += blockIdx.x;
#if LONG
    float x[VECTOR], mean = 0.0f, squares = 0.0f, most = 0.0f;
    if constexpr (MODULATED) {
        for (u32 piece = lane; piece < pieces; piece += ROW_THREADS) {
            row.load(piece, x);
            mean += total(x);
        }
        row.mean = across_row<Sum, ROW_THREADS>(mean) / (float)size;
        for (u32 piece = lane; piece < pieces; piece += ROW_THREADS) {
            row.load(piece, x);
            squares += spread(x, row.mean);
        }
        row.by = 1.0f / sqrtf(across_row<Sum, ROW_THREADS>(squares) / (float)size + eps);
    }
    for (u32 piece = lane; piece < pieces; piece += ROW_THREADS) {
        row.load(piece, x);
        row.move(piece, x);
        most = Magnitude::join(most, largest(x));
    }
    float by = factor_of(across_row<Magnitude, ROW_THREADS>(most), scales);
    for (u32 piece = lane; piece < pieces; piece += ROW_THREADS) {
        row.load(piece, x);
        row.move(piece, x);
        write_codes(codes + (i64)piece * VECTOR, x, by);
    }
#else
    // Pieces of a row that a thread keeps in registers.
    constexpr int HELD = 4;
    float x[HELD][VECTOR], mean = 0.0f, squares = 0.0f, most = 0.0f;
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        u32 piece = h * ROW_THREADS + lane;
        if (piece < pieces) {
            row.load(piece, x[h]);
            if (MODULATED) mean += total(x[h]);
        }
    }
    if constexpr (MODULATED) {
        row.mean = across_row<Sum, ROW_THREADS>(mean) / (float)size;
#pragma unroll
        for (int h = 0; h < HELD; h++)
            if (h * ROW_THREADS + lane < pieces) squares += spread(x[h], row.mean);
        row.by = 1.0f / sqrtf(across_row<Sum, ROW_THREADS>(squares) / (float)size + eps);
    }
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        u32 piece = h * ROW_THREADS + lane;
        if (piece < pieces) {
            row.move(piece, x[h]);
            most = Magnitude::join(most, largest(x[h]));
        }
    }
    float by = factor_of(across_row<Magnitude, ROW_THREADS>(most), scales);
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        u32 piece = h * ROW_THREADS + lane;
        if (piece < pieces) write_codes(codes + (i64)piece * VECTOR, x[h], by);
    }
#endif
}

#elif defined(ROWS)

// Up to ROWS rows of activations times a weight of e4m3, whose numbers are those of the unpacked weight: such products wait
// for the weight's bytes, so it is read once and as it is. T is the element type, B that of the bias or `none`. A warp
// makes one output; `size` is a multiple of 16.

__device__ __forceinline__ void load_codes(const f8e4m3 *from, float (&to)[16]) {
    Pack<u16, 8> codes = *reinterpret_cast<const Pack<u16, 8> *>(from);
#pragma unroll
    for (int i = 0; i < 8; i++) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
        u32 halves;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes.value[i]));
        to[2 * i] = f16_to_float((u16)halves);
        to[2 * i + 1] = f16_to_float((u16)(halves >> 16));
#else
        to[2 * i] = to_float(f8e4m3{(u8)codes.value[i]});
        to[2 * i + 1] = to_float(f8e4m3{(u8)(codes.value[i] >> 8)});
#endif
    }
}

extern "C" __global__ void __launch_bounds__(256)
    few_rows(const T *x, const f8e4m3 *weight, const float *scale, const B *bias, T *out, i64 x_stride, i64 out_stride,
             u32 rows, u32 columns, u32 size) {
    u32 column = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (column >= columns) return;
    weight += (i64)column * size;
    // As unpacking does it: the scale is rounded to the type, and so is every number.
    float by = scale ? to_float(from_float<T>(*scale)) : 1.0f;
    float sums[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) sums[r] = 0.0f;
#pragma unroll 4
    for (u32 at = lane * 16; at < size; at += 32 * 16) {
        float w[16];
        load_codes(weight + at, w);
#pragma unroll
        for (int i = 0; i < 16; i++) w[i] = to_float(from_float<T>(__fmul_rn(w[i], by)));
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float v[16];
            load_floats<16>(x + min(r, (int)rows - 1) * x_stride + at, v);
#pragma unroll
            for (int i = 0; i < 16; i++) sums[r] += v[i] * w[i];
        }
    }
    float add = 0.0f;
    if constexpr (!same<B, none>::value) add = to_float(bias[column]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = across_warp<Sum>(sums[r]);
        if (lane == 0 && r < (int)rows) out[r * out_stride + column] = from_float<T>(sum + add);
    }
}

#elif defined(T)

// Rows of a product of codes, times the scale of each, times that of the weight if there is one, plus the bias. T is the
// element type, B that of the bias or `none`. The product was made smaller by the largest code.
extern "C" __global__ void __launch_bounds__(256)
    scale_rows(T *out, const float *scales, const float *weight_scale, const B *bias, i64 rows, i64 columns, i64 stride) {
    i64 column = (i64)blockIdx.x * 256 + threadIdx.x;
    if (column >= columns) return;
    float by = LARGEST_CODE * (weight_scale ? *weight_scale : 1.0f), add = 0.0f;
    if constexpr (!same<B, none>::value) add = to_float(bias[column]);
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        T *at = out + row * stride + column;
        *at = from_float<T>(to_float(*at) * (scales[row] * by) + add);
    }
}

#else

// What a library reads once for each output: the scale of the weight, or 1 where it has none, and the bias, if there is
// one, in the type of the outputs. TARGET is that type, B the one of the bias or `none`.
extern "C" __global__ void __launch_bounds__(256)
    fill_columns(float *scales, TARGET *biases, const float *scale, const B *bias, i64 count) {
    i64 index = (i64)blockIdx.x * 256 + threadIdx.x;
    if (index >= count) return;
    scales[index] = scale ? *scale : 1.0f;
    if constexpr (!same<B, none>::value) biases[index] = from_float<TARGET>(to_float(bias[index]));
}

#endif
