#include "penstock/tokenizer/pipeline_tokenizer.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/split/unicode.h"

namespace penstock {
namespace {

bool IsLetterOrDigit(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); }

// Returns whether `text` is a character or a word; a message may produce such a control token by merging.
bool IsWord(std::string_view text) {
  if (DecodeUtf8(text, 0).num_bytes == static_cast<int>(text.size())) return true;
  return std::all_of(text.begin(), text.end(), IsLetterOrDigit);
}

// Returns the needles that occur in the text, in one pass per needle length (Karp and Rabin 1987).
absl::flat_hash_set<std::string_view> FindAll(std::string_view text, std::span<const std::string> needles) {
  constexpr uint64_t kBase = 0x9E3779B97F4A7C15u;
  const auto hash_of = [](std::string_view bytes) {
    uint64_t hash = 0;
    for (const char byte : bytes) hash = hash * kBase + static_cast<uint8_t>(byte) + 1;
    return hash;
  };
  std::map<size_t, absl::flat_hash_map<uint64_t, std::vector<std::string_view>>> by_length;
  for (const std::string_view needle : needles) {
    if (!needle.empty() && needle.size() <= text.size()) by_length[needle.size()][hash_of(needle)].push_back(needle);
  }
  absl::flat_hash_set<std::string_view> found;
  for (auto& [length, wanted] : by_length) {
    uint64_t top = 1;  // the weight of the byte that leaves the window
    for (size_t i = 1; i < length; ++i) top *= kBase;
    uint64_t hash = hash_of(text.substr(0, length));
    for (size_t end = length; !wanted.empty(); ++end) {
      const std::string_view here = text.substr(end - length, length);
      if (const auto entry = wanted.find(hash); entry != wanted.end()) {
        // A needle that was found is not searched again. Otherwise a text of one repeated letter would compare at every
        // place.
        std::erase_if(entry->second, [&](std::string_view needle) {
          if (needle == here) found.insert(needle);
          return needle == here;
        });
        if (entry->second.empty()) wanted.erase(entry);
      }
      if (end == text.size()) break;
      hash = (hash - (static_cast<uint8_t>(here.front()) + 1) * top) * kBase + static_cast<uint8_t>(text[end]) + 1;
    }
  }
  return found;
}

// Returns whether `text` is a role between signs: "<|user|>", "[SYSTEM]".
bool IsRoleMark(std::string_view text) {
  static constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool", "developer"};
  if (IsLetterOrDigit(text.front()) || IsLetterOrDigit(text.back())) return false;
  while (!text.empty() && !IsLetterOrDigit(text.front())) text.remove_prefix(1);
  while (!text.empty() && !IsLetterOrDigit(text.back())) text.remove_suffix(1);
  return std::find(std::begin(kRoles), std::end(kRoles), absl::AsciiStrToLower({text.data(), text.size()})) !=
         std::end(kRoles);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> PipelineTokenizer::Create(TokenizerParts parts) {
  absl::flat_hash_map<TokenId, std::string_view> contents;
  absl::flat_hash_map<std::string, TokenId> ids;
  if (parts.added_tokens.size() > kMaxAddedTokens) {
    return ModelError("tokenizer: {} added tokens, the limit is {}", parts.added_tokens.size(), kMaxAddedTokens);
  }
  for (const AddedToken& token : parts.added_tokens) {
    if (token.id < 0 || token.id >= kMaxVocabSize) {
      return ModelError("tokenizer: added token '{}': expected an id from 0 to {}, found {}", token.content,
                        kMaxVocabSize - 1, token.id);
    }
    const auto [by_id, new_id] = contents.try_emplace(token.id, token.content);
    if (!new_id && by_id->second != token.content) {
      return ModelError("tokenizer: added tokens '{}' and '{}' have the same id {}", by_id->second, token.content,
                        token.id);
    }
    const auto [by_content, new_content] = ids.try_emplace(token.content, token.id);
    if (!new_content && by_content->second != token.id) {
      return ModelError("tokenizer: added token '{}' has two ids, {} and {}", token.content, by_content->second,
                        token.id);
    }
    const TokenId model_id = parts.vocabulary.Find(token.content);
    if (model_id >= 0 && model_id != token.id) {
      return ModelError("tokenizer: added token '{}' has id {}, but {} in the vocabulary", token.content, token.id,
                        model_id);
    }
    if (parts.vocabulary.Has(token.id) && parts.vocabulary.Text(token.id) != token.content) {
      return ModelError("tokenizer: added token '{}' and token '{}' of the vocabulary have the same id {}",
                        token.content, parts.vocabulary.Text(token.id), token.id);
    }
  }
  return std::unique_ptr<Tokenizer>(new PipelineTokenizer(std::move(parts)));
}

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts)
    : normalizer_(std::move(parts.normalizer)),
      pretokenizer_(std::move(parts.pretokenizer)),
      model_(MakeModel(parts)),
      decoder_(std::move(parts.decoder)),
      user_defined_(std::move(parts.user_defined)),
      prefix_(std::move(parts.prefix)),
      suffix_(std::move(parts.suffix)),
      cleans_spaces_(parts.cleans_spaces && std::holds_alternative<UnigramModel>(model_)),
      bos_id_(parts.bos_id),
      eos_id_(parts.eos_id),
      named_tokens_(std::move(parts.named_tokens)) {
  vocab_size_ = vocabulary().size();
  for (AddedToken& token : parts.added_tokens) {
    if (added_.Find(token.id) != nullptr) continue;
    vocab_size_ = std::max<int64_t>(vocab_size_, int64_t{token.id} + 1);
    const std::string normalized = token.normalized ? normalizer_.Apply(token.content) : std::string();
    added_.Add(std::move(token), normalized);
  }
  ForbidMarks();
}

void PipelineTokenizer::ForbidMarks() {
  marks_.clear();
  for (const AddedToken& token : added_.tokens()) {
    if (token.special || (token.control && !IsWord(token.content))) marks_.insert(token.id);
  }
  // Template text is split at added tokens before the model sees it, so this affects messages only.
  std::visit([this](auto& model) { model.Forbid(marks_); }, model_);
}

void PipelineTokenizer::GuardTemplate(std::string_view literals) {
  std::vector<std::string> contents;  // copies, because tokens move when one is added
  for (const AddedToken& token : added_.tokens()) contents.push_back(token.content);
  for (const TokenId id : user_defined_) contents.emplace_back(vocabulary().Text(id));
  const absl::flat_hash_set<std::string_view> written = FindAll(literals, contents);
  const auto is_control = [&](std::string_view content) {
    if (unicode::SkipClass(content, 0, unicode::kSpace) == content.size()) return false;
    return written.contains(content) || IsRoleMark(content);
  };
  added_.Guard([&](const AddedToken& token) { return is_control(token.content); });
  for (const TokenId id : user_defined_) {
    const std::string_view text = vocabulary().Text(id);
    if (added_.Find(id) != nullptr || !is_control(text)) continue;
    AddedToken token{.content = std::string(text), .id = id};
    token.normalized = false;
    token.control = true;
    added_.Add(std::move(token), "");
  }
  ForbidMarks();
}

PipelineTokenizer::Model PipelineTokenizer::MakeModel(TokenizerParts& parts) {
  if (parts.unigram.has_value()) {
    return UnigramModel(std::move(parts.vocabulary), std::move(parts.scores), *parts.unigram);
  }
  BpeModel model(std::move(parts.vocabulary), std::move(parts.merges), parts.bpe);
  model.SetFrozenPieces(std::move(parts.frozen_pieces));
  model.SetHiddenCharacters(std::move(parts.hidden_characters));
  return model;
}

const Vocabulary& PipelineTokenizer::vocabulary() const {
  return std::visit([](const auto& model) -> const Vocabulary& { return model.vocabulary(); }, model_);
}

void PipelineTokenizer::EncodeWord(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  if (const auto* bpe = std::get_if<BpeModel>(&model_); bpe != nullptr) {
    bpe->Encode(word, scratch.bpe, out);
  } else {
    std::get<UnigramModel>(model_).Encode(word, scratch.unigram, out);
  }
}

std::vector<TokenId> PipelineTokenizer::Encode(std::span<const TextSegment> segments, AddSpecial add_special) const {
  TrackedText text;
  for (const TextSegment& segment : segments) {
    if (IsUtf8(segment.text)) {
      text.Append(segment.text, segment.origin);
    } else {
      text.Append(ReplaceInvalidUtf8(segment.text), segment.origin);
    }
  }
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 8);
  if (add_special == AddSpecial::kYes) ids = prefix_;
  Scratch scratch;
  for (const AddedTokens::Part& part : added_.SplitRaw(text)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      EncodePart(text.Slice(part.begin, part.end), part.begin == 0, scratch, ids);
    }
  }
  if (add_special == AddSpecial::kYes) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

