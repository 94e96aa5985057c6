#pragma once
// A rank that is another one but for what a subclass says of itself.
#include "host/host.h"

namespace octet {

class HostWrapper : public Host {
 public:
  explicit HostWrapper(Host& host) : host_(host) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int local_rank() const override { return host_.local_rank(); }
  int local_size() const override { return host_.local_size(); }
  bool shares_memory() const override { return host_.shares_memory(); }
  void all_gather(void* all, const void* mine, size_t bytes) override { host_.all_gather(all, mine, bytes); }
  void all_to_all(void* all, const void* mine, size_t bytes) override { host_.all_to_all(all, mine, bytes); }
  void exchange(const std::vector<Part>& receives, const std::vector<Part>& sends) override {
    host_.exchange(receives, sends);
  }
  void broadcast(void* data, size_t bytes, int root) override { host_.broadcast(data, bytes, root); }
  void barrier() override { host_.barrier(); }
  const char* under_way() const override { return host_.under_way(); }
  std::unique_ptr<Host> split(int colour, int size) override { return host_.split(colour, size); }
  std::shared_ptr<void> when_lost(std::function<void()> f) override { return host_.when_lost(std::move(f)); }
  void abort(int exit_code) noexcept override { host_.abort(exit_code); }

 private:
  Host& host_;
};

}  // namespace octet
