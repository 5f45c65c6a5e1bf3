// Penstock's C++ API: open a model within a memory budget, submit requests, step, collect completions.
//
//   penstock::EngineOptions options{.model_dir = "models/penstock-demo", .memory_bytes = 16 << 20};
//   auto engine = penstock::Engine::Open(options);          // absl::StatusOr<std::unique_ptr<Engine>>
//   auto prompt = (*engine)->Tokenize("Once upon a time");
//   auto id = (*engine)->Submit({.prompt_ids = *prompt, .sampling = {.max_tokens = 64}});
//   while (!(*engine)->idle()) {
//     auto finished = (*engine)->Step();                     // absl::StatusOr<std::vector<Completion>>
//     for (const auto& completion : *finished) std::cout << completion.text;
//   }
//
// One thread at a time may use an Engine; the const functions about texts and chats may be called beside it. Errors are
// absl::Status with one-line messages; penstock::ExitCodeOf gives their class. The bits of a completion depend only on
// the model, the dtype and its own request. Budget, batch, threads and other requests do not change them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/chat.h"
#include "penstock/chat_answer.h"
#include "penstock/formats.h"
#include "penstock/output_format.h"
#include "penstock/policy.h"
#include "penstock/token_id.h"

namespace penstock {

using RequestId = uint64_t;

struct SamplingParams {
  double temperature = 1.0;         // 0: greedy
  int64_t top_k = 0;                // 0: off
  double top_p = 1.0;               // (0, 1]; 1: off
  double min_p = 0.0;               // [0, 1]; 0: off
  double repetition_penalty = 1.0;  // 0.001 to 100; 1: off. Of tokens in prompt or answer
  double presence_penalty = 0.0;    // -2 to 2; 0: off. Subtracted from logits of generated tokens
  double frequency_penalty = 0.0;   // -2 to 2; 0: off. Subtracted once for each time that a token was generated
  // Added to logits; each from -100 to 100.
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  std::vector<std::vector<TokenId>> bad_words = {};  // sequences of tokens that are never completed; none is empty
  uint64_t seed = 0;                                 // seeds the request's own counter-based random stream
  int64_t max_tokens = 256;                          // >= 1; 0 with prompt_logprobs: only scores the prompt
  int64_t min_tokens = 0;                            // nothing ends generation before these
  std::vector<std::string> stop = {};                // generation ends before the first of these texts
  bool includes_stop = false;                        // the text that ended the answer is a part of it
  std::vector<TokenId> stop_token_ids = {};          // generation ends when one of these is generated; it is not a part
  bool ignore_eos = false;
  int logprobs = -1;         // number of alternatives to report per token; -1: no log-probabilities at all
  int prompt_logprobs = -1;  // the same for the tokens of the prompt
};

struct Request {
  std::vector<TokenId> prompt_ids = {};  // at least one
  SamplingParams sampling = {};
  // The answer's text continues that of the prompt. Otherwise it is a text of its own, of which some tokenizers strip a
  // leading space.
  bool continues_text = false;
  // With sampling.prompt_logprobs: the index of the first token of the prompt whose log-probabilities are wanted. The
  // tokens before the one that predicts it can share KV entries with other requests.
  int64_t first_scored = 0;
  // For encoder-decoder models: the encoder reads this many first tokens of prompt_ids. The others are given to the
  // decoder; the first of these is ModelInfo::decoder_start_id. 0: the encoder reads all, and the decoder begins.
  int64_t num_encoded = 0;
  // With max_tokens 0: other tokens whose log-probabilities are wanted in the place of first_scored. This is then at
  // least 1, and may lie directly behind the prompt.
  std::vector<TokenId> rivals = {};
  // Requests with a higher priority get places first, also places of running requests. These then wait, and go on later
  // with the same answer.
  int priority = 0;
  // The answer follows this format (Engine::CompileFormat), and ends when nothing can follow. End-of-sequence tokens
  // and stop_token_ids are allowed only where the format allows the answer to end; stop texts cut it anywhere. Tokens
  // that the format forces are not sampled: penalties, biases and bad_words do not apply to them.
  std::shared_ptr<const Constraint> constraint = {};
};

enum class FinishReason : uint8_t { kStop, kLength };

struct TokenLogprob {
  TokenId token_id = 0;
  double logprob = 0;  // from the model's own distribution (before temperature and filters), never below -9999
};

struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first
};