void PipelineTokenizer::EncodePart(TrackedText text, bool at_start, Scratch& scratch, std::vector<TokenId>& out) const {
  normalizer_.Apply(text, at_start);
  for (const AddedTokens::Part& part : added_.SplitNormalized(text)) {
    if (part.id >= 0) {
      out.push_back(part.id);
      continue;
    }
    const PreTokenizer::Words words =
        pretokenizer_.Split(text.text().substr(part.begin, part.end - part.begin), at_start && part.begin == 0);
    for (const PreTokenizer::Words::Word& word : words.words) {
      EncodeWord(std::string_view(words.text).substr(word.begin, word.end - word.begin), scratch, out);
    }
  }
}

void PipelineTokenizer::DecodeNext(TokenId id, SkipSpecial skip_special, DecodeState& state, std::string& out) const {
  const AddedToken* added = added_.Find(id);
  if (skip_special == SkipSpecial::kYes && added != nullptr && added->special) return;
  const std::string_view token = added != nullptr ? added_.DecodedText(*added) : vocabulary().Text(id);
  if (!token.empty()) decoder_.Append(token, state, out);
}

std::string_view PipelineTokenizer::TokenText(TokenId id) const {
  const AddedToken* added = added_.Find(id);
  return added != nullptr ? std::string_view(added->content) : vocabulary().Text(id);
}

