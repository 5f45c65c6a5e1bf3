#include "penstock/job/manifest.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/text.h"
#include "penstock/base/version.h"

namespace penstock {
namespace {

constexpr int64_t kFormatVersion = 3;
constexpr size_t kMaxDigests = 2 * kMaxInputCheckpoints;

using FlatObject = std::map<std::string, std::string>;

void Flatten(const std::string& prefix, const json::value& value, FlatObject& flat) {
  if (value.is_object()) {
    for (const auto& [key, item] : value.get_object()) {
      Flatten(fmt::format("{}{}{}", prefix, prefix.empty() ? "" : ".", std::string_view(key.data(), key.size())), item,
              flat);
    }
  } else {
    flat[prefix] = std::string(json::serialize(value));
  }
}

// Serialises and parses the object, because the manifest to compare with has been through text, too.
absl::StatusOr<FlatObject> FlattenAsRead(const json::object& object) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value value, ParseJson(json::serialize(object), Fault::kInternal));
  FlatObject flat;
  Flatten("", value, flat);
  return flat;
}

absl::StatusOr<std::vector<std::string>> Differences(const json::object& then, const json::object& now) {
  FlatObject flat_then;
  Flatten("", then, flat_then);
  PENSTOCK_ASSIGN_OR_RETURN(FlatObject flat_now, FlattenAsRead(now));
  for (const auto& [key, unused] : flat_then) flat_now.try_emplace(key, "absent");
  std::vector<std::string> differences;
  for (const auto& [key, value_now] : flat_now) {
    const auto found = flat_then.find(key);
    const std::string value_then = found == flat_then.end() ? "absent" : found->second;
    if (value_then != value_now) differences.push_back(fmt::format("{}: {} then, {} now", key, value_then, value_now));
  }
  return differences;
}

std::string WhereInputDiffers(const InputCheckpoints& then, const InputCheckpoints& now) {
  const int64_t stride = std::max(then.stride, now.stride);
  const auto at = [&](const InputCheckpoints& checkpoints, size_t i) {
    return checkpoints.digests[(i + 1) * static_cast<size_t>(stride / checkpoints.stride) - 1];
  };
  const size_t count = std::min(then.digests.size() / static_cast<size_t>(stride / then.stride),
                                now.digests.size() / static_cast<size_t>(stride / now.stride));
  size_t i = 0;
  while (i < count && at(then, i) == at(now, i)) ++i;
  const int64_t first = static_cast<int64_t>(i) * stride + 1;
  if (stride == 1) return fmt::format("the first difference is in line {}", first);
  if (i == count) return fmt::format("the first difference is after line {}", first - 1);
  return fmt::format("the first difference is in lines {} to {}", first, first + stride - 1);
}

absl::Status NotAManifest(const std::string& path, std::string_view why) {
  return IoError("{}: not a manifest of this version of Penstock ({}); choose another --output", path, why);
}

bool IsPowerOfTwo(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

}  // namespace

json::object DescribeJob(const InputReport& report, uint64_t seed, const SamplingOverrides& sampling,
                         const Settings& engine_settings) {
  json::object settings;
  for (const auto& [key, value] : engine_settings) settings[key] = value;
  return {{"version", Version()},
          {"input", json::object{{"lines", report.num_lines}, {"digest", report.digest}}},
          {"seed", seed},
          {"sampling", ToJson(sampling)},
          {"settings", std::move(settings)}};
}

json::object DescribeModel(const Engine& engine) {
  return {{"family", engine.model().family},
          {"fingerprint", engine.model().fingerprint},
          {"dtype", engine.model().dtype},
          {"context_length", engine.model().context_length},
          {"sampling", ToJson(engine.default_sampling())}};
}

uint64_t JobDigest(const json::object& job) {
  const std::string text(json::serialize(job));
  return XXH3_64bits(text.data(), text.size());
}

std::string ManifestPath(const std::string& output_path) { return output_path + ".manifest.json"; }

