// Feeds bytes to both JSON parsers. They must never throw, and must agree: the event parser accepts whatever ParseJson
// accepts.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "penstock/base/json.h"
#include "penstock/base/json_events.h"
#include "penstock/base/text.h"

namespace {

// Accepts every event; checks that all text is valid UTF-8 and that objects and arrays are closed.
class Listener final : public penstock::JsonListener {
 public:
  absl::Status OnObjectBegin() override { return Open(); }
  absl::Status OnObjectEnd() override { return Close(); }
  absl::Status OnArrayBegin() override { return Open(); }
  absl::Status OnArrayEnd() override { return Close(); }
  absl::Status OnKey(std::string_view key) override { return Text(key); }
  absl::Status OnString(std::string_view text) override { return Text(text); }
  absl::Status OnNumber(std::optional<uint64_t>) override { return absl::OkStatus(); }
  absl::Status OnLiteral() override { return absl::OkStatus(); }

  int depth = 0;

 private:
  absl::Status Open() {
    if (++depth > penstock::kMaxJsonDepth) std::abort();
    return absl::OkStatus();
  }
  absl::Status Close() {
    if (--depth < 0) std::abort();
    return absl::OkStatus();
  }
  static absl::Status Text(std::string_view text) {
    if (!penstock::IsUtf8(text)) std::abort();
    return absl::OkStatus();
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = penstock::ParseJson(text, penstock::Fault::kInput);
  Listener listener;
  const absl::Status events = penstock::ParseJsonEvents(text, penstock::Fault::kInput, {}, listener);
  if (events.ok() && listener.depth != 0) std::abort();
  if (!value.ok()) return 0;
  // Only the limit on the bytes of a key may differ.
  if (!events.ok() && penstock::Message(events).find("a key has more than") == std::string::npos) std::abort();
  const auto again = penstock::ParseJson(penstock::json::serialize(*value), penstock::Fault::kInput);
  if (!again.ok()) std::abort();
  return 0;
}
