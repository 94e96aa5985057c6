// Names with wildcards.
#include <gtest/gtest.h>

#include "config/globs.h"

namespace octet {
namespace {

TEST(Globs, MatchTheWholeText) {
  EXPECT_TRUE(glob_match("abc", "abc"));
  EXPECT_FALSE(glob_match("abc", "abcd"));
  EXPECT_FALSE(glob_match("bc", "abc"));
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(glob_match("a*b*c", "aXcYb"));
  EXPECT_TRUE(glob_match("a?c", "abc"));
  EXPECT_FALSE(glob_match("a?c", "ac"));
  EXPECT_TRUE(glob_match("*aab", "aaaab"));
}

TEST(Globs, SetsHoldCharactersRangesAndTheirOpposite) {
  EXPECT_TRUE(glob_match("layers.[0-3].*", "layers.2.mlp"));
  EXPECT_FALSE(glob_match("layers.[0-3].*", "layers.4.mlp"));
  EXPECT_TRUE(glob_match("[!a]b", "cb"));
  EXPECT_FALSE(glob_match("[!a]b", "ab"));
  EXPECT_TRUE(glob_match("[]]", "]"));
  EXPECT_TRUE(glob_match("[x", "[x"));  // no set: the character itself
}

TEST(Globs, ManyStarsDoNotTakeForever) {
  EXPECT_FALSE(glob_match("*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(2000, 'a')));
}

TEST(Globs, LayersAreNamedWholeOrFromADotOn) {
  const std::string down = "model.layers.0.mlp.down_proj.weight", gate = "model.layers.0.mlp.gate_proj.weight";
  const std::string router = "model.layers.3.block_sparse_moe.gate.weight";
  EXPECT_TRUE(names_layer({"*.down_proj"}, down));
  EXPECT_TRUE(names_layer({"down_proj"}, down));
  EXPECT_TRUE(names_layer({"layers.0.*"}, down));
  EXPECT_TRUE(names_layer({down}, down));
  EXPECT_FALSE(names_layer({"proj"}, down));
  EXPECT_TRUE(names_layer({"embed*"}, "model.embed_tokens.weight"));
  EXPECT_TRUE(names_layer({"x", "lm_head"}, "lm_head.weight"));
  EXPECT_TRUE(names_layer({"*.gate"}, router));
  EXPECT_FALSE(names_layer({"*.gate"}, gate));  // the default of fp8.exclude spares the MLP's gate
  EXPECT_FALSE(names_layer({}, down));
}

}  // namespace
}  // namespace octet
