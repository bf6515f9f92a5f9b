// Scaled dot-product attention with an online softmax: memory is linear in the number of keys.
//
// Definitions: T, the element type; HEAD, the head size rounded up to one that is compiled; MASK, 0 for
// none, 1 for causal, 2 for additive; TENSOR, 1 for the tensor-core kernel (bf16 and f16, sm_80 and
// later), 0 for the plain one; for the former ALIGNED, 1 where all rows are whole 16-byte pieces at
// 16-byte addresses, and SCALE_FIRST, 1 where scores are scaled before their maximum is taken, as an
// additive mask or a factor that is not positive needs. CAP, 1 where scores are bent to stay below a cap, which
// needs SCALE_FIRST; it may be left out.

#ifndef CAP
#define CAP 0
#endif

// Strides are in elements: batch, position, head; of the mask batch, head, query, key.
struct Call {
    i32 queries, keys, heads_per_group, size;
    float scale, cap;
    i64 q[3], k[3], v[3], out[3], mask[4];
};

// How many keys, counted from the first, a query may see.
__device__ __forceinline__ int visible_keys(const Call &call, int query) {
    return MASK == 1 ? min(call.keys, query + call.keys - call.queries + 1) : call.keys;
}

#if TENSOR

constexpr float LOG2_E = 1.44269504088896341f;
constexpr int CHUNKS = HEAD / 8;             // 16-byte pieces of a row
constexpr int TILES = HEAD <= 128 ? 2 : 1;   // of 16 queries, for each warp
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * 32;
constexpr int ROWS = WARPS * TILES * 16;     // queries of a block
constexpr int KEYS = 64;                     // keys of a step
constexpr int COLUMNS = KEYS / 8;            // of eight keys

__device__ __forceinline__ u32 shared_address(const void *pointer) {
    return (u32)__cvta_generic_to_shared(pointer);
}

// Pieces of a row are permuted so that the same piece of eight neighbouring rows lies in eight different
// groups of banks.
__device__ __forceinline__ int swizzle(int row, int chunk) {
    return chunk ^ (CHUNKS % 8 == 0 ? row & 7 : (row >> 1) & 3);
}

__device__ __forceinline__ u32 chunk_offset(int row, int chunk) {
    return (u32)(row * CHUNKS + swizzle(row, chunk)) * 16;
}

__device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&to)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (same<T, bf16>::value) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

__device__ __forceinline__ u32 pack_pair(float low, float high) {
    u32 pair;
    if constexpr (same<T, bf16>::value) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Copies the 16 bytes of `source` to shared memory, or zeros where `inside` is false. `left` is how many
// values the row has from here on.
__device__ __forceinline__ void load_chunk(u32 target, const T *source, bool inside, int left) {
#if ALIGNED
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(target), "l"(__cvta_generic_to_global(source)), "r"(inside ? 16 : 0)
                 : "memory");
#else
    u32 words[4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
        u32 low = inside && 2 * w < left ? source[2 * w].bits : 0;
        u32 high = inside && 2 * w + 1 < left ? source[2 * w + 1].bits : 0;
        words[w] = low | high << 16;
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "r"(target), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
#endif
}

// Starts copying `COUNT` rows from row `first` on; rows from `limit` on and values beyond the head are 0.
template <int COUNT>
__device__ __forceinline__ void load_rows(u32 to, const T *from, i64 stride, int first, int limit, int size) {
    if constexpr (THREADS % CHUNKS == 0) {
        // Each thread keeps to one column of pieces, so that one addition finds the next row.
        constexpr int STEP = THREADS / CHUNKS;
        int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        const T *source = from + (i64)(first + row) * stride + chunk * 8;
        int left = size - chunk * 8, rows = left > 0 ? limit - first - row : 0;
#pragma unroll
        for (int i = 0; i < COUNT / STEP; i++) {
            bool inside = i * STEP < rows;
            load_chunk(to + chunk_offset(row + i * STEP, chunk), inside ? source : from, inside, left);
            source += STEP * stride;
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT * CHUNKS / THREADS; i++) {
            int piece = i * THREADS + threadIdx.x;
            int row = piece / CHUNKS, chunk = piece % CHUNKS, left = size - chunk * 8;
            bool inside = first + row < limit && left > 0;
            const T *source = from + (inside ? (i64)(first + row) * stride + chunk * 8 : 0);
            load_chunk(to + chunk_offset(row, chunk), source, inside, left);
        }
    }
}

// Scores of a warp's queries against the keys of a step.
__device__ __forceinline__ void scores_of(float (&s)[TILES][COLUMNS][4], u32 q, u32 k) {
    int lane = threadIdx.x % 32;
    int q_row = lane % 16, q_chunk = lane / 16;
    int k_row = lane % 8 + lane / 16 * 8, k_chunk = lane / 8 % 2;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) s[tile][n][c] = 0.0f;
#pragma unroll
    for (int step = 0; step < HEAD / 16; step++) {
        u32 a[TILES][4];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            load_matrices(a[tile], q + tile * 16 * CHUNKS * 16 + chunk_offset(q_row, step * 2 + q_chunk));
#pragma unroll
        for (int pair = 0; pair < COLUMNS / 2; pair++) {
            u32 b[4];
            load_matrices(b, k + pair * 16 * CHUNKS * 16 + chunk_offset(k_row, step * 2 + k_chunk));
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                multiply_add(s[tile][2 * pair], a[tile], b[0], b[1]);
                multiply_add(s[tile][2 * pair + 1], a[tile], b[2], b[3]);
            }
        }
    }
}

