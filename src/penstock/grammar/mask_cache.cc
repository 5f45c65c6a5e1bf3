#include "penstock/grammar/mask_cache.h"

#include <bit>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/grammar/trie_walk.h"

namespace penstock::grammar {

constexpr size_t kBitsPerWord = 64;

CompactMask::CompactMask(std::span<const uint64_t> mask) {
  size_t num_tokens = 0;
  for (const uint64_t word : mask) num_tokens += static_cast<size_t>(std::popcount(word));
  if (num_tokens * sizeof(TokenId) >= mask.size_bytes()) {
    bits_.assign(mask.begin(), mask.end());
    return;
  }
  few_.reserve(num_tokens);
  for (size_t i = 0; i < mask.size(); ++i) {
    for (uint64_t word = mask[i]; word != 0; word &= word - 1) {
      few_.push_back(static_cast<TokenId>(i * kBitsPerWord + static_cast<size_t>(std::countr_zero(word))));
    }
  }
}

void CompactMask::AddTo(std::span<uint64_t> mask) const {
  for (const TokenId id : few_) AddToken(mask, id);
  for (size_t i = 0; i < bits_.size(); ++i) mask[i] |= bits_[i];
}

std::shared_ptr<const Part> MaskCache::FindPart(const Key& key) const {
  const std::scoped_lock lock(mutex_);
  const auto found = parts_.find(key);
  return found == parts_.end() ? nullptr : found->second;
}

void MaskCache::AddPart(const Key& key, std::shared_ptr<const Part> part) {
  const std::scoped_lock lock(mutex_);
  Count(part->allowed.memory_bytes() + (part->exits.capacity() + part->open_exits.capacity()) * sizeof(uint32_t) +
        key.capacity() * sizeof(int32_t) + sizeof(Part));
  parts_.try_emplace(key, std::move(part));
}

bool MaskCache::AddMaskTo(const Key& key, std::span<uint64_t> mask) const {
  const std::scoped_lock lock(mutex_);
  const auto found = masks_.find(key);
  if (found == masks_.end()) return false;
  found->second.AddTo(mask);
  return true;
}

void MaskCache::AddMask(const Key& key, CompactMask mask) {
  const std::scoped_lock lock(mutex_);
  Count(mask.memory_bytes() + key.capacity() * sizeof(int32_t) + sizeof(CompactMask));
  masks_.try_emplace(key, std::move(mask));
}

void MaskCache::Count(uint64_t num_bytes) {
  constexpr uint64_t kBytesPerEntry = 64;
  if (num_bytes_ + num_bytes + kBytesPerEntry > max_bytes_) {
    parts_.clear();
    masks_.clear();
    num_bytes_ = 0;
  }
  num_bytes_ += num_bytes + kBytesPerEntry;
}

absl::StatusOr<std::shared_ptr<const FormatVocabulary>> FormatVocabulary::Create(const Tokenizer& tokenizer,
                                                                                 int64_t vocab_size) {
  PENSTOCK_ASSIGN_OR_RETURN(TokenTrie trie, TokenTrie::Create(tokenizer, vocab_size));
  return std::make_shared<const FormatVocabulary>(std::move(trie));
}

uint64_t FormatVocabulary::MaxCacheBytes(int64_t vocab_size) {
  constexpr uint64_t kNumMasks = 512, kBaseBytes = 256 << 10;
  return kBaseBytes + kNumMasks * MaskWords(vocab_size) * sizeof(uint64_t);
}

uint64_t FormatVocabulary::MaxBytes(const Tokenizer& tokenizer, int64_t vocab_size) {
  return MaxCacheBytes(vocab_size) + TokenTrie::MaxBytes(tokenizer, vocab_size) + TrieWalk::kMaxBytes;
}

}  // namespace penstock::grammar
