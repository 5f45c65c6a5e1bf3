#include "penstock/cli/commands.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include <unistd.h>

#include "penstock/base/check.h"
#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/rank_options.h"
#include "penstock/cli/stop_signals.h"
#include "penstock/engine/instrumented_engine.h"
#include "penstock/job/stats.h"
#include "penstock/memory/eviction.h"
#include "penstock/parallel/mpi_ranks.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/plan/workload.h"
#include "penstock/schedule/schedule.h"
#include "penstock/simulate/run_estimate.h"
#include "penstock/simulate/simulated_run.h"

namespace penstock::cli {
namespace {

// A prefill with a prompt of `size` tokens, or decode steps of `size` sequences.
struct Measurement {
  bool is_prefill;
  int64_t size;
  double best_s;  // best run
  double median_s;
  double total_s;          // all runs together
  EngineStats work;        // all runs together
  int64_t first_step = 0;  // index of the first measured step of the engine
  MachineRates rates = {};
  double tokens_per_s() const { return static_cast<double>(size) / std::max(1e-9, median_s); }
};

// Returns the work between two snapshots of an engine's counters.
EngineStats WorkBetween(const EngineStats& before, EngineStats after) {
  after.disk_bytes -= before.disk_bytes;
  after.unused_disk_bytes -= std::min(after.unused_disk_bytes, before.unused_disk_bytes);
  after.dram_to_device_bytes -= before.dram_to_device_bytes;
  after.device_to_dram_bytes -= before.device_to_dram_bytes;
  const auto subtract = [](ProcessorWork& work, const ProcessorWork& begin) {
    work.memory_bytes -= begin.memory_bytes;
    work.flops -= begin.flops;
  };
  subtract(after.work, before.work);
  subtract(after.host_work, before.host_work);
  for (size_t i = 0; i < before.directories.size(); ++i) after.directories[i].bytes -= before.directories[i].bytes;
  for (size_t i = 0; i < before.lanes.size(); ++i) after.lanes[i].busy_s -= before.lanes[i].busy_s;
  return after;
}

// Returns the tokens of each answer. Prompts are read in chunks, and a sequence begins its answer when its prompt is
// done. Answers are long enough that all sequences still decode at the last measured step.
int64_t AnswerTokens(const BenchFlags& flags, int64_t num_sequences, int64_t prefill_chunk) {
  const int64_t prompt_tokens = num_sequences * (flags.empty_context ? 1 : flags.context);
  return (prompt_tokens + prefill_chunk - 1) / prefill_chunk + 1 + flags.steps;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// With several ranks, each runs the same measurement with its share of the tokens or sequences. All take steps
// together.
class Bench {
 public:
  // Without a communicator there is one rank.
  Bench(const BenchFlags& flags, Engine& engine, Communicator* communicator)
      : flags_(flags), engine_(engine), communicator_(communicator) {
    if (communicator != nullptr) generator_.seed(static_cast<uint32_t>(1 + communicator->rank()));
  }

  // Times prompts of `num_tokens`, one at a time, from the start to the first token of the answer. Several ranks have a
  // part of the prompt each, as a prompt of its own.
  absl::StatusOr<Measurement> Prefill(int64_t num_tokens) {
    std::vector<double> seconds;
    const EngineStats before = engine_.stats();
    for (int64_t run = 0; run < flags_.repetitions; ++run) {
      if (const int64_t share = ShareOf(num_tokens); share > 0) PENSTOCK_RETURN_IF_ERROR(Submit(share, 1));
      PENSTOCK_ASSIGN_OR_RETURN(const double taken, TimeSteps([&] { return engine_.idle(); }));
      seconds.push_back(taken);
    }
    return MeasurementOf(true, num_tokens, seconds, WorkBetween(before, engine_.stats()));
  }

  // Times steps of `num_sequences` that have all read their prompts.
  absl::StatusOr<Measurement> Decode(int64_t sequences_of_all) {
    const int64_t num_sequences = ShareOf(sequences_of_all);
    const int64_t prompt_tokens = num_sequences * flags_.context;
    const int64_t answer = AnswerTokens(flags_, sequences_of_all, engine_.memory_plan().prefill_chunk);
    const int64_t done_at = engine_.stats().prompt_tokens + prompt_tokens;
    for (int64_t i = 0; i < num_sequences; ++i) PENSTOCK_RETURN_IF_ERROR(Submit(flags_.context, answer));
    PENSTOCK_RETURN_IF_ERROR(TimeSteps([&] { return engine_.stats().prompt_tokens == done_at; }).status());
    std::vector<double> seconds;
    const int64_t first_step = num_steps_;
    const EngineStats before = engine_.stats();
    while (static_cast<int64_t>(seconds.size()) < flags_.steps) {
      if (engine_.num_running() != num_sequences) {
        return ResourceError("{} sequences of {} tokens do not fit the budget at once; at most {} do", num_sequences,
                             flags_.context + answer, engine_.num_running());
      }
      bool is_first = true;
      PENSTOCK_ASSIGN_OR_RETURN(const double taken, TimeSteps([&] { return !std::exchange(is_first, false); }));
      seconds.push_back(taken);
    }
    const EngineStats work = WorkBetween(before, engine_.stats());
    PENSTOCK_RETURN_IF_ERROR(TimeSteps([&] { return engine_.idle(); }).status());
    Measurement measured = MeasurementOf(false, sequences_of_all, seconds, work);
    measured.first_step = first_step;
    return measured;
  }

 private:
  Measurement MeasurementOf(bool is_prefill, int64_t size, const std::vector<double>& seconds,
                            const EngineStats& work) {
    return {.is_prefill = is_prefill,
            .size = size,
            .best_s = *std::min_element(seconds.begin(), seconds.end()),
            .median_s = Median(seconds),
            .total_s = std::accumulate(seconds.begin(), seconds.end(), 0.0),
            .work = work,
            .rates = engine_.MeasureRates()};
  }

  int64_t ShareOf(int64_t count) const {
    if (communicator_ == nullptr) return count;
    const int64_t rank = communicator_->rank(), num_ranks = communicator_->num_ranks();
    return count / num_ranks + (rank < count % num_ranks ? 1 : 0);
  }

  // Submits a request with its own random tokens behind the shared ones, so that requests choose different experts.
  absl::Status Submit(int64_t num_tokens, int64_t max_tokens) {
    Request request = {.sampling = {.temperature = 0, .max_tokens = max_tokens, .ignore_eos = true}};
    std::uniform_int_distribution<TokenId> token(0, static_cast<TokenId>(engine_.model().vocab_size - 1));
    std::mt19937 shared(2);
    for (int64_t i = 0; i < num_tokens; ++i) {
      const bool is_shared = i < std::min(flags_.shared, num_tokens - 1);
      request.prompt_ids.push_back(token(is_shared ? shared : generator_));
    }
    return engine_.Submit(std::move(request)).status();
  }

  // Runs steps until is_done() on all ranks, which is called before each step. Returns their time in seconds.
  absl::StatusOr<double> TimeSteps(absl::FunctionRef<bool()> is_done) {
    const auto start = Clock::now();
    while (true) {
      int64_t is_left = is_done() ? 0 : 1;
      if (communicator_ != nullptr) {
        PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> of_all, MaxOfRanks(*communicator_, {&is_left, 1}));
        is_left = of_all[0];
      }
      if (is_left == 0) break;
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Completion> finished, engine_.Step());
      ++num_steps_;
      for (const Completion& completion : finished) PENSTOCK_RETURN_IF_ERROR(completion.status);
    }
    return SecondsSince(start);
  }

