// What a job's texts depend on, written beside its output so that a resumed job can be refused when anything changed.
//
// `<output>.manifest.json`: the job (version, input, seed, sampling and engine settings from flags), the model, and the
// input's checkpoints. Not the budget, the batch size or the threads: those change no text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/engine.h"
#include "penstock/job/input_report.h"
#include "penstock/job/sampling_fields.h"

namespace penstock {

using Settings = std::vector<std::pair<std::string, std::string>>;

struct Manifest {
  json::object job;    // known before the model is loaded
  json::object model;  // of the engine
  InputCheckpoints checkpoints;
};

json::object DescribeJob(const InputReport& report, uint64_t seed, const SamplingOverrides& sampling,
                         const Settings& engine_settings);
json::object DescribeModel(const Engine& engine);

// By this number results know their job: equal jobs give equal result ids.
uint64_t JobDigest(const json::object& job);

std::string ManifestPath(const std::string& output_path);

// Replaces the file in one step: a temporary file, fsync, rename, fsync of the folder.
absl::Status WriteManifest(const Manifest& manifest, const std::string& path);
// kIo when it is missing or is not a manifest of this format.
absl::StatusOr<Manifest> ReadManifest(const std::string& path);

// kInput with every differing key ("sampling.temperature: 0.7 then, 0.8 now") when the two are not equal.
absl::Status CompareJob(const Manifest& then, const json::object& job, const InputReport& report);
absl::Status CompareModel(const Manifest& then, const json::object& model);

}  // namespace penstock
