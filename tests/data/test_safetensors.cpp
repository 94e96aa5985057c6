// Safetensors files: what is written is read, for every type and by many writers; no lie in a file is believed.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/rng.h"
#include "data/safetensors.h"
#include "data/safetensors_writer.h"
#include "data/scratch.h"
#include "golden.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// A file as the format wants it, whatever the header says.
std::string safetensors(const std::string& header, const std::string& data) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), sizeof n) + header + data;
}

std::vector<float> numbers(int64_t n, uint64_t stream) {
  std::vector<float> v;
  for (int64_t i = 0; i < n; ++i) v.push_back(float(normal(1, stream, uint64_t(i))));
  return v;
}

template <class T>
T rounded(float x) {
  return T(x);
}

// Sentence: a tensor is read as the nearest value of its stored type, exactly.
template <class T>
class RoundTrip : public testing::Test {};
using Floats = testing::Types<double, float, f16, bf16, e4m3, e5m2>;
TYPED_TEST_SUITE(RoundTrip, Floats);
TYPED_TEST(RoundTrip, GivesTheRoundedValues) {
  Scratch folder;
  std::vector<float> values = numbers(40000, 3);  // more than one chunk of the conversion
  values[7] = -0.f;
  values[8] = 1e-8f;
  {
    SafetensorsWriter writer(folder / "a", {{"x", dtype_of<TypeParam>, {100, 400}}});
    writer.write("x", 0, std::span<const float>(values).first(11));
    writer.write("x", 11, std::span<const float>(values).subspan(11));
    writer.close();
  }
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.at("x").dtype, stored_name(dtype_of<TypeParam>));
  EXPECT_EQ(file.at("x").shape, (std::vector<int64_t>{100, 400}));
  const auto as_float = file.read_all<float>("x");
  const auto as_double = file.read_all<double>("x");
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(as_float[i], float(rounded<TypeParam>(values[i]))) << i;
    ASSERT_EQ(as_double[i], double(rounded<TypeParam>(values[i]))) << i;
  }
  EXPECT_TRUE(std::signbit(as_float[7]));
  float middle[3];
  file.read(file.at("x"), 20000, 3, middle);
  EXPECT_EQ(middle[1], as_float[20001]);
}

TEST(Safetensors, DoublesKeepTheirBitsAndOtherTypesRoundThem) {
  Scratch folder;
  const std::vector<double> values{1.0 / 3, 1 + 0x1p-40, -2.5};
  SafetensorsWriter writer(folder / "a", {{"b", DType::bf16, {3}}, {"d", DType::f64, {3}}, {"f", DType::f32, {3}}});
  for (const char* name : {"b", "d", "f"}) writer.write(name, 0, std::span<const double>(values));
  writer.close();
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.read_all<double>("d"), values);
  EXPECT_EQ(file.read_all<float>("f"), (std::vector<float>{1.f / 3, 1.f, -2.5f}));
  EXPECT_EQ(file.read_all<float>("b")[0], float(bf16(1.f / 3)));
}

TEST(Safetensors, IntegersAreReadWhereTheyFit) {
  Scratch folder;
  const auto bytes = [](auto... values) {
    std::string text;
    ((text.append(reinterpret_cast<const char*>(&values), sizeof values)), ...);
    return text;
  };
  folder.write("a", safetensors(R"({"a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
                                R"("b":{"dtype":"U8","shape":[2],"data_offsets":[16,18]},)"
                                R"("c":{"dtype":"BOOL","shape":[],"data_offsets":[18,19]},)"
                                R"("d":{"dtype":"U32","shape":[1],"data_offsets":[19,23]},)"
                                R"("e":{"dtype":"I16","shape":[1],"data_offsets":[23,25]}})",
                                bytes(int64_t{-100}, int64_t{7}, uint8_t{200}, uint8_t{0}, true, ~0u, int16_t{-3})));
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.read_all<int32_t>("a"), (std::vector<int32_t>{-100, 7}));
  EXPECT_EQ(file.read_all<int32_t>("b"), (std::vector<int32_t>{200, 0}));
  EXPECT_EQ(file.read_all<int32_t>("c"), (std::vector<int32_t>{1}));
  EXPECT_EQ(file.read_all<int32_t>("e"), (std::vector<int32_t>{-3}));
  EXPECT_PRED2(has, error_of<InputError>([&] { file.read_all<int32_t>("d"); }), "4294967295");
  EXPECT_PRED2(has, error_of<InputError>([&] { file.read_all<float>("a"); }), "holds I64");

  SafetensorsWriter writer(folder / "i", {{"i", DType::i32, {3}}});
  writer.write("i", 0, std::span<const int32_t>(std::vector<int32_t>{1, -2, 3}));
  writer.close();
  EXPECT_EQ(SafetensorsFile(folder / "i").read_all<int32_t>("i"), (std::vector<int32_t>{1, -2, 3}));
  EXPECT_PRED2(has, error_of<InputError>([&] { SafetensorsFile(folder / "i").read_all<float>("i"); }), "holds I32");
}

