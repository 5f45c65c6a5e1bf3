#include "penstock/testing/golden/golden_models.h"

#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "penstock/base/file.h"
#include "penstock/base/status.h"

namespace penstock::golden {
namespace {

namespace fs = std::filesystem;

constexpr char kRecipeName[] = "weights.json";
constexpr uint64_t kMaxFileBytes = 1 << 28;
constexpr size_t kGgufAlignment = 32;  // the format's default

std::string_view NameOf(Dtype dtype) { return dtype == Dtype::kF32 ? "F32" : dtype == Dtype::kF16 ? "F16" : "BF16"; }

std::string SafetensorsFile(uint64_t seed, const std::vector<RandomTensor>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (const RandomTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += RandomBytes(seed, tensor);
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                          NameOf(tensor.dtype), fmt::join(tensor.shape, ","), begin, data.size());
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string file;
  for (int shift = 0; shift < 64; shift += 8) file += static_cast<char>(header.size() >> shift & 0xFF);
  return file + header + data;
}

const RandomTensor* Find(const Recipe& recipe, const std::string& name) {
  for (const RecipeFile& file : recipe.files) {
    for (const RandomTensor& tensor : file.tensors) {
      if (tensor.name == name) return &tensor;
    }
  }
  return nullptr;
}

// Appends the elements of `size` bytes that the loops from `depth` on count up; false where the source ends before one.
bool AppendTaken(const std::string& bytes, size_t size, const TakenTensor::Take& take, size_t depth, int64_t place,
                 std::string& out) {
  if (depth < take.loops.size()) {
    for (int64_t i = 0; i < take.loops[depth].count; ++i) {
      if (!AppendTaken(bytes, size, take, depth + 1, place + i * take.loops[depth].step, out)) return false;
    }
    return true;
  }
  if (place < 0 || static_cast<size_t>(place) >= bytes.size() / size) return false;
  out.append(bytes, static_cast<size_t>(place) * size, size);
  return true;
}

std::string AsFloats(Dtype dtype, const std::string& bytes) {
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  ToFloats(dtype, reinterpret_cast<const std::byte*>(bytes.data()), values);
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

void ChangeFloats(TakenTensor::Change change, std::string& bytes) {
  for (float& value : std::span(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float))) {
    value =
        change == TakenTensor::Change::kPlusOne ? value + 1 : static_cast<float>(-std::exp(static_cast<double>(value)));
  }
}

absl::StatusOr<std::string> TakenBytes(const Recipe& recipe, const TakenTensor& tensor) {
  std::string all(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
  for (const std::string& name : tensor.sources) {
    const RandomTensor* const source = Find(recipe, name);
    if (source == nullptr) return InputError("'{}': no safetensors file of the recipe has this tensor", name);
    std::string bytes = RandomBytes(recipe.seed, *source);
    if (!tensor.takes.empty()) {
      std::string taken;
      for (const TakenTensor::Take& take : tensor.takes) {
        if (!AppendTaken(bytes, SizeOf(source->dtype), take, 0, take.first, taken)) {
          return InputError("'{}': 'take' names an element that it does not have", name);
        }
      }
      bytes = std::move(taken);
    }
    const Dtype dtype = tensor.dtype.value_or(source->dtype);
    if (dtype != source->dtype && dtype != Dtype::kF32) return InputError("'{}': expected F32 as 'as'", name);
    const bool changes = tensor.change != TakenTensor::Change::kNone;
    if (changes && dtype != Dtype::kF32) return InputError("'{}': a change needs F32", name);
    bytes = dtype == source->dtype ? std::move(bytes) : AsFloats(source->dtype, bytes);
    if (changes) ChangeFloats(tensor.change, bytes);
    all += bytes;
  }
  return all;
}

absl::StatusOr<std::string> GgufFile(const Recipe& recipe, const RecipeFile& file, const std::string& folder) {
  PENSTOCK_ASSIGN_OR_RETURN(std::string bytes, ReadFile(folder + "/" + file.header, kMaxFileBytes));
  for (const TakenTensor& tensor : file.taken) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string taken, TakenBytes(recipe, tensor));
    bytes += taken;
    bytes.resize((bytes.size() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment, '\0');
  }
  return bytes;
}

// Copies all files but the recipe and headers, also those of folders inside.
absl::Status CopyFiles(const fs::path& source, const fs::path& target) {
  for (const auto& entry : fs::recursive_directory_iterator(source)) {
    const fs::path name = entry.path().lexically_relative(source);
    if (!entry.is_regular_file() || name == kRecipeName || name.extension() == ".header") continue;
    std::error_code error;
    fs::create_directories((target / name).parent_path(), error);
    fs::copy_file(entry.path(), target / name, error);
    if (error) return IoError("{}: cannot be copied: {}", (target / name).string(), error.message());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> MakeFile(const Recipe& recipe, const RecipeFile& file, const std::string& folder) {
  absl::StatusOr<std::string> bytes =
      file.header.empty() ? SafetensorsFile(recipe.seed, file.tensors) : GgufFile(recipe, file, folder);
  if (!bytes.ok()) return Annotate(bytes.status(), file.name);
  const uint64_t found = XXH3_64bits(bytes->data(), bytes->size());
  if (found != file.xxh3) {
    return InputError(
        "{}: expected XXH3 {:016x}, found {:016x}: the generators differ, or the recipe was changed by hand", file.name,
        file.xxh3, found);
  }
  return bytes;
}

absl::Status MakeModel(const std::string& source, const std::string& target) {
  fs::remove_all(target);
  PENSTOCK_RETURN_IF_ERROR(CopyFiles(source, target));
  const std::string recipe_path = source + "/" + kRecipeName;
  if (!fs::exists(recipe_path)) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(recipe_path, kMaxFileBytes));
  const absl::StatusOr<Recipe> recipe = ParseRecipe(text);
  if (!recipe.ok()) return Annotate(recipe.status(), recipe_path);
  for (const RecipeFile& file : recipe->files) {
    const absl::StatusOr<std::string> bytes = MakeFile(*recipe, file, source);
    if (!bytes.ok()) return Annotate(bytes.status(), source);
    const fs::path path = fs::path(target) / file.name;
    fs::create_directories(path.parent_path());
    PENSTOCK_RETURN_IF_ERROR(WriteFile(path, *bytes));
  }
  return absl::OkStatus();
}

absl::Status MakeModels(const std::string& source, const std::string& target) {
  if (!fs::is_directory(source)) return UsageError("{}: expected the folder of the golden models", source);
  fs::create_directories(target);
  for (const auto& entry : fs::directory_iterator(source)) {
    const fs::path path = fs::path(target) / entry.path().filename();
    if (entry.is_directory()) PENSTOCK_RETURN_IF_ERROR(MakeModel(entry.path(), path));
  }
  std::set<fs::path> left;
  for (const auto& entry : fs::directory_iterator(target)) {
    if (entry.is_directory() && !fs::exists(fs::path(source) / entry.path().filename())) left.insert(entry.path());
  }
  for (const fs::path& path : left) fs::remove_all(path);
  return absl::OkStatus();
}

}  // namespace penstock::golden
