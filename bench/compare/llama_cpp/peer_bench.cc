// Measures llama.cpp or ik_llama.cpp (with -DPEER_IK) on the CPU through its public API. The model is resident in
// memory or, with --mmap, read from the mapped file as needed.
//
// Unlike in benchmarks that feed one token to all sequences, every sequence has its own random tokens. So the rows of a
// batch choose their experts independently, as in real requests. There are three modes:
//   prefill and decode rates as JSON lines (compare.py lists the flags that it passes);
//   --job REQUESTS --job-batch N --prompt-tokens P --new-tokens G: a batch job of random prompts, answered greedily,
//   as one JSON line;
//   --greedy N --prompt IDS: the log-probabilities of N greedily chosen tokens, to compare models.
// compare.py compiles this file against a build tree of the library; it is not part of the project's own build.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "llama.h"

namespace {

// Differences between the two libraries.
#ifdef PEER_IK
constexpr const char* kLibrary = "ik_llama.cpp";
void FreeModel(llama_model* model) { llama_free_model(model); }
void ForgetAll(llama_context* context) { llama_kv_cache_clear(context); }
size_t StateSize(llama_context* context, llama_seq_id id) { return llama_state_seq_get_size(context, id, 0); }
size_t SaveState(llama_context* context, std::vector<uint8_t>& state, llama_seq_id id) {
  return llama_state_seq_get_data(context, state.data(), state.size(), id, 0);
}
size_t LoadState(llama_context* context, const std::vector<uint8_t>& state, llama_seq_id id) {
  return llama_state_seq_set_data(context, state.data(), state.size(), id, 0);
}
#else
constexpr const char* kLibrary = "llama.cpp";
void FreeModel(llama_model* model) { llama_model_free(model); }
void ForgetAll(llama_context* context) { llama_memory_clear(llama_get_memory(context), true); }
size_t StateSize(llama_context* context, llama_seq_id id) { return llama_state_seq_get_size(context, id); }
size_t SaveState(llama_context* context, std::vector<uint8_t>& state, llama_seq_id id) {
  return llama_state_seq_get_data(context, state.data(), state.size(), id);
}
size_t LoadState(llama_context* context, const std::vector<uint8_t>& state, llama_seq_id id) {
  return llama_state_seq_set_data(context, state.data(), state.size(), id);
}
#endif

struct Options {
  std::string model;
  int threads = 2;
  std::vector<int> prefill;  // tokens
  std::vector<int> decode;   // sequences
  int context = 128;         // tokens of each sequence before the measured ones
  int prompts = 4;           // different prompts that the sequences of a decode measurement continue
  int steps = 32;            // maximum of decode steps
  int warmup = 2;            // decode steps before the measured ones
  int seconds = 10;          // a measurement starts no step or repetition after this
  int repetitions = 3;       // maximum for a prefill
  int ubatch = 512;          // rows that the library computes at once
  bool repack = false;       // ik_llama.cpp: interleave the rows of the weights while loading
  bool no_repack = false;    // llama.cpp: do not repack the weights, which it does by default
  bool merge = false;        // ik_llama.cpp: merge q, k and v, and gate and up
  bool mmap = false;         // compute from the mapped file; llama.cpp repacks nothing then
  bool prefetch = false;     // ik_llama.cpp with --mmap: own threads fault chosen experts in; loading skips them
  std::string kv = "f16";    // or q8_0
  int batch = 2048;          // rows of one call (--job)
  int job = 0;               // requests
  int job_batch = 64;        // sequences that decode together
  int prompt_tokens = 256;   // of each request
  int new_tokens = 32;       // of each request
  int greedy = 0;
  std::vector<int> prompt;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "peer_bench: %s\n", message.c_str());
  std::exit(1);
}

