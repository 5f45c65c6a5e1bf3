#include "penstock/tokenizer/decoder.h"

#include <utility>

#include "penstock/base/text.h"
#include "penstock/tokenizer/json_fields.h"
#include "penstock/tokenizer/normalizer.h"

namespace penstock {
namespace {

using DecoderKind = DecoderStep::Kind;

void ReplaceAll(const std::string& from, std::string_view to, std::string& text) {
  size_t pos = text.find(from);
  if (pos == std::string::npos) return;
  std::string out;
  size_t begin = 0;
  for (; pos != std::string::npos; pos = text.find(from, begin)) {
    out.append(text, begin, pos - begin).append(to);
    begin = pos + from.size();
  }
  text = out.append(text, begin);
}

// Leaves tokens with any other character unchanged, because added tokens are spelled in plain text.
void FromByteLevel(std::string& text) {
  std::string bytes;
  for (size_t pos = 0; pos < text.size();) {
    const DecodedRune rune = DecodeUtf8(text, pos);
    const int byte = ByteOfCharacter(rune.code_point);
    if (byte < 0) return;
    bytes.push_back(static_cast<char>(byte));
    pos += rune.num_bytes;
  }
  text = std::move(bytes);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

void FromByteToken(std::string& text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return;
  const int high = HexDigit(text[3]);
  const int low = HexDigit(text[4]);
  if (high >= 0 && low >= 0) text.assign(1, static_cast<char>(high * 16 + low));
}

void StripEnds(const DecoderStep& step, std::string& text) {
  std::string_view rest = text;
  for (int64_t i = 0; i < step.max_left && rest.starts_with(step.from); ++i) rest.remove_prefix(step.from.size());
  for (int64_t i = 0; i < step.max_right && rest.ends_with(step.from); ++i) rest.remove_suffix(step.from.size());
  text = std::string(rest);
}

}  // namespace

absl::StatusOr<Decoder> Decoder::FromJson(const json::value& value) {
  Decoder decoder;
  if (value.is_null()) {
    decoder.Add({.kind = DecoderKind::kSpaceBetween});
    return decoder;
  }
  PENSTOCK_RETURN_IF_ERROR(decoder.AddFromJson(value, 0));
  return decoder;
}

absl::Status Decoder::AddStrip(const json::value& value) {
  PENSTOCK_ASSIGN_OR_RETURN(const Component component, Component::From(value, "decoder"));
  DecoderStep step{.kind = DecoderKind::kStrip};
  PENSTOCK_ASSIGN_OR_RETURN(step.from, component.String("content"));
  PENSTOCK_ASSIGN_OR_RETURN(step.max_left, component.Integer("start"));
  PENSTOCK_ASSIGN_OR_RETURN(step.max_right, component.Integer("stop"));
  if (step.from.empty() || step.from.size() > 4 ||
      DecodeUtf8(step.from, 0).num_bytes != static_cast<int>(step.from.size())) {
    return ModelError("{}: content '{}' is not one character", component.where(), step.from);
  }
  if (step.max_left < 0 || step.max_right < 0) return ModelError("{}: start or stop is negative", component.where());
  if (!fused_) {
    Add(std::move(step));
    return absl::OkStatus();
  }
  if (step.max_right > 0 || !leading_.empty()) {
    return ModelError("{}: behind a Fuse, only one Strip with \"stop\": 0 is implemented", component.where());
  }
  SetLeadingStrip(step.from, step.max_left);
  return absl::OkStatus();
}

absl::Status Decoder::AddFromJson(const json::value& value, int depth) {
  PENSTOCK_ASSIGN_OR_RETURN(const Component component, Component::From(value, "decoder"));
  if (steps_.size() >= kMaxComponents) return ModelError("decoder: more than {} parts", kMaxComponents);
  const std::string_view type = component.type();
  if (type == "Sequence") {
    if (depth > 8) return ModelError("decoder: Sequences are nested more than 8 deep");
    PENSTOCK_ASSIGN_OR_RETURN(const json::array* parts, component.Array("decoders"));
    for (const json::value& part : *parts) PENSTOCK_RETURN_IF_ERROR(AddFromJson(part, depth + 1));
    return absl::OkStatus();
  }
  if (type == "Fuse") {
    fused_ = true;
    return absl::OkStatus();
  }
  if (type == "Strip") return AddStrip(value);
  DecoderStep step{.kind = DecoderKind::kByteLevel};
  if (type == "Replace") {
    step.kind = DecoderKind::kReplace;
    PENSTOCK_ASSIGN_OR_RETURN(step.from, component.LiteralPattern("pattern"));
    PENSTOCK_ASSIGN_OR_RETURN(step.to, component.String("content"));
    growth_ *= 1 + step.to.size() / step.from.size();
    if (step.to.size() > kMaxComponentTextBytes || growth_ > kMaxNormalizedGrowth) {
      return ModelError("{}: makes a text more than {} times as long", component.where(), kMaxNormalizedGrowth);
    }
  } else if (type == "ByteFallback") {
    step.kind = DecoderKind::kByteFallback;
  } else if (type == "Metaspace") {
    step.kind = DecoderKind::kMetaspace;
    PENSTOCK_ASSIGN_OR_RETURN(step.from, component.String("replacement"));
    if (step.from.empty()) return ModelError("{}: replacement is empty", component.where());
    PENSTOCK_ASSIGN_OR_RETURN(step.drop_first, component.Bool("add_prefix_space", true));
    if (component.Find("prepend_scheme") != nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string scheme, component.String("prepend_scheme"));
      step.drop_first = scheme != "never";
    }
  } else if (type != "ByteLevel") {
    return component.NotImplemented();
  }
  if (fused_) return ModelError("{}: this type is not implemented behind a Fuse or a ByteLevel", component.where());
  fused_ = step.kind == DecoderKind::kByteLevel;
  Add(std::move(step));
  return absl::OkStatus();
}

void Decoder::SetLeadingStrip(std::string character, int64_t count) {
  leading_ = std::move(character);
  max_leading_ = count;
}

void Decoder::Append(std::string_view token, DecodeState& state, std::string& out) const {
  std::string text(token);
  for (const DecoderStep& step : steps_) {
    switch (step.kind) {
      case DecoderKind::kByteLevel: FromByteLevel(text); break;
      case DecoderKind::kReplace: ReplaceAll(step.from, step.to, text); break;
      case DecoderKind::kByteFallback: FromByteToken(text); break;
      case DecoderKind::kMetaspace:
        ReplaceAll(step.from, step.drop_first && state.num_tokens == 0 ? "" : " ", text);
        break;
      case DecoderKind::kStrip: StripEnds(step, text); break;
      case DecoderKind::kSpaceBetween:
        if (state.num_tokens > 0) text = " " + text;
        break;
    }
  }
  ++state.num_tokens;
  if (!state.past_leading) StripLeading(text, state);
  out += text;
}

void Decoder::StripLeading(std::string& text, DecodeState& state) const {
  size_t begin = 0;
  while (!leading_.empty() && state.num_stripped < max_leading_ &&
         std::string_view(text).substr(begin).starts_with(leading_)) {
    begin += leading_.size();
    ++state.num_stripped;
  }
  text.erase(0, begin);
  if (!text.empty() || leading_.empty() || state.num_stripped >= max_leading_) state.past_leading = true;
}

}  // namespace penstock
