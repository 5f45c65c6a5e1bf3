#include "penstock/testing/golden/recipe.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "penstock/base/json.h"
#include "penstock/base/status.h"

namespace penstock::golden {
namespace {

// An object of a recipe; `what` names it in messages.
class Fields {
 public:
  static absl::StatusOr<Fields> Of(const json::value& value, std::string what) {
    if (!value.is_object()) return InputError("{}: expected an object, found {}", what, JsonTypeName(value));
    return Fields(value.get_object(), std::move(what));
  }

  bool Has(std::string_view key) const { return object_->contains(key); }
  absl::StatusOr<int64_t> Integer(std::string_view key) const {
    const json::value* value = object_->if_contains(key);
    if (value == nullptr || !value->is_int64()) return InputError("{}: expected an integer '{}'", what_, key);
    return value->get_int64();
  }
  absl::StatusOr<std::string> Text(std::string_view key) const {
    const json::value* value = object_->if_contains(key);
    if (value == nullptr || !value->is_string()) return InputError("{}: expected a string '{}'", what_, key);
    return std::string(value->get_string());
  }
  absl::StatusOr<const json::array*> List(std::string_view key) const {
    const json::value* value = object_->if_contains(key);
    if (value == nullptr || !value->is_array()) return InputError("{}: expected a list '{}'", what_, key);
    return &value->get_array();
  }
  absl::StatusOr<const json::object*> Object(std::string_view key) const {
    const json::value* value = object_->if_contains(key);
    if (value == nullptr || !value->is_object()) return InputError("{}: expected an object '{}'", what_, key);
    return &value->get_object();
  }
  absl::StatusOr<Dtype> Type(std::string_view key) const {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string name, Text(key));
    if (name == "F32") return Dtype::kF32;
    if (name == "F16") return Dtype::kF16;
    if (name == "BF16") return Dtype::kBF16;
    return InputError("{}: expected F32, F16 or BF16 as '{}', found '{}'", what_, key, name);
  }

 private:
  Fields(const json::object& object, std::string what) : object_(&object), what_(std::move(what)) {}
  const json::object* object_;
  std::string what_;
};

absl::StatusOr<std::vector<RandomTensor>> ReadRandomTensors(const json::array& entries, const std::string& what) {
  std::vector<RandomTensor> tensors;
  for (const json::value& entry : entries) {
    PENSTOCK_ASSIGN_OR_RETURN(const Fields fields, Fields::Of(entry, what));
    RandomTensor tensor;
    PENSTOCK_ASSIGN_OR_RETURN(const std::string pattern, fields.Text("name"));
    PENSTOCK_ASSIGN_OR_RETURN(tensor.dtype, fields.Type("dtype"));
    PENSTOCK_ASSIGN_OR_RETURN(tensor.std_millionths, fields.Integer("std"));
    if (fields.Has("mean")) {
      PENSTOCK_ASSIGN_OR_RETURN(tensor.mean_millionths, fields.Integer("mean"));
    }
    if (std::max(std::abs(tensor.std_millionths), std::abs(tensor.mean_millionths)) > kMaxMillionths) {
      return InputError("{}: '{}': expected a mean and a standard deviation up to {}", what, pattern, kMaxMillionths);
    }
    PENSTOCK_ASSIGN_OR_RETURN(const json::array* const shape, fields.List("shape"));
    for (const json::value& dim : *shape) {
      const int64_t* const size = dim.if_int64();
      if (size == nullptr || *size < 1 || *size > 1 << 16 || tensor.num_elements() > 1 << 20) {
        return InputError("{}: '{}': expected dimensions from 1 to 65536, found {}", what, pattern,
                          json::serialize(dim));
      }
      tensor.shape.push_back(*size);
    }
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, ExpandPattern(pattern));
    for (const std::string& name : names) {
      tensor.name = name;
      tensors.push_back(tensor);
    }
  }
  return tensors;
}

absl::StatusOr<TakenTensor::Take> ReadTake(const json::array& list, const std::string& what) {
  TakenTensor::Take take;
  for (const json::value& entry : list) {
    if (&entry == &list.front() && entry.is_int64()) {
      take.first = entry.get_int64();
    } else if (entry.is_array() && entry.get_array().size() == 2 && entry.at(0).is_int64() && entry.at(1).is_int64()) {
      take.loops.push_back({entry.at(0).get_int64(), entry.at(1).get_int64()});
    } else {
      return InputError("{}: expected [first, [count, step], ...] as 'take'", what);
    }
  }
  return take;
}

// Reads [[count, value], ...].
absl::StatusOr<std::vector<float>> ReadValues(const json::array& runs, const std::string& what) {
  constexpr int64_t kMaxCount = 1 << 16;
  std::vector<float> values;
  for (const json::value& run : runs) {
    const bool is_pair = run.is_array() && run.get_array().size() == 2 && run.at(0).is_int64() && run.at(1).is_number();
    const int64_t count = is_pair ? run.at(0).get_int64() : 0;
    if (count < 1 || count > kMaxCount) return InputError("{}: expected [[count, value], ...] as 'values'", what);
    values.insert(values.end(), static_cast<size_t>(count), run.at(1).to_number<float>());
  }
  return values;
}

