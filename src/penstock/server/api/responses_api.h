// The endpoint /v1/responses in the form of OpenAI's API. Its requests become chats, as those of /v1/chat/completions.
// Responses are not stored.
#pragma once

#include <optional>

#include "penstock/server/api/api_server.h"

namespace penstock::server {

// The server must outlive its requests.
void AddResponsesRoutes(ApiServer& api);

// Returns the body of the same request to /v1/chat/completions. `error` names what is not supported.
json::object ChatOfResponses(const json::object& body, std::optional<LineError>& error);

}  // namespace penstock::server
