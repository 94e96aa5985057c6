#pragma once
// A folder of a test's own, removed afterwards; the small text; and what an error says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "data/token_file.h"

namespace octet {

class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "octet-data-XXXXXX").string();
    CHECK(::mkdtemp(name.data()));
    folder_ = name;
  }
  ~Scratch() { std::filesystem::remove_all(folder_); }
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }
  std::filesystem::path write(const std::string& name, std::string_view contents) const {
    write_file(folder_ / name, contents);
    return folder_ / name;
  }
  int64_t entries() const {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path folder_;
};

inline std::filesystem::path small_text() {
  return std::filesystem::path(__FILE__).parent_path() / "../../data/saltmarsh.txt";
}

// The message of the E that f throws; "" and a failure otherwise.
template <class E, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& e) { return e.what(); } catch (const std::exception& e) {
    ADD_FAILURE() << "another exception: " << e.what();
    return "";
  }
  ADD_FAILURE() << "no exception";
  return "";
}
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A token file of documents of `document` tokens each, token i being first + i (modulo the vocabulary).
inline std::filesystem::path token_file(const std::filesystem::path& path, int64_t tokens, int64_t vocab = 100000,
                                        int64_t first = 0, int64_t document = 7) {
  TokenFileHeader like;
  like.vocab_size = uint64_t(vocab);
  TokenFileWriter writer(path, like);
  for (int64_t i = 0; i < tokens; ++i) {
    if (i % document == 0) writer.begin_document();
    const int32_t id = int32_t((first + i) % vocab);
    writer.append({&id, 1});
  }
  writer.finish();
  return path;
}

}  // namespace octet
