#include "penstock/chat/answer/marked_text.h"

namespace penstock {

std::vector<MarkedPiece> MarkedText::Push(std::span<const TokenId> ids, std::string_view text) {
  for (const TokenId id : ids) {
    if (hidden_->contains(id)) {
      waiting_.push_back({num_decoded_, id});
    } else {
      starts_.push_back(num_decoded_);
    }
    num_decoded_ += decoder_.Push(id).size();
  }
  std::vector<MarkedPiece> pieces;
  const auto take_text = [&](size_t num_bytes) {
    if (num_bytes == 0) return;
    MarkedPiece& piece = pieces.emplace_back();
    piece.text = text.substr(0, num_bytes);
    for (; !starts_.empty() && starts_.front() < num_final_ + num_bytes; starts_.pop_front()) {
      piece.token_starts.push_back(starts_.front() - num_final_);
    }
    text.remove_prefix(num_bytes);
    num_final_ += num_bytes;
  };
  while (!waiting_.empty() && waiting_.front().offset <= num_final_ + text.size()) {
    take_text(waiting_.front().offset - num_final_);
    pieces.push_back({waiting_.front().id, hidden_->at(waiting_.front().id)});
    waiting_.pop_front();
  }
  take_text(text.size());
  return pieces;
}

}  // namespace penstock
