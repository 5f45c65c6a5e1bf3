// The extension penstock._penstock: sessions and the command line, for the Python code of the package.
#include <unistd.h>

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "flags.h"
#include "penstock/base/clock.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/version.h"
#include "penstock/job/stats.h"
#include "penstock/memory/eviction.h"
#include "penstock/schedule/schedule.h"
#include "routing.h"
#include "session.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// Carries a status to Python, where it becomes an exception of penstock.errors.
class StatusError : public std::exception {
 public:
  explicit StatusError(const absl::Status& status) : code_(ExitCode(status)), message_(Message(status)) {}
  int code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  int code_;
  std::string message_;
};

void Check(const absl::Status& status) {
  if (!status.ok()) throw StatusError(status);
}

template <typename T>
T ValueOf(absl::StatusOr<T> result) {
  Check(result.status());
  return *std::move(result);
}

void RaiseStatusError(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const StatusError& status) {
    const nb::object make = nb::module_::import_("penstock.errors").attr("of_code");
    const nb::object exception = make(status.code(), status.what());
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
  }
}

nb::list IdList(const std::vector<TokenId>& ids) {
  nb::list list;
  for (const TokenId id : ids) list.append(id);
  return list;
}

// Bytes of tokens may be parts of characters.
nb::object TextOf(const std::string& bytes) {
  return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

// Returns (id, log-probability, text) of the token itself, and a list of the same for its alternatives.
nb::list LogprobList(const std::vector<TokenLogprobs>& tokens, const Engine& engine) {
  const auto tuple = [&engine](const TokenLogprob& token) {
    return nb::make_tuple(token.token_id, token.logprob, TextOf(engine.TokenBytes(token.token_id, false)));
  };
  nb::list list;
  for (const TokenLogprobs& token : tokens) {
    nb::list top;
    for (const TokenLogprob& other : token.top) top.append(tuple(other));
    list.append(nb::make_tuple(tuple(token.chosen), top));
  }
  return list;
}

nb::dict ChoiceDict(const ResultChoice& choice, const Result& result, const Engine& engine) {
  const Completion& completion = choice.completion;
  nb::dict dict;
  dict["token_ids"] = IdList(completion.token_ids);
  dict["text"] = TextOf(completion.text);
  dict["finish_reason"] = completion.finish_reason == FinishReason::kStop ? "stop" : "length";
  dict["stop_reason"] = completion.stop_text.empty() ? nb::none() : TextOf(completion.stop_text);
  dict["logprobs"] = LogprobList(completion.logprobs, engine);
  if (result.is_scored) {
    dict["score"] = nb::make_tuple(choice.score.logprob, choice.score.num_tokens, choice.score.is_greedy);
  }
  if (result.is_chat && !result.is_scored) {
    nb::list calls;
    for (const ToolCall& call : choice.answer.tool_calls) {
      calls.append(nb::make_tuple(TextOf(call.name), TextOf(call.arguments)));
    }
    dict["answer"] = nb::make_tuple(TextOf(choice.answer.content), TextOf(choice.answer.reasoning), calls);
  }
  return dict;
}

nb::dict ResultDict(const Result& result, const Engine& engine) {
  nb::dict dict;
  dict["ticket"] = result.ticket;
  if (!result.status.ok()) {
    dict["error"] = nb::make_tuple(ExitCode(result.status), Message(result.status));
    return dict;
  }
  dict["prompt_ids"] = IdList(result.prompt_ids);
  nb::list choices;
  for (const ResultChoice& choice : result.choices) choices.append(ChoiceDict(choice, result, engine));
  dict["choices"] = choices;
  dict["prompt_logprobs"] = LogprobList(result.choices[0].completion.prompt_logprobs, engine);
  return dict;
}

nb::dict PlanDict(const MemoryPlan& plan) {
  nb::dict dict;
  dict["budget_bytes"] = plan.budget_bytes;
  dict["fixed_bytes"] = plan.fixed_bytes;
  dict["dense_bytes"] = plan.dense_bytes;
  dict["kv_bytes"] = plan.kv_bytes;
  dict["activation_bytes"] = plan.activation_bytes;
  dict["expert_bytes"] = plan.expert_bytes;
  dict["num_expert_slots"] = plan.num_expert_slots;
  dict["num_pinned_experts"] = plan.num_pinned_experts;
  dict["num_experts_total"] = plan.num_experts_total;
  dict["batch_size"] = plan.batch_size;
  dict["context_length"] = plan.context_length;
  dict["prefill_chunk"] = plan.prefill_chunk;
  dict["schedule"] = std::string(TraitsOf(plan.schedule).name);
  dict["eviction"] = std::string(TraitsOf(plan.eviction).name);
  dict["device"] = plan.device.name.empty() ? "cpu" : plan.device.name;
  dict["device_bytes"] = plan.device.budget_bytes;
  return dict;
}

nb::dict ModelDict(const ModelInfo& model) {
  nb::dict dict;
  dict["name"] = TextOf(model.name);
  dict["family"] = model.family;
  dict["fingerprint"] = model.fingerprint;
  dict["dtype"] = model.dtype;
  dict["vocab_size"] = model.vocab_size;
  dict["context_length"] = model.context_length;
  dict["decoder_start_id"] = model.decoder_start_id.has_value() ? nb::cast(*model.decoder_start_id) : nb::none();
  return dict;
}

// Gives memory of C++ to Python without a copy.
template <typename T>
nb::object ArrayOf(std::vector<T> values, std::vector<size_t> shape) {
  auto* const kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* all) noexcept { delete static_cast<std::vector<T>*>(all); });
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), shape.size(), shape.data(), owner));
}

