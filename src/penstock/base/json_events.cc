#include "penstock/base/json_events.h"

#include <boost/json/basic_parser_impl.hpp>
#include <exception>
#include <string>

#include "penstock/base/json.h"

namespace penstock {
namespace {

// Joins the parts of strings and hands whole events to the listener.
class EventHandler {
 public:
  static constexpr std::size_t max_object_size = std::size_t(-1);
  static constexpr std::size_t max_array_size = std::size_t(-1);
  static constexpr std::size_t max_key_size = std::size_t(-1);
  static constexpr std::size_t max_string_size = std::size_t(-1);

  using error_code = json::error_code;
  using string_view = json::string_view;

  EventHandler(JsonListener& listener, Fault fault, uint64_t max_key_bytes)
      : listener_(listener), fault_(fault), max_key_bytes_(max_key_bytes) {}

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
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
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(std::int64_t value, string_view, error_code& error) {
    return Take(listener_.OnNumber(value < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(value))), error);
  }
  bool on_uint64(std::uint64_t value, string_view, error_code& error) { return Take(listener_.OnNumber(value), error); }
  bool on_double(double, string_view, error_code& error) { return Take(listener_.OnNumber(std::nullopt), error); }
  bool on_bool(bool, error_code& error) { return Take(listener_.OnLiteral(), error); }
  bool on_null(error_code& error) { return Take(listener_.OnLiteral(), error); }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

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
  json::error_code error;
  std::size_t consumed = 0;
  absl::Status refusal;
  try {
    json::basic_parser<EventHandler> parser(parse_options, listener, fault, options.max_key_bytes);
    consumed = parser.write_some(false, text.data(), text.size(), error);
    if (!error && consumed < text.size()) error = json::error::extra_data;
    refusal = parser.handler().status();
  } catch (const std::bad_alloc&) {
    return ResourceError("not enough memory to parse {} bytes of JSON", text.size());
  } catch (const std::exception& exception) {
    return MakeError(fault, fmt::format("not valid JSON ({})", exception.what()));
  }
  if (!error) return absl::OkStatus();
  const std::string place =
      options.place == JsonEventOptions::Place::kByte ? fmt::format("byte {}", consumed) : JsonPlace(text, consumed);
  if (!refusal.ok()) return Annotate(refusal, place);
  return MakeError(fault, fmt::format("{}: not valid JSON ({})", place, error.message()));
}

}  // namespace penstock
