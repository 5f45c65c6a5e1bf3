#include "penstock/tokenizer/sentencepiece_normalizer.h"

#include <utility>

#include <utf8proc.h>

#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr size_t kMaxWholeGraphemeBytes = 5;

size_t GraphemeEnd(std::string_view text, size_t pos) {
  utf8proc_int32_t state = 0;
  DecodedRune rune = DecodeUtf8(text, pos);
  pos += rune.num_bytes;
  while (pos < text.size()) {
    const DecodedRune next = DecodeUtf8(text, pos);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(rune.code_point),
                                         static_cast<utf8proc_int32_t>(next.code_point), &state)) {
      break;
    }
    pos += next.num_bytes;
    rune = next;
  }
  return pos;
}

}  // namespace

void SentencePieceNormalizer::Apply(TrackedText& text, bool at_start) const {
  const std::string_view all = text.text();
  TrackedText out;
  out.Reserve(all.size() + all.size() / 2 + std::size(kSpaceMark));
  bool has_text = false;                   // found something other than leading spaces that are removed
  bool after_space = remove_extra_spaces;  // a space here would be superfluous
  size_t num_kept = 0;                     // length of `out` without the space marks at its end
  const auto begin_text = [&](Origin origin) {
    if (has_text) return;
    has_text = true;
    if (prefix == Prefix::kEachText || (prefix == Prefix::kFirstText && at_start)) out.Append(kSpaceMark, origin);
  };
  // Appends the replacement of one match or one code point. Only the spaces at its beginning can be superfluous.
  const auto append = [&](std::string_view piece, Origin origin) {
    while (after_space && piece.starts_with(' ')) piece.remove_prefix(1);
    if (piece.empty()) return;
    begin_text(origin);
    for (size_t i = 0; i < piece.size();) {
      const std::string_view rune = piece.substr(i, DecodeUtf8(piece, i).num_bytes);
      out.Append(rune == " " ? kSpaceMark : rune, origin);
      if (rune != " " && rune != kSpaceMark) num_kept = out.size();
      i += rune.size();
    }
    after_space = remove_extra_spaces && piece.ends_with(' ');
  };
  for (size_t pos = 0; pos < all.size();) {
    const PatternMatcher::Match piece =
        verbatim.empty() ? PatternMatcher::Match() : verbatim.LongestAt(all, pos, [](int, size_t) { return true; });
    const Charsmap::Match match =
        piece.num_bytes > 0 || !charsmap.has_value() ? Charsmap::Match() : charsmap->Longest(all.substr(pos));
    const size_t num_bytes = piece.num_bytes > 0   ? piece.num_bytes
                             : match.num_bytes > 0 ? match.num_bytes
                                                   : static_cast<size_t>(DecodeUtf8(all, pos).num_bytes);
    const std::string_view to = match.num_bytes > 0 ? match.to : all.substr(pos, num_bytes);
    const Origin origin = text.OriginOf(pos, pos + num_bytes);
    if (!remove_extra_spaces) begin_text(origin);
    append(to, origin);
    pos += num_bytes;
  }
  text = remove_extra_spaces && num_kept < out.size() ? out.Slice(0, num_kept) : std::move(out);
}

void ApplyCharsmapToGraphemes(const Charsmap& charsmap, TrackedText& text) {
  const std::string_view all = text.text();
  TrackedText out;
  out.Reserve(all.size());
  for (size_t pos = 0; pos < all.size();) {
    const size_t end = GraphemeEnd(all, pos);
    if (end - pos <= kMaxWholeGraphemeBytes) {
      const Charsmap::Match match = charsmap.Shortest(all.substr(pos, end - pos));
      if (match.num_bytes > 0) {
        out.Append(match.to, text.OriginOf(pos, end));
        pos = end;
        continue;
      }
    }
    while (pos < end) {
      const size_t num_bytes = DecodeUtf8(all, pos).num_bytes;
      const Charsmap::Match match = charsmap.Shortest(all.substr(pos, num_bytes));
      if (match.num_bytes > 0) {
        out.Append(match.to, text.OriginOf(pos, pos + num_bytes));
      } else {
        out.Append(text, pos, pos + num_bytes);
      }
      pos += num_bytes;
    }
  }
  text = std::move(out);
}

}  // namespace penstock
