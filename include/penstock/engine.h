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
// An Engine is used by one thread at a time. Errors are absl::Status with one-line messages; penstock::ExitCodeOf tells
// their class. A completion's bits depend on the model, the dtype and its own request alone: not on the budget, the
// batch, the threads or the requests beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/chat.h"
#include "penstock/chat_answer.h"
#include "penstock/token_id.h"

namespace penstock {

using RequestId = uint64_t;

struct SamplingParams {
  double temperature = 1.0;            // 0: greedy
  int64_t top_k = 0;                   // 0: off
  double top_p = 1.0;                  // (0, 1]; 1: off
  double min_p = 0.0;                  // [0, 1]; 0: off
  double repetition_penalty = 1.0;     // 0.001 to 100; 1: off
  uint64_t seed = 0;                   // of the request's own counter-based random stream
  int64_t max_tokens = 256;            // >= 1
  std::vector<std::string> stop = {};  // generation ends before the first of these texts
  bool ignore_eos = false;
  int logprobs = -1;  // number of alternatives to report per token; -1: no logprobs at all
};

struct Request {
  std::vector<TokenId> prompt_ids = {};  // at least one
  SamplingParams sampling = {};
};

enum class FinishReason : uint8_t { kStop, kLength };

struct TokenLogprob {
  TokenId token_id = 0;
  double logprob = 0;  // of the model's own distribution (before temperature and filters), never below -9999
};

struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first
};

struct Completion {
  RequestId request_id = 0;
  std::vector<TokenId> token_ids;  // without the end-of-sequence token
  std::string text;                // decoded, cut before a stop text; always valid UTF-8
  FinishReason finish_reason = FinishReason::kStop;
  std::vector<TokenLogprobs> logprobs;  // one per token of token_ids when asked for
  int64_t num_prompt_tokens = 0;
  // Not OK: the request failed (its experts could not be read), and only request_id and num_prompt_tokens are given.
  absl::Status status;
};

struct ModelInfo {
  std::string name;         // last part of the folder's path
  std::string family;       // "mixtral", "qwen3_moe", "olmoe"
  std::string fingerprint;  // hex digest of config, tokenizer files, tensor catalogue and samples of the weights
  std::string dtype;        // of the computation: "f32", "bf16", or how the weights are quantised: "int8"
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  // A longer text cannot fit the context, whatever its tokens: it need not be tokenized to be refused. 0: not known.
  uint64_t max_prompt_bytes = 0;
};

struct CallerMemory {
  uint64_t bytes = 0;
  uint64_t bytes_per_sequence = 0;  // of the batch
  uint64_t bytes_per_position = 0;  // of the KV cache
};

// How passes are scheduled. Answers do not depend on it.
struct Policy {
  // on-demand, zero, zigzag, hybrid, klotski; with a device also zigzag-cpu-attention, fastdecode, cgopipe. auto:
  // klotski when experts stream, else, and for a batch of one sequence where the experts of two tokens fit, on-demand.
  std::string schedule = "auto";
  // lru, lfu, fifo, mrs, mrs-layer, static; auto: lru for on-demand, mrs for hybrid, else static (pinned share and
  // ring)
  std::string eviction = "auto";
  int64_t micro_batch_size = 0;  // sequences that go through a layer together; 0: all of a pass, with a device 32
  std::string kv_tier =
      "auto";                   // where the KV cache lies: dram, or device; auto: device for zero and hybrid, else dram
  int64_t streaming_slots = 0;  // slots that no pinned expert holds (eviction static); 0: what the schedule can use
  // With a device: layers whose experts pass through DRAM on their way from disk, ahead of what the device takes; 0: as
  // many experts as keep the disk busy, so that more of them can stay in DRAM.
  int64_t disk_window = 0;
  int64_t hot_experts = 0;  // klotski: fetched ahead for each layer; 0: all that are probably needed
  int64_t path_length = 1;  // klotski: layers before one that predict its experts; 0 to 3
  // klotski: what it predicts from at the beginning, as an earlier run has written it
  // (EngineOptions::correlation_path); empty: nothing, it learns while it runs. hybrid and on-demand with eviction
  // static: the experts that were chosen most often never leave.
  std::string correlation_table = {};
  // klotski's three ideas, for ablations.
  bool multi_batch = true;
  bool hot_prefetch = true;
  bool reorder = true;
  // hybrid, with a device: how experts are divided between it and the host: balanced (= auto), timelines, two-ended,
  // threshold or fixed (schedule/expert_split.h).
  std::string hybrid_rule = "auto";
  // hybrid: what it fetches ahead by: none, gate, correlation, history, sequence, or in simulations oracle
  // (routing/expert_predictor.h). auto: what penstock bench routing found best for the model (with eviction auto also
  // its eviction), none where it was not asked.
  std::string predictor = "auto";
};

