#include "penstock/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/clock.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/base/thread_pool.h"
#include "penstock/engine/executor.h"
#include "penstock/engine/instrumented_engine.h"
#include "penstock/engine/next_rows.h"
#include "penstock/engine/rank_agreement.h"
#include "penstock/engine/request_check.h"
#include "penstock/engine/row_sampler.h"
#include "penstock/engine/sequence.h"
#include "penstock/engine/speculation/speculator.h"
#include "penstock/engine/step_batch.h"
#include "penstock/engine/waiting_list.h"
#include "penstock/kernels/kernels.h"
#include "penstock/measure/learned_routing.h"
#include "penstock/measure/routing_study.h"
#include "penstock/memory/kv_sequence.h"
#include "penstock/model/family.h"
#include "penstock/ops/sampler.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/plan/prefix_dir.h"
#include "penstock/schedule/pass_rows.h"

namespace penstock {
namespace {

class EngineImpl : public InstrumentedEngine {
 public:
  static absl::StatusOr<std::unique_ptr<EngineImpl>> Open(const EngineOptions& options, const EngineHooks& hooks);

  const ModelInfo& model() const override { return info_; }
  const MemoryPlan& memory_plan() const override { return policy().plan; }
  const EngineStats& stats() const override { return stats_; }
  const SamplingParams& default_sampling() const override { return default_sampling_; }

  absl::Status text_status() const override { return model_->tokenizer_status; }
  absl::Status chat_status() const override { return model_->chat_template_status; }
  absl::StatusOr<std::vector<TokenId>> Tokenize(std::string_view text) const override { return model_->Tokenize(text); }
  absl::StatusOr<std::vector<TokenId>> TokenizePiece(std::string_view text) const override {
    return model_->TokenizePiece(text);
  }
  absl::StatusOr<std::vector<TokenId>> TokenizeChat(const Chat& chat) const override {
    return model_->TokenizeChat(chat);
  }
  std::unique_ptr<AnswerStream> NewAnswerStream(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                const AnswerRule& rule) const override {
    return model_->NewAnswerStream(prompt_ids, chat, rule);
  }
  absl::StatusOr<std::optional<OutputFormat>> FormatOfAnswer(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                             const AnswerRule& rule) const override {
    return model_->FormatOfAnswer(prompt_ids, chat, rule);
  }
  std::string TokenBytes(TokenId id, bool begins_text) const override { return model_->TokenBytes(id, begins_text); }

