#include "data/detokenize.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "data/file_names.h"
#include "data/token_file.h"

namespace octet {
namespace {

std::vector<TokenFile> open_all(const Tokenizer& tokenizer, const std::vector<std::string>& inputs) {
  std::vector<TokenFile> files;
  for (const std::string& name : expand_globs(inputs)) {
    const TokenFile& file = files.emplace_back(name);
    const uint64_t made_by = file.header().tokenizer_fingerprint;
    if (made_by != 0 && made_by != tokenizer.fingerprint())
      bad_input("token file '", name, "' was made with another tokenizer: give that one with --tokenizer");
    if (file.vocab_size() > tokenizer.vocab_size())
      bad_input("token file '", name, "' has a vocabulary of ", file.vocab_size(), " entries, the tokenizer ",
                tokenizer.vocab_size(), ": give the tokenizer that made it");
    file.verify();
  }
  return files;
}

}  // namespace

Detokenized detokenize(const Tokenizer& tokenizer, const DetokenizeOptions& options,
                       const std::function<void(std::string_view)>& write) {
  const std::vector<TokenFile> files = open_all(tokenizer, options.inputs);
  int64_t documents = 0, tokens = 0, done = 0;
  for (const TokenFile& file : files) documents += file.documents(), tokens += file.tokens();
  if (!options.jsonl && options.separator.empty() && documents > 1)
    bad_input(documents, " documents and no separator between them: give --separator, or write NAME.jsonl");
  Detokenized made;
  if (options.progress) options.progress(0, tokens);  // time counts from here
  for (const TokenFile& file : files)
    for (int64_t d = 0; d < file.documents(); ++d) {
      const int64_t start = file.document_start(d);
      const int64_t end = d + 1 < file.documents() ? file.document_start(d + 1) : file.tokens();
      std::vector<int32_t> ids(static_cast<size_t>(end - start));
      file.read(start, ids);
      const std::string text = tokenizer.decode(ids);
      if (options.jsonl) {
        using nlohmann::json;
        write(json{{options.json_key, text}}.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
      } else {
        const bool first = made.documents == 0, last = made.documents + 1 == documents;
        if (!first) write(concat("\n", options.separator, "\n"));
        write(text);
        made.ambiguous += (!options.separator.empty() && text.find(options.separator) != std::string::npos) ||
                          (!first && (text.starts_with('\n') || text.starts_with("\r\n"))) ||
                          (!last && (text.ends_with('\n') || text.ends_with('\r')));
      }
      made.bytes += int64_t(text.size());
      ++made.documents;
      if (options.progress) options.progress(done += end - start, tokens);
    }
  return made;
}

}  // namespace octet
