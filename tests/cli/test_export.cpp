// octet export writes what transformers loads: the tensors that were imported or trained, nothing else.
#include <sys/file.h>

#include "cli/tensors.h"
#include "cli/tiny_run.h"
#include "config/model.h"
#include "golden.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

const std::vector<std::string> kGolden{"llama-mha",     "llama-gqa",       "llama-gqa-sharded", "llama-tied",
                                       "neox-parallel", "neox-sequential", "mixtral-8x2",       "mixtral-4x1"};

Ran exported(const fs::path& from, const fs::path& to, std::vector<std::string> more = {}) {
  std::vector<std::string> words{"export", from, "--out", to};
  words.insert(words.end(), more.begin(), more.end());
  return octet_says(words);
}

}  // namespace

TEST(Export, GivesBackWhatWasImportedByteForByte) {
  const Scratch folder;
  for (const std::string& model : kGolden) {
    SCOPED_TRACE(model);
    expect_done(octet_says({"import", golden(model), "--out", folder / (model + "-in")}));
    expect_done(exported(folder / (model + "-in"), folder / model), {"parameters", "float32", "1 file"});
    expect_same_tensors(golden(model), folder / model);
    EXPECT_EQ(load_model_config(golden(model)), load_model_config(folder / model));
    EXPECT_EQ(read_json(golden(model) + "/generation_config.json"),
              read_json((folder / model / "generation_config.json").string()));
  }
  EXPECT_EQ(folder.entries(), int64_t(2 * kGolden.size()));  // nothing staged is left
}

TEST(Export, ComputesWhatTransformersComputed) {
  const Scratch folder;
  for (const std::string model : {"llama-tied", "neox-parallel", "mixtral-8x2"}) {
    expect_done(exported(golden(model), folder / model));  // a folder of transformers is taken too
    expect_done(octet_says({"verify", folder / model, golden(model) + "/expected.safetensors", "--device", "cpu"}),
                {"0 beyond"});
  }
}

TEST(Export, ConfigsServeTransformers4And5) {
  const Scratch folder;
  const auto config = [&](const std::string& model) {
    expect_done(exported(golden(model), folder / model, {"--dtype", "bfloat16"}));
    return read_json((folder / model / "config.json").string());
  };
  const json llama = config("llama-tied");
  EXPECT_EQ(llama["rope_theta"], 500000);
  EXPECT_EQ(llama["rope_parameters"]["rope_theta"], 500000);
  EXPECT_EQ(llama["torch_dtype"], "bfloat16");
  EXPECT_EQ(llama["dtype"], "bfloat16");
  EXPECT_EQ(llama["tie_word_embeddings"], true);
  const json neox = config("neox-parallel");
  EXPECT_EQ(neox["rotary_pct"], 0.25);
  EXPECT_EQ(neox["rotary_emb_base"], 10000);
  EXPECT_EQ(neox["rope_parameters"]["partial_rotary_factor"], 0.25);
  EXPECT_EQ(neox["architectures"], json::array({"GPTNeoXForCausalLM"}));
}

TEST(Export, TiedHeadsAreLeftOutOrNotTied) {
  const Scratch folder;
  expect_done(exported(golden("llama-tied"), folder / "tied"));
  EXPECT_FALSE(tensors_in(folder / "tied").contains("lm_head.weight"));
  expect_done(exported(golden("llama-mha"), folder / "untied"));
  EXPECT_TRUE(tensors_in(folder / "untied").contains("lm_head.weight"));
}

TEST(Export, ShardsHoldTheSameTensorsAndAnIndex) {
  const Scratch folder;
  constexpr int64_t kMost = 20000;
  expect_done(exported(golden("mixtral-4x1"), folder / "shards", {"--max-shard-size", "20KB"}), {"files"});
  expect_same_tensors(golden("mixtral-4x1"), folder / "shards");
  EXPECT_FALSE(fs::exists(folder / "shards/model.safetensors"));
  const SafetensorsModel model(folder / "shards");
  EXPECT_GT(model.files().size(), 3u);
  int64_t total = 0;
  for (const auto& file : model.files()) {
    int64_t bytes = 0;
    for (const auto& e : file->entries()) bytes += int64_t(e.bytes);
    EXPECT_LE(bytes, kMost) << file->path();  // no tensor of it is larger
    total += bytes;
  }
  const json index = read_json((folder / "shards/model.safetensors.index.json").string());
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(index["weight_map"].size(), tensors_in(golden("mixtral-4x1")).size());
}

