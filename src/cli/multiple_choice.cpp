#include "cli/multiple_choice.h"

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "base/json.h"
#include "data/documents.h"

namespace octet {
namespace {

class LineReader {
 public:
  LineReader(const std::string& where, std::string_view line) : where_(where) {
    try {
      object_ = json::parse(line);
    } catch (const json::exception& e) {
      bad_input(where, "not valid JSON (", json_fault(e), "): correct or remove the line");
    }
    if (!object_.is_object()) bad_input(where, "not a JSON object; ", kForm);
  }
  std::string context() const {
    if (!has("ctx") || !object_["ctx"].is_string()) bad_input(where_, "\"ctx\" is missing or not a string; ", kForm);
    return object_["ctx"];
  }
  std::vector<std::string> endings() const {
    const auto is_text = [](const json& v) { return v.is_string() && !v.get_ref<const std::string&>().empty(); };
    if (!has("endings") || !object_["endings"].is_array() || object_["endings"].empty() ||
        !std::all_of(object_["endings"].begin(), object_["endings"].end(), is_text))
      bad_input(where_, "\"endings\" is missing or not a list of texts, one at least and none empty; ", kForm);
    return object_["endings"];
  }
  int64_t label(size_t endings) const {  // a number, or as HellaSwag is also spread, a number in quotes
    int64_t label = -1;
    if (has("label") && object_["label"].is_number_integer()) label = object_["label"];
    if (has("label") && object_["label"].is_string()) {
      const std::string text = object_["label"];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
      if (error != std::errc() || end != text.data() + text.size()) label = -1;
    }
    if (label < 0 || label >= int64_t(endings))
      bad_input(where_, "\"label\" is missing or not a number from 0 to ", endings - 1, "; ", kForm);
    return label;
  }

 private:
  static constexpr const char* kForm = "expected {\"ctx\": \"…\", \"endings\": [\"…\", …], \"label\": 0}";
  bool has(const char* key) const { return object_.contains(key); }
  std::string where_;
  json object_;
};

int64_t count_characters(const std::string& utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; });
}

// The ending's tokens are those that the whole text has more than the context alone: where a token spans the seam, it
// counts as the context's.
ScoredRow row_of(const Tokenizer& tokenizer, const std::string& context, const std::string& ending, int64_t most) {
  ScoredRow row;
  const size_t before = tokenizer.encode(context).size() + (tokenizer.bos() >= 0);
  if (tokenizer.bos() >= 0) row.ids.push_back(tokenizer.bos());
  for (int id : tokenizer.encode(concat(context, " ", ending))) row.ids.push_back(id);
  row.scored = std::max<int64_t>(1, int64_t(row.ids.size()) - int64_t(before));
  if (int64_t(row.ids.size()) > most) row.ids.erase(row.ids.begin(), row.ids.end() - most);
  row.scored = std::min(row.scored, int64_t(row.ids.size()) - 1);  // nothing predicts the first token
  return row;
}

}  // namespace

std::vector<Question> read_questions(const std::string& path, const Tokenizer& tokenizer, int64_t most_tokens) {
  if (!path.ends_with(".jsonl") && !path.ends_with(".ndjson") && !path.ends_with(".json"))
    bad_input("'", path, "': questions are lines of JSON; name a .jsonl file");
  DocumentFile file(path, {});
  std::vector<Question> questions;
  for (DocumentFile::Raw raw; file.next(raw);) {
    const LineReader line(concat("'", path, "' line ", raw.line, ": "), raw.bytes);
    const std::string context = line.context();
    const std::vector<std::string> endings = line.endings();
    Question q{.rows = {}, .characters = {}, .label = line.label(endings.size())};
    for (const std::string& ending : endings) {
      q.rows.push_back(row_of(tokenizer, context, ending, most_tokens));
      q.characters.push_back(count_characters(ending));
    }
    questions.push_back(std::move(q));
  }
  if (questions.empty()) bad_input("'", path, "' holds no questions");
  return questions;
}

Accuracy accuracy_of(std::span<const Question> questions) {
  Accuracy a{.questions = int64_t(questions.size())};
  for (const Question& q : questions) {
    const auto best = [&](auto&& score) {
      size_t at = 0;
      for (size_t i = 1; i < q.rows.size(); ++i)
        if (score(i) > score(at)) at = i;
      return double(int64_t(at) == q.label);
    };
    a.plain += best([&](size_t i) { return q.rows[i].log_probability; });
    a.normalised += best([&](size_t i) { return q.rows[i].log_probability / double(q.characters[i]); });
  }
  a.plain /= double(a.questions);
  a.normalised /= double(a.questions);
  return a;
}

}  // namespace octet
