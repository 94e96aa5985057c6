#include <cmath>

#include "config/rope.h"
#include "models/model.h"
#include "ops/moe.h"

namespace octet::BACKEND {
namespace {
// The vocabulary is padded so that matrix products keep 16-byte aligned rows, whatever the tokenizer. The padding never
// leaves the program.
int64_t padded(int64_t vocabulary) { return (vocabulary + 127) / 128 * 128; }

constexpr int64_t kLogits = int64_t{1} << 28;  // in a chunk: many, as each chunk reads and writes all of the head's dW
double rounded(double x, DType t) {
  if (t == DType::bf16) return double(float(bf16(float(x))));
  return t == DType::f16 ? double(float(f16(float(x)))) : x;
}
}  // namespace

Decoder::Decoder(Builder b, const ModelConfig& c, const DecoderOptions& options)
    : config_(c),
      options_(options),
      rope_dtype_(wide(b.params.options().plain)),
      inputs_(size_t(c.num_layers)),
      marks_(size_t(c.num_layers)) {
  const Architecture& names = architecture(c.arch);
  const Shape table{padded(c.vocab_size), c.hidden_size};
  const Init init{.std = c.initializer_range, .rows = c.vocab_size};
  if (!options_.head_chunk) options_.head_chunk = std::max<int64_t>(256, kLogits / table[0] / 128 * 128);
  const int embedding = b.params.begin_unit("embedding", Buffers::own);
  CHECK(embedding == kEmbedding, "the embedding is unit ", embedding);
  embedding_ = std::make_unique<Embedding>(b, names.embedding, table, init);
  for (int64_t l = 0; l < c.num_layers; ++l) {
    units_.push_back(b.params.begin_unit(concat("block ", l), Buffers::rotating));
    blocks_.push_back(names.block(b, c, l, rope_table_));
  }
  units_.push_back(b.params.begin_unit("head", Buffers::own));
  norm_ = std::make_unique<Norm>(b, names.final_norm, Norm::Options{names.norm, c.hidden_size, c.norm_eps});
  const Param w = c.tie_embeddings ? embedding_->weight() : b.params.add({{names.head, table}}, init);
  head_ = std::make_unique<LossHead>(w, LossHead::Options{.vocabulary = c.vocab_size, .chunk = options_.head_chunk});
}

void Decoder::materialise(Stream& s, Arena& memory) {
  const int64_t R = config_.rotary_dims();
  rope_table_ = memory.alloc(rope_dtype_, {options_.max_tokens, R / 2, 2});
  const std::vector<double> frequencies = rotary_frequencies(config_);
  const double scale = rotary_scale(config_);
  std::vector<double> table;
  for (int64_t t = 0; t < options_.max_tokens; ++t)
    for (int64_t i = 0; i < R / 2; ++i) {
      const double angle = double(t) * frequencies[size_t(i)];
      table.push_back(rounded(scale * std::cos(angle), options_.buffers));
      table.push_back(rounded(scale * std::sin(angle), options_.buffers));
    }
  const std::vector<float> narrow(table.begin(), table.end());
  copy_to_device(s, rope_table_.data,
                 rope_dtype_ == DType::f64 ? static_cast<const void*>(table.data()) : narrow.data(),
                 rope_table_.bytes());
  if (const int64_t L = config_.num_layers, E = config_.num_experts; E) {
    sums_ = memory.alloc(DType::f64, {L, 3, E}), total_ = memory.alloc(DType::f64, {3, E}),
    load_ = memory.alloc(DType::f64, {L, E});
    fill_zero(s, load_);
  }
  s.synchronize();  // the copy reads host vectors, whose lifetime ends here
}

void Decoder::train(Context& c, const DeviceBatch& batch, Tensor loss, LossFactor factor) {
  CHECK(c.pass == Pass::train, "train() is the training pass");
  // A scaled table is no pure rotation either.
  c.rounded_angles = size_of(options_.buffers) < size_of(DType::f32) || rotary_scale(config_) != 1;
  const int64_t N = batch.tokens.numel();
  c.saved.reset();
  c.scratch.reset();
  const Tensor d = c.saved.alloc(c.plain(), {N, config_.hidden_size});  // the gradient of the residual stream
  if (sums_) fill_zero(c.stream, sums_);
  c.routers.sums = sums_;
  c.documents = batch.documents;
  const Tensor x = forward(c, embed(c, batch));
  c.routers.loss_scale = factor.scale;
  if (sums_) router_losses(c, N);
  {
    const Leases weights = acquire_head(c, Use::backward);
    prefetch(c, config_.num_layers, -1, Use::backward);
    const Arena::Scope scope(c.scratch);
    const size_t mark = c.saved.mark();
    const Tensor y = final_norm(c, x);
    head_->train(c, loss, y, y, batch.targets, factor);  // now y holds dy
    fill_zero(c.stream, d);
    norm_->backward(c, d, y);
    c.saved.rewind(mark);
    c.params.reduce(c.stream, units_.back(), c.batch);
  }
  backward(c, d);
  const auto weights = c.params.acquire(c.stream, kEmbedding, Use::backward);
  embedding_->backward(c, d, batch.tokens, batch.order);
  c.params.reduce(c.stream, kEmbedding, c.batch);
}

// Auxiliary losses of the micro-batch. The balancing loss is over all layers and ranks together, so that the number of
// ranks does not change it, or the mean of each layer's own, or of each rank's own: that of transformers on several
// GPUs. Per rank there is nothing to wait for: losses and load stay this rank's part of the sums over ranks. The
// gradient of the z-loss is that of the layers' sum; reported is their mean.
void Decoder::router_losses(Context& c, int64_t rows) {
  Routers& r = c.routers;
  const bool by_layer = config_.router_aux_loss_per_layer, by_rank = config_.router_aux_loss_per_rank;
  if (!by_rank) c.params.sum_over_ranks(c.stream, sums_);
  const double R = double(c.params.ranks()), L = double(config_.num_layers), N = double(rows) * R, LN = L * N;
  const double means = (by_layer ? L : 1) * (by_rank ? R : 1);  // of so many losses, each of LN / means routed rows
  const double balance = r.share * double(config_.num_experts) * means / (LN * LN);
  moe_losses(c.stream, {.losses = r.losses,
                        .total = total_,
                        .load = load_,
                        .sums = sums_,
                        .balance = balance,
                        .z = r.share / LN,
                        .by_layer = by_layer});
  r.total = total_;
  r.by_layer = by_layer;
  r.balance = config_.router_aux_loss_coef * balance;
  r.z = config_.router_z_loss_coef * r.share / N;
}

void Decoder::evaluate(Context& c, const DeviceBatch& batch, Tensor losses) {
  const Tensor x = forward_from_start(c, batch);
  const Leases weights = acquire_head(c, Use::evaluate);
  head_->evaluate(c, losses, final_norm(c, x), batch.targets);
}

void Decoder::logits(Context& c, const DeviceBatch& batch, const LossHead::Sink& sink) {
  const Tensor x = forward_from_start(c, batch);
  const Leases weights = acquire_head(c, Use::evaluate);
  head_->logits(c, final_norm(c, x), sink);
}

Tensor Decoder::next(Context& c, Tensor tokens, Tensor rows) {
  CHECK(c.pass == Pass::evaluate && c.cache && tokens.numel() == c.B * c.T, tokens.shape, " for B ", c.B, ", T ", c.T);
  Tensor x = forward_from_start(c, {.tokens = tokens, .targets = {}, .order = {}});
  const Leases weights = acquire_head(c, Use::evaluate);
  if (rows) {
    const Tensor some = c.saved.alloc(x.dtype, {rows.numel(), x.cols()});
    embedding_forward(c.stream, some, rows, x);
    x = some;
  }
  const Tensor logits = c.saved.alloc(wide(x.dtype), {x.rows(), padded(config_.vocab_size)});
  head_->logits(c, logits, final_norm(c, x));
  return logits;
}

// Position num_layers stands for the head, which follows the last block and is gathered for both passes at once.
void Decoder::prefetch(Context& c, int64_t l, int64_t step, Use use) {
  for (int64_t i = 0; i < c.params.options().prefetch; ++i) {
    l += step;
    if (l < 0 || l > config_.num_layers) return;
    if (l == config_.num_layers) {
      c.params.prefetch(c.stream, units_.back(), use == Use::forward ? Use::backward : use);
      continue;
    }
    for (int u = units_[size_t(l)]; u < units_[size_t(l) + 1]; ++u) c.params.prefetch(c.stream, u, use);
  }
}

Tensor Decoder::embed(Context& c, const DeviceBatch& batch) {
  const Use use = c.pass == Pass::evaluate ? Use::evaluate : Use::forward;
  const auto weights = c.params.acquire(c.stream, kEmbedding, use);
  prefetch(c, -1, 1, use);
  const Tensor x = c.saved.alloc(c.plain(), {batch.tokens.numel(), config_.hidden_size});
  embedding_->forward(c, x, batch.tokens);
  return x;
}

Tensor Decoder::final_norm(Context& c, Tensor x) {
  const Tensor y = c.saved.alloc(c.plain(), x.shape);
  norm_->forward(c, {.plain = y}, x);
  return y;
}

Decoder::Leases Decoder::acquire(Context& c, int64_t layer, Use use) {
  Leases leases;
  for (int u = units_[size_t(layer)]; u < units_[size_t(layer) + 1]; ++u)
    leases.push_back(c.params.acquire(c.stream, u, use));
  return leases;
}

// The head's weight may be the embedding's.
Decoder::Leases Decoder::acquire_head(Context& c, Use use) {
  Leases leases;
  for (int unit : {kEmbedding, units_.back()}) leases.push_back(c.params.acquire(c.stream, unit, use));
  return leases;
}

Tensor Decoder::forward_from_start(Context& c, const DeviceBatch& batch) {
  c.saved.reset();
  c.scratch.reset();
  c.documents = batch.documents;
  return forward(c, embed(c, batch));
}

Tensor Decoder::forward(Context& c, Tensor x) {
  const bool evaluates = c.pass == Pass::evaluate;
  const Use use = evaluates ? Use::evaluate : Use::forward;
  // Evaluation keeps no activations: two buffers alternate.
  std::array<Tensor, 2> streams{x, evaluates ? c.saved.alloc(x.dtype, x.shape) : Tensor{}};
  for (int64_t l = 0; l < config_.num_layers; ++l) {
    const Leases weights = acquire(c, l, use);
    prefetch(c, l, 1, use);
    const Arena::Scope scratch(c.scratch);
    const Tensor y = evaluates ? streams[size_t(l + 1) % 2] : c.saved.alloc(x.dtype, x.shape);
    marks_[size_t(l)] = c.saved.mark();
    inputs_[size_t(l)] = x;
    blocks_[size_t(l)]->forward(c, y, x);
    if (evaluates || l < options_.recompute_blocks) c.saved.rewind(marks_[size_t(l)]);
    x = y;
  }
  return x;
}

void Decoder::backward(Context& c, Tensor d) {
  for (int64_t l = config_.num_layers - 1; l >= 0; --l) {
    const Leases weights = acquire(c, l, Use::backward);
    prefetch(c, l, -1, Use::backward);
    const Arena::Scope scratch(c.scratch);
    if (l < options_.recompute_blocks) {
      c.saved.rewind(marks_[size_t(l)]);  // frees what later blocks saved, which is no longer needed
      Context again = c;
      again.pass = Pass::recompute;
      blocks_[size_t(l)]->forward(again, c.scratch.alloc(d.dtype, d.shape), inputs_[size_t(l)]);
    }
    blocks_[size_t(l)]->backward(c, d);
    c.saved.rewind(marks_[size_t(l)]);
    for (int u = units_[size_t(l)]; u < units_[size_t(l) + 1]; ++u) c.params.reduce(c.stream, u, c.batch);
  }
}

}  // namespace octet::BACKEND
