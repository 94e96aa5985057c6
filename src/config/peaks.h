#pragma once
// Dense peak rates of cards, FLOP/s, as their vendors publish them: what MFU is measured against.
#include <string>

namespace octet {

struct Peak {
  double bf16 = 0, fp8 = 0;  // 0: unknown, or none
};
inline Peak peak_of(const std::string& card) {
  if (card.find("H100 PCIe") != std::string::npos) return {756e12, 1513e12};
  if (card.find("H100 NVL") != std::string::npos || card.find("H200 NVL") != std::string::npos)
    return {835e12, 1671e12};
  if (card.find("H100") != std::string::npos || card.find("H200") != std::string::npos ||
      card.find("GH200") != std::string::npos)
    return {989e12, 1979e12};
  if (card.find("A100") != std::string::npos) return {312e12, 0};
  return {};
}

}  // namespace octet
