// Everything that a job's texts depend on, written beside its output. A resumed job is refused when any of it changed.
//
// `<output>.manifest.json` holds the job (version, input, seed, sampling and engine settings from flags), the model,
// the shard whose requests the output answers, and the input's checkpoints. Budget, batch size and threads are left
// out, because they change no text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/engine.h"
#include "penstock/job/input/sampling_fields.h"
#include "penstock/job/input/shard.h"
#include "penstock/job/input/validate_input.h"

namespace penstock {

using Settings = std::vector<std::pair<std::string, std::string>>;

// Returns the engine's settings on which texts depend besides the model, its dtype and the context length; and the
// system message that requests without one get. kIo when the predictor's file cannot be read; kUsage when the message
// is not UTF-8.
absl::StatusOr<Settings> SettingsOf(const EngineOptions& options, const std::optional<std::string>& system);

struct Manifest {
  json::object job;         // known before the model is loaded; the same for all shards
  uint64_t job_digest = 0;  // JobDigest(job), before `job` was written and read
  json::object model;       // from the engine
  Shard shard = {};
  int64_t num_requests = -1;  // of the shard; -1: an older version of Penstock wrote the manifest
  InputCheckpoints checkpoints;
  std::string date;        // that chat templates see; no part of the job's digest
  std::string model_name;  // that results name; no part of the digest either
};

json::object DescribeJob(const InputReport& report, uint64_t seed, const SamplingOverrides& sampling,
                         const Settings& engine_settings);
json::object DescribeModel(const Engine& engine);

// Returns a number by which results recognise their job: equal jobs give equal result ids.
uint64_t JobDigest(const json::object& job);

std::string ManifestPath(const std::string& output_path);

// Replaces the file atomically: a temporary file, fsync, rename, fsync of the folder.
absl::Status WriteManifest(const Manifest& manifest, const std::string& path);
// kIo when the file is missing or is not a manifest of this format.
absl::StatusOr<Manifest> ReadManifest(const std::string& path);

// Returns the lines of the job's input. kIo when the manifest, read from `path`, does not tell.
absl::StatusOr<int64_t> NumInputLines(const Manifest& manifest, const std::string& path);

// Return kInput when jobs (shards, too) or models differ, with every differing key ("seed: 0 then, 1 now").
absl::Status CompareJob(const Manifest& then, const Manifest& now);
absl::Status CompareModel(const Manifest& then, const Manifest& now);

// Returns kInput when the outputs of two manifests cannot be parts of one job, with every differing key.
absl::Status CompareParts(const std::string& path, const Manifest& part, const std::string& other_path,
                          const Manifest& other);

}  // namespace penstock