struct EngineOptions {
  std::string model_dir = {};
  uint64_t memory_bytes = 0;  // bound on everything allocated; 0: three quarters of what the machine has free
  // What the caller itself needs of the budget, asked for when the model is known. Optional.
  std::function<CallerMemory(const ModelInfo&)> caller_memory = {};
  // Of the computation. f32 (= auto): weights as stored, f32 arithmetic. bf16: FFN weights and inputs rounded to bf16,
  // faster on CPUs with AVX512-BF16; logits within 2e-2.
  std::string dtype = "auto";
  std::string kv_dtype = "auto";  // f32 (= auto), bf16: half the memory per token, or int8: about a quarter
  // auto (= cpu), or emulated[:link=4GB/s,threads=1]: a device of the CPU's own threads, with memory and links of its
  // own, for trying schedules that need one.
  std::string device = "auto";
  uint64_t device_memory_bytes = 0;  // bound on everything allocated on the device
  int threads = 0;                   // of the host; 0: all usable CPUs, but those of an emulated device
  int64_t batch_size = 0;            // sequences at once; 0: as many as the budget allows, at most 64
  int64_t context_length = 0;        // longest prompt + answer; 0: the model's own, at most 8192
  // StreamingLLM: every token sees the first attention_sinks tokens and at least the last attention_window, in whole KV
  // pages; the KV cache keeps no others. Answers differ from full attention's once a sequence is longer. 0: off.
  int64_t attention_window = 0;
  int64_t attention_sinks = 4;
  int64_t prefill_chunk = 0;  // rows of prompt per step; 0: as many as the budget allows, at most 256
  bool decodes = true;        // false: prompts are scored, nothing is generated (a hint for schedule auto)
  // Prompt and answer of a request, as far as they are known: what the KV cache holds for each place of the batch.
  int64_t planned_positions = 0;  // 0: 256
  Policy policy = {};
  // Files that are written while the engine runs; empty: none.
  std::string trace_path = {};       // Chrome trace JSON of every task (opens in Perfetto)
  std::string trace_html_path = {};  // a page that shows the last of them
  std::string routing_path = {};     // which experts each row chose, for simulations; must not exist yet
  // There also how routers rated the experts, and what the gates of the next layers would have chosen: for comparing
  // evictions and predictors.
  bool routing_scores = false;
  std::string correlation_path = {};  // what klotski has learnt about which experts follow each other
  bool direct_io = true;  // O_DIRECT reads of experts; falls back to buffered reads where the file system refuses
  bool io_uring = true;   // io_uring; falls back to reading threads where the kernel refuses
};

// Where every byte of a device's budget goes.
struct DevicePlan {
  std::string name = {};  // "emulated", "cuda:0"; empty: there is no device
  uint64_t budget_bytes = 0;
  uint64_t fixed_bytes = 0;  // buffers of fixed size
  uint64_t dense_bytes = 0;
  uint64_t kv_bytes = 0;  // the KV cache, or what is staged of it
  uint64_t activation_bytes = 0;
  uint64_t expert_bytes = 0;
  int64_t num_expert_slots = 0;
  int64_t num_pinned_experts = 0;
  bool holds_kv_cache = false;
  bool host_computes_experts = false;  // some of them, beside the device
};

// Where every byte of the budget goes.
struct MemoryPlan {
  uint64_t budget_bytes = 0;
  uint64_t fixed_bytes = 0;  // tokenizer, catalogue, buffers of fixed size, what the caller reserved
  uint64_t dense_bytes = 0;  // attention, router, norms, embeddings
  uint64_t kv_bytes = 0;     // of the KV cache, in DRAM unless the device holds it
  uint64_t activation_bytes = 0;
  uint64_t expert_bytes = 0;  // expert slots
  int64_t num_expert_slots = 0;
  int64_t num_pinned_experts = 0;  // of the slots; the others stream
  int64_t num_experts_total = 0;
  int64_t batch_size = 0;
  int64_t context_length = 0;
  int64_t prefill_chunk = 0;
  int64_t micro_batch_size = 0;  // sequences; 0: all
  std::string schedule = {};
  std::string eviction = {};
  DevicePlan device = {};  // whose layers' weights and experts then lie there, too
};

struct LaneStats {
  std::string name;   // "host_compute", "disk_to_dram"; with a device "device_compute", "dram_to_device", ...
  double busy_s = 0;  // while generating
};

struct ProcessorWork {
  uint64_t memory_bytes = 0;  // that computing read or wrote in its memory: weights and KV
  double flops = 0;           // multiplications and additions
};

