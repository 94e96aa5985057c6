#pragma once
// cuDNN's backend API, as far as attention needs it: descriptors, a graph of operations, and the plan that runs it.
#include <cudnn.h>

#include <deque>
#include <vector>

#include "base/check.h"

namespace octet::BACKEND::cudnn {

template <class... What>
void check(cudnnStatus_t s, const What&... what) {
  if (s == CUDNN_STATUS_SUCCESS) return;
  char why[512] = "";
  cudnnGetLastErrorString(why, sizeof why);
  throw SystemError(concat("cuDNN ", cudnnGetVersion(), ": ", what..., ": ", cudnnGetErrorString(s), " ", why));
}

using Dims = std::vector<int64_t>;
using Raw = cudnnBackendDescriptor_t;
constexpr auto BF16 = CUDNN_DATA_BFLOAT16, F32 = CUDNN_DATA_FLOAT, I32 = CUDNN_DATA_INT32, BOOL = CUDNN_DATA_BOOLEAN;

class Descriptor {
 public:
  using Name = cudnnBackendAttributeName_t;
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(cudnnBackendCreateDescriptor(type, &raw), "descriptor");
  }
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() { cudnnBackendDestroyDescriptor(raw); }

  Descriptor& set(Name a, cudnnBackendAttributeType_t type, size_t count, const void* values) {
    check(cudnnBackendSetAttribute(raw, a, type, int64_t(count), values), "attribute ", int(a));
    return *this;
  }
  Descriptor& set(Name a, bool v) { return set(a, CUDNN_TYPE_BOOLEAN, 1, &v); }
  Descriptor& set(Name a, int64_t v) { return set(a, CUDNN_TYPE_INT64, 1, &v); }
  Descriptor& set(Name a, const Dims& v) { return set(a, CUDNN_TYPE_INT64, v.size(), v.data()); }
  Descriptor& set(Name a, cudnnDataType_t v) { return set(a, CUDNN_TYPE_DATA_TYPE, 1, &v); }
  Descriptor& set(Name a, Raw v) { return set(a, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v); }
  Descriptor& finalize() {
    check(cudnnBackendFinalize(raw), "no engine, or a wrong description");
    return *this;
  }
  void get(Name a, cudnnBackendAttributeType_t type, void* value) const {
    int64_t count = 0;
    check(cudnnBackendGetAttribute(raw, a, type, 1, &count, value), "attribute ", int(a));
    if (count != 1) throw SystemError(concat("cuDNN ", cudnnGetVersion(), " has no engine for this graph"));
  }

  Raw raw = nullptr;
};

// A graph of tensors and operations, in the order of the calls. An operation returns its output tensor, y.
class Graph {
 public:
  // A tensor with a uid is bound to memory when the plan runs; with uid 0 it exists only inside the fused kernel.
  Raw tensor(int64_t uid, cudnnDataType_t type, const Dims& dim, const Dims& stride) {
    return describe(uid, type, dim, stride).set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false).finalize().raw;
  }
  Raw scalar(int64_t uid) {  // bound to a float of the host
    const Dims one{1, 1, 1, 1};
    return describe(uid, F32, one, one).set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true).finalize().raw;
  }
  Raw matmul(Raw a, Raw b, Raw y);
  Raw pointwise(cudnnPointwiseMode_t, const std::vector<Raw>& in, Raw y, cudnnDataType_t math = F32);
  Raw index(Raw x, int64_t axis, Raw y);
  Raw reduce(cudnnReduceTensorOp_t, Raw x, Raw y);
  Raw reshape(Raw x, Raw y);

  const std::vector<Raw>& operations() const { return operations_; }
  const Dims& uids() const { return uids_; }

 private:
  Descriptor& describe(int64_t uid, cudnnDataType_t, const Dims& dim, const Dims& stride);
  Descriptor& pointwise_mode(cudnnPointwiseMode_t, cudnnDataType_t math);
  Descriptor& add(cudnnBackendDescriptorType_t type) { return descriptors_.emplace_back(type); }
  Raw finish(Descriptor& op, Raw y) {
    operations_.push_back(op.finalize().raw);
    return y;
  }

  std::deque<Descriptor> descriptors_;
  std::vector<Raw> operations_;
  Dims uids_;
};

class Plan {  // does not refer to the graph once it is built
 public:
  Plan(const Graph&, Raw device);  // generates and compiles the kernels: up to seconds
  int64_t workspace_bytes() const { return workspace_; }
  // memory[uid]: where that tensor is; on the host for scalars
  void run(cudnnHandle_t, const std::vector<void*>& memory, void* workspace) const;

 private:
  Descriptor plan_{CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR};
  Dims uids_;
  int64_t workspace_ = 0;
};

}  // namespace octet::BACKEND::cudnn
