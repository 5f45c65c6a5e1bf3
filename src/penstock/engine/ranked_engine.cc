#include "penstock/engine/ranked_engine.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/engine/instrumented_engine.h"
#include "penstock/engine/rank_messages.h"
#include "penstock/engine/request_dealer.h"
#include "penstock/grammar/constraint.h"
#include "penstock/memory/prefix_cache.h"
#include "penstock/parallel/rank_link.h"
#include "penstock/plan/policy_file.h"

namespace penstock {
namespace {

// Prompts and answers of a step, with log-probabilities.
constexpr uint64_t kMaxStepBytes = kGiB;

template <typename T>
absl::Status SendMessage(Communicator& communicator, int to, const T& message) {
  return SendSized(communicator, to, MessageStream::kSteps, ToBytes(message));
}

// An engine and the requests that a rank has submitted to it, by rank 0's ids.
class RankEngine {
 public:
  explicit RankEngine(std::unique_ptr<InstrumentedEngine> engine) : engine_(std::move(engine)) {}

  InstrumentedEngine& engine() { return *engine_; }
  const InstrumentedEngine& engine() const { return *engine_; }

  absl::Status Submit(RankRequest order) {
    Request& request = order.request;
    if (order.has_format && request.constraint == nullptr) {
      const bool is_last = last_format_ != nullptr && last_format_->format() == order.format;
      if (!is_last) {
        PENSTOCK_ASSIGN_OR_RETURN(last_format_, engine_->CompileFormat(order.format));
      }
      request.constraint = last_format_;
    }
    PENSTOCK_ASSIGN_OR_RETURN(const RequestId own_id, engine_->Submit(std::move(request)));
    id_of_[own_id] = order.id;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Completion>> Step() {
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<Completion> finished, engine_->Step());
    for (Completion& completion : finished) {
      const auto found = id_of_.find(completion.request_id);
      completion.request_id = found->second;
      id_of_.erase(found);
    }
    return finished;
  }

 private:
  std::unique_ptr<InstrumentedEngine> engine_;
  absl::flat_hash_map<RequestId, RequestId> id_of_;  // rank 0's id, by the engine's own
  std::shared_ptr<const Constraint> last_format_;    // many requests have the same
};

class RankedEngine : public Engine {
 public:
  RankedEngine(std::unique_ptr<InstrumentedEngine> own, Communicator& communicator, bool shares_prefixes)
      : own_(std::move(own)),
        communicator_(communicator),
        plan_(own_.engine().memory_plan()),
        dealer_(communicator.num_ranks(), plan_.batch_size),
        shares_prefixes_(shares_prefixes),
        reports_(communicator.num_ranks()) {
    plan_.batch_size *= communicator.num_ranks();
  }

  const ModelInfo& model() const override { return own_.engine().model(); }
  const MemoryPlan& memory_plan() const override { return plan_; }
  const EngineStats& stats() const override { return stats_; }
  const SamplingParams& default_sampling() const override { return own_.engine().default_sampling(); }
  absl::Status text_status() const override { return own_.engine().text_status(); }
  absl::Status chat_status() const override { return own_.engine().chat_status(); }
  absl::StatusOr<std::vector<TokenId>> Tokenize(std::string_view text) const override {
    return own_.engine().Tokenize(text);
  }
  absl::StatusOr<std::vector<TokenId>> TokenizePiece(std::string_view text) const override {
    return own_.engine().TokenizePiece(text);
  }
  absl::StatusOr<std::vector<TokenId>> TokenizeChat(const Chat& chat) const override {
    return own_.engine().TokenizeChat(chat);
  }
  std::unique_ptr<AnswerStream> NewAnswerStream(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                const AnswerRule& rule) const override {
    return own_.engine().NewAnswerStream(prompt_ids, chat, rule);
  }
  absl::StatusOr<std::optional<OutputFormat>> FormatOfAnswer(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                             const AnswerRule& rule) const override {
    return own_.engine().FormatOfAnswer(prompt_ids, chat, rule);
  }
  std::string TokenBytes(TokenId id, bool begins_text) const override {
    return own_.engine().TokenBytes(id, begins_text);
  }

  absl::Status Check(const Request& request) const override { return own_.engine().Check(request); }
  absl::StatusOr<std::shared_ptr<const Constraint>> CompileFormat(const OutputFormat& format) const override {
    return own_.engine().CompileFormat(format);
  }

