#pragma once
// The parts of octet inspect. Each describes what it found as JSON, and prints that for people.
#include <string>

#include "base/check.h"
#include "base/json.h"

namespace octet {

struct InspectOptions {
  std::string tokenizer;  // to decode documents; "": the one next to the token file that made it
  int64_t documents = 3;  // decoded
  bool quick = false;     // skip what reads whole files: checksums, every token
  bool tensors = false;   // list them for folders too
};

json inspect_model_folder(const std::string& path, const InspectOptions&);  // a checkpoint, a run's or transformers'
json inspect_safetensors(const std::string& path);                          // a file, or an index of shards
json inspect_tokens(const std::string& path, const InspectOptions&);
json inspect_tokenizer(const std::string& path);
json inspect_difference(const std::string& a, const std::string& b);

void print_model(const json& report, bool tensors);
void print_tokens(const json& report);
void print_tokenizer(const json& report);
void print_difference(const json& report);

void print_field(const char* name, const std::string& value);  // "name             value"
std::string commas(const json& count);

}  // namespace octet
