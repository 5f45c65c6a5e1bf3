#include "penstock/server/api/api_server.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/base/version.h"
#include "penstock/chat/chat_parts.h"
#include "penstock/job/input/validate_input.h"
#include "penstock/job/prepared_request.h"
#include "penstock/job/result_logprobs.h"
#include "penstock/job/stats.h"
#include "penstock/server/api/live.h"
#include "penstock/server/api/openai_writers.h"
#include "penstock/server/batches/batch_store.h"

namespace penstock::server {
namespace {

uint64_t RandomNumber() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

// Takes a time that does not depend on where the texts differ.
bool IsSameSecret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i % std::max<size_t>(1, b.size())]);
  return difference == 0 && !b.empty();
}

// A segment "*" of a pattern stands for any one that is not empty.
bool Matches(std::string_view pattern, std::string_view path) {
  while (true) {
    const size_t pattern_end = std::min(pattern.find('/'), pattern.size());
    const size_t path_end = std::min(path.find('/'), path.size());
    const std::string_view wanted = pattern.substr(0, pattern_end), found = path.substr(0, path_end);
    if (wanted == "*" ? found.empty() : wanted != found) return false;
    if (pattern_end == pattern.size() || path_end == path.size()) {
      return pattern_end == pattern.size() && path_end == path.size();
    }
    pattern.remove_prefix(pattern_end + 1);
    path.remove_prefix(path_end + 1);
  }
}

// Returns the headers that a browser asks for. "*" would leave out Authorization.
std::string AllowedHeaders(const HttpHead& head) {
  const std::string_view wanted = head.Header("Access-Control-Request-Headers");
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == ',' ||
           c == ' ';
  };
  return !wanted.empty() && std::ranges::all_of(wanted, is_plain) ? std::string(wanted) : "Authorization, Content-Type";
}

ApiStyle StyleOf(const HttpHead& head) {
  return head.path.starts_with("/v1/messages") ? ApiStyle::kAnthropic : ApiStyle::kOpenAi;
}

std::string CodeOf(int status) { return status == 404 ? "not_found" : "invalid_request"; }

void RespondJson(Exchange& exchange, const json::object& body) {
  exchange.Respond({.body = std::string(json::serialize(body))});
}

// The fields of a completion's body about its response; batch lines do not have them.
struct ResponseFields {
  bool is_stream = false;
  bool shows_usage = false;
  bool shows_usage_so_far = false;
};

ResponseFields TakeResponseFields(json::object& body, std::optional<LineError>& error) {
  ResponseFields response;
  FieldReader fields(body, "");
  response.is_stream = fields.Bool("stream").value_or(false);
  if (const json::value* options = fields.Find("stream_options"); options != nullptr) {
    if (!response.is_stream) {
      fields.Fail("invalid_request", "stream_options", "only streams have them; set stream to true");
    } else if (!options->is_object()) {
      fields.Fail("invalid_request", "stream_options",
                  fmt::format("expected an object, found {}", JsonTypeName(*options)));
    } else {
      FieldReader inner(options->get_object(), "stream_options.");
      response.shows_usage = inner.Bool("include_usage").value_or(false);
      response.shows_usage_so_far = inner.Bool("continuous_usage_stats").value_or(false) && response.shows_usage;
      if (inner.error().has_value()) error = inner.error();
    }
  }
  if (!error.has_value()) error = fields.error();
  body.erase("stream");
  body.erase("stream_options");
  return response;
}

// Takes the prompts of a completion out of its body; nothing if it has only one.
json::array TakePrompts(json::object& body) {
  json::value* prompt = body.if_contains("prompt");
  json::array* list = prompt != nullptr ? prompt->if_array() : nullptr;
  const bool is_list = list != nullptr && !list->empty() && ((*list)[0].is_string() || (*list)[0].is_array());
  return is_list ? std::move(*list) : json::array();
}