  absl::StatusOr<RequestId> Submit(Request request) override {
    PENSTOCK_RETURN_IF_ERROR(Check(request));
    const RequestId id = next_id_++;
    const auto num_prompt = std::ssize(request.prompt_ids);
    num_waiting_tokens_ += num_prompt;
    // The engines end generation at the context's end.
    request.sampling.max_tokens =
        std::max<int64_t>(0, std::min(request.sampling.max_tokens, plan_.context_length - num_prompt));
    std::vector<uint64_t> hashes = shares_prefixes_ ? PageHashes(request.prompt_ids) : std::vector<uint64_t>();
    waiting_.push_back({id, std::move(request), std::move(hashes)});
    return id;
  }
  std::vector<RequestId> DropWaiting() override {
    std::vector<RequestId> ids;
    for (const Waiting& waiting : waiting_) ids.push_back(waiting.id);
    waiting_.clear();
    num_waiting_tokens_ = 0;
    return ids;
  }
  bool Cancel(RequestId id) override {
    const auto found = std::ranges::find(waiting_, id, &Waiting::id);
    if (found == waiting_.end()) return false;
    num_waiting_tokens_ -= std::ssize(found->request.prompt_ids);
    waiting_.erase(found);
    return true;
  }
  void SetPieceSink(std::function<void(const AnswerPiece&)>) override {}
  int64_t num_running() const override { return dealer_.num_active(); }
  int64_t num_waiting() const override { return std::ssize(waiting_); }
  int64_t num_waiting_tokens() const override { return num_waiting_tokens_; }

  absl::StatusOr<std::vector<Completion>> Step() override {
    absl::StatusOr<std::vector<Completion>> finished = StepRanks();
    // The other ranks must not wait for a rank that stops.
    if (!finished.ok()) communicator_.Abort(finished.status());
    return finished;
  }

  absl::StatusOr<std::vector<double>> ScoreTokens(std::span<const TokenId> ids) override {
    return own_.engine().ScoreTokens(ids);
  }
  absl::StatusOr<std::vector<float>> Logits(std::span<const TokenId> ids, int64_t num_encoded) override {
    return own_.engine().Logits(ids, num_encoded);
  }
  MachineRates MeasureRates() override { return {}; }  // one rank's rates do not bound all of them
  absl::Status CloseTraces() override { return own_.engine().CloseTraces(); }

 private:
  absl::StatusOr<std::vector<Completion>> StepRanks() {
    std::vector<RankOrder> orders = DealRequests();
    for (int rank = 1; rank < communicator_.num_ranks(); ++rank) {
      PENSTOCK_RETURN_IF_ERROR(SendMessage(communicator_, rank, orders[rank]));
    }
    for (RankRequest& request : orders[0].requests) PENSTOCK_RETURN_IF_ERROR(own_.Submit(std::move(request)));
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<Completion> finished, own_.Step());
    reports_[0] = own_.engine().stats();
    for (int rank = 1; rank < communicator_.num_ranks(); ++rank) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                                ReceiveSized(communicator_, rank, MessageStream::kSteps, kMaxStepBytes));
      PENSTOCK_ASSIGN_OR_RETURN(RankReport report, ReportFrom(bytes));
      std::move(report.finished.begin(), report.finished.end(), std::back_inserter(finished));
      reports_[rank] = std::move(report.stats);
    }
    for (const Completion& completion : finished) dealer_.Finish(completion.request_id);
    AddUpStats();
    return finished;
  }

  // Deals the first waiting requests to the ranks. One whose rank has no place waits, and others pass it.
  std::vector<RankOrder> DealRequests() {
    constexpr size_t kMaxPassed = 64;
    std::vector<RankOrder> orders(communicator_.num_ranks(), {.kind = RankOrder::Kind::kStep});
    for (size_t i = 0; i < std::min(waiting_.size(), kMaxPassed) && !dealer_.is_full();) {
      auto& [id, request, hashes] = waiting_[i];
      const std::optional<int> rank = dealer_.Deal(id, request, hashes);
      if (!rank.has_value()) {
        ++i;
        continue;
      }
      num_waiting_tokens_ -= std::ssize(request.prompt_ids);
      RankRequest order{.id = id, .request = std::move(request)};
      if (order.request.constraint != nullptr) {
        order.has_format = true;
        order.format = order.request.constraint->format();
      }
      orders[*rank].requests.push_back(std::move(order));
      waiting_.erase(waiting_.begin() + static_cast<int64_t>(i));
    }
    return orders;
  }

  // Tokens and bytes are those of all ranks; seconds and lanes are rank 0's.
  void AddUpStats() {
    stats_ = reports_[0];
    for (size_t rank = 1; rank < reports_.size(); ++rank) {
      const EngineStats& other = reports_[rank];
      stats_.prompt_tokens += other.prompt_tokens;
      stats_.computed_prompt_tokens += other.computed_prompt_tokens;
      stats_.generated_tokens += other.generated_tokens;
      stats_.drafted_tokens += other.drafted_tokens;
      stats_.accepted_tokens += other.accepted_tokens;
      stats_.disk_bytes += other.disk_bytes;
      stats_.unused_disk_bytes += other.unused_disk_bytes;
      stats_.expert_hits += other.expert_hits;
      stats_.expert_misses += other.expert_misses;
      stats_.prefetch_issued += other.prefetch_issued;
      stats_.prefetch_used += other.prefetch_used;
      stats_.experts_named_hot += other.experts_named_hot;
      stats_.experts_named_right += other.experts_named_right;
    }
  }

  RankEngine own_;
  Communicator& communicator_;
  MemoryPlan plan_;  // rank 0's, with the places of all ranks
  RequestDealer dealer_;
  bool shares_prefixes_;
  RequestId next_id_ = 1;
  struct Waiting {
    RequestId id = 0;
    Request request;
    std::vector<uint64_t> page_hashes;
  };
  std::deque<Waiting> waiting_;
  int64_t num_waiting_tokens_ = 0;
  std::vector<EngineStats> reports_;  // [num_ranks]: of the last step
  EngineStats stats_;
};

}  // namespace

