#include "penstock/checkpoint/importance.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <span>

#include <fcntl.h>
#include <sys/stat.h>

#include "penstock/base/check.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/tensor/error_weights.h"

namespace penstock {
namespace {

constexpr std::string_view kFormatKey = "penstock_importance";
constexpr std::string_view kFormatVersion = "1";
constexpr std::string_view kFields[] = {".rows", ".squares", ".products"};

// Says which of kFields a tensor is, and cuts that off its name; -1: none.
int TakeField(std::string_view& name) {
  for (int field = 0; field < 3; ++field) {
    if (!name.ends_with(kFields[field])) continue;
    name.remove_suffix(kFields[field].size());
    return field;
  }
  return -1;
}

// Checks the dims of a tensor against those that its site has so far, and enters them.
absl::Status Enter(const TensorInfo& tensor, int field, Importance::Site& site) {
  const std::vector<int64_t>& shape = tensor.shape;
  const size_t rank = static_cast<size_t>(field) + 1;
  const auto wrong = [&] { return InputError("tensor '{}': has no shape of importances", Excerpt(tensor.name)); };
  if (shape.size() != rank || tensor.dtype != (field == 0 ? Dtype::kI64 : Dtype::kF32)) return wrong();
  if (shape[0] < 1 || shape[0] > kMaxExperts) return wrong();
  if (field > 0 && (shape[1] < 1 || shape[1] > kMaxVocabSize)) return wrong();
  if (field == 2 && shape[2] != kInputBlock) return wrong();
  if (site.num_experts != 0 && site.num_experts != shape[0]) return wrong();
  if (field > 0 && site.dim != 0 && site.dim != shape[1]) return wrong();
  site.num_experts = shape[0];
  if (field > 0) site.dim = shape[1];
  (field == 0 ? site.rows_at : field == 1 ? site.squares_at : site.products_at) = tensor.extent.offset_bytes;
  return absl::OkStatus();
}

}  // namespace

std::string SiteName(int64_t layer_idx, InputSite site) {
  const auto part = [&]() -> std::string_view {
    switch (site) {
      case InputSite::kAttention: return "self_attn.input";
      case InputSite::kAttended: return "self_attn.output";
      case InputSite::kFfn: return "mlp.input";
      case InputSite::kHidden: return "mlp.hidden";
      case InputSite::kSharedFfn: return "mlp.shared_expert.input";
      case InputSite::kSharedHidden: return "mlp.shared_expert.hidden";
      case InputSite::kExperts: return "mlp.experts.input";
      case InputSite::kExpertsHidden: return "mlp.experts.hidden";
      case InputSite::kResidual: return "residual";
    }
    return "";
  };
  return fmt::format("model.layers.{}.{}", layer_idx, part());
}

absl::Status WriteImportance(const std::string& path, const std::map<std::string, SiteStatistics>& sites) {
  json::object header = {{"__metadata__", {{kFormatKey, kFormatVersion}}}};
  std::vector<std::string_view> data;
  uint64_t end = 0;
  const auto add = [&](const std::string& name, std::string_view dtype, json::array shape, std::string_view bytes) {
    header[name] = {{"dtype", dtype}, {"shape", std::move(shape)}, {"data_offsets", {end, end + bytes.size()}}};
    end += bytes.size();
    data.push_back(bytes);
  };
  const auto bytes_of = [](const auto& values) {
    return std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  for (const auto& [name, site] : sites) {
    const auto num_experts = std::ssize(site.rows);
    add(name + ".rows", "I64", {num_experts}, bytes_of(site.rows));
    add(name + ".squares", "F32", {num_experts, site.dim}, bytes_of(site.squares));
    if (!site.products.empty()) {
      add(name + ".products", "F32", {num_experts, site.dim, kInputBlock}, bytes_of(site.products));
    }
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  PENSTOCK_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path, /*replaces_leftover=*/true));
  PENSTOCK_RETURN_IF_ERROR(file.Write(length));
  PENSTOCK_RETURN_IF_ERROR(file.Write(text));
  for (const std::string_view bytes : data) PENSTOCK_RETURN_IF_ERROR(file.Write(bytes));
  return file.Commit();
}

absl::StatusOr<Importance::Sites> Importance::ParseHeader(std::string_view header, uint64_t file_bytes) {
  SafetensorsMetadata metadata;
  const absl::StatusOr<std::vector<TensorInfo>> tensors = ParseSafetensorsHeader(header, file_bytes, &metadata);
  if (!tensors.ok()) return InputError("{}", Message(tensors.status()));
  const bool is_known = std::ranges::any_of(
      metadata, [](const auto& entry) { return entry.first == kFormatKey && entry.second == kFormatVersion; });
  if (!is_known) return InputError("is no importance file: penstock calibrate writes such files");
  Sites sites;
  for (const TensorInfo& tensor : *tensors) {
    std::string_view name = tensor.name;
    const int field = TakeField(name);
    if (field < 0) return InputError("tensor '{}': is none of importances", Excerpt(tensor.name));
    PENSTOCK_RETURN_IF_ERROR(Enter(tensor, field, sites[std::string(name)]));
  }
  for (const auto& [name, site] : sites) {
    if (site.rows_at == 0 || site.squares_at == 0) {
      return InputError("site '{}': has no rows or no squares", Excerpt(name));
    }
  }
  return sites;
}

absl::StatusOr<Importance> Importance::Open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return InputError("{}: cannot be opened: {}", Printable(path), ErrnoText(errno));
  }
  if (!S_ISREG(info.st_mode)) return InputError("{}: is no regular file", Printable(path));
  const auto file_bytes = static_cast<uint64_t>(info.st_size);
  std::string first(std::min<uint64_t>(8, file_bytes), '\0');
  PENSTOCK_RETURN_IF_ERROR(PreadFully(fd.get(), std::as_writable_bytes(std::span(first)), 0, path));
  const absl::StatusOr<uint64_t> header_bytes = SafetensorsHeaderBytes(first, file_bytes);
  if (!header_bytes.ok()) return InputError("{}: {}", Printable(path), Message(header_bytes.status()));
  std::string header(*header_bytes, '\0');
  PENSTOCK_RETURN_IF_ERROR(PreadFully(fd.get(), std::as_writable_bytes(std::span(header)), 8, path));
  absl::StatusOr<Sites> sites = ParseHeader(header, file_bytes);
  if (!sites.ok()) return Annotate(sites.status(), Printable(path));
  return Importance(path, std::move(fd), *std::move(sites));
}