// Adds the weighted values of a step.
__device__ __forceinline__ void add_values(float (&o)[TILES][HEAD / 8][4], float (&p)[TILES][COLUMNS][4], u32 v) {
    int lane = threadIdx.x % 32;
    int v_row = lane % 16, v_chunk = lane / 16;
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        u32 a[TILES][4];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const float(&left)[4] = p[tile][2 * step], (&right)[4] = p[tile][2 * step + 1];
            a[tile][0] = pack_pair(left[0], left[1]);
            a[tile][1] = pack_pair(left[2], left[3]);
            a[tile][2] = pack_pair(right[0], right[1]);
            a[tile][3] = pack_pair(right[2], right[3]);
        }
#pragma unroll
        for (int pair = 0; pair < HEAD / 16; pair++) {
            u32 b[4];
            load_matrices_transposed(b, v + step * 16 * CHUNKS * 16 + chunk_offset(v_row, pair * 2 + v_chunk));
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                multiply_add(o[tile][2 * pair], a[tile], b[0], b[1]);
                multiply_add(o[tile][2 * pair + 1], a[tile], b[2], b[3]);
            }
        }
    }
}

// Scales, adds the mask, and hides keys. `query` is the warp's first, `key` the step's first; `hide`
// says whether any key may have to be hidden.
__device__ __forceinline__ void mask_scores(float (&s)[TILES][COLUMNS][4], const Call &call, const T *mask,
                                            int query, int key, bool hide) {
    int lane = threadIdx.x % 32;
    if (!SCALE_FIRST && !hide) return;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = query + tile * 16 + half * 8 + lane / 4;
            int visible = visible_keys(call, row);
            const T *mask_row = mask + (row < call.queries ? (i64)row * call.mask[2] : 0);
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    int column = key + n * 8 + lane % 4 * 2 + c;
                    float &score = s[tile][n][half * 2 + c];
                    if (SCALE_FIRST) score *= call.scale;
                    if (CAP) score = call.cap * tanhf(score / call.cap);
                    if (MASK == 2 && column < call.keys) score += to_float(mask_row[column * call.mask[3]]);
                    if (column >= visible) score = -POSITIVE_INFINITY;
                }
            }
        }
    }
}

