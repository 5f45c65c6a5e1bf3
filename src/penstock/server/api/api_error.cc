#include "penstock/server/api/api_error.h"

#include <algorithm>

#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock::server {
namespace {

std::string_view TypeOf(int status, ApiStyle style) {
  const bool is_openai = style == ApiStyle::kOpenAi;
  switch (status) {
    case 401: return "authentication_error";
    case 404: return is_openai ? "invalid_request_error" : "not_found_error";
    case 413: return is_openai ? "invalid_request_error" : "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return is_openai ? "server_error" : "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : is_openai ? "server_error" : "api_error";
  }
}

// Returns the field with which a message begins ("tools: expected ..."), "" if there is none.
std::string FieldOf(const std::string& message) {
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.");
  return end != std::string::npos && end > 0 && message[end] == ':' ? message.substr(0, end) : "";
}

}  // namespace

ApiError ErrorOf(const absl::Status& status) {
  const Fault fault = FaultOf(status);
  if (fault == Fault::kInput) {
    const std::string message = Message(status);
    return {400, message, "invalid_request", FieldOf(message)};
  }
  if (fault == Fault::kResources) return {429, Message(status), "too_much_memory"};
  if (fault == Fault::kStopped) return {503, "the server stops", "stopping"};
  LogWarning("a request failed: {}", Message(status));
  return {500, fault == Fault::kModel ? "the model gave no valid answer" : "the engine failed", "engine_error"};
}

ApiError ErrorOf(const LineError& error) { return {400, error.message, error.code, error.param}; }

ApiError WithNames(ApiError error, std::span<const std::pair<std::string_view, std::string_view>> names) {
  for (const auto& [name, clients_name] : names) {
    const std::string_view behind = std::string_view(error.param).substr(std::min(name.size(), error.param.size()));
    if (!error.param.starts_with(name) || (!behind.empty() && behind[0] != '.' && behind[0] != '[')) continue;
    error.param.replace(0, name.size(), clients_name);
    if (error.message.starts_with(name)) error.message.replace(0, name.size(), clients_name);
    break;
  }
  return error;
}

json::object ErrorBody(const ApiError& error, ApiStyle style) {
  const std::string message = Printable(error.message);
  const std::string_view type = TypeOf(error.status, style);
  if (style == ApiStyle::kAnthropic) {
    return {{"type", "error"}, {"error", json::object{{"type", json::string(type)}, {"message", message}}}};
  }
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? json::value(nullptr) : json::value(ReplaceInvalidUtf8(text));
  };
  return {{"error", json::object{{"message", message},
                                 {"type", json::string(type)},
                                 {"param", text_or_null(error.param)},
                                 {"code", text_or_null(error.code)}}}};
}

HttpResponse ErrorResponse(const ApiError& error, ApiStyle style) {
  HttpResponse response{.status = error.status, .body = std::string(json::serialize(ErrorBody(error, style)))};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace penstock::server
