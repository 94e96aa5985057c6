// tokenizer.json where PCRE2 and utf8proc were not found.
#include "base/check.h"
#include "data/tokenizer_model.h"

namespace octet {

std::unique_ptr<const Tokenizer::Model> hf_tokenizer(std::string_view, const std::filesystem::path& path) {
  bad_input(
      "'", path.string(),
      "' is not a sentencepiece model, and this program was built without PCRE2 and utf8proc, which a tokenizer.json "
      "needs: install libpcre2-dev and libutf8proc-dev (scripts/install-deps does) and build it again");
}

}  // namespace octet
