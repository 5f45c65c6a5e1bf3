// The common part of the two JSON parsers (json.cc, json_events.cc): handler functions that do nothing, and a function
// that runs Boost's parser and reports its errors.
#pragma once

#include <boost/json/basic_parser_impl.hpp>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "penstock/base/json.h"

namespace penstock {

struct JsonHandler {
  static constexpr std::size_t max_object_size = std::size_t(-1);
  static constexpr std::size_t max_array_size = std::size_t(-1);
  static constexpr std::size_t max_key_size = std::size_t(-1);
  static constexpr std::size_t max_string_size = std::size_t(-1);

  using error_code = json::error_code;
  using string_view = json::string_view;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }
};

// Parses all of `text`. Returns the handler's own status() if that is not OK, otherwise Boost's error; both begin with
// place_of(offset).
template <class Handler>
absl::Status RunJsonParser(json::basic_parser<Handler>& parser, std::string_view text, Fault fault,
                           absl::FunctionRef<std::string(std::size_t offset)> place_of) {
  try {
    json::error_code error;
    const std::size_t consumed = parser.write_some(false, text.data(), text.size(), error);
    if (!error && consumed < text.size()) error = json::error::extra_data;
    if (!error) return absl::OkStatus();
    const absl::Status& refusal = parser.handler().status();
    if (!refusal.ok()) return Annotate(refusal, place_of(consumed));
    return MakeError(fault, fmt::format("{}: not valid JSON ({})", place_of(consumed), error.message()));
  } catch (const std::bad_alloc&) {
    return ResourceError("not enough memory to parse {} bytes of JSON", text.size());
  } catch (const std::exception& exception) {
    return MakeError(fault, fmt::format("not valid JSON ({})", exception.what()));
  }
}

}  // namespace penstock
