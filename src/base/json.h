#pragma once
// JSON for config files: // and /* */ comments are allowed, duplicate keys are errors, and syntax errors name file,
// line and column.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

using json = nlohmann::ordered_json;  // keys stay in the order in which they were written

json parse_json(std::string_view text, const std::string& where);  // where: the file, for messages
json read_json(const std::string& path);
std::string json_fault(const json::exception& e);  // why a text is none: "byte 13: syntax error …"
std::string show(const json& value);               // in a message: on one line, long values cut

// The candidate nearest to a mistyped word; empty when none is near.
std::string closest(std::string_view word, const std::vector<std::string>& candidates);
std::string did_you_mean(std::string_view word,
                         const std::vector<std::string>& candidates);  // "; did you mean …?" or ""

}  // namespace octet
