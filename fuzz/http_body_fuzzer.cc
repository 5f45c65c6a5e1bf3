// Fuzzes the bodies that the server reads: chats in three forms, and forms with files. The first byte chooses.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "penstock/base/json.h"
#include "penstock/job/input/request_line.h"
#include "penstock/server/api/messages_api.h"
#include "penstock/server/api/responses_api.h"
#include "penstock/server/batches/multipart.h"

namespace {

using namespace penstock;  // NOLINT(google-build-using-namespace)

void ReadForm(std::string_view body) {
  size_t num_open = 0;
  server::MultipartReader reader("b", {.begin =
                                           [&](const server::MultipartField&) {
                                             ++num_open;
                                             return absl::OkStatus();
                                           },
                                       .write =
                                           [&](std::string_view) {
                                             if (num_open == 0) std::abort();
                                             return absl::OkStatus();
                                           },
                                       .end =
                                           [&] {
                                             --num_open;
                                             return absl::OkStatus();
                                           }});
  const size_t half = body.size() / 2;
  absl::Status status = reader.Write(body.substr(0, half));
  if (status.ok()) status = reader.Write(body.substr(half));
  if (status.ok() && reader.Finish().ok() && num_open != 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 3) {
    ReadForm(body);
    return 0;
  }
  const absl::StatusOr<json::value> value = ParseJson(body, Fault::kInput);
  if (!value.ok() || !value->is_object()) return 0;
  std::optional<LineError> error;
  std::string ignored;
  json::object chat = value->get_object();
  if (data[0] % 4 == 1) chat = server::ChatOfMessages(value->get_object(), error, ignored);
  if (data[0] % 4 == 2) chat = server::ChatOfResponses(value->get_object(), error, ignored);
  if (!error.has_value()) (void)ParseRequestBody(chat, RequestKind::kChat);
  return 0;
}
