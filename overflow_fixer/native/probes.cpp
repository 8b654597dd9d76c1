/* Custom operators of ONNX Runtime that look at a float tensor once, or round it.
 *
 *   SmallProbe(x: float) -> statistics: double[8]
 *     largest, smallest, least magnitude that is not zero, elements, NaN, elements under 65520 in magnitude, finite elements,
 *     elements of 65520 or more.
 *     The extremes leave NaN out; of nothing they are -inf, inf and inf.
 *   Probe(x: float) -> statistics: double[8]
 *     the same, but for the least magnitude, which is inf: it costs as much as all the rest.
 *   SharedProbe(x: float, any number) -> statistics: double[8 n]
 *     what SmallProbe tells of each of them: of many small tensors, less time goes into one node than into one for each.
 *   BlockProbe(x: float, layout: int64[2]) -> statistics: double[8]
 *     what Probe tells of the first layout[0] channels of x [images, channels, ...], which lies in memory in blocks of
 *     layout[1] channels, [images, blocks, ..., layout[1]]; what else is in the last block is padding. An x that cannot lie
 *     so has none.
 *   Moments(x: float, length: int64) -> largest, smallest, deviation, sum, magnitudes, squares, spread: float[rows],
 *       statistics: double[64]
 *     of x in rows of `length` elements, or where that is -k, of its last k dimensions: its extremes (NaN left out), the
 *     largest |x - mean|, the sums of x, |x|, x * x and (x - mean)^2, each right to 2e-6 of the sum of what is added; and
 *     what Probe tells of each of these, and of x. An x that cannot be cut so is one row. Three numbers instead of `length`,
 *     int64[3], are of rows that lie in parts: along so many axes, the second, from the first of them on, and along the last
 *     k, the third, between which there are others.
 *   Sums(x: float, length: int64) -> largest, smallest, sum, magnitudes, squares: float[rows], statistics: double[48]
 *     the same, but for what is about the mean.
 *   Exponentials(y: float, length: int64) -> sums: float[rows], statistics: double[16]
 *     of a softmax, in such rows of more than 4,096 elements, the sum of e^(x - largest x), which is one over the largest y; of
 *     shorter rows nothing, since none of what is added is larger than 1. What is told of y means nothing.
 *   SumsApart(x: float, axes: int64[2]) -> the same as Sums
 *     of rows whose elements lie apart: along so many axes, the second of `axes`, from the first of them on.
 *   Windows(x: float, form: int64[5 n]) -> sum, magnitudes: float[0], statistics: double[24]
 *     of x [..., n dimensions], along each of which windows lie as five numbers say: how many places they have, how far apart
 *     windows are and places are, and how many places of nothing stand before x and behind it. What Probe tells of the sums
 *     of x and of |x| in a window, of which there are no tensors; what is told of x means nothing.
 *   Moments, Sums, SumsApart, Exponentials and Windows of an x that stays the same have an `address` as LastingProbe has.
 *   Watch(written: float, told: double[8], optional, x: float, constant: float, optional) -> statistics: double[8]
 *     what Probe tells of what a node has `written` that adds up products of x and a constant; and what it tells of x is
 *     `told`, or of what reaches as high and has no smaller magnitudes; where nobody tells, it looks at x. Where a sum of
 *     |x| |constant| may be over FP16's limit while x and the output are not, it calls a function, which may look at x and at
 *     the constant. An attribute, `numbers`: 1 for what SmallProbe tells, the address of that function, the number it is called
 *     with, the address of the allowance, the axis of x that is summed (from the end, where it is negative), in how many groups,
 *     and, as a double's bits, by what is to be multiplied what is told.
 *   WatchPair(written: float, told: double[8], optional, x: float, told_y: double[8], optional, y: float)
 *       -> statistics: double[8]
 *     the same for the products of x and y. Its `numbers` go on with the axis of y that is summed, by what is to be
 *     multiplied what is told of y, and 1 where y is a kernel: the axes behind that are summed as well, of x as many
 *     elements near one another.
 *   Tally(told: double[8 n]) -> nothing: double[0]
 *     adds what is told of n tensors to what was told of them in earlier runs, in memory at an `address`, an attribute:
 *     doubles [1 + n, 13], first the number of runs, then of each tensor a row: which of the n must hold more elements than so
 *     many times its own for it to be taken, the times, where in that memory, and in how many doubles, it stands of which others
 *     FP16 must be able to hold all for that, its least magnitude as it follows from the extremes of each run, -inf where it
 *     does not, and what is told of all its values.
 *   LastingProbe(x: float) -> statistics: double[8]
 *     what SmallProbe tells, of an x that stays the same as long as the number at its `address` does, and for ever where that
 *     is 0: it is looked at once.
 *   RoundToHalf(x: float) -> rounded: float
 *     each element as FP16 has it, to the nearest, ties to even: from 65520 on in magnitude infinite, NaN as it is.
 *   All but a Tally and RoundToHalf tell their statistics in memory where they have a `target`, two numbers: its address, and 1
 *   where the output tells them as well. Else the output may be left out.
 *   Of Moments, Sums and SumsApart any output may be left out that nobody reads. A node for whose outputs there is no memory
 *   ends the run with ONNX Runtime's error.
 *
 * ONNX Runtime's C API is a table of functions to which later versions only append, and a description of an operator
 * whose `version` says how far it goes. What is used of both is declared here.
 */
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

#ifdef PROBES_CLONES
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

