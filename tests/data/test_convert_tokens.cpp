// Token files of llm.c, llm.q, Megatron-LM, NumPy and plain arrays, here assembled byte by byte, come over id by id and
// document by document; a damaged one is refused with file, fault and place, and nothing is left under the name.
#include <unistd.h>

#include "base/json.h"
#include "data/convert_tokens.h"
#include "data/foreign_tokens.h"
#include "golden.h"
#include "scratch.h"

namespace octet {
namespace {
using Ids = std::vector<int32_t>;

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
std::string ids_as(const Ids& ids) {
  return raw(std::vector<T>(ids.begin(), ids.end()));
}
std::string llmc(int32_t magic, int32_t version, int32_t count, const std::string& tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = count;
  return raw(header) + tokens;
}
std::string llmq(int32_t version, int32_t vocab, const Ids& ids, int32_t masks = 0) {
  std::string head = "BIN.TOK\n" + raw<int32_t>({version, 4, int32_t(ids.size())});
  if (version > 1) head += raw<int32_t>({vocab, masks});
  return head + std::string(1023 - head.size(), '*') + "\n" + raw(ids);
}
std::string npy(const std::string& type, const std::string& shape, const std::string& numbers) {
  std::string dict = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  dict += std::string(117 - dict.size(), ' ') + "\n";
  return "\x93NUMPY" + std::string("\1\0", 2) + raw<uint16_t>({118}) + dict + numbers;
}
std::string idx(uint8_t type, const std::vector<int32_t>& lengths, const std::vector<int64_t>& boundaries, int width) {
  std::vector<int64_t> starts;
  for (int64_t at = 0; const int32_t length : lengths) starts.push_back(at), at += length * width;
  return std::string("MMIDIDX\0\0", 9) + raw<uint64_t>({1}) + char(type) +
         raw<uint64_t>({lengths.size(), boundaries.size()}) + raw(lengths) + raw(starts) + raw(boundaries);
}

class Convert : public testing::Test {
 protected:
  ConvertOptions options(const std::string& format, const std::vector<std::string>& names) const {
    ConvertOptions o{.format = format, .output = out(), .vocab_size = 70000};
    for (const std::string& name : names) o.inputs.push_back((dir / name).string());
    return o;
  }
  std::filesystem::path out() const { return dir / "out.tokens"; }
  std::vector<Ids> documents(const ConvertOptions& o) const {
    convert_tokens(o);
    const TokenFile file(out());
    file.verify();
    std::vector<Ids> all;
    for (int64_t d = 0; d < file.documents(); ++d) {
      const int64_t end = d + 1 < file.documents() ? file.document_start(d + 1) : file.tokens();
      file.read(file.document_start(d), all.emplace_back(size_t(end - file.document_start(d))));
    }
    return all;
  }
  void refused(const ConvertOptions& o, const std::vector<std::string>& parts) const {
    const std::string message = error_of<InputError>([&] { convert_tokens(o); });
    for (const std::string& part : parts) EXPECT_TRUE(has(message, part)) << "'" << part << "' is not in\n" << message;
    EXPECT_FALSE(std::filesystem::exists(out()));
    EXPECT_FALSE(std::filesystem::exists(out().string() + ".tmp"));
  }
  void damaged(const std::string& format, const std::string& bytes, const std::vector<std::string>& parts) const {
    dir.write("bad", bytes);
    ConvertOptions o = options(format, {"bad"});
    o.marked = false;
    refused(o, parts);
  }
  Scratch dir;
};

}  // namespace

TEST_F(Convert, DocumentsOfLlmcBeginWithAnIdAndRunAcrossShards) {
  dir.write("a_0.bin", llmc(20240520, 1, 7, ids_as<uint16_t>({50256, 1, 2, 50256, 50256, 3, 65535})));
  dir.write("a_1.bin", llmc(20240520, 1, 3, ids_as<uint16_t>({4, 50256, 5})));
  ConvertOptions o = options("llm.c", {"a_*.bin"});
  o.bos = 50256;
  EXPECT_EQ(documents(o), (std::vector<Ids>{{50256, 1, 2}, {50256}, {50256, 3, 65535, 4}, {50256, 5}}));
  const TokenFileHeader h = TokenFile(out()).header();
  EXPECT_EQ(h.flags, TokenFileHeader::kBos);
  EXPECT_EQ(h.bos_id, 50256);
  EXPECT_EQ(h.vocab_size, 70000u);
  EXPECT_EQ(h.token_bytes, 4u);
  EXPECT_EQ(h.source_bytes, 0u);

  o = options("llm.c", {"a_1.bin"});  // from the middle of a document
  o.bos = 50256;
  EXPECT_EQ(documents(o), (std::vector<Ids>{{4}, {50256, 5}}));
  EXPECT_EQ(TokenFile(out()).header().flags, 0u);

  dir.write("b.bin", llmc(20240801, 7, 3, ids_as<uint32_t>({128000, 127999, 0})));
  o = options("llm.c", {"b.bin"});
  o.bos = 128000;
  std::filesystem::remove(out());
  refused(options("llm.c", {"b.bin"}), {"b.bin", "token 0 (byte 1024) has id 128000", "70000 entries", "--vocab-size"});
  o.vocab_size = 128256;
  EXPECT_EQ(documents(o), (std::vector<Ids>{{128000, 127999, 0}}));
}

TEST_F(Convert, DocumentsEndWithAnIdOrAreFiles) {
  dir.write("a.bin", ids_as<uint16_t>({1, 2, 9, 9, 3, 9}));
  dir.write("b.bin", ids_as<uint16_t>({4, 9, 5}));
  ConvertOptions o = options("uint16", {"a.bin", "b.bin"});
  o.eos = 9;
  o.vocab_size = 10;
  EXPECT_EQ(documents(o), (std::vector<Ids>{{1, 2, 9}, {9}, {3, 9}, {4, 9}, {5}}));
  EXPECT_EQ(TokenFile(out()).header().flags, 0u);  // the last one does not
  EXPECT_EQ(TokenFile(out()).header().token_bytes, 2u);
  o.inputs.pop_back();
  documents(o);
  EXPECT_EQ(TokenFile(out()).header().flags, TokenFileHeader::kEos);
  o = options("uint16", {"b.bin", "a.bin"});
  o.marked = false;
  EXPECT_EQ(documents(o), (std::vector<Ids>{{4, 9, 5}, {1, 2, 9, 9, 3, 9}}));
  std::filesystem::remove(out());
  o.marked = true;
  o.bos = 77;
  refused(o, {"77 is nowhere", "--unmarked"});
}

TEST_F(Convert, EveryTypeOfArray) {
  const Ids ids = {0, 127, 100, 1};
  for (const auto& [type, bytes] : std::vector<std::pair<std::string, std::string>>{{"uint16", ids_as<uint16_t>(ids)},
                                                                                    {"uint32", ids_as<uint32_t>(ids)},
                                                                                    {"int32", ids_as<int32_t>(ids)},
                                                                                    {"int64", ids_as<int64_t>(ids)}}) {
    dir.write("a", bytes);
    ConvertOptions o = options(type, {"a"});
    o.marked = false;
    EXPECT_EQ(documents(o), std::vector<Ids>{ids}) << type;
  }
  for (const auto& [type, bytes] : std::vector<std::pair<std::string, std::string>>{{"|u1", ids_as<uint8_t>(ids)},
                                                                                    {"|i1", ids_as<int8_t>(ids)},
                                                                                    {"<i2", ids_as<int16_t>(ids)},
                                                                                    {"<u2", ids_as<uint16_t>(ids)},
                                                                                    {"<u4", ids_as<uint32_t>(ids)},
                                                                                    {"<i4", ids_as<int32_t>(ids)},
                                                                                    {"<u8", ids_as<uint64_t>(ids)},
                                                                                    {"<i8", ids_as<int64_t>(ids)}}) {
    for (const char* shape : {"4,", "2, 2"}) {
      dir.write("a", npy(type, shape, bytes));
      ConvertOptions o = options("npy", {"a"});
      o.marked = false;
      EXPECT_EQ(documents(o), std::vector<Ids>{ids}) << type;
    }
  }
}

TEST_F(Convert, LlmqSaysItsVocabulary) {
  dir.write("a", llmq(2, 32000, {1, 31999, 2, 1, 2}));
  dir.write("b", llmq(1, 0, {1, 7, 2}));
  ConvertOptions o = options("llm.q", {"a"});
  o.bos = 1, o.eos = 2, o.vocab_size = 0;
  EXPECT_EQ(documents(o), (std::vector<Ids>{{1, 31999, 2}, {1, 2}}));
  EXPECT_EQ(TokenFile(out()).header().vocab_size, 32000u);
  EXPECT_EQ(TokenFile(out()).header().flags, TokenFileHeader::kBos | TokenFileHeader::kEos);
  std::filesystem::remove(out());
  o.inputs.push_back((dir / "b").string());
  refused(o, {"b'", "does not say the same", "--vocab-size"});
  o.vocab_size = 32000;
  EXPECT_EQ(documents(o).size(), 3u);
  std::filesystem::remove(out());
  dir.write("a", llmq(2, 100, {1, 100, 2}));  // added tokens lie behind the vocabulary that llm.q writes
  o = options("llm.q", {"a"});
  o.bos = 1, o.vocab_size = 0;
  refused(o, {"token 1 (byte 1028) has id 100", "added tokens", "--vocab-size"});
}

TEST_F(Convert, DocumentsOfMegatronAreThoseOfItsIndex) {
  const Ids ids = {10, 11, 12, 13, 14, 15, 16, 2};
  for (const auto& [type, bytes] : std::vector<std::pair<uint8_t, std::string>>{{1, ids_as<uint8_t>(ids)},
                                                                                {2, ids_as<int8_t>(ids)},
                                                                                {3, ids_as<int16_t>(ids)},
                                                                                {4, ids_as<int32_t>(ids)},
                                                                                {5, ids_as<int64_t>(ids)},
                                                                                {8, ids_as<uint16_t>(ids)}}) {
    dir.write("m.bin", bytes);
    dir.write("m.idx", idx(type, {2, 1, 0, 3, 2}, {0, 2, 2, 3, 4, 5, 5}, int(bytes.size() / ids.size())));
    for (const char* name : {"m.bin", "m.idx", "m", "m.*"}) {
      ConvertOptions o = options("megatron", {name});
      o.eos = 2;
      EXPECT_EQ(documents(o), (std::vector<Ids>{{10, 11, 12}, {13, 14, 15}, {16, 2}})) << int(type) << ' ' << name;
      EXPECT_EQ(TokenFile(out()).header().flags, 0u);
    }
  }
}

TEST_F(Convert, ManyBlocksAndPagesOfAnIndex) {
  const int64_t documents = 200000, length = 11;  // 2.2M ids: three blocks, four pages
  Ids ids;
  for (int64_t i = 0; i < documents * length; ++i) ids.push_back(int32_t(i * 7919 % 60000));
  std::vector<int64_t> boundaries;
  for (int64_t d = 0; d <= documents; ++d) boundaries.push_back(d);
  dir.write("m.bin", ids_as<uint16_t>(ids));
  dir.write("m.idx", idx(8, std::vector<int32_t>(size_t(documents), int32_t(length)), boundaries, 2));
  int64_t told = -1;
  ConvertOptions o = options("megatron", {"m"});
  o.progress = [&](int64_t done, int64_t total) {
    EXPECT_TRUE(told >= 0 || done == 0) << done;  // the clock starts before the work
    EXPECT_GT(done, told);
    EXPECT_EQ(total, 2 * documents * length);
    told = done;
  };
  convert_tokens(o);
  EXPECT_EQ(told, 2 * documents * length);
  const TokenFile file(out());
  file.verify();
  Ids back(ids.size());
  file.read(0, back);
  EXPECT_TRUE(back == ids);
  ASSERT_EQ(file.documents(), documents);
  for (int64_t d = 0; d < documents; d += 997) ASSERT_EQ(file.document_start(d), d * length);

  const int64_t block = int64_t{1} << 20;  // documents that begin, and end, where a block does
  for (const int64_t at : {block - 1, block, block + 1}) {
    Ids stream(size_t(block + 100), 5);
    stream[0] = stream[size_t(at)] = 3;
    dir.write("s", ids_as<uint16_t>(stream));
    ConvertOptions begins = options("uint16", {"s"});
    begins.bos = 3;
    convert_tokens(begins);
    EXPECT_EQ(TokenFile(out()).document_starts(0, 2), (std::vector<int64_t>{0, at}));
    ConvertOptions ends = options("uint16", {"s"});
    ends.eos = 3;
    convert_tokens(ends);
    EXPECT_EQ(TokenFile(out()).document_starts(0, 3), (std::vector<int64_t>{0, 1, at + 1}));
  }
}

TEST_F(Convert, DamagedFilesAreRefused) {
  const std::string tokens = ids_as<uint16_t>({1, 2, 3});
  const std::string good = llmc(20240520, 1, 3, tokens);
  damaged("llm.c", good.substr(0, good.size() - 1), {"bad'", "promises 3 tokens", "5 bytes follow", "cut short"});
  damaged("llm.c", good + "x", {"7 bytes follow it instead of 6"});
  damaged("llm.c", good.substr(0, 700), {"ends within its header", "700"});
  damaged("llm.c", good.substr(0, 11), {"ends within its header", "11"});
  damaged("llm.c", "", {"does not begin as a file of llm.c"});
  damaged("llm.c", llmc(20240520, 2, 3, tokens), {"version 2"});
  damaged("llm.c", llmc(20240801, 1, 3, tokens), {"version 1"});
  for (const int32_t count : {0, -1, INT32_MIN, INT32_MAX})
    damaged("llm.c", llmc(20240520, 1, count, tokens), {"promises"});
  damaged("llm.c", llmc(20240522, 1, 3, tokens), {"multiple-choice"});
  damaged("llm.c", llmq(2, 100, {1}), {"--from llm.q"});
  damaged("llm.c", "\x1f\x8b\x08more", {"compressed"});

  damaged("llm.q", good, {"--from llm.c"});
  damaged("llm.q", llmq(3, 100, {1}), {"version 3"});
  damaged("llm.q", llmq(2, 100, {1, 2}) + std::string(1, '\3'), {"promises 2 tokens"});
  damaged("llm.q", llmq(2, 100, {1, 2}, 1) + std::string(1, '\3'), {"masks the loss"});
  damaged("llm.q", llmq(2, 100, {1, 2}).substr(0, 20), {"ends within its header"});
  damaged("llm.q", llmq(2, 100, {1, 2}).substr(0, 1030), {"promises 2 tokens", "cut short"});
  damaged("llm.q", llmq(2, 100, {1, -2}), {"token 1 (byte 1028) has id -2"});

  damaged("uint16", "", {"empty"});
  damaged("uint16", "odd", {"3 bytes, no multiple of the 2"});
  damaged("uint32", tokens, {"6 bytes, no multiple of the 4"});
  damaged("uint16", good, {"--from llm.c"});
  damaged("uint32", ids_as<uint32_t>({1, 2, int32_t(0x80000000)}), {"token 2 (byte 8) has id 2147483648"});
  damaged("int64", raw<int64_t>({1, int64_t(1) << 32}), {"token 1 (byte 8) has id 4294967296"});
  damaged("uint8", tokens, {"--from uint8", "uint16", "megatron"});

  damaged("npy", npy("<u2", "4,", tokens), {"shape (4,)", "6 bytes follow"});
  damaged("npy", npy("<u2", "2,", tokens), {"shape (2,)"});
  damaged("npy", npy("<u2", "99999999999999999999,", tokens), {"shape"});
  damaged("npy", npy("<u2", "4294967296, 4294967296", tokens), {"shape"});
  damaged("npy", npy(">u2", "3,", tokens), {"type >u2", "astype"});
  damaged("npy", npy("<f4", "3,", tokens), {"type <f4"});
  damaged("npy", npy("<\xe1\x80", "3,", tokens), {"holds records, no ids"});
  damaged("npy", npy("<u2", "0,", ""), {"no tokens"});
  damaged("npy", npy("<u2", "3,", tokens).substr(0, 60), {"ends within its header"});
  damaged("npy", std::string("\x93NUMPY"), {"ends within its header"});
  damaged("npy", tokens, {"does not begin as a file of npy"});
}

TEST_F(Convert, MegatronsTwoFilesMustAgree) {
  const std::string bin = ids_as<uint16_t>({1, 2, 3, 4, 5}), good = idx(8, {2, 3}, {0, 1, 2}, 2);
  const auto check = [&](const std::string& data, const std::string& index, const std::vector<std::string>& parts) {
    dir.write("m.bin", data);
    dir.write("m.idx", index);
    refused(options("megatron", {"m.bin"}), parts);
  };
  const auto with = [&](size_t offset, const std::string& bytes) {
    std::string copy = good;
    return copy.replace(offset, bytes.size(), bytes);
  };
  check(bin.substr(0, 8), good, {"m.bin' has 8 bytes", "m.idx", "speaks of 10"});
  check(bin + bin, good, {"m.bin' has 20 bytes"});
  check(bin.substr(0, 9), good, {"9 bytes, no multiple of the 2"});
  check("", good, {"m.bin' is empty"});
  check(bin, "", {"m.idx", "does not begin"});
  check(bin, good.substr(0, 20), {"ends within its header"});
  check(bin, good.substr(0, good.size() - 1), {"is cut short: 2 sequences and 3 boundaries"});
  check(bin, good + "x", {"1 bytes after its end"});
  check(bin, good + "xy", {"multimodal"});
  check(bin, with(0, "TNTIDX\0\0"), {"does not begin"});
  check(bin, with(0, std::string("TNTIDX\0", 7)), {"older form"});
  check(bin, with(9, raw<uint64_t>({2})), {"version 2"});
  for (const char type : {'\0', '\6', '\7', '\11', '\377'})
    check(bin, with(17, std::string(1, type)), {"m.idx", "type"});
  for (const uint64_t n : {uint64_t(0), uint64_t(1), uint64_t(3), uint64_t(1) << 60, ~uint64_t(0)}) {
    check(bin, with(18, raw<uint64_t>({n})), {"m.idx"});
    check(bin, with(26, raw<uint64_t>({n == 3 ? 4 : n})), {"m.idx"});
  }
  check(bin, with(34, raw<int32_t>({1})), {"sequence 1 of 3 tokens at byte 4, those before it end at 2"});
  check(bin, with(34, raw<int32_t>({-2})), {"sequence 0 of -2 tokens"});
  check(bin, with(42, raw<int64_t>({2})), {"sequence 0 of 2 tokens at byte 2"});
  check(bin, with(50, raw<int64_t>({6})), {"speaks of 12"});
  check(bin, with(50, raw<int64_t>({INT64_MAX})), {"last sequence"});
  check(bin, with(58, raw<int64_t>({1})), {"first document begin with sequence 1"});
  for (const int64_t boundary : {int64_t(-1), int64_t(3), INT64_MAX})
    check(bin, with(66, raw<int64_t>({boundary})), {"document 0"});
  check(bin, with(74, raw<int64_t>({1})), {"ends document 1 before sequence 1 of 2"});
  dir.write("m.bin", ids_as<uint16_t>({1, 2, 3, 4, 65535}));
  dir.write("m.idx", good);
  ConvertOptions o = options("megatron", {"m"});
  o.vocab_size = 65535;
  refused(o, {"m.bin", "token 4 (byte 8) has id 65535", "65535 entries"});
  dir.write("alone.bin", bin);
  refused(options("megatron", {"alone.bin"}), {"alone.idx", "No such file"});
  refused(options("megatron", {"none"}), {"none"});
  dir.write("m.txt", bin);
  refused(options("megatron", {"m.txt"}), {"NAME.bin"});
}

TEST_F(Convert, FilesThatMegatronAndNumpyWrote) {
  const json said = read_json(golden("tokens/documents.json"));
  const std::vector<Ids> expected = said["documents"];
  const auto with = [](const std::string& format, const std::string& name) {
    ConvertOptions o{.format = format, .inputs = {golden("tokens/" + name)}, .vocab_size = 3000};
    if (format != "megatron") o.eos = 2;
    return o;
  };
  for (const auto& [format, name] : std::vector<std::pair<std::string, std::string>>{{"megatron", "megatron-uint16"},
                                                                                     {"megatron", "megatron-int32"},
                                                                                     {"npy", "ids.npy"},
                                                                                     {"uint16", "array.u16"}}) {
    ConvertOptions o = with(format, name);
    o.output = out();
    EXPECT_EQ(documents(o), expected) << name;
  }
  ConvertOptions rows = with("npy", "rows.npy");  // of an even number of ids
  rows.output = out();
  std::vector<Ids> even = expected;
  even.pop_back();
  std::vector<Ids> found = documents(rows);
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_EQ(found.back().size(), expected.back().size() - 1);
  found.pop_back();
  EXPECT_EQ(found, even);
}

TEST_F(Convert, AnInputIsNotOverwritten) {
  dir.write("out.tokens", ids_as<uint16_t>({1, 2, 3}));
  ConvertOptions o = options("uint16", {"out.tokens"});
  o.marked = false;
  EXPECT_TRUE(has(error_of<InputError>([&] { convert_tokens(o); }), "also an input"));
  EXPECT_EQ(read_file(out()).size(), 6u);
}

}  // namespace octet
