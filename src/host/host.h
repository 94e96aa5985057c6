#pragma once
// Host: what the processes of a run say to each other without a device. Threads of one process, or MPI.
// Compiled once: the loader and the checkpoints need it as well as the engines do.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace octet {

class Host {
 public:
  virtual ~Host() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Among all ranks of this machine, also of a group: the card's index. OCTET_LOCAL_SIZE=n makes machines of n ranks
  // each.
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  virtual bool shares_memory() const = 0;  // the ranks may read one another's memory, as threads do
  virtual void all_gather(void* all, const void* mine, size_t bytes) = 0;  // all = concat over ranks of mine
  virtual void all_to_all(void* all, const void* mine, size_t bytes) = 0;  // the r-th `bytes` of mine go to rank r
  // Bytes for some ranks, one's own among them, and from some: between two ranks the parts that one sends are those
  // that the other receives, in order and size.
  struct Part {
    int rank;
    void* data;
    size_t bytes;
  };
  virtual void exchange(const std::vector<Part>& receives, const std::vector<Part>& sends) = 0;
  virtual void broadcast(void* data, size_t bytes, int root) = 0;
  virtual void barrier() = 0;
  // What the rank waits in, for another thread that watches it: "all-gather"; null: in nothing, or it is not known.
  virtual const char* under_way() const { return nullptr; }
  virtual std::unique_ptr<Host> split(int colour,
                                      int size) = 0;  // a group of `size` ranks for each colour, in rank order
  // Calls f, once and on another rank's thread, when a rank fails while this one may wait for it on its device; until
  // the result is dropped. Null, and never called, where a failing rank ends the whole job.
  virtual std::shared_ptr<void> when_lost(std::function<void()> f) = 0;
  // Of ranks that fail (host/last_words.h). Rank 0 speaks for all others, the first rank of a machine for those there:
  // tell_failure() gives them the word of its message; hears_failure(): one that speaks for this rank gives that word
  // within `seconds`. Never where every rank speaks for itself.
  virtual void tell_failure(uint64_t) noexcept {}
  virtual bool hears_failure(uint64_t, double) noexcept { return false; }
  // Ends the job on all ranks now; called when a rank fails. Returns only where ending is done elsewhere.
  virtual void abort(int exit_code) noexcept = 0;
};

class LoneHost final : public Host {  // rank 0 of `size` with nobody else there: single runs, plans
 public:
  explicit LoneHost(int size = 1, int local_size = 0) : size_(size), local_size_(local_size ? local_size : size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  int local_rank() const override { return 0; }
  int local_size() const override { return local_size_; }
  bool shares_memory() const override { return true; }
  void all_gather(void* all, const void* mine, size_t bytes) override;
  void all_to_all(void* all, const void* mine, size_t bytes) override;
  void exchange(const std::vector<Part>& receives, const std::vector<Part>& sends) override;
  void broadcast(void*, size_t, int) override {}
  void barrier() override {}
  std::unique_ptr<Host> split(int, int size) override { return std::make_unique<LoneHost>(size, local_size_); }
  std::shared_ptr<void> when_lost(std::function<void()>) override { return nullptr; }
  void abort(int) noexcept override {}

 private:
  int size_, local_size_;
};

// Of the parts that `rank` sends, the next one for `to` from `next` on, which must be as long as `wanted`.
void take_part(const std::vector<Host::Part>& sends, size_t& next, int to, const Host::Part& wanted);

// Runs body on `size` threads of this process, one rank each. The first exception ends the other ranks at their next
// barrier and is rethrown here.
void run_threads(int size, const std::function<void(Host&)>& body);

// The ranks that mpirun or srun started; null when the program was started alone. InputError when several were started
// and this build has no MPI. The result outlives every group made from it; ending it ends MPI.
std::unique_ptr<Host> mpi_host(int* argc, char*** argv);

}  // namespace octet