namespace {

/* ---- ONNX Runtime's C API ---- */

struct Status;
struct Context;
struct Shapes;
struct Value;
using Api = const void *const *;
struct ApiBase {
  Api (*get_api)(uint32_t version);
  const char *(*get_version)();
};

constexpr uint32_t API_VERSION = 18, DESCRIPTION_VERSION = 18;
enum ElementType { FLOAT = 1, INT64 = 7, DOUBLE = 11 };
enum Characteristic { REQUIRED = 0, OPTIONAL = 1, VARIADIC = 2 };
enum Place {
  CREATE_STATUS = 0,
  CREATE_CUSTOM_OP_DOMAIN = 26,
  CUSTOM_OP_DOMAIN_ADD = 27,
  ADD_CUSTOM_OP_DOMAIN = 28,
  GET_TENSOR_MUTABLE_DATA = 51,
  GET_DIMENSIONS_COUNT = 61,
  GET_DIMENSIONS = 62,
  GET_SYMBOLIC_DIMENSIONS = 63,
  GET_TENSOR_SHAPE_ELEMENT_COUNT = 64,
  GET_TENSOR_TYPE_AND_SHAPE = 65,
  KERNEL_INFO_GET_ATTRIBUTE_INT64 = 86,
  KERNEL_CONTEXT_GET_INPUT_COUNT = 88,
  KERNEL_CONTEXT_GET_INPUT = 90,
  KERNEL_CONTEXT_GET_OUTPUT = 91,
  RELEASE_STATUS = 93,
  RELEASE_TENSOR_TYPE_AND_SHAPE_INFO = 99,
  KERNEL_INFO_GET_ATTRIBUTES_INT64 = 163,
  SHAPE_INFER_CONTEXT_GET_INPUT_TYPE_SHAPE = 268,
  SHAPE_INFER_CONTEXT_SET_OUTPUT_TYPE_SHAPE = 270,
  KERNEL_CONTEXT_PARALLEL_FOR = 274,
};

struct Description {
  uint32_t version;
  void *(*create)(const Description *, Api, const void *);
  const char *(*name)(const Description *);
  const char *(*provider)(const Description *);
  ElementType (*input_type)(const Description *, size_t);
  size_t (*input_count)(const Description *);
  ElementType (*output_type)(const Description *, size_t);
  size_t (*output_count)(const Description *);
  void (*compute)(void *, Context *);
  void (*destroy)(void *);
  Characteristic (*input_characteristic)(const Description *, size_t);
  Characteristic (*output_characteristic)(const Description *, size_t);
  int (*input_memory)(const Description *, size_t);
  int (*least_variadic_inputs)(const Description *);
  int (*have_variadic_inputs_one_type)(const Description *);
  int (*least_variadic_outputs)(const Description *) = nullptr;
  int (*have_variadic_outputs_one_type)(const Description *) = nullptr;
  Status *(*create_and_tell)(const Description *, Api, const void *, void **) = nullptr;
  Status *(*compute_and_tell)(void *, Context *) = nullptr;
  Status *(*infer_shapes)(const Description *, Shapes *) = nullptr;
  int (*first_version)(const Description *) = nullptr;
  int (*last_version)(const Description *) = nullptr;
  size_t (*find_places_to_reuse)(int **inputs, int **outputs) = nullptr;
  void (*release_places)(int *inputs, int *outputs) = nullptr;
  size_t (*find_aliases)(int **inputs, int **outputs) = nullptr;
  void (*release_aliases)(int *inputs, int *outputs) = nullptr;
};

Api api;

/* Calls the function at `place` of a table; its result and arguments are those that the C API has there. */
template <typename Result = Status *, typename... Arguments>
Result call(Api table, Place place, Arguments... arguments) {
  Result (*function)(Arguments...);
  memcpy(&function, &table[place], sizeof function);
  return function(arguments...);
}

template <typename Element>
Element *data_of(const Value *value) {
  void *data = nullptr;
  call(api, GET_TENSOR_MUTABLE_DATA, value, &data);
  return static_cast<Element *>(data);
}

/* Its elements, how many there are, and of its `rank` dimensions as many as there is room for. */
template <typename Element>
const Element *input(Context *context, size_t index, size_t *count, int64_t *dimensions = nullptr, size_t room = 0,
                     size_t *rank = nullptr) {
  const Value *value = nullptr;
  void *shape = nullptr;
  call(api, KERNEL_CONTEXT_GET_INPUT, context, index, &value);
  call(api, GET_TENSOR_TYPE_AND_SHAPE, value, &shape);
  call(api, GET_TENSOR_SHAPE_ELEMENT_COUNT, shape, count);
  if (rank) call(api, GET_DIMENSIONS_COUNT, shape, rank);
  if (room) call(api, GET_DIMENSIONS, static_cast<const void *>(shape), dimensions, room);
  call<void>(api, RELEASE_TENSOR_TYPE_AND_SHAPE_INFO, shape);
  return data_of<Element>(value);
}

bool is_given(Context *context, size_t index) {
  const Value *value = nullptr;
  Status *status = call(api, KERNEL_CONTEXT_GET_INPUT, context, index, &value);
  if (status) call<void>(api, RELEASE_STATUS, status);
  return value;
}

/* Why there was no memory for an output of the node that this thread computes. */
thread_local Status *failure = nullptr;

/* Null where nobody reads it, or with a failure. */
template <typename Element>
Element *output(Context *context, size_t index, const int64_t *shape, size_t rank) {
  Value *value = nullptr;
  Status *status = call(api, KERNEL_CONTEXT_GET_OUTPUT, context, index, shape, rank, &value);
  if (!status) return value ? data_of<Element>(value) : nullptr;
  if (failure) call<void>(api, RELEASE_STATUS, failure);
  failure = status;
  return nullptr;
}

template <typename Element>
Element *output(Context *context, size_t index, int64_t length) {
  return output<Element>(context, index, &length, 1);
}

template <void (*COMPUTE)(void *, Context *)>
Status *compute_or_tell(void *state, Context *context) {
  failure = nullptr;
  COMPUTE(state, context);
  Status *found = failure;
  failure = nullptr; /* a Watch calls what may run other sessions */
  return found;
}

/* Where a node tells its statistics. */
struct Target {
  int64_t address, is_output;

  void read(const void *info) {
    int64_t numbers[2];
    size_t count = 2;
    Status *status = call(api, KERNEL_INFO_GET_ATTRIBUTES_INT64, info, "target", &numbers[0], &count);
    if (status) call<void>(api, RELEASE_STATUS, status), numbers[0] = 0, numbers[1] = 1;
    address = numbers[0], is_output = numbers[1];
  }

  double *open(Context *context, size_t index, size_t length) const {
    return address ? reinterpret_cast<double *>(address) : output<double>(context, index, int64_t(length));
  }

  void close(Context *context, size_t index, size_t length, const double *told) const {
    double *to = address && is_output ? output<double>(context, index, int64_t(length)) : nullptr;
    if (to) memcpy(to, told, length * sizeof *told);
  }
};

/* Whether there is such an attribute; 0 where there is none. */
bool read_address(const void *info, int64_t *address) {
  Status *status = call(api, KERNEL_INFO_GET_ATTRIBUTE_INT64, info, "address", address);
  if (status) call<void>(api, RELEASE_STATUS, status), *address = 0;
  return !status;
}

/* Of a node with a state that begins with its target, and of one for which there was no memory. */
Target target_of(const void *state) { return state ? *static_cast<const Target *>(state) : Target{0, 1}; }

void in_parallel(Context *context, void (*task)(void *, size_t), size_t count, void *state) {
  if (count == 1)
    task(state, 0);
  else
    call(api, KERNEL_CONTEXT_PARALLEL_FOR, context, task, count, size_t{0}, state);
}

/* ---- Probe ---- */

constexpr size_t LANES = 32, BLOCK = 4096, TASK = 1 << 15, LOOK_TASK = 1 << 16, MOST_TASKS = 256, STATISTICS = 8;
constexpr uint32_t MAGNITUDE = 0x7fffffff, INFINITE = 0x7f800000, LIMIT = 0x477ff000; /* 65520 */
constexpr double HELD = 65504; /* the largest number of FP16 */

struct Statistics {
  float most = -INFINITY, least = INFINITY;
  uint32_t below_least = UINT32_MAX; /* the bits of the least magnitude that is not zero, less 1 */
  int64_t nan = 0, small = 0, finite = 0, high = 0;
};

inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline uint32_t magnitude_of(float x) { return bits_of(x) & MAGNITUDE; }

template <typename T>
inline void raise(T &most, T x) { most = x > most ? x : most; }
template <typename T>
inline void lower(T &least, T x) { least = x < least ? x : least; }

/* Of every `block` elements, a power of two, the first `lanes` are looked at. */
struct Width {
  size_t block, lanes;
  bool holds(size_t i) const { return (i & (block - 1)) < lanes; }
};

constexpr Width WHOLE{1, 1};

/* In 32 bits, of which processors count more at once than of 64. */
__attribute__((always_inline)) inline void count(Statistics &s, const float *x, size_t n, Width width) {
  for (size_t start = 0; start < n; start += BLOCK) {
    uint32_t nan = 0, small = 0, finite = 0, high = 0;
    size_t end = n - start < BLOCK ? n : start + BLOCK;
    for (size_t i = start; i < end; i++) {
      uint32_t magnitude = magnitude_of(x[i]), is_held = width.holds(i);
      nan += is_held & (magnitude > INFINITE), small += is_held & (magnitude < LIMIT), finite += is_held & (magnitude < INFINITE);
      high += is_held & (bits_of(x[i]) - LIMIT <= INFINITE - LIMIT); /* those below 0 have larger bits */
    }
    s.nan += nan, s.small += small, s.finite += finite, s.high += high;
  }
}

/* Extremes in LANES runs side by side; a NaN is neither larger nor smaller. */
template <bool IS_SMALL>
struct Looks {
  float most[LANES], least[LANES];
  uint32_t largest[LANES], below[LANES];

  void start(size_t j, const Statistics &s) {
    most[j] = s.most, least[j] = s.least, largest[j] = 0, below[j] = s.below_least;
  }

  __attribute__((always_inline)) void take(size_t j, float most_j, float least_j, uint32_t largest_j, uint32_t below_j) {
    raise(most[j], most_j), lower(least[j], least_j), raise(largest[j], largest_j);
    if (IS_SMALL) lower(below[j], below_j);
  }
};

/* The largest magnitude of a block, as bits. */
template <bool IS_SMALL>
__attribute__((always_inline)) inline uint32_t look_at_block(Statistics &s, const float *x, size_t n, Width width) {
  Looks<IS_SMALL> l;
  for (size_t j = 0; j < LANES; j++) l.start(j, s);
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t j = 0; j < LANES; j++)
      l.take(j, x[i + j], x[i + j], magnitude_of(x[i + j]), magnitude_of(x[i + j]) - 1);
  for (size_t j = 0; j < LANES; j++)
    if (!width.holds(j)) l.start(j, s);
  for (size_t half = LANES / 2; half; half /= 2)
    for (size_t j = 0; j < half; j++)
      l.take(j, l.most[j + half], l.least[j + half], l.largest[j + half], l.below[j + half]);
  for (; i < n; i++)
    if (width.holds(i)) l.take(0, x[i], x[i], magnitude_of(x[i]), magnitude_of(x[i]) - 1);
  s.most = l.most[0], s.least = l.least[0], s.below_least = l.below[0];
  return l.largest[0];
}