TEST(Safetensors, TheHeaderIsPaddedAndTensorsAreAlignedToTheirType) {
  Scratch folder;
  SafetensorsWriter writer(folder / "a",
                           {{"narrow", DType::e4m3, {3}}, {"wide", DType::f64, {1}}, {"empty", DType::f32, {0, 5}}},
                           {{"format", "pt"}, {"step", "12"}});
  writer.write("narrow", 0, std::span<const float>(std::vector<float>{1, 2, 3}));
  writer.write("wide", 0, std::span<const double>(std::vector<double>{4}));
  writer.close();
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"step", "12"}}));
  ASSERT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(file.entries()[0].name, "wide");
  for (const auto& e : file.entries()) EXPECT_EQ(e.offset % size_t(stored_size(e.dtype)), 0u) << e.name;
  EXPECT_EQ(file.at("empty").numel(), 0);
  EXPECT_TRUE(file.read_all<float>("empty").empty());
  EXPECT_EQ(file.find("Narrow"), nullptr);
  EXPECT_FALSE(fs::exists(folder / "a.tmp"));
}

// Sentence: what one writer writes, eight write as well, each its own ranges, into the same bytes.
TEST(Safetensors, EightWritersWriteTheFileOfOne) {
  Scratch folder;
  const int64_t rows = 1003, cols = 64;
  const std::vector<StoredTensor> tensors{{"a", DType::bf16, {rows, cols}}, {"b", DType::f32, {rows}}};
  const auto a = numbers(rows * cols, 1), b = numbers(rows, 2);
  SafetensorsWriter one(folder / "one", tensors);
  one.write("b", 0, std::span<const float>(b));
  one.write("a", 0, std::span<const float>(a));
  one.close();

  SafetensorsWriter shared(folder / "threads", tensors);                       // eight threads, one writer
  SafetensorsWriter first(folder / "ranks", tensors, {}, WriterRole::create);  // eight writers, one file
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < 8; ++r) {
    threads.emplace_back([&, r] {
      const auto write = [&](SafetensorsWriter& writer) {
        for (const auto& [name, values] : {std::pair{"a", &a}, std::pair{"b", &b}}) {
          const int64_t n = int64_t(values->size()), begin = n * r / 8, end = n * (r + 1) / 8;
          writer.write(name, begin, std::span<const float>(*values).subspan(size_t(begin), size_t(end - begin)));
        }
      };
      write(shared);
      SafetensorsWriter other(folder / "ranks", tensors, {}, WriterRole::join);
      write(other);
      other.close();
    });
  }
  for (std::thread& t : threads) t.join();
  shared.close();
  first.close();
  EXPECT_EQ(read_file(folder / "threads"), read_file(folder / "one"));
  EXPECT_EQ(read_file(folder / "ranks"), read_file(folder / "one"));
}

TEST(Safetensors, AFileAppearsUnderItsNameOnlyWhenItIsWhole) {
  Scratch folder;
  folder.write("a", "the file before");
  const std::vector<float> values{1, 2, 3, 4};
  {
    SafetensorsWriter abandoned(folder / "a", {{"x", DType::f32, {4}}});
    abandoned.write("x", 0, std::span<const float>(values));
  }
  EXPECT_EQ(read_file(folder / "a"), "the file before");
  EXPECT_FALSE(fs::exists(folder / "a.tmp"));
  {
    SafetensorsWriter incomplete(folder / "a", {{"x", DType::f32, {5}}});
    incomplete.write("x", 0, std::span<const float>(values));
    EXPECT_PRED2(has, error_of<Error>([&] { incomplete.close(); }), "16 of 20 bytes");
    EXPECT_THROW(incomplete.write("x", 2, std::span<const float>(values)), Error);  // beyond its end
    EXPECT_THROW(incomplete.write("y", 0, std::span<const float>(values)), Error);
  }
  EXPECT_EQ(read_file(folder / "a"), "the file before");
  EXPECT_THROW(SafetensorsWriter(folder / "a", {{"x", DType::f32, {4}}, {"x", DType::f32, {4}}}), Error);
  EXPECT_THROW(SafetensorsWriter(folder / "a", {{"x", DType::f32, {4}}}, {}, WriterRole::join), Error);
  EXPECT_EQ(error_of<InputError>([&] { SafetensorsWriter(folder / "no/such/a", {}); }).find("cannot write '"), 0u);
}

