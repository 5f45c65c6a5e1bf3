#include "penstock/schedule/ranks/rank_message.h"

#include <string>

#include "penstock/base/status.h"
#include "penstock/ops/activations.h"

namespace penstock {
namespace {

// A trailer ends with these numbers. Before them come the failed experts, the experts, and the text of a failure,
// padded to whole numbers.
struct End {
  int32_t num_experts = 0, num_failed = 0, fault = 0, text_bytes = 0;
};

}  // namespace

void AddTrailer(const OutputsTrailer& trailer, MessageWriter& writer) {
  std::string text;
  if (!trailer.failed.empty()) text = Message(trailer.why).substr(0, kMaxReasonBytes);
  text.resize((text.size() + 3) / 4 * 4, ' ');
  const End end = {static_cast<int32_t>(trailer.experts.size()), static_cast<int32_t>(trailer.failed.size()),
                   trailer.failed.empty() ? 0 : static_cast<int32_t>(FaultOf(trailer.why)),
                   static_cast<int32_t>(text.size())};
  writer.Add<char>(text);
  writer.Add<int32_t>(trailer.experts);
  writer.Add<int32_t>(trailer.failed);
  writer.Add(&end, sizeof(end));
}

OutputsMessage ReadTrailer(std::span<const std::byte> message, int64_t num_experts) {
  OutputsMessage read;
  size_t left = message.size();  // bytes that have not been read, from the end
  const auto take = [&](void* to, size_t num_bytes) {
    PENSTOCK_CHECK(num_bytes <= left);
    left -= num_bytes;
    if (num_bytes > 0) std::memcpy(to, message.data() + left, num_bytes);
  };
  End end;
  take(&end, sizeof(end));
  PENSTOCK_CHECK(static_cast<uint32_t>(end.num_experts) <= static_cast<uint64_t>(num_experts) &&
                 static_cast<uint32_t>(end.num_failed) <= static_cast<uint64_t>(num_experts) &&
                 static_cast<uint32_t>(end.text_bytes) <= kMaxReasonBytes + 3);
  read.trailer.failed.resize(static_cast<size_t>(end.num_failed));
  read.trailer.experts.resize(static_cast<size_t>(end.num_experts));
  std::string text(static_cast<size_t>(end.text_bytes), '\0');
  take(read.trailer.failed.data(), read.trailer.failed.size() * sizeof(int32_t));
  take(read.trailer.experts.data(), read.trailer.experts.size() * sizeof(int32_t));
  take(text.data(), text.size());
  for (const std::vector<int32_t>* experts : {&read.trailer.failed, &read.trailer.experts}) {
    for (const int32_t expert_idx : *experts) PENSTOCK_CHECK(expert_idx >= 0 && expert_idx < num_experts);
  }
  if (end.num_failed > 0) read.trailer.why = MakeError(static_cast<Fault>(end.fault), text);
  read.outputs_bytes = left;
  return read;
}

}  // namespace penstock
