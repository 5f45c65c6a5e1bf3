// Which experts the rows of a pass chose: what the gate said in a real run; a recorded or generated routing in a
// simulated one.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace penstock {

// Layers with experts whose gates are tried on the hidden state of an earlier one.
inline constexpr int64_t kMaxAhead = 3;

class RoutingSource {
 public:
  virtual ~RoutingSource() = default;
  // [num_rows, num_topk] for rows of the present pass, once their gate of this layer has been computed; valid until
  // they are routed again.
  virtual std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) = 0;
  // [num_rows, num_experts] probabilities, as Choices(); empty when only the choices are known.
  virtual std::span<const float> Scores(int64_t /*layer_idx*/, int64_t /*first_row*/, int64_t /*num_rows*/) {
    return {};
  }
  // What rows would choose in the layer `ahead` layers with experts after this one (1 to kMaxAhead), if the hidden
  // state stayed as it is, as Choices(); empty when that was not computed or there is no such layer.
  virtual std::span<const int32_t> ChoicesAhead(int64_t /*layer_idx*/, int64_t /*ahead*/, int64_t /*first_row*/,
                                                int64_t /*num_rows*/) {
    return {};
  }
};

// What the gate wrote.
class GateRouting : public RoutingSource {
 public:
  // Where the gate writes.
  struct Buffers {
    std::span<const int32_t> choices;                               // [max_rows, num_topk]
    std::array<std::span<const int32_t>, kMaxAhead> choices_ahead;  // [max_rows, num_topk] each
    std::span<const float> scores;                                  // [max_rows, num_experts]
  };
  GateRouting(const Buffers& buffers, int64_t num_topk, int64_t num_experts)
      : buffers_(buffers), num_topk_(num_topk), num_experts_(num_experts) {}
  std::span<const int32_t> Choices(int64_t, int64_t first_row, int64_t num_rows) override {
    return Rows(buffers_.choices, num_topk_, first_row, num_rows);
  }
  std::span<const int32_t> ChoicesAhead(int64_t, int64_t ahead, int64_t first_row, int64_t num_rows) override {
    return Rows(buffers_.choices_ahead[static_cast<size_t>(ahead - 1)], num_topk_, first_row, num_rows);
  }
  std::span<const float> Scores(int64_t, int64_t first_row, int64_t num_rows) override {
    return Rows(buffers_.scores, num_experts_, first_row, num_rows);
  }

 private:
  template <typename T>
  static std::span<const T> Rows(std::span<const T> all, int64_t width, int64_t first_row, int64_t num_rows) {
    return all.subspan(static_cast<size_t>(first_row * width), static_cast<size_t>(num_rows * width));
  }

  Buffers buffers_;
  int64_t num_topk_;
  int64_t num_experts_;
};

}  // namespace penstock
