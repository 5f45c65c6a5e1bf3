// Filters on sequences and dicts.
#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "penstock/chat/jinja/builtins.h"

namespace penstock::jinja {
namespace {

// Follows a path `a.b.0` from an item; each part is an index or an attribute.
Result PathOf(Interp& interp, const Value& item, const Value& path) {
  if (path.is_integral()) return interp.GetItem(item, path);
  if (!path.Is(Kind::kString)) return interp.Fail("an attribute must be a str, found {}", path.type_name());
  Value value = item;
  std::string_view rest = path.bytes();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool is_index = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    const Value key = is_index ? Value::Int(std::stoll(std::string(part))) : Value::String(part);
    PENSTOCK_ASSIGN_OR_RETURN(value, interp.GetItem(value, key));
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

// Returns the key by which an item is compared: the item or its attribute, in lower case unless case matters.
Result SortKey(Interp& interp, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = item;
  if (attribute != nullptr && !attribute->Is(Kind::kNone)) {
    if (attribute->Is(Kind::kString) && attribute->bytes().find(',') != std::string::npos) {
      std::vector<Value> parts;
      std::string_view rest = attribute->bytes();
      while (true) {
        const size_t comma = std::min(rest.find(','), rest.size());
        PENSTOCK_ASSIGN_OR_RETURN(Value part, PathOf(interp, item, Value::String(rest.substr(0, comma))));
        if (!case_sensitive && part.Is(Kind::kString)) part = Value::String(ToLower(part.text()));
        parts.push_back(std::move(part));
        if (comma == rest.size()) return interp.MakeList(std::move(parts));
        rest.remove_prefix(comma + 1);
      }
    }
    PENSTOCK_ASSIGN_OR_RETURN(key, PathOf(interp, item, *attribute));
  }
  if (!case_sensitive && key.Is(Kind::kString)) return interp.MakeString(ToLower(key.text()));
  return key;
}

const Value* SlotOrNull(const Bound& args, size_t i) { return args.Has(i) ? &args[i] : nullptr; }

struct Keyed {
  Value key;
  Value item;
};

absl::StatusOr<std::vector<Keyed>> WithKeys(Interp& interp, const Value& input, const Value* attribute,
                                            bool case_sensitive) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> items, interp.Iterate(input));
  std::vector<Keyed> keyed;
  for (Value& item : items) {
    PENSTOCK_ASSIGN_OR_RETURN(Value key, SortKey(interp, item, attribute, case_sensitive));
    keyed.push_back({std::move(key), std::move(item)});
  }
  return keyed;
}

// A merge sort, stable: std::sort cannot be used, because a comparison may fail.
absl::Status SortKeyed(Interp& interp, std::vector<Keyed>& items, bool reverse) {
  std::vector<Keyed> merged(items.size());
  for (size_t width = 1; width < items.size(); width *= 2) {
    for (size_t begin = 0; begin < items.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, items.size());
      const size_t end = std::min(begin + 2 * width, items.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_right = left == middle;
        if (!take_right && right < end) {
          const Keyed& a = items[left];
          const Keyed& b = items[right];
          PENSTOCK_ASSIGN_OR_RETURN(take_right, reverse ? interp.Less(a.key, b.key) : interp.Less(b.key, a.key));
        }
        merged[out] = std::move(items[take_right ? right++ : left++]);
      }
    }
    items.swap(merged);
  }
  return absl::OkStatus();
}

// Computes the items of a generator. If one fails, the items before it stay, because nobody may ever read the failed
// one.
using Fill = absl::Status (*)(Interp& interp, Bound& args, std::vector<Value>& items);

template <Fill kFill>
Result Lazily(Interp& interp, Bound& args) {
  std::vector<Value> items;
  absl::Status end = kFill(interp, args, items);
  return interp.MakeIterator(std::move(items), std::move(end), args[0].origin());
}

Result ItemsOf(Interp& interp, std::vector<Keyed> keyed, Origin origin) {
  std::vector<Value> items;
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return interp.MakeList(std::move(items), origin);
}

Result FilterCount(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t length, interp.Length(args[0]));
  return Value::Int(length);
}

Result JoinItems(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> items, interp.Iterate(args[0]));
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && args.Has(1)) PENSTOCK_RETURN_IF_ERROR(interp.AppendStr(args[1], out));
    Value item = items[i];
    if (args.Has(2) && !args[2].Is(Kind::kNone)) {
      PENSTOCK_ASSIGN_OR_RETURN(item, PathOf(interp, item, args[2]));
    }
    PENSTOCK_RETURN_IF_ERROR(interp.AppendStr(item, out));
  }
  return interp.MakeString(std::move(out));
}

