#pragma once
// Between octet's parameters and the files that Hugging Face's transformers saves. Our parameter names are theirs
// wherever the tensor is the same, so little is left: tied heads, padded vocabularies, buffers that are no parameters,
// and the names under which transformers 5 holds in memory what it saves under older ones.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/model.h"
#include "data/safetensors.h"
#include "tensor/tensor.h"

namespace octet {

struct NamedShape {
  std::string name;
  Shape shape;
};

// How the files differ from our parameters.
struct HfLayout {
  int64_t vocab_size = 0;  // rows of embedding and head in the files; ours may have more, for alignment. 0: the same
  bool tied_head = false;  // the head is the embedding: absent from the files, or an equal copy
};
inline HfLayout hf_layout(const ModelConfig& m) { return {.vocab_size = m.vocab_size, .tied_head = m.tie_embeddings}; }

bool is_vocabulary_tensor(std::string_view name);  // embedding or head: its rows are vocabulary entries
bool is_no_parameter(std::string_view name);       // rotary tables and causal masks that older versions saved
std::vector<int64_t> stored_shape(const NamedShape& ours, const HfLayout& layout);  // with the vocabulary cut back

// Compares the names and shapes of a whole model: an InputError tells the first few missing, unexpected and mis-shaped
// tensors of each kind and how many there are. Also checks that a tied head's copy equals the embedding.
void check_names(const std::vector<NamedShape>& expected, const SafetensorsModel& model, const HfLayout& layout);

// Elements [first, first + count) of our tensor; rows beyond the file's vocabulary are zero. T: float or double.
template <class T>
void read_parameter(const SafetensorsModel& model, const NamedShape& ours, int64_t first, int64_t count, T* dst);

// How many of our elements [first, first + count) the files hold too: what is written when the vocabulary is cut back.
int64_t stored_count(const NamedShape& ours, const HfLayout& layout, int64_t first, int64_t count);

// Where transformers 5 holds what we call `name` (numel elements): a Mixtral layer's experts are gate_up_proj (E,2F,C),
// gate first, and down_proj (E,C,F); NeoX's embed_out is lm_head. Gradients in golden files bear these names.
struct Slice {
  std::string name;
  int64_t first = 0, count = 0;
};
Slice transformers_slice(const std::string& name, int64_t numel);
inline Slice find_expected_gradient(const std::string& name, int64_t numel) {
  Slice s = transformers_slice(name, numel);
  s.name = "grad." + s.name;
  return s;
}

}  // namespace octet