template <bool IS_SMALL>
__attribute__((always_inline)) inline void look_at(Statistics &s, const float *x, size_t n, Width width) {
  for (size_t start = 0; start < n; start += BLOCK) {
    size_t length = n - start < BLOCK ? n - start : BLOCK, held = length / width.block * width.lanes;
    if (look_at_block<IS_SMALL>(s, x + start, length, width) < LIMIT)
      s.small += held, s.finite += held;
    else
      count(s, x + start, length, width);
  }
}

FOR_EACH_CPU void look(Statistics &s, const float *x, size_t n) { look_at<false>(s, x, n, WHOLE); }
FOR_EACH_CPU void look_for_small(Statistics &s, const float *x, size_t n) { look_at<true>(s, x, n, WHOLE); }
FOR_EACH_CPU void look_at_lanes(Statistics &s, const float *x, size_t n, Width width) { look_at<false>(s, x, n, width); }

/* Of about `task` elements each: handing over a smaller one takes longer than looking at it. */
size_t count_tasks(size_t count, size_t task) { return count / task + 1 < MOST_TASKS ? count / task + 1 : MOST_TASKS; }

struct Probing {
  const float *x;
  size_t count, tasks;
  alignas(Statistics) unsigned char room[MOST_TASKS * sizeof(Statistics)]; /* of which few are used, and set */
  Statistics *found = reinterpret_cast<Statistics *>(room);

  void read(Context *context, size_t task, int64_t *dimensions = nullptr, size_t room = 0, size_t *rank = nullptr,
            size_t index = 0) {
    x = input<float>(context, index, &count, dimensions, room, rank);
    tasks = count_tasks(count, task);
  }
};

template <void (*LOOK)(Statistics &, const float *, size_t)>
void probe_part(void *state, size_t task) {
  Probing &p = *static_cast<Probing *>(state);
  size_t start = p.count * task / p.tasks, end = p.count * (task + 1) / p.tasks;
  p.found[task] = Statistics{};
  LOOK(p.found[task], p.x + start, end - start);
}

void tell(const Statistics &s, size_t count, double *to) {
  uint32_t bits = s.below_least < INFINITE ? s.below_least + 1 : INFINITE;
  float least_magnitude;
  memcpy(&least_magnitude, &bits, sizeof bits);
  to[0] = s.most, to[1] = s.least, to[2] = least_magnitude, to[3] = double(count);
  to[4] = double(s.nan), to[5] = double(s.small), to[6] = double(s.finite), to[7] = double(s.high);
}

/* Of all that was looked at, in parts. */
Statistics merge(const Statistics *parts, size_t tasks) {
  Statistics all;
  for (size_t task = 0; task < tasks; task++) {
    const Statistics &part = parts[task];
    raise(all.most, part.most), lower(all.least, part.least), lower(all.below_least, part.below_least);
    all.nan += part.nan, all.small += part.small, all.finite += part.finite, all.high += part.high;
  }
  return all;
}

/* What is told of an input. */
template <void (*LOOK)(Statistics &, const float *, size_t)>
void probe(Context *context, double *to, size_t index = 0) {
  Probing p;
  p.read(context, LOOK_TASK, nullptr, 0, nullptr, index);
  in_parallel(context, probe_part<LOOK>, p.tasks, &p);
  tell(merge(p.found, p.tasks), p.count, to);
}

template <void (*LOOK)(Statistics &, const float *, size_t)>
void compute_probe(void *state, Context *context) {
  const Target target = target_of(state);
  double *told = target.open(context, 0, STATISTICS);
  if (!told) return;
  probe<LOOK>(context, told);
  target.close(context, 0, STATISTICS, told);
}

void compute_shared_probe(void *state, Context *context) {
  const Target target = target_of(state);
  size_t inputs = 0;
  call(api, KERNEL_CONTEXT_GET_INPUT_COUNT, context, &inputs);
  double *told = target.open(context, 0, inputs * STATISTICS);
  if (!told) return;
  for (size_t i = 0; i < inputs; i++) probe<look_for_small>(context, told + i * STATISTICS, i);
  target.close(context, 0, inputs * STATISTICS, told);
}

/* ---- BlockProbe ---- */

/* Each image is `rows` rows of `width.block` elements; those behind the first `full` hold padding. */
struct BlockProbing : Probing {
  Width width = WHOLE;
  size_t rows = 1, full = 1, channels = 1, padded = 1;

  /* Where x cannot be laid out so, it is one image without padding. */
  void lay_out(const int64_t *dimensions, const int64_t *layout) {
    size_t block = size_t(layout[1]), wanted = size_t(layout[0]), given = size_t(dimensions[1]);
    rows = full = count;
    if (!count || !given || !block || LANES % block || given % block || wanted > given || given - wanted >= block) return;
    channels = wanted, padded = given;
    width = {block, block - (padded - channels)};
    rows = count / size_t(dimensions[0]) / block;
    full = rows - rows / (padded / block);
  }
};

void probe_blocks(void *state, size_t task) {
  BlockProbing &p = *static_cast<BlockProbing *>(state);
  size_t all = p.count / p.width.block, row = all * task / p.tasks, end = all * (task + 1) / p.tasks;
  Statistics s;
  while (row < end) {
    size_t within = row % p.rows, stop = row - within + (within < p.full ? p.full : p.rows);
    if (stop > end) stop = end;
    const float *x = p.x + row * p.width.block;
    if (within < p.full)
      look(s, x, (stop - row) * p.width.block);
    else
      look_at_lanes(s, x, (stop - row) * p.width.block, p.width);
    row = stop;
  }
  p.found[task] = s;
}

void compute_block_probe(void *state, Context *context) {
  const Target target = target_of(state);
  BlockProbing p;
  int64_t dimensions[2] = {};
  size_t two;
  p.read(context, LOOK_TASK, dimensions, 2);
  const int64_t *layout = input<int64_t>(context, 1, &two);
  const int64_t none[2] = {};
  p.lay_out(dimensions, two == 2 ? layout : none);
  in_parallel(context, probe_blocks, p.tasks, &p);
  double *told = target.open(context, 0, STATISTICS);
  if (!told) return;
  tell(merge(p.found, p.tasks), p.count / p.padded * p.channels, told);
  target.close(context, 0, STATISTICS, told);
}

/* ---- Moments and Sums ---- */

constexpr size_t MOMENTS = 7, SUMS = 5, ROWS = 128, PIECE = 512, SHORT = 128, MOST_DIMENSIONS = 64;

struct Sums {
  double sum = 0, magnitudes = 0, squares = 0;
  float most = -INFINITY, least = INFINITY;
};

template <size_t RUNS>
struct Runs {
  float sum[RUNS] = {}, magnitudes[RUNS] = {}, squares[RUNS] = {}, most[RUNS], least[RUNS];
};

/* What the runs hold, joined by halves: a dozen roundings more would not matter, the time would. */
template <size_t RUNS>
__attribute__((always_inline)) inline void join(Sums &s, Runs<RUNS> &r) {
  for (size_t half = RUNS / 2; half; half /= 2)
    for (size_t j = 0; j < half; j++) {
      r.sum[j] += r.sum[j + half], r.magnitudes[j] += r.magnitudes[j + half], r.squares[j] += r.squares[j + half];
      raise(r.most[j], r.most[j + half]), lower(r.least[j], r.least[j + half]);
    }
  s.sum += r.sum[0], s.magnitudes += r.magnitudes[0], s.squares += r.squares[0];
  raise(s.most, r.most[0]), lower(s.least, r.least[0]);
}

/* Sums of (x - shift), a few terms in float and the rest in double, and the extremes of x, in runs side by side. */
template <size_t RUNS>
__attribute__((always_inline)) inline void add_up_in(Sums &s, const float *x, size_t n, float shift) {
  for (size_t i = 0, start = 0; start < n; start += PIECE) {
    size_t end = start + PIECE < n ? start + PIECE : n;
    Runs<RUNS> r;
    for (size_t j = 0; j < RUNS; j++) r.most[j] = -INFINITY, r.least[j] = INFINITY;
    for (; i + RUNS <= end; i += RUNS)
      for (size_t j = 0; j < RUNS; j++) {
        float d = x[i + j] - shift;
        r.sum[j] += d, r.magnitudes[j] += fabsf(d), r.squares[j] += d * d;
        raise(r.most[j], x[i + j]), lower(r.least[j], x[i + j]);
      }
    join(s, r);
    for (; i < end; i++) {
      float d = x[i] - shift;
      s.sum += d, s.magnitudes += fabsf(d), s.squares += d * d;
      raise(s.most, x[i]), lower(s.least, x[i]);
    }
  }
}