TEST(Safetensors, ALinkStaysOneAndItsFileIsWritten) {
  Scratch folder;
  fs::create_directory(folder / "far");
  for (const char* before : {"the file before", ""}) {  // and a link to what is not there yet
    if (*before) folder.write("far/real", before);
    fs::create_symlink("far/real", folder / "link");
    SafetensorsWriter writer(folder / "link", {{"x", DType::f32, {1}}});
    writer.write("x", 0, std::span<const float>(std::vector<float>{7}));
    writer.close();
    EXPECT_TRUE(fs::is_symlink(folder / "link"));
    EXPECT_EQ(SafetensorsFile(folder / "far/real").read_all<float>("x"), std::vector<float>{7});
    fs::remove(folder / "link");
    fs::remove(folder / "far/real");
  }
}

// A limit on the size of files refuses writes as a full disk does: at once, and without a trace.
TEST(Safetensors, ARefusedFileIsASystemErrorAtOnce) {
  Scratch folder;
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = error_of<SystemError>([&] {
    SafetensorsWriter(folder / "a", {{"x", DType::f32, {1 << 20}}});
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_PRED2(has, message, (folder / "a").string());
  EXPECT_EQ(folder.entries(), 0);
}

struct Lie {
  const char* what;
  std::string contents, message;
};
std::vector<Lie> lies() {
  const std::string data(16, 'x');
  const auto one = [&](const std::string& entry) { return safetensors("{\"x\":" + entry + "}", data); };
  std::string long_header = safetensors("{}", ""), huge_header = long_header;
  long_header[0] = 100;
  huge_header[7] = 127;
  const std::string whole = one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})");
  const std::string half = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  return {
      {"empty", "", "only 0 bytes"},
      {"too short for a length", "1234567", "only 7 bytes"},
      {"header beyond the end", long_header, "100 bytes, but only 2 follow"},
      {"header of 2^62 bytes", huge_header, "more than the format allows"},
      {"a number beyond a double", one(R"({"dtype":"F32","shape":[1e400],"data_offsets":[0,16]})"),
       "JSON cannot be read"},
      {"no JSON", safetensors("{\"x\": tru", ""), "JSON cannot be read"},
      {"not UTF-8", safetensors("{\"\xff\":1}", ""), "JSON cannot be read"},
      {"nested without end", safetensors("{\"x\":" + std::string(100000, '['), ""), "JSON cannot be read"},
      {"nested deeply", one(std::string(100000, '[') + std::string(100000, ']')), "lacks dtype, shape or data_offsets"},
      {"a string without end", safetensors("{\"" + std::string(100000, 'x'), ""), "JSON cannot be read"},
      {"the same in an inner list", one(R"([{"a":1},{"a":1},{"b":{"a":1,"a":2}}])"), "'a' stands twice"},
      {"a list", safetensors("[1]", ""), "does not begin with '{'"},
      {"other bytes after the header", safetensors("{} }", ""), "JSON cannot be read"},
      {"truncated data", whole.substr(0, whole.size() - 1), "ends at byte 16 of the data, but the file holds only 15"},
      {"longer file", whole + "y", "1 bytes after 'x' belong to no tensor"},
      {"data without tensors", safetensors("{}", "abc"), "no tensor, but holds 3 bytes"},
      {"size of another shape", one(R"({"dtype":"F32","shape":[5],"data_offsets":[0,16]})"), "takes 20 bytes"},
      {"size of another type", one(R"({"dtype":"BF16","shape":[4],"data_offsets":[0,16]})"), "takes 8 bytes"},
      {"overflow", one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), "overflows"},
      {"overflow by the element", one(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"),
       "overflows"},
      {"size of 2^63", one(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,16]})"), "list of sizes"},
      {"negative size", one(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), "list of sizes"},
      {"broken size", one(R"({"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})"), "list of sizes"},
      {"backwards", one(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})"), "before it begins"},
      {"offset of 2^64", one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551616]})"),
       "not two positions"},
      {"three offsets", one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,8,16]})"), "not two positions"},
      {"unknown type", one(R"({"dtype":"F7","shape":[4],"data_offsets":[0,16]})"), "has the type 'F7'"},
      {"type of a wrong type", one(R"({"dtype":3,"shape":[4],"data_offsets":[0,16]})"), "dtype is not a string"},
      {"no shape", one(R"({"dtype":"F32","data_offsets":[0,16]})"), "lacks dtype, shape or data_offsets"},
      {"entry is a number", one("4"), "lacks dtype, shape or data_offsets"},
      {"twice the same tensor", safetensors("{\"x\":" + half + ",\"x\":" + half + "}", data), "'x' stands twice"},
      {"twice the same field", one(R"({"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]})"),
       "'dtype' stands twice"},
      {"overlap", safetensors("{\"x\":" + half + ",\"y\":" + half + "}", data.substr(8)), "'x' and 'y' overlap"},
      {"hole at the start", one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})"), "8 bytes before 'x'"},
      {"hole in the middle",
       safetensors("{\"x\":" + half + R"(,"y":{"dtype":"U8","shape":[4],"data_offsets":[12,16]}})", data),
       "4 bytes before 'y'"},
      {"metadata is no object", safetensors(R"({"__metadata__":"pt"})", ""), "__metadata__ is not an object"},
      {"metadata holds a number", safetensors(R"({"__metadata__":{"step":3}})", ""), "'step' in its __metadata__"},
  };
}

