// octet verify: compares this program with another one's reference values.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/files.h"
#include "base/json.h"
#include "train/entries.h"
#include "train/trainer.h"
#include "train/weights.h"

namespace octet::BACKEND {
namespace {

// Sums over the elements of a tensor, of all ranks' parts.
struct Comparison {
  double dot = 0, xx = 0, yy = 0, difference = 0, absolute = 0;
  void add(double x, double y) {
    dot += x * y, xx += x * x, yy += y * y, difference += (x - y) * (x - y);
    absolute = std::isnan(x - y) ? x - y : std::max(absolute, std::abs(x - y));
  }
  void merge(const Comparison& o) {
    dot += o.dot, xx += o.xx, yy += o.yy, difference += o.difference;
    absolute = std::isnan(o.absolute) ? o.absolute : std::max(absolute, o.absolute);
  }
  double relative() const { return difference == 0 ? 0 : std::sqrt(difference / yy); }
  double metric() const { return xx + yy == 0 ? 0 : 1 - 2 * dot / (xx + yy); }
};

class Report {
 public:
  Report(Host& host, bool bf16) : host_(host), bf16_(bf16) {}
  enum class Limit { absolute, relative, metric };
  // fp32 has one tolerance, bf16 (and fp16) another.
  void line(const std::string& what, Comparison c, std::pair<Limit, double> fp32, std::pair<Limit, double> bf16) {
    std::vector<Comparison> all(size_t(host_.size()));
    host_.all_gather(all.data(), &c, sizeof c);
    Comparison sum;
    for (const Comparison& part : all) sum.merge(part);
    const auto [limit, tolerance] = bf16_ ? bf16 : fp32;
    const double got = limit == Limit::absolute   ? sum.absolute
                       : limit == Limit::relative ? sum.relative()
                                                  : sum.metric();
    lines.push_back({what, sum.absolute, sum.relative(), sum.metric(), tolerance,
                     limit == Limit::absolute   ? "absolute"
                     : limit == Limit::relative ? "relative"
                                                : "metric",
                     got <= tolerance});
  }
  double over_ranks(double mine) const {
    std::vector<double> all(size_t(host_.size()));
    host_.all_gather(all.data(), &mine, sizeof mine);
    double sum = 0;
    for (const double part : all) sum += part;
    return sum;
  }
  void scalar(const std::string& what, double x, double y, double fp32, double bf16) {
    Comparison c;
    if (host_.rank() == 0) c.add(x, y);
    line(what, c, {Limit::relative, fp32}, {Limit::relative, bf16});
  }
  std::vector<VerifyLine> lines;

 private:
  Host& host_;
  bool bf16_;
};
using Limit = Report::Limit;

// Rounding grows with the values: of logits above 1 the tolerance is that part of the largest.
std::pair<Limit, double> of_largest(const std::vector<double>& reference, double tolerance) {
  double largest = 1;
  for (const double x : reference) largest = std::max(largest, std::abs(x));
  return {Limit::absolute, tolerance * largest};
}

// Device memory outside the plan.
class Extra {
 public:
  Extra(Session& s, DType t, Shape shape) : session_(s), tensor{nullptr, t, shape} {
    tensor.data = device_alloc(s.device, std::max<size_t>(1, tensor.bytes()));
    fill_zero(s.stream, tensor);
  }
  ~Extra() {
    session_.stream.synchronize();
    device_free(session_.device, tensor.data);
  }
  Extra(const Extra&) = delete;

 private:
  Session& session_;

