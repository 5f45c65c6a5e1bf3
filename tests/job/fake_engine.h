// An engine without a model, for tests of jobs: an answer is a hash of the request, so it depends on nothing else.
//
// A token is a byte. A request takes 1 to `max_steps` steps, chosen by its hash, so that requests finish out of order.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/chat/chat_parts.h"
#include "penstock/engine.h"

namespace penstock {

struct FakeEngineOptions {
  std::string name = "fake";
  std::string fingerprint = "f00d";
  std::string dtype = "f32";
  int64_t batch_size = 4;
  int64_t context_length = 4096;
  int max_steps = 5;
  int max_sleep_us = 0;  // upper limit per step
  int64_t fail_at_step = -1;
  std::string unreadable = "(never)";   // requests whose prompt contains this text fail
  std::string on_bad_disk = "(never)";  // the same, because of the machine
  bool has_template = true, has_tokenizer = true;
  bool sees_date = false;  // its template prints the date
  double default_temperature = 1.0;
  bool has_parts =
      false;  // the first word of an answer is a thought, and an answer to a chat with tools ends in a call
};

// Splits answers as FakeEngineOptions::has_parts says.
class FakeAnswerStream : public AnswerStream {
 public:
  explicit FakeAnswerStream(bool has_tools) : has_tools_(has_tools) {}
  std::vector<AnswerDelta> Push(std::span<const TokenId>, std::string_view text) override {
    text_ += text;
    return {};
  }
  std::vector<AnswerDelta> Finish() override {
    const size_t space = text_.find(' ');
    std::vector<AnswerDelta> deltas = {{AnswerDelta::Kind::kReasoning, text_.substr(0, space)},
                                       {AnswerDelta::Kind::kContent, text_.substr(space + 1)}};
    if (has_tools_) {
      deltas.push_back({AnswerDelta::Kind::kCallBegin, "f"});
      deltas.push_back({AnswerDelta::Kind::kCallArguments, "{}"});
    }
    return deltas;
  }

 private:
  bool has_tools_;
  std::string text_;
};

class FakeEngine : public Engine {
 public:
  explicit FakeEngine(const FakeEngineOptions& options) : options_(options) {
    model_ = {.name = options.name,
              .family = "fake",
              .fingerprint = options.fingerprint,
              .dtype = options.dtype,
              .vocab_size = 256,
              .context_length = options.context_length};
    plan_.batch_size = options.batch_size;
    sampling_.temperature = options.default_temperature;
  }

  const ModelInfo& model() const override { return model_; }
  const MemoryPlan& memory_plan() const override { return plan_; }
  const EngineStats& stats() const override { return stats_; }
  const SamplingParams& default_sampling() const override { return sampling_; }
  absl::Status text_status() const override {
    return options_.has_tokenizer ? absl::OkStatus() : InputError("the model has no tokenizer");
  }
  absl::Status chat_status() const override {
    return options_.has_template ? absl::OkStatus() : InputError("the model has no chat template");
  }
  int64_t max_held() const { return max_held_; }
  // Returns the log-probability of a token behind others.
  static TokenLogprobs LogprobsAt(std::span<const TokenId> before, TokenId id) {
    const uint64_t hash = XXH3_64bits(before.data(), before.size() * sizeof(TokenId));
    const auto best = static_cast<TokenId>(hash % 256);
    return {.chosen = {id, -0.25 - std::abs(id - best) / 64.0}, .top = {{best, -0.25}}};
  }

