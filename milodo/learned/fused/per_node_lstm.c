/* The networks of a PerNodeLSTM (milodo/learned/per_node.py) and its gradient, for fp32 on the CPU.
 *
 * All columns (instance, coordinate) of a node go through the same weights, so they are taken in panels of P columns that stay in
 * the first cache from the inputs to the outputs: gates are never written to memory, and the backward pass computes them again.
 * Work is divided into units (node, chunk of panels) by the shape alone and every unit sums its own gradient of the weights, so
 * the numbers are the same for any number of threads.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8
#define L 3                 /* 4 rows x 3 vectors of sums, 3 of inputs and 1 weight fill the 16 registers of AVX2 */
#define P (LANES * L)       /* columns of a panel */
#define UNITS 32            /* enough to share among threads ... */
#define PANELS 16           /* ... but of so many panels each, because a unit packs its node's weights first */
#define WORTH_A_THREAD 64   /* panels; about 0.2 ms */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

typedef struct {            /* [instances, n, rows, d] with steps in floats; the last axis is dense; at = NULL: not there */
    float *at;
    int64_t instance, node, row;
} rows;

typedef struct {            /* [n, ...], dense */
    float *w_x, *w_h, *b_x, *b_h, *w_1, *b_1, *w_2, *b_2;
} weights;

typedef struct {
    int64_t instances, n, d, inputs, hidden, outputs, threads;
    weights w;
    rows v, h, c;           /* inputs */
    rows o, h_next, c_next; /* outputs, or their gradients */
    weights dw;             /* the rest only backwards; dw.w_x = NULL: not asked for */
    rows dv, dh, dc;
} call;

/* ---- arithmetic ------------------------------------------------------------------------------------------------------------ */

static inline vec all(float x) { return (vec){x, x, x, x, x, x, x, x}; }

/* min(bound, x), max(bound, x); a NaN stays one */
#ifdef __AVX__
static inline vec at_most(float bound, vec x) { return __builtin_ia32_minps256(all(bound), x); }
static inline vec at_least(float bound, vec x) { return __builtin_ia32_maxps256(all(bound), x); }
#define IN_A_REGISTER(x) __asm__("" : "+x"(x)) /* gcc would fetch it again for every product, and fetching is the bottleneck */
#else
static inline vec chosen(ivec which, vec a, vec b) { return (vec)((which & (ivec)a) | (~which & (ivec)b)); }
static inline vec at_most(float bound, vec x) { return chosen(x > bound, all(bound), x); }
static inline vec at_least(float bound, vec x) { return chosen(x < bound, all(bound), x); }
#define IN_A_REGISTER(x)
#endif

#define EACH for (int l = 0; l < L; l++)

/* e = 1 + 2^x for L vectors side by side, because alone they would wait for themselves. To 2e-7 relatively for |x| <= 60 (the
 * product of two may still be inverted); a NaN stays one. */
static inline __attribute__((always_inline)) void one_plus_power(vec e[L], const vec x[L])
{
    const float shift = 12582912.f; /* 1.5 * 2^23: adding it rounds to whole numbers */
    vec shifted[L], r[L], p[L];
    EACH r[l] = at_least(-60.f, at_most(60.f, x[l]));
    EACH shifted[l] = r[l] + shift;
    EACH p[l] = shifted[l] - shift;
    EACH r[l] = r[l] - p[l];
    EACH p[l] = r[l] * 0.001327647129073739f + 0.009675540961325169f; /* minimax on [-1/2, 1/2] */
    EACH p[l] = p[l] * r[l] + 0.05550713092088699f;
    EACH p[l] = p[l] * r[l] + 0.24022120237350464f;
    EACH p[l] = p[l] * r[l] + 0.6931469440460205f;
    EACH p[l] = p[l] * r[l] + 1.0000001192092896f;
    EACH e[l] = 1 + (vec)((ivec)p[l] + ((ivec)shifted[l] << 23));
}

