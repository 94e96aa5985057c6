// Attention on the gpu: by cuDNN where ops/workspace.h says so and it supports the case, else by our own kernels.
#include "device/gpu.h"
#include "ops/gpu/attention.h"
#include "ops/gpu/attention_kernels.h"
#include "ops/workspace.h"

namespace octet::BACKEND {
namespace {

void check_shapes(const Attention& a, Tensor qkv, Tensor o, Tensor lse) {
  const Heads& h = a.heads;
  CHECK(a.B > 0 && a.T > 0 && h.G > 0 && h.H % h.G == 0, "B ", a.B, ", T ", a.T, ", H ", h.H, ", G ", h.G);
  CHECK(h.D % 8 == 0 && h.D > 0 && h.D <= 256, "attention takes head sizes that are a multiple of 8 up to 256, not ",
        h.D);
  CHECK(a.window >= 0 && a.scale > 0, "window ", a.window, ", scale ", a.scale);
  CHECK(!a.documents || (a.documents.dtype == DType::i32 && a.documents.numel() == 2 * a.B * a.T), a.documents.shape);
  CHECK(a.T < int64_t{1} << 30 && a.B * h.H * ((a.T + 31) / 32) < int64_t{1} << 30, "B ", a.B, ", H ", h.H, ", T ", a.T,
        ": tiles are counted in 32 bits");
  CHECK(qkv.numel() == a.B * a.T * h.width(), "qkv is ", qkv.shape, ", its rows should have ", h.width(), " elements");
  CHECK(o.numel() == a.B * a.T * h.H * h.D && lse.numel() == a.B * h.H * a.T, "o ", o.shape, ", lse ", lse.shape);
}

void check_workspace(Tensor workspace, int64_t needed) {
  CHECK(int64_t(workspace.bytes()) >= needed, "attention got ", workspace.bytes(), " bytes of workspace of ", needed);
}

}  // namespace

void native_attention_forward(Stream& s, const AttentionForward& t, const Attention& a) {
  if (attention_on_hopper(s.target(), a, t.qkv.dtype)) attention_forward_hopper(s, t, a);
  else if (t.qkv.dtype == DType::bf16) attention_forward_bf16(s, t, a);
  else attention_forward_f32(s, t, a);
}

void native_attention_backward(Stream& s, const AttentionBackward& t, const Attention& a) {
  if (attention_on_hopper(s.target(), a, t.qkv.dtype))
    attention_backward_q_hopper(s, t, a), attention_backward_kv_hopper(s, t, a);
  else if (t.qkv.dtype == DType::bf16) attention_backward_q_bf16(s, t, a), attention_backward_kv_bf16(s, t, a);
  else attention_backward_f32(s, t, a);
}

void attention_forward(Stream& s, Tensor o, Tensor lse, Tensor qkv, const Attention& a, Tensor workspace) {
  Timed timed(s, Kernel::attention_forward);
  check_shapes(a, qkv, o, lse);
  check_workspace(workspace, attention_forward_workspace(s.target(), a, qkv.dtype));
  const AttentionForward t{o, lse, qkv, workspace};
  if (cudnn_attends_forward(s.target(), a, qkv.dtype) && cudnn_has_forward(s.device(), a))
    cudnn_attention_forward(s, t, a);
  else native_attention_forward(s, t, a);
}

void attention_backward(Stream& s, const AttentionBackward& t, const Attention& a) {
  Timed timed(s, Kernel::attention_backward);
  check_shapes(a, t.qkv, t.o, t.lse);
  CHECK(t.dqkv.numel() == t.qkv.numel() && t.d_o.numel() == t.o.numel());
  check_workspace(t.workspace, attention_backward_workspace(s.target(), a, t.qkv.dtype));
  if (cudnn_attends_backward(s.target(), a, t.qkv.dtype) && cudnn_has_backward(s.device(), a))
    cudnn_attention_backward(s, t, a);
  else native_attention_backward(s, t, a);
}

}  // namespace octet::BACKEND
