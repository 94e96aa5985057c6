#include "data/hf_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <set>

namespace octet {
namespace {

using Place = SafetensorsModel::Place;
constexpr size_t kListed = 4;  // names of a kind that a report tells
constexpr std::array<std::string_view, 2> kEmbeddings{"model.embed_tokens.weight", "gpt_neox.embed_in.weight"};
constexpr std::array<std::string_view, 2> kHeads{"lm_head.weight", "embed_out.weight"};

template <class Names>
bool contains(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string listed(const char* what, const std::vector<std::string>& items) {
  if (items.empty()) return "";
  std::string text = concat("\n  ", what, ", ", items.size(), ": ");
  for (size_t i = 0; i < std::min(items.size(), kListed); ++i) text += (i ? ", " : "") + items[i];
  return items.size() > kListed ? text + ", ..." : text;
}

// The head's copy in the files, if there is one, must be what the model computes with: the embedding.
void check_tied_head(const SafetensorsModel& model) {
  for (std::string_view head_name : kHeads) {
    const Place head = model.find(head_name);
    if (!head) continue;
    for (std::string_view embedding_name : kEmbeddings) {
      const Place embedding = model.find(embedding_name);
      if (!embedding) continue;
      const auto &a = *head.entry, &b = *embedding.entry;
      if (a.dtype != b.dtype || a.shape != b.shape ||
          std::memcmp(head.file->data(a), embedding.file->data(b), a.bytes) != 0)
        bad_input("'", model.path().string(), "': the model ties its head to the embedding, but '", head_name,
                  "' differs from '", embedding_name, "': set tie_word_embeddings to false in its config.json");
    }
  }
}

}  // namespace

bool is_vocabulary_tensor(std::string_view name) { return contains(kEmbeddings, name) || contains(kHeads, name); }

bool is_no_parameter(std::string_view name) {
  constexpr std::array<std::string_view, 5> kBuffers{".rotary_emb.inv_freq", ".rotary_emb.cos_cached",
                                                     ".rotary_emb.sin_cached", ".attention.bias",
                                                     ".attention.masked_bias"};
  return std::ranges::any_of(kBuffers, [&](std::string_view end) { return name.ends_with(end); });
}

std::vector<int64_t> stored_shape(const NamedShape& ours, const HfLayout& layout) {
  std::vector<int64_t> shape(ours.shape.dim.begin(), ours.shape.dim.begin() + ours.shape.rank);
  if (layout.vocab_size > 0 && is_vocabulary_tensor(ours.name)) {
    CHECK(shape.size() == 2 && shape[0] >= layout.vocab_size, ours.name, " ", ours.shape);
    shape[0] = layout.vocab_size;
  }
  return shape;
}

void check_names(const std::vector<NamedShape>& expected, const SafetensorsModel& model, const HfLayout& layout) {
  std::set<std::string_view> known;
  std::vector<std::string> missing, unexpected, other_shape;
  bool head_missing = false;
  for (const NamedShape& ours : expected) {
    if (layout.tied_head && contains(kHeads, ours.name)) continue;
    known.insert(ours.name);
    const Place place = model.find(ours.name);
    const auto shape = stored_shape(ours, layout);
    if (!place) {
      missing.push_back(ours.name);
      head_missing |= contains(kHeads, ours.name);
    } else if (place.entry->shape != shape) {
      other_shape.push_back(ours.name + " " + to_string(place.entry->shape) + " instead of " + to_string(shape));
    }
  }
  model.for_each([&](const Place& place) {
    const std::string& name = place.entry->name;
    if (known.contains(name) || is_no_parameter(name) || (layout.tied_head && contains(kHeads, name))) return;
    unexpected.push_back(name + " " + to_string(place.entry->shape));
  });
  if (!missing.empty() || !unexpected.empty() || !other_shape.empty())
    bad_input("'", model.path().string(), "' does not hold the model that its config describes",
              listed("missing", missing), listed("unexpected", unexpected), listed("of another shape", other_shape),
              head_missing && missing.size() == 1 ? "\nIf its head is its embedding, set tie_word_embeddings to true."
                                                  : "\nCheck that config.json and the weights belong together.");
  if (layout.tied_head) check_tied_head(model);
}

int64_t stored_count(const NamedShape& ours, const HfLayout& layout, int64_t first, int64_t count) {
  int64_t numel = 1;
  for (int64_t d : stored_shape(ours, layout)) numel *= d;
  return std::clamp<int64_t>(numel - first, 0, count);
}

template <class T>
void read_parameter(const SafetensorsModel& model, const NamedShape& ours, int64_t first, int64_t count, T* dst) {
  const Place place = model.at(ours.name);
  const int64_t there = std::clamp<int64_t>(place.entry->numel() - first, 0, count);
  CHECK(there == count || is_vocabulary_tensor(ours.name), ours.name, " has ", place.entry->numel(), " elements");
  if (there > 0) model.read(place, first, there, dst);
  std::fill(dst + there, dst + count, T(0));
}
template void read_parameter(const SafetensorsModel&, const NamedShape&, int64_t, int64_t, float*);
template void read_parameter(const SafetensorsModel&, const NamedShape&, int64_t, int64_t, double*);

Slice transformers_slice(const std::string& name, int64_t numel) {
  constexpr std::string_view kMoe = ".block_sparse_moe.", kExperts = "experts.";
  if (name == "embed_out.weight") return {"lm_head.weight", 0, numel};
  const size_t moe = name.find(kMoe);
  if (moe == std::string::npos) return {name, 0, numel};
  const std::string layer = name.substr(0, moe) + ".mlp.";
  const std::string_view rest = std::string_view(name).substr(moe + kMoe.size());
  if (!rest.starts_with(kExperts)) return {layer + std::string(rest), 0, numel};  // gate.weight: the router
  int64_t expert = 0;
  const auto [end, error] = std::from_chars(rest.data() + kExperts.size(), rest.data() + rest.size(), expert);
  const std::string_view matrix(end, size_t(rest.data() + rest.size() - end));
  CHECK(error == std::errc() && (matrix == ".w1.weight" || matrix == ".w2.weight" || matrix == ".w3.weight"), name);
  if (matrix == ".w2.weight") return {layer + "experts.down_proj", expert * numel, numel};
  return {layer + "experts.gate_up_proj", (2 * expert + (matrix == ".w3.weight" ? 1 : 0)) * numel, numel};
}

}  // namespace octet
