#pragma once
// Training samples from token files. Sample g of the endless sequence over all epochs is a pure function of (files,
// config, g): nothing is stored, so a resumed run, another rank or another batch size reads the same sequence.
// Step s of a run with a global batch of G samples takes samples [sG, (s+1)G); its m-th R M of them
// are computed at once: rank r of R takes the r-th M of those.
//
// Window i of a file is its tokens [iT, iT + T], of which the first T are inputs and the last T targets. So each token
// but a file's first is a target in exactly one window; the last window is padded (targets kIgnore).
//   no weights   an epoch is all windows of all files, in order or permuted by (seed, epoch)
//   weights      each entry of `files` takes its share of the samples, evenly spread (mixture.h), and runs through
//                epochs of its own. An "epoch" of the mixture is as many samples as there are windows.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/document_bounds.h"

namespace octet {

class Mixture;
inline constexpr int32_t kIgnore = -100;  // a target without loss

struct Batch {
  std::vector<int32_t> tokens, targets;  // [batch, seq_len]
  std::vector<int32_t> begins, ends;  // [batch, seq_len], where asked for: of each token's document (document_bounds.h)
  int64_t batch = 0, seq_len = 0;
  DocumentBounds bounds() { return {begins, ends}; }
};
enum class Bounds : bool { none, of_documents };  // whether begins and ends are there
// Token 0 everywhere, no loss, each sequence one document.
Batch blank_batch(int64_t batch, int64_t seq_len, Bounds);

enum class Split { all, train, held_out };  // of each file's windows the last `held_out` part is held out

struct LoaderConfig {
  std::vector<std::string> files;  // names or globs
  std::vector<double> weights;     // one per entry of `files`, or none
  int64_t seq_len = 0;
  int64_t vocab_size = 0;  // the model's
  uint64_t seed = 0;
  bool shuffle = true;
  bool ignore_document_starts = false;  // no loss on a document's first token, which nothing before it can predict
  Bounds documents = Bounds::none;
  Split split = Split::all;
  double held_out = 0;  // fraction; at least one window of each file
};

class Loader {
 public:
  explicit Loader(LoaderConfig config);
  Loader(Loader&&) noexcept;
  ~Loader();

  int64_t samples_per_epoch() const;
  Batch batch(int64_t first_sample, int64_t count) const;
  int64_t valid_targets(int64_t first_sample, int64_t count) const;  // from counts alone: reads no token
  uint64_t fingerprint() const;                                      // of all that decides what sample g is
  uint64_t tokenizer_fingerprint() const;                            // the same in every file

 private:
  struct Source;
  struct Window;
  Window locate(int64_t sample) const;
  LoaderConfig config_;
  std::vector<Source> sources_;       // one without weights, else one per entry
  std::unique_ptr<Mixture> mixture_;  // with weights
  int64_t windows_ = 0;
};

}  // namespace octet