  const BenchFlags& flags_;
  Engine& engine_;
  Communicator* communicator_;
  std::mt19937 generator_{1};
  int64_t num_steps_ = 0;
};

// Predicts the measured decode steps from their recorded routing.
class Predictor {
 public:
  // Without `hardware_path` there is nothing to predict.
  absl::Status Prepare(const std::string& hardware_path, const EngineOptions& options) {
    if (hardware_path.empty()) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(hardware_, ParseHardwareFlag(hardware_path));
    if (options.routing_path.empty()) {
      return UsageError("--hardware predicts steps from their recorded routing: give --record-routing FILE, too");
    }
    trace_path_ = options.routing_path;
    return absl::OkStatus();
  }
  void Add(const Measurement& measured) {
    if (hardware_.has_value() && !measured.is_prefill) measured_.push_back(measured);
  }
  // REQUIRES: the engine's traces are closed.
  absl::StatusOr<std::string> Lines(const InstrumentedEngine& engine, const BenchFlags& flags) {
    if (measured_.empty()) return std::string();
    PENSTOCK_ASSIGN_OR_RETURN(const SimulatedTrace run,
                              SimulateTrace(engine.simulation_inputs(), *hardware_, trace_path_));
    const std::span<const double> steps = run.step_s;
    std::string lines;
    for (const Measurement& measured : measured_) {
      const auto later = steps.subspan(std::min(measured.first_step, std::ssize(steps)));
      const auto seconds = later.first(std::min(flags.steps, std::ssize(later)));
      if (seconds.empty()) continue;
      const double predicted_s = Median({seconds.begin(), seconds.end()}), error = predicted_s / measured.median_s - 1;
      if (flags.as_json) {
        const json::object line = {{"kind", "prediction"},
                                   {"sequences", measured.size},
                                   {"seconds", measured.median_s},
                                   {"predicted_seconds", predicted_s},
                                   {"error", error}};
        lines += std::string(json::serialize(line)) + "\n";
      } else {
        lines += fmt::format("predicted{:>8}{:>12.1f}{:>12.2f}  {:+.1f}%\n", measured.size,
                             static_cast<double>(measured.size) / predicted_s, predicted_s * 1e3, 100 * error);
      }
    }
    return lines;
  }