RankLeader::~RankLeader() { (void)Tell({.kind = RankOrder::Kind::kEnd}); }

std::function<CallerMemory(const ModelInfo&)> RankLeader::MemoryOfAll(
    std::function<CallerMemory(const ModelInfo&)> of_rank) const {
  return [of_rank = std::move(of_rank), num_ranks = num_ranks()](const ModelInfo& model) {
    CallerMemory memory = of_rank ? of_rank(model) : CallerMemory();
    memory.bytes_per_sequence *= static_cast<uint64_t>(num_ranks);
    memory.bytes += RequestDealer::kMaxBytes;
    return memory;
  };
}

absl::Status RankLeader::Tell(const RankOrder& order) {
  for (int rank = 1; rank < num_ranks(); ++rank) {
    PENSTOCK_RETURN_IF_ERROR(SendMessage(*communicator_, rank, order));
  }
  return absl::OkStatus();
}

absl::StatusOr<Link> RankLeader::MeasureNetwork() {
  PENSTOCK_RETURN_IF_ERROR(Tell({.kind = RankOrder::Kind::kMeasure}));
  return MeasureRankLink(*communicator_);
}

absl::StatusOr<std::unique_ptr<Engine>> RankLeader::Open(const EngineOptions& options, bool tells_policy) {
  RankOrder order{.kind = RankOrder::Kind::kOpen, .planned_positions = options.planned_positions};
  if (tells_policy) {
    json::object policy = PolicyJson(options);
    policy.erase("memory_bytes");
    order.policy = json::serialize(policy);
  }
  PENSTOCK_RETURN_IF_ERROR(Tell(order));
  EngineOptions of_all = options;
  of_all.caller_memory = MemoryOfAll(options.caller_memory);
  auto own = OpenInstrumentedEngine(of_all, {.communicator = communicator_});
  if (!own.ok()) {
    communicator_->Abort(own.status());
    return own.status();
  }
  return std::make_unique<RankedEngine>(*std::move(own), *communicator_, options.shares_prefixes);
}

absl::Status ServeRank(absl::StatusOr<EngineOptions> options, Communicator& communicator) {
  std::optional<RankEngine> own;
  const auto serve = [&]() -> absl::Status {
    for (;;) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                                ReceiveSized(communicator, 0, MessageStream::kSteps, kMaxStepBytes));
      PENSTOCK_ASSIGN_OR_RETURN(RankOrder order, OrderFrom(bytes));
      if (order.kind == RankOrder::Kind::kEnd) return own.has_value() ? own->engine().CloseTraces() : absl::OkStatus();
      if (order.kind == RankOrder::Kind::kMeasure) {
        PENSTOCK_RETURN_IF_ERROR(MeasureRankLink(communicator).status());
        continue;
      }
      if (order.kind == RankOrder::Kind::kOpen) {
        PENSTOCK_RETURN_IF_ERROR(options.status());
        if (!order.policy.empty())
          PENSTOCK_RETURN_IF_ERROR(ApplyPolicy(order.policy, "the policy of rank 0", *options));
        options->planned_positions = order.planned_positions;
        PENSTOCK_ASSIGN_OR_RETURN(auto engine, OpenInstrumentedEngine(*options, {.communicator = &communicator}));
        own.emplace(std::move(engine));
        continue;
      }
      for (RankRequest& request : order.requests) PENSTOCK_RETURN_IF_ERROR(own->Submit(std::move(request)));
      PENSTOCK_ASSIGN_OR_RETURN(std::vector<Completion> finished, own->Step());
      PENSTOCK_RETURN_IF_ERROR(SendMessage(communicator, 0, RankReport{std::move(finished), own->engine().stats()}));
    }
  };
  const absl::Status status = serve();
  if (!status.ok()) communicator.Abort(status);
  return status;
}

}  // namespace penstock
