#pragma once
// Operations of a mixture of experts: routing, permuting rows to experts and back, the balancing loss. No token is ever
// dropped. Conventions are those of ops/ops.h.                         Jiang et al. 2024 (Mixtral), arXiv:2401.04088
//
// A buffer of experts' rows holds the rows of expert 0, then those of expert 1, and so on. An expert's rows are in the
// order of its tokens, padded with zeros to a multiple of kExpertRows, because FP8 products contract over them.
//
// Dimension key:  N tokens   C channels   E experts   K experts a token   R rows of such a buffer   L layers
#include <vector>

#include "ops/ops.h"

namespace octet::BACKEND {

inline constexpr int64_t kExpertRows = 32;  // the k of one FP8 wgmma
inline int64_t padded_rows(int64_t rows) { return (rows + kExpertRows - 1) / kExpertRows * kExpertRows; }
// R: enough rows for any routing.
inline int64_t expert_rows(int64_t N, int64_t E, int64_t K) {
  return padded_rows(N * K + (kExpertRows - 1) * std::min(E, N * K));
}

// y = x * (1 + eps * u), u uniform in [-1, 1) and determined by the seed; y may be x. It is its own backward.
void moe_jitter(Stream&, Tensor y /*(N,C)*/, Tensor x /*(N,C)*/, double eps, uint64_t seed);

// probability = softmax(logits); expert: indices of the K largest `choice`, largest first, of equal ones the lower
// index (NaN counts as infinity); weight: their probabilities, divided by their sum; lse: logsumexp of the logits.
// `choice` is the logits themselves, except where a test prescribes the routing.
struct MoeRoute {
  Tensor expert /*(N,K) i32*/, weight /*(N,K) wide*/, probability /*(N,E) wide*/, lse /*(N) wide*/;
};
void moe_route(Stream&, const MoeRoute&, Tensor logits /*(N,E) wide*/, Tensor choice /*(N,E) wide*/);
// For a fixed routing, with S_n = sum_k probability[n,expert[n,k]]:
//   dp[n,e] = balance * count[e] + sum_{k: expert[n,k] = e} (dw[n,k] - sum_j dw[n,j] w[n,j]) / S_n
//   dlogits = p * (dp - sum_e p dp) + 2 * z * lse * p
struct MoeRouteBackward {
  Tensor dlogits /*(N,E)*/;
  MoeRoute route;
  Tensor dweight /*(N,K) wide*/, count /*(E) f64, or none*/;
  double balance = 0, z = 0;
  const float* loss_scale = nullptr;  // multiplies balance and z, unless null: ops.h, LossFactor
};
void moe_route_backward(Stream&, const MoeRouteBackward&);

// offset[e]: first row of expert e; offset[E]: rows in use. count[e]: tokens of expert e. row[n,k]: the row of token n
// at its k-th expert. source: the inverse of row, n*K + k; -1 in padding and in unused rows.
struct MoeRows {
  Tensor offset /*(E+1) i32*/, count /*(E) i32*/, row /*(N,K) i32*/, source /*(R) i32*/;
};
void moe_sort(Stream&, const MoeRows&, Tensor expert /*(N,K) i32*/);
// The offsets on the host, where each expert's products are launched apart: waits for the device. `pinned`: room for
// E+1. The plan engine knows no routing: it spreads `assignments` (= N*K) evenly.
std::vector<int64_t> moe_offsets(Stream&, int32_t* pinned, Tensor offset /*(E+1) i32*/, int64_t assignments);

// Starts copying the offsets of several ranks to the host, in stream order, to `pinned` (ranks, E+1). The plan engine
// spreads `assignments`, those of one rank, evenly.
void moe_fetch_offsets(Stream&, int32_t* pinned, Tensor offset /*(ranks,E+1) i32*/, int64_t assignments);

// y[r] = x[source[r] / K], zero where source[r] < 0
void moe_gather(Stream&, Tensor y /*(R,C)*/, Tensor x /*(N,C)*/, Tensor source /*(R) i32*/, int64_t K);
// y[n] = sum_k weight[n,k] * o[row[n,k]] [+ residual[n]], in the order of k; no weight means 1
void moe_combine(Stream&, Tensor y /*(N,C)*/, Tensor o /*(R,C)*/, Tensor row /*(N,K) i32*/,
                 Tensor weight /*(N,K) wide*/, Tensor residual /*(N,C)*/);
// d_o[r] = weight[s] * dy[s / K], s = source[r], zero where s < 0;  dweight[s] = sum_c dy[s / K,c] * o[r,c]
struct MoeCombineBackward {
  Tensor d_o /*(R,C)*/, dweight /*(N,K) wide*/, dy /*(N,C)*/, o /*(R,C)*/, weight /*(N,K) wide*/, source /*(R) i32*/;
};
void moe_combine_backward(Stream&, const MoeCombineBackward&);

// Adds a router's statistics, from which its losses follow: sums[0,e] tokens of expert e, sums[1,e] its probabilities,
// sums[2,0] lse^2.
void moe_add_sums(Stream&, Tensor sums /*(3,E) f64 +=*/, Tensor count /*(E) i32*/, const MoeRoute&);
// Over all layers:  total = sum_l sums[l],  load[l] += sums[l,0],
//   losses[0] += balance * sum_e total[0,e] * total[1,e];  losses[1] += z * total[2,0]
// balance = E / (L*N)^2 gives the balancing loss of transformers (Fedus et al. 2021, arXiv:2101.03961, for K experts a
// token): E * sum_e (share of tokens that chose e) * (mean probability of e), which is K at perfect balance.
// by_layer: losses[0] += balance * sum_l sum_e sums[l,0,e] * sums[l,1,e] instead; balance = E / (L*N^2) gives the mean
// over layers of each layer's own balancing loss.
// z = 1/(L*N) gives the mean of lse^2, the z-loss (Zoph et al. 2022, arXiv:2202.08906).
struct MoeLosses {
  Tensor losses /*(2) f64 +=, or none*/, total /*(3,E) f64*/, load /*(L,E) f64 +=*/, sums /*(L,3,E) f64*/;
  double balance = 0, z = 0;
  bool by_layer = false;
};
void moe_losses(Stream&, const MoeLosses&);

}  // namespace octet::BACKEND