std::vector<int> ParseList(const std::string& text) {
  std::vector<int> values;
  const char* at = text.c_str();
  while (*at != '\0') {
    char* end = nullptr;
    const long value = std::strtol(at, &end, 10);
    if (end == at || value < 0 || value > 1'000'000'000 || (*end != ',' && *end != '\0'))
      Fail("not a list of numbers: " + text);
    values.push_back(static_cast<int>(value));
    at = *end == ',' ? end + 1 : end;
  }
  return values;
}

int ParseNumber(const std::string& text) {
  const std::vector<int> values = ParseList(text);
  if (values.size() != 1) Fail("not a number: " + text);
  return values[0];
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  const std::map<std::string, bool*> switches = {{"--repack", &options.repack},
                                                 {"--no-repack", &options.no_repack},
                                                 {"--merge", &options.merge},
                                                 {"--mmap", &options.mmap},
                                                 {"--prefetch", &options.prefetch}};
  const std::map<std::string, std::string*> texts = {{"--model", &options.model}, {"--kv", &options.kv}};
  const std::map<std::string, std::vector<int>*> lists = {
      {"--prefill", &options.prefill}, {"--decode", &options.decode}, {"--prompt", &options.prompt}};
  const std::map<std::string, int*> numbers = {{"--threads", &options.threads},
                                               {"--context", &options.context},
                                               {"--prompts", &options.prompts},
                                               {"--steps", &options.steps},
                                               {"--warmup", &options.warmup},
                                               {"--seconds", &options.seconds},
                                               {"--repetitions", &options.repetitions},
                                               {"--ubatch", &options.ubatch},
                                               {"--batch", &options.batch},
                                               {"--job", &options.job},
                                               {"--job-batch", &options.job_batch},
                                               {"--prompt-tokens", &options.prompt_tokens},
                                               {"--new-tokens", &options.new_tokens},
                                               {"--greedy", &options.greedy}};
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (const auto known = switches.find(flag); known != switches.end()) {
      *known->second = true;
      continue;
    }
    if (++i == argc) Fail(flag + " needs a value");
    const std::string value = argv[i];
    if (const auto text = texts.find(flag); text != texts.end()) {
      *text->second = value;
    } else if (const auto list = lists.find(flag); list != lists.end()) {
      *list->second = ParseList(value);
    } else if (const auto number = numbers.find(flag); number != numbers.end()) {
      *number->second = ParseNumber(value);
    } else {
      Fail("unknown flag " + flag);
    }
  }
  if (options.model.empty()) Fail("--model is needed");
  if (options.threads < 1 || options.context < 1 || options.prompts < 1 || options.steps < 1 ||
      options.repetitions < 1 || options.ubatch < 1 || options.batch < 1 || options.job_batch < 1 ||
      options.prompt_tokens < 1 || options.new_tokens < 1) {
    Fail("numbers must be positive");
  }
  if (options.kv != "f16" && options.kv != "q8_0") Fail("--kv is f16 or q8_0, not " + options.kv);
  if (options.mmap && options.repack) Fail("--repack rewrites the weights and does not work with --mmap");
  if (options.prefetch && !options.mmap) Fail("--prefetch needs --mmap");
#ifdef PEER_IK
  if (options.no_repack) Fail("--no-repack is for llama.cpp");
#else
  if (options.repack || options.merge || options.prefetch)
    Fail("--repack, --merge and --prefetch are for ik_llama.cpp");
#endif
  return options;
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Returns the bytes of this process that are not backed by a file.
int64_t AnonymousBytes() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  char line[256];
  long long kib = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr && std::sscanf(line, "RssAnon: %lld kB", &kib) != 1) {
  }
  std::fclose(file);
  return int64_t{kib} * 1024;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string JsonList(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) {
    char number[32];
    std::snprintf(number, sizeof(number), "%s%.6g", text.size() > 1 ? ", " : "", value);
    text += number;
  }
  return text + "]";
}

