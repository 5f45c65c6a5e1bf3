// Errors of the HTTP API: a status, and a body in OpenAI's or Anthropic's form.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "penstock/base/json.h"
#include "penstock/job/input/sampling_fields.h"
#include "penstock/server/http/exchange.h"

namespace penstock::server {

struct ApiError {
  int status = 400;
  std::string message;
  std::string code = {};   // may be empty
  std::string param = {};  // the field at fault; may be empty
};

// Returns the error of a status: kInput is the client's (400), kResources asks it to try again (429), everything else
// is the server's. Messages of faults of the machine stay in the log: they name files.
ApiError ErrorOf(const absl::Status& status);
ApiError ErrorOf(const LineError& error);

// Returns the error with the client's names of fields, given as pairs (name of a chat's field, client's name).
ApiError WithNames(ApiError error, std::span<const std::pair<std::string_view, std::string_view>> names);

enum class ApiStyle : uint8_t { kOpenAi, kAnthropic };
// Returns the body's object, which is also the event that ends a stream.
json::object ErrorBody(const ApiError& error, ApiStyle style = ApiStyle::kOpenAi);
// With status 429 or 503 it has a header Retry-After.
HttpResponse ErrorResponse(const ApiError& error, ApiStyle style = ApiStyle::kOpenAi);

}  // namespace penstock::server
