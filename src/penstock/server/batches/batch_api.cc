#include "penstock/server/batches/batch_api.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <utility>

#include <fcntl.h>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/server/batches/multipart.h"

namespace penstock::server {
namespace {

using Kind = BatchStore::Kind;

// Writes an uploaded file to the store's folder.
class UploadSink : public BodySink {
 public:
  UploadSink(BatchStore& store, std::string boundary)
      : path_(store.UploadPath()),
        reader_(std::move(boundary), {.begin = [this](const MultipartField& field) { return Begin(field); },
                                      .write = [this](std::string_view bytes) { return WriteField(bytes); },
                                      .end = [] { return absl::OkStatus(); }}) {}
  ~UploadSink() override {
    std::error_code ignored;
    if (fd_.valid()) std::filesystem::remove(path_, ignored);
  }

  absl::Status Write(std::string_view bytes) override { return reader_.Write(bytes); }

  // Makes the file object, once all is written.
  absl::StatusOr<json::object> Finish(BatchStore& store) {
    PENSTOCK_RETURN_IF_ERROR(reader_.Finish());
    if (!fd_.valid()) return InputError("the form has no field \"file\" with a file");
    if (purpose_ != "batch") return InputError("purpose: only \"batch\" is supported, found \"{}\"", Excerpt(purpose_));
    if (::fdatasync(fd_.get()) != 0) return IoError("{}: {}", path_, ErrnoText(errno));
    PENSTOCK_ASSIGN_OR_RETURN(json::object file, store.AddFile(path_, BatchStore::NewId(Kind::kFile),
                                                               ReplaceInvalidUtf8(file_name_), purpose_));
    fd_ = UniqueFd();
    return file;
  }

 private:
  absl::Status Begin(const MultipartField& field) {
    field_ = field.name;
    if (field_ == "purpose") return absl::OkStatus();
    if (field_ != "file") return InputError("the form's field {} is not supported", Excerpt(Printable(field_)));
    if (fd_.valid()) return InputError("the form has two files");
    file_name_ = Excerpt(field.file_name.value_or("file"));
    fd_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    return fd_.valid() ? absl::OkStatus() : IoError("{}: {}", path_, ErrnoText(errno));
  }
  absl::Status WriteField(std::string_view bytes) {
    constexpr size_t kMaxPurposeBytes = 64;
    if (field_ == "purpose") {
      purpose_ += bytes;
      return purpose_.size() <= kMaxPurposeBytes ? absl::OkStatus()
                                                 : InputError("purpose: only \"batch\" is supported");
    }
    num_bytes_ += bytes.size();
    if (num_bytes_ > kMaxUploadBytes) return InputError("the file has more than {} bytes", kMaxUploadBytes);
    return WriteFully(fd_.get(), bytes, path_);
  }

