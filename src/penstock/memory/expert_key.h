// Ids of the experts of a model and of the slots of a store, as types of their own.
#pragma once

#include <cstdint>
#include <vector>

namespace penstock {

// An expert of the model: its index among all experts, layer by layer. ExpertLayouts turns keys into (layer_idx,
// expert_idx) and back.
enum class ExpertKey : int64_t {};
inline constexpr ExpertKey kNoExpert{-1};

// A slot of one store, counted from 0.
enum class SlotId : int32_t {};
inline constexpr SlotId kNoSlot{-1};

constexpr int64_t IndexOf(ExpertKey key) { return static_cast<int64_t>(key); }
constexpr int64_t IndexOf(SlotId slot) { return static_cast<int64_t>(slot); }
constexpr ExpertKey operator+(ExpertKey key, int64_t count) { return ExpertKey{IndexOf(key) + count}; }
constexpr ExpertKey& operator++(ExpertKey& key) { return key = key + 1; }

// A vector with an element for each id.
template <typename Id, typename T>
class IdVector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  typename std::vector<T>::reference operator[](Id id) { return std::vector<T>::operator[](IndexOf(id)); }
  typename std::vector<T>::const_reference operator[](Id id) const { return std::vector<T>::operator[](IndexOf(id)); }
};

// A set of experts: whether each is in it.
using ExpertSet = IdVector<ExpertKey, bool>;

}  // namespace penstock
