#include "penstock/grammar/json_parts.h"

#include <fmt/format.h>
namespace penstock::grammar {
namespace {

CodeSet HexDigits() { return {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}; }

// Returns the text as a JSON string, with its quotes.
std::string JsonQuoted(std::string_view text, Spelling spelling) {
  std::string quoted = "\"";
  for (const char c : text) {
    constexpr std::string_view kPlain = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    const size_t found = kPlain.find(c);
    if (found != std::string_view::npos) {
      quoted += {'\\', kLetters[found]};
    } else if (static_cast<uint8_t>(c) < 0x20 || (c == '<' && spelling == Spelling::kTaggedJson)) {
      quoted += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace

std::string JsonNumber(const json::value& number) {
  if (number.is_double()) return fmt::format("{}", number.get_double());
  return number.is_int64() ? fmt::format("{}", number.get_int64()) : fmt::format("{}", number.get_uint64());
}

JsonParts::JsonParts(Grammar& grammar, Spelling spelling) : grammar_(grammar), spelling_(spelling) {
  constexpr int32_t kMaxSpaces = 32, kMaxTabs = 8;
  const ExprId indent = grammar.Choice(
      {grammar.Repeat(grammar.Text(" "), 0, kMaxSpaces), grammar.Repeat(grammar.Text("\t"), 1, kMaxTabs)});
  space_ = grammar.Named(
      "space", grammar.Choice({grammar.Empty(), grammar.Text(" "), grammar.Sequence({grammar.Text("\n"), indent})}),
      true);
  comma_ = grammar.Sequence({grammar.Text(","), space_});
  colon_ = grammar.Sequence({grammar.Text(":"), grammar.Optional(grammar.Text(" "))});
  character_ = AnyCharacter();
}

ExprId JsonParts::AnyCharacter() {
  const auto hex = [&](int32_t count) {
    return grammar_.Repeat(grammar_.Set(HexDigits(), Spelling::kUtf8), count, count);
  };
  const auto one_of = [&](CodeSet set) { return grammar_.Set(std::move(set), Spelling::kUtf8); };
  CodeSet plain = CodeSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}).Complement();
  if (spelling_ == Spelling::kTaggedJson) plain = plain.Minus({{'<', '<'}});
  const CodeSet letters = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'},
                           {'f', 'f'}, {'n', 'n'},   {'r', 'r'}, {'t', 't'}};
  const CodeSet d = {{'D', 'D'}, {'d', 'd'}};
  const ExprId code =
      grammar_.Choice({grammar_.Sequence({one_of(HexDigits().Minus(d)), hex(3)}),
                       grammar_.Sequence({one_of(d), one_of({{'0', '7'}}), hex(2)}),
                       // Beyond U+FFFF a character is two surrogates, which only stand together.
                       grammar_.Sequence({one_of(d), one_of({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), hex(2),
                                          grammar_.Text("\\u"), one_of(d), one_of({{'C', 'F'}, {'c', 'f'}}), hex(2)})});
  const ExprId escape = grammar_.Choice({one_of(letters), grammar_.Sequence({grammar_.Text("u"), code})});
  return grammar_.Choice({one_of(plain), grammar_.Sequence({grammar_.Text("\\"), escape})});
}

ExprId JsonParts::InBraces(ExprId members) {
  return grammar_.Sequence({grammar_.Text("{"), space_, members, space_, grammar_.Text("}")});
}

ExprId JsonParts::InBrackets(ExprId items) {
  return grammar_.Sequence({grammar_.Text("["), space_, items, space_, grammar_.Text("]")});
}

ExprId JsonParts::InQuotes(ExprId characters) {
  return grammar_.Sequence({grammar_.Text("\""), characters, grammar_.Text("\"")});
}

ExprId JsonParts::Quoted(std::string_view text) { return grammar_.Text(JsonQuoted(text, spelling_)); }

ExprId JsonParts::String(int32_t min, int32_t max) {
  const auto [found, is_new] = strings_.try_emplace({min, max}, 0);
  if (is_new) found->second = grammar_.Named("string", InQuotes(grammar_.Repeat(character_, min, max)), true);
  return found->second;
}

ExprId JsonParts::Digit() { return grammar_.Set({{'0', '9'}}, Spelling::kUtf8); }

ExprId JsonParts::WholeNumber() {
  constexpr int32_t kMaxDigits = 20;
  const ExprId natural = grammar_.Choice(
      {grammar_.Text("0"),
       grammar_.Sequence({grammar_.Set({{'1', '9'}}, Spelling::kUtf8), grammar_.Repeat(Digit(), 0, kMaxDigits - 1)})});
  return grammar_.Sequence({grammar_.Optional(grammar_.Text("-")), natural});
}

ExprId JsonParts::Integer() {
  if (integer_ < 0) integer_ = grammar_.Named("integer", WholeNumber(), true);
  return integer_;
}

ExprId JsonParts::Number() {
  constexpr int32_t kMaxDigits = 20, kMaxExponentDigits = 2;
  if (number_ >= 0) return number_;
  const ExprId fraction = grammar_.Sequence({grammar_.Text("."), grammar_.Repeat(Digit(), 1, kMaxDigits)});
  const ExprId sign = grammar_.Set({{'+', '+'}, {'-', '-'}}, Spelling::kUtf8);
  const ExprId exponent = grammar_.Sequence({grammar_.Set({{'E', 'E'}, {'e', 'e'}}, Spelling::kUtf8),
                                             grammar_.Optional(sign), grammar_.Repeat(Digit(), 1, kMaxExponentDigits)});
  return number_ = grammar_.Named(
             "number", grammar_.Sequence({WholeNumber(), grammar_.Optional(fraction), grammar_.Optional(exponent)}),
             true);
}

void JsonParts::DefineAny() {
  if (any_ >= 0) return;
  any_ = grammar_.AddRule("value");
  any_array_ = grammar_.AddRule("array");
  any_object_ = grammar_.AddRule("object");
  const auto list_of = [&](ExprId item) {
    const ExprId further = grammar_.Repeat(grammar_.Sequence({comma_, item}), 0, kUnbounded);
    return grammar_.Optional(grammar_.Sequence({item, further}));
  };
  const ExprId string = String(0, kUnbounded), value = grammar_.Ref(any_);
  grammar_.Define(any_array_, InBrackets(list_of(value)));
  grammar_.Define(any_object_, InBraces(list_of(grammar_.Sequence({string, colon_, value}))));
  grammar_.Define(any_, grammar_.Choice({string, Number(), grammar_.Ref(any_object_), grammar_.Ref(any_array_),
                                         grammar_.Text("true"), grammar_.Text("false"), grammar_.Text("null")}));
}

ExprId JsonParts::Any() {
  DefineAny();
  return grammar_.Ref(any_);
}
ExprId JsonParts::AnyArray() {
  DefineAny();
  return grammar_.Ref(any_array_);
}
ExprId JsonParts::AnyObject() {
  DefineAny();
  return grammar_.Ref(any_object_);
}

ExprId JsonParts::Value(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null: return grammar_.Text("null");
    case json::kind::bool_: return grammar_.Text(value.get_bool() ? "true" : "false");
    case json::kind::string: return Quoted(View(value.get_string()));
    case json::kind::array: {
      std::vector<ExprId> parts;
      for (const json::value& item : value.get_array()) {
        if (!parts.empty()) parts.push_back(comma_);
        parts.push_back(Value(item));
      }
      return InBrackets(grammar_.Sequence(std::move(parts)));
    }
    case json::kind::object: {
      std::vector<ExprId> parts;
      for (const auto& [key, item] : value.get_object()) {
        if (!parts.empty()) parts.push_back(comma_);
        parts.push_back(Quoted({key.data(), key.size()}));
        parts.push_back(colon_);
        parts.push_back(Value(item));
      }
      return InBraces(grammar_.Sequence(std::move(parts)));
    }
    default: return grammar_.Text(JsonNumber(value));
  }
}

Grammar JsonGrammar() {
  Grammar grammar;
  JsonParts parts(grammar, Spelling::kJson);
  const ExprId object = parts.AnyObject();
  grammar.SetRoot(grammar.expr(object).rule);
  return grammar;
}

}  // namespace penstock::grammar