// A session as Python holds it. One thread at a time may call it, except for Wake(), Tokenize(), TokenizeChat() and
// Detokenize(), which may be called at any time.
class PySession {
 public:
  PySession(const std::vector<std::string>& flags, const std::string& date) : pid_(::getpid()) {
    const nb::gil_scoped_release release;
    session_ = ValueOf(Session::Open(ValueOf(ParseEngineFlags(flags)), date.empty() ? Today() : date));
  }
  ~PySession() {
    if (::getpid() != pid_) {
      (void)session_.release();  // the threads of the engine do not exist in a forked process, so leave it alone
      return;
    }
    const nb::gil_scoped_release release;  // large budgets take a while to free
    session_.reset();
  }
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;

  void Submit(Ticket ticket, const std::string& line, int64_t number, bool streams) {
    const nb::gil_scoped_release release;
    Check(session_->Submit(ticket, line, number, streams));
    ++num_requests_;
  }
  void GiveUp(Ticket ticket) { session_->GiveUp(ticket); }
  bool WantsMore() { return session_->WantsMore(); }
  bool IsIdle() const { return session_->idle(); }
  void Wake() { wake_ = true; }
  void ClearWake() { wake_ = false; }

  std::pair<nb::list, nb::list> Run() {
    const Events events = [this] {
      const nb::gil_scoped_release release;
      return ValueOf(session_->Run(wake_));
    }();
    nb::list results, pieces;
    for (const Result& result : events.results) results.append(ResultDict(result, session_->engine()));
    for (const Piece& piece : events.pieces) {
      pieces.append(nb::make_tuple(piece.ticket, piece.answer_idx, TextOf(piece.text), IdList(piece.token_ids)));
    }
    return {results, pieces};
  }

  std::vector<TokenId> Tokenize(const std::string& text, bool adds_special) const {
    const nb::gil_scoped_release release;
    const Engine& engine = session_->engine();
    return ValueOf(adds_special ? engine.Tokenize(text) : engine.TokenizePiece(text));
  }
  std::vector<TokenId> TokenizeChat(const std::string& messages, const std::string& tools,
                                    const std::string& variables) const {
    const nb::gil_scoped_release release;
    return ValueOf(session_->TokenizeChat(messages, tools, variables));
  }
  nb::object Detokenize(const std::vector<TokenId>& ids) const {
    std::string text;
    for (const TokenId id : ids) {
      if (id < 0 || id >= session_->engine().model().vocab_size) {
        Check(InputError("token id {}: expected 0 to {}", id, session_->engine().model().vocab_size - 1));
      }
      text += session_->engine().TokenBytes(id, text.empty());
    }
    return TextOf(text);
  }

