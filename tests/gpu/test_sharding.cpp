// Two GPUs train the model of one through NCCL, at every stage, as threads and as processes; runs repeat bit for bit; a
// rank that is killed or stopped ends the job, and the message names it and the collective that the other waits in.
#define BACKEND gpu
#include "device/device.h"
#include "mpi/job.h"
#include "mpi/mpirun.h"

namespace octet {
namespace {

struct TwoGpus : Mpi {
  void SetUp() override {
    if (gpu::device_count() < 2) GTEST_SKIP() << "needs two GPUs";
    Mpi::SetUp();
  }
};

struct Trained {
  std::vector<double> losses;
  std::string tensors;  // of the last checkpoint
};
class Trainings {
 public:
  Trained train(std::vector<std::string> before, std::vector<std::string> more) {
    const std::string name = "run" + std::to_string(count_++);
    more.insert(more.begin(),
                {"device=cuda", "training.deterministic=true", "training.steps=20", "training.global_batch_size=12",
                 "training.micro_batch_size=2", "schedule.lr=3e-3", "checkpoint.every=0", "parallel.check_every=5",
                 "checkpoint.dir=" + tiny_.path(name), "log.file=" + tiny_.path(name + ".jsonl")});
    for (const std::string& word : tiny_.words(more)) before.push_back(word);
    expect_done(run(before), {"step 20/20"});
    const std::string folder = tiny_.path(name) + "/step-00000020/";
    return {tiny_.losses(name + ".jsonl"),
            read_file(folder + "model.safetensors") + read_file(folder + "optimizer.safetensors")};
  }
  void expect_the_model_of_one(const std::vector<std::string>& launcher, const std::string& format, double tolerance) {
    const Trained one = train({}, {format});
    ASSERT_EQ(one.losses.size(), 20u);
    EXPECT_LT(one.losses.back(), one.losses.front() - 0.2);
    for (const std::string stage : {"0", "1", "2", "3"}) {
      std::vector<std::string> words{format, "parallel.zero_stage=" + stage};
      if (launcher.empty()) words.insert(words.end(), {"--ranks", "2"});
      const Trained a = train(launcher, words), b = train(launcher, words);
      ASSERT_EQ(a.losses.size(), 20u);
      for (size_t i = 0; i < 20; ++i)
        EXPECT_NEAR(a.losses[i], one.losses[i], tolerance * one.losses[i]) << "stage " << stage << " step " << i + 1;
      EXPECT_EQ(a.losses, b.losses) << "stage " << stage;
      EXPECT_TRUE(a.tensors == b.tensors) << "stage " << stage;
    }
  }

 private:
  TinyRun tiny_;
  int count_ = 0;
};

TEST_F(TwoGpus, AsThreadsTrainTheModelOfOne) {
  Trainings().expect_the_model_of_one({}, "precision.param_dtype=fp32", 1e-6);
}
TEST_F(TwoGpus, AsProcessesTrainTheModelOfOne) {
  Trainings().expect_the_model_of_one({"mpirun", "-np", "2", "--bind-to", "none"}, "precision.param_dtype=fp32", 1e-6);
}
TEST_F(TwoGpus, InFp8TrainTheModelOfOne) { Trainings().expect_the_model_of_one({}, "fp8.enabled=true", 1e-2); }

TEST_F(TwoGpus, OptionsOfCollectivesChangeNoBit) {
  Trainings t;
  const std::vector<std::string> usual{"--ranks", "2", "parallel.zero_stage=3"};
  const Trained a = t.train({}, usual);
  for (const char* option : {"parallel.prefetch=0", "parallel.prefetch=2", "parallel.nccl_register=true"}) {
    std::vector<std::string> words = usual;
    words.push_back(option);
    const Trained b = t.train({"env", "NCCL_LEGACY_CUDA_REGISTER=1"}, words);
    EXPECT_EQ(a.losses, b.losses) << option;
    EXPECT_TRUE(a.tensors == b.tensors) << option;
  }
}

TEST_F(TwoGpus, NvlsCanBeTurnedOff) {
  const TinyRun tiny;
  std::vector<std::string> words{"env", "NCCL_NVLS_ENABLE=0", "NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,ENV"};
  for (const std::string& word : tiny.words({"device=cuda", "training.steps=3", "--ranks", "2"})) words.push_back(word);
  const Ran r = run(words);
  expect_done(r, {"step 3/3"});
  EXPECT_TRUE(has(r.out + r.err, "NCCL_NVLS_ENABLE set by environment to 0")) << r;
}

// ---- failures

struct GpuFailures : TwoGpus {
  static std::vector<std::string> endless(std::vector<std::string> more) {
    more.insert(more.begin(), {"device=cuda", "training.steps=10000000", "checkpoint.every=0", "schedule.lr=1e-4",
                               "parallel.zero_stage=3"});
    return more;
  }
};

TEST_F(GpuFailures, AKilledRankEndsTheJob) {
  const TinyRun tiny;
  Job job(tiny, 2, endless({}));
  ASSERT_TRUE(job.reaches_step(20)) << job.wait();
  job.signal(1, SIGKILL);
  const Ran r = job.end("kill -9 of a rank with a GPU");
  EXPECT_NE(r.code, 0) << r;
  EXPECT_NE(r.code, 4) << r;
}

TEST_F(GpuFailures, AStoppedRankEndsTheJobByNameAndCollective) {
  const TinyRun tiny;
  Job job(tiny, 2, endless({"parallel.watchdog_seconds=8"}));
  ASSERT_TRUE(job.reaches_step(20)) << job.wait();
  job.signal(1, SIGSTOP);
  const Ran r = job.end("SIGSTOP of a rank with a GPU (watchdog: 8 s)");
  EXPECT_NE(r.code, 0) << r;
  EXPECT_TRUE(has(r.err, ": octet: no progress for ")) << r;
  EXPECT_TRUE(has(r.err, ": rank 1 has not been heard of for ")) << r;
  EXPECT_TRUE(has(r.err, ", waiting in: ") && has(r.err, " among ")) << r;
}

TEST_F(GpuFailures, ASignalToOneRankSavesTheSameStepOnBoth) {
  const TinyRun tiny;
  Job job(tiny, 2, endless({}));
  ASSERT_TRUE(job.reaches_step(20)) << job.wait();
  job.signal(1, SIGTERM);
  const Ran r = job.end("SIGTERM to a rank with a GPU");
  EXPECT_EQ(r.code, 4) << r;
  EXPECT_TRUE(has(r.out, concat("ended by a signal after step ", job.records().back()["step"].get<int64_t>()))) << r;
}

}  // namespace
}  // namespace octet
