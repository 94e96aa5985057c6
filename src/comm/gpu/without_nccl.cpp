// Stands in for nccl.cpp in a build without NCCL.
#include "comm/gpu/single.h"

namespace octet::BACKEND {

std::unique_ptr<Comm> make_comm(Device&, Host& host) {
  if (host.size() > 1)
    bad_input(host.size(), " ranks on GPUs need NCCL, and this octet was built without it: install NCCL's library and ",
              "headers (libnccl-dev), configure and build again; or train on one GPU");
  return make_single_comm();
}

}  // namespace octet::BACKEND
