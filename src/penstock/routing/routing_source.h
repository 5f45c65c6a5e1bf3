// Which experts the rows of a pass chose: what the gate said in a real run; a recorded or generated routing in a
// simulated one.
#pragma once

#include <cstdint>
#include <span>

namespace penstock {

class RoutingSource {
 public:
  virtual ~RoutingSource() = default;
  // [num_rows, num_topk] for rows of the present pass, once their gate of this layer has been computed; valid until
  // they are routed again.
  virtual std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) = 0;
};

// What the gate wrote.
class GateRouting : public RoutingSource {
 public:
  // topk_idx [max_rows, num_topk]: where the gate writes.
  GateRouting(std::span<const int32_t> topk_idx, int64_t num_topk) : topk_idx_(topk_idx), num_topk_(num_topk) {}
  std::span<const int32_t> Choices(int64_t, int64_t first_row, int64_t num_rows) override {
    return topk_idx_.subspan(static_cast<size_t>(first_row * num_topk_), static_cast<size_t>(num_rows * num_topk_));
  }

 private:
  std::span<const int32_t> topk_idx_;
  int64_t num_topk_;
};

}  // namespace penstock
