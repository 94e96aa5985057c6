#include "train/generator.h"

#include <algorithm>

#include "ops/workspace.h"

namespace octet::BACKEND {
namespace {
Heads cache_heads(const ModelConfig& m) { return {.H = m.num_heads, .G = m.num_kv_heads, .D = m.head_dim}; }
}  // namespace

Generator::Generator(const RunConfig& c, Host& host, const PlanResult& plan, int64_t prompt,
                     const Device::Options& device)
    : session(c, host, plan, Purpose::evaluate, device),
      cache_(session.arenas[Memory::weights], c.precision.param_dtype, c.model.num_layers,
             {c.training.micro_batch_size, c.model.num_kv_heads, c.training.seq_len, c.model.head_dim},
             attention_decode_workspace(session.device.target(), cache_heads(c.model), c.training.micro_batch_size)),
      step_(session.stream) {
  Arena& persistent = session.arenas[Memory::weights];
  const int64_t B = c.training.micro_batch_size;
  tokens_ = persistent.alloc(DType::i32, {B * prompt});
  rows_ = persistent.alloc(DType::i32, {B});
  new_tokens_ = persistent.alloc(DType::i32, {B});
  largest_ = persistent.alloc(wide(c.precision.param_dtype), {B});
}

Context Generator::context(int64_t T) {
  Context c = session.context(Pass::evaluate);
  c.B = sequences();
  c.T = T;
  c.cache = &cache_;
  return c;
}

Tensor Generator::read(Prompts prompts) {
  const int64_t B = int64_t(prompts.size());
  int64_t T = 0;
  for (const auto& p : prompts) T = std::max(T, int64_t(p.size()));
  CHECK(B * T <= tokens_.numel() && B <= rows_.numel() && T <= cache_.positions(), B, " prompts of up to ", T,
        " tokens");
  std::vector<int32_t> tokens(size_t(B * T), 0), rows, ends;
  for (int64_t b = 0; b < B; ++b) {
    const auto& p = prompts[size_t(b)];
    CHECK(!p.empty(), "an empty prompt");
    std::copy(p.begin(), p.end(), tokens.begin() + b * T);
    rows.push_back(int32_t(b * T + int64_t(p.size()) - 1));
    ends.push_back(int32_t(p.size()) - 1);
  }
  Stream& s = session.stream;
  const Tensor on_device = tokens_.part(0, {B, T}), last = rows_.part(0, {B});
  copy_to_device(s, on_device.data, tokens.data(), on_device.bytes());
  copy_to_device(s, last.data, rows.data(), last.bytes());
  cache_.begin(s, ends.data(), B, T);
  Context c = context(T);
  const Tensor logits = session.model.next(c, on_device, last);
  s.synchronize();  // the host vectors end here
  return logits;
}

// A step is the same calls each time, as long as its sequences are as many and its tokens come from the same place.
Tensor Generator::next(Tensor tokens) {
  cache_.advance();
  CHECK(tokens.numel() == sequences(), tokens.shape, " for ", sequences(), " sequences");
  if (tokens.data != stepped_.data || tokens.shape != stepped_.shape) step_.forget();
  stepped_ = tokens;
  step_.run([this] {
    cache_.advance(session.stream);
    Context c = context(1);
    logits_ = session.model.next(c, stepped_, {});
  });
  return logits_;
}

}  // namespace octet::BACKEND