// Turns scores into weights, and rescales what has been added up so far to the new maximum.
__device__ __forceinline__ void soften(float (&s)[TILES][COLUMNS][4], float (&o)[TILES][HEAD / 8][4],
                                       float (&largest)[TILES][2], float (&total)[TILES][2], float scale) {
    float rescale[TILES][2];
    bool changed = false;
    // Without a mask the scale is part of the exponent's multiply-add.
    const float factor = SCALE_FIRST ? LOG2_E : scale * LOG2_E;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float high = largest[tile][half];
#pragma unroll
            for (int n = 0; n < COLUMNS; n++)
                high = fmaxf(high, fmaxf(s[tile][n][half * 2], s[tile][n][half * 2 + 1]));
            high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
            high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
            // A row that has seen nothing yet keeps -infinity as its maximum and 0 as its weights.
            float base = high == -POSITIVE_INFINITY ? 0.0f : high;
            float by = exp2_fast((largest[tile][half] - base) * factor);
            largest[tile][half] = high;
            rescale[tile][half] = by;
            changed |= by != 1.0f;
            float offset = base * factor, sum = 0.0f;
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float &score = s[tile][n][half * 2 + c];
                    score = SCALE_FIRST ? exp2_fast((score - base) * factor)
                                        : exp2_fast(fmaf(score, factor, -offset));
                    sum += score;
                }
            }
            total[tile][half] = total[tile][half] * by + sum;
        }
    }
    if (__any_sync(~0u, changed)) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) o[tile][n][c] *= rescale[tile][c / 2];
    }
}

// Divides by the sum of weights and writes a warp's rows. `staging` is the warp's own part of the shared
// queries, which it no longer needs.
__device__ __forceinline__ void write_rows(float (&o)[TILES][HEAD / 8][4], float (&total)[TILES][2],
                                           const Call &call, T *out, u32 staging, int query) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = total[tile][half];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            float by = sum > 0.0f ? 1.0f / sum : 0.0f;
            int row = tile * 16 + half * 8 + lane / 4;
#pragma unroll
            for (int n = 0; n < HEAD / 8; n++) {
                u32 pair = pack_pair(o[tile][n][half * 2] * by, o[tile][n][half * 2 + 1] * by);
                asm volatile("st.shared.u32 [%0], %1;"
                             :: "r"(staging + chunk_offset(row, n) + lane % 4 * 4), "r"(pair) : "memory");
            }
        }
    }
    __syncwarp();
#pragma unroll 1
    for (int piece = lane; piece < TILES * 16 * CHUNKS; piece += 32) {
        int row = piece / CHUNKS, chunk = piece % CHUNKS;
        if (query + row >= call.queries || chunk * 8 >= call.size) continue;
        u32 words[4];
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(staging + chunk_offset(row, chunk)));
        T *to = out + (i64)(query + row) * call.out[1] + chunk * 8;
#if ALIGNED
        *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
#else
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (chunk * 8 + i < call.size) to[i].bits = (u16)(words[i / 2] >> (i % 2 * 16));
#endif
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention(const T *q, const T *k, const T *v, const T *mask, T *out, const Call call) {
    extern __shared__ uint4 memory[];
    int first = blockIdx.x * ROWS, head = blockIdx.y, group = head / call.heads_per_group;
    q += blockIdx.z * call.q[0] + head * call.q[2];
    k += blockIdx.z * call.k[0] + group * call.k[2];
    v += blockIdx.z * call.v[0] + group * call.v[2];
    out += blockIdx.z * call.out[0] + head * call.out[2];
    if (MASK == 2) mask += blockIdx.z * call.mask[0] + head * call.mask[1];

    const u32 shared_q = shared_address(memory);
    const u32 shared_k = shared_q + ROWS * CHUNKS * 16, shared_v = shared_k + KEYS * CHUNKS * 16;
    const int warp_row = threadIdx.x / 32 * TILES * 16;
    const u32 warp_q = shared_q + warp_row * CHUNKS * 16;

    int last = min(first + ROWS, call.queries) - 1;
    int steps = max(0, (visible_keys(call, last) + KEYS - 1) / KEYS);
    float o[TILES][HEAD / 8][4], largest[TILES][2], total[TILES][2];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) o[tile][n][c] = 0.0f;
        largest[tile][0] = largest[tile][1] = -POSITIVE_INFINITY;
        total[tile][0] = total[tile][1] = 0.0f;
    }
    load_rows<ROWS>(shared_q, q, call.q[1], first, call.queries, call.size);
    if (steps > 0) load_rows<KEYS>(shared_k, k, call.k[1], 0, call.keys, call.size);
    copies_commit();
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        int key = step * KEYS;
        // The keys have arrived, and no warp reads the values of the last step any more.
        copies_wait();
        __syncthreads();
        load_rows<KEYS>(shared_v, v, call.v[1], key, call.keys, call.size);
        copies_commit();
        float s[TILES][COLUMNS][4];
        scores_of(s, warp_q, shared_k);
        mask_scores(s, call, mask, first + warp_row, key, key + KEYS > visible_keys(call, first));
        soften(s, o, largest, total, call.scale);
        // The values have arrived, and no warp reads the keys of this step any more.
        copies_wait();
        __syncthreads();
        if (step + 1 < steps) load_rows<KEYS>(shared_k, k, call.k[1], key + KEYS, call.keys, call.size);
        copies_commit();
        add_values(o, s, shared_v);
    }
    copies_wait();
    __syncthreads();
    write_rows(o, total, call, out, warp_q, first + warp_row);
}