/* 4 rows of L vectors at out[r * out_row] (+)= Σ_p a[p * step + r * row] b[p][L] */
static inline __attribute__((always_inline)) void multiply(vec *out, int64_t out_row, int add, const float *a, int64_t step,
                                                           int64_t row, const vec *b, int64_t length)
{
    vec *o0 = out, *o1 = o0 + out_row, *o2 = o1 + out_row, *o3 = o2 + out_row, zero = all(0);
    vec s00 = zero, s01 = zero, s02 = zero, s10 = zero, s11 = zero, s12 = zero;
    vec s20 = zero, s21 = zero, s22 = zero, s30 = zero, s31 = zero, s32 = zero;
    if (add) {
        s00 = o0[0], s01 = o0[1], s02 = o0[2], s10 = o1[0], s11 = o1[1], s12 = o1[2];
        s20 = o2[0], s21 = o2[1], s22 = o2[2], s30 = o3[0], s31 = o3[1], s32 = o3[2];
    }
    for (int64_t p = 0; p < length; p++, a += step, b += L) {
        vec b0 = b[0], b1 = b[1], b2 = b[2], w = all(a[0]);
        IN_A_REGISTER(b0);
        IN_A_REGISTER(b1);
        IN_A_REGISTER(b2);
        s00 += w * b0, s01 += w * b1, s02 += w * b2;
        w = all(a[row]);
        s10 += w * b0, s11 += w * b1, s12 += w * b2;
        w = all(a[2 * row]);
        s20 += w * b0, s21 += w * b1, s22 += w * b2;
        w = all(a[3 * row]);
        s30 += w * b0, s31 += w * b1, s32 += w * b2;
    }
    o0[0] = s00, o0[1] = s01, o0[2] = s02, o1[0] = s10, o1[1] = s11, o1[2] = s12;
    o2[0] = s20, o2[1] = s21, o2[2] = s22, o3[0] = s30, o3[1] = s31, o3[2] = s32;
}

/* out[4 groups][L] (+)= W b for W packed as [groups][length][4] */
static inline __attribute__((always_inline)) void layer(vec *out, const float *packed, const vec *b, int64_t groups, int64_t length,
                                                        int add)
{
    for (int64_t q = 0; q < groups; q++) multiply(out + 4 * q * L, L, add, packed + q * length * 4, 4, 1, b, length);
}

