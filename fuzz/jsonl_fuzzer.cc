// Parses bytes as one line of a job's input, and writes the record that the job would write. The record must be valid
// JSON on one line, and its id must lead back to the input line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/base/check.h"
#include "penstock/job/input/request_line.h"
#include "penstock/job/result_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const penstock::RequestLine line = penstock::ParseRequestLine(text, 12);
  const penstock::ResultHead head{.job_digest = size, .line_number = 12, .custom_id = line.id};
  std::string record;
  if (line.error.has_value()) {
    record = penstock::FormatError(head, *line.error);
  } else {
    PENSTOCK_CHECK(line.id.has_value());
    penstock::RequestResult result;
    result.kind = line.request.kind;
    result.model = line.model;
    result.choices.resize(1);
    result.choices[0].completion.text = std::string(text);
    result.answers = line.request.turns;
    result.logprobs = line.request.sampling.logprobs.value_or(-1);
    if (result.logprobs >= 0) result.choices[0].completion.logprobs.push_back({{65, -1.0}, {{195, -1.0}, {66, -2.0}}});
    record = penstock::FormatResult(head, result,
                                    [](penstock::TokenId id, bool) { return std::string(1, static_cast<char>(id)); });
  }
  PENSTOCK_CHECK(record.find('\n') == std::string::npos);
  const auto value = penstock::ParseJson(record, penstock::Fault::kInternal);
  PENSTOCK_CHECK(value.ok() && value->is_object());
  const auto& id = value->get_object().at("id").get_string();
  PENSTOCK_CHECK(penstock::LineOfResultId({id.data(), id.size()}, size) == 12);
  return 0;
}
