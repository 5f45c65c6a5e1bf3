#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <numeric>
#include <utility>

#include <stdlib.h>  // NOLINT: mkdtemp

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/quality/text_file.h"
#include "penstock/measure/named_experts.h"
#include "penstock/measure/probe.h"
#include "penstock/measure/routing_study.h"
#include "penstock/memory/belady.h"
#include "penstock/memory/eviction.h"
#include "penstock/schedule/schedule.h"
#include "penstock/simulate/plan_simulator.h"
#include "penstock/simulate/simulated_run.h"

namespace penstock::cli {
namespace {

// A predictor must save at least this share of the time; less is noise.
constexpr double kWorthwhile = 0.03;

// An eviction policy with a predictor, and the time of all steps.
struct Pair {
  Eviction eviction = Eviction::kLru;
  PredictorKind predictor = PredictorKind::kNone;
  double predicted_s = 0;
  std::vector<double> measured_s;  // one per run
  ExpertCounters experts;          // predicted

  bool is_measured() const { return !measured_s.empty(); }
  double best_measured_s() const { return *std::min_element(measured_s.begin(), measured_s.end()); }
  // The time by which pairs are compared.
  double seconds() const { return is_measured() ? best_measured_s() : predicted_s; }
};

// Slots for a share of the experts.
struct Room {
  double share = 0;
  int64_t num_slots = 0;
  int64_t belady_hits = 0;
  std::vector<Pair> pairs;  // grouped by eviction; predictor none comes first

  const Pair& WithoutPredictor(Eviction eviction) const {
    return *std::find_if(pairs.begin(), pairs.end(), [&](const Pair& pair) { return pair.eviction == eviction; });
  }
  // Returns the pairs in the order in which they run: those with the best predictions first, but each after the pair
  // with the same eviction and no predictor, with which it is compared.
  std::vector<size_t> RunOrder() const {
    std::vector<size_t> by_prediction(pairs.size());
    std::iota(by_prediction.begin(), by_prediction.end(), size_t{0});
    std::stable_sort(by_prediction.begin(), by_prediction.end(),
                     [&](size_t a, size_t b) { return pairs[a].predicted_s < pairs[b].predicted_s; });
    std::vector<size_t> order;
    const auto add = [&](size_t i) {
      if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
    };
    for (const size_t i : by_prediction) {
      if (TraitsOf(pairs[i].predictor).is_simulated_only) continue;
      add(static_cast<size_t>(&WithoutPredictor(pairs[i].eviction) - pairs.data()));
      add(i);
    }
    return order;
  }
  // Returns the fastest pair that a run can use, of those that ran if any did. It has a predictor only if that saves
  // enough. Static eviction is excluded: here it pins by this trace's choices, which a later run does not know. So are
  // predictors with a network, whose file a later run may not have.
  const Pair& Winner() const {
    const bool has_measured = std::any_of(pairs.begin(), pairs.end(), [](const Pair& pair) {
      return pair.is_measured() && pair.eviction != Eviction::kStatic;
    });
    const auto min = [&](const Pair* a, const Pair& b) {
      const bool can_run = !TraitsOf(b.predictor).is_simulated_only && !TraitsOf(b.predictor).needs_network &&
                           b.eviction != Eviction::kStatic && b.is_measured() == has_measured;
      return !can_run || (a != nullptr && a->seconds() <= b.seconds()) ? a : &b;
    };
    const Pair* best = nullptr;
    for (const Pair& pair : pairs) best = min(best, pair);
    const Pair* plain = nullptr;
    for (const Pair& pair : pairs) {
      if (pair.predictor == PredictorKind::kNone) plain = min(plain, pair);
    }
    return best->seconds() < (1 - kWorthwhile) * plain->seconds() ? *best : *plain;
  }
};

double TotalOf(const std::vector<double>& step_s) { return std::accumulate(step_s.begin(), step_s.end(), 0.0); }

class RoutingBench {
 public:
  RoutingBench(const BenchRoutingFlags& flags, EngineOptions options, DescribedModel model)
      : flags_(flags), options_(std::move(options)), model_(std::move(model)) {}

