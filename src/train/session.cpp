#include "train/session.h"

#include <algorithm>

#include "base/memory.h"
#include "base/progress.h"
#include "base/rng.h"
#include "ops/tune.h"
#include "precision/options.h"

namespace octet::BACKEND {

// One micro-batch on its way to the device: tokens, targets, order, and the bounds of documents.
struct Session::Upload {
  Upload(Device& d, int64_t n) : arrived(d), data(pinned_array<int32_t>(n)) {}
  Event arrived;
  PinnedArray<int32_t> data;
  bool used = false;
};

namespace {
constexpr size_t kUploads = 4;  // micro-batches that the host may run ahead

int64_t shard_degree(const RunConfig& c, const Host& host) {
  const int64_t degree = octet::shard_degree(c, host.size());
  if (host.size() % degree) bad_input("parallel.shard_degree ", degree, " does not divide the ", host.size(), " ranks");
  return degree;
}

ParameterOptions parameter_options(const RunConfig& c, Purpose purpose) {
  const DType plain = c.precision.param_dtype;
  const bool checking = plain == DType::f64;  // derivatives are checked with everything in f64
  const auto type = [&](DType t) { return checking ? DType::f64 : t; };
  return {.plain = plain,
          .master = purpose == Purpose::train ? type(c.precision.master_dtype) : plain,
          .moment = type(c.precision.moment_dtype),
          .grad = type(c.precision.grad_dtype),
          .reduce = type(c.precision.reduce_dtype),
          .zero_stage = int(c.parallel.zero_stage),
          .prefetch = int(c.parallel.prefetch),
          .trains = purpose == Purpose::train,
          .evaluate_fp8 = c.fp8.enabled && c.fp8.eval,
          .delayed_weights = c.fp8.weight_scaling == WeightScaling::delayed,
          .cast_through_plain = c.fp8.te_compat || c.fp8.all_gather == GatherType::bf16,
          .gather_plain = c.fp8.all_gather == GatherType::bf16,
          .weight_scaling = weight_scaling(c)};
}

// Before the arenas are reserved: product plans are timed in free memory, and a run that cannot fit is refused.
void prepare(Stream& s, Host& host, const PlanResult& plan, Purpose purpose) {
  Device& d = s.device();
  const size_t total = d.total_bytes(), used = d.used_bytes(), needed = plan.memory.total();
  if (plan.memory != MemoryPlan::unbounded() && needed > total - std::min(used, total)) {
    std::string items;
    for (size_t i = 0; i < kMemoryNames.size(); ++i)
      if (plan.memory.bytes[i] > 0 || purpose == Purpose::train)
        items += concat("\n  ", kMemoryNames[i], "  ", human_bytes(double(plan.memory.bytes[i])));
    if (purpose == Purpose::evaluate)
      bad_input("this needs ", human_bytes(double(needed)), "; ", d.name(), " has ",
                human_bytes(double(total - std::min(used, total))), " free", items,
                "\nweights include the KV cache: use fewer or shorter sequences at once, or dtype bf16");
    bad_input("this run needs ", human_bytes(double(needed)), " on each rank; ", d.name(), " has ",
              human_bytes(double(total - std::min(used, total))), " free", items,
              "\nlower training.micro_batch_size, recompute more (memory.recompute_blocks), shard more "
              "(parallel.zero_stage, more ranks), ",
              "or store moments in bf16 (precision.moment_dtype)",
              d.target().cuda || address_space_left() == INT64_MAX ? "" : "; or raise ulimit -v");
  }
  tune_products(s, plan.products);
  if (host.size() == 1 || !d.target().cuda) return;
  std::string plans = export_plans(d);  // timing may differ between ranks: all take rank 0's choice
  int64_t size = int64_t(plans.size());
  host.broadcast(&size, sizeof size, 0);
  plans.resize(size_t(size));
  host.broadcast(plans.data(), plans.size(), 0);
  if (host.rank() != 0) import_plans(d, plans);
}

// Rows 0..N-1 sorted by token, stable: a counting sort.
void sort_by_token(const std::vector<int32_t>& tokens, int64_t vocabulary, int32_t* order) {
  std::vector<int32_t> start(size_t(vocabulary) + 1, 0);
  for (int32_t t : tokens) ++start[size_t(t) + 1];
  for (size_t v = 1; v < start.size(); ++v) start[v] += start[v - 1];
  for (size_t n = 0; n < tokens.size(); ++n) order[start[size_t(tokens[n])]++] = int32_t(n);
}
}  // namespace

Device::Options options_for(const RunConfig& c, const Host& host) {
  Device::Options o{.index = host.local_rank(),
                    .deterministic = c.training.deterministic,
                    .poison = c.memory.poison,
                    .collective_ctas = int(c.parallel.nccl_ctas),
                    .plan_cache = c.memory.plan_cache};
  if (has_cudnn()) o.target.attention = c.model.attention;
  return o;
}

Samples samples_of(const Loader& loader) {
  return {[&loader](int64_t first, int64_t count) { return loader.batch(first, count); },
          [&loader](int64_t first, int64_t count) { return loader.valid_targets(first, count); }};
}

Samples random_samples(const RunConfig& c) {
  const int64_t T = c.training.seq_len, V = c.model.vocab_size;
  const uint64_t seed = uint64_t(*c.training.seed);
  const Bounds documents = bounds_of(c);
  return {[=](int64_t first, int64_t count) {
            Batch b = blank_batch(count, T, documents);
            for (int64_t i = 0; i < count * T; ++i) {
              b.tokens[size_t(i)] = int32_t(random_bits(seed, 1, uint64_t(first * T + i)) % uint64_t(V));
              b.targets[size_t(i)] = int32_t(random_bits(seed, 2, uint64_t(first * T + i)) % uint64_t(V));
            }
            for (int64_t i = 0; i < count && documents == Bounds::of_documents; ++i)
              set_random_bounds(b.bounds().row(i, T), seed, first + i);
            return b;
          },
          [=](int64_t, int64_t count) { return count * T; }};
}

Session::Session(const RunConfig& c, Host& h, const PlanResult& plan, Purpose purpose, const Device::Options& options)
    : config(c),
      host(h),
      device(options),
      stream(device),
      side(device, Stream::Priority::high),
      arenas((prepare(stream, host, plan, purpose), stream), plan.memory),
      degree_(shard_degree(config, host)),
      shard_host_(degree_ < host.size() ? host.split(int(host.rank() / degree_), int(degree_)) : nullptr),
      replica_host_(degree_ < host.size() ? host.split(int(host.rank() % degree_), int(host.size() / degree_))
                                          : nullptr),
      world(make_comm(device, host)),
      own_shard(shard_host_       ? make_comm(device, *shard_host_)
                : host.size() > 1 ? make_comm(device, host)
                                  : nullptr),
      replica(replica_host_ ? make_comm(device, *replica_host_) : nullptr),
      shard(own_shard ? own_shard.get() : world.get()),
      experts(config, device, host, degree_),
      recipe(make_recipe(config)),
      scaling(activation_scaling(config)),
      params(*shard, replica.get(), side, parameter_options(config, purpose),
             config.parallel.expert_parallel > degree_ ? experts.group() : nullptr),
      model({params, scaling, recipe, experts.ranks()}, config.model,
            {.recompute_blocks = config.memory.recompute_blocks,
             .max_tokens = config.training.seq_len,
             .head_chunk = config.memory.head_chunk,
             .buffers = config.precision.buffer_dtype}) {
  for (Memory m : {Memory::weights, Memory::gradients, Memory::communication})
    for (Comm* c :
         {own_shard.get(), replica.get(), experts.ranks().process_groups.shard, experts.ranks().process_groups.replica})
      if (const Arena& a = arenas[m]; config.parallel.nccl_register && c && a.capacity())
        c->register_memory(a.base(), a.capacity());
  const int64_t n = config.training.micro_batch_size * config.training.seq_len;
  Arena& persistent = arenas[Memory::weights];
  params.materialise(stream, arenas, uint64_t(*config.training.seed));
  scaling.materialise(stream, persistent);
  model.materialise(stream, persistent);
  for (Tensor* t : {&tokens_, &targets_, &order_}) *t = persistent.alloc(DType::i32, {n});
  if (bounds_of(config) == Bounds::of_documents)
    documents_ = persistent.alloc(DType::i32, {2, config.training.micro_batch_size, config.training.seq_len});
  losses_ = persistent.alloc(wide(config.precision.param_dtype), {n});
  sums_ = persistent.alloc(DType::f64, {2});
  for (size_t i = 0; i < kUploads; ++i)
    uploads_.push_back(std::make_unique<Upload>(device, documents_ ? 5 * n : 3 * n));
}
Session::~Session() = default;

Context Session::context(Pass pass) {
  return {.stream = stream,
          .params = params,
          .scaling = scaling,
          .saved = arenas[Memory::saved],
          .scratch = arenas[Memory::scratch],
          .pass = pass,
          .B = config.training.micro_batch_size,
          .T = config.training.seq_len};
}

Comm* Session::amax_group() const {
  switch (config.fp8.reduce_amax ? *config.fp8.reduce_group : ReduceGroup::none) {
    case ReduceGroup::world:
      return world.get();
    case ReduceGroup::shard:
      return shard;
    case ReduceGroup::replica:
      return replica.get();
    case ReduceGroup::none:
      return nullptr;
  }
  return nullptr;
}

void Session::update_scales(Tensor state) {
  Comm* const group = amax_group();
  if (group && group != world.get()) params.wait_for_gradients(stream);  // the side stream reduces in the same group
  scaling.update(stream, group, state);
}

DeviceBatch Session::upload(const Batch& batch) {
  const int64_t n = int64_t(batch.tokens.size());
  CHECK(n == tokens_.numel(), "a micro-batch of ", n, " tokens where ", tokens_.numel(), " were planned");
  Upload& u = *uploads_[next_upload_++ % kUploads];
  if (u.used) u.arrived.synchronize();
  ++pulse;
  u.used = true;
  int32_t* const from = u.data.get();
  std::copy_n(batch.tokens.data(), n, from);
  std::copy_n(batch.targets.data(), n, from + n);
  sort_by_token(batch.tokens, config.model.vocab_size, from + 2 * n);
  for (int i = 0; const Tensor& t : {tokens_, targets_, order_})
    copy_to_device(stream, t.data, from + n * i++, t.bytes());
  if (documents_) {
    CHECK(int64_t(batch.begins.size()) == n && int64_t(batch.ends.size()) == n, "no bounds of documents");
    std::copy_n(batch.begins.data(), n, from + 3 * n);
    std::copy_n(batch.ends.data(), n, from + 4 * n);
    copy_to_device(stream, documents_.data, from + 3 * n, documents_.bytes());
  }
  u.arrived.record(stream);
  return {.tokens = tokens_, .targets = targets_, .order = order_, .documents = documents_};
}

double Session::loss(const Samples& samples, int64_t first, int64_t count) {
  const int64_t M = config.training.micro_batch_size, R = host.size();
  double valid = 0;
  fill_zero(stream, sums_);
  Context c = context(Pass::evaluate);
  for (int64_t begin = 0; begin < count; begin += R * M) {  // every rank runs as often as the others: collectives match
    const int64_t mine = begin + host.rank() * M, some = std::clamp<int64_t>(count - mine, 0, M);
    Batch batch = samples.batch(first + (some ? mine : 0), some ? some : 1);
    if (!some) std::fill(batch.targets.begin(), batch.targets.end(), kIgnore);
    batch.tokens.resize(size_t(tokens_.numel()), 0);  // a short batch is filled up with rows without loss
    batch.targets.resize(size_t(tokens_.numel()), kIgnore);
    if (documents_) batch.begins.resize(size_t(tokens_.numel()), 0);
    if (documents_) batch.ends.resize(size_t(tokens_.numel()), int32_t(batch.seq_len));
    valid += double(std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t >= 0; }));
    model.evaluate(c, upload(batch), losses_);
    sum(stream, sums_.part(0, {1}), losses_);
  }
  const Tensor total = sums_.part(1, {1});
  copy_to_device(stream, total.data, &valid, sizeof valid);
  world->all_reduce(stream, sums_, Reduce::sum);
  double sums[2];
  copy_to_host(stream, sums, sums_.data, sizeof sums);
  stream.synchronize();
  return sums[0] / std::max(1., sums[1]);
}

}  // namespace octet::BACKEND