 private:
  std::optional<Hardware> hardware_;
  std::string trace_path_;
  std::vector<Measurement> measured_;
};

std::string Line(const BenchFlags& flags, const Measurement& measured) {
  const Bound bound = BoundOf(measured.work, measured.rates);
  const double fraction = bound.seconds / std::max(1e-9, measured.total_s);
  if (flags.as_json) {
    json::object line;
    line["kind"] = measured.is_prefill ? "prefill" : "decode";
    line[measured.is_prefill ? "tokens" : "sequences"] = measured.size;
    if (!measured.is_prefill) line["context"] = flags.context;
    line["seconds"] = measured.median_s;
    line["best_seconds"] = measured.best_s;
    line["tokens_per_second"] = measured.tokens_per_s();
    json::object lanes;
    for (const LaneStats& lane : measured.work.lanes) lanes[lane.name] = lane.busy_s / std::max(1e-9, measured.total_s);
    line["lanes"] = lanes;
    if (!measured.work.directories.empty()) {
      json::object directories;
      for (const DirectoryStats& directory : measured.work.directories) {
        directories[ReplaceInvalidUtf8(directory.path)] = directory.bytes;
      }
      line["directory_bytes"] = std::move(directories);
    }
    line["limited_by"] = bound.limited_by;
    line["bound_fraction"] = fraction;
    return std::string(json::serialize(line)) + "\n";
  }
  std::string lanes;
  for (const LaneStats& lane : measured.work.lanes) {
    lanes +=
        fmt::format("  {} {:.0f}%", lane.name, std::min(100.0, 100 * lane.busy_s / std::max(1e-9, measured.total_s)));
  }
  std::string directories;
  for (const DirectoryStats& directory : measured.work.directories) {
    directories += fmt::format("  {} {}", Printable(directory.path), FormatBytes(directory.bytes));
  }
  return fmt::format("{:<9}{:>8}{:>12.1f}{:>12.2f}{:>12.2f}{:>9.0f}% {:<11}{}{}\n",
                     measured.is_prefill ? "prefill" : "decode", measured.size, measured.tokens_per_s(),
                     measured.median_s * 1e3, measured.best_s * 1e3, 100 * fraction, bound.limited_by, lanes,
                     directories);
}

int64_t Largest(const std::vector<int64_t>& sizes) { return sizes.empty() ? 0 : *std::ranges::max_element(sizes); }

// Return the context that a measurement needs; one more, because a decoder begins with a token of its own.
int64_t ContextOfPrefill(int64_t num_tokens) { return 1 + num_tokens + 1; }
int64_t ContextOfDecode(const BenchFlags& flags, int64_t num_sequences, int64_t prefill_chunk) {
  return 1 + flags.context + AnswerTokens(flags, num_sequences, prefill_chunk);
}

// Says which sizes no flag has named. These are cut to what the model and the budget allow; those of flags are refused.
struct UsualSizes {
  explicit UsualSizes(const BenchFlags& flags)
      : prefill(flags.prefill == BenchFlags().prefill),
        decode(flags.decode == BenchFlags().decode && flags.context == BenchFlags().context) {}
  bool prefill, decode;
};

absl::Status FitToContext(int64_t max_context, int64_t prefill_chunk, const UsualSizes& usual, BenchFlags& flags) {
  for (int64_t& num_tokens : flags.prefill) {
    if (num_tokens == 0 || ContextOfPrefill(num_tokens) <= max_context) continue;
    if (!usual.prefill) {
      return UsageError("--prefill {}: it needs a context of {}, and there are {}", num_tokens,
                        ContextOfPrefill(num_tokens), max_context);
    }
    num_tokens = std::max<int64_t>(1, max_context - ContextOfPrefill(0));
    LogInfo("prefill of {} tokens instead of {}: the context has {}", num_tokens, BenchFlags().prefill[0], max_context);
  }
  const int64_t max_sequences = Largest(flags.decode);
  const auto needed = [&] { return max_sequences == 0 ? 0 : ContextOfDecode(flags, max_sequences, prefill_chunk); };
  while (usual.decode && flags.context > 1 && needed() > max_context) flags.context /= 2;
  if (needed() > max_context) {
    return UsageError(
        "--decode {}: its sequences need a context of {}, and there are {}; give a smaller --context, "
        "--steps or --decode",
        max_sequences, needed(), max_context);
  }
  if (usual.decode && flags.context < BenchFlags().context) {
    LogInfo("decoding behind {} tokens instead of {}: the context has {}", flags.context, BenchFlags().context,
            max_context);
  }
  return absl::OkStatus();
}

// REQUIRES: the engine has the options of OptionsOfBench().
absl::Status FitToBudget(const InstrumentedEngine& engine, Communicator* communicator, const UsualSizes& usual,
                         BenchFlags& flags) {
  const MemoryPlan& plan = engine.memory_plan();
  const int num_ranks = communicator == nullptr ? 1 : communicator->num_ranks();
  std::vector<int64_t> fitting;
  for (const int64_t num_sequences : flags.decode) {
    const Workload workload{.prompt_tokens = flags.context,
                            .max_prompt_tokens = flags.context,
                            .new_tokens = AnswerTokens(flags, num_sequences, plan.prefill_chunk),
                            .shared_tokens = std::min(flags.shared, flags.context - 1)};
    int64_t negated = -NumPlaces(engine.simulation_inputs(), workload) * num_ranks;
    if (communicator != nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> of_all, MaxOfRanks(*communicator, {&negated, 1}));
      negated = of_all[0];  // of the rank with the fewest
    }
    const int64_t num_places = -negated;
    if (num_sequences > num_places && !usual.decode) {
      return ResourceError("--decode {}: at most {} sequences of {} tokens fit the budget at once", num_sequences,
                           num_places, workload.positions());
    }
    if (num_sequences <= num_places) {
      fitting.push_back(num_sequences);
    } else if (fitting.empty() || num_places > fitting.back()) {
      LogInfo("decoding {} sequences instead of {}: no more fit the budget at once", num_places, num_sequences);
      fitting.push_back(num_places);
    } else {
      LogInfo("decoding {} sequences is left out: at most {} fit the budget at once", num_sequences, num_places);
    }
  }
  flags.decode = fitting;
  return absl::OkStatus();
}

