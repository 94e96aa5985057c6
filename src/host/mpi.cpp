// Ranks as processes, through MPI. Optional: without_mpi.cpp stands in for this file.
#define OMPI_SKIP_MPICXX 1  // the C interface only: the C++ one is another library
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <utility>

#include "base/check.h"
#include "host/deadline.h"
#include "host/host.h"
#include "host/launch.h"
#include "host/mpi_failures.h"

namespace octet {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw SystemError(concat(call, ": ", text));
}
#define MPI_CHECK(call) check(call, #call)

constexpr size_t kChunk = size_t{1} << 30;  // MPI counts in int

// A piece of `bytes`, of which one for each rank stands every `stride` bytes: pieces of more than 2^31 bytes go in
// chunks.
class Piece {
 public:
  Piece(size_t bytes, size_t stride) {
    MPI_Datatype contiguous;
    MPI_CHECK(MPI_Type_contiguous(int(bytes), MPI_BYTE, &contiguous));
    MPI_CHECK(MPI_Type_create_resized(contiguous, 0, MPI_Aint(stride), &type_));
    MPI_CHECK(MPI_Type_commit(&type_));
    MPI_CHECK(MPI_Type_free(&contiguous));
  }
  ~Piece() { MPI_Type_free(&type_); }
  Piece(const Piece&) = delete;
  MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

template <class F>
void in_chunks(size_t bytes, F&& f) {
  for (size_t at = 0; at < bytes; at += kChunk) f(at, std::min(kChunk, bytes - at));
}

struct Place {
  int local_rank = 0, local_size = 1;
  std::vector<int> machine{};  // the ranks that share it
};

class MpiHost final : public Host {
 public:
  MpiHost(MPI_Comm comm, Place place) : comm_(comm), place_(std::move(place)) {
    MPI_CHECK(MPI_Comm_rank(comm_, &rank_));
    MPI_CHECK(MPI_Comm_size(comm_, &size_));
    if (comm_ != MPI_COMM_WORLD) return;
    MPI_Comm own;
    MPI_CHECK(MPI_Comm_dup(comm_, &own));
    MPI_CHECK(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN));
    failures_.emplace(own, rank_, size_, place_.machine);
  }
  // A rank that leaves by an exception must not wait for the others: it ends without MPI_Finalize, and mpirun ends
  // them.
  ~MpiHost() override {
    if (std::uncaught_exceptions() > 0) return;
    if (comm_ == MPI_COMM_WORLD) MPI_Finalize();
    else MPI_Comm_free(&comm_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return place_.local_rank; }
  int local_size() const override { return place_.local_size; }
  bool shares_memory() const override { return false; }
  const char* under_way() const override { return under_way_; }
  void barrier() override {
    const Waiting here(under_way_, "barrier");
    MPI_CHECK(MPI_Barrier(comm_));
  }

  void all_gather(void* all, const void* mine, size_t bytes) override {
    char* to = static_cast<char*>(all);
    const char* from = static_cast<const char*>(mine);
    const bool in_place = from == to + size_t(rank_) * bytes;
    const Waiting here(under_way_, "all-gather");
    in_chunks(bytes, [&](size_t at, size_t n) {
      const Piece piece(n, bytes);
      MPI_CHECK(MPI_Allgather(in_place ? MPI_IN_PLACE : from + at, int(n), MPI_BYTE, to + at, 1, piece.type(), comm_));
    });
  }
  void all_to_all(void* all, const void* mine, size_t bytes) override {
    const Waiting here(under_way_, "all-to-all");
    in_chunks(bytes, [&](size_t at, size_t n) {
      const Piece piece(n, bytes);
      MPI_CHECK(MPI_Alltoall(static_cast<const char*>(mine) + at, 1, piece.type(), static_cast<char*>(all) + at, 1,
                             piece.type(), comm_));
    });
  }
  void exchange(const std::vector<Part>& receives, const std::vector<Part>& sends) override {  // MPI keeps their order
    std::vector<MPI_Request> under_way;
    const auto start = [&](const std::vector<Part>& parts, auto&& call) {
      for (const Part& p : parts)
        in_chunks(p.bytes, [&](size_t at, size_t n) {
          call(static_cast<char*>(p.data) + at, int(n), p.rank, &under_way.emplace_back());
        });
    };
    start(receives,
          [&](char* to, int n, int rank, MPI_Request* r) { MPI_CHECK(MPI_Irecv(to, n, MPI_BYTE, rank, 0, comm_, r)); });
    start(sends, [&](char* from, int n, int rank, MPI_Request* r) {
      MPI_CHECK(MPI_Isend(from, n, MPI_BYTE, rank, 0, comm_, r));
    });
    MPI_CHECK(MPI_Waitall(int(under_way.size()), under_way.data(), MPI_STATUSES_IGNORE));
  }
  void broadcast(void* data, size_t bytes, int root) override {
    const Waiting here(under_way_, "broadcast");
    in_chunks(bytes, [&](size_t at, size_t n) {
      MPI_CHECK(MPI_Bcast(static_cast<char*>(data) + at, int(n), MPI_BYTE, root, comm_));
    });
  }
  std::unique_ptr<Host> split(int colour, int size) override {
    MPI_Comm group;
    MPI_CHECK(MPI_Comm_split(comm_, colour, rank_, &group));
    auto host = std::make_unique<MpiHost>(group, place_);
    CHECK(host->size() == size, "a group of ", size, " ranks was asked for; ", host->size(), " have the colour ",
          colour);
    return host;
  }
  std::shared_ptr<void> when_lost(std::function<void()>) override { return nullptr; }
  void tell_failure(uint64_t word) noexcept override {
    if (failures_) failures_->tell(word);
  }
  bool hears_failure(uint64_t word, double seconds) noexcept override {
    return failures_ && failures_->hears(word, seconds);
  }
  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  struct Waiting {
    Waiting(std::atomic<const char*>& where, const char* what) : where_(where) { where_ = what; }
    ~Waiting() { where_ = nullptr; }
    Waiting(const Waiting&) = delete;
    std::atomic<const char*>& where_;
  };
  MPI_Comm comm_;
  Place place_;
  std::atomic<const char*> under_way_{nullptr};
  int rank_ = 0, size_ = 1;
  std::optional<MpiFailures> failures_;  // of all ranks
};

Place find_place() {
  int rank = 0;
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  MPI_Comm machine;
  MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine));
  Place p;
  MPI_CHECK(MPI_Comm_rank(machine, &p.local_rank));
  MPI_CHECK(MPI_Comm_size(machine, &p.local_size));
  p.machine.resize(size_t(p.local_size));
  MPI_CHECK(MPI_Allgather(&rank, 1, MPI_INT, p.machine.data(), 1, MPI_INT, machine));
  MPI_CHECK(MPI_Comm_free(&machine));
  if (const int forced = forced_local_size(); forced && forced < p.local_size) {
    const auto first = p.machine.begin() + p.local_rank / forced * forced;
    const int there = std::min(forced, int(p.machine.end() - first));
    p = {p.local_rank % forced, forced, {first, first + there}};
  }
  return p;
}

