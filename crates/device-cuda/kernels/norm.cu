// Normalisations, computed in f32: the mean first, then the squares of what is left of it.
//
// Definitions of all: T, the element type; W and B, the types of weight and bias, or `none`; VECTOR, how
// many elements a thread takes at once (1 where rows are not aligned). Of the norms over rows also
// ROW_THREADS, the threads for each row, CENTRED, 1 for layer norm and 0 for RMS norm, and MODULATED, 1
// where scales and shifts are operands of the walk after output and input: 1 is added to the scales; of those whose rows
// are kept in registers HELD, the pieces that a thread keeps, and REPEAT, how many rows it takes. Of the norms
// over groups also INDEX, u32 or u64, and SILU, 1 where SiLU follows.

constexpr int THREADS = 256;

// Weights or biases at `at`; `otherwise` where there are none.
template <typename P>
__device__ __forceinline__ void load_parameters(const P *from, i64 at, float otherwise, float (&to)[VECTOR]) {
    if constexpr (same<P, none>::value) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) to[i] = otherwise;
    } else {
        load_floats<VECTOR>(from + at, to);
    }
}

#ifdef ACROSS

// RMS norm over a dimension that is not the last: each thread has one place, and threads of a warp have neighbours, so
// that every access is of a whole line. `inner` is how many places stand side by side.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_across(const T *x, T *out, const W *weight, i64 places, i64 inner, u32 size, float eps) {
    i64 place = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (place >= places) return;
    i64 first = place / inner * inner * size + place % inner;
    float squares = 0.0f;
    for (u32 i = 0; i < size; i++) {
        float value = to_float(x[first + i * inner]);
        squares += value * value;
    }
    float by = rsqrtf(squares / (float)size + eps);
    for (u32 i = 0; i < size; i++) {
        float w[VECTOR];
        load_parameters(weight, i, 1.0f, w);
        i64 at = first + i * inner;
        out[at] = from_float<T>(to_float(x[at]) * by * w[0]);
    }
}

#elif defined(ROW_THREADS)

// Threads of a block: those of one long row, or of several short ones.
constexpr int BLOCK = ROW_THREADS > 32 ? ROW_THREADS : THREADS;
constexpr int ROWS = BLOCK / ROW_THREADS;
constexpr int OPERANDS = MODULATED ? 4 : 2;

__device__ __forceinline__ float spread(const float (&x)[VECTOR], float mean) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum += (x[i] - mean) * (x[i] - mean);
    return sum;
}

__device__ __forceinline__ float total(const float (&x)[VECTOR]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum += x[i];
    return sum;
}

__device__ __forceinline__ void write_piece(T *to, const float (&x)[VECTOR], const W *weight, const B *bias,
                                            i64 at, float mean, float by) {
    float w[VECTOR], b[VECTOR], y[VECTOR];
    load_parameters(weight, at, 1.0f, w);
    load_parameters(bias, at, 0.0f, b);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) y[i] = (x[i] - mean) * by * (MODULATED ? 1.0f + w[i] : w[i]) + b[i];
    store_floats<VECTOR>(to + at, y);
}

#ifdef HELD

// Rows that are kept in registers as they are stored, HELD pieces in each thread. Short rows are so little work that a
// thread takes REPEAT of them, whose values are all under way before the first is needed.
struct Row {
    T *out;
    const W *weight;
    const B *bias;
    Pack<T, VECTOR> x[HELD];
};

__device__ __forceinline__ void widen(const Pack<T, VECTOR> &pack, float (&x)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++) x[i] = to_float(pack.value[i]);
}

__device__ __forceinline__ void read_row(const Walk<OPERANDS> &walk, u32 index, u32 lane, u32 pieces, Row &row) {
    i64 at[OPERANDS];
    locate(walk, index, at);
    row.out = static_cast<T *>(walk.base[0]) + at[0];
    const T *from = static_cast<const T *>(walk.base[1]) + at[1];
    if constexpr (MODULATED) {
        row.weight = static_cast<const W *>(walk.base[OPERANDS - 2]) + at[OPERANDS - 2];
        row.bias = static_cast<const B *>(walk.base[OPERANDS - 1]) + at[OPERANDS - 1];
    }
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        u32 piece = h * ROW_THREADS + lane;
        if (piece >= pieces) continue;
        if constexpr (VECTOR == 1) row.x[h].value[0] = from[piece];
        else row.x[h] = *reinterpret_cast<const Pack<T, VECTOR> *>(from + piece * VECTOR);
    }
}

