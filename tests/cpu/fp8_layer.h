#pragma once
// One Linear on the cpu engine, made from a config as a run makes it.
#include <gtest/gtest.h>

#include "config/config.h"
#include "cpu/lab.h"
#include "nn/linear.h"
#include "precision/options.h"

namespace octet::BACKEND {

inline RunConfig layer_config(const std::vector<std::string>& changes) {
  std::vector<std::string> all{"fp8.enabled=true", "fp8.exclude=[]"};
  all.insert(all.end(), changes.begin(), changes.end());
  return parse_config(R"({
    "device": "cpu",
    "model": {"model_type": "llama", "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48,
              "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64},
    "training": {"steps": 10, "global_batch_size": 4, "micro_batch_size": 2, "seq_len": 32},
    "precision": {"param_dtype": "fp32"}})",
                      "layer", all);
}

class Layer {
 public:
  Layer(RunConfig c, int64_t out, int64_t in, int64_t number = 0)
      : config_(std::move(c)),
        recipe_(make_recipe(config_)),
        scaling(activation_scaling(config_)),
        params(*comm_, nullptr, side_, options()),
        linear_(make(out, in, number)) {
    params.materialise(lab_.stream(), arenas_, 1);
    scaling.materialise(lab_.stream(), arenas_[Memory::weights]);
  }
  Lab& lab() { return lab_; }
  Linear& linear() { return linear_; }
  const Recipe& recipe() const { return recipe_; }
  Context context(Pass pass = Pass::train) {
    return {.stream = lab_.stream(),
            .params = params,
            .scaling = scaling,
            .saved = arenas_[Memory::saved],
            .scratch = arenas_[Memory::scratch],
            .pass = pass};
  }
  template <class T>
  void set_weights(const std::vector<T>& values) {
    params.for_each([&](const std::string&, Shape, const ParameterStore::Local& l) {
      for (size_t i = 0; i < values.size(); ++i) l.master.ptr<float>()[i] = float(values[i]);
    });
    params.publish(lab_.stream(), ParameterStore::Masters::changed);
  }

  struct Products {
    Tensor y, dx, dw;
  };
  // One micro-batch: forward and backward with plain x (N,I) and dy (N,O), through the operands of the layer.
  Products run(Tensor x, Tensor dy) {
    Stream& s = lab_.stream();
    Context c = context();
    Products p{lab_.empty(DType::f32, {x.rows(), linear_.out()}), lab_.empty(DType::f32, x.shape), {}};
    params.zero_gradients(s);
    const auto weights = params.acquire(s, 0, Use::backward);
    linear_.forward(c, p.y, linear_.input(c, x));
    linear_.backward(c, p.dx, linear_.output_grad(c, dy));
    params.for_each([&](const std::string&, Shape shape, const ParameterStore::Local& l) {
      p.dw = lab_.copy(l.grad.part(0, shape));
    });
    c.saved.reset();
    c.scratch.reset();
    return p;
  }
  void update() {  // as after a micro-batch, and after a step that left the masters alone
    scaling.update(lab_.stream(), nullptr, {});
    params.publish(lab_.stream(), ParameterStore::Masters::stepped);
  }
  float scale(const std::string& name) {  // of "w.weight", "w.weight.x", "w.weight.dy"
    for (DelayedScaling* all : {&scaling, &params.weight_scales()})
      for (size_t i = 0; i < all->names().size(); ++i)
        if (all->names()[i] == name) return *all->unmeasured(int(i)).scale;
    throw Error("no scale of " + name);
  }
  uint64_t state_hash() {  // of amax, history and scale
    uint64_t h = 0;
    for (Tensor t : {scaling.state().amax, scaling.state().history, scaling.state().scale})
      h = h * 31 + hash({static_cast<const char*>(t.data), t.bytes()});
    return h;
  }

 private:
  ParameterOptions options() const {
    return {.evaluate_fp8 = config_.fp8.eval,
            .delayed_weights = config_.fp8.weight_scaling == WeightScaling::delayed,
            .weight_scaling = weight_scaling(config_)};
  }
  Linear make(int64_t out, int64_t in, int64_t number) {
    params.begin_unit("unit", Buffers::own);
    return {{params, scaling, recipe_}, {{"w.weight", {out, in}}}, {.layer = number}};
  }
  static MemoryPlan memory() {
    MemoryPlan plan;
    plan.bytes.fill(size_t{1} << 22);
    return plan;
  }

  RunConfig config_;
  Lab lab_;
  LoneHost host_;
  Device device_{Device::Options{.poison = true}};
  Stream side_{device_, Stream::Priority::high};
  std::unique_ptr<Comm> comm_ = make_comm(device_, host_);
  Arenas arenas_{lab_.stream(), memory()};
  Recipe recipe_;

 public:
  DelayedScaling scaling;
  ParameterStore params;

 private:
  Linear linear_;
};

}  // namespace octet::BACKEND