std::string name_of_mpi() {  // "Open MPI v4.1.4", the first words of a long text
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_CHECK(MPI_Get_library_version(text, &length));
  const std::string all(text, size_t(length));
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace

std::unique_ptr<Host> mpi_host(int* argc, char*** argv) {
  const Launch l = launch();
  if (!l.through_mpi) {  // a lone run needs no mpirun, and MPI_Init would look for one
    if (l.ranks > 1)
      bad_input("srun started ", l.ranks, " ranks without MPI, each of which would run alone: use srun --mpi=pmix, or ",
                "mpirun; for a command that runs as one process, such as octet tokenize, srun -n 1");
    return nullptr;
  }
  const Deadline limit(kMostForMpi,
                       concat("MPI has not started the ", l.ranks, " ranks within ", kMostForMpi,
                              " s: one of them hangs, or never came: look at what the others say, and at the "
                              "nodes that say nothing"));
  int provided = 0;
  MPI_CHECK(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided));
  // Errors come back as codes, so that the message says which rank met them
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  if (provided < MPI_THREAD_FUNNELED) throw SystemError("this MPI does not allow a process to have threads");
  auto host = std::make_unique<MpiHost>(MPI_COMM_WORLD, find_place());
  if (host->size() < l.ranks)  // the mpirun of another MPI, or an interface of srun's that this one does not speak
    bad_input(l.ranks, " ranks were started, but not in a way that the MPI of this octet (", name_of_mpi(),
              ") knows: it sees ", host->size(), ", which would run alone: start them with its own mpirun, or with ",
              "srun --mpi=pmix");
  return host;
}

}  // namespace octet
