#pragma once
// Where documents lie within the sequences of a batch: what attention needs so that a token attends to its own document
// only (data.intra_document_mask; ops.h, Attention).
#include <cstdint>
#include <span>
#include <vector>

#include "data/token_file.h"

namespace octet {

// Of a sequence, for each position: where its document begins, and ends (exclusive), within the sequence.
struct DocumentBounds {
  std::span<int32_t> begins, ends;
  DocumentBounds row(int64_t i, int64_t T) const {
    return {begins.subspan(size_t(i * T), size_t(T)), ends.subspan(size_t(i * T), size_t(T))};
  }
};
// starts: of all documents but the first, which begins at 0; rising positions within the sequence.
void set_bounds(const DocumentBounds& sequence, std::span<const int64_t> starts);
// tokens [first, first + count) of a file, then padding, which is a document by itself
void set_bounds(const DocumentBounds& sequence, const TokenFile& file, int64_t first, int64_t count);
// Of sequence `sample` of random tokens: documents about as long as pages of the web.
void set_random_bounds(const DocumentBounds& sequence, uint64_t seed, int64_t sample);

}  // namespace octet