/* sums[4 groups][wide] += a [4 groups][P] times turned [wide / P][P][P] */
static void outer(float *sums, const vec *a, const float *turned, int64_t groups, int64_t wide)
{
    for (int64_t k = 0; k < wide; k += P)
        for (int64_t q = 0; q < groups; q++)
            multiply((vec *)(sums + 4 * q * wide + k), wide / LANES, 1, (const float *)(a + 4 * q * L), 1, P,
                     (const vec *)(turned + k * P), P);
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES
#endif
#endif

/* to[P][P] = from[count][P] turned, for count <= P rows */
static void turn(float *to, const vec *from, int64_t count)
{
#ifdef SHUFFLES
    for (int64_t k = 0; k < count; k += LANES)
        for (int64_t l = 0; l < L; l++) {
            vec a[LANES], b[LANES];
            for (int r = 0; r < LANES; r++) a[r] = k + r < count ? from[(k + r) * L + l] : all(0);
            for (int r = 0; r < LANES; r += 2) {
                b[r] = __builtin_shufflevector(a[r], a[r + 1], 0, 8, 2, 10, 4, 12, 6, 14);
                b[r + 1] = __builtin_shufflevector(a[r], a[r + 1], 1, 9, 3, 11, 5, 13, 7, 15);
            }
            for (int r = 0; r < LANES; r += 4)
                for (int s = 0; s < 2; s++) {
                    a[r + s] = __builtin_shufflevector(b[r + s], b[r + s + 2], 0, 1, 8, 9, 4, 5, 12, 13);
                    a[r + s + 2] = __builtin_shufflevector(b[r + s], b[r + s + 2], 2, 3, 10, 11, 6, 7, 14, 15);
                }
            for (int r = 0; r < 4; r++) {
                vec low = __builtin_shufflevector(a[r], a[r + 4], 0, 1, 2, 3, 8, 9, 10, 11);
                vec high = __builtin_shufflevector(a[r], a[r + 4], 4, 5, 6, 7, 12, 13, 14, 15);
                memcpy(to + (l * LANES + r) * P + k, &low, sizeof low);
                memcpy(to + (l * LANES + r + 4) * P + k, &high, sizeof high);
            }
        }
#else
    for (int64_t k = 0; k < count; k++)
        for (int p = 0; p < P; p++) to[p * P + k] = ((const float *)from)[k * P + p];
#endif
}

/* ---- panels ---------------------------------------------------------------------------------------------------------------- */

typedef struct { int64_t start, count; } panel; /* columns of a node, numbered instance * d + coordinate */

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

/* Asks for the next panel while this one is computed: rows are too many streams for a processor to foresee. */
static inline __attribute__((always_inline)) void ask(int write, rows of, int64_t count, int64_t node, panel at, int64_t d, int64_t columns)
{
    int64_t start = at.start + P, end = smaller(start + P, columns), instance = start / d, first = start % d;
    if (!of.at) return;
    for (; start < end; instance++, first = 0) {
        const float *source = of.at + instance * of.instance + node * of.node + first;
        int64_t length = smaller(d - first, end - start);
        for (int64_t r = 0; r < count; r++, source += of.row) {
            if (write) __builtin_prefetch(source, 1, 2), __builtin_prefetch(source + length - 1, 1, 2);
            else __builtin_prefetch(source, 0, 2), __builtin_prefetch(source + length - 1, 0, 2);
        }
        start += length;
    }
}

/* Rows of a panel between memory and [count][P]; the columns of a last, shorter panel are filled with zeros. */
static void fetch(vec *to, rows from, int64_t count, int64_t node, panel at, int64_t d, int64_t columns)
{
    int64_t instance = at.start / d, first = at.start % d;
    if (!from.at) {
        memset(to, 0, count * P * sizeof(float));
    } else if (at.count == P && first + P <= d) {
        const float *source = from.at + instance * from.instance + node * from.node + first;
        for (int64_t r = 0; r < count; r++) memcpy(to + r * L, source + r * from.row, P * sizeof(float));
    } else {
        if (at.count < P) memset(to, 0, count * P * sizeof(float));
        for (int64_t done = 0; done < at.count; instance++, first = 0) {
            const float *source = from.at + instance * from.instance + node * from.node + first;
            int64_t length = smaller(d - first, at.count - done);
            for (int64_t r = 0; r < count; r++)
                memcpy((float *)(to + r * L) + done, source + r * from.row, length * sizeof(float));
            done += length;
        }
    }
    ask(0, from, count, node, at, d, columns);
}

static void put(rows to, const vec *from, int64_t count, int64_t node, panel at, int64_t d, int64_t columns)
{
    int64_t instance = at.start / d, first = at.start % d;
    if (!to.at) return;
    if (at.count == P && first + P <= d) {
        float *target = to.at + instance * to.instance + node * to.node + first;
        for (int64_t r = 0; r < count; r++) memcpy(target + r * to.row, from + r * L, P * sizeof(float));
    } else {
        for (int64_t done = 0; done < at.count; instance++, first = 0) {
            float *target = to.at + instance * to.instance + node * to.node + first;
            int64_t length = smaller(d - first, at.count - done);
            for (int64_t r = 0; r < count; r++)
                memcpy(target + r * to.row, (const float *)(from + r * L) + done, length * sizeof(float));
            done += length;
        }
    }
    ask(1, to, count, node, at, d, columns);
}

/* ---- one unit of work ------------------------------------------------------------------------------------------------------ */

typedef struct {             /* sizes, and buffers of a thread */
    int64_t K, H, H4, O4, wide_x, wide_h;  /* K = inputs + hidden + 1; rounded up: to 4 rows, to P columns */
    float *gates, *first, *second;         /* weights as `layer` wants them, biases last; gates times -log2 e, that of g twice */
    float *gates_t, *first_t, *second_t;   /* transposed, backwards */
    vec *x, *c, *c_next, *h, *inner, *out; /* x = (v, h, 1); h and inner end with ones */
    vec *act;                              /* [H][4]: the gates i, f, g, o; backwards then their activations, then gradients */
    vec *d_inner, *d_h, *d_c, *d_out, *d_x;
    float *turned;
} room;


static int64_t furnish(room *s, const call *a, char *memory, int backward)
{
    int64_t in = a->inputs, H = s->H = a->hidden, K = s->K = in + H + 1;
    int64_t H4 = s->H4 = up(H, 4), O4 = s->O4 = up(a->outputs, 4);
    s->wide_x = up(K, P), s->wide_h = up(H + 1, P);
    struct { void *place; int64_t floats; int only_backward; } all_of[] = {
        {&s->gates, 4 * H * K, 0}, {&s->first, H4 * (H + 1), 0}, {&s->second, O4 * (H + 1), 0},
        {&s->x, K * P, 0}, {&s->c, H * P, 0}, {&s->c_next, H * P, 0}, {&s->act, 4 * H * P, 0}, {&s->h, (H4 + 4) * P, 0}, {&s->inner, (H4 + 4) * P, 0}, {&s->out, O4 * P, 0},
        {&s->gates_t, up(K, 4) * 4 * H, 1}, {&s->first_t, H4 * H4, 1}, {&s->second_t, H4 * O4, 1},
        {&s->act, 5 * H * P, 1}, {&s->act, 4 * H * P, 1}, {&s->d_inner, H4 * P, 1}, {&s->d_h, H4 * P, 1},
        {&s->d_c, H * P, 1}, {&s->d_out, O4 * P, 1}, {&s->d_x, up(K, 4) * P, 1},
        {&s->turned, s->wide_x * P, 1},
    };
    int64_t used = 0;
    for (unsigned k = 0; k < sizeof all_of / sizeof *all_of; k++) {
        if (all_of[k].only_backward && !backward) continue;
        if (memory) *(char **)all_of[k].place = memory + used;
        used += up(all_of[k].floats * (int64_t)sizeof(float), 64);
    }
    return used;
}

static void pack(room *s, const call *a, int64_t i, int backward)
{
    int64_t in = a->inputs, H = s->H, K = s->K, out = a->outputs, H4 = s->H4, O4 = s->O4;
    const float *w_x = a->w.w_x + i * 4 * H * in, *w_h = a->w.w_h + i * 4 * H * H, *b_x = a->w.b_x + i * 4 * H;
    const float *b_h = a->w.b_h + i * 4 * H, *w_1 = a->w.w_1 + i * H * H, *b_1 = a->w.b_1 + i * H;
    const float *w_2 = a->w.w_2 + i * out * H, *b_2 = a->w.b_2 + i * out;
    const float log2e = 1.4426950408889634f;
    for (int64_t j = 0; j < H; j++)
        for (int g = 0; g < 4; g++) {
            float scale = g == 2 ? -2 * log2e : -log2e;
            int64_t r = g * H + j;
            float *to = s->gates + j * K * 4 + g;
            for (int64_t k = 0; k < in; k++) to[4 * k] = scale * w_x[r * in + k];
            for (int64_t k = 0; k < H; k++) to[4 * (in + k)] = scale * w_h[r * H + k];
            to[4 * (K - 1)] = scale * (b_x[r] + b_h[r]);
        }
    memset(s->first, 0, H4 * (H + 1) * sizeof(float));
    memset(s->second, 0, O4 * (H + 1) * sizeof(float));
    for (int64_t r = 0; r < H; r++) {
        float *to = s->first + r / 4 * (H + 1) * 4 + r % 4;
        for (int64_t k = 0; k < H; k++) to[4 * k] = w_1[r * H + k];
        to[4 * H] = b_1[r];
    }
    for (int64_t r = 0; r < out; r++) {
        float *to = s->second + r / 4 * (H + 1) * 4 + r % 4;
        for (int64_t k = 0; k < H; k++) to[4 * k] = w_2[r * H + k];
        to[4 * H] = b_2[r];
    }
    for (int64_t p = 0; p < L; p++) s->x[(K - 1) * L + p] = s->h[H * L + p] = s->inner[H * L + p] = all(1);
    if (!backward) return;
    memset(s->gates_t, 0, up(K, 4) * 4 * H * sizeof(float));
    memset(s->first_t, 0, H4 * H4 * sizeof(float));
    memset(s->second_t, 0, H4 * O4 * sizeof(float));
    for (int64_t k = 0; k < K - 1; k++)
        for (int64_t j = 0; j < H; j++)
            for (int g = 0; g < 4; g++)
                s->gates_t[(k / 4 * 4 * H + 4 * j + g) * 4 + k % 4] = k < in ? w_x[(g * H + j) * in + k]
                                                                            : w_h[(g * H + j) * H + k - in];
    for (int64_t k = 0; k < H; k++) {
        for (int64_t r = 0; r < H; r++) s->first_t[(k / 4 * H4 + r) * 4 + k % 4] = w_1[r * H + k];
        for (int64_t r = 0; r < out; r++) s->second_t[(k / 4 * O4 + r) * 4 + k % 4] = w_2[r * H + k];
    }
}

/* c+ = σ(f) c + σ(i) tanh(g);  h+ = σ(o) tanh(c+), with one division for two of the five quotients.
 * In three sweeps of independent operations, because each alone is a long chain. */
static void cells(room *s, int keep)
{
    const float twice = -2 * 1.4426950408889634f;
    layer(s->act, s->gates, s->x, s->H, s->K, 0);
    for (int64_t j = 0; j < s->H; j++) {
        vec *act = s->act + 4 * j * L, *c = s->c + j * L, *c_next = s->c_next + j * L, i[L], f[L], g[L], both[L];
        one_plus_power(i, act);
        one_plus_power(g, act + 2 * L);
        one_plus_power(f, act + L);
        EACH both[l] = 1 / (i[l] * g[l]);
        EACH f[l] = 1 / f[l];
        EACH i[l] = i[l] * both[l];
        EACH both[l] = g[l] * both[l];
        EACH g[l] = 2 * i[l] - 1;
        EACH c_next[l] = f[l] * c[l] + both[l] * g[l];
        if (keep) EACH act[l] = both[l], act[L + l] = f[l], act[2 * L + l] = g[l];
    }
    for (int64_t j = 0; j < s->H; j++) {
        vec *act = s->act + 4 * j * L, *c_next = s->c_next + j * L, *h = s->h + j * L, o[L], t[L], both[L];
        one_plus_power(o, act + 3 * L);
        EACH t[l] = twice * c_next[l];
        one_plus_power(t, t);
        EACH both[l] = 1 / (o[l] * t[l]);
        EACH t[l] = t[l] * both[l];
        EACH both[l] = 2 * (o[l] * both[l]) - 1;
        EACH h[l] = t[l] * both[l];
        if (keep) EACH act[3 * L + l] = t[l], c_next[l] = both[l];
    }
}

static inline __attribute__((always_inline)) void behind(room *s)
{
    vec kept[4][L]; /* the row of ones, and padding, behind inner */
    memcpy(kept, s->inner + s->H * L, sizeof kept);
    layer(s->inner, s->first, s->h, s->H4 / 4, s->H + 1, 0);
    memcpy(s->inner + s->H * L, kept, sizeof kept);
    for (int64_t k = 0; k < s->H * L; k++) s->inner[k] = at_least(0.f, s->inner[k]);
}

static void forward_panel(room *s, const call *a, int64_t node, panel at)
{
    int64_t columns = a->instances * a->d;
    fetch(s->x, a->v, a->inputs, node, at, a->d, columns);
    fetch(s->x + a->inputs * L, a->h, s->H, node, at, a->d, columns);
    fetch(s->c, a->c, s->H, node, at, a->d, columns);
    cells(s, 0);
    behind(s);
    layer(s->out, s->second, s->inner, s->O4 / 4, s->H + 1, 0);
    put(a->o, s->out, a->outputs, node, at, a->d, columns);
    put(a->h_next, s->h, s->H, node, at, a->d, columns);
    put(a->c_next, s->c_next, s->H, node, at, a->d, columns);
}

/* dw: [4H][wide_x], then [H4][wide_h], then [O4][wide_h] */
static void backward_panel(room *s, const call *a, int64_t node, panel at, float *dw)
{
    int64_t H = s->H, in = a->inputs, columns = a->instances * a->d;
    fetch(s->x, a->v, in, node, at, a->d, columns);
    fetch(s->x + in * L, a->h, H, node, at, a->d, columns);
    fetch(s->c, a->c, H, node, at, a->d, columns);
    fetch(s->d_h, a->h_next, H, node, at, a->d, columns);
    fetch(s->d_c, a->c_next, H, node, at, a->d, columns);
    cells(s, 1);
    if (a->o.at) {
        fetch(s->d_out, a->o, a->outputs, node, at, a->d, columns);
        behind(s);
        layer(s->d_inner, s->second_t, s->d_out, s->H4 / 4, s->O4, 0);
        for (int64_t k = 0; k < H * L; k++) s->d_inner[k] = (vec)((ivec)s->d_inner[k] & (s->inner[k] > 0));
        layer(s->d_h, s->first_t, s->d_inner, s->H4 / 4, s->H4, 1);
        if (dw) {
            for (int64_t k = 0; k < H + 1; k += P) turn(s->turned + k * P, s->inner + k * L, smaller(P, H + 1 - k));
            outer(dw + 4 * H * s->wide_x + s->H4 * s->wide_h, s->d_out, s->turned, s->O4 / 4, s->wide_h);
            for (int64_t k = 0; k < H + 1; k += P) turn(s->turned + k * P, s->h + k * L, smaller(P, H + 1 - k));
            outer(dw + 4 * H * s->wide_x, s->d_inner, s->turned, s->H4 / 4, s->wide_h);
        }
    }
    for (int64_t j = 0; j < H; j++)
        for (int l = 0; l < L; l++) {
            vec *d = s->act + 4 * j * L + l, i = d[0], f = d[L], g = d[2 * L], o = d[3 * L], t = s->c_next[j * L + l];
            vec dh = s->d_h[j * L + l], dc = s->d_c[j * L + l] + dh * o * (1 - t * t);
            d[0] = dc * g * (i * (1 - i));
            d[L] = dc * s->c[j * L + l] * (f * (1 - f));
            d[2 * L] = dc * i * (1 - g * g);
            d[3 * L] = dh * t * (o * (1 - o));
            s->d_c[j * L + l] = dc * f;
        }
    put(a->dc, s->d_c, H, node, at, a->d, columns);
    if (a->dv.at || a->dh.at) {
        int64_t first = a->dv.at ? 0 : in / 4, end = a->dh.at ? up(in + H, 4) / 4 : up(in, 4) / 4;
        layer(s->d_x + first * 4 * L, s->gates_t + first * 16 * H, s->act, end - first, 4 * H, 0);
        put(a->dv, s->d_x, in, node, at, a->d, columns);
        put(a->dh, s->d_x + in * L, H, node, at, a->d, columns);
    }
    if (dw) {
        for (int64_t k = 0; k < s->K; k += P) turn(s->turned + k * P, s->x + k * L, smaller(P, s->K - k));
        outer(dw, s->act, s->turned, H, s->wide_x);
    }
}

/* ---- threads --------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const call *a;
    int64_t chunks, units, next, size; /* size of a unit's dw */
    float *dw;
    int backward, failed;
} job;

