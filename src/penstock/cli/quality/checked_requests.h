// Requests whose answers must have a form: those of `penstock quality --requests`.
//
// A model answers them freely. Whether an answer has the form says how well the model follows it by itself.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/job.h"

namespace penstock::cli {

// Reads lines as `penstock run` takes them. kInput when one is faulty, has neither an output format nor tools, or has
// turns or choices.
absl::StatusOr<ValidatedJob> ReadCheckedRequests(const std::string& path);

struct ValidAnswers {
  int64_t num_formats = 0, num_valid_formats = 0;  // of requests with an output format
  int64_t num_calls = 0, num_valid_calls = 0;      // of requests with tools: their answers must call them
};

// Answers the requests greedily, each as long as it asks for, without keeping the model to the forms. Counts the
// answers that have them. kInput when a request cannot be answered, or its form cannot be compiled.
absl::StatusOr<ValidAnswers> AnswerFreely(Engine& engine, const ValidatedJob& job);

}  // namespace penstock::cli
