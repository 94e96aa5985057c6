#pragma once
// The device operations of training, each declared once and defined once per engine, in ops/<engine>/. Those of experts
// are in moe.h and grouped.h, those of generation in decode.h.
//
// Arguments: stream, outputs, inputs, scalars. Outputs marked (+=) are added to; all others are overwritten.
// Types: activations are of the "plain" type: f32 or bf16, on the cpu also f16 or f64. Statistics and sums are "wide":
// f64 for f64, else f32. Parameter gradients are wide or bf16.
//
// A producer writes an Operand (tensor/operand.h): every form that is present, scale_inv along with FP8 forms, and
// slot.amax = max(slot.amax, max |y|) unless that is null. An operand without any form is only measured. FP8 codes
// are round(y * slot.scale), saturating. Codes and amax come from the fp32 result, not from its rounding to the
// plain type; NaN stays NaN.
//
// Sums have a fixed order: results are bitwise the same from run to run, whatever the number of threads (on the gpu,
// those of matrix products and attention unless Target::deterministic is false). `partial` arguments are scratch of the
// size that ops/workspace.h gives, and need no initialisation.
//
// Dimension key:  B batch   T time   N rows (= B*T)   C channels   F ffn width   V vocabulary   H query heads
//                 G key/value heads   D head size   R rotary dimensions   K contracted   S slots   L history length
#include <span>

#include "device/device.h"

