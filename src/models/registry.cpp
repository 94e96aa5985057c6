// The registered architectures. A new one is a file with its block, an entry here, and its fields in config/model*.
#include "models/architectures.h"

namespace octet::BACKEND {

const Architecture& architecture(Arch arch) {
  static const Architecture llama{llama_block, Norm::Kind::rms, "model.embed_tokens.weight", "model.norm",
                                  "lm_head.weight"};
  static const Architecture neox{neox_block, Norm::Kind::layer, "gpt_neox.embed_in.weight", "gpt_neox.final_layer_norm",
                                 "embed_out.weight"};
  static const Architecture mixtral{mixtral_block, Norm::Kind::rms, "model.embed_tokens.weight", "model.norm",
                                    "lm_head.weight"};
  switch (arch) {
    case Arch::llama:
      return llama;
    case Arch::neox:
      return neox;
    case Arch::mixtral:
      return mixtral;
  }
  fail(__FILE__, __LINE__, "no such architecture");
}

}  // namespace octet::BACKEND
