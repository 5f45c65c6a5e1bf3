// The experts that the rows of a pass chose. In a real run the gate chooses them; a simulated run takes a recorded or
// generated routing.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace penstock {

// The maximum number of later gates that are applied to a layer's hidden state, to look ahead.
inline constexpr int64_t kMaxAhead = 3;

// Experts of a layer for all rows of a pass, in place of what its router would choose. Empty: the router chooses.
struct ExpertTable {
  std::span<const int32_t> choices;  // [num_rows, num_topk], a row's experts differ
  std::span<const float> weights;    // [num_rows, num_topk]
  bool empty() const { return choices.empty(); }
};

class RoutingSource {
 public:
  virtual ~RoutingSource() = default;
  // Returns [num_rows, num_topk] for rows of the present pass, once the gate of this layer has been computed. Valid
  // until the rows are routed again.
  virtual std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) = 0;
  // Returns the probabilities [num_rows, num_experts], valid as for Choices(). Empty when only the choices are known.
  virtual std::span<const float> Scores(int64_t /*layer_idx*/, int64_t /*first_row*/, int64_t /*num_rows*/) {
    return {};
  }
  // Looks ahead to the `ahead`-th layer with experts after this one (1 to kMaxAhead). Returns what it would choose if
  // the hidden state did not change, [num_rows, num_topk], valid as for Choices(). Empty when the choices were not
  // computed or there is no such layer.
  virtual std::span<const int32_t> ChoicesAhead(int64_t /*layer_idx*/, int64_t /*ahead*/, int64_t /*first_row*/,
                                                int64_t /*num_rows*/) {
    return {};
  }
};

// The choices that the gate wrote.
class GateRouting : public RoutingSource {
 public:
  // The buffers to which the gate writes.
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
    return Rows(buffers_.choices_ahead[ahead - 1], num_topk_, first_row, num_rows);
  }
  std::span<const float> Scores(int64_t, int64_t first_row, int64_t num_rows) override {
    return Rows(buffers_.scores, num_experts_, first_row, num_rows);
  }

 private:
  template <typename T>
  static std::span<const T> Rows(std::span<const T> all, int64_t width, int64_t first_row, int64_t num_rows) {
    return all.subspan(first_row * width, num_rows * width);
  }

  Buffers buffers_;
  int64_t num_topk_;
  int64_t num_experts_;
};

}  // namespace penstock