  ~RoutingBench() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  absl::Status Run() {
    PENSTOCK_RETURN_IF_ERROR(MakeFolder());
    PENSTOCK_RETURN_IF_ERROR(FindRouting());
    PENSTOCK_ASSIGN_OR_RETURN(const EnginePlan whole, PlanFor(options_, 1));
    PENSTOCK_ASSIGN_OR_RETURN(facts_, ReadTraceFacts(trace_path_, model_.config(), *whole.layouts));
    if (facts_.num_steps == 0) return InputError("{}: this trace has no complete step", Printable(trace_path_));
    PENSTOCK_RETURN_IF_ERROR(CheckReplays(whole.policy.schedule, facts_.header, trace_path_));
    PENSTOCK_ASSIGN_OR_RETURN(named_, CountNamedExperts(trace_path_, model_.config(), whole.policy.schedule.network));
    PENSTOCK_ASSIGN_OR_RETURN(const CorrelationTable choices, TableOfChoices(trace_path_, model_.config()));
    PENSTOCK_RETURN_IF_ERROR(choices.Save(ChoicesPath()));
    PENSTOCK_RETURN_IF_ERROR(AdjustToTrace());
    PENSTOCK_ASSIGN_OR_RETURN(
        hardware_, flags_.bench.hardware_path.empty()
                       ? CachedProbe({.options = options_, .model = &model_, .max_bytes = options_.memory_bytes})
                       : ParseHardwareFlag(flags_.bench.hardware_path));
    PENSTOCK_RETURN_IF_ERROR(Print(Head()));
    // With all experts resident nothing stalls.
    Pair resident;
    PENSTOCK_RETURN_IF_ERROR(Predict(1, resident));
    for (int64_t run = 0; run < num_runs(); ++run) PENSTOCK_RETURN_IF_ERROR(Measure(1, resident));
    std::vector<RoutingWinner> winners;
    for (const int64_t percent : flags_.room) {
      PENSTOCK_ASSIGN_OR_RETURN(const Room room, Compare(static_cast<double>(percent) / 100));
      PENSTOCK_RETURN_IF_ERROR(Print(flags_.bench.as_json ? JsonLines(room, resident) : Table(room, resident)));
      const Pair& winner = room.Winner();
      winners.push_back({room.share, winner.eviction, winner.predictor});
    }
    // Predictions for another machine are not kept for this one.
    if (num_runs() == 0 && !flags_.bench.hardware_path.empty()) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(const Formats formats, ChooseFormats(options_, model_.weights()));
    KeepWinners(model_.Info(formats, options_.context_length).fingerprint, has_device_, winners);
    return absl::OkStatus();
  }

 private:
  int64_t num_runs() const { return prompts_.empty() ? 0 : flags_.runs; }
  static absl::Status Print(const std::string& text) { return WriteFully(STDOUT_FILENO, text, "stdout"); }

  // Takes the given trace, or records one now.
  absl::Status FindRouting() {
    if (flags_.trace_path.empty() == flags_.text_path.empty()) return UsageError("give --text FILE or --routing FILE");
    const ScheduleKind schedule = options_.policy.schedule.value_or(ScheduleKind::kHybrid);
    if (!TraitsOf(schedule).fetches_by_predictor) {
      return UsageError("only the schedule hybrid uses predictors: leave --schedule out");
    }
    if (options_.policy.predictor_replaces_routers) {
      return UsageError("predictor sida: mode=replace: bench routing replays what routers chose");
    }
    if (model_.config().encoder.is_on()) {
      return UsageError("bench routing: runs of encoder-decoder models cannot be replayed, so far");
    }
    options_.policy.schedule = schedule;
    if (options_.batch_size == 0) options_.batch_size = 1;
    if (options_.prefill_chunk == 0) options_.prefill_chunk = kBenchPrefillChunk;
    trace_path_ = flags_.trace_path;
    if (flags_.text_path.empty()) {
      if (options_.context_length == 0) options_.context_length = model_.config().max_positions;
      return absl::OkStatus();
    }
    if (options_.context_length == 0) options_.context_length = flags_.prompt_tokens + flags_.new_tokens;
    PENSTOCK_RETURN_IF_ERROR(CutPrompts());
    trace_path_ = options_.routing_path;
    if (trace_path_.empty()) trace_path_ = folder_ + "/routing";
    LogInfo("recording the routing of {} requests", prompts_.size());
    EngineOptions recording = options_;
    recording.routing_path = trace_path_;
    recording.routing_scores = true;
    recording.policy.predictor = PredictorKind::kNone;
    PENSTOCK_ASSIGN_OR_RETURN(
        recording, OptionsWithRoom(recording, model_.engine_model(), static_cast<double>(flags_.room.front()) / 100));
    options_.routing_path.clear();
    options_.routing_scores = false;
    return RunRequests(recording).status();
  }

