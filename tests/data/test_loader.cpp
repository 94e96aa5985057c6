// Every token is a target exactly once an epoch, in an order that is a function of (seed, sample) alone.
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "data/file_names.h"
#include "data/loader.h"
#include "scratch.h"

namespace octet {
namespace {

LoaderConfig config_for(std::vector<std::string> files, int64_t T) {
  LoaderConfig config;
  config.files = std::move(files);
  config.seq_len = T;
  config.vocab_size = 100000;
  config.seed = 3;
  return config;
}

// How often each token is a target in the samples; each target must follow its input in the file.
std::map<int32_t, int> targets_of(const Batch& b) {
  std::map<int32_t, int> count;
  for (size_t i = 0; i < b.targets.size(); ++i) {
    if (b.targets[i] == kIgnore) continue;
    EXPECT_EQ(b.targets[i], b.tokens[i] + 1);
    ++count[b.targets[i]];
  }
  return count;
}

TEST(Loader, EveryTokenIsATargetOnceAnEpoch) {
  const Scratch dir;
  for (const int64_t T : {1, 2, 5, 16, 50})
    for (const int64_t n : {51, 52, 64, 65, 66, 1000})
      for (const bool shuffle : {false, true}) {
        LoaderConfig config = config_for({token_file(dir / "a", n), token_file(dir / "b", 70, 100000, 5000)}, T);
        config.shuffle = shuffle;
        const Loader loader(config);
        const int64_t N = loader.samples_per_epoch();
        ASSERT_EQ(N, (n - 2) / T + 1 + 68 / T + 1);
        for (int64_t epoch = 0; epoch < 3; ++epoch) {
          const auto count = targets_of(loader.batch(epoch * N, N));
          ASSERT_EQ(int64_t(count.size()), n - 1 + 69);
          for (const auto& [token, times] : count) ASSERT_EQ(times, 1) << token;
          ASSERT_EQ(count.begin()->first, 1);
          ASSERT_EQ(loader.valid_targets(epoch * N, N), n - 1 + 69);
        }
      }
}

TEST(Loader, ASampleDependsOnItsIndexAlone) {
  const Scratch dir;
  const LoaderConfig config = config_for({token_file(dir / "a", 1000)}, 8);
  const Loader loader(config), resumed(config);
  const int64_t N = loader.samples_per_epoch();
  const Batch all = loader.batch(0, 2 * N + 40);
  for (const int64_t size :
       {1, 3, 16, 64})  // batch sizes, and starts anywhere: a resume, a rank's share, a micro-batch
    for (int64_t first = 0; first + size <= 2 * N + 40; first += size) {
      const Batch b = resumed.batch(first, size);
      ASSERT_TRUE(std::equal(b.tokens.begin(), b.tokens.end(), all.tokens.begin() + first * 8));
      ASSERT_TRUE(std::equal(b.targets.begin(), b.targets.end(), all.targets.begin() + first * 8));
    }
}

TEST(Loader, EpochsAndSeedsDifferInOrder) {
  const Scratch dir;
  LoaderConfig config = config_for({token_file(dir / "a", 1000)}, 8);
  const Loader loader(config);
  const int64_t N = loader.samples_per_epoch();
  std::set<std::vector<int32_t>> epochs;
  for (int64_t epoch = 0; epoch < 8; ++epoch)
    EXPECT_TRUE(epochs.insert(loader.batch(epoch * N, N).tokens).second) << epoch;
  config.seed = 4;
  const Loader other(config);
  EXPECT_NE(loader.batch(0, N).tokens, other.batch(0, N).tokens);
  EXPECT_NE(loader.fingerprint(), other.fingerprint());
  EXPECT_EQ(other.fingerprint(), Loader(config).fingerprint());
  config.files = {token_file(dir / "b", 1000, 100000, 1)};
  EXPECT_NE(other.fingerprint(), Loader(config).fingerprint());
}

TEST(Loader, TrainAndHeldOutPartsShareNoTargetAndMissNone) {
  const Scratch dir;
  LoaderConfig config = config_for({token_file(dir / "a", 1003), token_file(dir / "b", 30, 100000, 5000)}, 8);
  config.held_out = 0.1;
  config.split = Split::train;
  const Loader train(config);
  config.split = Split::held_out;
  config.shuffle = false;
  const Loader held(config);
  EXPECT_EQ(held.samples_per_epoch(), 13 + 1);
  auto count = targets_of(train.batch(0, train.samples_per_epoch()));
  const int64_t trained = int64_t(count.size());
  const auto held_count = targets_of(held.batch(0, held.samples_per_epoch()));
  for (const auto& [token, times] : held_count) count[token] += times;
  EXPECT_EQ(trained + int64_t(held_count.size()), 1002 + 29);
  for (const auto& [token, times] : count) ASSERT_EQ(times, 1) << token;
  EXPECT_TRUE(held_count.contains(1002) && held_count.contains(5029));  // of four windows a tenth is one
}

TEST(Loader, TargetsThatStartADocumentCanBeIgnored) {
  const Scratch dir;
  LoaderConfig config = config_for({token_file(dir / "a", 1000)}, 16);  // documents of 7 tokens
  config.ignore_document_starts = true;
  const Loader loader(config);
  const int64_t N = loader.samples_per_epoch();
  const auto count = targets_of(loader.batch(0, N));
  for (int32_t token = 1; token < 1000; ++token) ASSERT_EQ(count.contains(token), token % 7 != 0) << token;
  for (int64_t i = 0; i < N; ++i) {
    const Batch b = loader.batch(i, 1);
    ASSERT_EQ(loader.valid_targets(i, 1), 16 - std::count(b.targets.begin(), b.targets.end(), kIgnore));
  }
}

TEST(Loader, ItsFingerprintIsOfAllThatDecidesItsSamples) {
  const Scratch dir;
  const LoaderConfig config = config_for({token_file(dir / "a", 1000), token_file(dir / "b", 300)}, 8);
  const std::vector<std::function<void(LoaderConfig&)>> changes{
      [](LoaderConfig&) {},
      [](LoaderConfig& c) { c.seed = 0; },
      [](LoaderConfig& c) { c.seed = 0, c.shuffle = false; },
      [](LoaderConfig& c) { c.seed = 4; },
      [](LoaderConfig& c) { c.seq_len = 9; },
      [](LoaderConfig& c) {
        c.weights = {1, 1};
      },
      [](LoaderConfig& c) {
        c.weights = {1, 2};
      },
      [](LoaderConfig& c) { c.ignore_document_starts = true; },
      [](LoaderConfig& c) { c.documents = Bounds::of_documents; },
      [](LoaderConfig& c) { c.split = Split::train, c.held_out = 0.1; },
      [](LoaderConfig& c) { c.split = Split::held_out, c.held_out = 0.1; },
      [](LoaderConfig& c) { c.split = Split::train, c.held_out = 0.2; },
      [](LoaderConfig& c) { std::swap(c.files[0], c.files[1]); },
      [](LoaderConfig& c) { c.files.pop_back(); }};
  std::set<uint64_t> seen;
  for (size_t i = 0; i < changes.size(); ++i) {
    LoaderConfig other = config;
    changes[i](other);
    EXPECT_TRUE(seen.insert(Loader(other).fingerprint()).second) << "change " << i;
  }
  LoaderConfig in_order = config;  // whatever the seed
  in_order.shuffle = false;
  EXPECT_TRUE(seen.contains(Loader(in_order).fingerprint()));
}

// Files that differ in one thing of the header alone, or in one token, at any of the places that are looked at.
TEST(Loader, ItsFingerprintIsOfHeadersAndOfTokensFromTheFirstToTheLast) {
  const Scratch dir;
  struct File {
    int64_t tokens = 16 + 15 * 100, changed = -1;  // that token is another
    int64_t source_bytes = 5000, second_document = 700;
    uint64_t vocabulary = 120, tokenizer = 7;
  };
  const auto fingerprint = [&](const File& f) {
    TokenFileWriter writer(dir / "a", {.vocab_size = f.vocabulary, .tokenizer_fingerprint = f.tokenizer});
    std::vector<int32_t> ids(size_t(f.tokens), 1);
    if (f.changed >= 0) ids[size_t(f.changed)] = 2;
    writer.begin_document();
    writer.append(std::span(ids).first(size_t(f.second_document)));
    if (f.second_document < f.tokens) writer.begin_document();
    writer.append(std::span(ids).subspan(size_t(f.second_document)));
    writer.add_source_bytes(f.source_bytes);
    writer.finish();
    return Loader(config_for({dir / "a"}, 8)).fingerprint();
  };
  std::set<uint64_t> seen{fingerprint({})};
  EXPECT_TRUE(seen.contains(fingerprint({})));
  std::vector<File> others{
      {.tokens = 1517}, {.source_bytes = 5001}, {.second_document = 1516}, {.vocabulary = 121}, {.tokenizer = 8}};
  for (int64_t place = 0; place <= 1500; place += 100) others.push_back({.changed = place});
  others.push_back({.changed = 1515});
  for (size_t i = 0; i < others.size(); ++i) EXPECT_TRUE(seen.insert(fingerprint(others[i])).second) << "change " << i;
}

TEST(Loader, ItsFingerprintIsOfWhichEntryOfAMixtureAFileBelongsTo) {
  const Scratch dir;
  for (const char* name : {"f1", "f2", "f3"}) token_file(dir / name, 100);
  const auto fingerprint = [&](const char* first, const char* second) {
    LoaderConfig config = config_for({dir / first, dir / second}, 8);
    config.weights = {1, 1};
    return Loader(config).fingerprint();
  };
  EXPECT_NE(fingerprint("f[12]", "f3"), fingerprint("f1", "f[23]"));
}

TEST(Loader, AMixtureKeepsItsWeightsAndEachPartsEpochs) {
  const Scratch dir;
  LoaderConfig config = config_for({token_file(dir / "a", 401), token_file(dir / "b", 8001, 100000, 50000)}, 8);
  config.weights = {3, 1};
  const Loader loader(config);
  std::map<int32_t, int> first_a, first_b;  // windows, by their first target, until both files have ended
  const Batch b = loader.batch(0, 8000);
  for (size_t i = 0; i < 8000; ++i) ++(b.targets[8 * i] < 50000 ? first_a : first_b)[b.targets[8 * i]];
  int64_t from_a = 0;
  for (const auto& [token, times] : first_a) {
    from_a += times;
    EXPECT_EQ(times, 6000 / 50);  // its 50 windows, epoch after epoch
  }
  EXPECT_EQ(first_a.size(), 50u);
  EXPECT_EQ(from_a, 6000);
  EXPECT_EQ(first_b.size(), 1000u);
  for (const auto& [token, times] : first_b) ASSERT_EQ(times, 2);
}

TEST(Loader, BadInputIsNamedWithARemedy) {
  const Scratch dir;
  const std::string a = token_file(dir / "a", 100), b = token_file(dir / "b", 100, 70000);
  const auto complaint = [](LoaderConfig config) { return error_of<InputError>([&] { Loader loader(config); }); };
  EXPECT_TRUE(has(complaint(config_for({a}, 100)), "lower seq_len"));
  EXPECT_TRUE(has(complaint(config_for({}, 8)), "no token files"));
  EXPECT_TRUE(has(complaint(config_for({a, (dir / "[a]").string()}, 8)), "named twice"));
  EXPECT_TRUE(has(complaint(config_for({(dir / "c*").string()}, 8)), "no file matches"));
  EXPECT_TRUE(has(complaint(config_for({(dir / "").string()}, 8)), "folder"));
  EXPECT_TRUE(has(complaint(config_for({a}, 0)), "at least 1"));
  LoaderConfig config = config_for({a}, 8);
  config.vocab_size = 99999;
  EXPECT_TRUE(has(complaint(config), "vocabulary of 100000"));
  config = config_for({a, b}, 8);
  config.weights = {1};
  EXPECT_TRUE(has(complaint(config), "weights"));
  config = config_for({a}, 64);
  config.split = Split::train;
  config.held_out = 0.6;
  EXPECT_EQ(Loader(config).samples_per_epoch(), 1);
  config.seq_len = 99;
  EXPECT_TRUE(has(complaint(config), "too few"));

  const auto made_by = [&](uint64_t tokenizer) {
    TokenFileHeader like;
    like.vocab_size = 100;
    like.tokenizer_fingerprint = tokenizer;
    const std::filesystem::path path = dir / ("by" + std::to_string(tokenizer));
    TokenFileWriter writer(path, like);
    writer.begin_document();
    writer.append(std::vector<int32_t>(50, 1));
    writer.finish();
    return path.string();
  };
  const std::string one = made_by(1), two = made_by(2);
  EXPECT_TRUE(has(complaint(config_for({one, two}, 8)), "another tokenizer"));
  for (const std::vector<std::string>& files : {std::vector<std::string>{a, one}, {one, a}}) {
    const std::string message = complaint(config_for(files, 8));  // a does not say
    EXPECT_TRUE(has(message, "'" + a + "' does not say which tokenizer made it, '" + one + "' does")) << message;
    EXPECT_TRUE(has(message, "octet convert with --tokenizer")) << message;
  }
}

TEST(Loader, GlobsAreSorted) {
  const Scratch dir;
  for (const char* name : {"b2", "b1", "a"}) token_file(dir / name, 100);
  const std::vector<std::string> want = {(dir / "b1").string(), (dir / "b2").string(), (dir / "a").string()};
  EXPECT_EQ(expand_globs({(dir / "b*").string(), (dir / "a").string()}), want);
}

}  // namespace
}  // namespace octet