static int64_t panels(const call *a) { return (a->instances * a->d + P - 1) / P; }

static void *work(void *given)
{
    job *todo = given;
    const call *a = todo->a;
    int64_t columns = a->instances * a->d, each = (panels(a) + todo->chunks - 1) / todo->chunks * P;
    room s;
    void *memory = NULL;
    if (posix_memalign(&memory, 64, furnish(&s, a, NULL, todo->backward))) {
        todo->failed = 1;
        return NULL;
    }
    furnish(&s, a, memory, todo->backward);
    memset(memory, 0, furnish(&s, a, memory, todo->backward));
    for (int64_t u; (u = __atomic_fetch_add(&todo->next, 1, __ATOMIC_RELAXED)) < todo->units;) {
        int64_t node = u / todo->chunks, chunk = u % todo->chunks, end = smaller((chunk + 1) * each, columns);
        pack(&s, a, node, todo->backward);
        for (panel at = {chunk * each, 0}; at.start < end; at.start += P) {
            at.count = smaller(P, end - at.start);
            if (todo->backward) backward_panel(&s, a, node, at, todo->dw ? todo->dw + u * todo->size : NULL);
            else forward_panel(&s, a, node, at);
        }
    }
    free(memory);
    return NULL;
}

static int run(job *todo)
{
    enum { MOST = 64 };
    const call *a = todo->a;
    pthread_t helpers[MOST];
    int64_t wanted = smaller(smaller(a->threads, MOST), smaller(todo->units, a->n * panels(a) / WORTH_A_THREAD)), started = 0;
    while (started + 1 < wanted && !pthread_create(&helpers[started], NULL, work, todo)) started++;
    work(todo);
    for (int64_t k = 0; k < started; k++) pthread_join(helpers[k], NULL);
    return todo->failed;
}

