// What bash offers on Tab, asked of a real bash.
#include "cli/run.h"

namespace octet {
namespace {

// The words of a line, the last being typed: what is offered for it, sorted by bash.
std::string offered(const std::string& words, int count) {
  const Ran r = run({"bash", "-c",
                     concat("source <(", OCTET_BINARY, " completion bash); COMP_WORDS=(", words,
                            "); COMP_CWORD=", count - 1, "; _octet 2>/dev/null; echo \"${COMPREPLY[@]}\"")});
  EXPECT_EQ(r.code, 0) << r;
  return r.out;
}

}  // namespace

TEST(Completion, OffersCommands) {
  EXPECT_EQ(offered("octet ex", 2), "export\n");
  EXPECT_EQ(offered("octet tok", 2), "tokenizer tokenize\n");
  EXPECT_TRUE(has(offered("octet help con", 3), "config"));
}

TEST(Completion, OffersOptionsAndTheirValues) {
  EXPECT_EQ(offered("octet export x --max", 4), "--max-shard-size\n");
  EXPECT_EQ(offered("octet export x --dtype b", 5), "bfloat16\n");
  EXPECT_EQ(offered("octet verify x --device ''", 5), "auto cpu cuda\n");
  EXPECT_EQ(offered("octet export x --out ''", 5), "\n");  // names of files
}

TEST(Completion, OffersKeysOfAConfigAndTheirValues) {
  EXPECT_EQ(offered("octet train c.json training.ste", 4), "training.steps=\n");
  EXPECT_EQ(offered("octet train c.json device = c", 6), "cuda cpu\n");
  EXPECT_EQ(offered("octet train c.json fp8.enabled =", 5), "true false\n");
  EXPECT_EQ(offered("octet export training.ste", 3), "\n");  // takes no overrides
}

TEST(Completion, IsValidBashAndForNoOtherShell) {
  const Ran r = run({"bash", "-c", concat(OCTET_BINARY, " completion bash | bash -n")});
  expect_done(r);
  expect_refused(octet_says({"completion", "fish"}), {"fish", "bash"});
  expect_done(octet_says({"help", "completion"}), {"source <(octet completion bash)", "bash-completion"});
}

}  // namespace octet