// Returns what is needed of a request that was prepared. The rest may be as long as a body.
JobRequest Kept(JobRequest request) {
  JobRequest kept;
  kept.kind = request.kind;
  kept.prompt = std::move(request.prompt);
  kept.num_answers = request.num_answers;
  kept.echoes_prompt = request.echoes_prompt;
  kept.shown_prompt_logprobs = request.shown_prompt_logprobs;
  kept.sampling.prompt_logprobs = request.sampling.prompt_logprobs;
  return kept;
}

}  // namespace

HttpHeaders IgnoredHeader(const std::string& ignored) {
  return ignored.empty() ? HttpHeaders() : HttpHeaders{{"X-Ignored-Params", ignored}};
}

void AddIgnored(std::string_view name, std::string& ignored) {
  ignored += (ignored.empty() ? "" : ", ") + std::string(name);
}

void CopyOtherFields(FieldReader& fields, const json::object& body, std::span<const std::string_view> own,
                     std::span<const std::string_view> refused, json::object& chat) {
  for (const auto& [key, value] : body) {
    const std::string_view name(key.data(), key.size());
    if (value.is_null() || std::ranges::find(own, name) != own.end() || chat.contains(key)) continue;
    const bool is_one = name == "n" && value == json::value(1);
    if (!is_one && std::ranges::find(refused, name) != refused.end()) {
      fields.Fail("unsupported", name, "is not supported here; leave it out");
    }
    chat[key] = value;
  }
}

absl::StatusOr<json::object> ParseBody(const std::string& body) {
  PENSTOCK_ASSIGN_OR_RETURN(json::value value, ParseJson(body, Fault::kInput));
  if (!value.is_object()) return InputError("expected a JSON object, found {}", JsonTypeName(value));
  return std::move(value.get_object());
}

uint64_t BytesToRead(std::string_view body) {
  constexpr uint64_t kCopies = 2;  // of its texts
  return kCopies * body.size() + BytesOfValues(body);
}

uint64_t MaxTextBytes(const ApiOptions& options, const ModelInfo& model) {
  constexpr uint64_t kBytesPerToken = 8;  // more than texts of any language have
  const uint64_t of_context = static_cast<uint64_t>(model.context_length) * kBytesPerToken;
  const uint64_t max_bytes = std::max(of_context, options.max_tokenizing_bytes / kTokenizingBytesPerByte);
  return model.max_prompt_bytes == 0 ? max_bytes : std::min(max_bytes, model.max_prompt_bytes);
}

ApiServer::ApiServer(ApiOptions options)
    : options_(std::move(options)), created_(UnixSeconds()), formats_(options_.max_format_bytes) {
  reading_.SetMax(options_.max_reading_bytes);
  using Handler = void (ApiServer::*)(const std::shared_ptr<Exchange>&);
  const auto add = [&](Route route, Handler handler) {
    route.handler = [this, handler](const std::shared_ptr<Exchange>& exchange) { (this->*handler)(exchange); };
    AddRoute(std::move(route));
  };
  add({.method = "GET", .path = "/health", .is_public = true, .needs_engine = false}, &ApiServer::Health);
  add({.method = "GET", .path = "/version", .is_public = true, .needs_engine = false}, &ApiServer::GetVersion);
  add({.method = "GET", .path = "/metrics"}, &ApiServer::GetMetrics);
  add({.method = "GET", .path = "/live"}, &ApiServer::GetLive);
  add({.method = "GET", .path = "/v1/models"}, &ApiServer::ListModels);
  add({.method = "GET", .path = "/v1/models/*"}, &ApiServer::GetModel);
  add({.method = "POST", .path = "/tokenize"}, &ApiServer::Tokenize);
  add({.method = "POST", .path = "/detokenize"}, &ApiServer::Detokenize);
  add({.method = "POST", .path = "/v1/embeddings"}, &ApiServer::Embeddings);
  add({.method = "POST", .path = "/v1/chat/completions", .generates = true}, &ApiServer::ChatCompletions);
  add({.method = "POST", .path = "/v1/completions", .generates = true}, &ApiServer::Completions);
}
ApiServer::~ApiServer() = default;

