#include "penstock/chat/jinja/value.h"

#include <cmath>
#include <cstring>

#include <fmt/format.h>

namespace penstock::jinja {

Value Value::Undefined(std::string what) {
  Value value;
  value.data_ = std::make_shared<const Text>(what, Origin::kTemplate);
  return value;
}

Value Value::None(Origin origin) {
  Value value;
  value.kind_ = Kind::kNone;
  value.origin_ = origin;
  return value;
}

Value Value::Bool(bool truth, Origin origin) {
  Value value;
  value.kind_ = Kind::kBool;
  value.origin_ = origin;
  value.integer_ = truth ? 1 : 0;
  return value;
}

Value Value::Int(int64_t integer, Origin origin) {
  Value value;
  value.kind_ = Kind::kInt;
  value.origin_ = origin;
  value.integer_ = integer;
  return value;
}

Value Value::Float(double number, Origin origin) {
  Value value;
  value.kind_ = Kind::kFloat;
  value.origin_ = origin;
  value.float_ = number;
  return value;
}

Value Value::String(Text text) {
  Value value;
  value.kind_ = Kind::kString;
  value.data_ = std::make_shared<const Text>(std::move(text));
  return value;
}

Value Value::Markup(Text text) {
  Value value = String(std::move(text));
  value.is_markup_ = true;
  return value;
}

Value Value::Of(std::shared_ptr<const List> list, Origin origin) {
  Value value;
  value.kind_ = Kind::kList;
  value.origin_ = origin;
  value.data_ = std::move(list);
  return value;
}

Value Value::Of(std::shared_ptr<Iterator> iterator, Origin origin) {
  Value value;
  value.kind_ = Kind::kIterator;
  value.origin_ = origin;
  value.data_ = std::move(iterator);
  return value;
}

Value Value::Of(std::shared_ptr<const Dict> dict, Origin origin) {
  Value value;
  value.kind_ = Kind::kDict;
  value.origin_ = origin;
  value.data_ = std::move(dict);
  return value;
}

Value Value::Of(std::shared_ptr<const Callable> callable) {
  Value value;
  value.kind_ = Kind::kCallable;
  value.data_ = std::move(callable);
  return value;
}

Value Value::Of(Object* object) {
  Value value;
  value.kind_ = Kind::kObject;
  value.object_ = object;
  return value;
}

Value Value::Of(LoopState* loop) {
  Value value;
  value.kind_ = Kind::kLoop;
  value.loop_ = loop;
  return value;
}

// The cast is safe because the constructor took the pointer from a non-const one.
Iterator& Value::iterator() const { return *static_cast<Iterator*>(const_cast<void*>(data_.get())); }  // NOLINT

bool Value::is_tuple() const { return list().type == ListType::kTuple || list().type == ListType::kGroup; }

bool Value::is_plain_list() const { return list().type == ListType::kList || is_tuple(); }

bool Value::is_indexable() const { return is_plain_list() || list().type == ListType::kRange; }

std::string Value::UndefinedText() const { return data_ == nullptr ? "a value is undefined" : bytes(); }

bool Value::SameAs(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kIterator:
    case Kind::kDict:
    case Kind::kCallable: return data_ == other.data_;
    case Kind::kNone: return true;
    case Kind::kBool:
    case Kind::kInt: return integer_ == other.integer_;
    case Kind::kFloat: return float_ == other.float_;
    case Kind::kObject: return object_ == other.object_;
    case Kind::kLoop: return loop_ == other.loop_;
  }
  return false;
}

int Value::depth() const {
  switch (kind_) {
    case Kind::kList: return list().depth;
    case Kind::kIterator: return iterator().depth;
    case Kind::kDict: return dict().depth;
    case Kind::kCallable: return callable().self.depth() + 1;
    default: return 0;
  }
}

namespace {

std::string_view TypeName(ListType type) {
  switch (type) {
    case ListType::kList: return "list";
    case ListType::kTuple:
    case ListType::kGroup: return "tuple";
    case ListType::kRange: return "range";
    case ListType::kKeys: return "dict_keys";
    case ListType::kValues: return "dict_values";
    case ListType::kItems: return "dict_items";
  }
  return "list";
}

}  // namespace

std::string_view Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined: return "undefined";
    case Kind::kNone: return "None";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kList: return TypeName(list().type);
    case Kind::kIterator: return "generator";
    case Kind::kDict: return "dict";
    case Kind::kCallable: return "function";
    case Kind::kObject: return "namespace";
    case Kind::kLoop: return "loop";
  }
  return "value";
}

const Value* Dict::Find(const std::string& key) const {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &entries[found->second].second;
}

const Value* Dict::FindText(std::string_view key) const { return Find("s" + std::string(key)); }

namespace {

// Bounds the keys of tuples that contain one another twice, which grow without limit when written out. No template
// needs such keys.
constexpr size_t kMaxTupleKeyBytes = 4096;

// NOLINTNEXTLINE(misc-no-recursion): values are of bounded depth, and each adds to `key`.
bool AppendKey(const Value& value, std::string& key) {
  switch (value.kind()) {
    case Kind::kString:
      key += fmt::format("s{}:", value.text().size());
      key += value.bytes();
      break;
    case Kind::kNone: key += "n"; break;
    case Kind::kBool:
    case Kind::kInt: key += fmt::format("i{}", value.integer()); break;
    case Kind::kFloat: {
      const double number = value.number();
      const bool is_whole = std::trunc(number) == number && std::abs(number) < 9e18;
      key += is_whole ? fmt::format("i{}", static_cast<int64_t>(number)) : fmt::format("f{}", number);
      break;
    }
    case Kind::kList:
      if (!value.is_tuple()) return false;
      key += "(";
      for (const Value& item : value.list().items) {
        if (!AppendKey(item, key) || key.size() > kMaxTupleKeyBytes) return false;
        key += ",";
      }
      key += ")";
      break;
    case Kind::kUndefined: key += "u"; break;
    default: return false;
  }
  return true;
}

}  // namespace

std::optional<std::string> KeyOf(const Value& value) {
  if (value.Is(Kind::kString)) return "s" + value.bytes();
  std::string key;
  if (!AppendKey(value, key)) return std::nullopt;
  return key;
}

Value* Object::Find(std::string_view name) {
  for (auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return value.integer() != 0;
    case Kind::kFloat: return value.number() != 0;
    case Kind::kString: return !value.text().empty();
    case Kind::kList: return !value.list().items.empty();
    case Kind::kDict: return !value.dict().entries.empty();
    default: return true;
  }
}

}  // namespace penstock::jinja
