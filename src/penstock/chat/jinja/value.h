// Values of a template: Python's None, bool, int, float, str, list, tuple, range, dict, the views and iterators of
// these, and a few objects of Jinja's own.
//
// Data is immutable and shared. Only namespaces, loops and cyclers change. The interpreter owns these and values only
// point to them, so no cycle of owners can arise. An iterator advances over data that is fixed when it is made.
// Strings carry origins (text.h). Every other value carries one origin, which its printed form takes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/chat/jinja/text.h"

namespace penstock::jinja {

struct List;
struct Iterator;
struct Dict;
struct Callable;
struct Object;
struct LoopState;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kIterator,
  kDict,
  kCallable,
  kObject,
  kLoop
};

class Value {
 public:
  Value() : integer_(0) {}  // undefined
  // Returns an undefined value; using it reports `what` ("'x' is undefined").
  static Value Undefined(std::string what);
  static Value None(Origin origin = Origin::kTemplate);
  static Value Bool(bool value, Origin origin = Origin::kTemplate);
  static Value Int(int64_t value, Origin origin = Origin::kTemplate);
  static Value Float(double value, Origin origin = Origin::kTemplate);
  static Value String(Text text);
  // Returns a str that is marked as safe HTML (Python's Markup): text that is added to it gets escaped.
  static Value Markup(Text text);
  static Value String(std::string_view text) { return String(Text(text, Origin::kTemplate)); }
  static Value Of(std::shared_ptr<const List> list, Origin origin);
  static Value Of(std::shared_ptr<Iterator> iterator, Origin origin);
  static Value Of(std::shared_ptr<const Dict> dict, Origin origin);
  static Value Of(std::shared_ptr<const Callable> callable);
  static Value Of(Object* object);
  static Value Of(LoopState* loop);

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return kind_ == Kind::kBool || kind_ == Kind::kInt || kind_ == Kind::kFloat; }
  // True for bool and int, which Python accepts as an index.
  bool is_integral() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }

  // REQUIRES, for each: the value has the matching kind.
  int64_t integer() const { return integer_; }  // also 0 / 1 for a bool
  double number() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(integer_); }
  const Text& text() const { return *static_cast<const Text*>(data_.get()); }
  const std::string& bytes() const { return text().bytes(); }
  bool is_markup() const { return is_markup_; }
  const List& list() const { return *static_cast<const List*>(static_cast<const void*>(data_.get())); }
  // Not const: an iterator changes when its items are read, though the data does not.
  Iterator& iterator() const;
  bool is_tuple() const;  // REQUIRES a kList, here and below
  // True for a list or tuple, but not for a range or a view of a dict.
  bool is_plain_list() const;
  // True for lists, tuples and ranges, whose items have an index, but not for views of a dict.
  bool is_indexable() const;
  const Dict& dict() const { return *static_cast<const Dict*>(static_cast<const void*>(data_.get())); }
  const Callable& callable() const { return *static_cast<const Callable*>(static_cast<const void*>(data_.get())); }
  Object& object() const { return *object_; }
  LoopState& loop() const { return *loop_; }
  // Returns why the value is undefined.
  std::string UndefinedText() const;

  // Returns the value's origin; for a string, kMessage if any byte is from a message.
  Origin origin() const { return kind_ == Kind::kString ? text().AnyOrigin() : origin_; }
  // Returns whether both are the same object, or equal immutable scalars.
  bool SameAs(const Value& other) const;
  // Returns how deeply lists and dicts are nested in the value; 0 for scalars.
  int depth() const;
  // Returns "str", "list", "undefined" ... for messages.
  std::string_view type_name() const;

 private:
  Kind kind_ = Kind::kUndefined;
  Origin origin_ = Origin::kTemplate;
  bool is_markup_ = false;
  union {
    int64_t integer_;
    double float_;
    Object* object_;
    LoopState* loop_;
  };
  std::shared_ptr<const void> data_;
};

// The type that Python would show for a sequence. Views are the results of a dict's keys(), values() and items(). A
// group is a result of groupby: a tuple whose two items have names.
enum class ListType : uint8_t { kList, kTuple, kGroup, kRange, kKeys, kValues, kItems };

struct List {
  std::vector<Value> items;
  ListType type = ListType::kList;
  int64_t start = 0;  // start, and the fields below: for a range
  int64_t stop = 0;
  int64_t step = 1;
  int depth = 1;
};

// The result of filters such as map and select: items that can be read once. Python computes each item when it is read.
// Here all are computed at once, and `end` keeps the error of the item behind the last one.
struct Iterator {
  std::vector<Value> items;
  size_t pos = 0;
  absl::Status end;
  int depth = 1;
};

// Entries keep the order of insertion. A key is any hashable value.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  absl::flat_hash_map<std::string, size_t> index;  // from KeyOf()
  int depth = 1;

  const Value* Find(const std::string& key) const;
  const Value* FindText(std::string_view key) const;
};

// Returns a string that is equal for equal keys (1, 1.0 and true are one key, as in Python). Returns nullopt for a
// value that cannot be a key, which includes huge tuples. Interp::ChargeKey charges for it.
std::optional<std::string> KeyOf(const Value& value);

struct Stmt;
class Scope;

// A value that can be called.
struct Callable {
  enum class Type : uint8_t { kFunction, kMethod, kMacro };
  Type type = Type::kFunction;
  std::string name;             // for functions and methods
  Value self;                   // for methods
  const Stmt* macro = nullptr;  // kMacro: a macro or a call block
  Scope* scope = nullptr;       // kMacro: where it was defined
};

// A namespace, cycler or joiner: owned by the interpreter until rendering ends.
struct Object {
  enum class Type : uint8_t { kNamespace, kCycler, kJoiner };
  Type type = Type::kNamespace;
  std::vector<std::pair<std::string, Value>> attributes;
  std::vector<Value> items;  // for cyclers; for a joiner, its separator
  size_t pos = 0;

  Value* Find(std::string_view name);
};

// The `loop` variable of one running for statement; owned by the interpreter.
struct LoopState {
  std::vector<Value> items;
  size_t index0 = 0;
  int depth0 = 0;  // nesting depth of calls of a recursive loop
  const Stmt* stmt = nullptr;
  Scope* scope = nullptr;  // the statement's scope; null when the loop is over
  std::optional<std::vector<Value>> last_changed;
};

bool IsTrue(const Value& value);

}  // namespace penstock::jinja
