// octet generate: prompts in batches; of each, tokens until a stop token or an end of length.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <utility>

#include "data/sampler.h"
#include "train/entries.h"
#include "train/generator.h"

namespace octet::BACKEND {
namespace {

class Clock {
 public:
  double restart() {  // seconds since the start
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(start_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The next token of every sequence, in generator.new_tokens(). The largest logit is found on the device, and the host
// hears of it while the next step is under way; everything else is drawn on the host from the logits.
class Chooser {
 public:
  Chooser(Generator& g, const Sampling& options, int64_t most)
      : generator_(g),
        options_(options),
        vocabulary_(g.session.config.model.vocab_size),
        arrived_(g.session.device),
        tokens_(pinned_array<int32_t>(most)),
        largest_(pinned_array<std::byte>(most * int64_t(sizeof(double)))) {}
  bool on_device() const { return options_.greedy(); }
  void begin(size_t first, Generator::Prompts prompts) {
    samplers_.clear();
    for (size_t b = 0; b < prompts.size() && !on_device(); ++b) samplers_.emplace_back(options_, first + b, prompts[b]);
  }
  void choose(Tensor logits) {
    Stream& s = generator_.session.stream;
    const Tensor out = generator_.new_tokens();
    if (on_device()) {
      const Tensor largest = generator_.largest();
      argmax(s, out, largest, logits, vocabulary_);
      copy_to_host(s, tokens_.get(), out.data, out.bytes());
      copy_to_host(s, largest_.get(), largest.data, largest.bytes());
    } else {
      visit<double, float>(logits.dtype, [&]<class R>() { draw<R>(logits); });
      copy_to_device(s, out.data, tokens_.get(), out.bytes());
    }
    arrived_.record(s);
  }
  std::span<const int32_t> chosen() {  // last
    arrived_.synchronize();
    if (on_device())
      visit<double, float>(generator_.largest().dtype, [&]<class R>() {
        for (int64_t b = 0; b < generator_.sequences(); ++b)
          require_finite(reinterpret_cast<const R*>(largest_.get())[b]);
      });
    return {tokens_.get(), size_t(generator_.sequences())};
  }

 private:
  void require_finite(double logit) const {
    if (!std::isfinite(logit))
      bad_input("the model's logits are not finite (", logit,
                "), so that no token is likelier than another: its weights hold NaN or Inf, or values overflow (see "
                "--dtype)");
  }
  template <class R>
  void draw(Tensor logits) {
    if (room_ < logits.bytes()) logits_ = pinned_array<std::byte>(int64_t(room_ = logits.bytes()));
    R* values = reinterpret_cast<R*>(logits_.get());
    copy_to_host(generator_.session.stream, logits_.get(), logits.data, logits.bytes());
    generator_.session.stream.synchronize();
    for (size_t b = 0; b < samplers_.size(); ++b) {
      const std::span<R> row(values + int64_t(b) * logits.cols(), size_t(vocabulary_));  // without padding
      for (const R x : row)
        if (!(x < INFINITY)) require_finite(x);
      if constexpr (std::is_same_v<R, float>) {
        tokens_[b] = samplers_[b].next(row);
      } else {
        row_.assign(row.begin(), row.end());
        tokens_[b] = samplers_[b].next(row_);
      }
    }
  }

  Generator& generator_;
  const Sampling& options_;
  int64_t vocabulary_;
  Event arrived_;
  PinnedArray<int32_t> tokens_;              // on the host
  PinnedArray<std::byte> largest_, logits_;  // their logits (wide), and what is drawn from
  size_t room_ = 0;
  std::vector<float> row_;
  std::vector<Sampler> samplers_;
};

class Generation {
 public:
  Generation(Generator& g, const GenerateRequest& request, GenerateResult& result)
      : generator_(g),
        request_(request),
        result_(result),
        chooser_(g, request.sampling, g.session.config.training.micro_batch_size) {
    result_.sequences.resize(request.prompts.size());
  }

  void batch(size_t first, size_t count) {
    first_ = first;
    active_.assign(count, true);
    const Generator::Prompts prompts = Generator::Prompts(request_.prompts).subspan(first, count);
    int64_t most = 0;  // new tokens of a sequence
    for (const auto& prompt : prompts) {
      result_.prefill_tokens += int64_t(prompt.size());
      most = std::max(most, limit(prompt));
    }
    chooser_.begin(first, prompts);
    Clock clock;
    chooser_.choose(generator_.read(prompts));
    for (int64_t step = 0;; ++step) {
      Tensor logits;  // the next step starts before the host hears of this one
      if (chooser_.on_device() && step + 1 < most) logits = generator_.next(generator_.new_tokens());
      const bool goes_on = take(chooser_.chosen());
      (step == 0 ? result_.prefill_seconds : result_.decode_seconds) += clock.restart();
      if (!goes_on) break;
      chooser_.choose(logits ? logits : generator_.next(generator_.new_tokens()));
    }
    generator_.session.stream.synchronize();
  }

 private:
  int64_t limit(const std::vector<int32_t>& prompt) const {
    return std::min(request_.max_new_tokens, generator_.session.config.model.max_positions - int64_t(prompt.size()));
  }
  bool take(std::span<const int32_t> tokens) {  // true while a sequence goes on
    bool goes_on = false;
    for (size_t b = 0; b < tokens.size(); ++b) {
      if (!active_[b]) continue;
      GenerateResult::Sequence& sequence = result_.sequences[first_ + b];
      result_.decode_tokens += !sequence.tokens.empty();
      sequence.tokens.push_back(tokens[b]);
      const bool stops = std::find(request_.stop.begin(), request_.stop.end(), tokens[b]) != request_.stop.end();
      const bool ends = int64_t(sequence.tokens.size()) >= limit(request_.prompts[first_ + b]);
      using End = GenerateResult::End;
      sequence.end = stops                                                        ? End::stop
                     : int64_t(sequence.tokens.size()) >= request_.max_new_tokens ? End::length
                                                                                  : End::positions;
      active_[b] = !stops && !ends;
      goes_on = goes_on || active_[b];
      if (request_.on_token) request_.on_token(first_ + b, tokens[b]);
    }
    return goes_on;
  }

  Generator& generator_;
  const GenerateRequest& request_;
  GenerateResult& result_;
  Chooser chooser_;
  size_t first_ = 0;
  std::vector<bool> active_;
};

int64_t longest_of(const std::vector<std::vector<int32_t>>& prompts) {
  size_t longest = 0;
  for (const auto& p : prompts) longest = std::max(longest, p.size());
  return int64_t(longest);
}

}  // namespace

GenerateResult generate_run(const RunConfig& config, Host& host, const Planner& planner,
                            const GenerateRequest& request) {
  Generator generator(config, host, planner(config), longest_of(request.prompts), options_for(config, host));
  load_weights(generator.session, request.model);
  generator.session.stream.synchronize();  // the prompts' time is theirs alone
  GenerateResult result{.device = generator.session.device.name()};
  Generation generation(generator, request, result);
  const size_t B = size_t(*config.training.micro_batch_size), n = request.prompts.size();
  for (size_t first = 0; first < n; first += B) generation.batch(first, std::min(B, n - first));
  return result;
}

}  // namespace octet::BACKEND