/* Of a short row, most of the time would go into joining many runs. */
FOR_EACH_CPU void add_up(Sums &s, const float *x, size_t n, float shift) {
  if (n < SHORT)
    add_up_in<16>(s, x, n, shift);
  else
    add_up_in<LANES>(s, x, n, shift);
}

/* x as [rows / between, parts, between, length]: a row has as many elements as `parts`, each of `length`, have. */
struct Adding : Probing {
  size_t rows, length, parts = 1, between = 1;
  float *to[MOMENTS]; /* null where nobody reads it */
  alignas(Statistics) unsigned char told_room[MOMENTS * MOST_TASKS * sizeof(Statistics)]; /* as Probing's */
  Statistics *told = reinterpret_cast<Statistics *>(told_room);

  Statistics &told_of(size_t output, size_t task) { return told[output * MOST_TASKS + task]; }

  /* Where x cannot be cut so, it is one row. */
  void cut(Context *context) {
    int64_t dimensions[MOST_DIMENSIONS];
    size_t rank = 0, numbers = 0;
    read(context, TASK, dimensions, MOST_DIMENSIONS, &rank);
    const int64_t *given = input<int64_t>(context, 1, &numbers);
    int64_t wanted = numbers == 1 ? *given : 0;
    if (numbers == 3 && given[2] > 0) {
      wanted = -given[2];
      find_parts(dimensions, size_t(given[0]), size_t(given[1]), rank - size_t(given[2]));
    }
    if (wanted < 0) wanted = multiply(dimensions, rank + size_t(wanted), rank);
    size_t known = size_t(wanted) * parts * between;
    if (wanted <= 0 || !known || count % known) wanted = int64_t(count), parts = between = 1;
    length = size_t(wanted);
    rows = count ? count / length / parts : 0;
    if (tasks > rows) tasks = rows;
  }

  void find_parts(const int64_t *dimensions, size_t first, size_t axes, size_t end) {
    parts = size_t(multiply(dimensions, first, first + axes));
    between = size_t(multiply(dimensions, first + axes, end));
  }

  size_t elements() const { return length * parts; }
  const float *part(size_t row, size_t i) const {
    if (parts == 1) return x + row * length; /* of short rows the divisions would show */
    return x + ((row / between * parts + i) * between + row % between) * length;
  }

  static int64_t multiply(const int64_t *dimensions, size_t first, size_t end) {
    int64_t product = first < end && end <= MOST_DIMENSIONS;
    for (size_t i = first; product && i < end; i++) product *= dimensions[i];
    return product;
  }
};

/* Some rows, of which what is told goes out when they are full. */
struct Rows {
  Adding &a;
  size_t task, outputs, first = 0, count = 0;
  float values[MOMENTS][ROWS];

  Rows(Adding &a, size_t task, size_t outputs) : a(a), task(task), outputs(outputs) {
    for (size_t k = 0; k < outputs; k++) a.told_of(k, task) = Statistics{};
  }

  void hand_over() {
    for (size_t k = 0; k < outputs; k++) {
      look(a.told_of(k, task), values[k], count);
      if (a.to[k]) memcpy(a.to[k] + first, values[k], count * sizeof(float));
    }
    count = 0;
  }

  template <size_t OUTPUTS>
  void add(size_t row, const double (&found)[OUTPUTS]) {
    if (!count) first = row;
    for (size_t k = 0; k < OUTPUTS; k++) values[k][count] = float(found[k]);
    if (++count == ROWS) hand_over();
  }
};

/* What Probe tells of a row, of which sums are known: those of squares are NaN only where an element is. */
void look_at_row(Statistics &all, const Sums &s, const Adding &a, size_t row) {
  raise(all.most, s.most), lower(all.least, s.least);
  if (!isnan(s.squares) && magnitude_of(s.most) < LIMIT && magnitude_of(s.least) < LIMIT)
    all.small += a.elements(), all.finite += a.elements();
  else
    for (size_t i = 0; i < a.parts; i++) count(all, a.part(row, i), a.length, WHOLE);
}

Sums add_up_row(const Adding &a, size_t row, float shift) {
  Sums s;
  for (size_t i = 0; i < a.parts; i++) add_up(s, a.part(row, i), a.length, shift);
  return s;
}

void tell_sums(Rows &rows, size_t row, Statistics &all) {
  const Adding &a = rows.a;
  Sums s = add_up_row(a, row, 0);
  look_at_row(all, s, a, row);
  double found[SUMS] = {s.most, s.least, s.sum, s.magnitudes, s.squares};
  rows.add(row, found);
}

/* Where the mean is large beside the deviations, what is left of them in sums about 0 is rounding: once more about it. */
void tell_moments(Rows &rows, size_t row, Statistics &all) {
  const Adding &a = rows.a;
  double n = double(a.elements()), shift = 0;
  Sums s = add_up_row(a, row, 0), about = s;
  look_at_row(all, s, a, row);
  if (s.squares - s.sum * s.sum / n <= 0.5 * s.squares) {
    shift = float(s.sum / n);
    about = add_up_row(a, row, float(shift));
  }
  double mean = shift + about.sum / n, spread = about.squares - about.sum * about.sum / n;
  double found[MOMENTS] = {s.most, s.least, 0, mean * n, s.magnitudes, s.squares, spread < 0 ? 0 : spread};
  found[2] = s.most - mean;
  raise(found[2], mean - s.least);
  rows.add(row, found);
}

constexpr size_t LONG = 4096;

struct LongRows : Adding {
  void cut(Context *context) {
    Adding::cut(context);
    if (length <= LONG) rows = tasks = 0;
  }
};

/* Where one element of a softmax is NaN, all of its row are. */
void tell_exponentials(Rows &rows, size_t row, Statistics &) {
  Statistics s;
  look(s, rows.a.x + row * rows.a.length, rows.a.length);
  double found[] = {s.most < 0 ? NAN : 1 / s.most};
  rows.add(row, found);
}

template <size_t OUTPUTS, void (*TELL_ROW)(Rows &, size_t, Statistics &)>
void add_up_part(void *state, size_t task) {
  Adding &a = *static_cast<Adding *>(state);
  Statistics all;
  Rows rows(a, task, OUTPUTS);
  size_t end = a.rows * (task + 1) / a.tasks;
  for (size_t row = a.rows * task / a.tasks; row < end; row++) TELL_ROW(rows, row, all);
  rows.hand_over();
  a.found[task] = all;
}

/* What a node gave of an x that stays the same as long as the number at an address does, and for ever where that is 0. */
struct Kept {
  Target target;
  int64_t address;
  bool is_lasting;
  double when;
  size_t rows;
  float *values;
  double told[(MOMENTS + 1) * STATISTICS];

  void read(const void *info) {
    target.read(info), when = NAN;
    is_lasting = read_address(info, &address);
  }

  double now() const { return address ? *reinterpret_cast<const double *>(address) : 0; }

  void keep(float *const *from, size_t outputs, size_t count, const double *statistics) {
    free(values);
    values = static_cast<float *>(malloc((outputs * count + 1) * sizeof(float)));
    if (!values) return void(when = NAN);
    for (size_t k = 0; count && k < outputs; k++)
      if (from[k]) memcpy(values + k * count, from[k], count * sizeof(float));
    memcpy(told, statistics, (outputs + 1) * STATISTICS * sizeof(double));
    rows = count, when = now();
  }

  void give(Context *context, size_t outputs) const {
    for (size_t k = 0; k < outputs; k++) {
      float *to = output<float>(context, k, int64_t(rows));
      if (rows && to) memcpy(to, values + k * rows, rows * sizeof(float));
    }
    size_t length = (outputs + 1) * STATISTICS;
    double *to = target.open(context, outputs, length);
    if (failure || !to) return;
    memcpy(to, told, length * sizeof(double));
    target.close(context, outputs, length, told);
  }
};