// Returns the options of one of `num_ranks` ranks, with room for what is measured.
absl::StatusOr<EngineOptions> OptionsOfBench(const UsualSizes& usual, int num_ranks, BenchFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(flags.model));
  options.speculates = false;  // answers are random
  if (options.prefill_chunk == 0) options.prefill_chunk = kBenchPrefillChunk;
  {
    PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, LoadModel(options.model_dir));
    const bool has_limit = options.attention_window == 0 && !model->config.encoder.is_on();
    const int64_t max_context = options.context_length > 0 ? options.context_length
                                : has_limit                ? model->config.max_positions
                                                           : kMaxContext;
    PENSTOCK_RETURN_IF_ERROR(FitToContext(max_context, options.prefill_chunk, usual, flags));
  }
  const int64_t longest_prompt = Largest(flags.prefill), max_sequences = Largest(flags.decode);
  if (flags.empty_context && longest_prompt > 0) return UsageError("--empty-context: give --prefill 0");
  if (longest_prompt + max_sequences == 0) return UsageError("nothing to measure: give --prefill or --decode");
  if (options.batch_size == 0) options.batch_size = std::max<int64_t>(1, (max_sequences + num_ranks - 1) / num_ranks);
  options.decodes = max_sequences > 0;
  if (options.context_length == 0) {
    options.context_length =
        std::max(ContextOfPrefill(longest_prompt),
                 max_sequences > 0 ? ContextOfDecode(flags, max_sequences, options.prefill_chunk) : 0);
  }
  // The positions that the decoding sequences need are known exactly.
  options.planned_positions =
      flags.context + AnswerTokens(flags, std::max<int64_t>(1, max_sequences), options.prefill_chunk);
  return options;
}

