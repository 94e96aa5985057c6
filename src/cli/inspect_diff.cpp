// octet inspect --diff: how two models differ, in their configs and in every tensor.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "base/files.h"
#include "base/progress.h"
#include "cli/flatten.h"
#include "cli/inspect.h"
#include "cli/model_folder.h"
#include "data/checkpoints.h"

namespace octet {
namespace {
namespace fs = std::filesystem;
constexpr int64_t kChunk = int64_t{1} << 20;  // elements in memory at once

struct Side {
  fs::path path;  // a folder or a file of weights
  json state;     // of a checkpoint
  json config;    // config.json; null for a file
};
Side side_of(const std::string& path) {
  std::error_code none;
  if (!fs::is_directory(path, none)) {
    const MappedFile readable(path);  // or says why it is not
    return {.path = path};
  }
  Side side{.path = find_model_folder(path)};
  if (fs::exists(side.path / "state.json", none)) side.state = read_checkpoint_state(side.path);
  if (fs::exists(side.path / "config.json", none)) side.config = read_json((side.path / "config.json").string());
  return side;
}

// Of two checkpoints the resolved options and counters, else what their config.json say.
json config_differences(const Side& a, const Side& b) {
  json list = json::array();
  const bool states = a.state.is_object() && b.state.is_object();
  const json &left = states ? a.state : a.config, &right = states ? b.state : b.config;
  if (left.is_null() || right.is_null()) return list;
  std::map<std::string, std::string> in_a = flatten(left), in_b = flatten(right);
  for (const auto& [key, value] : in_b) in_a.try_emplace(key, "");
  for (const auto& [key, value] : in_a) {
    const std::string& other = in_b[key];
    if (value != other) list.push_back({{"key", key}, {"a", value}, {"b", other}});
  }
  return list;
}

struct Sums {
  double a = 0, b = 0, difference = 0;  // of squares
  double largest = 0;
  int64_t place = 0;
  bool bits = true;  // equal as numbers, NaN too
};

Sums compare(const SafetensorsModel& a, const SafetensorsModel& b, const std::string& name) {
  const auto pa = a.at(name), pb = b.at(name);
  Sums s;
  std::vector<double> va, vb;
  for (int64_t i = 0; i < pa.entry->numel(); i += kChunk) {
    const size_t count = size_t(std::min(kChunk, pa.entry->numel() - i));
    va.resize(count), vb.resize(count);
    a.read(pa, i, int64_t(count), va.data());
    b.read(pb, i, int64_t(count), vb.data());
    for (size_t j = 0; j < count; ++j) {
      const double d = vb[j] - va[j];
      const bool same = va[j] == vb[j] || (std::isnan(va[j]) && std::isnan(vb[j]));
      s.a += va[j] * va[j];
      s.b += vb[j] * vb[j];
      if (same) continue;
      s.bits = false;
      s.difference += d * d;
      if (!(std::abs(d) <= s.largest)) s.largest = std::abs(d), s.place = i + int64_t(j);
    }
  }
  return s;
}

std::vector<int64_t> index_of(int64_t place, const std::vector<int64_t>& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = place % shape[d];
    place /= shape[d];
  }
  return index;
}

json describe(const std::string& name, const Sums& s, const std::vector<int64_t>& shape) {
  const double a = std::sqrt(s.a), difference = std::sqrt(s.difference);
  return {{"name", name},
          {"norm_a", a},
          {"norm_b", std::sqrt(s.b)},
          {"norm_difference", difference},
          {"relative", a > 0            ? difference / a
                       : difference > 0 ? INFINITY
                                        : 0},
          {"largest_change", s.largest},
          {"at", s.bits ? json() : json(index_of(s.place, shape))},
          {"equal", s.bits}};
}

std::string number(const json& x, const char* form) {
  const double value = x;
  if (std::isnan(value)) return "nan";  // printf also knows -nan
  char text[40];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

void print_list(const char* what, const json& names) {
  for (const json& name : names) print_field(std::exchange(what, ""), name);
}

}  // namespace

json inspect_difference(const std::string& path_a, const std::string& path_b) {
  const Side side_a = side_of(path_a), side_b = side_of(path_b);
  const SafetensorsModel a(side_a.path), b(side_b.path);
  json report{{"kind", "difference"}, {"a", side_a.path.string()}, {"b", side_b.path.string()}};
  report["config"] = config_differences(side_a, side_b);
  json tensors = json::array(), only_a = json::array(), only_b = json::array(), reshaped = json::array();
  int64_t total = 0, done = 0;
  a.for_each([&](const SafetensorsModel::Place& p) { total += int64_t(p.entry->bytes); });
  Progress progress({.what = "comparing", .total = total, .unit = "B"});
  Sums all;
  a.for_each([&](const SafetensorsModel::Place& p) {
    const std::string& name = p.entry->name;
    const SafetensorsModel::Place other = b.find(name);
    progress.update(done += int64_t(p.entry->bytes));
    if (!other) {
      only_a.push_back(name);
    } else if (other.entry->shape != p.entry->shape) {
      reshaped.push_back(concat(name, ": ", to_string(p.entry->shape), ", ", to_string(other.entry->shape)));
    } else {
      const Sums s = compare(a, b, name);
      all.a += s.a, all.b += s.b, all.difference += s.difference, all.bits &= s.bits;
      tensors.push_back(describe(name, s, p.entry->shape));
    }
  });
  b.for_each([&](const SafetensorsModel::Place& p) {
    if (!a.find(p.entry->name)) only_b.push_back(p.entry->name);
  });
  report["tensors"] = tensors;
  report["only_in_a"] = only_a;
  report["only_in_b"] = only_b;
  report["other_shape"] = reshaped;
  report["norm_a"] = std::sqrt(all.a);
  report["norm_b"] = std::sqrt(all.b);
  report["norm_difference"] = std::sqrt(all.difference);
  report["equal"] = all.bits && only_a.empty() && only_b.empty() && reshaped.empty() && report["config"].empty();
  return report;
}

void print_difference(const json& r) {
  print_field("A", r["a"]);
  print_field("B", r["b"]);
  for (const json& c : r["config"])
    std::printf("%-40s %s -> %s\n", c["key"].get<std::string>().c_str(), show(c["a"]).c_str(), show(c["b"]).c_str());
  print_list("only in A", r["only_in_a"]);
  print_list("only in B", r["only_in_b"]);
  print_list("other shape", r["other_shape"]);
  size_t width = 4, equal = 0;
  for (const json& t : r["tensors"]) {
    if (t["equal"] == true) ++equal;
    else width = std::max(width, t["name"].get_ref<const std::string&>().size());
  }
  if (equal < r["tensors"].size())
    std::printf("\n%-*s %10s %10s %10s %9s %9s at\n", int(width), "", "|A|", "|B|", "|B-A|", "relative", "largest");
  for (const json& t : r["tensors"])
    if (t["equal"] == false)
      std::printf("%-*s %10s %10s %10s %9s %9s %s\n", int(width), t["name"].get<std::string>().c_str(),
                  number(t["norm_a"], "%.4g").c_str(), number(t["norm_b"], "%.4g").c_str(),
                  number(t["norm_difference"], "%.4g").c_str(), number(t["relative"], "%.2e").c_str(),
                  number(t["largest_change"], "%.2e").c_str(), to_string(t["at"].get<std::vector<int64_t>>()).c_str());
  std::printf("\n%zu of %zu tensors are equal; together |A| %s, |B| %s, |B-A| %s\n", equal, r["tensors"].size(),
              number(r["norm_a"], "%.6g").c_str(), number(r["norm_b"], "%.6g").c_str(),
              number(r["norm_difference"], "%.6g").c_str());
  if (r["equal"] == true) std::printf("A and B are equal.\n");
}

}  // namespace octet