void ApiServer::SetEngine(EngineService& service) {
  service_ = &service;
  const Engine& engine = service.engine();
  model_name_ = options_.model_name.empty() ? engine.model().name : options_.model_name;
  prompts_ = MakerOf(engine, options_.system, "");
  tokenizing_.SetMax(kTokenizingBytesPerByte * MaxTextBytes(options_, engine.model()));
  prompts_->tokenize = [this, &engine](std::string_view text) {
    return Tokenized(text.size(), [&] { return engine.Tokenize(text); });
  };
  prompts_->tokenize_chat = [this, &engine](const Chat& chat) {
    const ChatParts& parts = chat.parts();
    const uint64_t num_bytes =
        JsonBytes(parts.messages) + json::serialize(parts.tools).size() + json::serialize(parts.variables).size();
    return Tokenized(num_bytes, [&] { return engine.TokenizeChat(chat); });
  };
  sampling_ = Overlay(engine.default_sampling(), options_.sampling);
  state_ = State::kReady;
}

const ApiServer::Route* ApiServer::Find(const HttpHead& head) const {
  const auto found = std::ranges::find_if(
      routes_, [&](const Route& route) { return route.method == head.method && Matches(route.path, head.path); });
  return found == routes_.end() ? nullptr : &*found;
}

std::optional<ApiError> ApiServer::Denied(const Route& route, const HttpHead& head) const {
  if (!route.is_public && !options_.api_keys.empty()) {
    std::string_view key = head.Header("x-api-key");
    constexpr std::string_view kBearer = "Bearer ";
    if (const std::string_view value = head.Header("Authorization"); key.empty() && value.starts_with(kBearer)) {
      key = value.substr(kBearer.size());
    }
    bool is_known = false;
    for (const std::string& known : options_.api_keys) is_known = IsSameSecret(key, known) || is_known;
    if (!is_known) return ApiError{401, "the API key is missing or wrong", "invalid_api_key"};
  }
  if (!route.needs_engine) return std::nullopt;
  if (state_ == State::kLoading) return ApiError{503, "the model is being loaded", "loading"};
  if (state_ == State::kDraining && head.method != "GET") return ApiError{503, "the server stops", "stopping"};
  if (route.generates && !HasRoom(1)) return ApiError{429, "too many requests wait; try again", "too_many_requests"};
  return std::nullopt;
}

int64_t ApiServer::max_open() const {
  const int64_t num_places = service_->engine().memory_plan().batch_size;
  return num_places + options_.max_waiting.value_or(kWaitingForPlace * num_places);
}

bool ApiServer::HasRoom(int64_t num_requests) const {
  return num_open_ + num_requests <= max_open() && service_->Snapshot().num_waiting_tokens < kMaxWaitingTokens;
}

bool ApiServer::Refuses(const HttpHead& head, HttpResponse& response) {
  if (head.method == "OPTIONS" && options_.allows_cors) {
    response = {.status = 204, .body = "", .content_type = ""};
    response.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                        {"Access-Control-Allow-Headers", AllowedHeaders(head)},
                        {"Access-Control-Max-Age", "86400"}};
    return true;
  }
  if (const Route* route = Find(head); route != nullptr) {
    const std::optional<ApiError> denied = Denied(*route, head);
    if (!denied.has_value()) return false;
    metrics_.AddRefusal(denied->code);
    response = server::ErrorResponse(*denied, StyleOf(head));
    return true;
  }
  std::string allowed;
  for (const Route& route : routes_) {
    if (Matches(route.path, head.path)) allowed += (allowed.empty() ? "" : ", ") + route.method;
  }
  if (allowed.empty()) {
    response = ErrorResponse(404, fmt::format("there is nothing at {}", Excerpt(head.path)));
  } else {
    response = ErrorResponse(405, fmt::format("{} takes {} only", Excerpt(head.path), allowed));
    response.headers.emplace_back("Allow", allowed);
  }
  return true;
}

std::shared_ptr<BodySink> ApiServer::SinkFor(const HttpHead& head) {
  const Route* route = Find(head);
  return route != nullptr && route->sink ? route->sink(head) : nullptr;
}