  absl::Status MakeFolder() {
    std::error_code error;
    std::string path = (std::filesystem::temp_directory_path(error) / "penstock-routing-XXXXXX").string();
    if (error) return IoError("no folder for temporary files: {}", error.message());
    if (::mkdtemp(path.data()) == nullptr) return IoError("{}: cannot create: {}", Printable(path), ErrnoText(errno));
    folder_ = path;
    return absl::OkStatus();
  }
  // The file with the choice counts of each expert, by which static eviction pins.
  std::string ChoicesPath() const { return folder_ + "/choices"; }

  absl::Status CutPrompts() {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadTextFlag(flags_.text_path, options_.memory_bytes));
    PENSTOCK_RETURN_IF_ERROR(CheckBudget((1 + kTokenizingBytesPerByte) * text.size(), "reading this text"));
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, model_.Tokenize(text));
    const int64_t asked = flags_.requests * flags_.prompt_tokens;
    if (std::ssize(ids) < asked) {
      return InputError("{}: the text has {} tokens; {} prompts of {} need {}", Printable(flags_.text_path), ids.size(),
                        flags_.requests, flags_.prompt_tokens, asked);
    }
    // Takes prompts from all over the text.
    const int64_t stride = std::ssize(ids) / flags_.requests;
    for (int64_t i = 0; i < flags_.requests; ++i) {
      const auto begin = ids.begin() + i * stride;
      prompts_.emplace_back(begin, begin + flags_.prompt_tokens);
    }
    return absl::OkStatus();
  }

  // For a trace of another run, sets the sizes that the plan must hold.
  absl::Status AdjustToTrace() {
    if (!prompts_.empty()) return absl::OkStatus();
    options_.batch_size = std::max(options_.batch_size, facts_.max_sequences);
    options_.prefill_chunk = std::clamp(facts_.max_rows, options_.prefill_chunk, kMaxPrefillChunk);
    options_.context_length = std::max<int64_t>(2, facts_.max_positions);
    return absl::OkStatus();
  }

  absl::StatusOr<EnginePlan> PlanFor(const EngineOptions& options, double share) {
    PENSTOCK_ASSIGN_OR_RETURN(const EngineOptions with_room, OptionsWithRoom(options, model_.engine_model(), share));
    PENSTOCK_ASSIGN_OR_RETURN(const EngineRoom room, RoomOf(with_room));
    has_device_ = room.device.has_value();
    num_threads_ = room.num_threads;
    return PlanEngine(with_room, model_.engine_model(), room);
  }

  EngineOptions OptionsOf(const Pair& pair) const {
    EngineOptions options = options_;
    options.policy.eviction = pair.eviction;
    options.policy.predictor = pair.predictor;
    if (pair.eviction == Eviction::kStatic) {
      options.policy.correlation_table = ChoicesPath();
      options.policy.path_length = 0;
    }
    return options;
  }