/* The last output holds what Probe tells of each of the others, and of x. */
template <size_t OUTPUTS, typename Cut, void (*ADD_UP_PART)(void *, size_t)>
void compute_rows(void *state, Context *context) {
  Kept *kept = static_cast<Kept *>(state);
  if (kept && kept->when == kept->now()) return kept->give(context, OUTPUTS);
  Cut a;
  a.cut(context);
  for (size_t k = 0; k < OUTPUTS; k++) a.to[k] = output<float>(context, k, int64_t(a.rows));
  const Target target = target_of(state);
  double unread[(OUTPUTS + 1) * STATISTICS], *told = target.open(context, OUTPUTS, (OUTPUTS + 1) * STATISTICS);
  if (failure) return;
  if (!told) told = unread;
  if (a.rows) in_parallel(context, ADD_UP_PART, a.tasks, &a);
  for (size_t k = 0; k < OUTPUTS; k++) tell(merge(&a.told_of(k, 0), a.tasks), a.rows, told + k * STATISTICS);
  tell(merge(a.found, a.tasks), a.count, told + OUTPUTS * STATISTICS);
  target.close(context, OUTPUTS, (OUTPUTS + 1) * STATISTICS, told);
  if (kept && kept->is_lasting) kept->keep(a.to, OUTPUTS, a.rows, told);
}

/* ---- SumsApart ---- */

constexpr size_t COLUMNS = 128, FEW = 64;

/* x as [outer, length, inner], of which `length` is summed. */
struct AddingApart : Adding {
  size_t outer = 1, inner = 1, strips = 1;

  /* Where x has no such axes, it is one row. */
  void cut(Context *context) {
    int64_t dimensions[MOST_DIMENSIONS];
    size_t rank = 0, two = 0;
    read(context, TASK, dimensions, MOST_DIMENSIONS, &rank);
    const int64_t *axes = input<int64_t>(context, 1, &two);
    bool is_there = two == 2 && rank <= MOST_DIMENSIONS && axes[0] >= 0 && axes[1] > 0 && size_t(axes[1]) <= rank &&
                    size_t(axes[0]) <= rank - size_t(axes[1]);
    size_t first = is_there ? size_t(axes[0]) : 0, end = is_there ? first + size_t(axes[1]) : 0;
    length = is_there ? 1 : count;
    for (size_t i = 0; is_there && i < rank; i++) (i < first ? outer : i < end ? length : inner) *= size_t(dimensions[i]);
    rows = count ? outer * inner : 0;
    strips = (inner + COLUMNS - 1) / COLUMNS;
    size_t most = rows ? outer * strips : 0;
    if (tasks > most) tasks = most;
  }
};

struct Columns {
  float sum[COLUMNS], magnitudes[COLUMNS], squares[COLUMNS], most[COLUMNS], least[COLUMNS];
  double sums[3][COLUMNS];
};

/* A few terms in float and the rest in double, of `n` columns side by side. */
FOR_EACH_CPU void add_columns(Columns &c, const float *x, size_t n, size_t length, size_t step) {
  for (size_t j = 0; j < n; j++) c.most[j] = -INFINITY, c.least[j] = INFINITY;
  for (size_t j = 0; j < n; j++) c.sums[0][j] = c.sums[1][j] = c.sums[2][j] = 0;
  for (size_t start = 0; start < length; start += FEW) {
    size_t end = start + FEW < length ? start + FEW : length;
    for (size_t j = 0; j < n; j++) c.sum[j] = c.magnitudes[j] = c.squares[j] = 0;
    for (size_t i = start; i < end; i++)
      for (size_t j = 0; j < n; j++) {
        float d = x[i * step + j];
        c.sum[j] += d, c.magnitudes[j] += fabsf(d), c.squares[j] += d * d;
        raise(c.most[j], d), lower(c.least[j], d);
      }
    for (size_t j = 0; j < n; j++)
      c.sums[0][j] += c.sum[j], c.sums[1][j] += c.magnitudes[j], c.sums[2][j] += c.squares[j];
  }
}

void add_up_apart(void *state, size_t task) {
  AddingApart &a = *static_cast<AddingApart *>(state);
  Statistics all;
  Rows rows(a, task, SUMS);
  size_t strips = a.outer * a.strips, end = strips * (task + 1) / a.tasks;
  for (size_t strip = strips * task / a.tasks; strip < end; strip++) {
    size_t o = strip / a.strips, first = strip % a.strips * COLUMNS, n = a.inner - first < COLUMNS ? a.inner - first : COLUMNS;
    const float *x = a.x + o * a.length * a.inner + first;
    Columns c;
    add_columns(c, x, n, a.length, a.inner);
    bool is_held = true;
    for (size_t j = 0; j < n; j++) {
      const double found[SUMS] = {c.most[j], c.least[j], c.sums[0][j], c.sums[1][j], c.sums[2][j]};
      rows.add(o * a.inner + first + j, found);
      raise(all.most, c.most[j]), lower(all.least, c.least[j]);
      is_held &= !isnan(c.sums[2][j]) & (magnitude_of(c.most[j]) < LIMIT) & (magnitude_of(c.least[j]) < LIMIT);
    }
    if (is_held)
      all.small += n * a.length, all.finite += n * a.length;
    else
      for (size_t i = 0; i < a.length; i++) count(all, x + i * a.inner, n, WHOLE);
  }
  rows.hand_over();
  a.found[task] = all;
}

/* ---- Windows ---- */

constexpr size_t REACH = 4096, WINDOWS = 2, NUMBERS = 5;

/* Along one dimension: how many places a window has, and x, and how many windows there are. */
struct Axis {
  int64_t places, step, dilation, before, length, count;

  int64_t span(int64_t windows) const { return (windows - 1) * step + (places - 1) * dilation + 1; }
};

/* x as `images`, each of `size` elements; windows lie in strips along the last dimension. */
struct Sliding {
  const float *x;
  size_t count, images = 0, size = 1, rank = 0, tasks = 1;
  int64_t windows = 1, rows = 1, strip = 1; /* in an image; but along the last dimension; in a strip */
  Axis axes[MOST_DIMENSIONS];
  Probing told[WINDOWS];

  /* Where x has no such windows, there is no image. */
  void read(Context *context) {
    int64_t dimensions[MOST_DIMENSIONS];
    size_t known = 0, numbers = 0;
    x = input<float>(context, 0, &count, dimensions, MOST_DIMENSIONS, &known);
    const int64_t *form = input<int64_t>(context, 1, &numbers);
    rank = numbers / NUMBERS;
    if (!rank || rank > known || known > MOST_DIMENSIONS) return;
    for (size_t i = 0; i < rank; i++) {
      const int64_t *given = form + NUMBERS * i, length = dimensions[known - rank + i];
      axes[i] = {given[0], given[1], given[2], given[3], length, 0};
      int64_t room = length + given[3] + given[4] - axes[i].span(1);
      axes[i].count = room <= -given[1] ? 0 : room / given[1] + 1; /* one that reaches over both edges is one */
      size *= size_t(length), windows *= axes[i].count;
      if (i + 1 < rank) rows *= axes[i].count;
    }
    const Axis &last = axes[rank - 1];
    if (!windows || !size || last.span(1) > int64_t(REACH)) return;
    strip = (int64_t(REACH) - last.span(1)) / last.step + 1;
    images = count / size;
    tasks = count / TASK + 1 < MOST_TASKS ? count / TASK + 1 : MOST_TASKS;
    if (tasks > images) tasks = images;
  }
};

/* The sums of the last windows, to be looked at when there are many. */
struct Added {
  float sums[WINDOWS][BLOCK];
  size_t count = 0;
  Statistics found[WINDOWS];

  __attribute__((always_inline)) void look_at_all() {
    for (size_t k = 0; k < WINDOWS; k++) look_at<false>(found[k], sums[k], count, WHOLE);
    count = 0;
  }
};

