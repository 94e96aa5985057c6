#include "base/json.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/files.h"

namespace octet {
namespace {

constexpr int kDeepest = 100;  // copies and printing recurse

// Refuses duplicate keys in an object, which the parser accepts.
class KeyWatch {
 public:
  explicit KeyWatch(const std::string& where) : where_(where) {}
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (depth > kDeepest) bad_input(where_, ": nested more than ", kDeepest, " deep");
    using Event = json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) levels_.emplace_back();
    if (event == Event::object_end || event == Event::array_end) levels_.pop_back();
    if (event == Event::key) {
      levels_.back().last = parsed.get<std::string>();
      if (!levels_.back().keys.insert(levels_.back().last).second)
        bad_input(where_, ": ", path(), " appears twice; keep one of them");
    }
    return true;
  }

 private:
  struct Level {
    std::set<std::string> keys;
    std::string last;
  };
  std::string path() const {
    std::string text;
    for (const Level& level : levels_) text += (text.empty() || level.last.empty() ? "" : ".") + level.last;
    return text;
  }
  const std::string& where_;
  std::vector<Level> levels_;
};

// "configs/a.json:3:7": line and column, from 1, of the byte at which the parser stopped.
std::string place(std::string_view text, size_t byte, const std::string& where) {
  const std::string_view before = text.substr(0, std::min(text.size(), byte ? byte - 1 : 0));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return concat(where, ":", line, ":", before.size() - line_start + 1);
}

// nlohmann's "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error …" without its head, and
// cut: it quotes the string that it read last, which may be a whole document.
std::string reason(const std::string& what) {
  constexpr size_t kMost = 200;
  size_t at = what.find("syntax error");
  if (at == std::string::npos) at = what.find("] ") == std::string::npos ? 0 : what.find("] ") + 2;
  return what.size() - at <= kMost ? what.substr(at) : what.substr(at, kMost) + "...";
}

size_t edit_distance(std::string_view a, std::string_view b) {  // insertions, deletions, changes, swaps of neighbours
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  try {
    return json::parse(text.begin(), text.end(), KeyWatch(where), /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const json::parse_error& e) {
    bad_input(place(text, e.byte, where), ": ", reason(e.what()));
  } catch (const json::exception& e) {  // a number beyond a double
    bad_input(where, ": ", reason(e.what()));
  }
}

std::string json_fault(const json::exception& e) {
  const auto* syntax = dynamic_cast<const json::parse_error*>(&e);
  return concat(syntax ? concat("byte ", syntax->byte, ": ") : "", reason(e.what()));
}

json read_json(const std::string& path) { return parse_json(read_file(path), path); }

std::string show(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string closest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > 100) return "";  // not a typing error; and the edit distance is quadratic
  std::string best;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    size_t distance = edit_distance(word, candidate);
    if (distance >= candidate.size()) continue;  // nothing in common
    // A prefix counts as a single typing error: "warmup" for "warmup_steps".
    if (distance > 1 && word.size() >= 4 && (candidate.starts_with(word) || word.starts_with(candidate))) distance = 1;
    if (distance < least) least = distance, best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = closest(word, candidates);
  return near.empty() ? "" : concat("; did you mean ", near, "?");
}

}  // namespace octet