 public:
  Tensor tensor;
};

bool is_half(const RunConfig& config) { return size_of(config.precision.param_dtype) == 2; }  // bf16, fp16

// The routers of a Mixtral: their logits, and in bf16, where a token may go elsewhere, the
// reference's choice of experts.
class RouterCheck {
 public:
  RouterCheck(Session& s, const SafetensorsFile& expected, int64_t rows, bool bf16)
      : session_(s), choice_(s, DType::f32, shape_of(s, rows)), losses_(s, DType::f64, {2}), forced_(bf16) {
    if (!s.config.model.num_experts) return;
    if (!expected.find("router_logits")) {
      if (forced_)
        bad_input(expected.path().string(), " has no router_logits, by which tokens go to the reference's experts in ",
                  "half precision: verify with --dtype fp32, or add them");
      return;
    }
    want_ = expected.read_all<double>("router_logits");
    CHECK(int64_t(want_.size()) == choice_.tensor.numel(), "router_logits: ", want_.size(), " values for ",
          choice_.tensor.shape);
    if (forced_) from_host(s.stream, choice_.tensor, want_);
  }
  Routers routers() {
    Routers r{.losses = losses_.tensor};
    if (!want_.empty() && forced_) r.choice = choice_.tensor;
    return r;
  }
  Routers observed() {
    Routers r = routers();
    if (want_.empty()) return r;
    r.observe = [this](int64_t layer, Tensor logits) {
      const auto got = to_host(session_.stream, logits);
      for (size_t i = 0; i < got.size() && session_.host.rank() == 0; ++i)
        logits_.add(got[i], want_[size_t(layer) * got.size() + i]);
    };
    return r;
  }
  void report(Report& report) const {
    if (!want_.empty()) report.line("router logits", logits_, of_largest(want_, 1e-5), {Limit::metric, 5e-4});
  }
  double loss() { return to_host(session_.stream, losses_.tensor)[0]; }

 private:
  static Shape shape_of(const Session& s, int64_t rows) {
    const ModelConfig& m = s.config.model;
    return {m.num_experts ? m.num_layers : 0, rows, m.num_experts};
  }
  Session& session_;
  Extra choice_, losses_;
  bool forced_;
  std::vector<double> want_;
  Comparison logits_;
};

// Where the reference's gradient of our parameter is: under its own name (transformers 4), or under the name of the
// merged tensor (transformers 5).
Slice gradient_of(const SafetensorsFile& expected, const std::string& name, int64_t numel) {
  if (expected.find("grad." + name)) return {"grad." + name, 0, numel};
  return find_expected_gradient(name, numel);
}

// A gradient that is zero but for rounding, as a router's that chooses one expert, has no relative error: it must be as
// small beside the gradient of the whole model here.
void report_gradients(const std::vector<std::pair<std::string, Comparison>>& gradients, Report& report) {
  std::vector<double> squares;
  double all = 0;
  for (const auto& [what, gradient] : gradients) all += squares.emplace_back(report.over_ranks(gradient.yy));
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& [what, gradient] = gradients[i];
    if (squares[i] <= 1e-12 * all) {
      report.line(what, gradient, {Limit::absolute, 1e-5 * std::sqrt(all)}, {Limit::absolute, 1e-3 * std::sqrt(all)});
    } else {
      report.line(what, gradient, {Limit::relative, 1e-4}, {Limit::metric, 5e-4});
    }
  }
}

void check_gradients(Session& s, Host& host, const SafetensorsFile& expected, const Batch& batch, RouterCheck& routers,
                     Report& report) {
  const double valid =
      double(std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t >= 0; }));
  const Tensor total = s.loss_total();
  s.params.zero_gradients(s.stream);
  fill_zero(s.stream, total);
  Context c = s.context(Pass::train);
  if (s.config.model.num_experts) c.routers = routers.routers();
  s.model.train(c, s.upload(batch), total, 1 / (valid * host.size()));
  s.params.wait_for_gradients(s.stream);
  if (s.config.model.num_experts && expected.find("aux_loss"))
    report.scalar("aux loss", routers.loss(), expected.read_all<double>("aux_loss")[0], 1e-5, 1e-2);
  std::vector<std::pair<std::string, Comparison>> gradients;
  s.params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    const Slice where = gradient_of(expected, name, shape.numel());
    const auto& entry = expected.at(where.name);
    const auto got = to_host(s.stream, l.grad);
    const int64_t held =
        std::clamp<int64_t>(std::min(where.count, entry.numel() - where.first) - l.first, 0, int64_t(got.size()));
    std::vector<double> reference(static_cast<size_t>(held));
    if (held) expected.read(entry, where.first + l.first, held, reference.data());
    Comparison& gradient = gradients.emplace_back("grad " + name, Comparison{}).second;
    for (size_t i = 0; i < reference.size(); ++i) gradient.add(got[i], reference[i]);
  });
  report_gradients(gradients, report);
}

