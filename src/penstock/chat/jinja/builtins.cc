#include "penstock/chat/jinja/builtins.h"

#include <utf8proc.h>
#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "penstock/base/text.h"

namespace penstock::jinja {
namespace {

using Table = absl::flat_hash_map<std::string, const Builtin*>;

void AddTo(Table& table, std::span<const Builtin> builtins) {
  for (const Builtin& builtin : builtins) table.emplace(builtin.name, &builtin);
}

const Table& Filters() {
  static const Table* const table = [] {
    auto* filters = new Table();
    AddTo(*filters, TextFilters());
    AddTo(*filters, ListFilters());
    AddTo(*filters, ValueFilters());
    return filters;
  }();
  return *table;
}

const Table& TestTable() {
  static const Table* const table = [] {
    auto* tests = new Table();
    AddTo(*tests, Tests());
    return tests;
  }();
  return *table;
}

const Builtin* FindIn(const Table& table, std::string_view name) {
  const auto found = table.find(absl::string_view(name.data(), name.size()));
  return found == table.end() ? nullptr : found->second;
}

}  // namespace

bool HasFilter(std::string_view name) { return FindIn(Filters(), name) != nullptr; }
bool HasTest(std::string_view name) { return FindIn(TestTable(), name) != nullptr; }

absl::StatusOr<Bound> BindArgs(Interp& interp, const Builtin& builtin, Args& args) {
  std::vector<std::string_view> params;
  for (std::string_view rest = builtin.params; !rest.empty();) {
    const size_t blank = std::min(rest.find(' '), rest.size());
    params.push_back(rest.substr(0, blank));
    rest.remove_prefix(std::min(blank + 1, rest.size()));
  }
  const bool takes_rest = !params.empty() && params.back() == "*";
  if (takes_rest) params.pop_back();
  Bound bound;
  bound.slots.resize(params.size());
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (i < params.size()) {
      bound.slots[i] = std::move(args.positional[i]);
    } else if (takes_rest) {
      bound.rest.positional.push_back(std::move(args.positional[i]));
    } else {
      return interp.Fail("'{}' takes at most {} arguments, found {}", builtin.name, params.size(),
                         args.positional.size());
    }
  }
  for (auto& [name, value] : args.named) {
    const auto place = std::find(params.begin(), params.end(), name);
    const size_t i = place - params.begin();
    if (place != params.end() && !bound.Has(i)) {
      bound.slots[i] = std::move(value);
    } else if (takes_rest) {
      bound.rest.named.emplace_back(std::move(name), std::move(value));
    } else {
      return interp.Fail("'{}' has no argument '{}', or got it twice", builtin.name, name);
    }
  }
  for (size_t i = 0; i < builtin.num_required; ++i) {
    if (!bound.Has(i)) return interp.Fail("'{}' needs the argument '{}'", builtin.name, params[i]);
  }
  return bound;
}

Result Interp::ApplyFilter(std::string_view name, Args args) {
  const Builtin* builtin = FindIn(Filters(), name);
  if (builtin == nullptr) return Fail("there is no filter '{}'", name);
  PENSTOCK_ASSIGN_OR_RETURN(Bound bound, BindArgs(*this, *builtin, args));
  return builtin->fn(*this, bound);
}

absl::StatusOr<bool> Interp::ApplyTest(std::string_view name, Args args) {
  const Builtin* builtin = FindIn(TestTable(), name);
  if (builtin == nullptr) return Fail("there is no test '{}'", name);
  PENSTOCK_ASSIGN_OR_RETURN(Bound bound, BindArgs(*this, *builtin, args));
  PENSTOCK_ASSIGN_OR_RETURN(const Value value, builtin->fn(*this, bound));
  return IsTrue(value);
}

bool TruthOr(const Bound& args, size_t i, bool missing) { return args.Has(i) ? IsTrue(args[i]) : missing; }

absl::StatusOr<int64_t> IntOr(Interp& interp, const Bound& args, size_t i, int64_t missing) {
  if (!args.Has(i) || args[i].Is(Kind::kNone)) return missing;
  if (!args[i].is_integral()) return interp.Fail("an argument must be an integer, found {}", args[i].type_name());
  return args[i].integer();
}

absl::StatusOr<const Text*> TextArg(Interp& interp, const Bound& args, size_t i) {
  if (!args[i].Is(Kind::kString)) return interp.Fail("an argument must be a str, found {}", args[i].type_name());
  return &args[i].text();
}

