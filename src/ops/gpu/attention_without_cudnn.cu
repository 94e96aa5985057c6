// Replaces cudnn_attention.cu in builds without cuDNN.
#include "ops/gpu/attention.h"
#include "ops/tune.h"

namespace octet::BACKEND {

bool cudnn_has_forward(Device&, const Attention&) { return false; }
bool cudnn_has_backward(Device&, const Attention&) { return false; }
void cudnn_attention_forward(Stream&, const AttentionForward&, const Attention&) {
  CHECK(false, "built without cuDNN");
}
void cudnn_attention_backward(Stream&, const AttentionBackward&, const Attention&) {
  CHECK(false, "built without cuDNN");
}

bool has_cudnn() { return false; }

}  // namespace octet::BACKEND
