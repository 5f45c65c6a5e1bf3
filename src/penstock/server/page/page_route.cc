#include "penstock/server/page/page_route.h"

#include <random>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace penstock::server {

extern const char* const kPageHtml;  // page/page.html, which CMake embeds

namespace {

// Returns a number that nobody can guess, so that the browser runs only the scripts that this response holds.
std::string Nonce() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

HttpResponse PageResponse() {
  constexpr std::string_view kMark = "{{nonce}}";
  const std::string nonce = Nonce();
  std::string page = kPageHtml;
  for (size_t at = page.find(kMark); at != std::string::npos; at = page.find(kMark, at)) {
    page.replace(at, kMark.size(), nonce);
  }
  std::string policy = fmt::format(
      "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self'; img-src data:; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      nonce);
  return {.body = std::move(page),
          .content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy", std::move(policy)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-store"}}};
}

}  // namespace

void AddPageRoute(ApiServer& api) {
  api.AddRoute({.method = "GET",
                .path = "/",
                .handler = [](const std::shared_ptr<Exchange>& exchange) { exchange->Respond(PageResponse()); },
                .is_public = true,
                .needs_engine = false});
}

}  // namespace penstock::server