Result First(Interp& interp, Bound& args) {
  if (args[0].Is(Kind::kString) && !args[0].text().empty()) return interp.GetItem(args[0], Value::Int(0));
  if (args[0].Is(Kind::kIterator)) {
    Iterator& iterator = args[0].iterator();
    if (iterator.pos < iterator.items.size()) return iterator.items[iterator.pos++];
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> items, interp.Iterate(args[0]));
  return items.empty() ? Value::Undefined("the first of no items is undefined") : items.front();
}

Result Last(Interp& interp, Bound& args) {
  if (args[0].Is(Kind::kString) && !args[0].text().empty()) return interp.GetItem(args[0], Value::Int(-1));
  if (args[0].Is(Kind::kIterator)) return interp.Fail("a generator has no last item; use the filter 'list'");
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> items, interp.Iterate(args[0]));
  return items.empty() ? Value::Undefined("the last of no items is undefined") : items.back();
}

Result ToList(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> items, interp.Iterate(args[0]));
  return interp.MakeList(std::move(items), args[0].origin());
}

Result Reverse(Interp& interp, Bound& args) {
  if (args[0].Is(Kind::kString)) return interp.Slice(args[0], Value::None(), Value::None(), Value::Int(-1));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> items, interp.Iterate(args[0]));
  std::reverse(items.begin(), items.end());
  if (args[0].Is(Kind::kIterator)) return interp.MakeList(std::move(items), args[0].origin());
  return interp.MakeIterator(std::move(items), absl::OkStatus(), args[0].origin());
}

Result Sort(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Keyed> keyed,
                            WithKeys(interp, args[0], SlotOrNull(args, 3), TruthOr(args, 2, false)));
  // Jinja sorts by lists of keys. Equal keys are then never ordered, so [none, none] can be sorted.
  for (Keyed& entry : keyed) {
    std::vector<Value> key;
    key.push_back(std::move(entry.key));
    PENSTOCK_ASSIGN_OR_RETURN(entry.key, interp.MakeList(std::move(key)));
  }
  PENSTOCK_RETURN_IF_ERROR(SortKeyed(interp, keyed, TruthOr(args, 1, false)));
  return ItemsOf(interp, std::move(keyed), args[0].origin());
}

absl::Status Unique(Interp& interp, Bound& args, std::vector<Value>& items) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Keyed> keyed,
                            WithKeys(interp, args[0], SlotOrNull(args, 2), TruthOr(args, 1, false)));
  absl::flat_hash_set<std::string> seen;
  for (Keyed& entry : keyed) {
    PENSTOCK_RETURN_IF_ERROR(interp.ChargeKey(entry.key));
    std::optional<std::string> id = KeyOf(entry.key);
    if (!id.has_value()) return interp.Fail("a {} cannot be compared by unique", entry.key.type_name());
    if (seen.insert(std::move(*id)).second) items.push_back(std::move(entry.item));
  }
  return absl::OkStatus();
}

Result Extreme(Interp& interp, Bound& args, bool largest) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Keyed> keyed,
                            WithKeys(interp, args[0], SlotOrNull(args, 2), TruthOr(args, 1, false)));
  if (keyed.empty()) return Value::Undefined("there is no smallest or largest of no items");
  size_t best = 0;
  for (size_t i = 1; i < keyed.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool better, largest ? interp.Less(keyed[best].key, keyed[i].key)
                                                         : interp.Less(keyed[i].key, keyed[best].key));
    if (better) best = i;
  }
  return keyed[best].item;
}

Result Min(Interp& interp, Bound& args) { return Extreme(interp, args, false); }
Result Max(Interp& interp, Bound& args) { return Extreme(interp, args, true); }

Result Sum(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> items, interp.Iterate(args[0]));
  Value total = args.Has(2) ? args[2] : Value::Int(0);
  for (const Value& item : items) {
    Value term = item;
    if (args.Has(1) && !args[1].Is(Kind::kNone)) {
      PENSTOCK_ASSIGN_OR_RETURN(term, PathOf(interp, item, args[1]));
    }
    PENSTOCK_ASSIGN_OR_RETURN(total, interp.Binary("+", total, term));
  }
  return total;
}

absl::Status Map(Interp& interp, Bound& args, std::vector<Value>& mapped) {
  if (!IsTrue(args[0])) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> items, interp.Iterate(args[0]));
  const Value* attribute = nullptr;
  const Value* missing = nullptr;
  if (args.rest.positional.empty()) {
    for (const auto& [name, value] : args.rest.named) {
      if (name == "attribute") attribute = &value;
      if (name == "default") missing = &value;
    }
    if (attribute == nullptr) return interp.Fail("map needs the name of a filter or an attribute");
  } else if (!args.rest.positional[0].Is(Kind::kString)) {
    return interp.Fail("map needs the name of a filter, found {}", args.rest.positional[0].type_name());
  }
  for (const Value& item : items) {
    Value value;
    if (attribute != nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(value, PathOf(interp, item, *attribute));
      if (missing != nullptr && value.Is(Kind::kUndefined)) value = *missing;
    } else {
      PENSTOCK_RETURN_IF_ERROR(
          interp.Charge(static_cast<int64_t>(args.rest.positional.size() + args.rest.named.size())));
      Args call = args.rest;
      call.positional[0] = item;
      PENSTOCK_ASSIGN_OR_RETURN(value, interp.ApplyFilter(args.rest.positional[0].bytes(), std::move(call)));
    }
    mapped.push_back(std::move(value));
  }
  return absl::OkStatus();
}

