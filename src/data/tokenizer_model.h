#pragma once
// What a Tokenizer is inside: a sentencepiece model, or a tokenizer.json of Hugging Face. tokenizer.h
// says what the functions do.
#include "data/tokenizer.h"

namespace octet {

struct Tokenizer::Model {
  virtual ~Model() = default;
  virtual std::vector<int> encode(std::string_view text, Words* words) const = 0;
  virtual std::vector<int> encode_rest(std::string_view text, Words* words) const = 0;
  virtual size_t cut(std::string_view text, size_t least) const = 0;
  virtual std::string decode(std::span<const int> ids) const = 0;
  virtual int vocab_size() const = 0;
  virtual int bos() const = 0;
  virtual int eos() const = 0;
  virtual int unk() const = 0;
  virtual Kind kind(int id) const = 0;
  virtual float score(int id) const = 0;
  virtual std::string piece(int id) const = 0;
};

// bytes: of the file `path`. InputError: they are none, or of a kind that octet does not read.
std::unique_ptr<const Tokenizer::Model> sentencepiece_model(std::string_view bytes, const std::filesystem::path& path);
std::unique_ptr<const Tokenizer::Model> hf_tokenizer(std::string_view bytes, const std::filesystem::path& path);

}  // namespace octet
