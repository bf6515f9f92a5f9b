// Other image sizes, by the formulas of PyTorch's interpolate with pixel centres at one half.
//
// Definitions: T, the element type; MODE, 0 nearest, 1 nearest-exact, 2 bilinear, 3 bicubic, 4 area.

// Sizes in and out; the scales are in / out, rounded to f32 as PyTorch does.
struct Call {
    i32 in_height, in_width, out_height, out_width;
    float scale_y, scale_x;
};

// Where a pixel's centre lies in the input. One rounding, as on other devices: in a large image another
// would move it visibly.
__device__ __forceinline__ float centre(int index, float scale) { return fmaf(index + 0.5f, scale, -0.5f); }

#if MODE <= 1

__device__ __forceinline__ float sample(const T *x, const Call &call, int row, int column) {
    const float shift = MODE == 1 ? 0.5f : 0.0f;
    int y = min((int)floorf(__fmul_rn(row + shift, call.scale_y)), call.in_height - 1);
    int z = min((int)floorf(__fmul_rn(column + shift, call.scale_x)), call.in_width - 1);
    return to_float(x[(i64)y * call.in_width + z]);
}

#elif MODE == 2

// The neighbour below, whether there is one above, and how far towards it the pixel lies.
__device__ __forceinline__ int neighbour(int index, float scale, int size, int &next, float &share) {
    float at = fmaxf(centre(index, scale), 0.0f);
    int low = min((int)at, size - 1);
    next = low < size - 1 ? 1 : 0;
    share = fminf(fmaxf(at - (float)low, 0.0f), 1.0f);
    return low;
}

__device__ __forceinline__ float sample(const T *x, const Call &call, int row, int column) {
    int down, right;
    float sy, sx;
    int y = neighbour(row, call.scale_y, call.in_height, down, sy);
    int z = neighbour(column, call.scale_x, call.in_width, right, sx);
    const T *upper = x + (i64)y * call.in_width + z, *lower = upper + (i64)down * call.in_width;
    float top = (1.0f - sx) * to_float(upper[0]) + sx * to_float(upper[right]);
    float bottom = (1.0f - sx) * to_float(lower[0]) + sx * to_float(lower[right]);
    return (1.0f - sy) * top + sy * bottom;
}

#elif MODE == 3

// Weights of the four neighbours of a point `t` after the second: cubic convolution with a = -3/4.
__device__ __forceinline__ void cubic_weights(float t, float (&weight)[4]) {
    const float a = -0.75f;
    float far = t + 1.0f, u = 1.0f - t, far_u = u + 1.0f;
    weight[0] = ((a * far - 5.0f * a) * far + 8.0f * a) * far - 4.0f * a;
    weight[1] = ((a + 2.0f) * t - (a + 3.0f)) * t * t + 1.0f;
    weight[2] = ((a + 2.0f) * u - (a + 3.0f)) * u * u + 1.0f;
    weight[3] = ((a * far_u - 5.0f * a) * far_u + 8.0f * a) * far_u - 4.0f * a;
}

__device__ __forceinline__ float sample(const T *x, const Call &call, int row, int column) {
    float at_y = centre(row, call.scale_y);
    float at_x = centre(column, call.scale_x);
    float floor_y = floorf(at_y), floor_x = floorf(at_x), wy[4], wx[4];
    cubic_weights(at_y - floor_y, wy);
    cubic_weights(at_x - floor_x, wx);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int y = min(max((int)floor_y - 1 + i, 0), call.in_height - 1);
        float line = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int z = min(max((int)floor_x - 1 + j, 0), call.in_width - 1);
            line += wx[j] * to_float(x[(i64)y * call.in_width + z]);
        }
        sum += wy[i] * line;
    }
    return sum;
}

#else

__device__ __forceinline__ float sample(const T *x, const Call &call, int row, int column) {
    int top = (i64)row * call.in_height / call.out_height;
    int bottom = ((i64)(row + 1) * call.in_height + call.out_height - 1) / call.out_height;
    int left = (i64)column * call.in_width / call.out_width;
    int right = ((i64)(column + 1) * call.in_width + call.out_width - 1) / call.out_width;
    float sum = 0.0f;
    for (int y = top; y < bottom; y++) {
        float line = 0.0f;
        for (int z = left; z < right; z++) line += to_float(x[(i64)y * call.in_width + z]);
        sum += line;
    }
    return sum / (float)((bottom - top) * (right - left));
}

#endif

// Blocks cover the columns of one row each; rows of all images are numbered through.
extern "C" __global__ void __launch_bounds__(256) resize(const T *x, T *out, const Call call) {
    u32 row = blockIdx.x % call.out_height, image = blockIdx.x / call.out_height;
    int column = blockIdx.y * 256 + threadIdx.x;
    if (column >= call.out_width) return;
    x += (i64)image * call.in_height * call.in_width;
    out[(i64)blockIdx.x * call.out_width + column] = from_float<T>(sample(x, call, (int)row, column));
}