// Every rank computes the whole reference batch; R copies of it over R times the targets have its loss and gradients.
// Of what the file holds besides ids and logits, all is compared.
void check_expected(const RunConfig& base, Host& host, const Planner& planner, const VerifyRequest& request,
                    Report& report) {
  const SafetensorsFile expected(request.expected);
  const auto& ids = expected.at("input_ids");
  if (ids.shape.size() != 2)
    bad_input(request.expected, ": input_ids has the shape ", to_string(ids.shape), "; expected [B, T]");
  Batch batch{.tokens = expected.read_all<int32_t>("input_ids"), .batch = ids.shape[0], .seq_len = ids.shape[1]};
  batch.targets.assign(batch.tokens.size(), kIgnore);
  if (expected.find("labels")) batch.targets = expected.read_all<int32_t>("labels");
  RunConfig config = base;
  config.training.seq_len.set(batch.seq_len);
  config.training.micro_batch_size.set(batch.batch);
  config.training.global_batch_size.set(batch.batch * host.size());
  const Purpose purpose = request.trains ? Purpose::train : Purpose::evaluate;
  Session s(config, host, planner(config), purpose, options_for(config, host));
  read_masters(s.stream, s.params, SafetensorsModel(request.model), hf_layout(config.model));

  const int64_t V = config.model.vocab_size;
  const auto want = expected.read_all<double>("logits");
  Comparison logits;
  RouterCheck routers(s, expected, batch.batch * batch.seq_len, is_half(config));
  Context e = s.context(Pass::evaluate);
  if (config.model.num_experts) e.routers = routers.observed();
  s.model.logits(e, s.upload(batch), [&](int64_t first, Tensor rows) {
    const auto got = to_host(s.stream, rows);
    for (int64_t n = 0; n < rows.rows() && host.rank() == 0; ++n)
      for (int64_t v = 0; v < V; ++v) logits.add(got[size_t(n * rows.cols() + v)], want[size_t((first + n) * V + v)]);
  });
  report.line("logits", logits, of_largest(want, 1e-5), {Limit::metric, 5e-4});
  routers.report(report);
  if (expected.find("loss")) {
    const Samples samples{[&](int64_t, int64_t) { return batch; }, {}};
    const double loss = s.loss(samples, 0, batch.batch * host.size());
    report.scalar("loss", loss, expected.read_all<double>("loss")[0], 1e-5, 1e-2);
  }
  const auto is_gradient = [](const auto& entry) { return entry.name.starts_with("grad."); };
  if (std::ranges::any_of(expected.entries(), is_gradient)) check_gradients(s, host, expected, batch, routers, report);
}

// Part of the gradient of query_key_value's bias is zero but for rounding, which AdamW turns into steps of full length.
bool is_noise(const std::string& name, const RunConfig& config) {
  return name.ends_with(".query_key_value.bias") && (config.model.parallel_residual || is_half(config));
}

// By the names of transformers 4, which are ours, or of 5, in which a Mixtral layer's experts are two tensors.
void check_final_norms(Session& s, Host& host, const json& norms, Report& report) {
  std::map<std::string, double> squares;
  s.params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    double& sum = squares[norms.contains(name) ? name : transformers_slice(name, shape.numel()).name];
    if (!l.counts) return;  // of ranks that hold the same slices, the first
    for (double v : to_host(s.stream, l.master)) sum += v * v;
  });
  for (const auto& [name, mine] : squares) {
    const auto found = norms.find(name);
    if (found == norms.end() || is_noise(name, s.config)) continue;
    std::vector<double> all(size_t(host.size()));
    host.all_gather(all.data(), &mine, sizeof mine);
    double total = 0;
    for (double part : all) total += part;
    report.scalar("final norm " + name, std::sqrt(total), *found, 1e-5, 1e-2);
  }
}

