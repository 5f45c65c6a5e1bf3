// The HTTP API: which path does what, who may use it, and what is refused.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "penstock/job/format_cache.h"
#include "penstock/job/input/sampling_fields.h"
#include "penstock/job/prompt.h"
#include "penstock/server/api/answering.h"
#include "penstock/server/api/api_error.h"
#include "penstock/server/api/memory_gate.h"
#include "penstock/server/api/metrics.h"
#include "penstock/server/engine_service.h"
#include "penstock/server/http/exchange.h"

namespace penstock::server {

// All prompts that wait have at most these; further requests get status 429.
inline constexpr int64_t kMaxWaitingTokens = 1 << 20;

inline constexpr int64_t kWaitingForPlace = 16;

struct ApiOptions {
  std::string model_name;              // that responses name; empty: the folder's name
  std::vector<std::string> api_keys;   // empty: everybody may use the server
  bool allows_cors = false;            // answers browsers that ask whether they may send requests
  std::optional<int64_t> max_waiting;  // requests without a place; more of them get status 429; default: 16 for each
  SamplingOverrides sampling;          // where requests say nothing
  uint64_t max_format_bytes = 0;       // of compiled formats; further requests with a format get status 429
  uint64_t max_reading_bytes = 0;      // of bodies that are being parsed
  uint64_t max_tokenizing_bytes = 0;   // of texts that are being tokenized, unless the context needs more
  uint64_t max_held_bytes = 0;         // of requests under way, see HeldBytes(); further ones get status 429
  double predicted_tokens_per_s = 0;   // the plan's; 0: there is none
  std::optional<std::string> system = {};  // system message of chats that have none
};

// Returns the most memory that a body takes as JSON.
uint64_t BytesToRead(std::string_view body);
// Returns the most bytes of a text that the server tokenizes.
uint64_t MaxTextBytes(const ApiOptions& options, const ModelInfo& model);

class ApiServer : public RequestHandler {
 public:
  explicit ApiServer(ApiOptions options);
  ~ApiServer() override;

  const std::string& model_name() const { return model_name_; }
  // Until the engine is set, requests get status 503; after BeginDraining(), too. The service must outlive the
  // requests.
  void SetEngine(EngineService& service);
  void BeginDraining() { state_ = State::kDraining; }
  struct Route {
    std::string method = {}, path = {};  // a segment "*" of the path stands for any one
    std::function<void(const std::shared_ptr<Exchange>&)> handler = {};
    bool is_public = false;  // needs no API key
    bool needs_engine = true;
    bool generates = false;                                               // counts as a request that waits
    std::function<std::shared_ptr<BodySink>(const HttpHead&)> sink = {};  // see RequestHandler::SinkFor
  };
  // REQUIRES: the server has not begun to listen.
  void AddRoute(Route route) { routes_.push_back(std::move(route)); }
  void SetConnectionCount(std::function<int64_t()> count) { num_connections_ = std::move(count); }

  // For endpoints. Parses the body of a chat completion or a completion, and adds its prompt to the work.
  std::optional<ApiError> MakeWork(const json::object& body, RequestKind kind, std::vector<PromptWork>& work);
  // Submits the work, and counts it.
  std::optional<ApiError> Start(Answering::Args args);
  void RespondError(Exchange& exchange, const ApiError& error);
  // Engine::TokenBytes()
  TokenText token_text() const;
  // Returns the ids of a new response.
  BodyHead NewHead();

  bool Refuses(const HttpHead& head, HttpResponse& response) override;
  std::shared_ptr<BodySink> SinkFor(const HttpHead& head) override;
  void Handle(const std::shared_ptr<Exchange>& exchange) override;
  HttpResponse ErrorResponse(int status, std::string_view message) override;

 private:
  enum class State : uint8_t { kLoading, kReady, kDraining };
  // Returns the route of a request, or nullptr.
  const Route* Find(const HttpHead& head) const;
  std::optional<ApiError> Denied(const Route& route, const HttpHead& head) const;
  // Returns how many requests the engine may have.
  int64_t max_open() const;
  // Returns the memory that log-probabilities of the work may take.
  uint64_t LogprobBytes(const Answering::Args& args) const;
  // Returns the memory of all else that a request keeps until its answers have ended, except tokens, texts and formats.
  static uint64_t HeldBytes(const Answering::Args& args);
  // Whether the engine may get so many requests more.
  bool HasRoom(int64_t num_requests) const;
  void Health(const std::shared_ptr<Exchange>& exchange);
  void GetVersion(const std::shared_ptr<Exchange>& exchange);
  void GetMetrics(const std::shared_ptr<Exchange>& exchange);
  void GetLive(const std::shared_ptr<Exchange>& exchange);
  void ListModels(const std::shared_ptr<Exchange>& exchange);
  void GetModel(const std::shared_ptr<Exchange>& exchange);
  void Tokenize(const std::shared_ptr<Exchange>& exchange);
  void Detokenize(const std::shared_ptr<Exchange>& exchange);
  void Embeddings(const std::shared_ptr<Exchange>& exchange);
  void ChatCompletions(const std::shared_ptr<Exchange>& exchange);
  void Completions(const std::shared_ptr<Exchange>& exchange);

  // Calls tokenize() with room for a text of so many bytes. kInput if the text is too long.
  absl::StatusOr<std::vector<TokenId>> Tokenized(uint64_t num_bytes,
                                                 absl::FunctionRef<absl::StatusOr<std::vector<TokenId>>()> tokenize);
  // Parses the body of a completion, makes its prompts and starts the work.
  std::optional<ApiError> Complete(const std::shared_ptr<Exchange>& exchange, RequestKind kind);
  std::optional<ApiError> CheckModel(const std::string& name) const;
  json::object ModelObject() const;

  ApiOptions options_;
  std::vector<Route> routes_;
  std::atomic<State> state_{State::kLoading};
  // SetEngine() sets these before the state changes. Nothing reads them while the model is being loaded.
  std::string model_name_;
  EngineService* service_ = nullptr;
  std::optional<PromptMaker> prompts_;
  SamplingParams sampling_;
  int64_t created_ = 0;  // when the server began
  FormatCache formats_;
  MemoryGate reading_, tokenizing_;  // entered in this order
  std::atomic<int64_t> num_requests_{0};
  std::atomic<int64_t> num_open_{0};     // requests that the engine has or will get
  std::atomic<uint64_t> held_bytes_{0};  // that these may take besides tokens and texts
  std::function<int64_t()> num_connections_;
  Metrics metrics_;
};

// Returns the header that names what a request asked for and does not get; none if that is nothing.
HttpHeaders IgnoredHeader(const std::string& ignored);
// Adds a name to a list with commas.
void AddIgnored(std::string_view name, std::string& ignored);
// Copies the fields that another API than chats does not name itself. So they are honoured or refused as those of
// chats; `refused` are those that its responses cannot show.
void CopyOtherFields(FieldReader& fields, const json::object& body, std::span<const std::string_view> own,
                     std::span<const std::string_view> refused, json::object& chat);
// Parses a body that must be a JSON object.
absl::StatusOr<json::object> ParseBody(const std::string& body);

}  // namespace penstock::server