#else

constexpr int ROWS = HEAD <= 128 ? 64 : 32;   // queries of a block
constexpr int KEYS = HEAD <= 128 ? 32 : 16;   // keys of a step
constexpr int THREADS = 256;                  // 16 for each of 16 groups of rows
constexpr int OWN_ROWS = ROWS / 16;
constexpr int OWN_KEYS = KEYS / 16;
constexpr int OWN_COLUMNS = HEAD / 64;        // of four values
constexpr int PITCH = HEAD + 4;

template <int COUNT>
__device__ __forceinline__ void load_rows(float *to, const T *from, i64 stride, int first, int limit, int size) {
    for (int i = threadIdx.x; i < COUNT * HEAD; i += THREADS) {
        int row = i / HEAD, column = i % HEAD;
        bool inside = first + row < limit && column < size;
        to[row * PITCH + column] = inside ? to_float(from[(i64)(first + row) * stride + column]) : 0.0f;
    }
}

template <typename R> __device__ __forceinline__ float across_sixteen(float value) {
#pragma unroll
    for (int step = 8; step > 0; step >>= 1) value = R::join(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

// Scores of a thread's rows against keys `column`, `column + 16`, …
__device__ __forceinline__ void scores_of(float (&s)[OWN_ROWS][OWN_KEYS], const float *q, const float *k,
                                          int row, int column) {
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++)
#pragma unroll
        for (int j = 0; j < OWN_KEYS; j++) s[i][j] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < HEAD; d += 4) {
        float4 b[OWN_KEYS];
#pragma unroll
        for (int j = 0; j < OWN_KEYS; j++)
            b[j] = *reinterpret_cast<const float4 *>(&k[(column + 16 * j) * PITCH + d]);
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            float4 a = *reinterpret_cast<const float4 *>(&q[(row + i) * PITCH + d]);
#pragma unroll
            for (int j = 0; j < OWN_KEYS; j++)
                s[i][j] += a.x * b[j].x + a.y * b[j].y + a.z * b[j].z + a.w * b[j].w;
        }
    }
}

// Scales, masks and softens scores, stores the weights, and rescales what has been added up so far.
__device__ __forceinline__ void soften(float (&s)[OWN_ROWS][OWN_KEYS], float (&o)[OWN_ROWS][OWN_COLUMNS][4],
                                       float (&largest)[OWN_ROWS], float (&total)[OWN_ROWS], float *weights,
                                       const Call &call, const T *mask, int query, int key) {
    int column = threadIdx.x % 16, row = threadIdx.x / 16 * OWN_ROWS;
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) {
        int visible = visible_keys(call, query + i);
        float high = largest[i];
#pragma unroll
        for (int j = 0; j < OWN_KEYS; j++) {
            int at = key + column + 16 * j;
            float score = s[i][j] * call.scale;
            if (CAP) score = call.cap * tanhf(score / call.cap);
            if (MASK == 2 && at < call.keys && query + i < call.queries)
                score += to_float(mask[(query + i) * call.mask[2] + at * call.mask[3]]);
            s[i][j] = at < visible ? score : -POSITIVE_INFINITY;
            high = fmaxf(high, s[i][j]);
        }
        high = across_sixteen<Largest>(high);
        float base = high == -POSITIVE_INFINITY ? 0.0f : high, sum = 0.0f;
        float by = expf(largest[i] - base);
        largest[i] = high;
#pragma unroll
        for (int j = 0; j < OWN_KEYS; j++) {
            float weight = expf(s[i][j] - base);
            weights[(row + i) * (KEYS + 1) + column + 16 * j] = weight;
            sum += weight;
        }
        total[i] = total[i] * by + sum;
#pragma unroll
        for (int c = 0; c < OWN_COLUMNS; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[i][c][e] *= by;
    }
}

