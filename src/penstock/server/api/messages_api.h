// The endpoint /v1/messages in the form of Anthropic's API. Its requests become chats, as those of
// /v1/chat/completions.
#pragma once

#include <memory>
#include <optional>

#include "penstock/server/api/api_server.h"

namespace penstock::server {

// Adds /v1/messages and /v1/messages/count_tokens. The server must outlive its requests.
void AddMessagesRoutes(ApiServer& api);

// Returns the body of the same request to /v1/chat/completions. `error` names what is not supported.
json::object ChatOfMessages(const json::object& body, std::optional<LineError>& error);

}  // namespace penstock::server
