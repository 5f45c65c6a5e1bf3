// The page at /: a chat, and a live view of the engine.
#pragma once

#include "penstock/server/api/api_server.h"

namespace penstock::server {

// Adds GET /. Everybody may load the page; its own requests send the API key that its user types.
void AddPageRoute(ApiServer& api);

}  // namespace penstock::server