__device__ __forceinline__ void add_values(float (&o)[OWN_ROWS][OWN_COLUMNS][4], const float *weights,
                                           const float *v) {
    int column = threadIdx.x % 16 * 4, row = threadIdx.x / 16 * OWN_ROWS;
#pragma unroll 4
    for (int key = 0; key < KEYS; key++) {
        float weight[OWN_ROWS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) weight[i] = weights[(row + i) * (KEYS + 1) + key];
#pragma unroll
        for (int c = 0; c < OWN_COLUMNS; c++) {
            float4 value = *reinterpret_cast<const float4 *>(&v[key * PITCH + column + 64 * c]);
#pragma unroll
            for (int i = 0; i < OWN_ROWS; i++) {
                o[i][c][0] += weight[i] * value.x;
                o[i][c][1] += weight[i] * value.y;
                o[i][c][2] += weight[i] * value.z;
                o[i][c][3] += weight[i] * value.w;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention(const T *q, const T *k, const T *v, const T *mask, T *out, const Call call) {
    extern __shared__ float4 memory[];
    float *shared_q = reinterpret_cast<float *>(memory);
    float *shared_kv = shared_q + ROWS * PITCH, *weights = shared_kv + KEYS * PITCH;
    int first = blockIdx.x * ROWS, head = blockIdx.y, group = head / call.heads_per_group;
    int column = threadIdx.x % 16, row = threadIdx.x / 16 * OWN_ROWS;
    q += blockIdx.z * call.q[0] + head * call.q[2];
    k += blockIdx.z * call.k[0] + group * call.k[2];
    v += blockIdx.z * call.v[0] + group * call.v[2];
    out += blockIdx.z * call.out[0] + head * call.out[2];
    if (MASK == 2) mask += blockIdx.z * call.mask[0] + head * call.mask[1];

    float o[OWN_ROWS][OWN_COLUMNS][4] = {}, largest[OWN_ROWS], total[OWN_ROWS];
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) largest[i] = -POSITIVE_INFINITY, total[i] = 0.0f;
    load_rows<ROWS>(shared_q, q, call.q[1], first, call.queries, call.size);
    int end = visible_keys(call, min(first + ROWS, call.queries) - 1);
    for (int key = 0; key < end; key += KEYS) {
        __syncthreads();
        load_rows<KEYS>(shared_kv, k, call.k[1], key, call.keys, call.size);
        __syncthreads();
        float s[OWN_ROWS][OWN_KEYS];
        scores_of(s, shared_q, shared_kv, row, column);
        soften(s, o, largest, total, weights, call, mask, first + row, key);
        __syncthreads();
        load_rows<KEYS>(shared_kv, v, call.v[1], key, call.keys, call.size);
        __syncthreads();
        add_values(o, weights, shared_kv);
    }
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) {
        float sum = across_sixteen<Sum>(total[i]);
        float by = sum > 0.0f ? 1.0f / sum : 0.0f;
        if (first + row + i >= call.queries) continue;
        T *to = out + (i64)(first + row + i) * call.out[1];
#pragma unroll
        for (int c = 0; c < OWN_COLUMNS; c++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (column * 4 + 64 * c + e < call.size)
                    to[column * 4 + 64 * c + e] = from_float<T>(o[i][c][e] * by);
    }
}

#endif
