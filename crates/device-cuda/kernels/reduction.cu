// Softmax over rows, and sums and extremes over dimensions. No atomics: results do not change from run
// to run.
//
// Definitions: T, the element type. Of softmax also VECTOR, elements that a thread takes at once, and
// ROW_THREADS, 32 or 256 threads for each row. Of reductions also KIND, `Sum`, `Largest` or `Smallest`,
// and INDEX, u32 or u64.

constexpr int THREADS = 256;

#ifdef ROW_THREADS

constexpr int ROWS = THREADS / ROW_THREADS;
// Pieces of a row that a thread keeps in registers; longer rows are read again.
constexpr int HELD = 4;

extern "C" __global__ void __launch_bounds__(THREADS) softmax_rows(const Walk<2> walk, u32 rows, u32 size) {
    u32 row = blockIdx.x * ROWS + threadIdx.x / ROW_THREADS, lane = threadIdx.x % ROW_THREADS;
    if (row >= rows) return;
    i64 at[2];
    locate(walk, row, at);
    T *out = static_cast<T *>(walk.base[0]) + at[0];
    const T *from = static_cast<const T *>(walk.base[1]) + at[1];
    u32 pieces = size / VECTOR;
    float x[HELD][VECTOR], high = -POSITIVE_INFINITY, sum = 0.0f;
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        u32 piece = h * ROW_THREADS + lane;
        if (piece >= pieces) continue;
        load_floats<VECTOR>(from + piece * VECTOR, x[h]);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) high = fmaxf(high, x[h][i]);
    }
    high = across_row<Largest, ROW_THREADS>(high);
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        if (h * ROW_THREADS + lane >= pieces) continue;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            x[h][i] = expf(x[h][i] - high);
            sum += x[h][i];
        }
    }
    float by = 1.0f / across_row<Sum, ROW_THREADS>(sum);
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        u32 piece = h * ROW_THREADS + lane;
        if (piece >= pieces) continue;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) x[h][i] *= by;
        store_floats<VECTOR>(out + piece * VECTOR, x[h]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    softmax_long_rows(const Walk<2> walk, u32 rows, u32 size) {
    u32 row = blockIdx.x * ROWS + threadIdx.x / ROW_THREADS, lane = threadIdx.x % ROW_THREADS;
    if (row >= rows) return;
    i64 at[2];
    locate(walk, row, at);
    T *out = static_cast<T *>(walk.base[0]) + at[0];
    const T *from = static_cast<const T *>(walk.base[1]) + at[1];
    u32 pieces = size / VECTOR;
    float x[VECTOR], high = -POSITIVE_INFINITY, sum = 0.0f;
    for (u32 piece = lane; piece < pieces; piece += ROW_THREADS) {
        load_floats<VECTOR>(from + (i64)piece * VECTOR, x);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) high = fmaxf(high, x[i]);
    }
    high = across_row<Largest, ROW_THREADS>(high);
    for (u32 piece = lane; piece < pieces; piece += ROW_THREADS) {
        load_floats<VECTOR>(from + (i64)piece * VECTOR, x);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum += expf(x[i] - high);
    }
    float by = 1.0f / across_row<Sum, ROW_THREADS>(sum);
    for (u32 piece = lane; piece < pieces; piece += ROW_THREADS) {
        load_floats<VECTOR>(from + (i64)piece * VECTOR, x);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) x[i] = expf(x[i] - high) * by;
        store_floats<VECTOR>(out + (i64)piece * VECTOR, x);
    }
}

#else

// A running result. Sums keep what each addition rounds away.
template <typename R> struct Running {
    float value = R::empty(), lost = 0.0f;

    __device__ __forceinline__ void add(float x) {
        if constexpr (same<R, Sum>::value) {
            float sum = value + x, added = sum - value;
            lost += (value - (sum - added)) + (x - added);
            value = sum;
        } else {
            value = R::join(value, x);
        }
    }

    // Infinite sums have lost nothing that could be told.
    __device__ __forceinline__ float result() const {
        return same<R, Sum>::value && fabsf(value) < POSITIVE_INFINITY ? value + lost : value;
    }
};

// `outputs` results of `length` values each, in `parts` of `chunk` values. The results are multiplied by
// `factor` and written to `out`; or as they are to `partial`, where there are several parts.
struct Call {
    i64 outputs, length, chunk;
    float factor;
    u32 parts;
    T *out;
    float *partial;
};

__device__ __forceinline__ void write_result(const Call &call, i64 output, u32 part, float value) {
    if (call.parts == 1) call.out[output] = from_float<T>(value * call.factor);
    else call.partial[part * call.outputs + output] = value;
}

// `GROUP` threads for each result.
template <int GROUP>
__device__ __forceinline__ void along(const Walk<1> &kept, const Walk<1> &reduced, const Call &call) {
    i64 output = (i64)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    if (output >= call.outputs) return;
    i64 start[1], at[1];
    locate(kept, (INDEX)output, start);
    const T *from = static_cast<const T *>(kept.base[0]) + start[0];
    i64 begin = blockIdx.y * call.chunk, end = min(begin + call.chunk, call.length);
    Running<KIND> running;
#pragma unroll 4
    for (i64 i = begin + threadIdx.x % GROUP; i < end; i += GROUP) {
        locate(reduced, (INDEX)i, at);
        running.add(to_float(from[at[0]]));
    }
    float value = across_row<KIND, GROUP>(running.result());
    if (threadIdx.x % GROUP == 0) write_result(call, output, blockIdx.y, value);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_by_warp(const Walk<1> kept, const Walk<1> reduced, const Call call) {
    along<32>(kept, reduced, call);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_by_block(const Walk<1> kept, const Walk<1> reduced, const Call call) {
    along<THREADS>(kept, reduced, call);
}

// For results that stand side by side: neighbouring threads take neighbouring results.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_across(const Walk<1> kept, const Walk<1> reduced, const Call call) {
    __shared__ float partial[THREADS / 32][32];
    u32 column = threadIdx.x % 32, slice = threadIdx.x / 32;
    i64 output = (i64)blockIdx.x * 32 + column;
    Running<KIND> running;
    if (output < call.outputs) {
        i64 start[1], at[1];
        locate(kept, (INDEX)output, start);
        const T *from = static_cast<const T *>(kept.base[0]) + start[0];
        i64 begin = blockIdx.y * call.chunk, end = min(begin + call.chunk, call.length);
#pragma unroll 4
        for (i64 i = begin + slice; i < end; i += THREADS / 32) {
            locate(reduced, (INDEX)i, at);
            running.add(to_float(from[at[0]]));
        }
    }
    partial[slice][column] = running.result();
    __syncthreads();
    if (slice != 0 || output >= call.outputs) return;
    Running<KIND> joined;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) joined.add(partial[i][column]);
    write_result(call, output, blockIdx.y, joined.result());
}

// The second step where results were split into parts.
extern "C" __global__ void __launch_bounds__(THREADS) reduce_parts(const Call call) {
    i64 output = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (output >= call.outputs) return;
    Running<KIND> running;
    for (u32 part = 0; part < call.parts; part++) running.add(call.partial[part * call.outputs + output]);
    call.out[output] = from_float<T>(running.result() * call.factor);
}

#endif
