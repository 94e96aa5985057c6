#include "ops/gpu/cudnn_graph.h"

namespace octet::BACKEND::cudnn {

Descriptor& Graph::describe(int64_t uid, cudnnDataType_t type, const Dims& dim, const Dims& stride) {
  constexpr int64_t kFirstOwnUid = 100;  // of tensors without memory, which need an id too
  if (uid) uids_.push_back(uid);
  Descriptor& t = add(CUDNN_BACKEND_TENSOR_DESCRIPTOR).set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid ? uid : kFirstOwnUid + int64_t(descriptors_.size()));
  t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, uid == 0).set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
  return t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, dim).set(CUDNN_ATTR_TENSOR_STRIDES, stride);
}

Raw Graph::matmul(Raw a, Raw b, Raw y) {
  Descriptor& how = add(CUDNN_BACKEND_MATMUL_DESCRIPTOR).set(CUDNN_ATTR_MATMUL_COMP_TYPE, F32).finalize();
  Descriptor& op = add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR).set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how.raw);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a).set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  return finish(op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, y), y);
}

Descriptor& Graph::pointwise_mode(cudnnPointwiseMode_t mode, cudnnDataType_t math) {
  Descriptor& how = add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR).set(CUDNN_ATTR_POINTWISE_MATH_PREC, math);
  return how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
}

Raw Graph::pointwise(cudnnPointwiseMode_t mode, const std::vector<Raw>& in, Raw y, cudnnDataType_t math) {
  Descriptor& how = pointwise_mode(mode, math).finalize();
  Descriptor& op = add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how.raw).set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, in[0]);
  if (in.size() > 1) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, in[1]);
  if (in.size() > 2) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, in[2]);
  return finish(op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y), y);
}

Raw Graph::index(Raw x, int64_t axis, Raw y) {  // y = the place along that axis
  Descriptor& how = pointwise_mode(CUDNN_POINTWISE_GEN_INDEX, F32).set(CUDNN_ATTR_POINTWISE_AXIS, axis).finalize();
  Descriptor& op = add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how.raw).set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  return finish(op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y), y);
}

Raw Graph::reduce(cudnnReduceTensorOp_t mode, Raw x, Raw y) {
  Descriptor& how = add(CUDNN_BACKEND_REDUCTION_DESCRIPTOR).set(CUDNN_ATTR_REDUCTION_COMP_TYPE, F32);
  how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode).finalize();
  Descriptor& op = add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR).set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how.raw);
  return finish(op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x).set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y), y);
}

Raw Graph::reshape(Raw x, Raw y) {
  Descriptor& op = add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR).set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  return finish(op.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y), y);
}

Plan::Plan(const Graph& graph, Raw device) : uids_(graph.uids()) {
  Descriptor g(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  Descriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  const auto mode = CUDNN_HEUR_MODE_A;
  const std::vector<Raw>& ops = graph.operations();
  g.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ops.size(), ops.data()).finalize();
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g.raw).set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode).finalize();
  heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, &config.raw);  // the first is the fastest
  plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config.raw).set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
  plan_.finalize();
  plan_.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &workspace_);
}

void Plan::run(cudnnHandle_t handle, const std::vector<void*>& memory, void* workspace) const {
  std::vector<void*> pointers;
  for (int64_t uid : uids_) pointers.push_back(memory[size_t(uid)]);
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers.size(), pointers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids_).finalize();
  check(cudnnBackendExecute(handle, plan_.raw, pack.raw), "attention");
}

}  // namespace octet::BACKEND::cudnn