void LogBench(const InstrumentedEngine& engine) {
  const MemoryPlan& plan = engine.memory_plan();
  if (!plan.device.name.empty()) {
    LogInfo("{} device: {} of {} experts in its memory, {} pinned; micro-batches of {}", plan.device.name,
            plan.device.num_expert_slots, plan.num_experts_total, plan.device.num_pinned_experts,
            plan.micro_batch_size);
  }
  if (plan.num_ranks > 1) LogInfo("{} ranks share the experts; lanes and experts are those of rank 0", plan.num_ranks);
  LogInfo("{}: computes in {}; {} of {} experts in DRAM, {} pinned; schedule {}, eviction {}; prefill in chunks of {}",
          engine.model().name, engine.model().dtype, plan.num_expert_slots, plan.num_experts_total,
          plan.num_pinned_experts, TraitsOf(plan.schedule).name, TraitsOf(plan.eviction).name, plan.prefill_chunk);
}

absl::Status MeasureAll(BenchFlags flags, const MpiRanks& ranks) {
  Communicator* const communicator = ranks.communicator.get();
  const int num_ranks = communicator == nullptr ? 1 : communicator->num_ranks();
  const UsualSizes usual(flags);
  const bool writes = communicator == nullptr || communicator->rank() == 0;
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, OptionsOfBench(usual, num_ranks, flags));
  if (communicator != nullptr) {
    if (!flags.hardware_path.empty()) return UsageError("--hardware: bench predicts the steps of one rank only");
    ShareMachine(ranks, options);
    UseFilesOfRank(communicator->rank(), options);
  }
  Predictor predictor;
  PENSTOCK_RETURN_IF_ERROR(predictor.Prepare(flags.hardware_path, options));
  const EngineHooks hooks{.empty_prompts = flags.empty_context, .random_answers = true, .communicator = communicator};
  absl::StatusOr<std::unique_ptr<InstrumentedEngine>> opened = OpenInstrumentedEngine(options, hooks);
  const auto is_too_large = [&] { return !opened.ok() && FaultOf(opened.status()) == Fault::kResources; };
  const bool cuts = usual.decode && communicator == nullptr && !flags.model.batch_size.has_value();
  while (cuts && is_too_large() && flags.decode.size() > 1) {
    LogInfo("decoding {} sequences is left out: the budget is too small", flags.decode.back());
    flags.decode.pop_back();
    PENSTOCK_ASSIGN_OR_RETURN(options, OptionsOfBench(usual, num_ranks, flags));
    opened = OpenInstrumentedEngine(options, hooks);
  }
  PENSTOCK_RETURN_IF_ERROR(opened.status());
  const std::unique_ptr<InstrumentedEngine> engine = *std::move(opened);
  LogBench(*engine);
  PENSTOCK_RETURN_IF_ERROR(FitToBudget(*engine, communicator, usual, flags));
  Bench bench(flags, *engine, communicator);
  const auto write = [&](const std::string& text) {
    return writes ? WriteFully(STDOUT_FILENO, text, "stdout") : absl::OkStatus();
  };
  if (!flags.as_json) {
    PENSTOCK_RETURN_IF_ERROR(
        write(fmt::format("{:<9}{:>8}{:>12}{:>12}{:>12}{:>10} {:<11}{}\n", "kind", "size", "tokens/s", "median ms",
                          "best ms", "of bound", "limited by", "  lanes busy")));
  }
  const auto report = [&](const absl::StatusOr<Measurement>& measured) -> absl::Status {
    PENSTOCK_RETURN_IF_ERROR(measured.status());
    predictor.Add(*measured);
    return write(Line(flags, *measured));
  };
  for (const int64_t num_tokens : flags.prefill) {
    if (num_tokens > 0) PENSTOCK_RETURN_IF_ERROR(report(bench.Prefill(num_tokens)));
  }
  for (const int64_t num_sequences : flags.decode) {
    if (num_sequences > 0) PENSTOCK_RETURN_IF_ERROR(report(bench.Decode(num_sequences)));
  }
  PENSTOCK_RETURN_IF_ERROR(engine->CloseTraces());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string predictions, predictor.Lines(*engine, flags));
  return write(predictions);
}

}  // namespace

absl::StatusOr<int> BenchCommand(const BenchFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(const MpiRanks ranks, JoinMpiRanks(StopStuckRank));
  const bool is_other_rank = ranks.communicator != nullptr && ranks.communicator->rank() > 0;
  if (is_other_rank) PENSTOCK_CHECK(SetUpLogging("off").ok());  // rank 0 tells what fails
  const absl::Status status = MeasureAll(flags, ranks);
  if (!status.ok() && ranks.communicator != nullptr) ranks.communicator->Abort(status);
  if (is_other_rank) return EndOtherRank(status);
  PENSTOCK_RETURN_IF_ERROR(status);
  return 0;
}

}  // namespace penstock::cli