// Sentence: each lie is refused with the file's name, the reason and a remedy.
TEST(Safetensors, NoLieIsBelieved) {
  Scratch folder;
  for (const Lie& lie : lies()) {
    SCOPED_TRACE(lie.what);
    folder.write("liar.safetensors", lie.contents);
    const std::string message = error_of<InputError>([&] { SafetensorsFile file(folder / "liar.safetensors"); });
    EXPECT_PRED2(has, message, lie.message);
    EXPECT_PRED2(has, message, "liar.safetensors");
    EXPECT_TRUE(has(message, "again") || has(message, "convert")) << message;
  }
}

// Sentence: whatever byte of the header is changed, the file is read or refused, never anything else.
TEST(Safetensors, NoChangedByteDoesHarm) {
  Scratch folder;
  const std::string good = read_file(golden("llama-gqa-sharded/model-00004-of-00004.safetensors"));
  for (size_t i = 0; i < 130; ++i)
    for (const char c : {'\0', '0', '9', '"', '}', '\x7f', '\xff'}) {
      std::string bad = good;
      bad[i] = c;
      std::ofstream(folder / "bad", std::ios::binary) << bad;
      try {
        const SafetensorsFile file(folder / "bad");
        for (const auto& e : file.entries()) ASSERT_LE(e.offset + e.bytes, good.size());
      } catch (const InputError&) {}
    }
}

TEST(Safetensors, GoldenModelsAreRead) {
  for (const char* name :
       {"llama-mha", "llama-gqa", "llama-tied", "neox-parallel", "neox-sequential", "mixtral-8x2", "mixtral-4x1"}) {
    SCOPED_TRACE(name);
    const SafetensorsModel model(golden(name));
    const SafetensorsFile expected(golden(std::string(name) + "/expected.safetensors"));
    EXPECT_EQ(model.files()[0]->metadata().at("format"), "pt");
    model.for_each([&](const SafetensorsModel::Place& place) {
      std::vector<float> values(size_t(place.entry->numel()));
      model.read(place, 0, place.entry->numel(), values.data());
      for (float v : values) ASSERT_LT(std::abs(v), 8.f) << place.entry->name;
    });
    for (int32_t id : expected.read_all<int32_t>("input_ids")) ASSERT_LT(uint32_t(id), 128u);
    for (int32_t id : expected.read_all<int32_t>("labels")) ASSERT_TRUE(id == -100 || uint32_t(id) < 128u);
    EXPECT_GT(expected.read_all<double>("loss")[0], 1);
    EXPECT_EQ(SafetensorsFile(golden(std::string(name) + "/trajectory.safetensors")).at("batches").shape,
              (std::vector<int64_t>{4, 12, 33}));
  }
}

