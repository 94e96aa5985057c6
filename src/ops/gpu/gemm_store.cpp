// Chosen plans as JSON lines, in the plan cache and in checkpoints. A line is valid for one card, one version of
// cuBLASLt and one setting of `deterministic`; other lines stay in the file, unused.
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/files.h"
#include "ops/gpu/gemm_plans.h"
#include "ops/tune.h"

namespace octet::BACKEND {
namespace {

std::string hex_of(const cublasLtMatmulAlgo_t& algo) {
  std::string s;
  for (const uint64_t word : algo.data) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(word));
    s += digits;
  }
  return s;
}

bool read_hex(const std::string& s, cublasLtMatmulAlgo_t& algo) {
  constexpr size_t kDigits = 16;
  if (s.size() != kDigits * std::size(algo.data) || s.find_first_not_of("0123456789abcdef") != s.npos) return false;
  for (size_t i = 0; i < std::size(algo.data); ++i)
    algo.data[i] = std::stoull(s.substr(i * kDigits, kDigits), nullptr, 16);
  return true;
}

struct Line {
  std::string card, product;
  size_t version = 0;
  bool deterministic = false;
  Choice choice;
};

std::optional<Line> parse(const std::string& text) {
  try {
    const nlohmann::json j = nlohmann::json::parse(text);
    Line l{j.at("card"), j.at("product"), j.at("cublaslt"), j.at("deterministic"), {}};
    l.choice.tflops = j.at("tflops");
    if (!read_hex(j.at("algo"), l.choice.algo)) return {};
    return l;
  } catch (const nlohmann::json::exception&) {
    return {};  // the caller, which knows the file, reports it
  }
}

bool is_for(const Line& l, const Device& d) {
  return l.card == d.name() && l.version == cublasLtGetVersion() && l.deterministic == d.target().deterministic;
}

template <class F>
void for_each_line(const std::string& text, F&& f) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) f(line);
}

}  // namespace

ProductPlans::ProductPlans(Device& d) : device_(d) {
  const std::filesystem::path path = d.options().plan_cache;
  if (!path.empty() && std::filesystem::exists(path)) add_text(read_file(path), path.string());
}

std::string ProductPlans::line(const std::string& key, const Choice& c) const {
  return nlohmann::json{{"card", device_.name()},
                        {"cublaslt", cublasLtGetVersion()},
                        {"deterministic", device_.target().deterministic},
                        {"product", key},
                        {"algo", hex_of(c.algo)},
                        {"tflops", c.tflops}}
             .dump() +
         "\n";
}

std::string ProductPlans::text() const {
  std::string all;
  for (const auto& [key, choice] : chosen_) all += line(key, choice);
  return all;
}

int ProductPlans::add_text(const std::string& lines, const std::string& source) {
  int unreadable = 0, foreign = 0;
  for_each_line(lines, [&](const std::string& text) {
    const std::optional<Line> l = parse(text);
    if (!l) ++unreadable;
    else if (!is_for(*l, device_)) ++foreign;
    else chosen_[l->product] = l->choice;
  });
  plans_.clear();  // they are made again, with the new choices
  if (unreadable)
    spdlog::warn("{}: {} lines are no product plans; these products will be chosen anew", source, unreadable);
  return unreadable + foreign;
}

void ProductPlans::save() const {
  const std::filesystem::path path = device_.options().plan_cache;
  if (path.empty()) return;
  std::string all;
  if (std::filesystem::exists(path)) {
    for_each_line(read_file(path), [&](const std::string& text) {
      const std::optional<Line> l = parse(text);
      if (l && !(is_for(*l, device_) && chosen_.contains(l->product))) all += text + "\n";
    });
  }
  for (const auto& [key, choice] : chosen_)
    if (choice.tflops > 0) all += line(key, choice);
  // Ranks may save at the same time: each writes a file of its own, and the last rename wins.
  if (path.has_parent_path()) make_folders(path.parent_path());
  const std::filesystem::path mine = path.string() + concat(".", std::random_device()());
  write_file(mine, all);
  rename_durably(mine, path);
}

std::string export_plans(Device& d) { return ProductPlans::of(d).text(); }

void import_plans(Device& d, const std::string& plans) {
  if (const int left_out = ProductPlans::of(d).add_text(plans, "checkpoint"))
    spdlog::warn(
        "{} stored product plans are for another card, cuBLASLt or setting of deterministic: the run "
        "goes on, but not with the same bits",
        left_out);
}

}  // namespace octet::BACKEND