__device__ __forceinline__ void normalise_row(const Row &row, u32 lane, u32 size, float eps) {
    u32 pieces = size / VECTOR;
    float x[VECTOR], mean = 0.0f, squares = 0.0f;
    if (CENTRED) {
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            if (h * ROW_THREADS + lane >= pieces) continue;
            widen(row.x[h], x);
            mean += total(x);
        }
        mean = across_row<Sum, ROW_THREADS>(mean) / (float)size;
    }
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        if (h * ROW_THREADS + lane >= pieces) continue;
        widen(row.x[h], x);
        squares += spread(x, mean);
    }
    squares = across_row<Sum, ROW_THREADS>(squares) / (float)size;
    float by = 1.0f / sqrtf(squares + eps);
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        u32 piece = h * ROW_THREADS + lane;
        if (piece >= pieces) continue;
        widen(row.x[h], x);
        write_piece(row.out, x, row.weight, row.bias, piece * VECTOR, mean, by);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    norm_rows(const Walk<OPERANDS> walk, const W *weight, const B *bias, u32 rows, u32 size, float eps) {
    u32 lane = threadIdx.x % ROW_THREADS, first = blockIdx.x * (ROWS * REPEAT) + threadIdx.x / ROW_THREADS;
    Row row[REPEAT];
#pragma unroll
    for (int r = 0; r < REPEAT; r++) {
        row[r].weight = weight;
        row[r].bias = bias;
        if (first + r * ROWS < rows) read_row(walk, first + r * ROWS, lane, size / VECTOR, row[r]);
    }
#pragma unroll
    for (int r = 0; r < REPEAT; r++) {
        if (first + r * ROWS < rows) normalise_row(row[r], lane, size, eps);
    }
}

#else

// Rows that are too long for that are read again.
extern "C" __global__ void __launch_bounds__(BLOCK)
    norm_long_rows(const Walk<OPERANDS> walk, const W *weight, const B *bias, u32 rows, u32 size, float eps) {
    u32 row = blockIdx.x * ROWS + threadIdx.x / ROW_THREADS, lane = threadIdx.x % ROW_THREADS;
    if (row >= rows) return;
    i64 at[OPERANDS];
    locate(walk, row, at);
    T *out = static_cast<T *>(walk.base[0]) + at[0];
    const T *from = static_cast<const T *>(walk.base[1]) + at[1];
    if constexpr (MODULATED) {
        weight = static_cast<const W *>(walk.base[OPERANDS - 2]) + at[OPERANDS - 2];
        bias = static_cast<const B *>(walk.base[OPERANDS - 1]) + at[OPERANDS - 1];
    }
    u32 pieces = size / VECTOR;
    float x[VECTOR], mean = 0.0f, squares = 0.0f;
    if (CENTRED) {
        for (u32 piece = lane; piece < pieces; piece += ROW_THREADS) {
            load_floats<VECTOR>(from + (i64)piece * VECTOR, x);
            mean += total(x);
        }
        mean = across_row<Sum, ROW_THREADS>(mean) / (float)size;
    }
    for (u32 piece = lane; piece < pieces; piece += ROW_THREADS) {
        load_floats<VECTOR>(from + (i64)piece * VECTOR, x);
        squares += spread(x, mean);
    }
    squares = across_row<Sum, ROW_THREADS>(squares) / (float)size;
    float by = 1.0f / sqrtf(squares + eps);
    for (u32 piece = lane; piece < pieces; piece += ROW_THREADS) {
        load_floats<VECTOR>(from + (i64)piece * VECTOR, x);
        write_piece(out, x, weight, bias, (i64)piece * VECTOR, mean, by);
    }
}

#endif

#else

// Number of values, their mean, and the sum of squared distances from it.
struct Moments {
    float count, mean, squares;
};

__device__ __forceinline__ Moments merge(Moments a, Moments b) {
    float count = a.count + b.count;
    if (count == 0.0f) return a;
    float share = b.count / count, distance = b.mean - a.mean;
    return Moments{count, a.mean + distance * share,
                   a.squares + b.squares + distance * distance * a.count * share};
}

