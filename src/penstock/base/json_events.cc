#include "penstock/base/json_events.h"

#include <string>

#include "penstock/base/json_parser-inl.h"

namespace penstock {
namespace {

// Joins the parts of strings and hands whole events to the listener.
class EventHandler : public JsonHandler {
 public:
  EventHandler(JsonListener& listener, Fault fault, uint64_t max_key_bytes)
      : listener_(listener), fault_(fault), max_key_bytes_(max_key_bytes) {}

  bool on_object_begin(error_code& error) { return Take(listener_.OnObjectBegin(), error); }
  bool on_object_end(std::size_t, error_code& error) { return Take(listener_.OnObjectEnd(), error); }
  bool on_array_begin(error_code& error) { return Take(listener_.OnArrayBegin(), error); }
  bool on_array_end(std::size_t, error_code& error) { return Take(listener_.OnArrayEnd(), error); }
  bool on_key_part(string_view part, std::size_t num_bytes, error_code& error) {
    AddPart(part);
    return CheckKeyBytes(num_bytes, error);
  }
  bool on_key(string_view part, std::size_t num_bytes, error_code& error) {
    return CheckKeyBytes(num_bytes, error) && Take(listener_.OnKey(Whole(part)), error);
  }
  bool on_string_part(string_view part, std::size_t, error_code&) {
    AddPart(part);
    return true;
  }
  bool on_string(string_view part, std::size_t, error_code& error) {
    return Take(listener_.OnString(Whole(part)), error);
  }
  bool on_int64(std::int64_t value, string_view, error_code& error) {
    return Take(listener_.OnNumber(value < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(value))), error);
  }
  bool on_uint64(std::uint64_t value, string_view, error_code& error) { return Take(listener_.OnNumber(value), error); }
  bool on_double(double, string_view, error_code& error) { return Take(listener_.OnNumber(std::nullopt), error); }
  bool on_bool(bool, error_code& error) { return Take(listener_.OnLiteral(), error); }
  bool on_null(error_code& error) { return Take(listener_.OnLiteral(), error); }

  const absl::Status& status() const { return status_; }

 private:
  void AddPart(string_view part) {
    if (finished_) partial_.clear();
    finished_ = false;
    partial_.append(part.data(), part.size());
  }

  // Returns the whole string that ends in `part`; valid until the next string begins.
  std::string_view Whole(string_view part) {
    if (finished_ || partial_.empty()) return {part.data(), part.size()};
    partial_.append(part.data(), part.size());
    finished_ = true;
    return partial_;
  }

  bool CheckKeyBytes(std::size_t num_bytes, error_code& error) {
    if (num_bytes <= max_key_bytes_) return true;
    return Take(MakeError(fault_, fmt::format("a key has more than {} bytes", max_key_bytes_)), error);
  }

  bool Take(absl::Status status, error_code& error) {
    if (status.ok()) return true;
    status_ = std::move(status);
    error = json::error::exception;
    return false;
  }

  JsonListener& listener_;
  const Fault fault_;
  const uint64_t max_key_bytes_;
  std::string partial_;
  bool finished_ = false;  // the string in partial_ has been handed on
  absl::Status status_;
};

}  // namespace

absl::Status ParseJsonEvents(std::string_view text, Fault fault, const JsonEventOptions& options,
                             JsonListener& listener) {
  json::parse_options parse_options;
  parse_options.max_depth = static_cast<std::size_t>(options.max_depth);
  json::basic_parser<EventHandler> parser(parse_options, listener, fault, options.max_key_bytes);
  return RunJsonParser(parser, text, fault, [&](std::size_t offset) {
    return options.place == JsonEventOptions::Place::kByte ? fmt::format("byte {}", offset) : JsonPlace(text, offset);
  });
}

}  // namespace penstock
