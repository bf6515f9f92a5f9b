// Operations that move and convert values.
//
// Definitions: INDEX, u32 or u64; and of conversions SOURCE and TARGET, the element types; of borders
// PADDED, the element type; of tables ENTRY, the type of the table, ID, that of the ids, and TARGET.

#if defined(SOURCE)

template <typename A> struct is_float_like {
    static constexpr bool value = same<A, float>::value || same<A, double>::value || same<A, f16>::value ||
                                  same<A, bf16>::value || same<A, f8e4m3>::value || same<A, f8e5m2>::value;
};

// The bounds of integers as floats, which for the widest are one above the largest.
template <typename D> struct Bounds {
    static constexpr bool is_signed = (D)-1 < (D)0;
    static constexpr int bits = sizeof(D) * 8 - (is_signed ? 1 : 0);
    static constexpr D largest = (D)(~0ull >> (64 - bits));
    static constexpr D smallest = is_signed ? (D)(-(i64)largest - 1) : (D)0;
};

template <typename D> __device__ __forceinline__ D truncate(double value) {
    if (value != value) return (D)0;
    if (value >= (double)Bounds<D>::largest) return Bounds<D>::largest;
    if (value <= (double)Bounds<D>::smallest) return Bounds<D>::smallest;
    return (D)value;
}

// Integers saturate too. Comparing magnitudes of one sign avoids C's mixing of signed and unsigned.
template <typename D, typename S> __device__ __forceinline__ D saturate(S value) {
    if constexpr (Bounds<S>::is_signed) {
        if (value < (S)0) {
            if constexpr (Bounds<D>::is_signed)
                return (i64)value < (i64)Bounds<D>::smallest ? Bounds<D>::smallest : (D)value;
            else return (D)0;
        }
    }
    return (u64)value > (u64)Bounds<D>::largest ? Bounds<D>::largest : (D)value;
}

template <typename S> __device__ __forceinline__ double to_double(S value) {
    if constexpr (same<S, double>::value) return value;
    else return (double)to_float(value);
}

template <typename D, typename S> __device__ __forceinline__ D convert(S value) {
    if constexpr (same<D, S>::value) {
        return value;
    } else if constexpr (same<D, boolean>::value) {
        if constexpr (is_float_like<S>::value) return boolean{(u8)(to_double(value) != 0.0)};
        else return boolean{(u8)(value != (S)0)};
    } else if constexpr (same<S, boolean>::value) {
        return convert<D>((u8)(value.bits != 0));
    } else if constexpr (same<D, double>::value) {
        if constexpr (is_float_like<S>::value) return (double)to_float(value);
        else return (double)value;
    } else if constexpr (is_float_like<D>::value) {
        return from_float<D>(to_float(value));
    } else if constexpr (is_float_like<S>::value) {
        return truncate<D>(to_double(value));
    } else {
        return saturate<D>(value);
    }
}

// One value for each thread, any strides. Operand 0 is the output.
extern "C" __global__ void __launch_bounds__(256) copy_single(const Walk<2> walk, u64 count) {
    INDEX index = (INDEX)blockIdx.x * 256 + threadIdx.x;
    if (index >= (INDEX)count) return;
    i64 at[2];
    locate(walk, index, at);
    SOURCE value = static_cast<const SOURCE *>(walk.base[1])[at[1]];
    static_cast<TARGET *>(walk.base[0])[at[0]] = convert<TARGET>(value);
}

