#include "penstock/tokenizer/normalizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include <utf8proc.h>

#include "absl/strings/escaping.h"

#include "penstock/base/text.h"
#include "penstock/tokenizer/json_fields.h"

namespace penstock {
namespace {

using NormalizerKind = NormalizerStep::Kind;

void Prepend(const std::string& prefix, TrackedText& text) {
  if (text.empty()) return;
  TrackedText out;
  out.Reserve(prefix.size() + text.size());
  out.Append(prefix, text.OriginAt(0));
  out.Append(text, 0, text.size());
  text = std::move(out);
}

void Replace(const std::string& from, const std::string& to, TrackedText& text) {
  if (text.text().find(from) == std::string_view::npos) return;
  TrackedText out;
  out.Reserve(text.size());
  size_t pos = 0;
  while (true) {
    const size_t found = text.text().find(from, pos);
    if (found == std::string_view::npos) break;
    out.Append(text, pos, found);
    out.Append(to, text.OriginOf(found, found + from.size()));
    pos = found + from.size();
  }
  out.Append(text, pos, text.size());
  text = std::move(out);
}

bool IsAscii(std::string_view text) {
  for (const char byte : text) {
    if (static_cast<uint8_t>(byte) >= 0x80) return false;
  }
  return true;
}

void ApplyForm(unicode::NormalForm form, TrackedText& text) {
  if (IsAscii(text.text())) return;
  TrackedText out;
  out.Reserve(text.size());
  std::string piece;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = unicode::NormalizationPieceEnd(text.text(), pos);
    const std::string_view before = text.text().substr(pos, end - pos);
    if (before.size() == 1) {
      out.Append(text, pos, end);
    } else {
      piece.clear();
      unicode::AppendNormalized(before, form, piece);
      if (piece == before) {
        out.Append(text, pos, end);
      } else {
        out.Append(piece, text.OriginOf(pos, end));
      }
    }
    pos = end;
  }
  text = std::move(out);
}

// Calls `append(rune, begin, end, out)` for each code point.
template <typename Fn>
void MapRunes(TrackedText& text, Fn append) {
  TrackedText out;
  out.Reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const unicode::Rune rune = unicode::RuneAt(text.text(), pos);
    append(rune, pos, pos + rune.num_bytes, out);
    pos += rune.num_bytes;
  }
  text = std::move(out);
}

void Lowercase(TrackedText& text) {
  MapRunes(text, [&text](const unicode::Rune& rune, size_t begin, size_t end, TrackedText& out) {
    if (rune.code_point == 0x130) {  // the one code point whose lower case has two code points
      out.Append("i\xCC\x87", text.OriginAt(begin));
      return;
    }
    const auto lower = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(rune.code_point)));
    if (lower == rune.code_point) {
      out.Append(text, begin, end);
      return;
    }
    std::string bytes;
    AppendUtf8(lower, bytes);
    out.Append(bytes, text.OriginAt(begin));
  });
}

void StripAccents(TrackedText& text) {
  MapRunes(text, [&text](const unicode::Rune& rune, size_t begin, size_t end, TrackedText& out) {
    if (!rune.Is(unicode::kMark)) out.Append(text, begin, end);
  });
}

void ToByteLevel(TrackedText& text) {
  TrackedText out;
  out.Reserve(text.size() * 2);
  for (size_t i = 0; i < text.size(); ++i) {
    out.Append(ByteAlphabet()[static_cast<uint8_t>(text.text()[i])], text.OriginAt(i));
  }
  text = std::move(out);
}

void Strip(bool left, bool right, TrackedText& text, bool& at_start) {
  size_t begin = 0;
  size_t end = text.size();
  if (left) begin = unicode::SkipClass(text.text(), 0, unicode::kSpace);
  while (right && end > begin) {
    const size_t previous = unicode::PreviousRune(text.text(), end);
    if (!unicode::RuneAt(text.text(), previous).Is(unicode::kSpace)) break;
    end = previous;
  }
  if (begin > 0) at_start = false;
  if (begin > 0 || end < text.size()) text = text.Slice(begin, end);
}