HttpResponse ApiServer::ErrorResponse(int status, std::string_view message) {
  metrics_.AddRefusal(status == 429                    ? "too_many_bytes"
                      : status == 413 || status == 431 ? "too_long"
                      : status == 507                  ? "disk_full"
                                                       : CodeOf(status));
  return server::ErrorResponse({status, std::string(message), CodeOf(status)});
}

void ApiServer::RespondError(Exchange& exchange, const ApiError& error) {
  metrics_.AddRefusal(error.code.empty() ? "invalid_request" : error.code);
  exchange.Respond(server::ErrorResponse(error, StyleOf(exchange.request().head)));
}

void ApiServer::Handle(const std::shared_ptr<Exchange>& exchange) {
  const uint64_t num_bytes = BytesToRead(exchange->request().body);
  if (num_bytes > reading_.max_bytes()) {
    return RespondError(*exchange, {413,
                                    fmt::format("the body would take {} to be read, and the server has {} for that",
                                                FormatBytes(num_bytes), FormatBytes(reading_.max_bytes())),
                                    "too_long"});
  }
  const MemoryGate::Hold hold = reading_.Enter(num_bytes);
  Find(exchange->request().head)->handler(exchange);
}

absl::StatusOr<std::vector<TokenId>> ApiServer::Tokenized(
    uint64_t num_bytes, absl::FunctionRef<absl::StatusOr<std::vector<TokenId>>()> tokenize) {
  const uint64_t max_bytes = tokenizing_.max_bytes() / kTokenizingBytesPerByte;
  if (num_bytes > max_bytes) {
    return InputError("the text has {} bytes, and the server tokenizes at most {} (--context-length, --memory)",
                      num_bytes, max_bytes);
  }
  const MemoryGate::Hold hold = tokenizing_.Enter(kTokenizingBytesPerByte * num_bytes);
  return tokenize();
}

void ApiServer::Health(const std::shared_ptr<Exchange>& exchange) {
  const State state = state_;
  json::object body = {{"status", state == State::kLoading ? "loading" : state == State::kReady ? "ok" : "draining"}};
  bool is_good = state == State::kReady;
  if (state != State::kLoading) {
    const EngineSnapshot engine = service_->Snapshot();
    body["running"] = engine.num_running;
    body["waiting"] = engine.num_waiting;
    body["step_s"] = engine.step_s;
    if (!service_->status().ok()) {
      body["status"] = "failed";
      is_good = false;
    }
  }
  exchange->Respond({.status = is_good ? 200 : 503, .body = std::string(json::serialize(body))});
}

void ApiServer::GetVersion(const std::shared_ptr<Exchange>& exchange) {
  RespondJson(*exchange, {{"version", json::string(Version())}, {"commit", json::string(Commit())}});
}

void ApiServer::GetMetrics(const std::shared_ptr<Exchange>& exchange) {
  const Engine& engine = service_->engine();
  ModelInfo model = engine.model();
  model.name = model_name_;
  HttpResponse response{.content_type = "text/plain; version=0.0.4; charset=utf-8"};
  response.body = metrics_.Text(model, engine.memory_plan(), service_->Snapshot(),
                                num_connections_ ? num_connections_() : 0, ResidentBytes());
  exchange->Respond(std::move(response));
}

void ApiServer::GetLive(const std::shared_ptr<Exchange>& exchange) {
  const Engine& engine = service_->engine();
  const EngineSnapshot snapshot = service_->Snapshot();
  json::object live = LiveObject(service_->View(), snapshot, engine.memory_plan());
  live["model"] = ModelObject();
  live["predicted_tokens_per_s"] = options_.predicted_tokens_per_s;
  live["memory_used_bytes"] = ResidentBytes();
  RespondJson(*exchange, live);
}

json::object ApiServer::ModelObject() const {
  const ModelInfo& model = service_->engine().model();
  return {{"id", ReplaceInvalidUtf8(model_name_)},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "penstock"},
          {"max_model_len", model.context_length},
          {"family", model.family},
          {"fingerprint", model.fingerprint},
          {"dtype", model.dtype}};
}

void ApiServer::ListModels(const std::shared_ptr<Exchange>& exchange) {
  RespondJson(*exchange, {{"object", "list"}, {"data", json::array{ModelObject()}}});
}