// As many values for each thread as the wider of both types has in 16 bytes.
extern "C" __global__ void __launch_bounds__(256) copy_packed(const Walk<2> walk, u64 count) {
    constexpr int PACK = 16 / (sizeof(SOURCE) > sizeof(TARGET) ? sizeof(SOURCE) : sizeof(TARGET));
    INDEX index = (INDEX)blockIdx.x * 256 + threadIdx.x;
    if (index >= (INDEX)count) return;
    i64 at[2];
    locate(walk, index, at);
    typedef Pack<SOURCE, PACK> Read;
    typedef Pack<TARGET, PACK> Written;
    Read read = *reinterpret_cast<const Read *>(static_cast<const SOURCE *>(walk.base[1]) + at[1]);
    Written written;
#pragma unroll
    for (int i = 0; i < PACK; i++) written.value[i] = convert<TARGET>(read.value[i]);
    *reinterpret_cast<Written *>(static_cast<TARGET *>(walk.base[0]) + at[0]) = written;
}

// Where the input is packed along another dimension than the output: tiles of 32 by 32 pass through
// shared memory, so that both sides are accessed along their packed dimension. The walk is over the
// other dimensions. `rows` is the size of the dimension in which the input is packed, `columns` of the
// one in which the output is; the strides are those of the other operand along each.
extern "C" __global__ void __launch_bounds__(256)
    copy_transposed(const Walk<2> walk, u32 rows, u32 columns, i64 out_row_stride, i64 in_column_stride) {
    __shared__ TARGET tile[32][33];
    u32 row_tiles = (rows + 31) / 32, column_tiles = (columns + 31) / 32, index = blockIdx.x;
    u32 first_column = index % column_tiles * 32;
    index /= column_tiles;
    u32 first_row = index % row_tiles * 32;
    i64 at[2];
    locate(walk, index / row_tiles, at);
    const SOURCE *from = static_cast<const SOURCE *>(walk.base[1]) + at[1];
    TARGET *to = static_cast<TARGET *>(walk.base[0]) + at[0];
    u32 x = threadIdx.x % 32;
    for (u32 y = threadIdx.x / 32; y < 32; y += 8) {
        u32 row = first_row + x, column = first_column + y;
        if (row < rows && column < columns) tile[y][x] = convert<TARGET>(from[row + column * in_column_stride]);
    }
    __syncthreads();
    for (u32 y = threadIdx.x / 32; y < 32; y += 8) {
        u32 row = first_row + y, column = first_column + x;
        if (row < rows && column < columns) to[row * out_row_stride + column] = tile[x][y];
    }
}

#elif defined(PADDED)

// Mode 0 is a constant, 1 reflection, 2 the border's value, 3 the other side.
struct Border {
    u32 rank, mode;
    float value;
    u32 unused;
    i64 out[8], size[8], before[8], stride[8];
};

extern "C" __global__ void __launch_bounds__(256) pad(const PADDED *x, PADDED *out, const Border border, u64 count) {
    INDEX index = (INDEX)blockIdx.x * 256 + threadIdx.x;
    if (index >= (INDEX)count) return;
    INDEX rest = index;
    i64 at = 0;
    bool inside = true;
    for (int d = (int)border.rank - 1; d >= 0; d--) {
        INDEX out_size = (INDEX)border.out[d], upper = rest / out_size;
        i64 here = (i64)(rest - upper * out_size) - border.before[d], size = border.size[d];
        rest = upper;
        if (here < 0 || here >= size) {
            if (border.mode == 0) inside = false;
            else if (border.mode == 1) here = here < 0 ? -here : 2 * (size - 1) - here;
            else if (border.mode == 2) here = here < 0 ? 0 : size - 1;
            else here += here < 0 ? size : -size;
        }
        at += here * border.stride[d];
    }
    out[index] = inside ? x[at] : from_float<PADDED>(border.value);
}

#else

// One block for each id.
extern "C" __global__ void __launch_bounds__(256)
    embedding(const ENTRY *table, const ID *ids, TARGET *out, i64 entries, i64 size) {
    i64 id = ids[blockIdx.x];
    bool known = id >= 0 && id < entries;
    table += (known ? id : 0) * size;
    out += blockIdx.x * size;
    for (i64 i = threadIdx.x; i < size; i += 256) out[i] = from_float<TARGET>(known ? to_float(table[i]) : QUIET_NAN);
}

#endif