void AppendUpper(char32_t c, Origin origin, Text& out) {
  // Only these letters of everyday text grow in upper case; the rest of Unicode's list is ligatures.
  if (c == U'\u00DF') return out.Append("SS", origin);
  if (c == U'\uFB00') return out.Append("FF", origin);
  if (c == U'\uFB01') return out.Append("FI", origin);
  if (c == U'\uFB02') return out.Append("FL", origin);
  out.AppendRune(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), origin);
}

void AppendLower(char32_t c, Origin origin, Text& out) {
  if (c == U'\u0130') return out.Append("i\u0307", origin);
  out.AppendRune(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), origin);
}

Text ToLower(const Text& text) {
  Text lower;
  for (RuneReader reader(text); !reader.done();) {
    const auto [c, origin] = reader.Next();
    AppendLower(c, origin, lower);
  }
  return lower;
}

void AppendTitle(char32_t c, Origin origin, Text& out) {
  if (c == U'\u00DF') return out.Append("Ss", origin);
  if (c == U'\uFB00') return out.Append("Ff", origin);
  if (c == U'\uFB01') return out.Append("Fi", origin);
  if (c == U'\uFB02') return out.Append("Fl", origin);
  out.AppendRune(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))), origin);
}

Text Escaped(const Text& text) {
  Text result;
  for (RuneReader reader(text); !reader.done();) {
    const auto [c, origin] = reader.Next();
    switch (c) {
      case '&': result.Append("&amp;", origin); break;
      case '<': result.Append("&lt;", origin); break;
      case '>': result.Append("&gt;", origin); break;
      case '"': result.Append("&#34;", origin); break;
      case '\'': result.Append("&#39;", origin); break;
      default: result.AppendRune(c, origin);
    }
  }
  return result;
}

Text Trimmed(const Text& text, const Text* characters, bool left, bool right) {
  const std::string_view bytes = text.bytes();
  size_t begin = 0;
  size_t end = bytes.size();
  if (characters == nullptr) {
    if (left) begin = SkipSpaceLeft(bytes);
    if (right) end = std::max(begin, SkipSpaceRight(bytes));
    return text.Sub(begin, end);
  }
  absl::flat_hash_map<char32_t, bool> set;
  for (RuneReader reader(*characters); !reader.done();) set.emplace(reader.Next().first, true);
  while (left && begin < end) {
    const DecodedRune rune = DecodeUtf8(bytes, begin);
    if (!set.contains(rune.code_point)) break;
    begin += rune.num_bytes;
  }
  while (right && end > begin) {
    size_t start = end - 1;
    while (start > begin && (bytes[start] & 0xC0) == 0x80) --start;
    if (!set.contains(DecodeUtf8(bytes, start).code_point)) break;
    end = start;
  }
  return text.Sub(begin, end);
}

absl::StatusOr<Text> Replaced(Interp& interp, const Text& text, const Text& from, const Text& to, int64_t max_count) {
  const std::string_view bytes = text.bytes();
  Text out;
  size_t pos = 0;
  for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    const size_t hit = FindText(bytes, from.bytes(), pos);
    if (hit == std::string_view::npos) break;
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(1));
    if (static_cast<int64_t>(out.size()) > interp.max_text_bytes()) break;
    out.Append(text, pos, hit);
    out.Append(to);
    pos = hit + from.size();
    if (!from.empty()) continue;
    // An empty needle stands before every character and at the end.
    if (pos >= bytes.size()) break;
    const size_t next = pos + static_cast<size_t>(DecodeUtf8(bytes, pos).num_bytes);
    out.Append(text, pos, next);
    pos = next;
  }
  out.Append(text, pos, bytes.size());
  PENSTOCK_RETURN_IF_ERROR(interp.CheckText(out));
  return out;
}

std::vector<LineRange> SplitLines(std::string_view text) {
  std::vector<LineRange> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const DecodedRune rune = DecodeUtf8(text, pos);
    const char32_t c = rune.code_point;
    size_t next = pos + static_cast<size_t>(rune.num_bytes);
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (ends) {
      if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back({begin, pos, next});
      begin = next;
    }
    pos = next;
  }
  if (begin < text.size()) lines.push_back({begin, text.size(), text.size()});
  return lines;
}

namespace {

bool IsCased(std::string_view text, utf8proc_category_t wanted, utf8proc_category_t forbidden) {
  bool found = false;
  for (size_t pos = 0; pos < text.size();) {
    const DecodedRune rune = DecodeUtf8(text, pos);
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(rune.code_point));
    if (category == forbidden || category == UTF8PROC_CATEGORY_LT) return false;
    found |= category == wanted;
    pos += rune.num_bytes;
  }
  return found;
}

}  // namespace

bool IsUpperText(std::string_view text) { return IsCased(text, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL); }
bool IsLowerText(std::string_view text) { return IsCased(text, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LU); }

}  // namespace penstock::jinja