// The tokens and text that an answer has gained in a step. The spans are valid during the call that hands them out.
struct AnswerPiece {
  RequestId request_id = 0;
  std::span<const TokenId> token_ids;
  std::span<const TokenLogprobs> logprobs;  // one per token, if requested
  // The text that is final now. A possible beginning of a stop text, or of a character, is held back for later pieces.
  std::string_view text;
};

struct Completion {
  RequestId request_id = 0;
  std::vector<TokenId> token_ids;  // without the end-of-sequence token
  std::string text;                // decoded, cut before a stop text; always valid UTF-8
  FinishReason finish_reason = FinishReason::kStop;
  std::string stop_text;                // the text of SamplingParams::stop that ended the answer
  std::vector<TokenLogprobs> logprobs;  // one per token of token_ids, if requested
  // One per token of the prompt from Request::first_scored on, if requested. The prompt's first token has no
  // log-probability: its entry only names it.
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<TokenLogprobs> rivals;  // one per token of Request::rivals
  int64_t num_prompt_tokens = 0;
  int64_t num_shared_tokens = 0;  // of the prompt, that other requests had computed
  // Not OK: the request failed (its experts could not be read), and only request_id and num_prompt_tokens are set.
  absl::Status status;
};

struct ModelInfo {
  std::string name;         // last part of the folder's path
  std::string family;       // "mixtral", "qwen3_moe", "olmoe", ...
  std::string fingerprint;  // hex digest of config, tokenizer files, tensor catalogue and samples of the weights
  std::string dtype;        // dtype of the computation ("f32", "bf16"), or the format of weights times codes ("int8")
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  std::optional<TokenId> decoder_start_id = {};  // of encoder-decoder models: the token with which the decoder begins
  // Maximum bytes of a prompt's text. A longer text cannot fit the context, whatever its tokens, so it can be refused
  // without tokenizing. 0: unknown.
  uint64_t max_prompt_bytes = 0;
  // Maximum bytes that the first CompileFormat() takes beside the format itself. The caller counts them (CallerMemory).
  uint64_t format_bytes = 0;
};

struct CallerMemory {
  uint64_t bytes = 0;
  uint64_t bytes_per_sequence = 0;  // for each sequence of the batch
  uint64_t bytes_per_position = 0;  // for each position of the KV cache
};

inline constexpr uint64_t kDefaultPrefixDirBytes = uint64_t{8} << 30;

struct EngineOptions {
  std::string model_dir = {};
  // Further copies of the model's folder or GGUF file, on other disks. Experts are read from all of them at once. A
  // copy may hold only some of the files, or only some experts (penstock mirror).
  std::vector<std::string> model_mirrors = {};
  uint64_t memory_bytes = 0;  // bound on everything allocated; 0: memory_share decides
  double memory_share = 0;    // (0, 1]: of the machine's free memory; 0: three quarters
  // Returns the memory that the caller itself needs of the budget. Called when the model is known. Optional.
  std::function<CallerMemory(const ModelInfo&)> caller_memory = {};
  std::optional<ComputeDtype> dtype = {};            // default: kF32
  std::optional<ActivationFormat> activations = {};  // default: kInt8
  std::optional<KvFormat> kv_dtype = {};             // default: kF32
  std::optional<CommFormat> comm_dtype = {};         // default: kF32
  // auto (a CUDA GPU if there is one, otherwise cpu), cpu, cuda[:I[,share=S]], or emulated[:link=4GB/s,threads=1]. The
  // emulated device consists of the CPU's own threads, with its own memory and links. It serves to try schedules that
  // need a device.
  std::string device = "auto";
  uint64_t device_memory_bytes = 0;  // bound on everything allocated on the device; 0: device_memory_share decides
  double device_memory_share = 0;    // (0, 1]: of the GPU's free memory; 0: nine tenths
  int threads = 0;                   // host threads; 0: all usable CPUs, except those of an emulated device
  int64_t batch_size = 0;            // sequences at once; 0: as many as the budget allows, at most 64
  int64_t context_length = 0;        // longest prompt + answer; 0: the model's own, at most 8192
  // StreamingLLM: every token sees the first attention_sinks tokens and at least the last attention_window tokens, in
  // whole KV pages. The KV cache keeps no others. Answers to longer sequences differ from those of full attention. A
  // window of 0 turns this off.
  int64_t attention_window = 0;
  int64_t attention_sinks = 4;
  int64_t prefill_chunk =
      0;  // prompt rows per step; 0: as many as the budget allows, at most 256, or 2048 with experts on disk
  bool decodes = true;  // false: only scores prompts, generates nothing (a hint for schedule auto)
  // Expected tokens of a request's prompt and answer. The KV cache holds this many for each place of the batch.
  int64_t planned_positions = 0;  // 0: 256, or fewer (down to 128) where all experts then stay in memory
  Policy policy = {};
  // Files that the engine writes; empty: none.
  std::string trace_path = {};       // Chrome trace JSON of every task (opens in Perfetto)
  std::string trace_html_path = {};  // a page that shows the last tasks
  std::string routing_path = {};     // the experts that each row chose, for simulations; must not exist yet
  // Also records the tokens, the router's scores of the experts, and the choices that the gates of the next layers
  // would have made. Comparisons of evictions and predictors need them, and so does training a predictor.
  bool routing_scores = false;
  std::string correlation_path = {};  // klotski's correlation table at the end of the run
  // CloseTraces() keeps how often each expert was chosen, beside the machine's measurements, for later plans.
  bool learns_routing = false;
  bool live_view = false;  // counts for View() what tasks and experts do
  // Takes all memory of the KV cache from the system when the model is opened, not when it is first used. So no step
  // waits for it.
  bool touches_kv_cache = false;
  // Computes the tokens that prompts begin with in common only once, and keeps their KV entries while there is room.
  bool shares_prefixes = true;
  // A folder that keeps these entries in files for later runs, up to so many bytes; empty: none. The last part of the
  // path is created. Several processes may use it at once.
  std::string prefix_dir = {};
  uint64_t prefix_dir_bytes = kDefaultPrefixDirBytes;
  // Fills rows that cost little with guesses of the next tokens. Answers do not depend on it.
  bool speculates = false;
  bool direct_io = true;  // reads experts with O_DIRECT; falls back to buffered reads if the file system refuses
  bool io_uring = true;   // reads with io_uring; falls back to reading threads if the kernel refuses
};