template <typename T>
absl::StatusOr<std::vector<T>> Importance::Values(uint64_t offset_bytes, int64_t count) const {
  std::vector<T> values(static_cast<size_t>(count));
  PENSTOCK_RETURN_IF_ERROR(PreadFully(fd_.get(), std::as_writable_bytes(std::span(values)), offset_bytes, path_));
  for (const T value : values) {
    if (!std::isfinite(static_cast<double>(value))) return InputError("{}: holds NaN or infinity", Printable(path_));
  }
  return values;
}

absl::StatusOr<Importance::Moments> Importance::Read(const InputPlace& place, int64_t num_experts, int64_t dim) const {
  const std::string name = SiteName(place.layer_idx, place.site);
  const auto found = sites_.find(name);
  if (found == sites_.end()) return InputError("{}: has no '{}': is it of this model?", Printable(path_), name);
  const Site& site = found->second;
  if (site.num_experts != num_experts || site.dim != dim) {
    return InputError("{}: '{}' is of {} x {} inputs, expected {} x {}: is it of this model?", Printable(path_), name,
                      site.num_experts, site.dim, num_experts, dim);
  }
  const auto begin = static_cast<uint64_t>(place.expert_idx * dim) * sizeof(float);
  Moments moments;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> rows, Values<int64_t>(site.rows_at, num_experts));
  moments.rows = rows[static_cast<size_t>(place.expert_idx)];
  if (moments.rows >= kMinRows || num_experts == 1) {
    PENSTOCK_ASSIGN_OR_RETURN(moments.squares, Values<float>(site.squares_at + begin, dim));
    if (site.products_at != 0) {
      PENSTOCK_ASSIGN_OR_RETURN(moments.products,
                                Values<float>(site.products_at + begin * kInputBlock, dim * kInputBlock));
    }
  } else {
    moments.squares.resize(static_cast<size_t>(dim));
    double total = 0;
    for (const int64_t count : rows) total += static_cast<double>(count);
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<float> all, Values<float>(site.squares_at, num_experts * dim));
    for (int64_t expert_idx = 0; expert_idx < num_experts && total > 0; ++expert_idx) {
      const auto share = static_cast<float>(static_cast<double>(rows[expert_idx]) / total);
      for (int64_t k = 0; k < dim; ++k) moments.squares[k] += share * all[expert_idx * dim + k];
    }
  }
  const auto is_negative = [](auto value) { return value < 0; };
  if (std::ranges::any_of(moments.squares, is_negative) || std::ranges::any_of(rows, is_negative)) {
    return InputError("{}: '{}' has a negative count or square", Printable(path_), name);
  }
  return moments;
}

}  // namespace penstock
