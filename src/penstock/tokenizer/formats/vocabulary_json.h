// Reads vocabularies and merges from JSON and text files.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "penstock/base/json.h"
#include "penstock/tokenizer/pipeline_tokenizer.h"

namespace penstock {

// Reads {"token": id, ...}. Ids are at least 0 and below kMaxVocabSize; each occurs at most once, and gaps are allowed.
absl::Status ReadVocabulary(const json::object& tokens, const std::string& where, Vocabulary& vocabulary);

// Adds a merge; both parts and the result must be tokens.
absl::Status AddMerge(std::string_view left, std::string_view right, uint32_t rank, const std::string& where,
                      TokenizerParts& parts);

// Returns kModel if a token looks like a byte token (<0x...>) and is not one of <0x00> to <0xFF>.
absl::Status CheckByteTokens(const Vocabulary& vocabulary, std::string_view where);

}  // namespace penstock