__device__ __forceinline__ Moments across_warp(Moments m) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        Moments other{__shfl_xor_sync(~0u, m.count, step), __shfl_xor_sync(~0u, m.mean, step),
                      __shfl_xor_sync(~0u, m.squares, step)};
        // Both partners merge in the same order, so that all threads end with the same bits.
        m = (threadIdx.x & step) ? merge(other, m) : merge(m, other);
    }
    return m;
}

__device__ __forceinline__ Moments across_block(Moments m) {
    __shared__ Moments partial[THREADS / 32];
    m = across_warp(m);
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = m;
    __syncthreads();
    m = threadIdx.x % 32 < THREADS / 32 ? partial[threadIdx.x % 32] : Moments{0.0f, 0.0f, 0.0f};
    return across_warp(m);
}

// Moments of `begin..end` over the block. Each thread sums distances from its own first value, which
// keeps the difference of sums accurate wherever the mean lies.
__device__ __forceinline__ Moments moments_of(const T *x, INDEX begin, INDEX end) {
    float shift = 0.0f, sum = 0.0f, squares = 0.0f, count = 0.0f;
    for (INDEX i = begin + threadIdx.x * VECTOR; i < end; i += THREADS * VECTOR) {
        float v[VECTOR];
        load_floats<VECTOR>(x + i, v);
        if (count == 0.0f) shift = v[0];
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
            float distance = v[e] - shift;
            sum += distance;
            squares += distance * distance;
        }
        count += VECTOR;
    }
    if (count == 0.0f) return Moments{0.0f, 0.0f, 0.0f};
    float mean = sum / count;
    return Moments{count, shift + mean, fmaxf(squares - sum * mean, 0.0f)};
}

// The sizes of a group: `length` values of channels of `spatial` values each, in `parts` of `chunk`.
struct Group {
    i64 length, spatial, chunk;
    u32 channels, groups, parts;
    float eps;
};

__device__ __forceinline__ void normalise(const T *x, T *out, const W *weight, const B *bias, const Group &group,
                                          INDEX begin, INDEX end, Moments m) {
    float by = 1.0f / sqrtf(m.squares / m.count + group.eps);
    u32 first_channel = blockIdx.x % group.groups * group.channels;
    for (INDEX i = begin + threadIdx.x * VECTOR; i < end; i += THREADS * VECTOR) {
        float v[VECTOR];
        load_floats<VECTOR>(x + i, v);
        u32 channel = first_channel + (u32)(i / (INDEX)group.spatial);
        float w = 1.0f, b = 0.0f;
        if constexpr (!same<W, none>::value) w = to_float(weight[channel]);
        if constexpr (!same<B, none>::value) b = to_float(bias[channel]);
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
            float y = (v[e] - m.mean) * by * w + b;
            v[e] = SILU ? y / (1.0f + expf(-y)) : y;
        }
        store_floats<VECTOR>(out + i, v);
    }
}

// Blocks are numbered by group first, then by part.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_moments(const T *x, Moments *moments, const Group group) {
    x += blockIdx.x * group.length;
    i64 begin = blockIdx.y * group.chunk, end = min(begin + group.chunk, group.length);
    Moments m = across_block(moments_of(x, (INDEX)begin, (INDEX)end));
    if (threadIdx.x == 0) moments[(i64)blockIdx.x * group.parts + blockIdx.y] = m;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    group_apply(const T *x, T *out, const W *weight, const B *bias, const Moments *moments, const Group group) {
    Moments m{0.0f, 0.0f, 0.0f};
    for (u32 part = threadIdx.x; part < group.parts; part += THREADS)
        m = merge(m, moments[(i64)blockIdx.x * group.parts + part]);
    m = across_block(m);
    i64 offset = blockIdx.x * group.length;
    i64 begin = blockIdx.y * group.chunk, end = min(begin + group.chunk, group.length);
    normalise(x + offset, out + offset, weight, bias, group, (INDEX)begin, (INDEX)end, m);
}

// Both in one, for groups that one block handles quickly.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_whole(const T *x, T *out, const W *weight, const B *bias, const Group group) {
    i64 offset = blockIdx.x * group.length;
    Moments m = across_block(moments_of(x + offset, 0, (INDEX)group.length));
    normalise(x + offset, out + offset, weight, bias, group, 0, (INDEX)group.length, m);
}

#endif
