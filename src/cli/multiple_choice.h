#pragma once
// Questions with several endings in HellaSwag's form (Zellers et al. 2019, arXiv:1905.07830): JSONL of
//   {"ctx": "…", "endings": ["…", …], "label": 0}
// An ending is scored by the log-probability of its tokens after "ctx "; the answer is the most likely ending, or the
// most likely per character.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace octet {

struct ScoredRow {  // a context and an ending
  std::vector<int32_t> ids;
  int64_t scored = 0;  // of the ids, the last ones: those of the ending
  double log_probability = 0;
};
struct Question {
  std::vector<ScoredRow> rows;      // of each ending
  std::vector<int64_t> characters;  // of each ending
  int64_t label = 0;
};

// most_tokens: a longer row loses its beginning.
std::vector<Question> read_questions(const std::string& path, const Tokenizer& tokenizer, int64_t most_tokens);

struct Accuracy {
  int64_t questions = 0;
  double plain = 0, normalised = 0;
};
Accuracy accuracy_of(std::span<const Question> questions);

}  // namespace octet
