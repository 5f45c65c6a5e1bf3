// Everything that a job's texts depend on, written beside its output. A resumed job is refused when any of it changed.
//
// `<output>.manifest.json` holds the job (version, input, seed, sampling and engine settings from flags), the model,
// and the input's checkpoints. Budget, batch size and threads are left out, because they change no text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/engine.h"
#include "penstock/job/input/sampling_fields.h"
#include "penstock/job/input/validate_input.h"

namespace penstock {

using Settings = std::vector<std::pair<std::string, std::string>>;

struct Manifest {
  json::object job;    // known before the model is loaded
  json::object model;  // from the engine
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

// kInput when the two differ, with every differing key ("sampling.temperature: 0.7 then, 0.8 now").
absl::Status CompareJob(const Manifest& then, const json::object& job, const InputReport& report);
absl::Status CompareModel(const Manifest& then, const json::object& model);

}  // namespace penstock