  absl::Status Predict(double share, Pair& pair) {
    PENSTOCK_ASSIGN_OR_RETURN(const EnginePlan plan, PlanFor(OptionsOf(pair), share));
    PENSTOCK_ASSIGN_OR_RETURN(
        const SimulatedTrace run,
        SimulateTrace({.config = model_.config(), .plan = plan, .num_threads = num_threads_}, hardware_, trace_path_));
    pair.predicted_s = TotalOf(run.step_s);
    pair.experts = run.experts;
    return absl::OkStatus();
  }

  absl::Status Measure(double share, Pair& pair) {
    PENSTOCK_ASSIGN_OR_RETURN(const EngineOptions options,
                              OptionsWithRoom(OptionsOf(pair), model_.engine_model(), share));
    PENSTOCK_ASSIGN_OR_RETURN(const double seconds, RunRequests(options));
    pair.measured_s.push_back(seconds);
    return absl::OkStatus();
  }

  // Returns kResources when --memory is less than what something needs.
  absl::Status CheckBudget(uint64_t bytes, std::string_view what) const {
    if (options_.memory_bytes == 0 || bytes <= options_.memory_bytes) return absl::OkStatus();
    return ResourceError("{} needs {}, more than the {} of --memory", what, FormatBytes(bytes),
                         FormatBytes(options_.memory_bytes));
  }

