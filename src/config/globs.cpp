#include "config/globs.h"

#include <algorithm>

namespace octet {
namespace {

// Does the set at the start of `pattern` ("[a-z]…") contain c? `length` becomes the set's; 0: it is not closed.
bool in_set(std::string_view pattern, char c, size_t& length) {
  const size_t end = pattern.find(']', 2);  // "[]a]" holds ']'
  length = end == std::string_view::npos ? 0 : end + 1;
  if (length == 0) return false;
  const bool negated = pattern[1] == '!' && end > 2;
  bool found = false;
  for (size_t i = negated ? 2 : 1; i < end; ++i) {
    if (i + 2 < end && pattern[i + 1] == '-') {
      found |= pattern[i] <= c && c <= pattern[i + 2];
      i += 2;
    } else {
      found |= pattern[i] == c;
    }
  }
  return found != negated;
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view text) {
  // Greedy, with one point to backtrack to: the last * takes one more character whenever what follows does not match.
  size_t p = 0, t = 0, star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    size_t length = 1;
    bool fits = false;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, star_text = t;
      continue;
    }
    if (p < pattern.size()) {
      fits = pattern[p] == '?' || pattern[p] == text[t];
      if (pattern[p] == '[') {
        const bool found = in_set(pattern.substr(p), text[t], length);
        if (length == 0) length = 1;  // not a set but the character [
        else fits = found;
      }
    }
    if (fits) {
      p += length, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool names_layer(const std::vector<std::string>& patterns, std::string_view layer) {
  if (layer.ends_with(".weight")) layer.remove_suffix(7);
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view pattern) {
    if (pattern.ends_with(".weight")) pattern.remove_suffix(7);
    for (size_t at = 0;; ++at) {
      if (glob_match(pattern, layer.substr(at))) return true;
      at = layer.find('.', at);
      if (at == std::string_view::npos) return false;
    }
  });
}

// The default names layers of several architectures: who gives other patterns means his own model's.
std::vector<std::string> warnings_of(const Fp8Config& fp8,
                                     const std::vector<std::pair<std::string, Shape>>& parameters) {
  std::vector<std::string> lines;
  if (!fp8.enabled) return lines;
  const std::vector<std::string> usual = Fp8Config().exclude;
  for (const std::string& pattern : *fp8.exclude)
    if (std::ranges::count(usual, pattern) == 0 &&
        std::ranges::none_of(parameters, [&](const auto& p) { return names_layer({pattern}, p.first); }))
      lines.push_back(concat("fp8.exclude: \"", pattern, "\" names no layer of the model (octet plan lists them)"));
  return lines;
}

}  // namespace octet
