// The cpu engine has no product plans to choose.
#include "ops/tune.h"

namespace octet::BACKEND {
std::vector<ProductShape> take_products(Device&) { return {}; }
void tune_products(Stream&, std::span<const ProductShape>) {}
std::string export_plans(Device&) { return {}; }
void import_plans(Device&, const std::string&) {}
bool has_cudnn() { return false; }
}  // namespace octet::BACKEND
