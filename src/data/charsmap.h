#pragma once
// The normalisation table inside a sentencepiece model, which sentencepiece does not check: a damaged one makes it
// read out of bounds. So it is checked before it is loaded.
#include <string>
#include <string_view>

namespace octet {

// What is wrong with the tables of a serialised model (normalizer_spec and denormalizer_spec, precompiled_charsmap);
// empty where nothing is, or where the bytes are no model at all, which sentencepiece finds by itself.
std::string fault_in_charsmaps(std::string_view model);

// Of one table: u32 bytes of the trie, the trie, then texts that end with a zero each.
std::string fault_in_charsmap(std::string_view table);

}  // namespace octet
