// Nodes that do not see the same files: a rank that would save apart is refused at the start; a checkpoint that looks
// otherwise on one node is read as rank 0 sees it, or refused, but splits no ranks.
#include "cli/tiny_run.h"
#include "host/launch.h"
#include "mpi/mpirun.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

struct Nodes : Mpi {
  Nodes() {
    for (const char* node : {"node0", "node1"}) fs::create_directories(tiny.path(node));
  }
  // A rank on each of two nodes, each in a folder of its own: what a relative name means is theirs.
  std::vector<Part> parts(const std::vector<std::string>& more) const {
    std::vector<std::string> words = tiny.words(
        {"log.file=" + tiny.path("nodes.jsonl"), "training.micro_batch_size=1", "parallel.watchdog_seconds=5"});
    words.insert(words.end(), more.begin(), more.end());
    return {{1, words, tiny.path("node0")}, {1, words, tiny.path("node1")}};
  }
  Ran train(const std::vector<std::string>& more) const { return run(mpirun(parts(more))); }
  std::string at(const std::string& node, const std::string& file) const { return tiny.path(node + "/saved/" + file); }

  // Step 5 under the same relative name on both.
  void save() const {
    expect_done(tiny.train({"training.stop_after=5"}));
    for (const char* node : {"node0", "node1"})
      fs::copy(tiny.path("run/step-00000005"), tiny.path(std::string(node) + "/saved"), fs::copy_options::recursive);
  }
  Ran resume() const { return train({"checkpoint.dir=", "--resume", "saved"}); }

  const TinyRun tiny;
};

TEST_F(Nodes, AFolderThatIsNotSharedIsToldAtTheStart) {
  const std::string absolute = tiny.path("shared");
  expect_done(train({"checkpoint.dir=" + absolute}), {"step 10/10", "saved " + absolute});
  for (const char* other : {"nothing", "another run's"}) {
    if (other[0] == 'a') {
      fs::create_directories(tiny.path("node1/apart"));
      write_file(tiny.path("node1/apart/.lock"), "process 1 on node1\n1\n");
    }
    const Ran r = train({"checkpoint.dir=apart"});
    EXPECT_EQ(r.code, 2) << r;
    EXPECT_TRUE(has(r.err, "rank 1 on " + machine_name() +
                               ": checkpoint.dir apart is not on this node the folder that rank 0 sees"))
        << r;
    EXPECT_FALSE(has(r.out, "step 1/")) << r;
  }
}

// As after an update that did not reach every node: the two may not even speak of the same things in the same order.
TEST_F(Nodes, AnotherBuildOfTheProgramIsRefused) {
  std::string program = read_file(OCTET_BINARY);
  const size_t note =
      program.find(std::string("\x03\0\0\0GNU\0", 8));  // the type of a build id, its owner, then the id
  ASSERT_NE(note, std::string::npos);
  program.at(note + 8) = char(program[note + 8] ^ 1);
  write_file(tiny.path("other"), program);
  fs::permissions(tiny.path("other"), fs::perms(0755));
  std::vector<Part> two = parts({"checkpoint.dir="});
  two[1].words[0] = tiny.path("other");
  const Ran r = run(mpirun(two));
  EXPECT_EQ(r.code, 2) << r;
  EXPECT_TRUE(has(r.err, ": octet: the build of the program is ") && has(r.err, "the same program")) << r;
}

TEST_F(Nodes, ACheckpointIsReadAsRank0SeesIt) {
  save();
  expect_done(resume(), {"resumed from saved at step 5", "step 10/10"});
  const std::string state = read_file(at("node1", "state.json"));
  fs::remove(at("node1", "checksums.json"));  // rank 0 has them
  fs::remove(at("node1", "COMPLETE"));
  const size_t digit = state.find(':', state.find("\"step\"")) + 2;
  write_file(at("node1", "state.json"), state.substr(0, digit) + "3" + state.substr(digit + 1));
  expect_done(resume(), {"resumed from saved at step 5", "step 10/10"});
}

TEST_F(Nodes, ATensorFileThatOneOfThemLacksIsRefused) {
  save();
  const std::string moments = read_file(at("node0", "optimizer.safetensors"));
  for (const char* node : {"node1", "node0"}) {
    fs::remove(at(node, "optimizer.safetensors"));
    const Ran r = resume();
    EXPECT_EQ(r.code, 2) << r;
    EXPECT_TRUE(has(r.err, concat("rank ", node[4], " on ")) && has(r.err, "saved/optimizer.safetensors")) << r;
    write_file(at(node, "optimizer.safetensors"), moments);
  }
  const Ran r = resume();
  expect_done(r, {"step 10/10"});
}

TEST_F(Nodes, ChecksumsThatRank0LacksAreMissedOnAll) {
  save();
  fs::remove(at("node0", "checksums.json"));
  fs::remove(at("node0", "optimizer.safetensors"));
  const Ran r = resume();
  expect_done(r, {"step 10/10"});
  EXPECT_TRUE(has(r.err, "has no checksums.json") && has(r.err, "starts without its moments")) << r;
}

}  // namespace
}  // namespace octet