namespace octet::BACKEND {

// ---- embedding.  y_n = w[tokens_n];  dw[tokens_n] += dy_n.
// order: the rows 0..N-1, stably sorted by token, so that the rows of a token are summed in a fixed order.
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

// ---- rotary embedding and attention work on q, k and v packed in one tensor qkv (N, width).
struct Heads {  // the columns of qkv at which each head's q, k and v begin
  int64_t H = 1, G = 1, D = 64;
  bool interleaved = false;  // false: [q heads | k heads | v heads] (Llama); true: per head [q | k | v], G == H (NeoX)
  int64_t width() const { return (H + 2 * G) * D; }
  int64_t q(int64_t h) const { return h * D * (interleaved ? 3 : 1); }
  int64_t k(int64_t g) const { return interleaved ? (3 * g + 1) * D : (H + g) * D; }
  int64_t v(int64_t g) const { return interleaved ? (3 * g + 2) * D : (H + G + g) * D; }
};
// Rotates the first R dimensions of each q and k head, in the half-split layout: for i < R/2 and the angle of (t, i),
//   y[i] = x[i] cos - x[i+R/2] sin,   y[i+R/2] = x[i+R/2] cos + x[i] sin      Su et al. 2021, arXiv:2104.09864
struct Rope {
  Tensor table;  // (positions, R/2, 2) wide: (cos, sin)
  Heads heads;
  int64_t T = 1, first = 0;  // row n has position t = n % T + first [+ start[n / T]]
  Tensor start{};            // (N/T) i32, or none
  bool rounded = false;      // row p + 1 is not row p rotated by row 1: the table is coarser than fp32, or scaled
};
void rope_forward(Stream&, Tensor qkv /*(N,width)*/, const Rope&);  // in place
// The inverse rotation of the gradients of q and k; those of v are copied. d_out.plain may be d_in.
void rope_backward(Stream&, Operand d_out /*(N,width)*/, Tensor d_in /*(N,width)*/, const Rope&);

// o = softmax(scale * q k^T + causal mask) v for every head; query head h reads key/value head h / (H/G).
// lse: log of the row sums of exp(scale * q k^T).  window > 0: position t attends to t-window+1 .. t only.
// documents: position t attends to positions of its own document only          Zhao et al. 2024, arXiv:2402.13991
//                                                     Dao 2023 (FlashAttention-2), arXiv:2307.08691
struct Attention {
  Heads heads;
  int64_t B = 1, T = 1, window = 0;
  double scale = 1;
  Tensor documents{};  // (2,B,T) i32, or none: where in its sequence the document of position t begins, and ends
};
void attention_forward(Stream&, Tensor o /*(N,H*D)*/, Tensor lse /*(B,H,T) wide*/, Tensor qkv /*(N,width)*/,
                       const Attention&, Tensor workspace /*bytes: workspace.h*/);
// With p = exp(scale * q k^T - lse) computed again:
//   dv = p^T do,  dp = do v^T,  ds = p * (dp - rowsum(do*o)) * scale,  dq = ds k,  dk = ds^T q
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

// ---- matrix product.  d (M,N) = a (M,K) @ b (N,K)^T * a.scale_inv * b.scale_inv [+ bias (N)] [+ residual (M,N)] [+ d]
// Accumulates in fp32 (fp64 for f64); fp32 products are true fp32, never TF32. d may be wide or plain, whatever the
// factors are. FP8 factors must be contiguous along K, as Hopper's tensor cores need them.
struct GemmArgs {
  Tensor d;
  Factor a, b;
  Tensor residual{}, bias{};  // residual: dtype of d; bias: dtype of the activations
  bool accumulate = false;    // + d
  bool first_term = false;    // accumulate, but d holds nothing yet and is overwritten; the plan is the same
  bool fast = false;          // FP8: accumulate in the tensor cores' 14 bits, without promotion to fp32 registers
  // No unfinished kernel of the stream writes b, as with weights in generation: a kernel under programmatic dependent
  // launch may load b before the kernels ahead of it have ended.
  bool b_ready = false;
  bool adds() const { return accumulate && !first_term; }
};
void gemm(Stream&, const GemmArgs&);

// ---- cross-entropy.  losses_n = logsumexp(logits_n) - logits_n[target_n], 0 where target_n < 0 (ignored).
// Columns >= vocabulary are padding and take no part. With Backward::yes the logits are overwritten by their gradient,
// factor * (softmax - onehot), 0 in ignored rows and in padding.
enum class Backward : bool { no, yes };
// What gradients of the loss are multiplied by: value, times the loss scale where there is one. The loss scale lies in
// device memory, because finish_gradients changes it there without telling the host.
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
void quantize(Stream&, Operand y /*(N,C)*/, Tensor x /*(N,C)*/);  // y = x, where x's producer wrote the plain form only
void transpose(Stream&, Tensor y /*(C,N)*/, Tensor x /*(N,C)*/);  // of FP8 codes
// counts += {codes, those at +-largest, zeros, 0, sum of CodeSquares (ops/formulas.h) in two words, the lower first} of
// q; only of its first kMostCounted codes, as counts have 32 bits.
inline constexpr int64_t kMostCounted = int64_t{1} << 30;
void count_codes(Stream&, Tensor counts /*(6) u32 +=*/, Tensor q);
void convert(Stream&, Tensor y, Tensor x);        // y = x in another dtype
void add(Stream&, Tensor y, Tensor a, Tensor b);  // y = a + b; y may be a or b; b may be of another dtype
// y[i] = mean + std * normal(seed, stream, first + i), base/rng.h; std == 0 draws nothing.
void init_normal(Stream&, Tensor y, double mean, double std, uint64_t seed, uint64_t stream, int64_t first);

// ---- the optimizer step. Its record lives in device memory; the host reads a copy a step later, for the log.
struct StepState {
  double loss = 0;        // summed over the valid targets of the global batch; the log divides by their number
  double squares = 0;     // sum of squares of the gradients, which the loss scale multiplies
  double aux = 0, z = 0;  // models with experts: balancing loss and z-loss, without coefficients; not part of `loss`
  float norm = 0;         // global gradient norm, before clipping and without the loss scale
  float clip = 1;         // AdamW multiplies every gradient by it: clipping, and division by the loss scale
  uint32_t skip = 0;      // this step makes no update: loss or norm is not finite, or an FP8 cast saw inf or NaN
  uint32_t nonfinite_casts = 0;       // written by update_scales
  uint32_t updates = 0, skipped = 0;  // since the start of the run
  float loss_scale = 1;               // of this step's gradients; finish_gradients sets the next step's
  uint32_t good_steps = 0;            // since a dynamic loss scale last changed
};
// Sets norm, clip and skip; then ++updates or ++skipped. growth_every > 0 (dynamic loss scaling): a skipped step halves
// the loss scale, down to 1; `growth_every` good steps in a row double it, up to 2^24.
//                                                          Micikevicius et al. 2017, arXiv:1710.03740
void finish_gradients(Stream&, Tensor state /*(1 record, bytes)*/, double max_norm /*0: no clipping*/,
                      int64_t growth_every = 0);

// AdamW, decoupled decay: m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2,
//   w -= lr * (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay * w),  g = clip * grad,  t = state.updates
// Loshchilov & Hutter 2017, arXiv:1711.05101. Masters and moments are f64, f32 or bf16; bf16 is rounded stochastically
// by counter-based random bits. Writes nothing at all when state.skip.
struct AdamwPiece {  // consecutive elements with the same decay and the same FP8 slot
  Tensor master, m, v, grad;
  Tensor weights{};          // written too, unless none: the master in the plain type
  uint32_t* amax = nullptr;  // raised to max |master| after the update, unless null
  double decay = 0;
  uint64_t stream = 0;  // random stream of the parameter (hash of its name)
  int64_t first = 0;    // index of the first element within the parameter
};
struct AdamwSettings {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  uint64_t seed = 0, step = 0;  // of the stochastic rounding
};
void adamw(Stream&, std::span<const AdamwPiece>, const AdamwSettings&, Tensor state);

// ---- delayed scaling of all S slots by delayed_scale() (formulas.h); then amax = 0. Scales are 16 bytes apart, since
// cuBLASLt wants them aligned so. A non-finite amax is counted in `nonfinite` and in the step's state.
struct ScaleState {
  Tensor scale /*(S,4) f32 +=*/, amax /*(S) u32 +=*/, history /*(L,S) f32 +=*/, largest /*(S) f32*/,
      nonfinite /*(S) u32 +=*/;
  bool most_recent = false, te_compat = false, power_of_2 = false;
  bool rescale = true;  // false: only histories roll (fp8.interval), except of slots used for the first time
};
void update_scales(Stream&, const ScaleState&, Tensor state /*StepState, or none*/);
// groups[g] = {first slot, number of slots}: a slot that was never used takes the smallest scale of the used slots
// in its group. Used: the newest row of its history is not 0, or, with a history of one row, which keeps no
// maxima, its scale is not 1.
void inherit_scales(Stream&, const ScaleState&, Tensor groups /*(G,2) i32*/);
// *scale = largest / amax where 0 < amax < inf, else 1: for a cast that has no history to take its scale from.
void current_scale(Stream&, float* scale, const uint32_t* amax, float largest, bool power_of_2);

}  // namespace octet::BACKEND
