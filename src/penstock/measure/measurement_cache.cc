#include "penstock/measure/measurement_cache.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// Returns an empty path when nothing can be kept.
std::string CacheDir() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/penstock";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/penstock" : "";
}

std::string PathOf(std::string_view kind, const json::object& identity) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : json::serialize(identity)) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return fmt::format("{}/{}-{:016x}.json", CacheDir(), kind, hash);
}

}  // namespace

std::optional<json::object> ReadKept(std::string_view kind, const json::object& identity) {
  if (CacheDir().empty()) return std::nullopt;
  const absl::StatusOr<std::string> text = ReadFile(PathOf(kind, identity), kMaxConfigBytes);
  if (!text.ok()) return std::nullopt;
  absl::StatusOr<json::value> value = ParseJson(*text, Fault::kInput);
  if (!value.ok() || !value->is_object()) return std::nullopt;
  const json::value* known = value->get_object().if_contains("identity");
  json::value* content = value->get_object().if_contains("content");
  if (known == nullptr || json::serialize(*known) != json::serialize(identity)) return std::nullopt;
  if (content == nullptr || !content->is_object()) return std::nullopt;
  return std::move(content->get_object());
}

void Keep(std::string_view kind, const json::object& identity, const json::object& content) {
  if (CacheDir().empty()) return;
  std::error_code error;
  std::filesystem::create_directories(CacheDir(), error);
  const json::object file = {{"identity", identity}, {"content", content}};
  const absl::Status status = ReplaceFile(PathOf(kind, identity), std::string(json::serialize(file)) + "\n");
  if (!status.ok()) LogWarning("what was measured could not be kept: {}", Message(status));
}

}  // namespace penstock