/* Adds up, of the rows of x that a row of windows reaches, the columns from `first` on, and their magnitudes. */
__attribute__((always_inline)) inline void add_rows(const Sliding &s, const float *image, int64_t row, int64_t first,
                                                    int64_t span, float (*columns)[REACH]) {
  int64_t starts[MOST_DIMENSIONS], place[MOST_DIMENSIONS] = {}, length = s.axes[s.rank - 1].length;
  int64_t begin = first < 0 ? -first : 0, end = length - first < span ? length - first : span;
  size_t outer = s.rank - 1;
  for (size_t i = outer; i--; row /= s.axes[i].count)
    starts[i] = row % s.axes[i].count * s.axes[i].step - s.axes[i].before;
  for (size_t k = 0; k < WINDOWS; k++) memset(columns[k], 0, size_t(span) * sizeof(float));
  while (true) {
    int64_t found = 0;
    bool is_inside = true;
    for (size_t i = 0; i < outer; i++) {
      int64_t at = starts[i] + place[i] * s.axes[i].dilation;
      is_inside &= at >= 0 && at < s.axes[i].length, found = found * s.axes[i].length + at;
    }
    const float *x = image + found * length + first;
    for (int64_t j = begin; is_inside && j < end; j++) columns[0][j] += x[j], columns[1][j] += fabsf(x[j]);
    size_t i = outer;
    while (i && ++place[i - 1] == s.axes[i - 1].places) place[--i] = 0;
    if (!i) return;
  }
}

/* Of `n` windows side by side, the places from `first` on, a few. */
__attribute__((always_inline)) inline void add_places(const Axis &axis, const float *columns, int64_t first, int64_t n,
                                                      float *to) {
  int64_t end = axis.places - first < int64_t(FEW) ? axis.places : first + int64_t(FEW);
  memset(to, 0, size_t(n) * sizeof(float));
  for (int64_t i = first; i < end; i++) {
    const float *from = columns + i * axis.dilation;
    if (axis.step == 1)
      for (int64_t j = 0; j < n; j++) to[j] += from[j];
    else
      for (int64_t j = 0; j < n; j++) to[j] += from[j * axis.step];
  }
}

FOR_EACH_CPU void add_windows(const Sliding &s, const float *image, Added &added) {
  const Axis &last = s.axes[s.rank - 1];
  float columns[WINDOWS][REACH], more[REACH];
  for (int64_t row = 0; row < s.rows; row++)
    for (int64_t done = 0; done < last.count;) {
      int64_t n = last.count - done < s.strip ? last.count - done : s.strip;
      if (size_t(n) > BLOCK - added.count) added.look_at_all();
      add_rows(s, image, row, done * last.step - last.before, last.span(n), columns);
      for (size_t k = 0; k < WINDOWS; k++) {
        float *to = added.sums[k] + added.count;
        add_places(last, columns[k], 0, n, to);
        for (int64_t i = FEW; i < last.places; i += FEW) {
          add_places(last, columns[k], i, n, more);
          for (int64_t j = 0; j < n; j++) to[j] += more[j];
        }
      }
      added.count += size_t(n), done += n;
    }
}

FOR_EACH_CPU void look_at_added(Added &added) { added.look_at_all(); }

void add_up_windows(void *state, size_t task) {
  Sliding &s = *static_cast<Sliding *>(state);
  Added added;
  for (size_t i = s.images * task / s.tasks; i < s.images * (task + 1) / s.tasks; i++)
    add_windows(s, s.x + i * s.size, added);
  look_at_added(added);
  for (size_t k = 0; k < WINDOWS; k++) s.told[k].found[task] = added.found[k];
}

void compute_windows(void *state, Context *context) {
  Kept *kept = static_cast<Kept *>(state);
  if (kept && kept->when == kept->now()) return kept->give(context, WINDOWS);
  Sliding s;
  s.read(context);
  if (s.images) in_parallel(context, add_up_windows, s.tasks, &s);
  const Target target = target_of(state);
  double *told = target.open(context, WINDOWS, (WINDOWS + 1) * STATISTICS);
  if (!told) return;
  float *nothing[WINDOWS];
  for (size_t k = 0; k < WINDOWS; k++) {
    s.told[k].tasks = s.images ? s.tasks : 0, nothing[k] = output<float>(context, k, 0);
    tell(merge(s.told[k].found, s.told[k].tasks), s.images * size_t(s.windows), told + k * STATISTICS);
  }
  tell(Statistics{}, 0, told + WINDOWS * STATISTICS);
  target.close(context, WINDOWS, (WINDOWS + 1) * STATISTICS, told);
  if (kept && kept->is_lasting) kept->keep(nothing, WINDOWS, 0, told);
}

/* ---- Watch and WatchPair ---- */

constexpr size_t STRIP = 1024;

/* What cannot lead to a sum over FP16's limit: a product of the largest magnitudes (of a pair, times the number of terms),
 * or of the largest lengths (roots of sums of squares) of what is summed. While it `can_grow`, it is asked for. */
struct Allowance {
  double magnitude, length, can_grow;
};

/* x is null where a larger allowance is asked for. */
using Look = void (*)(int64_t number, const float *x, const int64_t *x_dimensions, int64_t x_rank, const float *y,
                      const int64_t *y_dimensions, int64_t y_rank);

/* A tensor as [outer, length, inner], of which `length` is summed. */
struct Lengths {
  const float *x = nullptr;
  size_t count = 1, outer = 1, length = 1, inner = 1, strips = 1, tasks = 1, rank = 0;
  int64_t dimensions[MOST_DIMENSIONS];
  float found[MOST_TASKS];

  void read(Context *context, size_t index, int64_t axis, size_t groups) {
    x = input<float>(context, index, &count, dimensions, MOST_DIMENSIONS, &rank);
    int64_t place = axis < 0 ? axis + int64_t(rank) : axis;
    size_t summed = place < 0 ? 0 : size_t(place), known = rank < MOST_DIMENSIONS ? rank : MOST_DIMENSIONS;
    for (size_t i = 0; i < known; i++) (i < summed ? outer : i > summed ? inner : length) *= size_t(dimensions[i]);
    length /= groups, outer *= groups;
    strips = (inner + STRIP - 1) / STRIP;
    tasks = count / TASK + 1 < MOST_TASKS ? count / TASK + 1 : MOST_TASKS;
    if (tasks > outer * strips) tasks = outer * strips;
  }
};

FOR_EACH_CPU float add_squares(const float *x, size_t n) {
  float runs[LANES] = {}, sum = 0;
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t j = 0; j < LANES; j++) runs[j] += x[i + j] * x[i + j];
  for (; i < n; i++) runs[0] += x[i] * x[i];
  for (size_t j = 0; j < LANES; j++) sum += runs[j];
  return sum;
}

/* The largest of `n` sums side by side. */
FOR_EACH_CPU float add_squares_apart(const float *x, size_t n, size_t length, size_t step) {
  float sums[STRIP] = {}, most = 0;
  for (size_t k = 0; k < length; k++)
    for (size_t j = 0; j < n; j++) sums[j] += x[k * step + j] * x[k * step + j];
  for (size_t j = 0; j < n; j++) raise(most, sums[j]);
  return most;
}

void find_lengths(void *state, size_t task) {
  Lengths &l = *static_cast<Lengths *>(state);
  size_t all = l.outer * l.strips, end = all * (task + 1) / l.tasks;
  l.found[task] = 0;
  for (size_t i = all * task / l.tasks; i < end; i++) {
    size_t first = i % l.strips * STRIP, n = l.inner - first < STRIP ? l.inner - first : STRIP;
    const float *x = l.x + i / l.strips * l.length * l.inner + first;
    raise(l.found[task], l.inner == 1 ? add_squares(x, l.length) : add_squares_apart(x, n, l.length, l.inner));
  }
}

/* No less than the largest, whatever was rounded. That of one element is its magnitude, of which the largest may be known. */
double find_largest_length(Context *context, Lengths &l, double magnitude) {
  if (l.rank > MOST_DIMENSIONS) return INFINITY;
  if (l.length == 1 && !isnan(magnitude)) return magnitude;
  in_parallel(context, find_lengths, l.tasks, &l);
  float most = 0;
  for (size_t task = 0; task < l.tasks; task++) raise(most, l.found[task]);
  return sqrt(double(most)) * (1 + 1e-7 * double(l.length + LANES));
}

double magnitude_in(const double *told) { return told[0] > -told[1] ? told[0] : -told[1]; }

/* Of a tensor: what Probe tells of it, or of one whose elements, times the scale, reach as high. */
struct Told {
  const double *told = nullptr;
  double scale = 1, slack = 0, own[STATISTICS];

  /* At `index`; of the input behind that where it is left out. */
  void read(Context *context, size_t index, int64_t bits) {
    size_t count;
    if (!is_given(context, index)) return probe<look>(context, own, index + 1), void(told = own);
    told = input<double>(context, index, &count);
    memcpy(&scale, &bits, sizeof scale);
    if (scale != 1) slack = 1e-6; /* more than is lost to rounding */
  }
  bool is_over() const { return told[0] * scale * (1 - slack) > HELD; }
  double magnitude() const { return magnitude_in(told) * scale * (1 + slack); }
};