// Implements select, reject, selectattr and rejectattr: keeps the items for which a test (or their truth) is kWanted.
template <bool kWanted, bool kByAttribute>
absl::Status Filtered(Interp& interp, Bound& args, std::vector<Value>& kept) {
  if (!IsTrue(args[0])) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> items, interp.Iterate(args[0]));
  const std::vector<Value>& rest = args.rest.positional;
  const size_t test_idx = kByAttribute ? 1 : 0;
  if (kByAttribute && rest.empty()) return interp.Fail("an attribute's name is missing");
  if (rest.size() > test_idx && !rest[test_idx].Is(Kind::kString)) {
    return interp.Fail("the name of a test must be a str, found {}", rest[test_idx].type_name());
  }
  for (Value& item : items) {
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(1 + static_cast<int64_t>(rest.size() + args.rest.named.size())));
    Value subject = item;
    if (kByAttribute) {
      PENSTOCK_ASSIGN_OR_RETURN(subject, PathOf(interp, item, rest[0]));
    }
    bool truth = IsTrue(subject);
    if (rest.size() > test_idx) {
      Args call;
      call.positional.push_back(std::move(subject));
      call.positional.insert(call.positional.end(), rest.begin() + static_cast<int64_t>(test_idx) + 1, rest.end());
      call.named = args.rest.named;
      PENSTOCK_ASSIGN_OR_RETURN(truth, interp.ApplyTest(rest[test_idx].bytes(), std::move(call)));
    }
    if (truth == kWanted) kept.push_back(std::move(item));
  }
  return absl::OkStatus();
}

Result Pair(Interp& interp, const Value& key, const Value& value, Origin origin) {
  std::vector<Value> pair;
  pair.push_back(key);
  pair.push_back(value);
  return interp.MakeTuple(std::move(pair), origin);
}

absl::Status Items(Interp& interp, Bound& args, std::vector<Value>& pairs) {
  if (args[0].Is(Kind::kUndefined)) return absl::OkStatus();
  if (!args[0].Is(Kind::kDict)) return interp.Fail("items needs a dict, found {}", args[0].type_name());
  PENSTOCK_ASSIGN_OR_RETURN(pairs, PairsOf(interp, args[0]));
  return absl::OkStatus();
}

Result DictSort(Interp& interp, Bound& args) {
  if (args[0].Is(Kind::kUndefined)) return interp.UndefinedError(args[0]);
  if (!args[0].Is(Kind::kDict)) return interp.Fail("dictsort needs a dict, found {}", args[0].type_name());
  const bool case_sensitive = TruthOr(args, 1, false);
  bool by_value = false;
  if (args.Has(2)) {
    PENSTOCK_ASSIGN_OR_RETURN(const Text* by, TextArg(interp, args, 2));
    if (by->bytes() != "key" && by->bytes() != "value") return interp.Fail("dictsort sorts by 'key' or 'value'");
    by_value = by->bytes() == "value";
  }
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : args[0].dict().entries) {
    PENSTOCK_ASSIGN_OR_RETURN(Value by, SortKey(interp, by_value ? value : key, nullptr, case_sensitive));
    PENSTOCK_ASSIGN_OR_RETURN(Value pair, Pair(interp, key, value, args[0].origin()));
    keyed.push_back({std::move(by), std::move(pair)});
  }
  PENSTOCK_RETURN_IF_ERROR(SortKeyed(interp, keyed, TruthOr(args, 3, false)));
  return ItemsOf(interp, std::move(keyed), args[0].origin());
}

absl::Status Batch(Interp& interp, Bound& args, std::vector<Value>& batches) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> items, interp.Iterate(args[0]));
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t count, IntOr(interp, args, 1, 1));
  if (count < 1 || count > 100'000) return interp.Fail("batches of {} items cannot be made", count);
  for (size_t begin = 0; begin < items.size(); begin += static_cast<size_t>(count)) {
    const size_t end = std::min(begin + static_cast<size_t>(count), items.size());
    std::vector<Value> batch(items.begin() + static_cast<int64_t>(begin), items.begin() + static_cast<int64_t>(end));
    if (args.Has(2) && !args[2].Is(Kind::kNone)) batch.resize(count, args[2]);
    PENSTOCK_ASSIGN_OR_RETURN(Value list, interp.MakeList(std::move(batch), args[0].origin()));
    batches.push_back(std::move(list));
  }
  return absl::OkStatus();
}

