#include "penstock/job/manifest.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/choices.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/base/version.h"
#include "penstock/plan/formats.h"
#include "penstock/routing/sida_network.h"

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
    flat[prefix] = JsonForPeople(value);
  }
}

// Serialises and parses the object, because the manifest to compare with has been through text, too.
absl::StatusOr<FlatObject> FlattenAsRead(const json::object& object) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value value, ParseJson(json::serialize(object), Fault::kInternal));
  FlatObject flat;
  Flatten("", value, flat);
  return flat;
}

// Returns "seed: 0 then, 1 now" for each key that differs.
absl::StatusOr<std::vector<std::string>> Differences(const json::object& then, const json::object& now,
                                                     std::string_view then_word = "then",
                                                     std::string_view now_word = "now") {
  FlatObject flat_then;
  Flatten("", then, flat_then);
  PENSTOCK_ASSIGN_OR_RETURN(FlatObject flat_now, FlattenAsRead(now));
  for (const auto& [key, unused] : flat_then) flat_now.try_emplace(key, "not given");
  std::vector<std::string> differences;
  for (const auto& [key, value_now] : flat_now) {
    const auto found = flat_then.find(key);
    const std::string value_then = found == flat_then.end() ? "not given" : found->second;
    if (value_then == value_now) continue;
    if (key == "settings.system") {
      differences.emplace_back("settings.system: the system messages differ");
      continue;
    }
    const auto shown = [](const std::string& value) { return value == "null" ? "not given" : value.c_str(); };
    differences.push_back(
        fmt::format("{}: {} {}, {} {}", key, shown(value_then), then_word, shown(value_now), now_word));
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
  return IoError("{}: not a manifest of this version of Penstock ({}); choose another output", path, why);
}

std::string HexDigest(uint64_t digest) { return fmt::format("{:016x}", digest); }

std::optional<uint64_t> ParseHexDigest(const json::value& value) {
  uint64_t digest = 0;
  if (!value.is_string() || std::sscanf(value.get_string().c_str(), "%16lx", &digest) != 1) return std::nullopt;
  return digest;
}

const json::value& Find(const json::object& parent, const char* key) {
  static const json::value absent;
  const json::value* value = parent.if_contains(key);
  return value == nullptr ? absent : *value;
}

// Reads the keys about shards. Manifests of older versions lack them; theirs are whole jobs.
absl::Status ReadShard(const json::object& object, const std::string& path, Manifest& manifest) {
  if (!object.contains("shard")) {
    manifest.job_digest = JobDigest(manifest.job);
    return absl::OkStatus();
  }
  const json::value& shard_text = Find(object, "shard");
  const std::optional<uint64_t> digest = ParseHexDigest(Find(object, "job_digest"));
  const json::value& num_requests = Find(object, "requests");
  const absl::StatusOr<Shard> shard = ParseShard(shard_text.is_string() ? View(shard_text.get_string()) : "");
  if (!shard.ok() || !digest.has_value() || !num_requests.is_int64() || num_requests.get_int64() < 0) {
    return NotAManifest(path, "\"shard\", \"job_digest\" or \"requests\" is damaged");
  }
  manifest.shard = *shard;
  manifest.job_digest = *digest;
  manifest.num_requests = num_requests.get_int64();
  return absl::OkStatus();
}

std::string ShardForPeople(const Shard& shard) { return shard.is_whole() ? "none" : shard.Text(); }

// Returns the differences as one text; empty if there are none.
std::string Joined(const std::vector<std::string>& differences) {
  std::string text;
  for (const std::string& difference : differences) text += (text.empty() ? "" : "; ") + difference;
  return text;
}

bool IsPowerOfTwo(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

}  // namespace

absl::StatusOr<Settings> SettingsOf(const EngineOptions& options, const std::optional<std::string>& system) {
  Settings settings = {{"activations", std::string(ChoiceName(options.activations, ActivationFormats()))},
                       {"kv_dtype", std::string(ChoiceName(options.kv_dtype, KvFormats()))}};
  if (options.policy.predictor_replaces_routers) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t checksum, SidaNetwork::Checksum(options.policy.predictor_path));
    settings.emplace_back("routers_replaced_by", fmt::format("{:016x}", checksum));
  }
  if (options.attention_window > 0) {
    settings.emplace_back("attention_window", std::to_string(options.attention_window));
    settings.emplace_back("attention_sinks", std::to_string(options.attention_sinks));
  }
  if (system.has_value()) {
    if (!IsUtf8(*system)) return UsageError("--system: the text is not UTF-8");
    // A server tells its clients which settings differ, but not the message.
    settings.emplace_back("system", fmt::format("{:016x}", XXH3_64bits(system->data(), system->size())));
  }
  return settings;
}

