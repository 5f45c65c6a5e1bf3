#include "penstock/server/batches/batch_store.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <random>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>

#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"

namespace penstock::server {
namespace {

constexpr std::string_view kUpload = ".upload-";

std::string HexNumber() {
  static std::random_device device;
  const uint64_t high = device(), low = device();
  return fmt::format("{:016x}", high << 32 | low);
}

}  // namespace

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int64_t IntegerField(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_int64() ? value->get_int64() : 0;
}

std::string TextField(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(View(value->get_string())) : std::string();
}

absl::StatusOr<std::unique_ptr<BatchStore>> BatchStore::Open(const std::string& folder) {
  std::error_code error;
  for (const char* name : {"files", "batches"}) {
    std::filesystem::create_directories(folder + "/" + name, error);
    if (error) return IoError("{}: cannot create the folder: {}", folder, error.message());
  }
  UniqueFd lock(::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return IoError("{}: cannot open the lock: {}", folder, ErrnoText(errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return IoError("{}: another server uses this folder", folder);
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/files", error)) {
    if (entry.path().filename().string().starts_with(kUpload)) std::filesystem::remove(entry.path(), error);
  }
  auto store = std::unique_ptr<BatchStore>(new BatchStore(folder, std::move(lock)));
  PENSTOCK_RETURN_IF_ERROR(store->Load(Kind::kFile));
  PENSTOCK_RETURN_IF_ERROR(store->Load(Kind::kBatch));
  return store;
}

absl::Status BatchStore::Load(Kind kind) {
  std::error_code error;
  const std::string prefix = kind == Kind::kFile ? "file-" : "batch_";
  for (const auto& entry :
       std::filesystem::directory_iterator(folder_ + (kind == Kind::kFile ? "/files" : "/batches"), error)) {
    const std::string name = entry.path().filename().string();
    const bool is_object = name.starts_with(prefix) && entry.path().extension() == ".json" &&
                           name.find('.') == name.size() - std::string_view(".json").size();
    if (!is_object) continue;
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(entry.path(), kMaxConfigBytes));
    const absl::StatusOr<json::value> value = ParseJson(text, Fault::kIo);
    if (!value.ok() || !value->is_object()) {
      LogWarning("{}: not a JSON object; it is left alone", entry.path().string());
      continue;
    }
    ObjectsOf(kind)[entry.path().stem().string()] = value->get_object();
  }
  return error ? IoError("{}: {}", folder_, error.message()) : absl::OkStatus();
}

std::string BatchStore::ObjectPath(Kind kind, std::string_view id) const {
  return fmt::format("{}/{}/{}.json", folder_, kind == Kind::kFile ? "files" : "batches", id);
}

std::string BatchStore::FilePath(std::string_view id) const { return fmt::format("{}/files/{}", folder_, id); }

std::string BatchStore::JobPath(std::string_view id) const { return fmt::format("{}/batches/{}.jsonl", folder_, id); }

std::string BatchStore::UploadPath() const { return fmt::format("{}/files/{}{}", folder_, kUpload, HexNumber()); }

std::string BatchStore::NewId(Kind kind) { return (kind == Kind::kFile ? "file-" : "batch_") + HexNumber(); }

std::optional<json::object> BatchStore::Find(Kind kind, std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found = ObjectsOf(kind).find(id);
  return found == ObjectsOf(kind).end() ? std::nullopt : std::optional(found->second);
}

std::vector<json::object> BatchStore::List(Kind kind) const {
  std::vector<json::object> objects;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, object] : ObjectsOf(kind)) objects.push_back(object);
  }
  std::ranges::stable_sort(objects, std::greater(), [](const json::object& object) {
    return std::pair(IntegerField(object, "created_at"), TextField(object, "id"));
  });
  return objects;
}

absl::Status BatchStore::Put(Kind kind, const json::object& object) {
  const std::string id = TextField(object, "id");
  const std::lock_guard lock(mutex_);
  PENSTOCK_RETURN_IF_ERROR(ReplaceFile(ObjectPath(kind, id), std::string(json::serialize(object)) + "\n"));
  ObjectsOf(kind)[id] = object;
  return absl::OkStatus();
}

absl::StatusOr<json::object> BatchStore::AddFile(const std::string& path, const std::string& id,
                                                 const std::string& name, const std::string& purpose) {
  std::error_code error;
  const auto num_bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (!error) std::filesystem::rename(path, FilePath(id), error);
  if (error) return IoError("{}: {}", FilePath(id), error.message());
  const json::object object = {{"id", id},
                               {"object", "file"},
                               {"bytes", num_bytes},
                               {"filename", name},
                               {"purpose", purpose},
                               {"created_at", UnixSeconds()},
                               {"status", "processed"}};
  PENSTOCK_RETURN_IF_ERROR(Put(Kind::kFile, object));
  return object;
}

absl::Status BatchStore::DeleteFile(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  if (found == files_.end()) return InputError("there is no such file");
  std::error_code error;
  std::filesystem::remove(ObjectPath(Kind::kFile, id), error);
  if (error) return IoError("{}: {}", ObjectPath(Kind::kFile, id), error.message());
  std::filesystem::remove(FilePath(id), error);
  files_.erase(found);
  return absl::OkStatus();
}

}  // namespace penstock::server
