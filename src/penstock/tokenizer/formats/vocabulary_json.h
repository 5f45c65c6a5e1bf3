// Vocabularies and merges as JSON and text files hold them.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "penstock/base/json.h"
#include "penstock/tokenizer/pipeline_tokenizer.h"

namespace penstock {

// {"token": id, ...}: ids from 0 below kMaxVocabSize, each at most once; gaps are allowed.
absl::Status ReadVocabulary(const json::object& tokens, const std::string& where, Vocabulary& vocabulary);

// Adds a merge whose parts and result must be tokens.
absl::Status AddMerge(std::string_view left, std::string_view right, uint32_t rank, const std::string& where,
                      TokenizerParts& parts);

// Tokens that look like byte tokens (<0x...>) must be <0x00> to <0xFF>.
absl::Status CheckByteTokens(const Vocabulary& vocabulary, std::string_view where);

}  // namespace penstock