struct EngineStats {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  double load_s = 0;
  double prefill_s = 0;  // steps are split by the share of their rows
  double decode_s = 0;
  uint64_t disk_bytes = 0;         // expert bytes read from disk while generating
  uint64_t unused_disk_bytes = 0;  // of these: read ahead and not wanted
  uint64_t dram_to_device_bytes = 0;
  uint64_t device_to_dram_bytes = 0;
  ProcessorWork work;       // of the processor that computes the layers
  ProcessorWork host_work;  // beside a device
  int64_t expert_hits = 0;  // experts found in the layers' processor's memory when wanted
  int64_t expert_misses = 0;
  int64_t prefetch_issued = 0;  // experts read because they were predicted
  int64_t prefetch_used = 0;    // of these: wanted before they left
  std::vector<LaneStats> lanes;
};

struct ProcessorRates {
  double memory_bytes_per_s = 0;
  double ops_per_s = 0;  // in the arithmetic of the FFNs
};

// What this machine can do at most, all threads together; 0 where it was not asked.
struct MachineRates {
  double disk_bytes_per_s = 0;
  double link_bytes_per_s = 0;  // to a device
  ProcessorRates compute = {};  // where the layers are computed
  ProcessorRates host = {};     // beside a device
};

class Engine {
 public:
  // Refuses before anything is loaded when the budget is too small (with the arithmetic).
  static absl::StatusOr<std::unique_ptr<Engine>> Open(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const ModelInfo& model() const = 0;
  virtual const MemoryPlan& memory_plan() const = 0;
  virtual const EngineStats& stats() const = 0;
  // Sampling that the model's generation_config.json asks for; requests start from it.
  virtual const SamplingParams& default_sampling() const = 0;

  // Text of a user: never yields special tokens except the BOS that the model's tokenizer adds.
  virtual absl::StatusOr<std::vector<TokenId>> Tokenize(std::string_view text) const = 0;
  // Renders the folder's chat template with a generation prompt, and returns the prompt's tokens.
  virtual absl::StatusOr<std::vector<TokenId>> TokenizeChat(const Chat& chat) const = 0;
  // The completion of a chat's prompt by its parts: of models that write in channels (gpt-oss), what they write in
  // each; of others its text.
  virtual ChatAnswer ReadAnswer(const Completion& completion) const { return {.content = completion.text}; }
  // The bytes that a token adds to a text, which may be a part of a character; a text's first token may lose a space.
  virtual std::string TokenBytes(TokenId id, bool begins_text) const = 0;

  // Checks the request against the model and admits it to a free place, or queues it. kInput errors leave the engine as
  // it was.
  virtual absl::StatusOr<RequestId> Submit(Request request) = 0;
  // Called with each piece of text as it becomes final (streaming); optional.
  virtual void SetTextSink(std::function<void(RequestId, std::string_view)> sink) = 0;

  virtual int64_t num_running() const = 0;  // with a place in the batch
  virtual int64_t num_waiting() const = 0;  // submitted, without a place or KV pages yet
  bool idle() const { return num_running() == 0 && num_waiting() == 0; }

  // Admits waiting requests to free places, does one pass over the model (prompt chunks and one decode token for each
  // running sequence), and returns the requests that finished or failed. An error is not one request's: it leaves the
  // engine unusable.
  virtual absl::StatusOr<std::vector<Completion>> Step() = 0;

  // Log-probability of each token of `ids` but the first, given those before it: ids.size() - 1 values (for
  // perplexity). REQUIRES: idle(), 2 <= ids.size() <= context_length.
  virtual absl::StatusOr<std::vector<double>> ScoreTokens(std::span<const TokenId> ids) = 0;
  // Measures the machine, with the engine's own threads, reads and memory; about two seconds. REQUIRES: idle().
  virtual MachineRates MeasureRates() { return {}; }
  // Ends what trace_path, trace_html_path, routing_path and correlation_path asked for; kIo when it could not be
  // written. To be called once, when the engine is done.
  virtual absl::Status CloseTraces() { return absl::OkStatus(); }
  // Logits [ids.size(), vocab_size] after each token (for tests and tools). REQUIRES: idle().
  virtual absl::StatusOr<std::vector<float>> Logits(std::span<const TokenId> ids) = 0;
};

// The exit code that the command line gives for this status: 0 done, 1 a fault of ours, 2 bad usage, 3 the model is
// invalid, 4 the input is invalid, 5 I/O failed, 6 the budget or the machine does not suffice, 7 stopped and resumable.
int ExitCodeOf(const absl::Status& status);

}  // namespace penstock