void ApiServer::GetModel(const std::shared_ptr<Exchange>& exchange) {
  if (const auto error = CheckModel(exchange->request().head.Segment(2)); error.has_value())
    return RespondError(*exchange, *error);
  RespondJson(*exchange, ModelObject());
}

std::optional<ApiError> ApiServer::CheckModel(const std::string& name) const {
  if (name.empty() || name == model_name_) return std::nullopt;
  return ApiError{404, fmt::format("the model {} is not served here; this server has {}", Excerpt(name), model_name_),
                  "model_not_found", "model"};
}

void ApiServer::Tokenize(const std::shared_ptr<Exchange>& exchange) {
  const auto tokens = [&]() -> absl::StatusOr<std::vector<TokenId>> {
    PENSTOCK_ASSIGN_OR_RETURN(json::object body, ParseBody(exchange->request().body));
    if (body.contains("messages")) {
      RequestLine line = ParseRequestBody(body, RequestKind::kChat);
      if (line.error.has_value()) return InputError("{}", line.error->message);
      PromptMaker maker = *prompts_;
      maker.date = Today();
      return PromptOf(maker, line.request, {});
    }
    FieldReader fields(body, "");
    const bool is_llama_cpp = body.contains("content");
    const std::optional<std::string> text = fields.Text(is_llama_cpp ? "content" : "prompt");
    const bool adds_special = fields.Bool(is_llama_cpp ? "add_special" : "add_special_tokens").value_or(!is_llama_cpp);
    if (!fields.error().has_value() && !text.has_value()) {
      fields.Fail("invalid_request", "prompt", "is missing; give prompt or messages");
    }
    if (fields.error().has_value()) return InputError("{}", fields.error()->message);
    if (adds_special) return prompts_->tokenize(*text);
    return Tokenized(text->size(), [&] { return service_->engine().TokenizePiece(*text); });
  }();
  if (!tokens.ok()) return RespondError(*exchange, ErrorOf(tokens.status()));
  RespondJson(*exchange, {{"count", tokens->size()},
                          {"max_model_len", service_->engine().model().context_length},
                          {"tokens", json::array(tokens->begin(), tokens->end())}});
}

void ApiServer::Detokenize(const std::shared_ptr<Exchange>& exchange) {
  const absl::StatusOr<json::object> body = ParseBody(exchange->request().body);
  if (!body.ok()) return RespondError(*exchange, ErrorOf(body.status()));
  FieldReader fields(*body, "");
  const auto ids = fields.TokenIds("tokens", kMaxContext);
  if (!fields.error().has_value() && !ids.has_value()) fields.Fail("invalid_request", "tokens", "is missing");
  if (fields.error().has_value()) return RespondError(*exchange, ErrorOf(*fields.error()));
  const int64_t vocab_size = service_->engine().model().vocab_size;
  if (std::ranges::any_of(*ids, [&](TokenId id) { return id >= vocab_size; })) {
    return RespondError(*exchange,
                        {400, fmt::format("token ids are below {}", vocab_size), "invalid_request", "tokens"});
  }
  std::string text;
  const uint64_t max_bytes = MaxTextBytes(options_, service_->engine().model());
  for (const TokenId id : *ids) {
    text += service_->engine().TokenBytes(id, text.empty());
    if (text.size() > max_bytes) {
      return RespondError(
          *exchange, {400, fmt::format("their text has more than {} bytes", max_bytes), "invalid_request", "tokens"});
    }
  }
  text = ReplaceInvalidUtf8(text);
  RespondJson(*exchange, {{"prompt", text}, {"content", text}});
}

void ApiServer::Embeddings(const std::shared_ptr<Exchange>& exchange) {
  RespondError(*exchange, {404, "this server has no embeddings: its models generate text", "unsupported"});
}

void ApiServer::ChatCompletions(const std::shared_ptr<Exchange>& exchange) {
  if (const auto error = Complete(exchange, RequestKind::kChat)) RespondError(*exchange, *error);
}

void ApiServer::Completions(const std::shared_ptr<Exchange>& exchange) {
  if (const auto error = Complete(exchange, RequestKind::kCompletion)) RespondError(*exchange, *error);
}