TEST(Safetensors, ShardsAreReadAsTheWholeModel) {
  const SafetensorsModel whole(golden("llama-gqa")), shards(golden("llama-gqa-sharded"));
  EXPECT_EQ(shards.files().size(), 4u);
  int64_t tensors = 0;
  whole.for_each([&](const SafetensorsModel::Place& place) {
    const auto other = shards.at(place.entry->name);
    ASSERT_EQ(other.entry->shape, place.entry->shape);
    const std::string_view a(reinterpret_cast<const char*>(place.file->data(*place.entry)), place.entry->bytes);
    const std::string_view b(reinterpret_cast<const char*>(other.file->data(*other.entry)), other.entry->bytes);
    EXPECT_EQ(a, b) << place.entry->name;
    ++tensors;
  });
  shards.for_each([&](const SafetensorsModel::Place&) { --tensors; });
  EXPECT_EQ(tensors, 0);
}

class BadModel : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"x", "y"})
      folder_.write(
          std::string(name) + ".safetensors",
          safetensors(std::string("{\"") + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  }
  void expect(const std::string& index, const std::string& message) {
    folder_.write("model.safetensors.index.json", index);
    const std::string said = error_of<InputError>([&] { SafetensorsModel model(folder_ / ""); });
    EXPECT_PRED2(has, said, message);
    EXPECT_PRED2(has, said, (folder_ / "").string());
  }
  Scratch folder_;
};

TEST_F(BadModel, IsRefusedWithItsReason) {
  expect(R"({"weight_map":{"x":"x.safetensors","y":"gone.safetensors"}})", "missing: 'gone.safetensors'");
  expect(R"({"weight_map":{"x":"x.safetensors","z":"y.safetensors"}})", "tensor 'z' is in 'y.safetensors', but");
  expect(R"({"weight_map":{"x":"y.safetensors","y":"x.safetensors"}})", "but that file does not hold it");
  expect(R"({"weight_map":{"x":"x.safetensors","x":"y.safetensors"}})", "'x' stands twice");
  expect(R"({"weight_map":{"x":"../x.safetensors"}})", "not a file name");
  expect(R"({"weight_map":{"x":3}})", "not a file name");
  expect(R"({"metadata":{}})", "no object weight_map");
  expect("[]", "not an object");
  expect("", "JSON cannot be read");
  fs::copy_file(folder_ / "x.safetensors", folder_ / "copy.safetensors");
  expect(R"({"weight_map":{"x":"x.safetensors","y":"copy.safetensors"}})", "'x' is in two files");
  fs::remove(folder_ / "model.safetensors.index.json");
  EXPECT_PRED2(has, error_of<InputError>([&] { SafetensorsModel model(folder_ / ""); }), "neither model.safetensors");
  // What stands there instead is told.
  const auto told = [&](const std::vector<std::string>& files, const std::string& part) {
    const Scratch other;
    for (const std::string& name : files) other.write(name, "");
    EXPECT_PRED2(has, error_of<InputError>([&] { SafetensorsModel model(other / ""); }), part);
  };
  told({"pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"}, "safe_serialization");
  told({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.safetensors"},
       "holds shards, 'model-00001-of-00002.safetensors', without that index");
  told({"consolidated.safetensors"}, "'consolidated.safetensors' is the publisher's own form");
  told({"consolidated.00.pth"}, "'consolidated.00.pth' is of another program");
  told({"q4.gguf"}, "'q4.gguf' is of another program");
  told({"weights.safetensors"}, "if 'weights.safetensors' is the whole model, rename it");
  told({"README.md"}, "name a folder in which transformers has saved a model");
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 5\n";
  EXPECT_PRED2(has, error_of<InputError>([&] { SafetensorsFile file(folder_.write("p.safetensors", pointer)); }),
               "p.safetensors' is a pointer of Git LFS, not the weights: run git lfs pull");
  folder_.write("pytorch_model.bin", "");
  EXPECT_PRED2(has, error_of<InputError>([&] { SafetensorsModel model(folder_ / ""); }), "safe_serialization");
  EXPECT_PRED2(has, error_of<InputError>([&] { SafetensorsModel model(folder_ / "nowhere"); }), "does not exist");
  EXPECT_TRUE(SafetensorsModel(folder_ / "x.safetensors").find("x"));
  EXPECT_FALSE(SafetensorsModel(folder_ / "x.safetensors").find("y"));
}

}  // namespace
}  // namespace octet
