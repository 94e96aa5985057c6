#pragma once
// Documents of text and JSONL files, in file order and without copying the file.
//   JSONL (.jsonl, .ndjson, .json)  each line is an object, whose string under `json_key` is a document; blank lines
//                                   are skipped
//   text (any other name)           the file is one document, or several if `separator` occurs in it (newlines next
//                                   to it, also of Windows, belong to it)
// Empty documents are skipped. A byte order mark at the start is not text.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/files.h"

namespace octet {

struct DocumentOptions {
  std::string json_key = "text";
  std::string separator = "<|endoftext|>";  // empty: each text file is one document
};

class DocumentFile {
 public:
  DocumentFile(const std::filesystem::path& path, DocumentOptions options);

  struct Raw {
    std::string_view bytes;  // a text, or a line of JSON
    int64_t line = 0;        // from 1; 0 for text
  };
  bool next(Raw& raw);  // false at the end; `bytes` lives as long as the file
  // The document of `raw`, in `storage` if it had to be unpacked. A line that is not as above is an InputError.
  std::string_view text(const Raw& raw, std::string& storage) const;
  int64_t position() const { return int64_t(position_); }  // bytes consumed so far
  int64_t size() const { return file_.size(); }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  DocumentOptions options_;
  bool json_;
  size_t position_ = 0;
  int64_t line_ = 0;
};

}  // namespace octet
