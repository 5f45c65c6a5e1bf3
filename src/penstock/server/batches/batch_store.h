// Uploaded files and batches in a folder, as OpenAI's API has them. What is written survives a kill at any moment.
//
//   files/<id>        the content          files/<id>.json    the file object
//   batches/<id>.json the batch object     batches/<id>.jsonl the output of its job, and the job's manifest
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"

namespace penstock::server {

// Any thread may use it. Objects are copies.
class BatchStore {
 public:
  // Creates the folder if there is none. kIo if it cannot be used, or if another server uses it.
  static absl::StatusOr<std::unique_ptr<BatchStore>> Open(const std::string& folder);

  enum class Kind : uint8_t { kFile, kBatch };
  // Returns nothing for an unknown id, whatever bytes it has.
  std::optional<json::object> Find(Kind kind, std::string_view id) const;
  // Returns the objects, the newest first.
  std::vector<json::object> List(Kind kind) const;
  // Writes an object under its "id", in place of an older one.
  absl::Status Put(Kind kind, const json::object& object);
  // Returns "file-<16 hex>" or "batch_<16 hex>".
  static std::string NewId(Kind kind);

  // Returns the path of a new temporary file for an upload.
  std::string UploadPath() const;
  // Makes a file object of a complete temporary file, which gets the id's name.
  absl::StatusOr<json::object> AddFile(const std::string& path, const std::string& id, const std::string& name,
                                       const std::string& purpose);
  std::string FilePath(std::string_view id) const;
  absl::Status DeleteFile(std::string_view id);

  // Returns the path of the output of a batch's job.
  std::string JobPath(std::string_view id) const;

 private:
  BatchStore(std::string folder, UniqueFd lock) : folder_(std::move(folder)), lock_(std::move(lock)) {}
  absl::Status Load(Kind kind);
  std::string ObjectPath(Kind kind, std::string_view id) const;

  std::string folder_;
  UniqueFd lock_;
  mutable std::mutex mutex_;
  using Objects = std::map<std::string, json::object, std::less<>>;
  Objects files_, batches_;
  Objects& ObjectsOf(Kind kind) { return kind == Kind::kFile ? files_ : batches_; }
  const Objects& ObjectsOf(Kind kind) const { return kind == Kind::kFile ? files_ : batches_; }
};

// Returns the integer of a field, 0 if it has none.
int64_t IntegerField(const json::object& object, std::string_view name);
// Returns the text of a field, "" if it has none.
std::string TextField(const json::object& object, std::string_view name);
int64_t UnixSeconds();

}  // namespace penstock::server