  std::string path_, field_, purpose_, file_name_;
  UniqueFd fd_;  // valid while the temporary file exists
  uint64_t num_bytes_ = 0;
  MultipartReader reader_;
};

void Respond(Exchange& exchange, const json::object& body) {
  exchange.Respond({.body = std::string(json::serialize(body))});
}

ApiError NotFound(std::string_view what) { return {404, fmt::format("there is no such {}", what), "not_found"}; }

// Returns a page of the objects, as OpenAI's lists have it.
absl::StatusOr<json::object> PageOf(std::vector<json::object> objects, const HttpHead& head) {
  constexpr int64_t kUsual = 20, kMost = 10'000;
  int64_t limit = kUsual;
  if (const std::string text = head.Parameter("limit"); !text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
    if (error != std::errc() || end != text.data() + text.size() || limit < 1 || limit > kMost) {
      return InputError("limit: expected a number from 1 to {}, found {}", kMost, Excerpt(Printable(text)));
    }
  }
  const std::string order = head.Parameter("order");
  if (!order.empty() && order != "asc" && order != "desc") return InputError("order: expected asc or desc");
  if (order == "asc") std::ranges::reverse(objects);
  if (const std::string after = head.Parameter("after"); !after.empty()) {
    const auto found = std::ranges::find(objects, after, [](const json::object& one) { return TextField(one, "id"); });
    if (found == objects.end()) return InputError("after: there is no object {}", Excerpt(Printable(after)));
    objects.erase(objects.begin(), found + 1);
  }
  const bool has_more = std::ssize(objects) > limit;
  if (has_more) objects.resize(static_cast<size_t>(limit));
  json::object page = {
      {"object", "list"}, {"data", json::array(objects.begin(), objects.end())}, {"has_more", has_more}};
  if (!objects.empty()) {
    page["first_id"] = objects.front()["id"];
    page["last_id"] = objects.back()["id"];
  }
  return page;
}

std::optional<ApiError> CheckMetadata(const json::value& metadata) {
  constexpr size_t kMaxPairs = 16, kMaxKeyBytes = 64, kMaxValueBytes = 512;
  const ApiError error{
      400,
      fmt::format("metadata: expected an object of at most {} texts of at most {} bytes", kMaxPairs, kMaxValueBytes),
      "invalid_request", "metadata"};
  if (!metadata.is_object() || metadata.get_object().size() > kMaxPairs) return error;
  for (const auto& [key, value] : metadata.get_object()) {
    if (key.size() > kMaxKeyBytes || !value.is_string() || value.get_string().size() > kMaxValueBytes) return error;
  }
  return std::nullopt;
}

}  // namespace

void BatchApi::AddRoutes() {
  const auto add = [&](std::string_view method, std::string_view path, void (BatchApi::*handler)(Exchange&)) {
    api_.AddRoute(
        {.method = std::string(method),
         .path = std::string(path),
         .handler = [this, handler](const std::shared_ptr<Exchange>& exchange) { (this->*handler)(*exchange); },
         .needs_engine = false});
  };
  add("GET", "/v1/files", &BatchApi::ListFiles);
  add("GET", "/v1/files/*", &BatchApi::GetFile);
  add("DELETE", "/v1/files/*", &BatchApi::DeleteFile);
  add("GET", "/v1/files/*/content", &BatchApi::GetContent);
  add("GET", "/v1/batches", &BatchApi::ListBatches);
  add("POST", "/v1/batches", &BatchApi::CreateBatch);
  add("GET", "/v1/batches/*", &BatchApi::GetBatch);
  add("POST", "/v1/batches/*/cancel", &BatchApi::CancelBatch);
  api_.AddRoute({.method = "POST",
                 .path = "/v1/files",
                 .handler = [this](const std::shared_ptr<Exchange>& exchange) { Upload(*exchange); },
                 .needs_engine = false,
                 .sink = [this](const HttpHead& head) -> std::shared_ptr<BodySink> {
                   std::optional<std::string> boundary = MultipartReader::BoundaryOf(head.Header("Content-Type"));
                   if (!boundary.has_value()) return nullptr;
                   return std::make_shared<UploadSink>(store_, *std::move(boundary));
                 }});
}

void BatchApi::Upload(Exchange& exchange) {
  auto* sink = dynamic_cast<UploadSink*>(exchange.sink());
  if (sink == nullptr) {
    return RespondError(exchange, {415, "expected a form: Content-Type multipart/form-data with a boundary"});
  }
  const absl::StatusOr<json::object> file = sink->Finish(store_);
  if (!file.ok()) return RespondError(exchange, ErrorOf(file.status()));
  Respond(exchange, *file);
}

void BatchApi::ListFiles(Exchange& exchange) {
  std::vector<json::object> files = store_.List(Kind::kFile);
  if (const std::string purpose = exchange.request().head.Parameter("purpose"); !purpose.empty()) {
    std::erase_if(files, [&](const json::object& file) { return TextField(file, "purpose") != purpose; });
  }
  const absl::StatusOr<json::object> page = PageOf(std::move(files), exchange.request().head);
  page.ok() ? Respond(exchange, *page) : RespondError(exchange, ErrorOf(page.status()));
}

void BatchApi::GetFile(Exchange& exchange) {
  const std::optional<json::object> file = store_.Find(Kind::kFile, exchange.request().head.Segment(2));
  file.has_value() ? Respond(exchange, *file) : RespondError(exchange, NotFound("file"));
}

void BatchApi::GetContent(Exchange& exchange) {
  const std::string id = exchange.request().head.Segment(2);
  if (!store_.Find(Kind::kFile, id).has_value()) return RespondError(exchange, NotFound("file"));
  exchange.RespondFile(store_.FilePath(id), "application/jsonl");
}

void BatchApi::DeleteFile(Exchange& exchange) {
  const std::string id = exchange.request().head.Segment(2);
  if (!store_.Find(Kind::kFile, id).has_value()) return RespondError(exchange, NotFound("file"));
  for (const json::object& batch : store_.List(Kind::kBatch)) {
    const std::string status = TextField(batch, "status");
    if (TextField(batch, "input_file_id") == id && (status == "validating" || status == "in_progress")) {
      return RespondError(exchange, {409, fmt::format("the batch {} needs the file", TextField(batch, "id"))});
    }
  }
  if (const absl::Status status = store_.DeleteFile(id); !status.ok()) return RespondError(exchange, ErrorOf(status));
  Respond(exchange, {{"id", id}, {"object", "file"}, {"deleted", true}});
}

void BatchApi::CreateBatch(Exchange& exchange) {
  const absl::StatusOr<json::object> body = ParseBody(exchange.request().body);
  if (!body.ok()) return RespondError(exchange, ErrorOf(body.status()));
  FieldReader fields(*body, "");
  const std::string file_id = fields.Text("input_file_id").value_or("");
  const std::string endpoint = fields.Text("endpoint").value_or("");
  const std::string window = fields.Text("completion_window").value_or("");
  if (fields.error().has_value()) return RespondError(exchange, ErrorOf(*fields.error()));
  if (!store_.Find(Kind::kFile, file_id).has_value()) {
    return RespondError(exchange, {400, "there is no such file", "invalid_request", "input_file_id"});
  }
  if (endpoint != "/v1/chat/completions" && endpoint != "/v1/completions") {
    return RespondError(exchange,
                        {400, "expected /v1/chat/completions or /v1/completions", "invalid_request", "endpoint"});
  }
  if (window != "24h") return RespondError(exchange, {400, "expected \"24h\"", "invalid_request", "completion_window"});
  const json::value* metadata = fields.Find("metadata");
  if (metadata != nullptr) {
    if (const auto error = CheckMetadata(*metadata)) return RespondError(exchange, *error);
  }
  constexpr int64_t kDay = 24 * 3600;
  json::object batch = {{"id", BatchStore::NewId(Kind::kBatch)},
                        {"object", "batch"},
                        {"endpoint", endpoint},
                        {"errors", nullptr},
                        {"input_file_id", file_id},
                        {"completion_window", window},
                        {"status", "validating"},
                        {"output_file_id", nullptr},
                        {"error_file_id", nullptr},
                        {"created_at", UnixSeconds()},
                        {"expires_at", UnixSeconds() + kDay},
                        {"request_counts", json::object{{"total", 0}, {"completed", 0}, {"failed", 0}}},
                        {"metadata", metadata == nullptr ? json::value(nullptr) : *metadata}};
  for (const char* time : {"in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
                           "cancelling_at", "cancelled_at"}) {
    batch[time] = nullptr;
  }
  if (const absl::Status status = store_.Put(Kind::kBatch, batch); !status.ok()) {
    return RespondError(exchange, ErrorOf(status));
  }
  if (BatchRunner* runner = runner_.load(); runner != nullptr) runner->Wake();
  Respond(exchange, batch);
}

void BatchApi::ListBatches(Exchange& exchange) {
  const absl::StatusOr<json::object> page = PageOf(store_.List(Kind::kBatch), exchange.request().head);
  page.ok() ? Respond(exchange, *page) : RespondError(exchange, ErrorOf(page.status()));
}

void BatchApi::GetBatch(Exchange& exchange) {
  const std::optional<json::object> batch = store_.Find(Kind::kBatch, exchange.request().head.Segment(2));
  batch.has_value() ? Respond(exchange, *batch) : RespondError(exchange, NotFound("batch"));
}

void BatchApi::CancelBatch(Exchange& exchange) {
  BatchRunner* runner = runner_.load();
  if (runner == nullptr) return RespondError(exchange, {503, "the model is being loaded", "loading"});
  const std::string id = exchange.request().head.Segment(2);
  if (!store_.Find(Kind::kBatch, id).has_value()) return RespondError(exchange, NotFound("batch"));
  const absl::StatusOr<json::object> batch = runner->Cancel(id);
  batch.ok() ? Respond(exchange, *batch) : RespondError(exchange, ErrorOf(batch.status()));
}

}  // namespace penstock::server
