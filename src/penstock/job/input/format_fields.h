// The output format of a request: OpenAI's response_format, vLLM's structured_outputs and guided_*, llama.cpp's grammar
// and json_schema.
#pragma once

#include <optional>
#include <string>

#include "penstock/job/input/sampling_fields.h"
#include "penstock/output_format.h"

namespace penstock {

// An output format, and the field that gave it.
struct RequestFormat {
  OutputFormat format;
  std::string field;
};

// Reads the fields of formats, of which a request has at most one. The format itself is not compiled yet.
std::optional<RequestFormat> ReadFormatFields(FieldReader& fields);

}  // namespace penstock
