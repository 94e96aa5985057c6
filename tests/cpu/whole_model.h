#pragma once
// A whole tiny model in f64: every gradient is the derivative of the loss, with and without recomputation.
#include <algorithm>

#include "cpu/derivative.h"
#include "cpu/lab.h"
#include "train/session.h"

namespace octet::BACKEND {

inline RunConfig tiny_config(const std::string& model, const std::vector<std::string>& changes = {}) {
  std::vector<std::string> all{"device=cpu",         "precision.param_dtype=fp64",  "memory.poison=true",
                               "training.seq_len=9", "training.micro_batch_size=2", "training.global_batch_size=2"};
  all.insert(all.end(), changes.begin(), changes.end());
  return parse_config(R"({"model": )" + model + R"(, "checkpoint": {"dir": ""}})", "test", all);
}

inline Batch random_batch(const RunConfig& c) {
  const int64_t T = c.training.seq_len, B = c.training.micro_batch_size, V = c.model.vocab_size;
  Batch b{.batch = B, .seq_len = T};
  for (int64_t i = 0; i < B * T; ++i) {
    b.tokens.push_back(int32_t(random_bits(3, 1, uint64_t(i)) % uint64_t(V)));
    b.targets.push_back(i % 5 == 4 ? -100 : int32_t(random_bits(3, 2, uint64_t(i)) % uint64_t(V)));
  }
  return b;
}

class WholeModel {
 public:
  explicit WholeModel(const RunConfig& config) : WholeModel(config, random_batch(config)) {}
  WholeModel(const RunConfig& config, Batch batch)
      : config_(config),
        session_(config_, host_, plan::engine().plan(config_, 1, cpu::engine().target()), Purpose::train,
                 options_for(config_, host_)),
        batch_(std::move(batch)) {
    session_.params.for_each(
        [&](const std::string& name, Shape, const ParameterStore::Local& l) {  // nothing at its default
          double* w = l.master.ptr<double>();
          for (int64_t i = 0; i < l.master.numel(); ++i) w[i] += 0.1 * normal(5, hash(name), uint64_t(i));
        });
  }
  Session& session() { return session_; }
  double valid() const {
    return double(std::count_if(batch_.targets.begin(), batch_.targets.end(), [](int32_t t) { return t >= 0; }));
  }
  void publish() { session_.params.publish(session_.stream, ParameterStore::Masters::changed); }

  // One forward and backward pass on the present weights; returns the mean loss.
  double train() {
    publish();
    session_.params.zero_gradients(session_.stream);
    fill_zero(session_.stream, session_.loss_total());
    Context c = session_.context(Pass::train);
    losses_[0] = losses_[1] = 0;
    c.routers.losses = {losses_, DType::f64, {2}};
    c.routers.seed = 17;
    c.routers.observe = [&](int64_t, Tensor logits) {
      const auto v = values(logits);
      if (!frozen_) choice_.insert(choice_.end(), v.begin(), v.end());
    };
    if (frozen_) c.routers.choice = {choice_.data(), DType::f64, {int64_t(choice_.size())}};
    session_.model.train(c, session_.upload(batch_), session_.loss_total(), 1 / valid());
    return *session_.loss_total().ptr<double>() / valid();
  }
  std::vector<double> token_losses() {
    publish();
    Context c = session_.context(Pass::evaluate);
    std::vector<double> losses(batch_.tokens.size());
    session_.model.evaluate(c, session_.upload(batch_), {losses.data(), DType::f64, {int64_t(losses.size())}});
    return losses;
  }
  double balance() const { return losses_[0]; }  // of the last train(): the auxiliary losses of routers
  double z() const { return losses_[1]; }
  // (L,N,E): the routers' logits when the choice was frozen
  const std::vector<double>& router_logits() const { return choice_; }
  void freeze_choice() {  // every token keeps the experts that it has now
    choice_.clear();
    train();
    frozen_ = true;
  }
  std::vector<std::vector<double>> gradients() {
    std::vector<std::vector<double>> all;
    session_.params.for_each(
        [&](const std::string&, Shape, const ParameterStore::Local& l) { all.push_back(values(l.grad)); });
    return all;
  }
  void expect_derivatives(const std::function<double()>& loss, const DerivativeCheck& check) {
    train();
    const auto gradient = gradients();
    std::vector<Variable> variables;
    session_.params.for_each([&](const std::string& name, Shape, const ParameterStore::Local& l) {
      variables.push_back({name, span_of(l.master), gradient[variables.size()]});
    });
    expect_derivative(variables, loss, check);
  }

 private:
  RunConfig config_;
  LoneHost host_;
  Session session_;
  Batch batch_;
  double losses_[2] = {};
  std::vector<double> choice_;  // (L,N,E): the routers' logits when the choice was frozen
  bool frozen_ = false;
};

}  // namespace octet::BACKEND
