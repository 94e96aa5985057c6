// Where documents lie in the windows of a loader is what the token files' contents say, token by token.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "data/document_bounds.h"
#include "data/loader.h"
#include "scratch.h"

namespace octet {
namespace {

// Tokens first, first + 1, ..., in documents of given lengths.
struct Written {
  std::string path;
  int32_t first = 0;
  std::vector<int32_t> starts;  // tokens that begin a document
};
Written write(const std::filesystem::path& path, int32_t first, const std::vector<int64_t>& lengths) {
  Written w{.path = path, .first = first};
  TokenFileHeader like;
  like.vocab_size = 100000;
  TokenFileWriter writer(path, like);
  for (const int64_t n : lengths) {
    writer.begin_document();
    w.starts.push_back(first);
    for (int64_t i = 0; i < n; ++i, ++first) writer.append({&first, 1});
  }
  writer.finish();
  return w;
}
std::vector<int64_t> lengths(uint64_t seed, int64_t count) {  // many of one token, some of several windows
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i)
    all.push_back(1 + std::llround(std::exp(2 * normal(seed, 1, uint64_t(i))) * double(i % 3)));
  return all;
}

LoaderConfig config_for(const std::vector<Written>& files, int64_t T) {
  LoaderConfig config{.seq_len = T, .vocab_size = 100000, .seed = 3, .documents = Bounds::of_documents};
  for (const Written& w : files) config.files.push_back(w.path);
  return config;
}

// The first token of the document of a token.
int32_t start_of(const std::vector<Written>& files, int32_t token) {
  const Written& file = *std::find_if(files.rbegin(), files.rend(), [&](const Written& w) { return w.first <= token; });
  return *std::prev(std::upper_bound(file.starts.begin(), file.starts.end(), token));
}

void expect_bounds(const std::vector<Written>& files, Batch b) {
  const int64_t T = b.seq_len;
  ASSERT_EQ(b.begins.size(), b.tokens.size());
  ASSERT_EQ(b.ends.size(), b.tokens.size());
  for (int64_t row = 0; row < b.batch; ++row) {
    // Padding follows the last token that has a target; without document_loss_mask all others have one.
    const auto at = [&](const std::vector<int32_t>& v, int64_t t) { return v[size_t(row * T + t)]; };
    const auto document = [&](int64_t t) {
      return at(b.targets, t) == kIgnore ? -1 : start_of(files, at(b.tokens, t));
    };
    for (int64_t t = 0; t < T; ++t) {
      int64_t begin = t, end = t + 1;
      while (begin > 0 && document(begin - 1) == document(t)) --begin;
      while (end < T && document(end) == document(t)) ++end;
      ASSERT_EQ(at(b.begins, t), begin) << "row " << row << ", position " << t;
      ASSERT_EQ(at(b.ends, t), end) << "row " << row << ", position " << t;
    }
  }
}

TEST(DocumentBounds, OfEveryWindowAreThoseOfItsTokens) {
  const Scratch dir;
  const std::vector<Written> files{write(dir / "a", 0, lengths(1, 300)), write(dir / "b", 50000, lengths(2, 40)),
                                   write(dir / "c", 90000, {400})};
  for (const int64_t T : {1, 2, 7, 16, 100})
    for (const bool shuffle : {false, true}) {
      SCOPED_TRACE(testing::Message() << "T " << T << (shuffle ? ", shuffled" : ""));
      LoaderConfig config = config_for(files, T);
      config.shuffle = shuffle;
      const Loader loader(config);
      expect_bounds(files, loader.batch(0, 2 * loader.samples_per_epoch()));
      config.weights = {1, 3, 2};
      expect_bounds(files, Loader(config).batch(5, 60));
      config.held_out = 0.2;
      config.split = Split::held_out;
      expect_bounds(files, Loader(config).batch(0, 40));
    }
}

TEST(DocumentBounds, AreNotMadeUnlessAskedFor) {
  const Scratch dir;
  LoaderConfig config = config_for({write(dir / "a", 0, lengths(1, 100))}, 8);
  const Batch with = Loader(config).batch(0, 20);
  const uint64_t print = Loader(config).fingerprint();
  config.documents = Bounds::none;
  const Batch without = Loader(config).batch(0, 20);
  EXPECT_TRUE(without.begins.empty() && without.ends.empty());
  EXPECT_EQ(with.tokens, without.tokens);
  EXPECT_EQ(with.targets, without.targets);
  EXPECT_NE(Loader(config).fingerprint(), print);
  config.ignore_document_starts = true;
  EXPECT_NE(Loader(config).fingerprint(), print);
}

TEST(DocumentBounds, ADamagedIndexIsNamed) {
  const Scratch dir;
  const Written good = write(dir / "a", 0, {5, 5, 5, 5, 5});
  std::string bytes = read_file(good.path);
  for (const uint64_t bad : {uint64_t{5}, uint64_t{4}, uint64_t{0}}) {  // of the third document, which starts at 10
    bytes.replace(bytes.size() - 24, 8, reinterpret_cast<const char*>(&bad), 8);
    Written w = good;
    w.path = dir.write("bad", bytes);
    const std::string message = error_of<InputError>([&] { Loader(config_for({w}, 24)).batch(0, 1); });
    EXPECT_TRUE(has(message, "bad'") && has(message, "document 2") && has(message, "octet tokenize")) << message;
  }
}

TEST(DocumentBounds, RandomOnesCoverTheSequenceAndRepeat) {
  constexpr int64_t kT = 100000;
  std::vector<int32_t> begins(kT), ends(kT), again(kT), other(kT);
  set_random_bounds({begins, ends}, 1, 0);
  int64_t documents = 0;
  for (int64_t t = 0; t < kT; t = ends[size_t(t)], ++documents)
    for (int64_t i = t; i < ends[size_t(t)]; ++i)
      ASSERT_TRUE(begins[size_t(i)] == t && ends[size_t(i)] == ends[size_t(t)]) << i;
  EXPECT_NEAR(double(kT) / double(documents), 844, 300);
  set_random_bounds({again, ends}, 1, 0);
  set_random_bounds({other, ends}, 1, 1);
  EXPECT_EQ(begins, again);
  EXPECT_NE(begins, other);
}

}  // namespace
}  // namespace octet
