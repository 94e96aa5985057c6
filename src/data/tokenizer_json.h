#pragma once
// A sentencepiece model as Hugging Face's tokenizers library reads it: transformers then needs no sentencepiece, and
// splits text as the model does whatever class it takes.
#include "base/json.h"
#include "data/tokenizer.h"

namespace octet {

// tokenizer.json; null for a model that is no byte-pair encoding with byte fallback and without normalisation, the kind
// that octet trains and Llama-2 has.
json tokenizer_json(const Tokenizer& tokenizer);

}  // namespace octet
