// Arena: a bump allocator over one reservation. The same for every engine; each compiles it against its own device.
#include "base/progress.h"
#include "device/device.h"

namespace octet::BACKEND {

Arena::Arena(Stream& stream, const char* name, size_t capacity)
    : stream_(stream),
      name_(name),
      capacity_(capacity),
      base_(static_cast<char*>(device_alloc(stream.device(), capacity))) {
  used_ = capacity_;
  rewind(0);  // poisons all of it
}

Arena::~Arena() { device_free(stream_.device(), base_); }

Tensor Arena::alloc(DType dtype, Shape shape) {
  const Tensor t{base_ + used_, dtype, shape};
  const size_t end = used_ + t.bytes(), aligned = (end + kAlign - 1) / kAlign * kAlign;
  if (aligned > capacity_ && capacity_ == MemoryPlan::kUnbounded)  // a plan: addresses without memory
    bad_input("this run needs more than ", human_bytes(double(capacity_)), " of ", name_,
              " on a rank, more than can be planned: make the model, training.micro_batch_size or training.seq_len "
              "smaller");
  CHECK(aligned <= capacity_, "arena '", name_, "' was planned with ", capacity_, " bytes, ", name_of(dtype), " ",
        shape, " needs ", aligned - used_, " more than the ", used_, " in use");
  used_ = aligned;
  if (used_ > peak_) peak_ = used_;
  return t;
}

// Memory is reused in stream order: kernels that still read what is given back here were issued earlier.
void Arena::rewind(size_t mark) {
  CHECK(mark <= used_, "arena '", name_, "' was rewound forward, from ", used_, " to ", mark);
  if (stream_.device().options().poison && used_ > mark) fill_byte(stream_, base_ + mark, 0xFF, used_ - mark);
  used_ = mark;
}

}  // namespace octet::BACKEND
