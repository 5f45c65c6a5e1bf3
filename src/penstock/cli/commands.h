// The commands: the values of their flags, and the functions that run them. command_line.cc defines the flags.
//
// A command returns the exit code of a success (0, or 8 when requests failed), or the error that ends the process.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/bytes.h"
#include "penstock/engine.h"
#include "penstock/hardware/hardware.h"
#include "penstock/job/input/sampling_fields.h"
#include "penstock/job/job.h"
#include "penstock/job/merge.h"
#include "penstock/pack.h"
#include "penstock/routing/generated_routing.h"
#include "penstock/server/server.h"

namespace penstock::cli {

// Unchecked flags of every command that computes.
struct ModelFlags {
  std::optional<std::string> memory;
  std::optional<std::string> gpu_memory;
  std::string policy_path;
  std::optional<std::string> schedule, predictor;  // these and the next override the policy file
  std::optional<int64_t> batch_size, micro_batch_size, prefill_chunk;
  std::string dtype = "auto";
  std::string activations = "auto";
  std::string kv_dtype = "auto";
  std::string comm_dtype = "auto";
  std::string parallel = "auto";
  std::optional<std::string> expert_placement;
  bool no_prefix_sharing = false;
  std::optional<std::string> prefix_dir_size;
  std::string speculate = "off";
  EngineOptions engine;
};

// Returns the checked options. kUsage for --policy auto, which is not a file, and --schedule auto, which means the
// same.
absl::StatusOr<EngineOptions> ToEngineOptions(const ModelFlags& flags);
// The same for `run` and `serve`: --policy auto leaves the policy to the planner.
absl::StatusOr<EngineOptions> ToPlannedOptions(ModelFlags flags);
// Returns kUsage when the file of `flag` exists and is a file of the model: it would be overwritten.
absl::Status CheckNoFileOfTheModel(const std::string& flag, const std::string& path, const std::string& model_dir);
// Returns whether --policy auto or --schedule auto was given: the planner then chooses everything that other flags
// leave open. Only for `run` and `serve`.
bool WantsPlan(const ModelFlags& flags);

// Reads --hardware: a preset, a file written by penstock probe, or auto (this machine). kUsage for anything else,
// kInput when the file holds no Hardware.
absl::StatusOr<Hardware> ParseHardwareFlag(const std::string& spec);

inline constexpr int kExitFailedRequests = 8;

// penstock run: the main job, from a JSONL file of requests to a JSONL file of results.
struct RunFlags {
  ModelFlags model;
  JobOptions job;                    // sampling flags that are not given stay empty, so the model's defaults apply
  std::optional<std::string> shard;  // "2/16"
  std::string task = "answer";       // a name in JobTasks()
  bool validate_only = false;
  bool as_json = false;  // with validate_only
};
absl::StatusOr<int> RunCommand(RunFlags flags);

// penstock merge: join the outputs of a job's shards.
struct MergeFlags {
  MergeOptions merge;
};
absl::StatusOr<int> MergeCommand(const MergeFlags& flags);

// penstock generate: stream one answer to stdout.
struct GenerateFlags {
  ModelFlags model;
  SamplingOverrides sampling;
  std::optional<std::string> prompt;  // either `prompt` or `prompt_file`
  std::optional<std::string> prompt_file;
  std::string system;
  std::string date;  // empty: today
  bool raw = false;
};
absl::StatusOr<int> GenerateCommand(const GenerateFlags& flags);

// penstock serve: answer HTTP requests in OpenAI's form.
struct ServeFlags {
  ModelFlags model;
  SamplingOverrides sampling;  // where requests say nothing
  server::ServerOptions server;
};
absl::StatusOr<int> ServeCommand(ServeFlags flags);

// penstock chat: talk with the model in the terminal.
struct ChatFlags {
  ModelFlags model;
  SamplingOverrides sampling;
  std::string system;
  std::string date;  // empty: today
};
absl::StatusOr<int> ChatCommand(const ChatFlags& flags);

// penstock pack: write a model folder as a packed store.
struct PackFlags {
  PackOptions pack;
  bool quiet = false;
};
absl::StatusOr<int> PackCommand(const PackFlags& flags);

// penstock mirror: copy a model's most wanted experts to another disk.
struct MirrorFlags {
  MirrorOptions mirror;
  std::string size;  // empty: all experts
  bool quiet = false;
};
absl::StatusOr<int> MirrorCommand(const MirrorFlags& flags);

// A model that is described by its config.json alone, as if its weights were packed in a format.
struct ConfigFlags {
  std::string path;
  std::string weights = "bf16";
};

// penstock inspect: show the contents of a checkpoint, and where its bytes would lie in memory.
struct InspectFlags {
  std::string model_dir;
  ConfigFlags config;  // used instead of model_dir
  bool as_json = false;
  bool verify = false;
};
absl::StatusOr<int> InspectCommand(const InspectFlags& flags);

// penstock tokenize: text to token ids and back. Needs only the tokenizer's files, not the weights.
struct TokenizeFlags {
  std::string model_dir;
  std::optional<std::string> text;  // either `text` or `file`
  std::optional<std::string> file;
  bool no_special = false;
  bool as_message = false;
  bool decode = false;
};
absl::StatusOr<int> TokenizeCommand(const TokenizeFlags& flags);

// penstock perplexity: measure how well the model predicts a text, in windows of the context length.
struct PerplexityFlags {
  ModelFlags model;
  std::string text_file;
  bool quiet = false;
};
absl::StatusOr<int> PerplexityCommand(const PerplexityFlags& flags);

// penstock quality: measure how far a model's predictions are from those of another one, its reference.
struct QualityFlags {
  ModelFlags model;
  std::string reference_dir;
  std::string text_file;
  std::string requests_file;
  bool as_json = false;
  bool quiet = false;
};
absl::StatusOr<int> QualityCommand(const QualityFlags& flags);
inline constexpr int64_t kQualityWindow = 512;  // default of its --context-length

// penstock calibrate: record what a model's matrices are multiplied by while it reads a text.
struct CalibrateFlags {
  ModelFlags model;
  std::string text_file;
  std::string output_path;
  bool with_products = false;
  bool quiet = false;
};
absl::StatusOr<int> CalibrateCommand(const CalibrateFlags& flags);

inline constexpr int64_t kBenchPrefillChunk = 256;  // default of bench and bench routing

// penstock bench: measure tokens per second of a model on random tokens.
struct BenchFlags {
  ModelFlags model;
  std::vector<int64_t> prefill = {512};       // prompt lengths
  std::vector<int64_t> decode = {1, 16, 64};  // numbers of sequences
  int64_t context = 128;                      // tokens of each decoding sequence before the measured ones
  int64_t steps = 16;                         // measured decode steps
  int64_t repetitions = 3;                    // runs of each prefill
  int64_t shared = 0;                         // tokens with which all prompts and contexts begin in common
  bool empty_context = false;                 // use zeros for the KV entries of the context instead of computing them
  bool as_json = false;
  std::string hardware_path;  // hardware for which the decode steps are also predicted; empty: none
};
absl::StatusOr<int> BenchCommand(const BenchFlags& flags);

// penstock bench routing: find the eviction policy and the predictor that suit a model's routing best.
struct BenchRoutingFlags {
  BenchFlags bench;  // only model, as_json and hardware_path are used
  // Either a trace of an earlier run with --record-routing and --record-scores, or a text.
  std::string trace_path;
  std::string text_path;  // prompts are cut from it
  int64_t requests = 8;
  int64_t prompt_tokens = 64;
  int64_t new_tokens = 32;
  std::vector<int64_t> room = {25, 50, 75};  // percent of the experts
  int64_t runs = 3;                          // real runs of each pair at most; 0: only predictions
  double seconds = 40;                       // approximate time for all real runs
};
absl::StatusOr<int> BenchRoutingCommand(const BenchRoutingFlags& flags);

// Flags of commands that need neither weights nor the described machine: see described_flags.h.
struct DescribedFlags {
  ModelFlags model;
  ConfigFlags config;  // used instead of model.engine.model_dir
  std::string hardware = "auto";
  std::string workload = "prompt=128,gen=32";  // of plan: kPlanWorkload
  int64_t ranks = 1;
  std::string network;  // empty: the hardware's, if it has one
};

// penstock list: what flags and policy files may name.
struct ListFlags {
  std::string table;  // the name of one table; empty: all of them
};
std::string ListNames();  // "schedules, predictors, ..."
absl::StatusOr<int> ListCommand(const ListFlags& flags);

// The workload of a plan for which none is given. So many requests fill the batch of most machines.
inline constexpr const char* kPlanWorkload = "prompt=128,gen=32,requests=1000";

// penstock plan: predict whether and how fast a model runs, what limits it, and what would help.
struct PlanFlags {
  PlanFlags() { described.workload = kPlanWorkload; }