// Where every byte of a device's budget goes.
struct DevicePlan {
  std::string name = {};  // "emulated", "cuda:0"; empty: no device
  uint64_t budget_bytes = 0;
  uint64_t fixed_bytes = 0;  // buffers of fixed size
  uint64_t dense_bytes = 0;
  uint64_t kv_bytes = 0;  // the KV cache, or its staged part
  uint64_t activation_bytes = 0;
  uint64_t expert_bytes = 0;
  int64_t num_expert_slots = 0;
  int64_t num_pinned_experts = 0;
  bool holds_kv_cache = false;
  bool host_computes_experts = false;  // the host computes some experts, besides the device
};

// Where every byte of the budget goes.
struct MemoryPlan {
  uint64_t budget_bytes = 0;
  uint64_t fixed_bytes = 0;  // tokenizer, catalogue, buffers of fixed size, the caller's memory
  uint64_t dense_bytes = 0;  // attention, router, norms, embeddings
  uint64_t kv_bytes = 0;     // the KV cache, in DRAM unless the device holds it
  uint64_t kv_page_bytes = 0;
  uint64_t activation_bytes = 0;
  uint64_t expert_bytes = 0;  // expert slots
  int64_t num_expert_slots = 0;
  int64_t num_pinned_experts = 0;  // number of slots with pinned experts; the others stream
  int64_t num_experts_total = 0;   // of this rank, if several share the experts
  int num_ranks = 1;
  int64_t experts_of_layer = 0;  // of this rank
  bool shares_heads = false;     // the ranks share the attention heads, and so the KV cache
  bool cuts_experts = false;     // each rank has a part of every expert
  int64_t batch_size = 0;
  int64_t context_length = 0;
  int64_t prefill_chunk = 0;
  int64_t micro_batch_size = 0;  // in sequences; 0: all
  ScheduleKind schedule = ScheduleKind::kOnDemand;
  Eviction eviction = Eviction::kLru;  // eviction policy of the tier that computes the layers
  DevicePlan device = {};              // the device's share, if a device computes the layers
};

struct LaneStats {
  std::string name;   // "host_compute", "disk_to_dram"; with a device "device_compute", "dram_to_device", ...
  double busy_s = 0;  // while generating
};

// Bytes of experts that one copy of the model delivered.
struct DirectoryStats {
  std::string path;
  uint64_t bytes = 0;        // since the engine was opened
  double bytes_per_s = 0;    // while it was read; 0: it was not yet
  bool is_left_out = false;  // a mirror that had too many faults
};

