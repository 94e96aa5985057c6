#pragma once
// Operations of a mixture of experts: routing, the rows of each expert and the way back, the balancing loss.
// Conventions are those of ops/ops.h.                                  Jiang et al. 2024 (Mixtral), arXiv:2401.04088
//
// A buffer of experts' rows holds those of expert 0, then those of expert 1, and so on; an expert's rows are in the
// order of its tokens, filled up with zeros to a multiple of 32, which FP8 products contract over. No token is ever
// dropped. Dimension key:  N tokens   C channels   E experts   K experts a token   R rows of a buffer of experts' rows
// L layers
#include <vector>

#include "ops/ops.h"

namespace octet::BACKEND {

inline constexpr int64_t kExpertRows = 32;  // an expert's rows are a multiple of it: of a step of Hopper's FP8 products
inline int64_t padded_rows(int64_t rows) { return (rows + kExpertRows - 1) / kExpertRows * kExpertRows; }
// R: room for any choice of experts.
inline int64_t expert_rows(int64_t N, int64_t E, int64_t K) {
  return padded_rows(N * K + (kExpertRows - 1) * std::min(E, N * K));
}

// y = x * (1 + eps * u), u uniform in [-1, 1), the same for the same seed; y may be x. Its derivative is itself.
void moe_jitter(Stream&, Tensor y /*(N,C)*/, Tensor x /*(N,C)*/, double eps, uint64_t seed);

// probability = softmax(logits); expert: those of the K largest values of `choice`, largest first, of equal ones the
// lower index (NaN is as large as infinity); weight: their probabilities over the sum of them; lse: logsumexp of the
// logits. choice is logits, but where a test holds the choice fixed.
struct MoeRoute {
  Tensor expert /*(N,K) i32*/, weight /*(N,K) wide*/, probability /*(N,E) wide*/, lse /*(N) wide*/;
};
void moe_route(Stream&, const MoeRoute&, Tensor logits /*(N,E) wide*/, Tensor choice /*(N,E) wide*/);
// The choice held fixed:  dp[n,e] = balance * count[e] + sum_{k: expert[n,k] = e} (dw[n,k] - sum_j dw[n,j] w[n,j]) /
// S_n, S_n = sum_k probability[n,expert[n,k]];  dlogits = p * (dp - sum_e p dp) + 2 * z * lse * p
struct MoeRouteBackward {
  Tensor dlogits /*(N,E)*/;
  MoeRoute route;
  Tensor dweight /*(N,K) wide*/, count /*(E) f64, or none*/;
  double balance = 0, z = 0;
  const float* loss_scale = nullptr;  // a factor on both, or none: ops.h, LossFactor
};
void moe_route_backward(Stream&, const MoeRouteBackward&);

// offset[e]: first row of expert e; offset[E]: rows of all. row[n,k]: of token n at its k-th expert. source: the
// inverse, n*K + k, or -1 in rows of padding and behind the last. count: tokens of each expert.
struct MoeRows {
  Tensor offset /*(E+1) i32*/, count /*(E) i32*/, row /*(N,K) i32*/, source /*(R) i32*/;
};
void moe_sort(Stream&, const MoeRows&, Tensor expert /*(N,K) i32*/);
// The offsets on the host, to launch each expert's products: waits for the device. `pinned`: room for E+1. The plan
// engine knows no choice: it deals out `assignments` (= N*K) evenly.
std::vector<int64_t> moe_offsets(Stream&, int32_t* pinned, Tensor offset /*(E+1) i32*/, int64_t assignments);

// The offsets of several ranks on their way to the host, in stream order, to `pinned` (ranks, E+1). Like moe_offsets,
// the plan engine deals out `assignments`, of each rank, evenly.
void moe_fetch_offsets(Stream&, int32_t* pinned, Tensor offset /*(ranks,E+1) i32*/, int64_t assignments);

// y[r] = x[source[r] / K], zero where source[r] < 0
void moe_gather(Stream&, Tensor y /*(R,C)*/, Tensor x /*(N,C)*/, Tensor source /*(R) i32*/, int64_t K);
// y[n] = sum_k weight[n,k] * o[row[n,k]] [+ residual[n]], in the order of k; without weight: 1
void moe_combine(Stream&, Tensor y /*(N,C)*/, Tensor o /*(R,C)*/, Tensor row /*(N,K) i32*/,
                 Tensor weight /*(N,K) wide*/, Tensor residual /*(N,C)*/);
// d_o[r] = weight[s] * dy[s / K], s = source[r], zero where s < 0;  dweight[s] = sum_c dy[s / K,c] * o[r,c]
struct MoeCombineBackward {
  Tensor d_o /*(R,C)*/, dweight /*(N,K) wide*/, dy /*(N,C)*/, o /*(R,C)*/, weight /*(N,K) wide*/, source /*(R) i32*/;
};
void moe_combine_backward(Stream&, const MoeCombineBackward&);

// Sums of a layer's router, by which it is judged: tokens of each expert, their probabilities, and lse^2 (in [2,0]).
void moe_add_sums(Stream&, Tensor sums /*(3,E) f64 +=*/, Tensor count /*(E) i32*/, const MoeRoute&);
// All layers together:  total = sum_l sums[l],  load[l] += sums[l,0],
//   losses[0] += balance * sum_e total[0,e] * total[1,e];  losses[1] += z * total[2,0]
// balance = E / (L*N)^2 gives the balancing loss of transformers (Fedus et al. 2021, arXiv:2101.03961, for K experts a
// token): E * sum_e (share of tokens that chose e) * (mean probability of e), K where everything is balanced.
// by_layer: losses[0] += balance * sum_l sum_e sums[l,0,e] * sums[l,1,e] instead; balance = E / (L*N^2) gives the mean
// over layers of each one's own balancing loss. z =
// 1/(L*N) gives the mean square of lse, the z-loss (Zoph et al. 2022, arXiv:2202.08906).
struct MoeLosses {
  Tensor losses /*(2) f64 +=, or none*/, total /*(3,E) f64*/, load /*(L,E) f64 +=*/, sums /*(L,3,E) f64*/;
  double balance = 0, z = 0;
  bool by_layer = false;
};
void moe_losses(Stream&, const MoeLosses&);

}  // namespace octet::BACKEND