  nb::object Logits(const std::vector<TokenId>& ids, int64_t num_encoded) {
    Engine& engine = session_->engine();
    std::vector<float> logits = [&] {
      const nb::gil_scoped_release release;
      return ValueOf(engine.Logits(ids, num_encoded));
    }();
    const auto vocab_size = static_cast<size_t>(engine.model().vocab_size);
    const size_t num_rows = logits.size() / vocab_size;
    return ArrayOf(std::move(logits), {num_rows, vocab_size});
  }

  nb::dict Model() const { return ModelDict(session_->engine().model()); }
  nb::dict Plan() const { return PlanDict(session_->engine().memory_plan()); }
  std::string DefaultSampling() const { return JsonText(ToJson(session_->engine().default_sampling())); }
  std::string Stats() const {
    const Engine& engine = session_->engine();
    JobNumbers numbers;
    numbers.num_requests = num_requests_;
    numbers.model = engine.model().name;
    numbers.engine = engine.stats();
    numbers.plan = engine.memory_plan();
    return FormatStats(numbers);
  }
  void CloseTraces() {
    const nb::gil_scoped_release release;
    Check(session_->engine().CloseTraces());
  }

 private:
  const pid_t pid_;
  std::unique_ptr<Session> session_;
  std::atomic<bool> wake_ = false;
  int64_t num_requests_ = 0;
};

// Returns (names and sizes, sequence ids [num_rows], positions [num_rows], experts [num_rows, num_layers, num_topk]).
nb::tuple ReadRoutingArrays(const std::string& path) {
  RoutingTable table = ValueOf(ReadRouting(path));
  nb::dict header;
  header["model"] = TextOf(table.header.model);
  header["num_experts"] = table.header.num_experts;
  const auto num_rows = table.positions.size();
  const auto num_layers = static_cast<size_t>(table.header.num_layers);
  const auto num_topk = static_cast<size_t>(table.header.num_topk);
  return nb::make_tuple(header, ArrayOf(std::move(table.sequence_ids), {num_rows}),
                        ArrayOf(std::move(table.positions), {num_rows}),
                        ArrayOf(std::move(table.experts), {num_rows, num_layers, num_topk}));
}

}  // namespace

NB_MODULE(_penstock, module) {
  module.doc() = "The compiled part of the package penstock; its Python code is the API.";
  nb::register_exception_translator(RaiseStatusError);
  Check(SetUpLogging("warning"));

  module.def("version", [] { return std::string(Version()); });
  module.def("set_log_level", [](const std::string& level) { Check(SetUpLogging(level)); });
  module.def("run_command_line", [](std::vector<std::string> arguments) {
    const nb::gil_scoped_release release;
    return RunCommandLine(std::move(arguments));
  });
  module.def("plan_json", [](const std::vector<std::string>& flags, bool is_of_session) {
    const nb::gil_scoped_release release;
    return ValueOf(PlanJsonOf(flags, is_of_session));
  });
  module.def("read_routing", &ReadRoutingArrays);

  nb::class_<PySession>(module, "Session")
      .def(nb::init<const std::vector<std::string>&, const std::string&>())
      .def("submit", &PySession::Submit)
      .def("give_up", &PySession::GiveUp)
      .def("wants_more", &PySession::WantsMore)
      .def("is_idle", &PySession::IsIdle)
      .def("wake", &PySession::Wake)
      .def("clear_wake", &PySession::ClearWake)
      .def("run", &PySession::Run)
      .def("tokenize", &PySession::Tokenize)
      .def("tokenize_chat", &PySession::TokenizeChat)
      .def("detokenize", &PySession::Detokenize)
      .def("logits", &PySession::Logits)
      .def("model", &PySession::Model)
      .def("memory_plan", &PySession::Plan)
      .def("default_sampling", &PySession::DefaultSampling)
      .def("stats", &PySession::Stats)
      .def("close_traces", &PySession::CloseTraces);
}

}  // namespace penstock::python