bool PipelineTokenizer::IsSpecial(TokenId id) const {
  const AddedToken* added = added_.Find(id);
  return added != nullptr && added->special;
}

TokenId PipelineTokenizer::FindToken(std::string_view token) const {
  const AddedToken* added = added_.Find(token);
  return added != nullptr ? added->id : vocabulary().Find(token);
}

std::vector<std::pair<std::string, std::string>> PipelineTokenizer::NamedTokens() const {
  std::vector<std::pair<std::string, std::string>> tokens = named_tokens_;
  const auto add = [&](std::string_view name, TokenId id) {
    const auto has_name = [&](const auto& token) { return token.first == name; };
    if (id < 0 || std::any_of(tokens.begin(), tokens.end(), has_name)) return;
    tokens.emplace_back(name, TokenText(id));
  };
  add("bos_token", bos_id_);
  add("eos_token", eos_id_);
  return tokens;
}

uint64_t PipelineTokenizer::memory_bytes() const {
  const uint64_t model_bytes = std::visit([](const auto& model) { return model.memory_bytes(); }, model_);
  return sizeof(*this) + model_bytes + added_.memory_bytes();
}

TokenId FindTokenIn(const TokenizerParts& parts, std::string_view text) {
  for (const AddedToken& token : parts.added_tokens) {
    if (token.content == text) return token.id;
  }
  return parts.vocabulary.Find(text);
}

absl::Status ApplyConfig(const TokenizerConfig& config, TokenizerParts& parts) {
  parts.cleans_spaces = config.clean_up_spaces.value_or(false);
  absl::flat_hash_set<TokenId> known;
  for (const AddedToken& token : parts.added_tokens) known.insert(token.id);
  for (const AddedToken& token : config.added_tokens) {
    if (known.insert(token.id).second) parts.added_tokens.push_back(token);
  }
  for (const TokenizerConfig::NamedToken& named : config.named_tokens) {
    parts.named_tokens.emplace_back(named.name, named.content);
    TokenId* const end = named.name == "bos_token"   ? &parts.bos_id
                         : named.name == "eos_token" ? &parts.eos_id
                                                     : nullptr;
    const TokenId id = FindTokenIn(parts, named.content);
    if (id < 0 && end != nullptr && !named.from_map) {
      return ModelError("tokenizer_config.json: {} '{}' is not in the vocabulary", named.name, named.content);
    }
    if (id < 0) continue;
    if (end != nullptr) *end = id;
    // A token named in the config is special, as in Hugging Face's transformers.
    if (!known.insert(id).second) {
      for (AddedToken& token : parts.added_tokens) token.special = token.special || token.id == id;
      continue;
    }
    AddedToken token{.content = named.content, .id = id};
    token.special = true;
    token.normalized = false;
    parts.added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

}  // namespace penstock