  absl::StatusOr<std::shared_ptr<const Constraint>> CompileFormat(const OutputFormat& format) const override {
    return model_->CompileFormat(format);
  }
  absl::Status Check(const Request& request) const override {
    Request checked = request;
    BeginDecoding(*model_, checked);
    return CheckRequest(checked, *model_, policy().plan.context_length);
  }
  absl::StatusOr<RequestId> Submit(Request request) override;
  std::vector<RequestId> DropWaiting() override { return waiting_.Clear(); }
  bool Cancel(RequestId id) override;
  void SetPieceSink(std::function<void(const AnswerPiece&)> sink) override { piece_sink_ = std::move(sink); }
  int64_t num_running() const override { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const override { return waiting_.size(); }
  int64_t num_waiting_tokens() const override { return waiting_.num_tokens(); }
  absl::StatusOr<std::vector<Completion>> Step() override;
  absl::StatusOr<std::vector<double>> ScoreTokens(std::span<const TokenId> ids) override;
  absl::StatusOr<std::vector<float>> Logits(std::span<const TokenId> ids, int64_t num_encoded) override;
  LiveView View() const override { return executor_->View(); }
  MachineRates MeasureRates() override {
    PENSTOCK_CHECK(idle());
    const MachineRates rates = executor_->MeasureRates();
    executor_->UpdateStats(stats_);
    return rates;
  }
  absl::Status CloseTraces() override {
    absl::Status closed = recorders_->Close();
    if (prefix_store_ != nullptr) {
      prefix_store_->Flush();
      stats_.prefix_dir = prefix_store_->stats();
    }
    if (learns_routing_ && recorders_->counts().has_value()) {
      LearnRouting(info_.fingerprint, model_->config, *recorders_->counts());
    }
    if (!correlation_path_.empty()) closed.Update(executor_->correlation()->Save(correlation_path_));
    return closed;
  }

  SimulationInputs simulation_inputs() const override {
    return {.config = model_->config, .plan = *plan_, .num_threads = pool_->num_workers()};
  }
  bool ranks_were_busy() const override { return ranks_were_busy_; }

 private:
  EngineImpl() = default;
  absl::Status Plan(EngineOptions options);
  // Makes all ranks cut their rows into equally many micro-batches, some of them empty. False if no rank has rows.
  absl::StatusOr<bool> AgreeOnStep(std::vector<RowRange>& micro_batches);
  // Plans again with the predictor and eviction that penstock bench routing found best, if it ran.
  absl::Status PlanWithWinner(EngineOptions& options, const EngineModel& model, const EngineRoom& room);
  absl::Status CreateExecutor(const EngineOptions& options, const EngineHooks& hooks);
  absl::Status RunPass(std::vector<RowRange> micro_batches, LogitsSink sink);
  KvSequence::Args KvArgsOf(const Sequence& sequence) const {
    return {.cache = executor_->kv_cache(),
            .window = policy().kv_window,
            .prompt = sequence.token_ids(),
            .first_needed_row = sequence.first_needed_row(),
            .max_positions = sequence.max_positions(),
            .shares_pages = shares_prefixes_ &&
                            !(policy().kv_window.on() && model_->config.num_recurrent_layers() > 0) &&
                            !model_->config.IsBeyondOriginalLength(sequence.max_length()),
            .num_encoded = sequence.num_encoded()};
  }
  void Admit();
  // Takes the place of the running sequence with the lowest priority, if that is below `priority`: of several, from the
  // one with the least to compute again.
  bool PauseBelow(int priority);
  // Returns the state of a running sequence, after it has skipped what others have computed. A sequence waits if
  // another one will compute its next page in this step; `pages` are those that will be computed.
  absl::StatusOr<SequenceState> Prepare(Sequence& sequence, absl::flat_hash_set<KvPageId>& pages);
  absl::StatusOr<std::vector<RowRange>> BuildBatch();
  // Whether a pass of these rows ends a sequence for certain, so that a waiting request gets its place.
  bool FreesPlaces(std::span<const SequenceRows> chosen) const;
  void SampleRows(const RowLogits& result);
  // Calls visit(position, logits of that position) for each of `ids` from num_encoded on.
  absl::Status VisitLogits(std::span<const TokenId> ids, int64_t num_encoded,
                           absl::FunctionRef<void(int64_t, std::span<const float>)> visit);
  absl::Status CheckIds(std::span<const TokenId> ids) const { return CheckTokenIds(ids, model_->config.vocab_size); }
  const ChosenPolicy& policy() const { return plan_->policy; }

  std::unique_ptr<LoadedModel> model_;
  ModelInfo info_;
  std::optional<EnginePlan> plan_;  // set by Plan()
  EngineStats stats_;
  SamplingParams default_sampling_;

  kernels::Isa isa_ = kernels::Isa::kScalar;
  const kernels::KernelTable* kernels_ = nullptr;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Recorders> recorders_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<PrefixStore> prefix_store_;  // null: entries are not kept in files
  std::optional<RowSampler> sampler_;          // set by CreateExecutor()

  RequestId next_request_id_ = 1;
  WaitingList waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  StepBatch batch_;
  std::optional<Speculator> speculator_;  // absent: tokens are not drafted
  std::function<void(const AnswerPiece&)> piece_sink_;
  bool empty_prompts_ = false;
  bool shares_prefixes_ = true;
  bool learns_routing_ = false;
  std::string correlation_path_;
  Communicator* communicator_ = nullptr;
  bool ranks_were_busy_ = false;
  absl::Status broken_;  // the first failure of a pass
};

absl::StatusOr<std::unique_ptr<EngineImpl>> EngineImpl::Open(const EngineOptions& options, const EngineHooks& hooks) {
  const auto start = Clock::now();
  PENSTOCK_RETURN_IF_ERROR(CheckRange("threads", options.threads, kMaxThreads));
  auto engine = std::unique_ptr<EngineImpl>(new EngineImpl());
  const char* forced_isa = std::getenv("PENSTOCK_FORCE_ISA");
  PENSTOCK_ASSIGN_OR_RETURN(engine->isa_, kernels::ChooseIsa(forced_isa == nullptr ? "" : forced_isa));
  engine->kernels_ = &kernels::KernelsFor(engine->isa_);
  engine->communicator_ = hooks.communicator;
  PENSTOCK_ASSIGN_OR_RETURN(engine->model_, LoadModel(options.model_dir, options.model_mirrors));
  PENSTOCK_RETURN_IF_ERROR(engine->Plan(options));
  PENSTOCK_RETURN_IF_ERROR(engine->CreateExecutor(options, hooks));
  // An engine is open when it is open on all ranks.
  if (hooks.communicator != nullptr) PENSTOCK_RETURN_IF_ERROR(WaitForRanks(*hooks.communicator));
  engine->stats_.load_s = SecondsSince(start);
  LogDebug("kernels: {}", kernels::IsaName(engine->isa_));
  return engine;
}

absl::Status EngineImpl::Plan(EngineOptions options) {
  const ModelConfig& config = model_->config;
  PENSTOCK_ASSIGN_OR_RETURN(EngineRoom room, RoomOf(options));
  if (communicator_ != nullptr) {
    room.ranks = {communicator_->rank(), communicator_->num_ranks()};
    if (room.device.has_value()) {
      return UsageError("--device {}: several ranks compute on their CPUs only, so far; use --device cpu",
                        options.device);
    }
  }
  options.device_memory_bytes = ChooseDeviceBudget(options, room.device);
  pool_ = std::make_unique<ThreadPool>(room.num_threads);
  PENSTOCK_ASSIGN_OR_RETURN(const Formats formats, ChooseFormats(options, model_->weights));
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t context_length, ChooseContextLength(options, config));
  info_ = InfoOf(*model_, formats, context_length);
  if (options.caller_memory) room.caller = options.caller_memory(info_);
  const EngineModel model{.config = config,
                          .weights = model_->weights,
                          .files = model_->checkpoint.files(),
                          .memory_bytes = model_->memory_bytes(),
                          .fingerprint = model_->fingerprint};
  PENSTOCK_ASSIGN_OR_RETURN(plan_, PlanEngine(options, model, room));
  if (TraitsOf(policy().schedule.kind).fetches_by_predictor && !options.policy.predictor.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(PlanWithWinner(options, model, room));
  }
  if (communicator_ != nullptr) {
    // Rows of bf16 are in pairs only where the processor multiplies these.
    const bool has_pairs = plan_->formats.rows.ffn == kernels::RowFormat::kBF16 && kernels::SumsPairs(isa_);
    const std::string identity =
        fmt::format("model {}, formats {} {} {} {}, pairs {}", info_.fingerprint, info_.dtype,
                    static_cast<int>(plan_->formats.activations), static_cast<int>(plan_->formats.kv),
                    static_cast<int>(plan_->formats.comm), has_pairs);
    PENSTOCK_RETURN_IF_ERROR(AgreeOnOptions(*communicator_, identity, plan_->layouts->placement().get(), policy().plan,
                                            options, room.caller));
    PENSTOCK_ASSIGN_OR_RETURN(plan_, PlanEngine(options, model, room, plan_->layouts));
  }

