// What masks ask for beside the kernels of libraries.
//
// Definitions: T, the element type.

// Strides are in elements: of the mask batch, head, query, key; of the output batch, position, head.
struct Call {
    i32 queries, keys, heads, size;
    i64 mask[4], out[3];
};

constexpr int ROWS = 8;   // queries of a block, a warp for each

// Writes zeros for the queries that see no key, because the mask hides all of them. A warp looks at keys until it finds
// one that is seen.
extern "C" __global__ void __launch_bounds__(ROWS * 32) clear_blind(const T *mask, T *out, const Call call) {
    int query = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    int head = blockIdx.y, batch = blockIdx.z;
    if (query >= call.queries) return;
    mask += batch * call.mask[0] + head * call.mask[1] + query * call.mask[2];
    for (int key = 0; key < call.keys; key += 32) {
        bool seen = key + lane < call.keys && to_float(mask[(key + lane) * call.mask[3]]) != -POSITIVE_INFINITY;
        if (__any_sync(~0u, seen)) return;
    }
    out += batch * call.out[0] + query * call.out[1] + head * call.out[2];
    for (int i = lane; i < call.size; i += 32) out[i] = from_float<T>(0.0f);
}