absl::Status WriteManifest(const Manifest& manifest, const std::string& path) {
  json::array digests;
  for (const uint64_t digest : manifest.checkpoints.digests) digests.emplace_back(fmt::format("{:016x}", digest));
  const json::object root = {
      {"penstock_job", kFormatVersion},
      {"job", manifest.job},
      {"model", manifest.model},
      {"date", manifest.date},
      {"model_name", ReplaceInvalidUtf8(manifest.model_name)},
      {"input_checkpoints", json::object{{"stride", manifest.checkpoints.stride}, {"digests", std::move(digests)}}}};
  return ReplaceFile(path, std::string(json::serialize(root)) + "\n");
}

absl::StatusOr<Manifest> ReadManifest(const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigBytes));
  const absl::StatusOr<json::value> root = ParseJson(text, Fault::kIo);
  if (!root.ok()) return NotAManifest(path, Message(root.status()));
  const json::object* object = root->if_object();
  if (object == nullptr) return NotAManifest(path, "expected an object");
  const auto find = [](const json::object& parent, const char* key) -> const json::value& {
    static const json::value absent;
    const json::value* value = parent.if_contains(key);
    return value == nullptr ? absent : *value;
  };
  if (find(*object, "penstock_job") != json::value(kFormatVersion)) {
    return NotAManifest(path, fmt::format("\"penstock_job\": expected {}", kFormatVersion));
  }
  const json::value& job = find(*object, "job");
  const json::value& model = find(*object, "model");
  const json::value& checkpoints = find(*object, "input_checkpoints");
  if (!job.is_object() || !model.is_object() || !checkpoints.is_object())
    return NotAManifest(path, "a part is missing");
  Manifest manifest{
      .job = job.get_object(), .model = model.get_object(), .checkpoints = {}, .date = {}, .model_name = {}};
  const json::value& date = find(*object, "date");
  if (!date.is_string()) return NotAManifest(path, "\"date\" is missing");
  manifest.date = std::string(date.get_string());
  const json::value& name = find(*object, "model_name");
  if (!name.is_string()) return NotAManifest(path, "\"model_name\" is missing");
  manifest.model_name = std::string(name.get_string());
  const json::value& stride = find(checkpoints.get_object(), "stride");
  const json::value& digests = find(checkpoints.get_object(), "digests");
  if (!stride.is_int64() || !IsPowerOfTwo(stride.get_int64()) || stride.get_int64() > (int64_t{1} << 48) ||
      !digests.is_array() || digests.get_array().size() > kMaxDigests) {
    return NotAManifest(path, "\"input_checkpoints\" is damaged");
  }
  manifest.checkpoints.stride = stride.get_int64();
  for (const json::value& digest : digests.get_array()) {
    uint64_t number = 0;
    if (!digest.is_string() || std::sscanf(digest.get_string().c_str(), "%16lx", &number) != 1) {
      return NotAManifest(path, "\"input_checkpoints\" is damaged");
    }
    manifest.checkpoints.digests.push_back(number);
  }
  return manifest;
}

absl::Status CompareJob(const Manifest& then, const json::object& job, const InputReport& report) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> differences, Differences(then.job, job));
  if (differences.empty()) return absl::OkStatus();
  std::string text;
  for (const std::string& difference : differences) {
    text += fmt::format("{}{}", text.empty() ? "" : "; ", difference);
    if (difference.starts_with("input.digest"))
      text += " (" + WhereInputDiffers(then.checkpoints, report.checkpoints) + ")";
  }
  return InputError(
      "cannot resume, the job differs from the one that was started: {}; undo this, or choose another --output", text);
}

absl::Status CompareModel(const Manifest& then, const json::object& model) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> differences, Differences(then.model, model));
  if (differences.empty()) return absl::OkStatus();
  std::string text;
  for (const std::string& difference : differences)
    text += fmt::format("{}model.{}", text.empty() ? "" : "; ", difference);
  return InputError(
      "cannot resume, the model differs from the one at the start: {}; undo this, or choose another --output", text);
}

}  // namespace penstock