struct ProcessorWork {
  uint64_t memory_bytes = 0;  // bytes of weights and KV read or written in the processor's memory
  double flops = 0;           // multiplications and additions
};

// KV entries of EngineOptions::prefix_dir.
struct PrefixDirStats {
  int64_t loaded_tokens = 0;  // prompt tokens whose entries were loaded
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  int64_t refused_files = 0;  // damaged ones, which were removed
};

struct EngineStats {
  int64_t prompt_tokens = 0;
  int64_t computed_prompt_tokens = 0;  // the others were in the KV cache already
  int64_t generated_tokens = 0;
  int64_t drafted_tokens = 0;   // rows of tokens that were guessed
  int64_t accepted_tokens = 0;  // those of them that were right
  double load_s = 0;
  double prefill_s = 0;  // a step's time is split between prefill and decode in proportion to their rows
  double decode_s = 0;
  double kv_usage = 0;             // share of the KV cache's pages that requests held in the last step
  uint64_t disk_bytes = 0;         // bytes of experts read from disk while generating
  uint64_t unused_disk_bytes = 0;  // read ahead and then not wanted
  uint64_t dram_to_device_bytes = 0;
  uint64_t device_to_dram_bytes = 0;
  ProcessorWork work;       // work of the processor that computes the layers
  ProcessorWork host_work;  // work of the host, when a device computes the layers
  int64_t expert_hits = 0;  // wanted experts that were in the memory of the processor that computes the layers
  int64_t expert_misses = 0;
  int64_t prefetch_issued = 0;  // experts read because they were predicted
  int64_t prefetch_used = 0;    // prefetched, and wanted before they were evicted
  // klotski: experts that it named as the K most wanted of a layer before its rows chose, and those of them that were.
  int64_t experts_named_hot = 0;
  int64_t experts_named_right = 0;
  PrefixDirStats prefix_dir;
  std::vector<LaneStats> lanes;
  std::vector<DirectoryStats> directories;  // the model's own first; empty without mirrors
};

// The time that tasks of one kind have taken on a lane.
struct PartSeconds {
  std::string lane;
  std::string part;  // "attention", "experts", "read expert" ...
  double seconds = 0;
};

enum class ExpertLocation : uint8_t {
  kDisk,      // only there, or on another rank
  kArriving,  // on its way into memory
  kDram,
  kDramPinned,  // stays there
  kDevice,
};

// A look at a running engine.
struct LiveView {
  int64_t num_moe_layers = 0;
  int64_t num_experts = 0;
  std::vector<ExpertLocation> locations = {};  // [num_moe_layers, num_experts]
  std::vector<int64_t> chosen = {};            // [num_moe_layers, num_experts]: how often routers chose an expert
  std::vector<PartSeconds> parts = {};
};

struct ProcessorRates {
  double memory_bytes_per_s = 0;
  double ops_per_s = 0;  // in the arithmetic of the FFNs
};

// The highest rates of this machine, with all threads. 0: not measured.
struct MachineRates {
  double disk_bytes_per_s = 0;
  double link_bytes_per_s = 0;  // to a device
  ProcessorRates compute = {};  // rates of the processor that computes the layers
  ProcessorRates host = {};     // rates of the host, when a device computes the layers
};

class Engine {
 public:
  // Opens a model. When the budget is too small, fails before anything is loaded; the message shows the arithmetic.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const ModelInfo& model() const = 0;
  virtual const MemoryPlan& memory_plan() const = 0;
  virtual const EngineStats& stats() const = 0;
  // Returns the sampling parameters of the model's generation_config.json, from which requests start.
  virtual const SamplingParams& default_sampling() const = 0;