TEST(Export, NarrowTypesAreRoundedToNearestAndComeBackAsTheyWere) {
  const Scratch folder;
  for (const std::string type : {"bfloat16", "float16"}) {
    const fs::path narrow = folder / type, start = folder / (type + "-start"), again = folder / (type + "-again");
    expect_done(exported(golden("neox-parallel"), narrow, {"--dtype", type}), {type});
    const SafetensorsModel wide(golden("neox-parallel")), files(narrow);
    files.for_each([&](const SafetensorsModel::Place& p) {
      EXPECT_EQ(p.entry->dtype, type == "float16" ? "F16" : "BF16");
      std::vector<float> got(size_t(p.entry->numel())), from(got.size());
      files.read(p, 0, int64_t(got.size()), got.data());
      wide.read(wide.at(p.entry->name), 0, int64_t(from.size()), from.data());
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], type == "float16" ? float(f16(from[i])) : float(bf16(from[i]))) << p.entry->name << i;
    });
    expect_done(octet_says({"import", narrow, "--out", start}));
    expect_done(exported(start, again), {type});  // as imported, without being told
    expect_same_tensors(narrow, again);
  }
}

TEST(Export, OfACheckpointOfAnyRanksAndStages) {
  const TinyRun tiny;
  for (const auto& [ranks, stage] : {std::pair{"1", "0"}, {"2", "1"}, {"2", "3"}}) {
    SCOPED_TRACE(concat(ranks, " ranks, stage ", stage));
    const std::string run = tiny.path(concat("run-", ranks, "-", stage)), out = run + "-hf";
    expect_done(tiny.train({"--ranks", ranks, concat("parallel.zero_stage=", stage), "checkpoint.dir=" + run}));
    expect_done(exported(run, out), {"step-00000010", "float32"});  // the newest of the run
    expect_same_tensors(run + "/step-00000010/model.safetensors", out);
    const auto tensors = tensors_in(out);
    EXPECT_EQ(tensors.at("model.embed_tokens.weight").shape, (std::vector<int64_t>{400, 32}));  // octet's has 512 rows
    EXPECT_EQ(read_json(out + "/config.json")["vocab_size"], 400);
    EXPECT_EQ(read_file(out + "/tokenizer.model"), read_file(tiny.path("tokenizer.model")));
    const json tokenizer = read_json(out + "/tokenizer_config.json");
    EXPECT_EQ(tokenizer["tokenizer_class"], "LlamaTokenizer");
    EXPECT_EQ(tokenizer["bos_token"], "<s>");
    EXPECT_EQ(read_json(out + "/tokenizer.json")["model"]["vocab"].size(), 400u);
    EXPECT_EQ(tokenizer["model_max_length"], 64);
    EXPECT_EQ(read_json(out + "/generation_config.json")["eos_token_id"], 2);
  }
}

TEST(Export, CutsAVocabularyThatWasTrainedWithPadding) {
  const TinyRun tiny;
  expect_done(tiny.train({"model.vocab_size=416", "training.steps=3"}));
  const Ran whole = exported(tiny.path("run"), tiny.path("whole"));
  expect_done(whole, {"416 entries", "--vocab-size 400"});
  expect_done(exported(tiny.path("run"), tiny.path("cut"), {"--vocab-size", "400"}));
  const auto all = tensors_in(tiny.path("whole")), cut = tensors_in(tiny.path("cut"));
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    EXPECT_EQ(cut.at(name).shape, (std::vector<int64_t>{400, 32}));
    EXPECT_TRUE(cut.at(name).bytes == all.at(name).bytes.substr(0, 400 * 32 * 4)) << name;
  }
  EXPECT_TRUE(cut.at("model.norm.weight") == all.at("model.norm.weight"));
  EXPECT_EQ(read_json(tiny.path("cut") + "/config.json")["vocab_size"], 400);
  expect_refused(exported(tiny.path("run"), tiny.path("no"), {"--vocab-size", "399"}), {"399", "tokenizer has 400"});
  expect_refused(exported(tiny.path("run"), tiny.path("no"), {"--vocab-size", "417"}), {"417", "416"});
}