  // Returns the seconds of all steps.
  absl::StatusOr<double> RunRequests(const EngineOptions& options) {
    if (!has_device_) PENSTOCK_RETURN_IF_ERROR(CheckBudget(options.memory_bytes, "this share of the experts"));
    PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Open(options));
    for (const std::vector<TokenId>& prompt : prompts_) {
      PENSTOCK_RETURN_IF_ERROR(
          engine
              ->Submit({.prompt_ids = prompt,
                        .sampling = {.temperature = 0, .max_tokens = flags_.new_tokens, .ignore_eos = true}})
              .status());
    }
    const auto start = Clock::now();
    while (!engine->idle()) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Completion> finished, engine->Step());
      for (const Completion& completion : finished) PENSTOCK_RETURN_IF_ERROR(completion.status);
    }
    const double seconds = SecondsSince(start);
    PENSTOCK_RETURN_IF_ERROR(engine->CloseTraces());
    return seconds;
  }

  absl::StatusOr<Room> Compare(double share) {
    Room room;
    room.share = share;
    PENSTOCK_ASSIGN_OR_RETURN(const EnginePlan plan, PlanFor(options_, share));
    const MemoryPlan& memory = plan.policy.plan;
    room.num_slots = has_device_ ? memory.device.num_expert_slots : memory.num_expert_slots;
    // Where all experts fit, they are loaded before the first step.
    const bool has_all = room.num_slots == memory.num_experts_total;
    room.belady_hits = has_all ? std::ssize(facts_.wanted) : BeladyHits(facts_.wanted, room.num_slots);
    for (const EvictionTraits& eviction : Evictions()) {
      if (eviction.needs_scores && !facts_.has_scores) continue;
      for (const PredictorTraits& predictor : Predictors()) {
        if (predictor.needs_network && options_.policy.predictor_path.empty()) continue;
        if (predictor.needs_gates && facts_.gates[0].num_chosen == 0) continue;
        Pair& pair = room.pairs.emplace_back();
        pair.eviction = eviction.value;
        pair.predictor = predictor.value;
        PENSTOCK_RETURN_IF_ERROR(Predict(share, pair));
      }
    }
    PENSTOCK_RETURN_IF_ERROR(MeasurePairs(share, room));
    return room;
  }

  // Runs the pairs, in rounds, until this room's part of the time is over. A later round runs the pairs of the first
  // one, if there is time for all of them.
  absl::Status MeasurePairs(double share, Room& room) {
    std::vector<size_t> order = room.RunOrder();
    const auto start = Clock::now();
    const double seconds = flags_.seconds / static_cast<double>(flags_.room.size());
    double round_s = 0;
    for (int64_t run = 0; run < num_runs(); ++run) {
      if (SecondsSince(start) + round_s > seconds && run > 0) break;
      const auto round_start = Clock::now();
      for (size_t i = 0; i < order.size(); ++i) {
        const double left_s = seconds - SecondsSince(start);
        if (run == 0 && i > 0 && left_s <= 0) {
          LogInfo("{:.0f}% of the experts: {} pairs did not run, for lack of time (--seconds)", 100 * share,
                  order.size() - i);
          order.resize(i);
          break;
        }
        LogInfo("{:.0f}% of the experts: run {}, pair {} of {}, at most {:.0f} s left", 100 * share, run + 1, i + 1,
                order.size(), std::max(0.0, left_s));
        PENSTOCK_RETURN_IF_ERROR(Measure(share, room.pairs[order[i]]));
      }
      round_s = SecondsSince(round_start);
    }
    return absl::OkStatus();
  }

  std::string Head() const {
    const ModelConfig& config = model_.config();
    if (flags_.bench.as_json) {
      json::array gates;
      for (const TraceFacts::Guesses& guesses : facts_.gates) {
        if (guesses.num_chosen > 0) gates.push_back(guesses.accuracy());
      }
      return std::string(json::serialize(json::object{{"kind", "trace"},
                                                      {"steps", facts_.num_steps},
                                                      {"rows", facts_.num_rows},
                                                      {"gate_accuracy", std::move(gates)},
                                                      {"named", NamedJson()}})) +
             "\n";
    }
    std::string text = fmt::format("{}: {} layers with {} experts, {} for each token; {} tokens in {} steps\n",
                                   Printable(model_.name()), config.num_moe_layers(), config.num_experts,
                                   config.num_topk, facts_.num_rows, facts_.num_steps);
    if (!facts_.has_scores) text += "no scores in the trace: mrs is left out\n";
    if (facts_.gates[0].num_chosen == 0) {
      text += "no gates of later layers in the trace: predictor gate is left out\n";
    } else {
      text += "gates of the next layers name of what is chosen there: ";
      for (size_t i = 0; i < facts_.gates.size(); ++i) {
        const TraceFacts::Guesses& guesses = facts_.gates[i];
        if (guesses.num_chosen > 0)
          text += fmt::format("{}{:.1f}% {} ahead", i > 0 ? ", " : "", 100 * guesses.accuracy(), i + 1);
      }
      text += fmt::format(" (by chance {:.1f}%)\n",
                          100.0 * static_cast<double>(config.num_topk) / static_cast<double>(config.num_experts));
    }
    text += NamedExpertsTable(named_);
    if (has_device_) {
      text +=
          "hits count the experts that the device computed; the host computes most of the others. Belady's cache "
          "serves all uses, and begins empty\n";
    }
    return text;
  }

  json::array NamedJson() const {
    json::array all;
    const auto shares = [](std::span<const NamedExperts::Count> counts) {
      json::array list;
      for (const NamedExperts::Count& count : counts) {
        if (count.num_chosen > 0) list.push_back(count.share());
      }
      return list;
    };
    for (const NamedExperts& named : named_) {
      all.push_back(json::object{
          {"predictor", named.predictor}, {"before_step", shares(named.before_step)}, {"ahead", shares(named.ahead)}});
    }
    return all;
  }

  static double Share(int64_t part, int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
  }

  std::string Table(const Room& room, const Pair& resident) const {
    const auto num_wanted = std::ssize(facts_.wanted);
    std::string text = fmt::format(
        "\n{:.0f}%: room for {} of {} experts; Belady's cache would hit {:.1f}% of {} uses\n"
        "{:<11}{:<13}{:>9}{:>16}{:>13}{:>24}{:>24}\n",
        100 * room.share, room.num_slots, model_.config().num_stored_experts() * model_.config().num_moe_layers(),
        100 * Share(room.belady_hits, num_wanted), num_wanted, "eviction", "predictor", "hits", "ahead, used", "moved",
        "predicted stall, saved", "measured stall, saved");
    const auto stall = [](double seconds, double without_s, double resident_s) {
      return fmt::format("{:.3f} s {:>+8.3f} s", seconds - resident_s, without_s - seconds);
    };
    for (const Pair& pair : room.pairs) {
      const Pair& without = room.WithoutPredictor(pair.eviction);
      const ExpertCounters& experts = pair.experts;
      text += fmt::format(
          "{:<11}{:<13}{:>8.1f}%{:>16}{:>13}{:>24}{:>24}\n", TraitsOf(pair.eviction).name,
          TraitsOf(pair.predictor).is_simulated_only ? "(oracle)" : TraitsOf(pair.predictor).name,
          100 * Share(experts.hits, experts.hits + experts.misses),
          experts.prefetched > 0
              ? fmt::format("{}, {:.0f}%", experts.prefetched, 100 * Share(experts.prefetch_used, experts.prefetched))
              : "",
          FormatBytes(experts.bytes_read), stall(pair.predicted_s, without.predicted_s, resident.predicted_s),
          pair.is_measured() ? stall(pair.best_measured_s(), without.best_measured_s(), resident.best_measured_s())
                             : "");
    }
    const Pair& winner = room.Winner();
    return text + fmt::format("winner: eviction {}, predictor {}\n", TraitsOf(winner.eviction).name,
                              TraitsOf(winner.predictor).name);
  }

  std::string JsonLines(const Room& room, const Pair& resident) const {
    std::string lines;
    const Pair& winner = room.Winner();
    for (const Pair& pair : room.pairs) {
      const Pair& without = room.WithoutPredictor(pair.eviction);
      const ExpertCounters& experts = pair.experts;
      json::object line = {{"kind", "pair"},
                           {"share", room.share},
                           {"slots", room.num_slots},
                           {"eviction", TraitsOf(pair.eviction).name},
                           {"predictor", TraitsOf(pair.predictor).name},
                           {"hit_rate", Share(experts.hits, experts.hits + experts.misses)},
                           {"belady_hit_rate", Share(room.belady_hits, std::ssize(facts_.wanted))},
                           {"prefetched", experts.prefetched},
                           {"prefetch_used", experts.prefetch_used},
                           {"bytes", experts.bytes_read},
                           {"predicted_seconds", pair.predicted_s},
                           {"predicted_stall_seconds", pair.predicted_s - resident.predicted_s},
                           {"predicted_saved_seconds", without.predicted_s - pair.predicted_s},
                           {"winner", &pair == &winner}};
      if (pair.is_measured()) {
        line["measured_seconds"] = json::value_from(pair.measured_s);
        line["measured_stall_seconds"] = pair.best_measured_s() - resident.best_measured_s();
        line["measured_saved_seconds"] = without.best_measured_s() - pair.best_measured_s();
      }
      lines += std::string(json::serialize(line)) + "\n";
    }
    return lines;
  }

  const BenchRoutingFlags& flags_;
  EngineOptions options_;  // without room, eviction and predictor
  DescribedModel model_;
  std::vector<std::vector<TokenId>> prompts_;  // empty when a trace was given
  std::string trace_path_;
  std::string folder_;  // temporary files, removed by the destructor
  TraceFacts facts_;
  std::vector<NamedExperts> named_;
  Hardware hardware_;
  bool has_device_ = false;
  int num_threads_ = 1;
};

}  // namespace

absl::StatusOr<int> BenchRoutingCommand(const BenchRoutingFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(flags.bench.model));
  if (options.memory_share > 0) {
    PENSTOCK_ASSIGN_OR_RETURN(options.memory_bytes, ChooseBudget(options, /*emulated_bytes=*/0));
  }
  PENSTOCK_ASSIGN_OR_RETURN(DescribedModel model, DescribedModel::FromFolder(options.model_dir, options.model_mirrors));
  if (model.config().num_moe_layers() == 0) return UsageError("{} has no experts", Printable(model.name()));
  RoutingBench bench(flags, std::move(options), std::move(model));
  PENSTOCK_RETURN_IF_ERROR(bench.Run());
  return 0;
}

}  // namespace penstock::cli
