// Ranks as threads of one process. They hand one another pointers between two barriers.
#include <condition_variable>
#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "host/host.h"
#include "host/launch.h"

namespace octet {
namespace {

struct RankLost : SystemError {  // what the ranks that did not fail see; never reported when there is a cause
  RankLost() : SystemError("another rank failed") {}
};

// One for all groups of a run: a failure anywhere must wake whoever waits in any of them.
struct Run {
  explicit Run(int n) : threads(n) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::exception_ptr error;
  bool ended = false;
  int threads, resting = 0;  // of `threads`, those that will read no other's memory again
  std::list<std::function<void()>> when_lost;

  // A rank that is told of a failure frees its memory: not before all have stopped reading one another's.
  [[noreturn]] void leave(std::unique_lock<std::mutex>& lock) {
    rest();
    changed.wait(lock, [&] { return resting >= threads; });
    throw RankLost();
  }
  void rest() {
    ++resting;
    changed.notify_all();
  }
  void end(std::exception_ptr e) {
    const std::lock_guard lock(mutex);
    if (!error) error = e;
    ended = true;
    changed.notify_all();
    for (; !when_lost.empty(); when_lost.pop_front()) when_lost.front()();
  }
};

class Group {
 public:
  Group(Run& run, int size) : pointers(size_t(size)), run_(run), size_(size) {}
  Run& run() { return run_; }
  int size() const { return size_; }
  void barrier() {  // std::barrier would leave the others waiting for a rank that failed
    std::unique_lock lock(run_.mutex);
    if (run_.ended) run_.leave(lock);
    const int64_t turn = turn_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++turn_;
      run_.changed.notify_all();
    }
    run_.changed.wait(lock, [&] { return turn_ != turn || run_.ended; });
    if (turn_ == turn) run_.leave(lock);
  }
  std::vector<const void*> pointers;  // one of each rank, valid between two barriers

 private:
  Run& run_;
  int size_, arrived_ = 0;
  int64_t turn_ = 0;
};

class ThreadHost final : public Host {
 public:
  struct Place {
    int rank, local_rank, local_size;
  };
  ThreadHost(std::shared_ptr<Group> group, Place place) : group_(std::move(group)), place_(place) {}
  int rank() const override { return place_.rank; }
  int size() const override { return group_->size(); }
  int local_rank() const override { return place_.local_rank; }
  int local_size() const override { return place_.local_size; }
  bool shares_memory() const override { return true; }
  void barrier() override { group_->barrier(); }

  void all_gather(void* all, const void* mine, size_t bytes) override {
    share(mine, [&](size_t r, const void* theirs) { place(all, r, theirs, bytes); });
  }
  void all_to_all(void* all, const void* mine, size_t bytes) override {
    share(mine, [&](size_t r, const void* theirs) {
      place(all, r, static_cast<const char*>(theirs) + size_t(rank()) * bytes, bytes);
    });
  }
  void exchange(const std::vector<Part>& receives, const std::vector<Part>& sends) override {
    share(&sends, [&](size_t r, const void* theirs) {
      size_t next = 0;
      for (const Part& wanted : receives)
        if (wanted.rank == int(r)) take_part(*static_cast<const std::vector<Part>*>(theirs), next, rank(), wanted);
    });
  }
  void broadcast(void* data, size_t bytes, int root) override {
    CHECK(root >= 0 && root < size(), "no rank ", root, " among ", size());
    share(data, [&](size_t r, const void* theirs) {
      if (int(r) == root && root != rank()) std::memcpy(data, theirs, bytes);
    });
  }
  std::unique_ptr<Host> split(int colour, int size) override;
  std::shared_ptr<void> when_lost(std::function<void()> f) override;
  void abort(int) noexcept override { group_->run().end(nullptr); }

 private:
  static void place(void* all, size_t r, const void* theirs, size_t bytes) {
    char* to = static_cast<char*>(all) + r * bytes;
    if (to != theirs && bytes) std::memcpy(to, theirs, bytes);  // a rank's part may stand in place already
  }
  template <class F>
  void share(const void* mine, F&& take) {
    group_->pointers[size_t(rank())] = mine;
    barrier();
    for (size_t r = 0; r < group_->pointers.size(); ++r) take(r, group_->pointers[r]);
    barrier();  // nobody may leave while its bytes are being read
  }

  std::shared_ptr<Group> group_;
  Place place_;
};

std::unique_ptr<Host> ThreadHost::split(int colour, int size) {
  struct Wish {
    int colour, size;
  };
  const Wish wish{colour, size};
  std::vector<Wish> all(size_t(this->size()));
  all_gather(all.data(), &wish, sizeof wish);
  int members = 0, before = 0, first = -1;
  for (int r = 0; r < this->size(); ++r) {
    if (all[size_t(r)].colour != colour) continue;
    CHECK(all[size_t(r)].size == size, "ranks of colour ", colour, " want groups of ", size, " and ",
          all[size_t(r)].size);
    if (first < 0) first = r;
    before += r < rank();
    ++members;
  }
  CHECK(members == size, "a group of ", size, " ranks was asked for; ", members, " have the colour ", colour);
  // The first of each colour makes the group; the others copy its pointer while it waits.
  auto group = rank() == first ? std::make_shared<Group>(group_->run(), size) : nullptr;
  std::shared_ptr<Group> found;
  share(&group, [&](size_t r, const void* theirs) {
    if (int(r) == first) found = *static_cast<const std::shared_ptr<Group>*>(theirs);
  });
  return std::make_unique<ThreadHost>(found, Place{before, place_.local_rank, place_.local_size});
}

std::shared_ptr<void> ThreadHost::when_lost(std::function<void()> f) {
  Run& run = group_->run();
  std::unique_lock lock(run.mutex);
  if (run.ended) run.leave(lock);
  run.when_lost.push_front(std::move(f));
  return {&run, [mine = run.when_lost.begin()](Run* run) {
            const std::lock_guard lock(run->mutex);  // so that f has ended, or will not be called
            if (!run->ended) run->when_lost.erase(mine);
          }};
}

}  // namespace

void run_threads(int size, const std::function<void(Host&)>& body) {
  CHECK(size > 0, "a run has at least one rank, not ", size);
  const int forced = forced_local_size(), local = forced && forced < size ? forced : size;
  Run run(size);
  const auto world = std::make_shared<Group>(run, size);
  {
    std::vector<std::jthread> threads;
    const auto rank = [&](int r) {
      ThreadHost host(world, {r, r % local, local});
      try {
        body(host);
      } catch (...) { run.end(std::current_exception()); }
      const std::lock_guard lock(run.mutex);
      run.rest();
    };
    try {
      for (int r = 0; r < size; ++r) threads.emplace_back(rank, r);
    } catch (...) {  // no thread is left to start: those that run wait for the others
      {
        const std::lock_guard lock(run.mutex);
        run.threads = int(threads.size());
      }
      run.end(std::current_exception());
    }
  }
  if (run.error) std::rethrow_exception(run.error);
}

}  // namespace octet