static job divided(const call *a)
{
    int64_t chunks = smaller((UNITS + a->n - 1) / a->n, panels(a) / PANELS);
    job todo = {.a = a, .chunks = chunks < 1 ? 1 : chunks};
    todo.units = a->n * todo.chunks;
    return todo;
}

int milodo_per_node_lstm_forward(const call *a)
{
    job todo = divided(a);
    return run(&todo);
}

int milodo_per_node_lstm_backward(const call *a)
{
    job todo = divided(a);
    int64_t in = a->inputs, H = a->hidden, out = a->outputs, K = in + H + 1, wide_x = up(K, P), wide_h = up(H + 1, P);
    todo.backward = 1;
    todo.size = 4 * H * wide_x + (up(H, 4) + up(out, 4)) * wide_h;
    void *memory = NULL;
    if (a->dw.w_x) {
        if (posix_memalign(&memory, 64, todo.units * todo.size * sizeof(float))) return 1;
        memset(memory, 0, todo.units * todo.size * sizeof(float));
        todo.dw = memory;
    }
    int failed = run(&todo);
    if (!memory) return failed;
    for (int64_t i = 0; i < a->n; i++) {
        float *sum = todo.dw + i * todo.chunks * todo.size; /* in the order of the chunks, whoever made them */
        for (int64_t k = 1; k < todo.chunks; k++)
            for (int64_t q = 0; q < todo.size; q++) sum[q] += sum[k * todo.size + q];
        for (int64_t r = 0; r < 4 * H; r++) {
            const float *from = sum + (r % H * 4 + r / H) * wide_x;
            memcpy(a->dw.w_x + (i * 4 * H + r) * in, from, in * sizeof(float));
            memcpy(a->dw.w_h + (i * 4 * H + r) * H, from + in, H * sizeof(float));
            a->dw.b_x[i * 4 * H + r] = a->dw.b_h[i * 4 * H + r] = from[K - 1];
        }
        const float *first = sum + 4 * H * wide_x, *second = first + up(H, 4) * wide_h;
        for (int64_t r = 0; r < H; r++) {
            memcpy(a->dw.w_1 + (i * H + r) * H, first + r * wide_h, H * sizeof(float));
            a->dw.b_1[i * H + r] = first[r * wide_h + H];
        }
        for (int64_t r = 0; r < out; r++) {
            memcpy(a->dw.w_2 + (i * out + r) * H, second + r * wide_h, H * sizeof(float));
            a->dw.b_2[i * out + r] = second[r * wide_h + H];
        }
    }
    free(memory);
    return failed;
}
