// Operations that treat every value by itself.
//
// Definitions: T, the element type; FUNCTION, one of the functions below; INPUTS, how many operands it
// reads; INDEX, u32 or u64. Operand 0 is the output, which may be one of the inputs.

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// ---- Activations --------------------------------------------------------------------------------

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
__device__ __forceinline__ float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
__device__ __forceinline__ float quick_gelu(float x) { return x / (1.0f + expf(-1.702f * x)); }
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// ---- Functions: `x` holds the inputs, `a` and `b` are numbers of the call -----------------------

#define UNARY(name, expression)                                                                        \
    __device__ __forceinline__ float name(const float *inputs, float a, float b) {                     \
        float x = inputs[0];                                                                           \
        return expression;                                                                             \
    }

UNARY(unary_neg, -x)
UNARY(unary_abs, fabsf(x))
UNARY(unary_exp, expf(x))
UNARY(unary_log, logf(x))
UNARY(unary_sqrt, sqrtf(x))
UNARY(unary_rsqrt, rsqrtf(x))
UNARY(unary_square, x *x)
UNARY(unary_reciprocal, 1.0f / x)
UNARY(unary_sin, sinf(x))
UNARY(unary_cos, cosf(x))
UNARY(unary_tanh, tanhf(x))
UNARY(unary_sigmoid, sigmoid(x))
UNARY(unary_round, rintf(x))
UNARY(unary_floor, floorf(x))
UNARY(unary_silu, silu(x))
UNARY(unary_gelu, gelu(x))
UNARY(unary_gelu_tanh, gelu_tanh(x))
UNARY(unary_quick_gelu, quick_gelu(x))
UNARY(unary_relu, relu(x))
UNARY(unary_affine, __fadd_rn(__fmul_rn(x, a), b))
UNARY(unary_leaky_relu, x < 0.0f ? x *a : x)
UNARY(unary_clamp, x < a ? a : (x > b ? b : x))

#define BINARY(name, expression)                                                                       \
    __device__ __forceinline__ float name(const float *inputs, float, float) {                         \
        float x = inputs[0], y = inputs[1];                                                            \
        return expression;                                                                             \
    }

BINARY(binary_add, x + y)
BINARY(binary_sub, x - y)
BINARY(binary_mul, x *y)
BINARY(binary_div, x / y)
BINARY(binary_min, Smallest::join(x, y))
BINARY(binary_max, Largest::join(x, y))
BINARY(binary_pow, powf(x, y))
BINARY(gated_silu, silu(x) * y)
BINARY(gated_gelu, gelu(x) * y)
BINARY(gated_gelu_tanh, gelu_tanh(x) * y)
BINARY(gated_quick_gelu, quick_gelu(x) * y)
BINARY(gated_relu, relu(x) * y)

__device__ __forceinline__ float modulate(const float *inputs, float, float) {
    return inputs[0] * (1.0f + inputs[1]) + inputs[2];
}

__device__ __forceinline__ float gated_add(const float *inputs, float, float) {
    return inputs[0] + inputs[1] * inputs[2];
}

// ---- Kernels ------------------------------------------------------------------------------------

// One value for each thread, any strides.
extern "C" __global__ void __launch_bounds__(256)
    single_values(const Walk<INPUTS + 1> walk, u64 count, float a, float b) {
    INDEX index = (INDEX)blockIdx.x * 256 + threadIdx.x;
    if (index >= (INDEX)count) return;
    i64 at[INPUTS + 1];
    locate(walk, index, at);
    float inputs[INPUTS];
#pragma unroll
    for (int n = 0; n < INPUTS; n++) inputs[n] = to_float(static_cast<const T *>(walk.base[n + 1])[at[n + 1]]);
    static_cast<T *>(walk.base[0])[at[0]] = from_float<T>(FUNCTION(inputs, a, b));
}

// 16 bytes for each thread: the last dimension counts packs, in which each input either stands packed
// or repeats one value.
extern "C" __global__ void __launch_bounds__(256)
    packed_values(const Walk<INPUTS + 1> walk, u64 count, float a, float b) {
    constexpr int PACK = 16 / sizeof(T);
    INDEX index = (INDEX)blockIdx.x * 256 + threadIdx.x;
    if (index >= (INDEX)count) return;
    i64 at[INPUTS + 1];
    locate(walk, index, at);
    float columns[INPUTS][PACK];
#pragma unroll
    for (int n = 0; n < INPUTS; n++) {
        const T *from = static_cast<const T *>(walk.base[n + 1]) + at[n + 1];
        if (walk.strides[n + 1][walk.rank - 1] != 0) {
            load_floats<PACK>(from, columns[n]);
        } else {
            float value = to_float(*from);
#pragma unroll
            for (int i = 0; i < PACK; i++) columns[n][i] = value;
        }
    }
    float results[PACK];
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        float inputs[INPUTS];
#pragma unroll
        for (int n = 0; n < INPUTS; n++) inputs[n] = columns[n][i];
        results[i] = FUNCTION(inputs, a, b);
    }
    store_floats<PACK>(static_cast<T *>(walk.base[0]) + at[0], results);
}