// Makes the requested number of lists; if the items do not divide evenly, the first lists have one more.
absl::Status Slice(Interp& interp, Bound& args, std::vector<Value>& slices) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> items, interp.Iterate(args[0]));
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t count, IntOr(interp, args, 1, 1));
  if (count < 1 || count > 100'000) return interp.Fail("{} slices cannot be made", count);
  const size_t num_slices = count;
  const size_t num_longer = items.size() % num_slices;
  auto next = items.begin();
  for (size_t i = 0; i < num_slices; ++i) {
    const auto end = next + static_cast<int64_t>(items.size() / num_slices + (i < num_longer ? 1 : 0));
    std::vector<Value> slice(next, end);
    if (args.Has(2) && !args[2].Is(Kind::kNone) && i >= num_longer) slice.push_back(args[2]);
    PENSTOCK_ASSIGN_OR_RETURN(Value list, interp.MakeList(std::move(slice), args[0].origin()));
    slices.push_back(std::move(list));
    next = end;
  }
  return absl::OkStatus();
}

// Returns (value of the attribute, items that have it), ordered by value.
Result GroupBy(Interp& interp, Bound& args) {
  const bool case_sensitive = TruthOr(args, 3, false);
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> items, interp.Iterate(args[0]));
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    PENSTOCK_ASSIGN_OR_RETURN(Value key, PathOf(interp, item, args[1]));
    if (key.Is(Kind::kUndefined) && args.Has(2) && !args[2].Is(Kind::kNone)) key = args[2];
    if (!case_sensitive && key.Is(Kind::kString)) key = Value::String(ToLower(key.text()));
    keyed.push_back({std::move(key), item});
  }
  PENSTOCK_RETURN_IF_ERROR(SortKeyed(interp, keyed, false));
  std::vector<Value> groups;
  for (size_t begin = 0; begin < keyed.size();) {
    std::vector<Value> members;
    size_t end = begin;
    for (; end < keyed.size(); ++end) {
      PENSTOCK_ASSIGN_OR_RETURN(const bool same, interp.Equal(keyed[begin].key, keyed[end].key));
      if (!same) break;
      members.push_back(keyed[end].item);
    }
    PENSTOCK_ASSIGN_OR_RETURN(Value key, PathOf(interp, members[0], args[1]));
    if (key.Is(Kind::kUndefined) && args.Has(2) && !args[2].Is(Kind::kNone)) key = args[2];
    PENSTOCK_ASSIGN_OR_RETURN(Value list, interp.MakeList(std::move(members), args[0].origin()));
    std::vector<Value> pair = {std::move(key), std::move(list)};
    PENSTOCK_ASSIGN_OR_RETURN(
        Value group, interp.MakeListAs({.items = std::move(pair), .type = ListType::kGroup}, args[0].origin()));
    groups.push_back(std::move(group));
    begin = end;
  }
  return interp.MakeList(std::move(groups), args[0].origin());
}

constexpr Builtin kListFilters[] = {
    {"length", "obj", 1, FilterCount},
    {"count", "obj", 1, FilterCount},
    {"join", "value d attribute", 1, JoinItems},
    {"first", "seq", 1, First},
    {"last", "seq", 1, Last},
    {"list", "value", 1, ToList},
    {"reverse", "value", 1, Reverse},
    {"sort", "value reverse case_sensitive attribute", 1, Sort},
    {"unique", "value case_sensitive attribute", 1, Lazily<Unique>},
    {"min", "value case_sensitive attribute", 1, Min},
    {"max", "value case_sensitive attribute", 1, Max},
    {"sum", "iterable attribute start", 1, Sum},
    {"map", "value *", 1, Lazily<Map>},
    {"select", "value *", 1, Lazily<Filtered<true, false>>},
    {"reject", "value *", 1, Lazily<Filtered<false, false>>},
    {"selectattr", "value *", 1, Lazily<Filtered<true, true>>},
    {"rejectattr", "value *", 1, Lazily<Filtered<false, true>>},
    {"items", "value", 1, Lazily<Items>},
    {"dictsort", "value case_sensitive by reverse", 1, DictSort},
    {"batch", "value linecount fill_with", 2, Lazily<Batch>},
    {"slice", "value slices fill_with", 2, Lazily<Slice>},
    {"groupby", "value attribute default case_sensitive", 2, GroupBy},
};

}  // namespace

absl::StatusOr<std::vector<Value>> PairsOf(Interp& interp, const Value& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.dict().entries) {
    PENSTOCK_ASSIGN_OR_RETURN(Value pair, Pair(interp, key, value, dict.origin()));
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

std::span<const Builtin> ListFilters() { return kListFilters; }

}  // namespace penstock::jinja