json::object DescribeJob(const InputReport& report, uint64_t seed, const SamplingOverrides& sampling,
                         const Settings& engine_settings) {
  // The digest of a job depends on the order.
  json::object settings;
  for (const auto& [key, value] : FlatObject(engine_settings.begin(), engine_settings.end())) settings[key] = value;
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
  for (const uint64_t digest : manifest.checkpoints.digests) digests.emplace_back(HexDigest(digest));
  const json::object root = {
      {"penstock_job", kFormatVersion},
      {"job", manifest.job},
      {"job_digest", HexDigest(manifest.job_digest)},
      {"model", manifest.model},
      {"shard", manifest.shard.Text()},
      {"requests", manifest.num_requests},
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
  if (Find(*object, "penstock_job") != json::value(kFormatVersion)) {
    return NotAManifest(path, fmt::format("\"penstock_job\": expected {}", kFormatVersion));
  }
  const json::value& job = Find(*object, "job");
  const json::value& model = Find(*object, "model");
  const json::value& checkpoints = Find(*object, "input_checkpoints");
  if (!job.is_object() || !model.is_object() || !checkpoints.is_object())
    return NotAManifest(path, "a part is missing");
  Manifest manifest;
  manifest.job = job.get_object();
  manifest.model = model.get_object();
  PENSTOCK_RETURN_IF_ERROR(ReadShard(*object, path, manifest));
  const json::value& date = Find(*object, "date");
  if (!date.is_string()) return NotAManifest(path, "\"date\" is missing");
  manifest.date = std::string(date.get_string());
  const json::value& name = Find(*object, "model_name");
  if (!name.is_string()) return NotAManifest(path, "\"model_name\" is missing");
  manifest.model_name = std::string(name.get_string());
  const json::value& stride = Find(checkpoints.get_object(), "stride");
  const json::value& digests = Find(checkpoints.get_object(), "digests");
  if (!stride.is_int64() || !IsPowerOfTwo(stride.get_int64()) || stride.get_int64() > (int64_t{1} << 48) ||
      !digests.is_array() || digests.get_array().size() > kMaxDigests) {
    return NotAManifest(path, "\"input_checkpoints\" is damaged");
  }
  manifest.checkpoints.stride = stride.get_int64();
  for (const json::value& digest : digests.get_array()) {
    const std::optional<uint64_t> number = ParseHexDigest(digest);
    if (!number.has_value()) return NotAManifest(path, "\"input_checkpoints\" is damaged");
    manifest.checkpoints.digests.push_back(*number);
  }
  return manifest;
}

absl::StatusOr<int64_t> NumInputLines(const Manifest& manifest, const std::string& path) {
  const json::value& input = Find(manifest.job, "input");
  const json::value* lines = input.is_object() ? input.get_object().if_contains("lines") : nullptr;
  if (lines == nullptr || !lines->is_int64() || lines->get_int64() < 0) {
    return NotAManifest(path, "\"input.lines\" is missing");
  }
  return lines->get_int64();
}

absl::Status CompareJob(const Manifest& then, const Manifest& now) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<std::string> differences, Differences(then.job, now.job));
  for (std::string& difference : differences) {
    // Nobody knows a digest by heart.
    if (difference.starts_with("input.digest"))
      difference = "the input has changed, " + WhereInputDiffers(then.checkpoints, now.checkpoints);
  }
  if (then.shard != now.shard) {
    differences.push_back(fmt::format("shard: {} then, {} now", ShardForPeople(then.shard), ShardForPeople(now.shard)));
  }
  if (differences.empty()) return absl::OkStatus();
  return InputError(
      "cannot resume, the job differs from the one that was started: {}; undo this, or choose another --output",
      Joined(differences));
}

absl::Status CompareModel(const Manifest& then, const Manifest& now) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<std::string> differences, Differences(then.model, now.model));
  if (differences.empty()) return absl::OkStatus();
  for (std::string& difference : differences) difference = "model." + difference;
  return InputError(
      "cannot resume, the model differs from the one at the start: {}; undo this, or choose another --output",
      Joined(differences));
}

absl::Status CompareParts(const std::string& path, const Manifest& part, const std::string& other_path,
                          const Manifest& other) {
  const auto differences = [](const json::object& a, const json::object& b) {
    return Differences(a, b, "in the first", "in the second");
  };
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<std::string> all, differences(part.job, other.job));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> of_models, differences(part.model, other.model));
  for (const std::string& difference : of_models) all.push_back("model." + difference);
  if (part.shard.count != other.shard.count) {
    all.push_back(
        fmt::format("number of shards: {} in the first, {} in the second", part.shard.count, other.shard.count));
  }
  if (all.empty() && part.job_digest != other.job_digest) all.emplace_back("job_digest");
  if (all.empty()) return absl::OkStatus();
  return InputError("{} and {} are not of one job: {}", path, other_path, Joined(all));
}

}  // namespace penstock
