// The architectures of this program: a new one is one file and one line.
#include "models/architectures.h"

namespace octet::BACKEND {

const Architecture& architecture(Arch arch) {
  static const Architecture llama{llama_block, Norm::Kind::rms, "model.embed_tokens.weight", "model.norm", "lm_head.weight"};
  switch (arch) {
    case Arch::llama: return llama;
    default: bad_input("this version trains Llama models only; model_type neox and mixtral come later");
  }
}

}  // namespace octet::BACKEND