  // Why texts cannot be tokenized, and why chats cannot be rendered: kInput when the model lacks a tokenizer or a chat
  // template, kModel when its template is invalid. OK when they can.
  virtual absl::Status text_status() const { return {}; }
  virtual absl::Status chat_status() const { return {}; }
  // Tokenizes text of a user. It never yields special tokens, except the BOS that the model's tokenizer adds.
  virtual absl::StatusOr<std::vector<TokenId>> Tokenize(std::string_view text) const = 0;
  // The same for a piece inside a text: without a BOS.
  virtual absl::StatusOr<std::vector<TokenId>> TokenizePiece(std::string_view text) const { return Tokenize(text); }
  // Renders the folder's chat template with a generation prompt, and returns the prompt's tokens.
  virtual absl::StatusOr<std::vector<TokenId>> TokenizeChat(const Chat& chat) const = 0;
  // Returns what splits one answer to the prompt of `chat` into its parts: reasoning, content and tool calls. The form
  // of these comes from the model's chat template and vocabulary. The engine must outlive the stream.
  virtual std::unique_ptr<AnswerStream> NewAnswerStream(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                        const AnswerRule& rule) const {
    (void)prompt_ids, (void)chat, (void)rule;
    return NewPlainAnswerStream();
  }
  // Returns the format that an answer to the prompt of `chat` must follow as a whole, from its reasoning to its calls,
  // so that it follows the rule. Nothing if any answer does. kInput when the model cannot follow the rule.
  virtual absl::StatusOr<std::optional<OutputFormat>> FormatOfAnswer(std::span<const TokenId> prompt_ids,
                                                                     const Chat& chat, const AnswerRule& rule) const {
    (void)prompt_ids, (void)chat;
    return rule.content;
  }
  // Returns the bytes that a token adds to a text, perhaps a part of a character. A token that begins the text may lose
  // a leading space.
  virtual std::string TokenBytes(TokenId id, bool begins_text) const = 0;

  // Checks the request against the model, as Submit() does. May be called beside the engine's thread.
  virtual absl::Status Check(const Request& request) const = 0;
  // Compiles an output format for requests. Any thread may call it at any time. kInput when the format is invalid, not
  // supported or too large; the message names the keyword or the place.
  virtual absl::StatusOr<std::shared_ptr<const Constraint>> CompileFormat(const OutputFormat& format) const {
    (void)format;
    return absl::UnimplementedError("this engine has no output formats");
  }

  // Checks the request against the model, and queues it. The next step admits the requests that share the most with
  // what is computed. A kInput error leaves the engine unchanged.
  virtual absl::StatusOr<RequestId> Submit(Request request) = 0;
  // Gives up the requests that wait, and returns their ids. They get no completions.
  virtual std::vector<RequestId> DropWaiting() = 0;
  // Gives up a request that waits or runs. It gets no completion, and the next step has its place. Returns false if
  // there is no such request; with several ranks, also if it runs.
  virtual bool Cancel(RequestId id) = 0;
  // Sets a function that Step() calls with what answers gain (streaming). Optional; several ranks never call it.
  virtual void SetPieceSink(std::function<void(const AnswerPiece&)> sink) = 0;

  virtual int64_t num_running() const = 0;         // requests with a place in the batch
  virtual int64_t num_waiting() const = 0;         // requests that still wait for a place or for KV pages
  virtual int64_t num_waiting_tokens() const = 0;  // tokens of their prompts
  bool idle() const { return num_running() == 0 && num_waiting() == 0; }

  // Admits waiting requests to free places, and does one pass over the model: prompt chunks, and one decode token for
  // each running sequence. Returns the requests that finished or failed. An error status does not belong to a single
  // request: the engine can no longer be used.
  virtual absl::StatusOr<std::vector<Completion>> Step() = 0;

  // Returns where experts are, and what has been counted. Without EngineOptions::live_view, nothing is counted.
  virtual LiveView View() const { return {}; }
  // Returns the log-probability of each token of `ids` except the first, given the tokens before it: ids.size() - 1
  // values (for perplexity). REQUIRES: idle(), 2 <= ids.size() <= context_length.
  virtual absl::StatusOr<std::vector<double>> ScoreTokens(std::span<const TokenId> ids) = 0;
  // Measures the machine with the engine's own threads, reads and memory, for about two seconds. REQUIRES: idle().
  virtual MachineRates MeasureRates() { return {}; }
  // Ends the files of trace_path, trace_html_path, routing_path and correlation_path; kIo when one could not be
  // written. REQUIRES: called once, when the engine is done.
  virtual absl::Status CloseTraces() { return absl::OkStatus(); }
  // Returns the logits [ids.size(), vocab_size] after each token (for tests and tools). With an encoder: of the tokens
  // from num_encoded on, which is then more than 0 (Request::num_encoded). REQUIRES: idle().
  virtual absl::StatusOr<std::vector<float>> Logits(std::span<const TokenId> ids, int64_t num_encoded = 0) = 0;
};

// Returns the exit code that the command line gives for this status: 0 success, 1 a fault of Penstock, 2 bad usage, 3
// invalid model, 4 invalid input, 5 I/O error, 6 not enough budget or machine, 7 stopped and can be resumed.
int ExitCodeOf(const absl::Status& status);

}  // namespace penstock