void ReplaceMatches(const SplitPattern& pattern, const std::string& to, TrackedText& text) {
  TrackedText out;
  out.Reserve(text.size());
  SplitRegex::Memo memo;
  size_t kept = 0;
  for (size_t from = 0; from < text.size();) {
    const SplitPattern::Match match = pattern.Next(text.text(), from, memo);
    if (match.begin == text.size()) break;
    out.Append(text, kept, match.begin);
    out.Append(to, text.OriginOf(match.begin, std::max(match.end, match.begin + 1)));
    kept = match.end;
    from = match.end > match.begin ? match.end : match.end + unicode::RuneAt(text.text(), match.end).num_bytes;
  }
  out.Append(text, kept, text.size());
  text = std::move(out);
}

void ApplyNmt(TrackedText& text) {
  MapRunes(text, [&text](const unicode::Rune& rune, size_t begin, size_t end, TrackedText& out) {
    const char32_t c = rune.code_point;
    if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
      return;
    const bool is_space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                          (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                          c == 0xFFFD;
    if (is_space) {
      out.Append(" ", text.OriginAt(begin));
    } else {
      out.Append(text, begin, end);
    }
  });
}

absl::Status ReadReplace(const Component& component, NormalizerStep& step) {
  PENSTOCK_ASSIGN_OR_RETURN(step.to, component.String("content"));
  PENSTOCK_ASSIGN_OR_RETURN(const json::object* pattern, component.Object("pattern"));
  const JsonFields fields(*pattern, component.where());
  if (fields.Find("Regex") == nullptr) {
    step.kind = NormalizerKind::kReplace;
    PENSTOCK_ASSIGN_OR_RETURN(step.from, component.LiteralPattern("pattern"));
    return absl::OkStatus();
  }
  step.kind = NormalizerKind::kReplaceMatches;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string regex, fields.String("Regex"));
  PENSTOCK_ASSIGN_OR_RETURN(step.pattern, SplitPattern::FromRegex(regex, component.where()));
  return absl::OkStatus();
}

absl::Status ReadCharsmap(const Component& component, NormalizerStep& step) {
  step.kind = NormalizerKind::kCharsmap;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string base64, component.String("precompiled_charsmap"));
  std::string bytes;
  if (!absl::Base64Unescape(base64, &bytes)) {
    return ModelError("{}: precompiled_charsmap is not base64", component.where());
  }
  PENSTOCK_ASSIGN_OR_RETURN(Charsmap charsmap, Charsmap::Parse(bytes, component.where()));
  step.charsmap = std::make_shared<const Charsmap>(std::move(charsmap));
  return absl::OkStatus();
}

absl::Status AddFromJson(const json::value& value, int depth, Normalizer& normalizer) {
  PENSTOCK_ASSIGN_OR_RETURN(const Component component, Component::From(value, "normalizer"));
  const std::string_view type = component.type();
  if (type == "Sequence") {
    if (depth > 8) return ModelError("normalizer: Sequences are nested more than 8 deep");
    PENSTOCK_ASSIGN_OR_RETURN(const json::array* parts, component.Array("normalizers"));
    for (const json::value& part : *parts) PENSTOCK_RETURN_IF_ERROR(AddFromJson(part, depth + 1, normalizer));
    return absl::OkStatus();
  }
  NormalizerStep step{.kind = NormalizerKind::kUnicode};
  if (type == "Prepend") {
    step.kind = NormalizerKind::kPrepend;
    PENSTOCK_ASSIGN_OR_RETURN(step.to, component.String("prepend"));
  } else if (type == "Replace") {
    PENSTOCK_RETURN_IF_ERROR(ReadReplace(component, step));
  } else if (type == "Precompiled") {
    PENSTOCK_RETURN_IF_ERROR(ReadCharsmap(component, step));
  } else if (type == "Nmt") {
    step.kind = NormalizerKind::kNmt;
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.form = type == "NFC"    ? unicode::NormalForm::kNfc
                : type == "NFD"  ? unicode::NormalForm::kNfd
                : type == "NFKC" ? unicode::NormalForm::kNfkc
                                 : unicode::NormalForm::kNfkd;
  } else if (type == "Lowercase") {
    step.kind = NormalizerKind::kLowercase;
  } else if (type == "StripAccents") {
    step.kind = NormalizerKind::kStripAccents;
  } else if (type == "ByteLevel") {
    step.kind = NormalizerKind::kByteLevel;
  } else if (type == "Strip") {
    step.kind = NormalizerKind::kStrip;
    PENSTOCK_ASSIGN_OR_RETURN(step.left, component.Bool("strip_left", true));
    PENSTOCK_ASSIGN_OR_RETURN(step.right, component.Bool("strip_right", true));
  } else {
    return component.NotImplemented();
  }
  normalizer.Add(std::move(step));
  return absl::OkStatus();
}