absl::StatusOr<std::vector<TakenTensor>> ReadTakenTensors(const json::array& entries, const std::string& what) {
  std::vector<TakenTensor> tensors;
  for (const json::value& entry : entries) {
    PENSTOCK_ASSIGN_OR_RETURN(const Fields fields, Fields::Of(entry, what));
    TakenTensor& tensor = tensors.emplace_back();
    if (fields.Has("values")) {
      PENSTOCK_ASSIGN_OR_RETURN(const json::array* const runs, fields.List("values"));
      PENSTOCK_ASSIGN_OR_RETURN(tensor.values, ReadValues(*runs, what));
      continue;
    }
    PENSTOCK_ASSIGN_OR_RETURN(const std::string pattern, fields.Text("of"));
    PENSTOCK_ASSIGN_OR_RETURN(tensor.sources, ExpandPattern(pattern));
    if (fields.Has("take")) {
      PENSTOCK_ASSIGN_OR_RETURN(const json::array* const list, fields.List("take"));
      PENSTOCK_ASSIGN_OR_RETURN(tensor.takes.emplace_back(), ReadTake(*list, what));
    } else if (fields.Has("takes")) {
      PENSTOCK_ASSIGN_OR_RETURN(const json::array* const lists, fields.List("takes"));
      for (const json::value& list : *lists) {
        if (!list.is_array()) return InputError("{}: expected lists as 'takes'", what);
        PENSTOCK_ASSIGN_OR_RETURN(tensor.takes.emplace_back(), ReadTake(list.get_array(), what));
      }
    }
    if (fields.Has("as")) {
      PENSTOCK_ASSIGN_OR_RETURN(tensor.dtype, fields.Type("as"));
    }
    if (fields.Has("change")) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string change, fields.Text("change"));
      if (change != "plus_one" && change != "minus_exp") {
        return InputError("{}: expected plus_one or minus_exp as 'change', found '{}'", what, change);
      }
      tensor.change = change == "plus_one" ? TakenTensor::Change::kPlusOne : TakenTensor::Change::kMinusExp;
    }
  }
  return tensors;
}

absl::StatusOr<RecipeFile> ReadFileEntry(const std::string& name, const json::value& value) {
  RecipeFile file{.name = name};
  PENSTOCK_ASSIGN_OR_RETURN(const Fields fields, Fields::Of(value, name));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string hash, fields.Text("xxh3"));
  const auto [end, error] = std::from_chars(hash.data(), hash.data() + hash.size(), file.xxh3, 16);
  if (error != std::errc() || end != hash.data() + hash.size()) {
    return InputError("{}: expected 64 bits in hexadecimal as 'xxh3', found '{}'", name, hash);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const json::array* const tensors, fields.List("tensors"));
  if (fields.Has("header")) {
    PENSTOCK_ASSIGN_OR_RETURN(file.header, fields.Text("header"));
    PENSTOCK_ASSIGN_OR_RETURN(file.taken, ReadTakenTensors(*tensors, name));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(file.tensors, ReadRandomTensors(*tensors, name));
  }
  return file;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandPattern(std::string_view pattern) {
  std::vector<std::string> names = {""};
  while (!pattern.empty()) {
    const size_t open = std::min(pattern.find('{'), pattern.size());
    for (std::string& name : names) name += pattern.substr(0, open);
    if (open == pattern.size()) break;
    int first = 0, last = 0;
    const char* const end = pattern.data() + pattern.size();
    const auto [dash, first_error] = std::from_chars(pattern.data() + open + 1, end, first);
    const bool has_dash = first_error == std::errc() && dash != end && *dash == '-';
    const auto [close, last_error] = std::from_chars(has_dash ? dash + 1 : end, end, last);
    if (!has_dash || last_error != std::errc() || close == end || *close != '}' || first < 0 || last < first ||
        last > 999) {
      return InputError("pattern '{}': expected a range like {{0-7}} up to 999", pattern);
    }
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (int number = first; number <= last; ++number) longer.push_back(name + std::to_string(number));
    }
    names = std::move(longer);
    pattern.remove_prefix(close + 1 - pattern.data());
  }
  return names;
}

absl::StatusOr<Recipe> ParseRecipe(std::string_view text) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value value, ParseJson(text, Fault::kInput));
  PENSTOCK_ASSIGN_OR_RETURN(const Fields fields, Fields::Of(value, "recipe"));
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t version, fields.Integer("generator"));
  if (version != kGeneratorVersion) {
    return InputError("recipe: expected version {} of the generator, found {}", kGeneratorVersion, version);
  }
  Recipe recipe;
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t seed, fields.Integer("seed"));
  recipe.seed = static_cast<uint64_t>(seed);
  PENSTOCK_ASSIGN_OR_RETURN(const json::object* const files, fields.Object("files"));
  for (const auto& entry : *files) {
    PENSTOCK_ASSIGN_OR_RETURN(RecipeFile file, ReadFileEntry(entry.key(), entry.value()));
    recipe.files.push_back(std::move(file));
  }
  return recipe;
}

}  // namespace penstock::golden