// A batch with room for `capacity` rows.
class Batch {
 public:
  explicit Batch(int capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  int size() const { return batch_.n_tokens; }
  void Clear() { batch_.n_tokens = 0; }
  void Add(llama_token token, int pos, llama_seq_id id, bool logits) {
    const int row = batch_.n_tokens++;
    batch_.token[row] = token;
    batch_.pos[row] = pos;
    batch_.n_seq_id[row] = 1;
    batch_.seq_id[row][0] = id;
    batch_.logits[row] = logits ? 1 : 0;
  }
  void Run(llama_context* context) {
    if (const int code = llama_decode(context, batch_); code != 0)
      Fail("llama_decode returned " + std::to_string(code));
    llama_synchronize(context);
  }
  // Calls visit(row, sequence) for the rows whose logits were requested.
  template <typename Visit>
  void ForEachLogits(Visit visit) const {
    for (int row = 0; row < batch_.n_tokens; ++row) {
      if (batch_.logits[row] != 0) visit(row, batch_.seq_id[row][0]);
    }
  }

 private:
  llama_batch batch_;
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
#ifdef PEER_IK
    params.use_mmap = options_.mmap;
    params.defer_experts = options_.prefetch;
    params.repack_tensors = options_.repack;
    params.merge_qkv = options_.merge;
    params.merge_up_gate_exps = options_.merge;
#else
    params.load_mode = options_.mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
    params.use_extra_bufts = !options_.no_repack && !options_.mmap;  // repacked weights are copies in memory
#endif
    const double start = Now();
    model_ = llama_model_load_from_file(options_.model.c_str(), params);
    if (model_ == nullptr) Fail(options_.model + ": the library cannot load it");
    if (const int64_t copied = AnonymousBytes();
        options_.mmap &&
        copied > (int64_t{64} << 20) + static_cast<int64_t>(std::filesystem::file_size(options_.model) / 8)) {
      Fail("--mmap: the library has copied " + std::to_string(copied >> 20) + " MiB of weights into memory");
    }
    vocab_size_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    char description[128] = "";
    llama_model_desc(model_, description, sizeof(description));
    std::printf(
        "{\"kind\": \"engine\", \"library\": \"%s\", \"model\": \"%s\", \"load_seconds\": %.1f, \"system\": \"%s\"}\n",
        kLibrary, description, Now() - start, llama_print_system_info());
    std::fflush(stdout);
  }
  ~Bench() { FreeModel(model_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // Measures one prompt in one call, with logits only for its last token. Each repetition has its own tokens.
  void Prefill(int tokens) {
    llama_context* context = NewContext(/*sequences=*/1, tokens, tokens);
    Batch batch(tokens);
    FillPrompt(batch, std::min(tokens, 32), 0);
    batch.Run(context);  // excludes the library's set-up at its first call
    std::vector<double> seconds;
    const double start = Now();
    while (static_cast<int>(seconds.size()) < options_.repetitions &&
           (seconds.empty() || Now() - start < options_.seconds)) {
      ForgetAll(context);
      batch.Clear();
      FillPrompt(batch, tokens, 0);
      const double before = Now();
      batch.Run(context);
      seconds.push_back(Now() - before);
    }
    llama_free(context);
    std::printf("{\"kind\": \"prefill\", \"tokens\": %d, \"tokens_per_second\": %.3f, \"seconds\": %s}\n", tokens,
                tokens / Median(seconds), JsonList(seconds).c_str());
    std::fflush(stdout);
  }

  // Measures steps of one new token for each of `sequences`, each of which has options.context tokens before. The
  // sequences continue a few different prompts; their KV is copied, which makes no difference to attention. The new
  // tokens differ.
  void Decode(int sequences) {
    const int first_rows = std::max(sequences, options_.context);
    llama_context* context = NewContext(sequences, options_.context + options_.warmup + options_.steps, first_rows);
    ComputePrompts(context, sequences);
    Batch batch(sequences);
    std::vector<double> seconds;
    double start = 0;
    for (int step = -options_.warmup; step < options_.steps; ++step) {
      if (step == 0) start = Now();
      if (step > 2 && Now() - start > options_.seconds) break;
      batch.Clear();
      for (int id = 0; id < sequences; ++id)
        batch.Add(RandomToken(), options_.context + options_.warmup + step, id, /*logits=*/true);
      const double before = Now();
      batch.Run(context);
      if (step >= 0) seconds.push_back(Now() - before);
    }
    llama_free(context);
    std::printf(
        "{\"kind\": \"decode\", \"sequences\": %d, \"context\": %d, \"steps\": %zu, \"tokens_per_second\": %.3f, "
        "\"seconds\": %s}\n",
        sequences, options_.context, seconds.size(), sequences / Median(seconds), JsonList(seconds).c_str());
    std::fflush(stdout);
  }

  // Runs requests in groups of options.job_batch: first the prompts of a group (as many rows as fit into a call,
  // options.ubatch of them at once), then steps of one token for each of its sequences. All requests are equally long,
  // so refilling places would not keep more sequences decoding.
  void Job() {
    const int max = std::min(options_.job, options_.job_batch);
    const int rows = std::max(options_.batch, max);
    llama_context* context = NewContext(max, options_.prompt_tokens + options_.new_tokens, rows);
    Batch batch(rows);
    std::vector<llama_token> last(max);  // of each sequence of the group
    const auto run = [&] {
      batch.Run(context);
      batch.ForEachLogits([&](int row, llama_seq_id id) {
        const float* logits = llama_get_logits_ith(context, row);
        last[id] = static_cast<llama_token>(std::max_element(logits, logits + vocab_size_) - logits);
      });
      batch.Clear();
    };
    double prefill_seconds = 0;
    double decode_seconds = 0;
    for (int done = 0; done < options_.job; done += max) {
      const int sequences = std::min(max, options_.job - done);
      ForgetAll(context);
      const double start = Now();
      for (int id = 0; id < sequences; ++id) {
        for (int pos = 0; pos < options_.prompt_tokens; ++pos) {
          if (batch.size() == options_.batch) run();
          batch.Add(RandomToken(), pos, id, pos + 1 == options_.prompt_tokens);
        }
      }
      run();
      const double middle = Now();
      for (int step = 1; step < options_.new_tokens; ++step) {
        for (int id = 0; id < sequences; ++id) {
          batch.Add(last[id], options_.prompt_tokens + step - 1, id, /*logits=*/true);
        }
        run();
      }
      prefill_seconds += middle - start;
      decode_seconds += Now() - middle;
    }
    llama_free(context);
    std::printf(
        "{\"kind\": \"phases\", \"sequences\": %d, \"requests\": %d, \"prefill_seconds\": %.3f, \"decode_seconds\": "
        "%.3f}\n",
        max, options_.job, prefill_seconds, decode_seconds);
    std::fflush(stdout);
  }

  // Continues the prompt with the likeliest tokens, and prints them with the natural logarithms of their probabilities.
  void Greedy() {
    const int prompt_size = static_cast<int>(options_.prompt.size());
    if (prompt_size == 0) Fail("--greedy needs --prompt");
    llama_context* context = NewContext(1, prompt_size + options_.greedy, prompt_size);
    Batch batch(prompt_size);
    for (int pos = 0; pos < prompt_size; ++pos) {
      if (options_.prompt[pos] >= vocab_size_)
        Fail("--prompt: token " + std::to_string(options_.prompt[pos]) + " is not in the vocabulary");
      batch.Add(options_.prompt[pos], pos, 0, pos + 1 == prompt_size);
    }
    std::vector<double> tokens;
    std::vector<double> logprobs;
    while (true) {
      batch.Run(context);
      const float* logits = llama_get_logits_ith(context, -1);
      const float* best = std::max_element(logits, logits + vocab_size_);
      double sum = 0;
      for (int i = 0; i < vocab_size_; ++i) sum += std::exp(static_cast<double>(logits[i]) - *best);
      tokens.push_back(static_cast<double>(best - logits));
      logprobs.push_back(-std::log(sum));
      if (static_cast<int>(tokens.size()) >= options_.greedy) break;
      batch.Clear();
      batch.Add(static_cast<llama_token>(best - logits), prompt_size + static_cast<int>(tokens.size()) - 1, 0, true);
    }
    llama_free(context);
    std::printf("{\"kind\": \"greedy\", \"tokens\": %s, \"logprobs\": %s}\n", JsonList(tokens).c_str(),
                JsonList(logprobs).c_str());
  }

 private:
  llama_token RandomToken() {
    return static_cast<llama_token>(std::uniform_int_distribution<int>(0, vocab_size_ - 1)(random_));
  }

  void FillPrompt(Batch& batch, int tokens, llama_seq_id id) {
    for (int pos = 0; pos < tokens; ++pos) batch.Add(RandomToken(), pos, id, pos + 1 == tokens);
  }

  // Makes a context whose KV cache has `length` tokens for each sequence, rounded up to 256 as the libraries require.
  // llama.cpp rounds each sequence; ik_llama.cpp, whose sequences share one cache, rounds the sum.
  llama_context* NewContext(int sequences, int length, int max_rows) {
    llama_context_params params = llama_context_default_params();
    params.n_batch = static_cast<uint32_t>(max_rows);
    params.n_ubatch = static_cast<uint32_t>(std::min(max_rows, options_.ubatch));
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.n_threads = options_.threads;
    params.n_threads_batch = options_.threads;
    params.type_k = params.type_v = options_.kv == "f16" ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
#ifdef PEER_IK
    params.n_ctx = static_cast<uint32_t>((sequences * length + 255) / 256 * 256);
    params.flash_attn = true;
    params.prefetch_experts = options_.prefetch;
#else
    params.n_ctx = static_cast<uint32_t>(sequences * ((length + 255) / 256 * 256));
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.kv_unified = false;
#endif
    llama_context* context = llama_init_from_model(model_, params);
    if (context == nullptr) Fail("the library cannot make a context of " + std::to_string(params.n_ctx) + " tokens");
    return context;
  }

  // Fills the KV cache of the sequences: the first options.prompts ones by computing prompts, the others with copies of
  // them. Saved states are real copies; the libraries' own way to copy a sequence may share its cells.
  void ComputePrompts(llama_context* context, int sequences) {
    const int prompts = std::min(sequences, options_.prompts);
    Batch batch(options_.context);
    std::vector<std::vector<uint8_t>> states;
    for (int id = 0; id < prompts; ++id) {
      batch.Clear();
      FillPrompt(batch, options_.context, id);
      batch.Run(context);
      states.emplace_back(StateSize(context, id));
      states.back().resize(SaveState(context, states.back(), id));
      if (states.back().empty()) Fail("the library cannot save the state of a sequence");
    }
    for (int id = prompts; id < sequences; ++id) {
      if (LoadState(context, states[id % prompts], id) == 0) Fail("the library cannot load the state of a sequence");
    }
  }

  Options options_;
  llama_model* model_ = nullptr;
  int vocab_size_ = 0;
  std::mt19937 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  // The libraries' log is only for debugging: PEER_BENCH_VERBOSE=1 shows it.
  if (std::getenv("PEER_BENCH_VERBOSE") == nullptr) {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
  }
  llama_backend_init();
  {
    Bench bench(options);
    if (options.greedy > 0) bench.Greedy();
    for (const int tokens : options.prefill) bench.Prefill(tokens);
    for (const int sequences : options.decode) bench.Decode(sequences);
    if (options.job > 0) bench.Job();
  }
  llama_backend_free();
  return 0;
}
