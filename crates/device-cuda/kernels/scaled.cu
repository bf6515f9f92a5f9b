// Codes with scales beside them to floats. Additions and multiplications are those of the formats' reference, one by one
// and never fused, so that results have the same bits on every device.
//
// Definitions: TARGET, the type to write, to which the reference rounds on the way; SCHEME, one of those below; GROUP, the
// columns that are rotated together, 1 if none are; and ID, the type of the ids where rows are looked up.

#define INT8 1
#define MXFP8 2
#define NVFP4 3

#define MUL __fmul_rn
#define ADD __fadd_rn
#define SUB __fsub_rn

// Values of a row that each thread unpacks, and threads of a block.
constexpr int EACH = 16, THREADS = 128;

__device__ __forceinline__ float rounded(float value) { return to_float(from_float<TARGET>(value)); }

// Neighbouring bytes, which need not be aligned; those from `count` on are 0.
template <int N> __device__ __forceinline__ Pack<u8, N> bytes_at(const u8 *from, u32 count) {
    if (count >= N && (u64)from % N == 0) return *reinterpret_cast<const Pack<u8, N> *>(from);
    Pack<u8, N> pack;
#pragma unroll
    for (int i = 0; i < N; i++) pack.value[i] = i < count ? from[i] : 0;
    return pack;
}

#if SCHEME == MXFP8 || SCHEME == NVFP4

// The byte of a block's scale: in tiles of 128 rows and 4 columns, `across` of them side by side.
__device__ __forceinline__ u8 scale_at(const u8 *scales, i64 row, u32 block, u32 across) {
    i64 tile = row / 128 * across + block / 4;
    return scales[tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4];
}

#endif

#if SCHEME == NVFP4

// The number that an e2m1 code stands for.
__device__ __forceinline__ float e2m1(u32 code) {
    const float magnitude = code % 8 < 4 ? (float)(code % 8) * 0.5f : (code % 8 < 6 ? (float)(code % 8 - 2) : (float)(code % 8 * 2 - 8));
    return __uint_as_float(__float_as_uint(magnitude) | (code & 8) << 28);
}

#endif

#if GROUP > 1

// One value of four times the matrix of order 4: their sum without twice the value on the other side.
__device__ __forceinline__ float rotated(float a, float b, float c, float d, float other) {
    return SUB(ADD(ADD(a, b), ADD(c, d)), MUL(2.0f, other));
}

// The four values at a distance within a thread.
template <int DISTANCE> __device__ __forceinline__ void rotate_own(float (&v)[EACH]) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (i / DISTANCE % 4 != 0) continue;
        float a = v[i], b = v[i + DISTANCE], c = v[i + 2 * DISTANCE], d = v[i + 3 * DISTANCE];
        v[i] = rotated(a, b, c, d, d);
        v[i + DISTANCE] = rotated(a, b, c, d, c);
        v[i + 2 * DISTANCE] = rotated(a, b, c, d, b);
        v[i + 3 * DISTANCE] = rotated(a, b, c, d, a);
    }
}

// The four values of threads at a distance within a warp.
template <int DISTANCE> __device__ __forceinline__ void rotate_lanes(float (&v)[EACH]) {
    int lane = threadIdx.x % 32, digit = lane / DISTANCE % 4, first = lane - digit * DISTANCE;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float a = __shfl_sync(0xffffffff, v[i], first), b = __shfl_sync(0xffffffff, v[i], first + DISTANCE);
        float c = __shfl_sync(0xffffffff, v[i], first + 2 * DISTANCE);
        float d = __shfl_sync(0xffffffff, v[i], first + 3 * DISTANCE);
        v[i] = rotated(a, b, c, d, digit == 0 ? d : digit == 1 ? c : digit == 2 ? b : a);
    }
}

#if GROUP == 1024

// The four values of threads at a distance of sixteen, which are in two warps.
__device__ __forceinline__ void rotate_block(float (&v)[EACH]) {
    __shared__ float all[EACH][THREADS];
#pragma unroll
    for (int i = 0; i < EACH; i++) all[i][threadIdx.x] = v[i];
    __syncthreads();
    int digit = threadIdx.x / 16 % 4, first = threadIdx.x - digit * 16;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float a = all[i][first], b = all[i][first + 16], c = all[i][first + 32], d = all[i][first + 48];
        v[i] = rotated(a, b, c, d, digit == 0 ? d : digit == 1 ? c : digit == 2 ? b : a);
    }
    __syncthreads();
}