// Checks how much the steps can lengthen a text. Only a chain of lengthening replacements could make it explode,
// because steps are few. A character map has its own limit (kMaxReplacementBytes).
absl::Status CheckGrowth(const std::vector<NormalizerStep>& steps) {
  size_t growth = 1;
  for (const NormalizerStep& step : steps) {
    if (step.kind == NormalizerKind::kReplace) growth *= 1 + (step.to.size() - 1 + step.from.size()) / step.from.size();
    if (step.kind == NormalizerKind::kReplaceMatches) growth *= 1 + step.to.size();
    if (step.kind == NormalizerKind::kByteLevel) growth *= 2;
    if (step.to.size() > kMaxComponentTextBytes || growth > kMaxNormalizedGrowth) {
      return ModelError("normalizer: makes a text more than {} times as long", kMaxNormalizedGrowth);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::FromJson(const json::value& value) {
  Normalizer normalizer;
  if (value.is_null()) return normalizer;
  PENSTOCK_RETURN_IF_ERROR(AddFromJson(value, 0, normalizer));
  if (normalizer.steps_.size() > kMaxComponents) {
    return ModelError("normalizer: {} steps, the limit is {}", normalizer.steps_.size(), kMaxComponents);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckGrowth(normalizer.steps_));
  return normalizer;
}

void Normalizer::Apply(TrackedText& text, bool& at_start) const {
  for (const NormalizerStep& step : steps_) {
    switch (step.kind) {
      case NormalizerKind::kPrepend: Prepend(step.to, text); break;
      case NormalizerKind::kReplace: Replace(step.from, step.to, text); break;
      case NormalizerKind::kUnicode: ApplyForm(step.form, text); break;
      case NormalizerKind::kLowercase: Lowercase(text); break;
      case NormalizerKind::kStrip: Strip(step.left, step.right, text, at_start); break;
      case NormalizerKind::kStripAccents: StripAccents(text); break;
      case NormalizerKind::kByteLevel: ToByteLevel(text); break;
      case NormalizerKind::kReplaceMatches: ReplaceMatches(step.pattern, step.to, text); break;
      case NormalizerKind::kNmt: ApplyNmt(text); break;
      case NormalizerKind::kCharsmap: ApplyCharsmapToGraphemes(*step.charsmap, text); break;
      case NormalizerKind::kSentencePiece: step.sentencepiece->Apply(text, at_start); break;
    }
  }
}

std::string Normalizer::Apply(std::string_view text) const {
  TrackedText tracked(std::string(text), Origin::kTemplate);
  bool at_start = true;
  Apply(tracked, at_start);
  return std::string(tracked.text());
}

const std::vector<std::string>& ByteAlphabet() {
  static const std::vector<std::string> kAlphabet = [] {
    std::vector<std::string> alphabet(256);
    char32_t next = 0x100;  // bytes that do not print use the code points from here on
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      AppendUtf8(prints ? byte : next++, alphabet[byte]);
    }
    return alphabet;
  }();
  return kAlphabet;
}

int ByteOfCharacter(char32_t character) {
  static const std::array<int16_t, 0x144> kBytes = [] {
    std::array<int16_t, 0x144> bytes{};
    bytes.fill(-1);
    for (int byte = 0; byte < 256; ++byte) {
      bytes[DecodeUtf8(ByteAlphabet()[byte], 0).code_point] = static_cast<int16_t>(byte);
    }
    return bytes;
  }();
  return character < kBytes.size() ? kBytes[character] : -1;
}

}  // namespace penstock
