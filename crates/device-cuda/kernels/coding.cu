// Losslessly coded weights to the floats that they were made of; the format is described in the crate `codec`. A warp
// decodes a tile of 2,048 values, group by group of 256; a thread decodes eight neighbours of each group.
//
// Definitions: FORMAT, the element type.

#define BF16 1
#define F16 2
#define F8E4M3 3

constexpr int TILE = 2048, GROUP = 256, PLANE = GROUP / 8, RANKS = 16, CODES = 3 * PLANE;

#if FORMAT == BF16
constexpr int EXPONENT_BITS = 8, FIXED = GROUP;
typedef u16 element;
#elif FORMAT == F16
constexpr int EXPONENT_BITS = 5, FIXED = GROUP + 3 * PLANE;
typedef u16 element;
#else
constexpr int EXPONENT_BITS = 4, FIXED = 4 * PLANE;
typedef u8 element;
#endif

constexpr int RAW = EXPONENT_BITS * PLANE;

// Eight bytes, one for each value that a thread has.
struct Eight {
    u32 low, high;
};

// Each of the low four bits in a byte of its own.
__device__ __forceinline__ u32 spread(u32 bits) { return ((bits & 15) * 0x00204081u) & 0x01010101u; }

// Values of which each bit is that of a bit-plane; `planes` is the thread's byte of the first.
template <int COUNT> __device__ __forceinline__ Eight from_planes(const u8 *planes) {
    Eight values = {0, 0};
#pragma unroll
    for (int bit = 0; bit < COUNT; bit++) {
        u32 bits = planes[bit * PLANE];
        values.low |= spread(bits) << bit;
        values.high |= spread(bits >> 4) << bit;
    }
    return values;
}

__device__ __forceinline__ Eight load_eight(const u8 *from) {
    uint2 bytes = *reinterpret_cast<const uint2 *>(from);
    return {bytes.x, bytes.y};
}

// Sets byte `index` of eight.
__device__ __forceinline__ void set_byte(Eight &values, int index, u32 byte) {
    u32 shift = 8 * (index & 3), mask = ~(0xffu << shift);
    if (index < 4) {
        values.low = (values.low & mask) | byte << shift;
    } else {
        values.high = (values.high & mask) | byte << shift;
    }
}

// Where a tile's exponents are.
struct Tile {
    const u8 *own;
    u32 base, escapes, groups;
    bool raw, valid;
};

__device__ __forceinline__ Tile read_entry(const u32 *entry, const u8 *variable, i64 variable_bytes, u32 groups) {
    u32 head = entry[0];
    Tile tile;
    tile.base = head & 0xff;
    tile.raw = (head >> 8 & 0xff) == 1;
    tile.escapes = head >> 16;
    tile.groups = groups;
    i64 place = (i64)entry[1] * 8;
    i64 bytes = tile.raw ? (i64)groups * RAW : RANKS + (i64)groups * CODES + tile.escapes;
    // Nothing is read outside of the coded bytes, whatever they say.
    tile.valid = (head >> 8 & 0xff) <= 1 && place + bytes <= variable_bytes;
    tile.own = variable + place;
    return tile;
}

// A thread's bytes of the three bit-planes of a group's codes, one above the other.
__device__ __forceinline__ u32 load_codes(const Tile &tile, int group, int lane) {
    const u8 *planes = tile.own + RANKS + group * CODES + lane;
    return planes[0] | (u32)planes[PLANE] << 8 | (u32)planes[2 * PLANE] << 16;
}

// How many escapes the threads of a warp before this one have, of which each has at most eight.
__device__ __forceinline__ u32 escapes_before(u32 own, int lane) {
    u32 before = (1u << lane) - 1, sum = 0;
#pragma unroll
    for (int bit = 0; bit < 4; bit++) {
        sum += __popc(__ballot_sync(0xffffffffu, own >> bit & 1) & before) << bit;
    }
    return sum;
}

// The exponents of eight values of a group, by their codes; `rank` is that of the group's first escape. All threads of a
// warp call this together.
__device__ __forceinline__ Eight coded_exponents(const Tile &tile, u32 codes, u32 rank, int lane) {
    u32 b0 = codes & 0xff, b1 = codes >> 8 & 0xff, b2 = codes >> 16;
    u32 inside = b0 | b1 | b2, base = tile.base * 0x01010101u;
    // A code of 1 is the base itself. One of 0 is overwritten below.
    Eight exponents;
    exponents.low = base + (spread(b0) | spread(b1) << 1 | spread(b2) << 2) - spread(inside);
    b0 >>= 4, b1 >>= 4, b2 >>= 4;
    exponents.high = base + (spread(b0) | spread(b1) << 1 | spread(b2) << 2) - spread(inside >> 4);
    u32 outside = ~inside & 0xff;
    if (__any_sync(0xffffffffu, outside != 0)) {
        rank += escapes_before(__popc(outside), lane);
        const u8 *escapes = tile.own + RANKS + tile.groups * CODES;
        for (; outside != 0; outside &= outside - 1, rank++) {
            u32 escape = rank < tile.escapes ? escapes[rank] : 0xff;
            set_byte(exponents, __ffs(outside) - 1, escape);
        }
    }
    return exponents;
}