#endif

// Every thread of a block takes part, whether its values are in the row or not.
__device__ __forceinline__ void rotate(float (&v)[EACH]) {
    rotate_own<1>(v);
    float factor = 0.5f;
#if GROUP >= 16
    rotate_own<4>(v);
    factor = 0.25f;
#endif
#if GROUP >= 64
    rotate_lanes<1>(v);
    factor = 0.125f;
#endif
#if GROUP >= 256
    rotate_lanes<4>(v);
    factor = 0.0625f;
#endif
#if GROUP == 1024
    rotate_block(v);
    factor = 0.03125f;
#endif
#pragma unroll
    for (int i = 0; i < EACH; i++) v[i] = MUL(v[i], factor);
}

#endif

// A matrix as it is stored, its scales, and the rows of it that are wanted.
struct Stored {
    const u8 *codes;
    // f32 of rows (or one), or bytes of blocks in tiles.
    const u8 *scales;
    // One f32 that multiplies the scales of blocks.
    const float *tensor;
    // Which rows, if not all in order.
    const ID *ids;
    // Rows of it, rows of scales before its first, rows that are wanted.
    i64 entries, first_row, rows;
    // Columns of it, columns that are wanted, tiles of scales side by side, and whether each row has a scale.
    u32 stored_columns, columns, across, by_row;
};

// Sixteen values of a row, before they are rotated; zeros behind its end.
__device__ __forceinline__ void read(const Stored &m, i64 row, u32 column, float (&v)[EACH]) {
#if SCHEME == INT8
    float scale = reinterpret_cast<const float *>(m.scales)[m.by_row ? row : 0];
    Pack<u8, EACH> codes = bytes_at<EACH>(m.codes + row * m.stored_columns + column, m.stored_columns - column);
#pragma unroll
    for (int i = 0; i < EACH; i++) v[i] = MUL((float)(i8)codes.value[i], scale);
#elif SCHEME == MXFP8
    float scale = __uint_as_float((u32)scale_at(m.scales, m.first_row + row, column / 32, m.across) << 23);
    Pack<u8, EACH> codes = bytes_at<EACH>(m.codes + row * m.stored_columns + column, m.stored_columns - column);
#pragma unroll
    for (int i = 0; i < EACH; i++) v[i] = MUL(to_float(f8e4m3{codes.value[i]}), scale);
#else
    f8e4m3 block{scale_at(m.scales, m.first_row + row, column / 16, m.across)};
    float scale = rounded(MUL(rounded(*m.tensor), to_float(block)));
    Pack<u8, EACH / 2> codes = bytes_at<EACH / 2>(m.codes + row * (m.stored_columns / 2) + column / 2, EACH / 2);
#pragma unroll
    for (int i = 0; i < EACH; i++) v[i] = MUL(e2m1(i % 2 ? codes.value[i / 2] & 15 : codes.value[i / 2] >> 4), scale);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) unpack_scaled(const Stored m, TARGET *out) {
    u32 column = (blockIdx.x * THREADS + threadIdx.x) * EACH;
    for (i64 index = blockIdx.y; index < m.rows; index += gridDim.y) {
        i64 row = m.ids != nullptr ? (i64)m.ids[index] : index;
        bool there = row >= 0 && row < m.entries;
        float v[EACH];
        if (there && column < m.stored_columns) {
            read(m, row, column, v);
        } else {
#pragma unroll
            for (int i = 0; i < EACH; i++) v[i] = there ? 0.0f : QUIET_NAN;
        }
#if GROUP > 1
        rotate(v);
#endif
        TARGET *to = out + index * m.columns + column;
        if (column + EACH <= m.columns && (u64)to % 16 == 0) {
            store_floats<EACH>(to, v);
        } else {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (column + i < m.columns) to[i] = from_float<TARGET>(v[i]);
        }
    }
}