TokenText ApiServer::token_text() const {
  return [this](TokenId id, bool begins_text) { return service_->engine().TokenBytes(id, begins_text); };
}

BodyHead ApiServer::NewHead() {
  return {.number = RandomNumber(), .request_number = ++num_requests_, .created = UnixSeconds()};
}

std::optional<ApiError> ApiServer::MakeWork(const json::object& body, RequestKind kind, std::vector<PromptWork>& work) {
  RequestLine line = ParseRequestBody(body, kind);
  if (line.error.has_value()) return ErrorOf(*line.error);
  if (const auto error = CheckModel(line.model)) return error;
  if (!line.request.choices.empty()) return ApiError{400, "only batches score choices", "unsupported", "choices"};
  PromptMaker maker = *prompts_;
  maker.date = Today();
  SamplingParams sampling = Overlay(sampling_, line.request.sampling);
  constexpr int64_t kCompletionTokens = 16;  // as OpenAI's
  if (!line.request.sampling.max_tokens.has_value() && !options_.sampling.max_tokens.has_value()) {
    sampling.max_tokens = kind == RequestKind::kChat ? kMaxContext : kCompletionTokens;
  }
  if (!line.request.sampling.seed.has_value()) sampling.seed = RandomNumber();
  const Engine& engine = service_->engine();
  absl::StatusOr<PreparedRequest> prepared = Prepare(engine, maker, formats_, line.request, sampling, {});
  if (!prepared.ok()) return ErrorOf(prepared.status());
  if (const absl::Status status = engine.Check(prepared->request); !status.ok()) return ErrorOf(status);
  PromptWork& added = work.emplace_back();
  for (int64_t i = 0; prepared->new_stream && i < line.request.num_answers; ++i) {
    added.streams.push_back(prepared->new_stream());
  }
  KeepEcho(engine, line.request);
  added.request = Kept(std::move(line.request));
  added.engine_request = std::move(prepared->request);
  return std::nullopt;
}

std::optional<ApiError> ApiServer::Complete(const std::shared_ptr<Exchange>& exchange, RequestKind kind) {
  absl::StatusOr<json::object> body = ParseBody(exchange->request().body);
  exchange->request().body = {};
  if (!body.ok()) return ErrorOf(body.status());
  std::optional<LineError> error;
  const ResponseFields response = TakeResponseFields(*body, error);
  if (error.has_value()) return ErrorOf(*error);
  json::array prompts = kind == RequestKind::kCompletion ? TakePrompts(*body) : json::array();
  if (prompts.size() > kMaxAnswers) {
    return ApiError{400, fmt::format("expected at most {} prompts, found {}", kMaxAnswers, prompts.size()),
                    "invalid_request", "prompt"};
  }
  Answering::Args args{.exchange = exchange, .model_name = model_name_, .is_stream = response.is_stream};
  for (size_t i = 0; i < std::max<size_t>(1, prompts.size()); ++i) {
    if (!prompts.empty()) (*body)["prompt"] = std::move(prompts[i]);
    if (auto failed = MakeWork(*body, kind, args.prompts)) return failed;
  }
  OpenAiForm form{.kind = kind,
                  .head = NewHead(),
                  .model = model_name_,
                  .logprobs = args.prompts[0].engine_request.sampling.logprobs,
                  .shows_usage = response.shows_usage,
                  .shows_usage_so_far = response.shows_usage_so_far,
                  .num_answers = static_cast<size_t>(args.prompts[0].request.num_answers)};
  for (PromptWork& prompt : args.prompts) {
    form.prompt_tokens.push_back(std::ssize(prompt.engine_request.prompt_ids));
    if (!prompt.request.echoes_prompt || !response.is_stream) continue;
    if (prompt.request.sampling.prompt_logprobs.has_value()) {
      return ApiError{400, "a stream has no log-probabilities of the prompt; leave echo or logprobs out", "unsupported",
                      "echo"};
    }
    form.echoes.push_back(std::move(prompt.request.prompt));
  }
  args.writer = OpenAiWriter(std::move(form), token_text());
  return Start(std::move(args));
}

