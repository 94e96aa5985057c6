#pragma once
// Every device operation of the program. Each is declared here once and defined once per engine: ops/<engine>/*.
//
// Argument order: stream, outputs, inputs, scalars. Outputs marked (+=) accumulate; all others are overwritten.
// A producer writes an Operand: each form that is present, scale_inv with them, and max |y| into slot.amax (as a
// maximum over what is there) unless that is null. An operand without any form is only measured. FP8 = round(y *
// slot.scale), saturating; amax and codes come from the fp32 result, not from its rounding to the plain type; NaN
// counts as NaN. Activations are f64 (cpu), f32 or bf16 ("plain"); statistics and sums are computed in `wide` (f64 for
// f64, else f32). Parameter gradients may be wide or bf16. Every sum has a fixed order: the same bits from run to run,
// whatever the number of threads. `partial` arguments are workspaces whose sizes ops/workspace.h gives; they need no
// preparation. Dimension key:  B batch   T time   N rows (= B*T)   C channels   F ffn width   V vocabulary   H query
// heads
//                 G key/value heads   D head size   R rotary dimensions   K contracted   S slots   L history length
#include <span>

#include "device/device.h"

namespace octet::BACKEND {

// ---- embedding. order: the rows 0..N-1 sorted by token, stable, so that equal tokens are summed in a fixed order.
void embedding_forward(Stream&, Tensor y /*(N,C)*/, Tensor tokens /*(N) i32*/, Tensor w /*(V,C)*/);
void embedding_backward(Stream&, Tensor dw /*(V,C) +=*/, Tensor dy /*(N,C)*/, Tensor tokens /*(N) i32*/,
                        Tensor order /*(N) i32*/);

// ---- RMSNorm.  y = x / rms(x) * w,   rms(x) = sqrt(mean_c x^2 + eps)       Zhang & Sennrich 2019, arXiv:1910.07467
void rmsnorm_forward(Stream&, Operand y /*(N,C)*/, Tensor rstd /*(N) wide*/, Tensor x /*(N,C)*/, Tensor w /*(C)*/,
                     double eps);
// dx += rstd * (w*dy - xhat * mean_c(w*dy*xhat)),  dw += sum_n dy*xhat,  xhat = x*rstd
struct RmsnormBackward {
  Tensor dx /*(N,C) +=*/, dw /*(C) +=*/, dy /*(N,C)*/, x /*(N,C)*/, w /*(C)*/, rstd /*(N)*/, partial /*(P,C) wide*/;
};
void rmsnorm_backward(Stream&, const RmsnormBackward&);

// ---- LayerNorm.  y = (x - mean) * rstd * w + b                                    Ba et al. 2016, arXiv:1607.06450
struct LayernormForward {
  Operand y /*(N,C)*/;
  Tensor mean /*(N) wide*/, rstd /*(N) wide*/, x /*(N,C)*/, w /*(C)*/, b /*(C)*/;
  double eps = 1e-5;
};
void layernorm_forward(Stream&, const LayernormForward&);
// dx += rstd * (w*dy - mean_c(w*dy) - xhat * mean_c(w*dy*xhat)),  dw += sum_n dy*xhat,  db += sum_n dy
struct LayernormBackward {
  Tensor dx /*(N,C) +=*/, dw /*(C) +=*/, db /*(C) +=*/, dy /*(N,C)*/, x, w, mean, rstd, partial /*(2P,C) wide*/;
};
void layernorm_backward(Stream&, const LayernormBackward&);

// ---- rotary embedding and attention on one packed tensor qkv (N, width). Where a head's q, k and v lie in a row:
struct Heads {
  int64_t H = 1, G = 1, D = 64;
  bool interleaved = false;  // false: [q heads | k heads | v heads] (Llama); true: per head [q | k | v], G == H (NeoX)
  int64_t width() const { return (H + 2 * G) * D; }
  int64_t q(int64_t h) const { return h * D * (interleaved ? 3 : 1); }
  int64_t k(int64_t g) const { return interleaved ? (3 * g + 1) * D : (H + g) * D; }
  int64_t v(int64_t g) const { return interleaved ? (3 * g + 2) * D : (H + G + g) * D; }
};
// Half-split layout over the first R dimensions of each q and k head: for i < R/2 and position t,
//   y[i] = x[i] cos - x[i+R/2] sin,   y[i+R/2] = x[i+R/2] cos + x[i] sin      Su et al. 2021, arXiv:2104.09864
// table (positions, R/2, 2) wide holds (cos, sin); row n has position n % T + first [+ start[n / T]]. In place.
struct Rope {
  Tensor table;
  Heads heads;
  int64_t T = 1, first = 0;
  Tensor start{};        // (N/T) i32, or none
  bool rounded = false;  // the table is not good to fp32: its row p + 1 is not row p turned on by row 1
};
void rope_forward(Stream&, Tensor qkv /*(N,width) +=*/, const Rope&);
// The transpose of that rotation; d_out.plain may be d_in itself. v is copied through.
void rope_backward(Stream&, Operand d_out /*(N,width)*/, Tensor d_in /*(N,width)*/, const Rope&);

// o = softmax(scale * q k^T + causal mask) v per head; query head h reads key/value head h / (H/G).
// lse = natural log of the row sums of exp(scaled scores).  window > 0: position t sees t-window+1 .. t.
//                                                     Dao 2023 (FlashAttention-2), arXiv:2307.08691
struct Attention {
  Heads heads;
  int64_t B = 1, T = 1, window = 0;
  double scale = 1;
};
void attention_forward(Stream&, Tensor o /*(N,H*D)*/, Tensor lse /*(B,H,T) wide*/, Tensor qkv /*(N,width)*/,
                       const Attention&, Tensor workspace /*bytes: workspace.h*/);
// dv = p^T do,  dp = do v^T,  ds = p * (dp - rowsum(do*o)) * scale,  dq = ds k,  dk = ds^T q
struct AttentionBackward {
  Tensor dqkv /*(N,width)*/, d_o /*(N,H*D)*/, o, lse, qkv, workspace;
};
void attention_backward(Stream&, const AttentionBackward&, const Attention&);

// ---- activations.  SwiGLU: y = silu(g) * u, gu = [g | u]                        Shazeer 2020, arXiv:2002.05202
void swiglu_forward(Stream&, Operand y /*(N,F)*/, Tensor gu /*(N,2F)*/);
void swiglu_backward(Stream&, Operand dgu /*(N,2F)*/, Tensor dy /*(N,F)*/, Tensor gu /*(N,2F)*/);
// GELU, exact (erf) or tanh-approximated                              Hendrycks & Gimpel 2016, arXiv:1606.08415
enum class Gelu { exact, tanh };
void gelu_forward(Stream&, Operand y /*(N,F)*/, Tensor x /*(N,F)*/, Gelu);
void gelu_backward(Stream&, Operand dx /*(N,F)*/, Tensor dy /*(N,F)*/, Tensor x /*(N,F)*/, Gelu);

// ---- products.  d (M,N) = a (M,K) @ b (N,K)^T * a.scale_inv * b.scale_inv [+ bias (N)] [+ residual (M,N)] [+ d]
// Accumulates in fp32 (fp64 for f64). FP8 factors must not be transposed; `fast` allows Hopper's fast accumulation.
// fp32 products are true fp32, never TF32. d may be wide or plain whatever the factors are.
struct GemmArgs {
  Tensor d;
  Factor a, b;
  Tensor residual{}, bias{};  // residual: dtype of d; bias: dtype of the activations
  bool accumulate = false, fast = false;
  bool settled = false;  // b was written long ago: it may be read while what stands before in the stream still runs
};
void gemm(Stream&, const GemmArgs&);

// ---- loss.  losses_n = logsumexp(logits_n) - logits_n[target_n], 0 where target_n < 0. Columns >= vocabulary are
// padding and take no part. With Backward::yes, logits become factor * (softmax - onehot), 0 in ignored rows and
// padding.
enum class Backward : bool { no, yes };
// Factor of a loss in the gradients: the host's, times the loss scale where there is one. That lies in device memory,
// as a step changes it without the host's knowing.
struct LossFactor {
  double value = 0;
  const float* scale = nullptr;
  LossFactor() = default;
  LossFactor(double v, const float* s = nullptr) : value(v), scale(s) {}
};
void cross_entropy(Stream&, Tensor losses /*(N) wide*/, Tensor logits /*(N,V)*/, Tensor targets /*(N) i32*/,
                   int64_t vocabulary, LossFactor, Backward);

// ---- sums, in a fixed order
void sum(Stream&, Tensor total /*(1) f64 +=*/, Tensor x /*(N) wide*/);
void column_sum(Stream&, Tensor total /*(C) +=*/, Tensor x /*(N,C)*/, Tensor partial /*(P,C) wide*/);
void sum_of_squares(Stream&, Tensor total /*(1) f64 +=*/, Tensor x /*any*/, Tensor partial /*(P) f64*/);

// ---- formats and copies
void quantize(Stream&, Operand y /*(N,C)*/, Tensor x /*(N,C)*/);  // y = x: the second kernel, where a producer cannot
void transpose(Stream&, Tensor y /*(C,N)*/, Tensor x /*(N,C)*/);  // of FP8 codes
// of FP8 codes: {all, at +-largest value, zeros, 0}; of more than kMostCounted the first, as counts have 32 bits
inline constexpr int64_t kMostCounted = int64_t{1} << 30;
void count_codes(Stream&, Tensor counts /*(4) u32 +=*/, Tensor q);
void convert(Stream&, Tensor y, Tensor x);        // y = x in another dtype
void add(Stream&, Tensor y, Tensor a, Tensor b);  // y = a + b; y may be a or b; b may be of another dtype
void init_normal(Stream&, Tensor y, double mean, double std, uint64_t seed, uint64_t stream, int64_t first);
// y[i] = mean + std * normal(seed, stream, first + i): base/rng.h; std == 0 draws nothing

// ---- the optimizer step. One record in device memory; a copy of it comes home with the log, a step late.
struct StepState {
  double loss = 0;        // summed over the valid targets of the global batch; the log divides it by their number
  double squares = 0;     // of the gradients, times the loss scale's square
  double aux = 0, z = 0;  // of a model with experts: balancing loss and z-loss, without coefficients; no part of `loss`
  float norm = 0,
        clip = 1;     // global norm before clipping; factor on every gradient, which takes off the loss scale too
  uint32_t skip = 0;  // this step's update is left out: loss or norm is not finite, or a cast saw inf or NaN
  uint32_t nonfinite_casts = 0;       // written by update_scales
  uint32_t updates = 0, skipped = 0;  // since the start of the run
  float loss_scale = 1;               // of the gradients under way; finish_gradients decides the next step's
  uint32_t good_steps = 0;            // since a dynamic loss scale last changed
};
// norm = sqrt(squares) / loss_scale, clip, skip; then ++updates or ++skipped. growth_every > 0, a dynamic loss scale: a
// step that is skipped halves it, to 1 at least; `growth_every` good steps in a row double it, to 2^24 at most.
//                                                          Micikevicius et al. 2017, arXiv:1710.03740
void finish_gradients(Stream&, Tensor state /*(1 record, bytes)*/, double max_norm /*0: no clipping*/,
                      int64_t growth_every = 0);

// AdamW, decoupled decay: m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2,
//   w -= lr * (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay * w),  g = clip * grad,  t = state.updates
// Loshchilov & Hutter 2017, arXiv:1711.05101. bf16 masters and moments are rounded stochastically (counter-based).
// Nothing at all is written when state.skip. Moments and masters are f64, f32 or bf16.
struct AdamwPiece {  // a run of elements with the same decay and the same FP8 slot
  Tensor master, m, v, grad;
  Tensor weights{};          // plain copy of the master to be written, or none
  uint32_t* amax = nullptr;  // max |master| after the update, or none
  double decay = 0;
  uint64_t stream = 0;  // random stream of the parameter (its name's hash)
  int64_t first = 0;    // index of the first element within the parameter
};
struct AdamwSettings {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  uint64_t seed = 0, step = 0;  // of the stochastic rounding
};
void adamw(Stream&, std::span<const AdamwPiece>, const AdamwSettings&, Tensor state);

// ---- delayed scaling of all slots: the rule is formulas.h's delayed_scale(); then amax = 0. Scales stand 16 bytes
// apart: cuBLASLt refuses others. A non-finite amax is counted in `nonfinite` and in the step's state.
struct ScaleState {
  Tensor scale /*(S,4) f32 +=*/, amax /*(S) u32 +=*/, history /*(L,S) f32 +=*/, largest /*(S) f32*/,
      nonfinite /*(S) u32 +=*/;
  bool most_recent = false, te_compat = false, power_of_2 = false;
  bool rescale = true;  // false: only the history moves (fp8.interval), but of a slot that was never used
};
void update_scales(Stream&, const ScaleState&, Tensor state /*StepState, or none*/);
// groups[g] = {first slot, their number}: a slot that was never used takes the smallest scale of those of its group
// that were. Used is what has a newest maximum in its history; a history of one row keeps none, and there a scale that
// is not 1 tells.
void lend_scales(Stream&, const ScaleState&, Tensor groups /*(G,2) i32*/);
// *scale = largest / amax where 0 < amax < inf, else 1: the scale of a first cast, local to it
void current_scale(Stream&, float* scale, const uint32_t* amax, float largest, bool power_of_2);

}  // namespace octet::BACKEND