struct Watch {
  Target target;
  int64_t is_small, function, number, allowance, axis, groups, scale, axis_y, scale_y, is_kernel;

  void read(const void *info) {
    size_t count = (sizeof *this - sizeof target) / sizeof is_small;
    target.read(info);
    Status *status = call(api, KERNEL_INFO_GET_ATTRIBUTES_INT64, info, "numbers", &is_small, &count);
    if (status) call<void>(api, RELEASE_STATUS, status), function = 0;
  }

  void ask() const { reinterpret_cast<Look>(function)(number, nullptr, nullptr, 0, nullptr, nullptr, 0); }

  void show(const Lengths &x, const Lengths &y) const {
    reinterpret_cast<Look>(function)(number, x.x, x.dimensions, int64_t(x.rank), y.x, y.dimensions, int64_t(y.rank));
  }
};

template <bool IS_PAIR>
void compute_watch(void *state, Context *context) {
  size_t count;
  const Watch none{{0, 1}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, &watch = state ? *static_cast<const Watch *>(state) : none;
  const volatile Allowance *allowed = reinterpret_cast<const Allowance *>(watch.allowance);
  double *written = watch.target.open(context, 0, STATISTICS);
  if (!written) return;
  watch.is_small ? probe<look_for_small>(context, written) : probe<look>(context, written);
  watch.target.close(context, 0, STATISTICS, written);
  if (!watch.function) return;
  Told told, told_y;
  told.read(context, 1, watch.scale);
  if (IS_PAIR) told_y.read(context, 3, watch.scale_y);
  if (magnitude_in(written) > HELD || told.is_over() || (IS_PAIR && told_y.is_over())) return;
  Lengths x, y;
  x.read(context, 2, watch.axis, size_t(watch.groups));
  if (IS_PAIR) y.read(context, 4, watch.axis_y, 1);
  if (!x.count || !y.count) return;
  double places = watch.is_kernel ? double(y.inner) : 1;
  bool is_stretched = IS_PAIR && !watch.is_kernel && x.length != y.length; /* one of an Einsum's is of one element */
  double terms = double(is_stretched && y.length > x.length ? y.length : x.length) * places;
  double magnitude = told.magnitude() * (IS_PAIR ? told_y.magnitude() * terms : 1);
  while (!(magnitude <= allowed->magnitude) && allowed->can_grow) watch.ask();
  if (magnitude <= allowed->magnitude) return;
  double length = find_largest_length(context, x, told.magnitude());
  if (!IS_PAIR && is_given(context, 3)) y.x = input<float>(context, 3, &count, y.dimensions, MOST_DIMENSIONS, &y.rank);
  if (IS_PAIR) length *= find_largest_length(context, y, told_y.magnitude()) * places;
  if (is_stretched || !(length <= allowed->length)) watch.show(x, y);
}

/* ---- Tally ---- */

struct Tally {
  Target target;
  int64_t address;
  double when; /* a LastingProbe looked last */
  double told[STATISTICS];

  void read(const void *info) {
    target.read(info), when = NAN;
    read_address(info, &address);
  }
};

constexpr size_t CONDITIONS = 4;

bool are_held(const double *told, const double *numbers, size_t count) {
  bool found = true;
  for (size_t i = 0; i < count; i++) found &= magnitude_in(told + size_t(numbers[i]) * STATISTICS) <= HELD;
  return found;
}

double least_magnitude(const double *told) {
  if (told[1] > 0) return told[1];
  if (told[0] < 0) return -told[0];
  return told[0] == 0 && told[1] == 0 ? INFINITY : -INFINITY;
}

void compute_tally(void *state, Context *context) {
  size_t count;
  const double *told = input<double>(context, 0, &count);
  double *totals = state ? reinterpret_cast<double *>(static_cast<Tally *>(state)->address) : nullptr;
  output<double>(context, 0, 0);
  if (!totals) return;
  *totals += 1;
  const double *memory = totals;
  for (const double *one = told; one + STATISTICS <= told + count; one += STATISTICS) {
    totals += CONDITIONS + 1 + STATISTICS;
    if (told[size_t(totals[0]) * STATISTICS + 3] <= totals[1] * one[3]) continue;
    if (!are_held(told, memory + size_t(totals[2]), size_t(totals[3]))) continue;
    double *least = totals + CONDITIONS, *all = least + 1;
    lower(*least, least_magnitude(one)), raise(all[0], one[0]), lower(all[1], one[1]), lower(all[2], one[2]);
    for (size_t k = 3; k < STATISTICS; k++) all[k] += one[k];
  }
}

void compute_lasting_probe(void *state, Context *context) {
  Tally none{{0, 1}, 0, NAN, {}}, &known = state ? *static_cast<Tally *>(state) : none;
  double now = known.address ? *reinterpret_cast<const double *>(known.address) : 0;
  if (known.when != now) probe<look_for_small>(context, known.told), known.when = now;
  double *told = known.target.open(context, 0, STATISTICS);
  if (!told) return;
  memcpy(told, known.told, sizeof known.told);
  known.target.close(context, 0, STATISTICS, known.told);
}

/* ---- RoundToHalf ---- */

constexpr uint32_t QUIET = 0x400000, LOST = 0x1fff, LEAST_NORMAL = 0x38800000; /* 2^-14 */

inline float as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline float round_to_half(float x) {
  uint32_t magnitude = magnitude_of(x), sign = bits_of(x) ^ magnitude;
  uint32_t normal = (magnitude + LOST / 2 + (magnitude / (LOST + 1) & 1)) & ~LOST;
  uint32_t subnormal = bits_of(as_float(magnitude) + 0.5f - 0.5f); /* of which the last bit is 2^-24 */
  uint32_t rounded = magnitude < LEAST_NORMAL ? subnormal : normal;
  rounded = magnitude < LIMIT ? rounded : INFINITE;
  rounded = magnitude > INFINITE ? (magnitude & ~LOST) | QUIET : rounded;
  return as_float(rounded | sign);
}

FOR_EACH_CPU void round_each(const float *x, float *to, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = round_to_half(x[i]);
}

#ifdef __x86_64__
__attribute__((target("avx,f16c"))) void round_by_instruction(const float *x, float *to, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0)));
  for (; i < n; i++) to[i] = round_to_half(x[i]);
}

void round_all(const float *x, float *to, size_t n) {
  bool has_instruction = __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx");
  (has_instruction ? round_by_instruction : round_each)(x, to, n);
}
#else
void round_all(const float *x, float *to, size_t n) { round_each(x, to, n); }
#endif

struct Rounding {
  const float *x;
  float *to;
  size_t count, tasks;
};

void round_part(void *state, size_t task) {
  const Rounding &r = *static_cast<const Rounding *>(state);
  size_t start = r.count * task / r.tasks, end = r.count * (task + 1) / r.tasks;
  round_all(r.x + start, r.to + start, end - start);
}

void compute_rounding(void *, Context *context) {
  Rounding r;
  size_t rank = 0;
  input<float>(context, 0, &r.count, nullptr, 0, &rank);
  int64_t *dimensions = static_cast<int64_t *>(__builtin_alloca((rank + 1) * sizeof(int64_t)));
  r.x = input<float>(context, 0, &r.count, dimensions, rank);
  r.to = output<float>(context, 0, dimensions, rank);
  if (!r.to) return;
  r.tasks = count_tasks(r.count, LOOK_TASK);
  in_parallel(context, round_part, r.tasks, &r);
}

/* ---- What ONNX Runtime is told of them ---- */

template <typename State>
void *create_state(const Description *, Api, const void *info) {
  State *found = static_cast<State *>(calloc(1, sizeof(State)));
  if (found) found->read(info);
  return found;
}

const Description PROBE = {
    DESCRIPTION_VERSION,
    create_state<Target>,
    [](const Description *) { return "Probe"; },
    [](const Description *) -> const char * { return nullptr; },
    [](const Description *, size_t) { return FLOAT; },
    [](const Description *) { return size_t{1}; },
    [](const Description *, size_t) { return DOUBLE; },
    [](const Description *) { return size_t{1}; },
    nullptr,
    [](void *state) { free(state); },
    [](const Description *, size_t) { return REQUIRED; },
    [](const Description *, size_t) { return OPTIONAL; },
    [](const Description *, size_t) { return 0; },
    [](const Description *) { return 1; },
    [](const Description *) { return 1; },
    nullptr,
    nullptr,
    nullptr,
    compute_or_tell<compute_probe<look>>,
};