// The same of any tile.
__device__ __forceinline__ Eight exponents_of(const Tile &tile, int group, int lane) {
    if (tile.raw) {
#if FORMAT == BF16
        return load_eight(tile.own + group * RAW + 8 * lane);
#else
        return from_planes<EXPONENT_BITS>(tile.own + group * RAW + lane);
#endif
    }
    u32 rank = reinterpret_cast<const u16 *>(tile.own)[group];
    return coded_exponents(tile, load_codes(tile, group, lane), rank, lane);
}

#if FORMAT == F8E4M3

// Four values; `rest` is sign and mantissa.
__device__ __forceinline__ u32 join(u32 rest, u32 exponents) {
    return (rest & 0x08080808u) << 4 | (exponents & 0x0f0f0f0fu) << 3 | (rest & 0x07070707u);
}

#else

// Four values; `low` is the low byte of sign and mantissa, `rest` what else they have.
__device__ __forceinline__ uint2 join(u32 low, u32 rest, u32 exponents) {
#if FORMAT == BF16
    u32 upper = (low & 0x80808080u) | (exponents >> 1 & 0x7f7f7f7fu);
    u32 lower = (exponents & 0x01010101u) << 7 | (low & 0x7f7f7f7fu);
#else
    u32 upper = (rest & 0x04040404u) << 5 | (exponents & 0x1f1f1f1fu) << 2 | (rest & 0x03030303u);
    u32 lower = low;
#endif
    return make_uint2(__byte_perm(lower, upper, 0x5140), __byte_perm(lower, upper, 0x7362));
}

#endif

// Writes a thread's eight values, as far as there are so many.
__device__ __forceinline__ void write_eight(element *to, i64 at, i64 count, const Eight &fixed, const Eight &rest,
                                            const Eight &exponents) {
#if FORMAT == F8E4M3
    u32 words[2] = {join(rest.low, exponents.low), join(rest.high, exponents.high)};
#else
    uint2 front = join(fixed.low, rest.low, exponents.low), back = join(fixed.high, rest.high, exponents.high);
    u32 words[4] = {front.x, front.y, back.x, back.y};
#endif
    if (at + 8 <= count && (u64)to % 16 == 0) {
#if FORMAT == F8E4M3
        *reinterpret_cast<uint2 *>(to + at) = make_uint2(words[0], words[1]);
#else
        *reinterpret_cast<uint4 *>(to + at) = make_uint4(words[0], words[1], words[2], words[3]);
#endif
        return;
    }
    constexpr int PER_WORD = 4 / sizeof(element);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (at + i < count) {
            to[at + i] = (element)(words[i / PER_WORD] >> (i % PER_WORD * 8 * sizeof(element)));
        }
    }
}

// What a thread reads of a group beside the exponents: the low bytes of its values, and what else they have.
struct Fixed {
    Eight low, rest;
};

__device__ __forceinline__ Fixed load_fixed(const u8 *fixed, int lane) {
    Fixed values = {{0, 0}, {0, 0}};
#if FORMAT == BF16
    values.low = load_eight(fixed + 8 * lane);
#elif FORMAT == F16
    values.low = load_eight(fixed + 8 * lane);
    values.rest = from_planes<3>(fixed + GROUP + lane);
#else
    values.rest = from_planes<4>(fixed + lane);
#endif
    return values;
}

// A whole tile whose exponents are coded, as nearly all are. All that it reads but escapes is under way before the first of
// it is needed.
__device__ __forceinline__ void decode_whole(const Tile &tile, const u8 *fixed, element *to, int lane) {
    constexpr int GROUPS = TILE / GROUP;
    u32 codes[GROUPS];
    Fixed values[GROUPS];
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        codes[group] = load_codes(tile, group, lane);
        values[group] = load_fixed(fixed + group * FIXED, lane);
    }
    uint2 front = reinterpret_cast<const uint2 *>(tile.own)[0], back = reinterpret_cast<const uint2 *>(tile.own)[1];
    u32 ranks[GROUPS / 2] = {front.x, front.y, back.x, back.y};
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        u32 rank = ranks[group / 2] >> 16 * (group % 2) & 0xffff;
        Eight exponents = coded_exponents(tile, codes[group], rank, lane);
        write_eight(to, group * GROUP + 8 * lane, TILE, values[group].low, values[group].rest, exponents);
    }
}

extern "C" __global__ void __launch_bounds__(128)
    decode_tiles(const u32 *table, const u8 *fixed, const u8 *variable, i64 variable_bytes, element *to, i64 count) {
    i64 index = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    i64 start = index * TILE;
    // The same for all threads of the warp.
    if (start >= count) return;
    i64 left = count - start;
    u32 groups = left >= TILE ? TILE / GROUP : (u32)((left + GROUP - 1) / GROUP);
    Tile tile = read_entry(table + 2 * index, variable, variable_bytes, groups);
    fixed += index * (TILE / GROUP) * FIXED;
    if (tile.valid && !tile.raw && left >= TILE) {
        decode_whole(tile, fixed, to + start, lane);
        return;
    }
    for (u32 group = 0; group < groups; group++, fixed += FIXED) {
        i64 at = start + group * GROUP + 8 * lane;
        if (!tile.valid) {
            for (int i = 0; i < 8; i++) {
                if (at + i < count) to[at + i] = (element)0xffff;
            }
            continue;
        }
        Eight exponents = exponents_of(tile, group, lane);
        Fixed values = load_fixed(fixed, lane);
        write_eight(to, at, count, values.low, values.rest, exponents);
    }
}