  LogWindow(policy().kv_window, info_.context_length, config);
  const GenerationConfig& generation = model_->generation;
  default_sampling_.temperature = generation.do_sample ? generation.temperature : 0.0;
  default_sampling_.top_k = generation.top_k;
  default_sampling_.top_p = generation.top_p;
  default_sampling_.min_p = generation.min_p;
  default_sampling_.repetition_penalty = generation.repetition_penalty;
  if (generation.max_new_tokens > 0) default_sampling_.max_tokens = generation.max_new_tokens;
  return absl::OkStatus();
}

absl::Status EngineImpl::PlanWithWinner(EngineOptions& options, const EngineModel& model, const EngineRoom& room) {
  const MemoryPlan& plan = policy().plan;
  const bool has_device = room.device.has_value();
  const int64_t num_slots = has_device ? plan.device.num_expert_slots : plan.num_expert_slots;
  const std::optional<RoutingWinner> winner =
      FindWinner(info_.fingerprint, has_device,
                 static_cast<double>(num_slots) / static_cast<double>(std::max<int64_t>(1, plan.num_experts_total)));
  if (!winner.has_value()) return absl::OkStatus();
  options.policy.predictor = winner->predictor;
  if (!options.policy.eviction.has_value()) options.policy.eviction = winner->eviction;
  LogInfo("predictor {}, eviction {}: what penstock bench routing found best with {:.0f}% of the experts",
          TraitsOf(winner->predictor).name, TraitsOf(*options.policy.eviction).name, 100 * winner->share);
  PENSTOCK_ASSIGN_OR_RETURN(plan_, PlanEngine(options, model, room));
  return absl::OkStatus();
}

absl::Status EngineImpl::CreateExecutor(const EngineOptions& options, const EngineHooks& hooks) {
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<DiskReader> disk,
                            DiskReader::Create(model_->checkpoint.files(), {options.direct_io, options.io_uring}));
  LogDebug("disk: {}", disk->Description());
  empty_prompts_ = hooks.empty_prompts;
  // A network that replaces routers must see every token of a sequence.
  shares_prefixes_ = options.shares_prefixes && !empty_prompts_ && !policy().schedule.replaces_routers;
  PENSTOCK_RETURN_IF_ERROR(CheckPrefixDir(options, model_->config, shares_prefixes_, communicator_ != nullptr));
  correlation_path_ = options.correlation_path;
  learns_routing_ = options.learns_routing;
  if (hooks.wrap_disk) disk = hooks.wrap_disk(std::move(disk));
  PENSTOCK_ASSIGN_OR_RETURN(recorders_, Recorders::Create(options, model_->config, info_,
                                                          communicator_ == nullptr ? 0 : communicator_->rank()));
  PENSTOCK_ASSIGN_OR_RETURN(executor_, Executor::Create({.model = *model_,
                                                         .layouts = *plan_->layouts,
                                                         .kernels = *kernels_,
                                                         .pool = *pool_,
                                                         .formats = plan_->formats,
                                                         .policy = policy(),
                                                         .popularity = plan_->popularity,
                                                         .disk = std::move(disk),
                                                         .recorders = *recorders_,
                                                         .communicator = communicator_,
                                                         .observer = hooks.observer}));
  if (options.touches_kv_cache) executor_->TouchKvCache();
  PENSTOCK_ASSIGN_OR_RETURN(prefix_store_, OpenPrefixStore(options, *model_, *plan_, isa_, executor_->kv_cache()));
  if (CorrelationTable* table = executor_->correlation();
      table != nullptr && !options.policy.correlation_table.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(*table,
                              CorrelationTable::Load(options.policy.correlation_table, table->shape(),
                                                     MaxCorrelationPaths(model_->config, options.policy.path_length)));
  }
  if (!correlation_path_.empty()) PENSTOCK_RETURN_IF_ERROR(CheckReplaceable(correlation_path_));
  sampler_.emplace(*kernels_, *pool_, model_->config, hooks.random_answers);
  if (options.speculates && communicator_ == nullptr && !empty_prompts_ && !hooks.random_answers &&
      CanSpeculate(options, policy(), model_->config)) {
    speculator_.emplace(GuessTableBytes(policy().plan.budget_bytes), model_->config, hooks.drafts_all);
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestId> EngineImpl::Submit(Request request) {
  BeginDecoding(*model_, request);
  PENSTOCK_RETURN_IF_ERROR(CheckRequest(request, *model_, policy().plan.context_length));
  const int64_t num_prompt = static_cast<int64_t>(request.prompt_ids.size());
  // Generation ends at the context's end with finish reason "length".
  request.sampling.max_tokens =
      std::max<int64_t>(0, std::min(request.sampling.max_tokens, policy().plan.context_length - num_prompt));
  const RequestId id = next_request_id_++;
  waiting_.Add(std::make_unique<Sequence>(id, std::move(request), model_->tokenizer.get()));
  return id;
}

bool EngineImpl::Cancel(RequestId id) {
  if (waiting_.Remove(id)) return true;
  const auto found = std::ranges::find_if(running_, [&](const auto& sequence) { return sequence->id() == id; });
  if (found == running_.end()) return false;
  Sequence& sequence = **found;
  if (!sequence.failed()) sequence.kv()->Finish(sequence.token_ids(), sequence.num_computed());
  running_.erase(found);
  return true;
}

bool EngineImpl::PauseBelow(int priority) {
  // A network that replaces routers has a state that depends on how a sequence was cut into passes.
  if (policy().schedule.replaces_routers || running_.empty()) return false;
  const auto cost = [](const std::unique_ptr<Sequence>& sequence) {
    return std::pair(sequence->priority(), sequence->num_computed());
  };
  const auto least = std::ranges::min_element(running_, {}, cost);
  if ((*least)->priority() >= priority) return false;
  (*least)->kv()->Finish((*least)->token_ids(), (*least)->num_computed());
  (*least)->Pause();
  waiting_.AddPaused(std::move(*least));
  running_.erase(least);
  return true;
}

void EngineImpl::Admit() {
  while (!waiting_.empty()) {
    const int priority = waiting_[0].priority();
    if (num_running() >= policy().plan.batch_size && !PauseBelow(priority)) return;
    const size_t next = waiting_.Choose(
        [&](const Sequence& sequence) { return shares_prefixes_ ? KvSequence::NumShared(KvArgsOf(sequence)) : 0; });
    Sequence& sequence = waiting_[next];
    std::optional<KvSequence> kv = KvSequence::Create(KvArgsOf(sequence));
    if (!kv.has_value()) {
      if (PauseBelow(priority)) continue;
      return;  // tries again after a running sequence released its pages
    }
    sequence.kv().emplace(*std::move(kv));
    broken_.Update(executor_->kv_cache().Clear(sequence.kv()->state_pages()));
    if (empty_prompts_) {
      const int64_t num_skipped = sequence.num_pending() - 1;
      broken_.Update(executor_->kv_cache().Clear(sequence.kv()->pages()));
      sequence.AdvanceComputed(num_skipped);
      stats_.prompt_tokens += num_skipped;
    }
    running_.push_back(waiting_.Take(next));
  }
}

absl::StatusOr<SequenceState> EngineImpl::Prepare(Sequence& sequence, absl::flat_hash_set<KvPageId>& pages) {
  if (sequence.in_prefill()) {
    KvSequence& kv = *sequence.kv();
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t pos, kv.SkipComputed(sequence.token_ids(), sequence.num_computed()));
    stats_.prompt_tokens += pos - sequence.num_computed();
    sequence.SkipShared(pos - sequence.num_computed());
    kv.Open(sequence.token_ids(), pos + 1);
  }
  return SequenceState{
      .num_computed = sequence.num_computed(),
      .num_pending = sequence.num_pending(),
      // Tokens that a format forces are computed like a part of a prompt.
      .in_prefill = sequence.in_prefill() ||
                    sequence.num_pending() > (sequence.repeats_drafts() ? 1 + Speculator::kMaxDrafts : 1),
      .waits = sequence.in_prefill() && !pages.insert(sequence.kv()->NextToCompute(sequence.num_computed())).second,
      .num_to_encode = sequence.num_to_encode()};
}

bool EngineImpl::FreesPlaces(std::span<const SequenceRows> chosen) const {
  return !waiting_.empty() && std::ranges::any_of(chosen, [&](const SequenceRows& part) {
    const Sequence& sequence = *running_[part.sequence_idx];
    return part.num_rows == sequence.num_pending() && sequence.num_generated() + 1 >= sequence.sampling().max_tokens;
  });
}

absl::StatusOr<std::vector<RowRange>> EngineImpl::BuildBatch() {
  std::vector<SequenceState> states;
  absl::flat_hash_set<KvPageId> pages;
  for (const auto& sequence : running_) {
    PENSTOCK_ASSIGN_OR_RETURN(states.emplace_back(), Prepare(*sequence, pages));
  }
  batch_.Clear();
  std::vector<std::vector<TokenId>> drafts(running_.size());
  if (speculator_.has_value()) {
    // Requests that wait for pages get them first.
    const bool may_take_pages = waiting_.empty() || num_running() == policy().plan.batch_size;
    drafts = speculator_->Draft(running_, states, policy().pass_limits().max_rows, may_take_pages);
  }
  std::vector<RowRange> micro_batches;
  const std::vector<SequenceRows> chosen = ChooseRows(states, policy().pass_limits());
  batch_.rows().next_encodes = model_->config.encoder.is_on() && (IsToEncode(states, chosen) || FreesPlaces(chosen));
  if (policy().schedule.max_ahead > 0) {
    const auto shares_prefix = [&](const Sequence& sequence) { return KvSequence::NumShared(KvArgsOf(sequence)) > 0; };
    batch_.rows().next_rows = NextRowsOf({.running = running_,
                                          .chosen = chosen,
                                          .waiting = waiting_.sequences(),
                                          .num_places = static_cast<size_t>(policy().plan.batch_size),
                                          .shares_prefix = shares_prefix},
                                         policy().pass_limits());
  }
  for (const auto& micro_batch : CutMicroBatches(chosen, policy().pass_limits())) {
    const int64_t begin = batch_.rows().num_rows();
    for (const SequenceRows& part : micro_batch) {
      const std::vector<TokenId>& drafted = drafts[part.sequence_idx];
      batch_.Add(*running_[part.sequence_idx], part.num_rows - std::ssize(drafted), drafted, policy().kv_window);
    }
    micro_batches.push_back({begin, batch_.rows().num_rows()});
  }
  return micro_batches;
}

absl::Status EngineImpl::RunPass(std::vector<RowRange> micro_batches, LogitsSink sink) {
  const ThreadPool::CallerPin pin(*pool_);
  const absl::Status status = executor_->Run(batch_.rows(), std::move(micro_batches), sink, batch_.statuses());
  executor_->UpdateStats(stats_);
  return status;
}

void EngineImpl::SampleRows(const RowLogits& result) {
  // A row that could not be computed fails its whole sequence, even if that row wants no logits.
  batch_.FailBroken();
  stats_.generated_tokens += sampler_->Sample(result, batch_);
  for (size_t i = 0; piece_sink_ && i < result.rows.size(); ++i) {
    batch_.sequence_of(result.rows[i]).HandOut(piece_sink_);
  }
}

absl::StatusOr<bool> EngineImpl::AgreeOnStep(std::vector<RowRange>& micro_batches) {
  if (communicator_ == nullptr) return batch_.rows().num_rows() > 0;
  constexpr double kPpm = 1e6;
  const std::array<int64_t, 4> own = {batch_.rows().num_rows(), std::ssize(micro_batches), idle() ? 0 : 1,
                                      static_cast<int64_t>(kPpm * executor_->expert_slowdown())};
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> max, MaxOfRanks(*communicator_, own));
  if (max[3] > 0) executor_->SetExpertSlowdown(static_cast<double>(max[3]) / kPpm);
  micro_batches.resize(max[1], {batch_.rows().num_rows(), batch_.rows().num_rows()});
  ranks_were_busy_ = max[2] > 0;
  return max[0] > 0;
}

absl::StatusOr<std::vector<Completion>> EngineImpl::Step() {
  PENSTOCK_RETURN_IF_ERROR(broken_);
  const auto start = Clock::now();
  Admit();
  absl::StatusOr<std::vector<RowRange>> micro_batches = BuildBatch();
  PENSTOCK_RETURN_IF_ERROR(broken_ = micro_batches.status());
  const absl::StatusOr<bool> has_rows = AgreeOnStep(*micro_batches);
  PENSTOCK_RETURN_IF_ERROR(broken_ = has_rows.status());
  std::vector<Completion> finished;
  if (!*has_rows) return finished;
  const int64_t num_prompt_rows = batch_.num_prompt_rows();
  const EngineStats before = speculator_.has_value() ? stats_ : EngineStats();
  // After a pass, the KV entries of its rows exist. Sequences advance before sampling appends to them.
  bool advanced = false;
  const auto advance = [&] {
    if (!std::exchange(advanced, true)) batch_.AdvanceKnown();
  };
  batch_.rows().wants_best_only = sampler_->WantsBestOnly(batch_);
  broken_ = RunPass(*std::move(micro_batches), [&](const RowLogits& result) {
    advance();
    SampleRows(result);
  });
  advance();
  PENSTOCK_RETURN_IF_ERROR(broken_);
  batch_.FailBroken();
  const int64_t num_accepted = batch_.AcceptDrafts();

  const double seconds = SecondsSince(start);
  const double prompt_share =
      static_cast<double>(num_prompt_rows) / static_cast<double>(std::max<int64_t>(1, batch_.rows().num_rows()));
  batch_.KeepEntries();
  if (prefix_store_ != nullptr) {
    for (const auto& sequence : running_) {
      if (!sequence->failed()) sequence->kv()->Save(sequence->token_ids(), sequence->num_computed());
    }
    stats_.prefix_dir = prefix_store_->stats();
  }
  if (speculator_.has_value()) {
    const int64_t num_drafts = batch_.num_drafts();
    stats_.drafted_tokens += num_drafts;
    stats_.accepted_tokens += num_accepted;
    MeasuredStep step{.num_decoding = batch_.rows().num_rows() - num_drafts - num_prompt_rows,
                      .num_prompt_rows = num_prompt_rows,
                      .num_drafts = num_drafts,
                      .num_generated = stats_.generated_tokens - before.generated_tokens,
                      .seconds = seconds};
    step.SetWork(before.lanes, stats_.lanes);
    speculator_->Learn(running_, step);
  }
  stats_.prompt_tokens += num_prompt_rows;
  stats_.computed_prompt_tokens += num_prompt_rows;
  stats_.prefill_s += seconds * prompt_share;
  stats_.decode_s += seconds * (1 - prompt_share);
  std::erase_if(running_, [&](const std::unique_ptr<Sequence>& sequence) {
    sequence->FinishIfOnlyScored();
    if (!sequence->finished()) return false;
    if (!sequence->failed()) sequence->kv()->Finish(sequence->token_ids(), sequence->num_computed());
    stats_.prompt_tokens += sequence->num_unwanted();
    finished.push_back(sequence->Release());
    return true;
  });
  return finished;
}

absl::Status EngineImpl::VisitLogits(std::span<const TokenId> ids, int64_t num_encoded,
                                     absl::FunctionRef<void(int64_t, std::span<const float>)> visit) {
  PENSTOCK_RETURN_IF_ERROR(broken_);
  PENSTOCK_CHECK(idle());
  if (communicator_ != nullptr) return UsageError("logits of texts: several ranks only run requests, so far");
  PENSTOCK_RETURN_IF_ERROR(CheckIds(ids));
  const int64_t num_ids = static_cast<int64_t>(ids.size());
  if (num_ids < 1 || num_ids > policy().plan.context_length) {
    return InputError("expected 1 to {} tokens (the context length), found {}", policy().plan.context_length, num_ids);
  }
  if (model_->config.encoder.is_on() != (num_encoded > 0) || num_encoded >= num_ids) {
    return InputError("{} models {}", model_->config.family->name,
                      model_->config.encoder.is_on() ? "have an encoder, which reads a prompt: texts have no logits of "
                                                       "their own"
                                                     : "have no encoder");
  }
  std::optional<KvSequence> kv = KvSequence::Create({.cache = executor_->kv_cache(),
                                                     .window = policy().kv_window,
                                                     .prompt = ids,
                                                     .max_positions = num_ids,
                                                     .shares_pages = false});
  PENSTOCK_CHECK(kv.has_value());  // the plan has room for one sequence of the whole context
  PENSTOCK_RETURN_IF_ERROR(executor_->kv_cache().Clear(kv->state_pages()));
  absl::Status failed;
  for (int64_t begin = 0, end = 0; begin < num_ids && broken_.ok() && failed.ok(); begin = end) {
    end = std::min(num_ids, begin + policy().pass_limits().max_rows_of_sequence());
    const bool encodes = begin < num_encoded;
    if (encodes) end = num_encoded;
    batch_.Clear();
    kv->Open(ids, end);
    for (int64_t pos = begin; pos < end; ++pos) {
      batch_.rows().AddRow(ids[pos], pos, kv->pages(), 0, policy().kv_window, num_encoded > 0 ? num_encoded : num_ids,
                           kv->state_pages());
      if (!encodes) batch_.rows().logit_rows.push_back(pos - begin);
    }
    const auto start = Clock::now();
    broken_ = RunPass({{0, batch_.rows().num_rows()}}, [&](const RowLogits& result) {
      const size_t vocab_size = static_cast<size_t>(model_->config.vocab_size);
      for (size_t i = 0; i < result.rows.size(); ++i) {
        visit(begin + result.rows[i], result.logits.subspan(i * vocab_size, vocab_size));
      }
    });
    // The batch holds only this request, so a row that could not be computed fails all of it.
    for (const absl::Status& status : batch_.statuses()) failed.Update(status);
    stats_.prefill_s += SecondsSince(start);
    stats_.prompt_tokens += end - begin;
    stats_.computed_prompt_tokens += end - begin;
  }
  return broken_.ok() ? failed : broken_;
}

absl::StatusOr<std::vector<double>> EngineImpl::ScoreTokens(std::span<const TokenId> ids) {
  std::vector<double> logprobs;
  const int64_t num_ids = static_cast<int64_t>(ids.size());
  PENSTOCK_RETURN_IF_ERROR(VisitLogits(ids, 0, [&](int64_t pos, std::span<const float> logits) {
    if (pos + 1 < num_ids) logprobs.push_back(LogProbability(logits, ids[pos + 1]));
  }));
  if (std::ranges::any_of(logprobs, [](double logprob) { return std::isnan(logprob); })) return BrokenLogits();
  return logprobs;
}

absl::StatusOr<std::vector<float>> EngineImpl::Logits(std::span<const TokenId> ids, int64_t num_encoded) {
  std::vector<float> all;
  PENSTOCK_RETURN_IF_ERROR(VisitLogits(ids, num_encoded, [&](int64_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  }));
  return all;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options) {
  return EngineImpl::Open(options, {});
}

absl::StatusOr<std::unique_ptr<InstrumentedEngine>> OpenInstrumentedEngine(const EngineOptions& options,
                                                                           const EngineHooks& hooks) {
  return EngineImpl::Open(options, hooks);
}

int ExitCodeOf(const absl::Status& status) { return ExitCode(status); }

}  // namespace penstock