void check_trajectory(const RunConfig& base, Host& host, const Planner& planner, const VerifyRequest& request,
                      Report& report) {
  const json t = parse_json(read_file(request.trajectory), request.trajectory);
  const json& h = t.at("hyper_parameters");
  std::string batches_path = request.trajectory;
  batches_path.replace(batches_path.rfind(".json"), 5, ".safetensors");
  const SafetensorsFile file(batches_path);
  const auto& shape = file.at("batches").shape;  // [n, sequences, T+1]
  const auto ids = file.read_all<int32_t>("batches");
  const int64_t n = shape[0], G = shape[1], T = shape[2] - 1;
  if (G % host.size())
    bad_input(batches_path, ": its ", G, " sequences a step cannot be shared by ", host.size(), " ranks");
  RunConfig config = base;
  config.training.seq_len.set(T);
  config.training.global_batch_size.set(G);
  config.training.micro_batch_size.default_to(G / host.size());
  config.training.steps.set(h.at("steps"));
  config.schedule.kind.set(ScheduleKind::cosine);
  config.schedule.lr.set(h.at("lr"));
  config.schedule.min_lr.set(h.at("min_lr"));
  config.schedule.warmup_steps.set(h.at("warmup"));
  config.optimizer.beta1.set(h.at("beta1"));
  config.optimizer.beta2.set(h.at("beta2"));
  config.optimizer.eps.set(h.at("eps"));
  config.optimizer.weight_decay.set(h.at("weight_decay"));
  config.optimizer.clip.set(h.at("clip"));
  const Samples samples{[&](int64_t first, int64_t count) {
                          Batch b{.batch = count, .seq_len = T};
                          for (int64_t i = first; i < first + count; ++i) {
                            const int32_t* row = ids.data() + (i / G % n * G + i % G) * (T + 1);
                            b.tokens.insert(b.tokens.end(), row, row + T);
                            b.targets.insert(b.targets.end(), row + 1, row + T + 1);
                          }
                          return b;
                        },
                        [&](int64_t, int64_t count) { return count * T; }};
  Trainer trainer(config, host, planner(config), options_for(config, host));
  Session& s = trainer.session;
  read_masters(s.stream, s.params, SafetensorsModel(request.model), hf_layout(config.model));
  for (int64_t i = 0; i < config.training.steps; ++i) {
    trainer.step(samples);
    const StepReport r = trainer.report(i + 1);
    report.scalar(concat("step ", i, " loss"), r.loss, t.at("loss")[size_t(i)], 1e-5, 1e-2);
    report.scalar(concat("step ", i, " norm"), r.state.norm, t.at("grad_norm")[size_t(i)], 1e-5, 1e-2);
    if (config.model.num_experts)
      report.scalar(concat("step ", i, " aux loss"), r.state.aux, t.at("aux_loss")[size_t(i)], 1e-5, 1e-2);
  }
  check_final_norms(s, host, t.at("final_norms"), report);
}

}  // namespace

std::vector<VerifyLine> verify_run(const RunConfig& given, Host& host, const Planner& planner,
                                   const VerifyRequest& request) {
  RunConfig config = given;
  Report report(host, is_half(config));
  config.model.router_jitter = 0;  // no two programs draw the same noise
  if (!request.expected.empty()) check_expected(config, host, planner, request, report);
  const bool wanders = config.model.num_experts > 0 && is_half(config);  // tokens may be routed to other experts
  if (!request.trajectory.empty() && !wanders) check_trajectory(config, host, planner, request, report);
  return report.lines;
}

}  // namespace octet::BACKEND
