#include "train/agreement.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "base/rng.h"

namespace octet::BACKEND {
namespace {
constexpr size_t kChunk = size_t{1} << 26;  // bytes on the host at once

uint64_t added_to(uint64_t h, uint64_t word) { return mix(h ^ word) + 0x9e3779b97f4a7c15; }

uint64_t hash_bytes(uint64_t h, const std::vector<char>& bytes) {
  uint64_t word = 0;
  for (size_t i = 0; i < bytes.size(); i += sizeof word) {
    word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof word, bytes.size() - i));
    h = added_to(h, word);
  }
  return h;
}

uint64_t hash_of(Stream& s, Tensor t) {
  uint64_t h = 0;
  std::vector<char> bytes;
  for (size_t at = 0; at < t.bytes(); at += kChunk) {
    bytes.resize(std::min(kChunk, t.bytes() - at));
    copy_to_host(s, bytes.data(), static_cast<char*>(t.data) + at, bytes.size());
    s.synchronize();
    h = hash_bytes(h, bytes);
  }
  return h;
}

// Of each slot: its counts, scale and history.
std::vector<uint64_t> hashes_of(const DelayedScaling::Snapshot& x) {
  const size_t S = x.names.size();
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i < S; ++i) hashes.push_back(added_to(uint64_t(x.cold[i]), x.nonfinite[i]));
  for (const std::vector<float>* values : {&x.scale, &x.rows})  // (S), (history,S)
    for (size_t i = 0; i < values->size(); ++i)
      hashes[i % S] = added_to(hashes[i % S], std::bit_cast<uint32_t>((*values)[i]));
  return hashes;
}

// "ranks 0 and 2 against rank 1", of each rank's hash
std::string parties(const std::map<int, uint64_t>& hashes) {
  std::vector<std::pair<uint64_t, std::vector<int>>> agreed;  // by their first rank
  for (const auto& [rank, hash] : hashes) {
    auto found = std::find_if(agreed.begin(), agreed.end(), [&, h = hash](const auto& a) { return a.first == h; });
    if (found == agreed.end()) found = agreed.insert(found, {hash, {}});
    found->second.push_back(rank);
  }
  if (agreed.size() == 1) return "";
  std::string text;
  for (const auto& [hash, ranks] : agreed) {
    text += concat(text.empty() ? "" : " against ", ranks.size() == 1 ? "rank " : "ranks ");
    for (size_t i = 0; i < ranks.size(); ++i)
      text += concat(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  }
  return text;
}

struct Common {
  std::string name;
  int stride;  // ranks r, r + stride, ... must agree
};
}  // namespace

void check_agreement(Session& s) {
  std::vector<Common> things;
  std::vector<uint64_t> mine;
  const auto add = [&](const std::string& name, Tensor t, int stride) {
    things.push_back({name, stride});
    mine.push_back(hash_of(s.stream, t));
    ++s.pulse;
  };
  s.params.for_each_common(s.stream, add);
  if (const DelayedScaling& w = s.params.weight_scales(); w.size())
    add("FP8 histories of weights", w.state().history, 1);
  if (s.scaling.size() && s.amax_group() == s.world.get()) {
    add("FP8 scales of activations", s.scaling.state().scale, 1);
    add("FP8 histories of activations", s.scaling.state().history, 1);
  }

  const size_t R = size_t(s.host.size());
  std::vector<uint64_t> all(R * mine.size());
  s.host.all_gather(all.data(), mine.data(), mine.size() * sizeof(uint64_t));
  for (size_t i = 0; i < things.size(); ++i) {
    const size_t apart = size_t(things[i].stride);
    for (size_t first = 0; first < apart; ++first) {
      std::map<int, uint64_t> hashes;
      for (size_t r = first; r < R; r += apart) hashes[int(r)] = all[r * mine.size() + i];
      if (const std::string who = parties(hashes); !who.empty())
        throw SystemError(concat(things[i].name, " is not the same on all ranks: ", who, " (parallel.check_every)"));
    }
  }
}

void check_scales(Host& host, const std::string& kind, const DelayedScaling::Snapshot& mine) {
  const size_t R = size_t(host.size()), S = mine.names.size();
  if (R == 1 || S == 0) return;
  const std::vector<uint64_t> slots = hashes_of(mine);
  uint64_t together = 0;
  for (const uint64_t h : slots) together = added_to(together, h);
  std::vector<uint64_t> all(R);
  host.all_gather(all.data(), &together, sizeof together);
  if (std::count(all.begin(), all.end(), all[0]) == host.size()) return;
  all.resize(R * S);  // those of each slot, now that they are asked for
  host.all_gather(all.data(), slots.data(), S * sizeof(uint64_t));
  for (size_t i = 0; i < S; ++i) {
    std::map<int, uint64_t> hashes;
    for (size_t r = 0; r < R; ++r) hashes[int(r)] = all[r * S + i];
    if (const std::string who = parties(hashes); !who.empty())
      throw SystemError(
          concat("FP8 scales of ", kind, ": that of ", mine.names[i], " is not the same on all ranks: ", who,
                 ": a checkpoint holds one for all, so none is written; start the run again from the one before"));
  }
}

}  // namespace octet::BACKEND
