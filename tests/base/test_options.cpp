// Options: one declaration gives value, reading, limits, printing; wrong input is refused by
// place, limit and suggestion.
#include <gtest/gtest.h>

#include <memory>

#include "base/json.h"
#include "base/options.h"
#include "config/refusal.h"

namespace octet {
namespace {

enum class Colour { red, green };

struct Sample : Section {
  Sample() : Section("sample") {}
  Option<int64_t> steps{this, "steps", 5, "how many", at_least(0), Aliases{"count"}};
  Option<double> rate{this, "rate", 0.5, "how fast", from_below(0, 1)};
  Option<bool> quick{this, "quick", false, "hurry"};
  Option<std::string> title{this, "title", "none", "what it is called"};
  Choice<Colour> colour{this,
                        "colour",
                        Colour::red,
                        "of the bar",
                        {{"red", Colour::red}, {"green", Colour::green}, {"GREEN", Colour::green, false}}};
  Option<std::vector<std::string>> files{this, "files", {}, "what to read"};
  Option<std::vector<double>> weights{this, "weights", {}, "of the files", more_than(0)};
  Option<std::array<bool, 3>> flags{this, "flags", {false, true, false}, "three"};
  Option<bool> secret{this, "secret", false, "for tests", Hidden{}};
};

std::string refusal_of(const char* text, const std::vector<std::string>& others = {}) {
  return refusal([&] { Sample().read(parse_json(text, "a.json"), "a.json", others); });
}
Sample sample_of(const char* text) {
  Sample s;
  s.read(parse_json(text, "a.json"), "a.json");
  return s;
}

TEST(Options, EveryTypeIsReadAndUsedAsItsValue) {
  const Sample s = sample_of(R"({"steps": 2e3, "rate": 0, "quick": true, "title": "a", "colour": "green",
                                 "files": ["x", "y"], "weights": [1, 2.5], "flags": [true, false, true]})");
  EXPECT_EQ(s.steps + 1, 2001);
  EXPECT_EQ(s.rate, 0.0);
  EXPECT_TRUE(s.quick);
  EXPECT_EQ(*s.title, "a");
  EXPECT_EQ(s.colour, Colour::green);
  EXPECT_EQ(s.files->size(), 2u);
  EXPECT_EQ(*s.weights, (std::vector<double>{1, 2.5}));
  EXPECT_EQ(*s.flags, (std::array<bool, 3>{true, false, true}));
  EXPECT_EQ(concat(s.steps, " ", s.colour, " ", s.title, " ", s.flags), "2000 green a [true,false,true]");
}

TEST(Options, OneValueIsAListOfOneAndAnotherNameOfAValueIsTheValue) {
  const Sample s = sample_of(R"({"files": "x", "weights": 2, "colour": "GREEN"})");
  EXPECT_EQ(*s.files, std::vector<std::string>{"x"});
  EXPECT_EQ(*s.weights, std::vector<double>{2});
  EXPECT_EQ(s.colour.text(), "green");
}

TEST(Options, KnowWhetherTheyWereGiven) {
  Sample s = sample_of(R"({"count": 5})");
  EXPECT_TRUE(s.steps.was_given());
  EXPECT_FALSE(s.rate.was_given());
  s.steps.default_to(7), s.rate.default_to(0.25);
  EXPECT_EQ(s.steps, 5);
  EXPECT_EQ(s.rate, 0.25);
  s.rate.set(0.75);
  EXPECT_TRUE(s.rate.was_given());
}

TEST(Options, CopiesOfASectionAreSectionsOfTheirOwn) {
  auto first = std::make_unique<Sample>(sample_of(R"({"steps": 1})"));
  Sample copy = *first;
  copy.read(parse_json(R"({"steps": 2, "files": "x"})", "a.json"), "a.json");
  EXPECT_EQ(first->steps, 1);
  EXPECT_EQ(first->values()["steps"], 1);
  EXPECT_TRUE(first->files->empty());
  first.reset();  // a copy that pointed into the original would now read freed memory
  EXPECT_EQ(copy.values()["steps"], 2);
  Sample assigned;
  assigned = copy;
  copy.steps.set(9);
  EXPECT_EQ(assigned.find("count"), &assigned.steps);
  EXPECT_EQ(assigned.values()["steps"], 2);
}

TEST(Options, ValuesReadBackGiveTheSameValues) {
  const Sample s =
      sample_of(R"({"steps": 9007199254740993, "rate": 0.1, "colour": "green", "weights": [1], "secret": true})");
  Sample again;
  again.read(s.values(), "a.json");
  EXPECT_EQ(again.values(), s.values());
  EXPECT_EQ(again.steps, 9007199254740993);  // beyond a double's integers
  EXPECT_TRUE(again.secret);
  EXPECT_FALSE(Sample().values().contains("secret"));
}

TEST(Options, TheTableOfHelpHasEveryOptionWithTypeLimitsAndAliases) {
  const std::vector<OptionLine> lines = Sample().lines();
  ASSERT_EQ(lines.size(), 9u);
  EXPECT_EQ(lines[0].path, "sample.steps");
  EXPECT_EQ(lines[0].value, "5");
  EXPECT_EQ(lines[0].limits, "at least 0");
  EXPECT_EQ(lines[0].aliases, std::vector<std::string>{"count"});
  EXPECT_EQ(lines[1].limits, "at least 0 and less than 1");
  EXPECT_EQ(lines[4].type, "red | green");
  EXPECT_TRUE(lines[8].hidden);
}

TEST(Options, MistypedValuesAreRefusedWithPlaceTypeAndValue) {
  EXPECT_EQ(refusal_of(R"({"steps": "ten"})"), R"(a.json: sample.steps: expected an integer, got "ten")");
  EXPECT_EQ(refusal_of(R"({"steps": 2.5})"), "a.json: sample.steps: expected an integer, got 2.5");
  EXPECT_EQ(refusal_of(R"({"count": true})"), "a.json: sample.count: expected an integer, got true");
  EXPECT_EQ(refusal_of(R"({"rate": null})"), "a.json: sample.rate: expected a number, got null");
  EXPECT_EQ(refusal_of(R"({"quick": 1})"), "a.json: sample.quick: expected true or false, got 1");
  EXPECT_EQ(refusal_of(R"({"title": 3})"), "a.json: sample.title: expected a string, got 3");
  EXPECT_EQ(refusal_of(R"({"colour": 3})"), "a.json: sample.colour: expected one of red | green, got 3");
  EXPECT_EQ(refusal_of(R"({"files": ["x", 1]})"), R"(a.json: sample.files: expected a list of strings, got ["x",1])");
  EXPECT_EQ(refusal_of(R"({"flags": [true, false]})"),
            "a.json: sample.flags: expected a list of three of true or false, got [true,false]");
  EXPECT_EQ(refusal_of("[1]"), "a.json: sample: expected an object of options, got [1]");
}

TEST(Options, ValuesOutOfRangeAreRefusedWithTheRange) {
  EXPECT_EQ(refusal_of(R"({"steps": -1})"), "a.json: sample.steps: -1 is out of range; it must be at least 0");
  EXPECT_EQ(refusal_of(R"({"rate": 1})"),
            "a.json: sample.rate: 1 is out of range; it must be at least 0 and less than 1");
  EXPECT_EQ(refusal_of(R"({"weights": [1, 0]})"),
            "a.json: sample.weights[1]: 0 is out of range; it must be more than 0");
  EXPECT_NE(refusal_of(R"({"steps": 18446744073709551615})").find("out of range of a 64-bit integer"),
            std::string::npos);
  EXPECT_NE(refusal_of(R"({"steps": 1e300})").find("out of range of a 64-bit integer"), std::string::npos);
  EXPECT_EQ(refusal_of(R"({"colour": "gren"})"),
            R"(a.json: sample.colour: "gren" is not one of red | green; did you mean green?)");
}

TEST(Options, UnknownKeysAreRefusedWithASuggestion) {
  EXPECT_EQ(refusal_of(R"({"stesp": 1})"), "a.json: sample.stesp: unknown option; did you mean sample.steps?");
  EXPECT_EQ(refusal_of(R"({"lr": 1})", {"other.lr"}), "a.json: sample.lr: unknown option; did you mean other.lr?");
  EXPECT_EQ(refusal_of(R"({"entirely_new": 1})"), "a.json: sample.entirely_new: unknown option");
}

TEST(Options, TheSameOptionTwiceIsRefused) {
  EXPECT_EQ(refusal_of(R"({"steps": 1, "count": 2})"),
            "a.json: sample.count and sample.steps are the same option; keep one of them");
  EXPECT_EQ(refusal_of(R"({"steps": 1, "steps": 1})"), "a.json: steps appears twice; keep one of them");
  EXPECT_EQ(refusal([] { parse_json(R"({"a": [{"b": {"c": 1, "d": 2, "c": 3}}]})", "a.json"); }),
            "a.json: a.b.c appears twice; keep one of them");
  EXPECT_EQ(refusal([] { parse_json(R"([{"b": 1}, {"b": 1}])", "a.json"); }), "");
}

TEST(Options, ACommandLineGivesJsonOrBareText) {
  Sample s;
  s.steps.read_text("12", "here"), s.title.read_text("12", "here"), s.colour.read_text("green", "here");
  s.files.read_text("a b.bin", "here"), s.weights.read_text("[1, 2]", "here"), s.quick.read_text("true", "here");
  EXPECT_EQ(s.steps, 12);
  EXPECT_EQ(*s.title, "12");
  EXPECT_EQ(s.colour, Colour::green);
  EXPECT_EQ(*s.files, std::vector<std::string>{"a b.bin"});
  EXPECT_EQ(s.weights->size(), 2u);
  EXPECT_TRUE(s.quick);
  s.files.read_text("", "here"), s.weights.read_text("", "here"), s.title.read_text("", "here");
  EXPECT_TRUE(s.files->empty() && s.weights->empty() && s.title->empty());
  s.title.read_text(R"("quoted")", "here");
  EXPECT_EQ(*s.title, "quoted");
  EXPECT_EQ(refusal([&] { s.steps.read_text("many", "here"); }), R"(here: expected an integer, got "many")");
}

TEST(Json, SyntaxErrorsNameFileLineAndColumn) {
  EXPECT_NE(refusal([] { parse_json("{\n  \"a\": 1,\n  b: 2\n}", "a.json"); }).find("a.json:3:3: syntax error"),
            std::string::npos);
  EXPECT_NE(refusal([] { parse_json("", "a.json"); }).find("a.json:1:1: "), std::string::npos);
  EXPECT_NE(refusal([] { parse_json("{\"a\": 1} x", "a.json"); }).find("a.json:1:10: "), std::string::npos);
  EXPECT_NE(refusal([] { parse_json("{\"a\": 1e999}", "a.json"); }).find("a.json"), std::string::npos);
  EXPECT_NE(refusal([] { parse_json("\"\xff\"", "a.json"); }).find("a.json:1:"), std::string::npos);
  EXPECT_NE(refusal([] { parse_json(std::string(1000000, '['), "a.json"); }).find("nested more than 100"),
            std::string::npos);
}

TEST(Json, CommentsAreAllowedAndKeysStayInOrder) {
  const json object = parse_json("// first\n{\"b\": 1, /* why */ \"a\": 2}", "a.json");
  EXPECT_EQ(object.dump(), R"({"b":1,"a":2})");
}

}  // namespace
}  // namespace octet