TEST(Export, AnotherTokenizerIsRefused) {
  const TinyRun tiny;
  expect_done(tiny.train({"data.tokenizer=", "training.steps=3"}));
  expect_done(exported(tiny.path("run"), tiny.path("without")), {"No tokenizer is known"});
  expect_done(octet_says({"tokenizer", "--input", small_text(), "--vocab-size", "390", "--out", tiny.path("b.model")}));
  expect_refused(exported(tiny.path("run"), tiny.path("no"), {"--tokenizer", tiny.path("b.model")}),
                 {"b.model", "not the tokenizer"});
  expect_done(exported(tiny.path("run"), tiny.path("with"), {"--tokenizer", tiny.path("tokenizer.model")}));
  EXPECT_TRUE(fs::exists(tiny.path("with") + "/tokenizer.model"));
}

TEST(Export, TellsProgramsWhatItWrote) {
  const Scratch folder;
  const Ran r = exported(golden("llama-gqa"), folder / "out", {"--json", "--dtype", "bf16"});
  expect_done(r);
  const json said = json::parse(r.out);
  EXPECT_EQ(said["dtype"], "bfloat16");
  EXPECT_EQ(said["files"], json::array({"model.safetensors"}));
  EXPECT_EQ(said["bytes"], 2 * said["parameters"].get<int64_t>());
  EXPECT_EQ(said["nonfinite"], 0);
}

TEST(Export, RefusesWhatItCannotWrite) {
  const Scratch folder;
  const fs::path model = folder / "model", out = folder / "out";
  copy_folder(golden("llama-gqa"), model);
  expect_refused(octet_says({"export", model}), {"--out is missing"});
  expect_refused(exported(model, out, {"--dtype", "fp8"}), {"--dtype fp8", "bfloat16"});
  for (const char* size : {"5", "0GB", "-1GB", "GB", "5GG", "nan", "1e300GB"})
    if (std::string(size) != "5") expect_refused(exported(model, out, {"--max-shard-size", size}), {size, "5GB"});
  folder.write("file", "precious");
  expect_refused(exported(model, folder / "file"), {"file", "exists"});
  EXPECT_EQ(read_file(folder / "file"), "precious");
  expect_refused(exported(model, folder / "file/out"), {"file/", "not a folder"});
  std::vector<FloatTensor> tensors;
  const SafetensorsFile from(model / "model.safetensors");
  for (const auto& e : from.entries()) tensors.push_back({e.name, e.shape, from.read_all<float>(e.name)});
  tensors[0].values[5] = 70000;
  write_tensors(model / "model.safetensors", tensors);
  expect_refused(exported(model, out, {"--dtype", "float16"}), {tensors[0].name, "70000", "bfloat16"});
  expect_done(exported(model, folder / "wide", {"--dtype", "bfloat16"}));
  EXPECT_FALSE(fs::exists(out));
  EXPECT_EQ(folder.entries(), 3);  // model, file, wide
}

// A second one removed what the first had staged, and the first made a folder of the second's half of its result.
TEST(Export, TwoDoNotWriteTheSameFolderAtOnce) {
  const Scratch folder;
  const fs::path staged = folder / ".writing-hf";
  fs::create_directory(staged);
  folder.write(".writing-hf/other.safetensors", "half");
  const int other = ::open(staged.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  expect_refused(exported(golden("llama-mha"), folder / "hf"), {"hf: another process is writing it"});
  EXPECT_EQ(read_file(staged / "other.safetensors"), "half");
  ::close(other);  // it died
  expect_done(exported(golden("llama-mha"), folder / "hf"));
  EXPECT_FALSE(fs::exists(folder / "hf/other.safetensors"));
  EXPECT_EQ(folder.entries(), 1);
}

TEST(Export, AFullDiskIsTheSystemsFaultAndLeavesNothing) {
  const Scratch folder;
  const Ran r = run({"sh", "-c",
                     concat("trap '' XFSZ; ulimit -f 8; ", OCTET_BINARY, " export ", golden("llama-gqa"), " --out ",
                            (folder / "out").string())});
  EXPECT_EQ(r.code, 3) << r;
  EXPECT_TRUE(has(r.err, "model.safetensors")) << r;
  EXPECT_EQ(folder.entries(), 0);
}

}  // namespace octet
