#include "train/weights.h"

namespace octet::BACKEND {

std::vector<double> to_host(Stream& s, Tensor t) {
  std::vector<double> values(size_t(t.numel()));
  visit<double, float, bf16, f16>(t.dtype, [&]<class T>() {
    std::vector<T> raw(values.size());
    copy_to_host(s, raw.data(), t.data, t.bytes());
    s.synchronize();
    for (size_t i = 0; i < raw.size(); ++i) {
      if constexpr (sizeof(T) >= 4) values[i] = double(raw[i]);
      else values[i] = double(float(raw[i]));
    }
  });
  return values;
}

template <class T>
void from_host(Stream& s, Tensor dst, const std::vector<T>& src) {
  CHECK(int64_t(src.size()) == dst.numel(), src.size(), " values for ", dst.shape);
  visit<double, float, bf16, f16>(dst.dtype, [&]<class D>() {
    std::vector<D> raw(src.size());
    for (size_t i = 0; i < raw.size(); ++i) {
      if constexpr (sizeof(D) >= 4) raw[i] = D(src[i]);
      else raw[i] = D(float(src[i]));
    }
    copy_to_device(s, dst.data, raw.data(), dst.bytes());
    s.synchronize();  // `raw` ends here
  });
}
template void from_host(Stream&, Tensor, const std::vector<float>&);
template void from_host(Stream&, Tensor, const std::vector<double>&);

std::vector<NamedShape> names_of(const ParameterStore& params) {
  std::vector<NamedShape> names;
  params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local&) {
    names.push_back({name, shape});
  });
  return names;
}

void read_masters(Stream& s, ParameterStore& params, const SafetensorsModel& model, const HfLayout& layout) {
  check_names(names_of(params), model, layout);
  params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    std::vector<float> values(size_t(l.master.numel()));
    read_parameter(model, {name, shape}, l.first, l.master.numel(), values.data());
    from_host(s, l.master, values);
  });
  params.publish(s, ParameterStore::Masters::changed);
}

}  // namespace octet::BACKEND
