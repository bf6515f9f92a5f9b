// Convolutions as matrix products: windows of the input laid out as columns, the weights of transposed
// convolutions reordered, and the bias. VALUE is the type of activations. Positions and sizes of one
// image fit into 32 bits; offsets into memory need 64.

// Up to three dimensions; unused ones in front have size 1. The host writes this structure.
struct Window {
    i32 in[3];      // sizes of the input
    i32 out[3];     // sizes of the output
    i32 kernel[3];
    i32 stride[3];
    i32 pad[3];     // in front
    i32 dilation[3];
    i32 mode;       // 0 zeros, 1 reflect, 2 replicate, 3 circular
    i32 transposed;
};

// The input index that output index `at` meets at kernel index `tap` along one dimension; -1 for zero.
__device__ __forceinline__ i32 source_index(const Window &w, int axis, i32 at, i32 tap) {
    const i32 size = w.in[axis];
    if (w.transposed) {
        const i32 index = at + w.pad[axis] - tap * w.dilation[axis];
        if (index < 0) return -1;
        const i32 source = index / w.stride[axis];
        return source * w.stride[axis] == index && source < size ? source : -1;
    }
    i32 index = at * w.stride[axis] - w.pad[axis] + tap * w.dilation[axis];
    if ((u32)index < (u32)size) return index;
    if (w.mode == 1) {
        const i32 period = size > 1 ? 2 * (size - 1) : 1;
        index %= period;
        if (index < 0) index += period;
        return index < size ? index : period - index;
    }
    if (w.mode == 2) return index < 0 ? 0 : size - 1;
    if (w.mode == 3) {
        index %= size;
        return index < 0 ? index + size : index;
    }
    return -1;
}

// columns[image][channel, tap][position] for `count` output positions from `first` on, with `leading`
// values from one row to the next. Threads stand along the positions, so that the reads of a tap and
// the writes of a row are of neighbours; a block does all taps of its channels.
extern "C" __global__ void windows_to_columns(
    const VALUE *__restrict__ x, VALUE *__restrict__ columns, Window w, i32 channels, i32 first, i32 count,
    i64 leading) {
    const i32 position = blockIdx.x * blockDim.x + threadIdx.x;
    if (position >= count) return;
    const i32 p = first + position, plane = p / w.out[2];
    const i32 at2 = p - plane * w.out[2], at0 = plane / w.out[1], at1 = plane - at0 * w.out[1];
    const i64 image = (i64)w.in[0] * w.in[1] * w.in[2];
    const i64 taps = (i64)w.kernel[0] * w.kernel[1] * w.kernel[2];
    for (i32 channel = blockIdx.y; channel < channels; channel += gridDim.y) {
        const i64 slice = (i64)blockIdx.z * channels + channel;
        const VALUE *from = x + slice * image;
        VALUE *to = columns + slice * taps * leading + position;
        for (i32 t0 = 0; t0 < w.kernel[0]; t0++) {
            const i32 i0 = source_index(w, 0, at0, t0);
            for (i32 t1 = 0; t1 < w.kernel[1]; t1++) {
                const i32 i1 = source_index(w, 1, at1, t1);
                const VALUE *row = from + ((i64)i0 * w.in[1] + i1) * w.in[2];
                for (i32 t2 = 0; t2 < w.kernel[2]; t2++) {
                    const i32 i2 = source_index(w, 2, at2, t2);
                    VALUE value = {};
                    if (i0 >= 0 && i1 >= 0 && i2 >= 0) value = row[i2];
                    *to = value;
                    to += leading;
                }
            }
        }
    }
}

// A transposed convolution's weight [in, out / groups, taps] as [groups][out / groups][in / groups][taps].
extern "C" __global__ void reorder_weight(
    const VALUE *__restrict__ weight, VALUE *__restrict__ reordered, i64 in_per_group, i64 out_per_group,
    i64 taps, i64 count) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const i64 tap = i % taps, in = i / taps % in_per_group;
        const i64 out = i / (taps * in_per_group) % out_per_group;
        const i64 group = i / (taps * in_per_group * out_per_group);
        reordered[i] = weight[((group * in_per_group + in) * out_per_group + out) * taps + tap];
    }
}

// Adds a bias to a matrix in place: bias[row % period], or bias[column] if the period is 0.
extern "C" __global__ void add_bias(
    VALUE *values, const VALUE *__restrict__ bias, i64 rows, i64 columns, i64 row_stride, i64 period) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const float of_row = period > 0 ? to_float(bias[row % period]) : 0.0f;
        VALUE *line = values + row * row_stride;
        for (i64 column = (i64)blockIdx.x * blockDim.x + threadIdx.x; column < columns; column += step) {
            const float summand = period > 0 ? of_row : to_float(bias[column]);
            line[column] = from_float<VALUE>(to_float(line[column]) + summand);
        }
    }
}