  absl::StatusOr<std::vector<TokenId>> Tokenize(std::string_view text) const override {
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  absl::StatusOr<std::vector<TokenId>> TokenizeChat(const Chat& chat) const override {
    PENSTOCK_RETURN_IF_ERROR(chat_status());
    const auto& [messages, tools, variables, continues_last, date] = chat.parts();
    return Tokenize(fmt::format("{}{}|{}|{}{}", options_.sees_date ? date : "", json::serialize(messages),
                                tools.is_null() ? "" : json::serialize(tools),
                                variables.empty() ? "" : json::serialize(variables), continues_last ? "|" : ""));
  }
  std::unique_ptr<AnswerStream> NewAnswerStream(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                const AnswerRule& rule) const override {
    if (options_.has_parts) return std::make_unique<FakeAnswerStream>(!chat.parts().tools.is_null());
    return Engine::NewAnswerStream(prompt_ids, chat, rule);
  }
  std::string TokenBytes(TokenId id, bool) const override { return std::string(1, static_cast<char>(id)); }

  absl::Status Check(const Request& request) const override {
    if (static_cast<int64_t>(request.prompt_ids.size()) > options_.context_length) {
      return InputError("the prompt has {} tokens, more than the context length of {}", request.prompt_ids.size(),
                        options_.context_length);
    }
    for (const TokenId id : request.prompt_ids) {
      if (id >= model_.vocab_size) return InputError("token id {} is not in the vocabulary", id);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<RequestId> Submit(Request request) override {
    PENSTOCK_RETURN_IF_ERROR(Check(request));
    waiting_.push_back(Answer(request));
    const RequestId id = waiting_.back().completion.request_id;
    Admit();
    max_held_ = std::max(max_held_, num_running() + num_waiting());
    return id;
  }
  std::vector<RequestId> DropWaiting() override {
    std::vector<RequestId> ids;
    for (const Running& one : waiting_) ids.push_back(one.completion.request_id);
    waiting_.clear();
    return ids;
  }
  bool Cancel(RequestId id) override {
    const auto is_it = [&](const Running& one) { return one.completion.request_id == id; };
    return std::erase_if(waiting_, is_it) + std::erase_if(running_, is_it) > 0;
  }
  void SetPieceSink(std::function<void(const AnswerPiece&)>) override {}
  int64_t num_running() const override { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const override { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_waiting_tokens() const override {
    int64_t num_tokens = 0;
    for (const Running& one : waiting_) num_tokens += one.completion.num_prompt_tokens;
    return num_tokens;
  }

  absl::StatusOr<std::vector<Completion>> Step() override {
    if (num_steps_++ == options_.fail_at_step) return IoError("model.safetensors: cannot read: Input/output error");
    if (options_.max_sleep_us > 0) ::usleep(static_cast<useconds_t>(num_steps_ * 7919 % options_.max_sleep_us));
    Admit();
    std::vector<Completion> finished;
    std::vector<Running> still;
    for (Running& one : running_) {
      if (--one.steps_left > 0) {
        still.push_back(std::move(one));
      } else {
        finished.push_back(std::move(one.completion));
      }
    }
    running_ = std::move(still);
    stats_.decode_s += 0.001;
    return finished;
  }
  absl::StatusOr<std::vector<double>> ScoreTokens(std::span<const TokenId>) override { return InputError("not here"); }
  absl::StatusOr<std::vector<float>> Logits(std::span<const TokenId>, int64_t) override {
    return InputError("not here");
  }

 private:
  struct Running {
    Completion completion;
    int steps_left = 0;
  };

  void Admit() {
    while (num_running() < options_.batch_size && !waiting_.empty()) {
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }

  static void Score(const Request& request, Completion& completion) {
    const std::span<const TokenId> prompt = request.prompt_ids;
    const auto num_prompt = std::ssize(prompt);
    completion.token_ids.clear();
    completion.text.clear();
    for (int64_t pos = request.first_scored; pos < num_prompt; ++pos) {
      completion.prompt_logprobs.push_back(LogprobsAt(prompt.first(static_cast<size_t>(pos)), prompt[pos]));
    }
    for (const TokenId id : request.rivals) {
      completion.rivals.push_back(LogprobsAt(prompt.first(static_cast<size_t>(request.first_scored)), id));
    }
  }

  Running Answer(const Request& request) {
    const SamplingParams& s = request.sampling;
    const uint64_t hash = XXH3_64bits_withSeed(
        request.prompt_ids.data(), request.prompt_ids.size() * sizeof(TokenId),
        s.seed + static_cast<uint64_t>(s.temperature * 1000) + static_cast<uint64_t>(s.max_tokens) * 31);
    Running one;
    one.steps_left = 1 + static_cast<int>(hash % static_cast<uint64_t>(options_.max_steps));
    one.completion.request_id = next_id_++;
    one.completion.text = fmt::format("answer {:016x} \xC3\xA9", hash);
    one.completion.token_ids = *Tokenize(one.completion.text);
    one.completion.finish_reason = hash % 2 == 0 ? FinishReason::kStop : FinishReason::kLength;
    one.completion.num_prompt_tokens = static_cast<int64_t>(request.prompt_ids.size());
    if (std::string(request.prompt_ids.begin(), request.prompt_ids.end()).find(options_.unreadable) !=
        std::string::npos) {
      one.completion.status = ModelError("penstock.bin: layer 1: wrong checksum");
    }
    if (std::string(request.prompt_ids.begin(), request.prompt_ids.end()).find(options_.on_bad_disk) !=
        std::string::npos) {
      one.completion.status = IoError("penstock.bin: cannot read: Input/output error");
    }
    for (const TokenId id : one.completion.token_ids) {
      if (s.logprobs < 0) break;
      TokenLogprobs logprobs{.chosen = {id, -0.5}, .top = {}};
      for (int i = 0; i < s.logprobs; ++i) logprobs.top.push_back({(id + i) % 256, -0.5 - i});
      one.completion.logprobs.push_back(logprobs);
    }
    if (s.prompt_logprobs >= 0) Score(request, one.completion);
    stats_.prompt_tokens += one.completion.num_prompt_tokens;
    stats_.generated_tokens += static_cast<int64_t>(one.completion.token_ids.size());
    return one;
  }

  FakeEngineOptions options_;
  ModelInfo model_;
  MemoryPlan plan_;
  EngineStats stats_;
  SamplingParams sampling_;
  std::deque<Running> waiting_;
  std::vector<Running> running_;
  RequestId next_id_ = 1;
  int64_t num_steps_ = 0;
  int64_t max_held_ = 0;
};

}  // namespace penstock