  DescribedFlags described;
  std::string policy_output_path;  // file for the chosen policy, to be used with --policy; empty: none
  std::string plot_path;           // plot of the roofline; empty: none
  bool as_json = false;
};
absl::StatusOr<int> PlanCommand(const PlanFlags& flags);
// Returns the JSON that `penstock plan --json` prints. `caller_memory` is what the engine's caller needs of the budget,
// if that is not `penstock run`.
absl::StatusOr<std::string> PlanJson(const DescribedFlags& flags,
                                     std::function<CallerMemory(const ModelInfo&)> caller_memory = {});

// penstock simulate: run a workload in virtual time.
struct SimulateFlags {
  DescribedFlags described;
  std::string sweep;                                                   // see sweep.h; empty: none
  std::string plot_path;                                               // plot of the sweep; empty: none
  std::optional<double> routing_skew, routing_repeat, routing_follow;  // instead of the workload's
  double gate_accuracy = 0;
  uint64_t seed = 0;
  std::string routing_trace;  // whose choices are counted; empty: by the skew
  bool as_json = false;
};
absl::StatusOr<int> SimulateCommand(const SimulateFlags& flags);

// penstock probe: measure this machine; with a model, in the model's formats and on its disk.
struct ProbeFlags {
  ModelFlags model;
  std::string disk_dir = ".";
  double seconds = 20;
  bool as_json = false;
  std::string output_path;  // file for the JSON; empty: none
};
absl::StatusOr<int> ProbeCommand(const ProbeFlags& flags);

// penstock doctor: say in a few lines how well Penstock can run here, and what would make it faster.
struct DoctorFlags {
  std::string model_dir;  // empty: only the machine
  bool as_json = false;
};
absl::StatusOr<int> DoctorCommand(const DoctorFlags& flags);

}  // namespace penstock::cli
