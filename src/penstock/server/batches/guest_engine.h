// An engine that is a share of a server's engine: batches run on it as jobs run on an engine of their own. Its requests
// get the places that the server's own requests leave free.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "penstock/engine.h"
#include "penstock/server/engine_service.h"

namespace penstock::server {

class GuestEngine : public Engine {
 public:
  // The service must outlive the guest. Its model is the service's, under the given name.
  GuestEngine(EngineService& service, std::string model_name)
      : service_(service),
        model_(service.engine().model()),
        state_(std::make_shared<State>()),
        stats_(service.Snapshot().stats) {
    model_.name = std::move(model_name);
  }
  // Gives up the requests that are not finished.
  ~GuestEngine() override;

  const ModelInfo& model() const override { return model_; }
  const MemoryPlan& memory_plan() const override { return host().memory_plan(); }
  // The stats of the whole engine, after the last Step() of this guest.
  const EngineStats& stats() const override { return stats_; }
  const SamplingParams& default_sampling() const override { return host().default_sampling(); }
  absl::Status text_status() const override { return host().text_status(); }
  absl::Status chat_status() const override { return host().chat_status(); }
  absl::StatusOr<std::vector<TokenId>> Tokenize(std::string_view text) const override { return host().Tokenize(text); }
  absl::StatusOr<std::vector<TokenId>> TokenizePiece(std::string_view text) const override {
    return host().TokenizePiece(text);
  }
  absl::StatusOr<std::vector<TokenId>> TokenizeChat(const Chat& chat) const override {
    return host().TokenizeChat(chat);
  }
  std::unique_ptr<AnswerStream> NewAnswerStream(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                const AnswerRule& rule) const override {
    return host().NewAnswerStream(prompt_ids, chat, rule);
  }
  absl::StatusOr<std::optional<OutputFormat>> FormatOfAnswer(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                             const AnswerRule& rule) const override {
    return host().FormatOfAnswer(prompt_ids, chat, rule);
  }
  absl::StatusOr<std::shared_ptr<const Constraint>> CompileFormat(const OutputFormat& format) const override {
    return host().CompileFormat(format);
  }
  std::string TokenBytes(TokenId id, bool begins_text) const override { return host().TokenBytes(id, begins_text); }

  absl::Status Check(const Request& request) const override { return host().Check(request); }
  absl::StatusOr<RequestId> Submit(Request request) override;
  std::vector<RequestId> DropWaiting() override;
  bool Cancel(RequestId id) override;
  void SetPieceSink(std::function<void(const AnswerPiece&)>) override {}  // jobs have no streams
  int64_t num_running() const override;
  int64_t num_waiting() const override;
  int64_t num_waiting_tokens() const override;
  // Waits until a request has finished, or for a tenth of a second.
  absl::StatusOr<std::vector<Completion>> Step() override;
  absl::StatusOr<std::vector<double>> ScoreTokens(std::span<const TokenId> ids) override;
  absl::StatusOr<std::vector<float>> Logits(std::span<const TokenId> ids, int64_t num_encoded) override;

 private:
  class Listener;
  struct Active {
    Ticket ticket = 0;
    int64_t num_prompt_tokens = 0;
    bool has_begun = false;
  };
  // The engine's thread writes it, too.
  struct State {
    std::mutex mutex;
    std::condition_variable has_finished;
    absl::flat_hash_map<RequestId, Active> active;
    std::vector<Completion> finished;
  };

  const Engine& host() const { return service_.engine(); }

  EngineService& service_;
  ModelInfo model_;
  std::shared_ptr<State> state_;
  EngineStats stats_;
  RequestId next_id_ = 1;
};

}  // namespace penstock::server
