#include "penstock/base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "penstock/base/json_parser-inl.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

// Builds a value as boost::json::parser does, and refuses two things that Boost accepts: duplicate keys and infinite
// numbers.
class StrictHandler : public JsonHandler {
 public:
  explicit StrictHandler(Fault fault) : fault_(fault) {}

  bool on_document_begin(error_code&) {
    stack_.reset();
    return true;
  }
  bool on_object_begin(error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t n, error_code&) {
    keys_.pop_back();
    stack_.push_object(n);
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(std::size_t n, error_code&) {
    stack_.push_array(n);
    return true;
  }
  bool on_key_part(string_view part, std::size_t, error_code&) {
    partial_.append(part.data(), part.size());
    stack_.push_chars(part);
    return true;
  }
  bool on_key(string_view part, std::size_t, error_code& error) {
    partial_.append(part.data(), part.size());
    stack_.push_key(part);
    if (!keys_.back().insert(partial_).second) {
      status_ = MakeError(fault_, fmt::format("key '{}' appears twice in one object", Excerpt(partial_)));
      error = json::error::exception;
      return false;
    }
    partial_.clear();
    return true;
  }
  bool on_string_part(string_view part, std::size_t, error_code&) {
    stack_.push_chars(part);
    return true;
  }
  bool on_string(string_view part, std::size_t, error_code&) {
    stack_.push_string(part);
    return true;
  }
  bool on_int64(std::int64_t value, string_view, error_code&) {
    stack_.push_int64(value);
    return true;
  }
  bool on_uint64(std::uint64_t value, string_view, error_code&) {
    stack_.push_uint64(value);
    return true;
  }
  // Boost's own doubles may be off by one in the last place; the text is converted exactly instead.
  bool on_double(double rough, string_view text, error_code& error) {
    double value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc()) value = rough;  // out of range: zero or infinite; from_chars does not say which
    if (!std::isfinite(value)) {
      error = json::error::exponent_overflow;
      return false;
    }
    stack_.push_double(value);
    return true;
  }
  bool on_bool(bool value, error_code&) {
    stack_.push_bool(value);
    return true;
  }
  bool on_null(error_code&) {
    stack_.push_null();
    return true;
  }

  json::value Release() { return stack_.release(); }
  const absl::Status& status() const { return status_; }

 private:
  const Fault fault_;
  json::value_stack stack_;
  std::vector<absl::flat_hash_set<std::string>> keys_;  // one set for each open object, outermost first
  std::string partial_;
  absl::Status status_;
};

// A document with Python's words for numbers as strings. Each quote that was added shifts what follows by a byte.
struct QuotedWords {
  std::string text;
  std::vector<size_t> quotes;  // their places in `text`, in increasing order

  // Returns the place that a byte of `text` had before.
  size_t PlaceBefore(size_t offset) const {
    return offset - static_cast<size_t>(std::ranges::lower_bound(quotes, offset) - quotes.begin());
  }
};

// Returns the word at this place of a document if it is a value, which a colon does not follow; or nothing.
std::string_view PythonWordAt(std::string_view text, size_t begin) {
  for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
    if (!text.substr(begin).starts_with(word)) continue;
    const size_t next = text.find_first_not_of(" \t\r\n", begin + word.size());
    return next != std::string_view::npos && text[next] == ':' ? std::string_view() : word;
  }
  return {};
}

QuotedWords QuotePythonWords(std::string_view text) {
  QuotedWords quoted;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const std::string_view word = in_string ? std::string_view() : PythonWordAt(text, i);
    if (!word.empty()) {
      quoted.quotes.push_back(quoted.text.size());
      quoted.quotes.push_back(quoted.text.size() + 1 + word.size());
      quoted.text.append("\"").append(word).append("\"");
      i += word.size();
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    const size_t count = in_string && text[i] == '\\' ? 2 : 1;  // what a backslash precedes ends no string
    quoted.text.append(text.substr(i, count));
    i += count;
  }
  return quoted;
}

}  // namespace

std::string JsonPlace(std::string_view text, size_t offset) {
  size_t line = 1;
  size_t line_start = 0;
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      line_start = i + 1;
    }
  }
  return fmt::format("line {}, column {}", line, offset - line_start + 1);
}

absl::StatusOr<json::value> ParseJson(std::string_view text, Fault fault, const JsonLimits& limits) {
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(limits.max_depth);
  if (text.empty()) return MakeError(fault, "line 1, column 1: expected a JSON value, found nothing");
  json::basic_parser<StrictHandler> parser(options, fault);
  if (limits.takes_python_words) {
    const QuotedWords quoted = QuotePythonWords(text);
    PENSTOCK_RETURN_IF_ERROR(RunJsonParser(
        parser, quoted.text, fault, [&](std::size_t offset) { return JsonPlace(text, quoted.PlaceBefore(offset)); }));
    return parser.handler().Release();
  }
  PENSTOCK_RETURN_IF_ERROR(
      RunJsonParser(parser, text, fault, [text](std::size_t offset) { return JsonPlace(text, offset); }));
  return parser.handler().Release();
}

std::string_view JsonTypeName(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null: return "null";
    case json::kind::bool_: return "boolean";
    case json::kind::int64:
    case json::kind::uint64: return "integer";
    case json::kind::double_: return "number";
    case json::kind::string: return "string";
    case json::kind::array: return "array";
    case json::kind::object: return "object";
  }
  return "unknown";
}

std::string JsonForPeople(const json::value& value) {
  return value.is_double() ? fmt::format("{}", value.get_double()) : std::string(json::serialize(value));
}

}  // namespace penstock