Description describe_shared_probe() {
  Description found = PROBE;
  found.name = [](const Description *) { return "SharedProbe"; };
  found.input_characteristic = [](const Description *, size_t) { return VARIADIC; };
  found.compute_and_tell = compute_or_tell<compute_shared_probe>;
  return found;
}

Description describe_small_probe() {
  Description found = PROBE;
  found.name = [](const Description *) { return "SmallProbe"; };
  found.compute_and_tell = compute_or_tell<compute_probe<look_for_small>>;
  return found;
}

Description describe_block_probe() {
  Description found = PROBE;
  found.name = [](const Description *) { return "BlockProbe"; };
  found.input_type = [](const Description *, size_t index) { return index ? INT64 : FLOAT; };
  found.input_count = [](const Description *) { return size_t{2}; };
  found.compute_and_tell = compute_or_tell<compute_block_probe>;
  return found;
}

void destroy_kept(void *state) {
  if (state) free(static_cast<Kept *>(state)->values);
  free(state);
}

template <size_t OUTPUTS>
Description describe_rows(const char *(*name)(const Description *), Status *(*compute)(void *, Context *)) {
  Description rows = PROBE;
  rows.name = name;
  rows.input_type = [](const Description *, size_t index) { return index ? INT64 : FLOAT; };
  rows.input_count = [](const Description *) { return size_t{2}; };
  rows.output_type = [](const Description *, size_t index) { return index < OUTPUTS ? FLOAT : DOUBLE; };
  rows.output_count = [](const Description *) { return OUTPUTS + 1; };
  rows.compute_and_tell = compute, rows.create = create_state<Kept>, rows.destroy = destroy_kept;
  return rows;
}

template <bool IS_PAIR>
Description describe_watch(const char *(*name)(const Description *)) {
  Description watch = PROBE;
  watch.name = name;
  watch.create = create_state<Watch>;
  watch.input_type = [](const Description *, size_t index) {
    return index == 1 || (IS_PAIR && index == 3) ? DOUBLE : FLOAT;
  };
  watch.input_count = [](const Description *) { return size_t{IS_PAIR ? 5 : 4}; };
  watch.input_characteristic = [](const Description *, size_t index) {
    return index == 1 || index == 3 ? OPTIONAL : REQUIRED;
  };
  watch.compute_and_tell = compute_or_tell<compute_watch<IS_PAIR>>;
  return watch;
}

Description describe_tally(const char *(*name)(const Description *), ElementType (*type)(const Description *, size_t),
                           Status *(*compute)(void *, Context *)) {
  Description tally = PROBE;
  tally.name = name, tally.input_type = type, tally.compute_and_tell = compute;
  tally.create = create_state<Tally>;
  return tally;
}

/* Of a shape of which each dimension has a size or a name: what ONNX Runtime makes of another is wrong, and it takes an
 * unknown rank for none. The context keeps what it hands out. */
Status *infer_same_shape(const Description *, Shapes *context) {
  void *shape = nullptr;
  size_t rank = 0;
  if (Status *status = call(api, SHAPE_INFER_CONTEXT_GET_INPUT_TYPE_SHAPE, context, size_t{0}, &shape)) return status;
  call(api, GET_DIMENSIONS_COUNT, shape, &rank);
  int64_t *sizes = static_cast<int64_t *>(__builtin_alloca((rank + 1) * sizeof *sizes));
  const char **names = static_cast<const char **>(__builtin_alloca((rank + 1) * sizeof *names));
  call(api, GET_DIMENSIONS, static_cast<const void *>(shape), sizes, rank);
  call(api, GET_SYMBOLIC_DIMENSIONS, static_cast<const void *>(shape), names, rank);
  for (size_t i = 0; i < rank; i++)
    if (sizes[i] < 0 && !names[i][0]) return nullptr;
  return rank ? call(api, SHAPE_INFER_CONTEXT_SET_OUTPUT_TYPE_SHAPE, context, size_t{0}, shape) : nullptr;
}

Description describe_rounding() {
  static int first[] = {0};
  Description rounding = PROBE;
  rounding.infer_shapes = infer_same_shape;
  rounding.find_places_to_reuse = [](int **inputs, int **outputs) { return *inputs = *outputs = first, size_t{1}; };
  rounding.release_places = [](int *, int *) {};
  rounding.name = [](const Description *) { return "RoundToHalf"; };
  rounding.output_type = [](const Description *, size_t) { return FLOAT; };
  rounding.output_characteristic = [](const Description *, size_t) { return REQUIRED; };
  rounding.compute_and_tell = compute_or_tell<compute_rounding>;
  return rounding;
}

const Description SMALL_PROBE = describe_small_probe();
const Description SHARED_PROBE = describe_shared_probe();
const Description BLOCK_PROBE = describe_block_probe();
const Description MOMENTS_OF_ROWS = describe_rows<MOMENTS>([](const Description *) { return "Moments"; }, compute_or_tell<compute_rows<MOMENTS, Adding, add_up_part<MOMENTS, tell_moments>>>);
const Description SUMS_OF_ROWS = describe_rows<SUMS>([](const Description *) { return "Sums"; }, compute_or_tell<compute_rows<SUMS, Adding, add_up_part<SUMS, tell_sums>>>);
const Description EXPONENTIALS = describe_rows<1>([](const Description *) { return "Exponentials"; }, compute_or_tell<compute_rows<1, LongRows, add_up_part<1, tell_exponentials>>>);
const Description SUMS_APART = describe_rows<SUMS>([](const Description *) { return "SumsApart"; }, compute_or_tell<compute_rows<SUMS, AddingApart, add_up_apart>>);
const Description WINDOWS_OF_X = describe_rows<WINDOWS>([](const Description *) { return "Windows"; }, compute_or_tell<compute_windows>);
const Description WATCH = describe_watch<false>([](const Description *) { return "Watch"; });
const Description WATCH_PAIR = describe_watch<true>([](const Description *) { return "WatchPair"; });
const Description TALLY = describe_tally([](const Description *) { return "Tally"; }, [](const Description *, size_t) { return DOUBLE; }, compute_or_tell<compute_tally>);
const Description LASTING_PROBE = describe_tally([](const Description *) { return "LastingProbe"; }, [](const Description *, size_t) { return FLOAT; }, compute_or_tell<compute_lasting_probe>);
const Description ROUND_TO_HALF = describe_rounding();

Status *make_domain(void **domain) {
  Status *status = call(api, CREATE_CUSTOM_OP_DOMAIN, static_cast<const char *>("overflow_fixer.probes"), domain);
  for (const Description *description :
       {&PROBE, &SMALL_PROBE, &SHARED_PROBE, &BLOCK_PROBE, &MOMENTS_OF_ROWS, &SUMS_OF_ROWS, &SUMS_APART, &EXPONENTIALS, &WINDOWS_OF_X, &WATCH, &WATCH_PAIR, &TALLY, &LASTING_PROBE, &ROUND_TO_HALF})
    if (!status) status = call(api, CUSTOM_OP_DOMAIN_ADD, *domain, description);
  return status;
}

}  // namespace

/* What SmallProbe tells of an array, without ONNX Runtime: `to` has room for 8. */
extern "C" __attribute__((visibility("default"))) void probe_array(const float *x, size_t count, double *to) {
  Statistics s;
  look_for_small(s, x, count);
  tell(s, count, to);
}

/* ONNX Runtime calls this of a library of custom operators, once for each session. */
// The SHA-256 of this file: a library that was built from another one is not used.
extern "C" __attribute__((visibility("default"))) const char probes_source[] = PROBES_SOURCE;

extern "C" __attribute__((visibility("default"))) Status *RegisterCustomOps(void *options, const ApiBase *base) {
  static void *domain = nullptr;
  api = base->get_api(API_VERSION);
  if (!api)
    return call(base->get_api(1), CREATE_STATUS, 1, static_cast<const char *>("Expected ONNX Runtime 1.18 or later."));
  if (!domain)
    if (Status *status = make_domain(&domain)) return status;
  return call(api, ADD_CUSTOM_OP_DOMAIN, options, domain);
}