uint64_t ApiServer::LogprobBytes(const Answering::Args& args) const {
  const int64_t context = service_->engine().memory_plan().context_length;
  uint64_t num_bytes = 0;
  for (const PromptWork& prompt : args.prompts) {
    const SamplingParams& sampling = prompt.engine_request.sampling;
    const int64_t prompt_tokens = std::ssize(prompt.engine_request.prompt_ids);
    const auto add = [&](int num_top, int64_t num_tokens, int num_lists) {
      if (num_top < 0) return;
      // A stream's are there once for the engine and once for the client.
      num_bytes +=
          static_cast<uint64_t>(num_tokens) * ((args.is_stream ? 2 : 1) * KeptLogprobsBytes(num_top) +
                                               static_cast<uint64_t>(num_lists) * ListedLogprobsBytes(num_top));
    };
    const int num_lists = args.writer->NumLogprobLists(args.is_stream);
    const int64_t most_tokens = std::min(sampling.max_tokens, std::max<int64_t>(0, context - prompt_tokens));
    add(sampling.logprobs, prompt.request.num_answers * most_tokens, num_lists);
    const bool lists_twice = prompt.request.shown_prompt_logprobs >= 0 && prompt.request.echoes_prompt;
    add(sampling.prompt_logprobs, prompt_tokens, lists_twice ? 2 * num_lists : num_lists);
  }
  return num_bytes;
}

// A word or a bias counts for each answer, because each has a request of its own.
uint64_t ApiServer::HeldBytes(const Answering::Args& args) {
  uint64_t num_bytes = args.writer->held_bytes();
  for (const PromptWork& prompt : args.prompts) {
    const SamplingParams& sampling = prompt.engine_request.sampling;
    uint64_t of_answer = sampling.logit_bias.size() * sizeof(sampling.logit_bias[0]);
    for (const auto& word : sampling.bad_words) {
      of_answer += sizeof(std::vector<TokenId>) + word.size() * sizeof(TokenId);
    }
    for (const std::string& stop : sampling.stop) of_answer += sizeof(std::string) + stop.size();
    num_bytes += prompt.request.prompt.size() + static_cast<uint64_t>(prompt.request.num_answers) * of_answer;
  }
  return num_bytes;
}

std::optional<ApiError> ApiServer::Start(Answering::Args args) {
  int64_t num_answers = 0;
  for (const PromptWork& prompt : args.prompts) num_answers += prompt.request.num_answers;
  if (num_answers > max_open()) {
    return ApiError{400,
                    fmt::format("{} answers are more than the server ever takes at once ({})", num_answers, max_open()),
                    "invalid_request", "n"};
  }
  if (!HasRoom(num_answers)) return ApiError{429, "too many requests wait; try again", "too_many_requests"};
  const uint64_t logprob_bytes = LogprobBytes(args), held_bytes = logprob_bytes + HeldBytes(args);
  if (held_bytes > options_.max_held_bytes) {
    return ApiError{400,
                    fmt::format("the log-probabilities, and the fields that are kept with the answer, may take {}, and "
                                "the server has {} for them; ask for fewer answers, alternatives or tokens, or for a "
                                "stream",
                                FormatBytes(held_bytes), FormatBytes(options_.max_held_bytes)),
                    "invalid_request", logprob_bytes > 0 ? "logprobs" : ""};
  }
  if (held_bytes_.fetch_add(held_bytes) + held_bytes > options_.max_held_bytes) {
    held_bytes_ -= held_bytes;
    return ApiError{429, "the requests under way hold too much memory; try again", "too_many_requests"};
  }
  num_open_ += num_answers;
  args.on_end = [this, num_answers, held_bytes](const AnsweringReport& report) {
    num_open_ -= num_answers;
    held_bytes_ -= held_bytes;
    metrics_.AddRequest(report);
  };
  args.on_gap = [this](double seconds, int64_t num_tokens) { metrics_.AddGap(seconds, num_tokens); };
  std::make_shared<Answering>(*service_, std::move(args))->Start();
  return std::nullopt;
}

}  // namespace penstock::server
