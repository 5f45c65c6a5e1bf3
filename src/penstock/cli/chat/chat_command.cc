#include <algorithm>
#include <memory>
#include <utility>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/chat/chat_parts.h"
#include "penstock/cli/chat/chat_history.h"
#include "penstock/cli/chat/chat_terminal.h"
#include "penstock/cli/commands.h"
#include "penstock/job/runner.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kHelp =
    "/help               this list\n"
    "/reset              forget all messages, but not the system message\n"
    "/system TEXT        set the system message; without TEXT: remove it\n"
    "/save FILE          write the chat as one line of JSON, which penstock run takes, too\n"
    "/load FILE          go on with the chat of such a file\n"
    "/set NAME VALUE     set a sampling parameter (temperature, top_p, max_tokens, seed ...) or a variable of the\n"
    "                    chat template (enable_thinking false)\n"
    "/retry              ask the last question again, with other random numbers\n"
    "/undo               forget the last question and its answer\n"
    "/stats              totals of this session\n"
    "/quit               end, as Ctrl-D does\n"
    "A line that ends in \\ goes on in the next one. A message between \"\"\" and \"\"\" may have many lines.\n"
    "Ctrl-C stops an answer; a second Ctrl-C ends.\n";

// Says what an engine did since `before`.
std::string StatsLine(const EngineStats& before, const EngineStats& now) {
  const auto speed = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  const int64_t generated = now.generated_tokens - before.generated_tokens;
  const int64_t prompt = now.prompt_tokens - before.prompt_tokens;
  const int64_t computed = now.computed_prompt_tokens - before.computed_prompt_tokens;
  const int64_t hits = now.expert_hits - before.expert_hits;
  const int64_t wanted = hits + now.expert_misses - before.expert_misses;
  return fmt::format(
      "{} tokens at {:.1f} tokens/s; prompt: {} tokens computed, {} reused; experts: {:.0f}% of {} were in memory; {} "
      "read "
      "from disk",
      generated, speed(generated, now.decode_s - before.decode_s), computed, prompt - computed,
      wanted > 0 ? 100.0 * static_cast<double>(hits) / static_cast<double>(wanted) : 100.0, wanted,
      FormatBytes(now.disk_bytes - before.disk_bytes));
}

class ChatSession {
 public:
  ChatSession(Engine& engine, const ChatFlags& flags)
      : engine_(engine),
        model_dir_(flags.model.engine.model_dir),
        sampling_(Overlay(engine.default_sampling(), flags.sampling)),
        date_(flags.date.empty() ? Today() : flags.date) {
    history_.SetSystem(flags.system);
  }

  // Answers a message. An error that is the message's own is told to the user, and the chat goes on without it.
  absl::Status Ask(const std::string& message) {
    if (!IsUtf8(message)) {
      LogWarning("the message is not UTF-8 (at byte {})", FindInvalidUtf8(message));
      return absl::OkStatus();
    }
    unanswered_.reset();
    history_.Add("user", message);
    absl::StatusOr<std::vector<TokenId>> prompt = PromptThatFits();
    if (!prompt.ok()) return GiveUp(prompt.status());
    return Answer(*std::move(prompt));
  }

  // Carries out a command. Returns false if the chat ends.
  absl::StatusOr<bool> Command(std::string_view line) {
    const size_t space = std::min(line.size(), line.find_first_of(" \n"));
    const std::string_view name = line.substr(0, space);
    const std::string argument(WithoutTrailingSpace(WithoutLeadingSpace(line.substr(space))));
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/retry") {
      PENSTOCK_RETURN_IF_ERROR(Retry());
      return true;
    }
    const absl::Status status = Change(name, argument);
    if (!status.ok()) LogWarning("{}", Message(status));
    return true;
  }

 private:
  Chat ChatNow() const {
    return Chat(ChatParts{.messages = history_.Messages(), .tools = nullptr, .variables = variables_, .date = date_});
  }

  // Returns the prompt of all messages. Leaves out the oldest turns if they do not fit, and says so.
  absl::StatusOr<std::vector<TokenId>> PromptThatFits() {
    const ModelInfo& model = engine_.model();
    const int64_t room = model.context_length - std::min(sampling_.max_tokens, model.context_length / 4);
    while (true) {
      const Chat chat = ChatNow();
      const uint64_t num_bytes = JsonBytes(chat.parts().messages);
      const bool may_fit = model.max_prompt_bytes == 0 || num_bytes <= model.max_prompt_bytes;
      std::string size = fmt::format("{} bytes", num_bytes);
      if (may_fit) {
        PENSTOCK_ASSIGN_OR_RETURN(std::vector<TokenId> ids, engine_.TokenizeChat(chat));
        if (std::ssize(ids) <= room) return ids;
        size = fmt::format("{} tokens", ids.size());
      }
      const std::optional<std::string> left_out = history_.RemoveOldestTurn();
      if (!left_out.has_value()) {
        return InputError("the message has {}, but a prompt may have {} tokens (--context-length)", size, room);
      }
      LogWarning("the chat has {}, but a prompt may have {} tokens (--context-length): the oldest turn is left out: {}",
                 size, room, Printable(Excerpt(*left_out, 60)));
    }
  }

  absl::Status GiveUp(const absl::Status& status) {
    unanswered_ = history_.RemoveLastTurn();
    if (FaultOf(status) != Fault::kInput && FaultOf(status) != Fault::kModel) return status;
    LogWarning("{}; the message is not kept", Message(status));
    return absl::OkStatus();
  }

  absl::Status Answer(std::vector<TokenId> prompt) {
    const EngineStats before = engine_.stats();
    const auto stream = engine_.NewAnswerStream(prompt, ChatNow(), {});
    AnswerDisplay display;
    ChatAnswer answer;
    absl::Status written;
    const auto take = [&](std::vector<AnswerDelta> deltas) {
      for (AnswerDelta& delta : deltas) {
        written.Update(display.Show(delta));
        AddDelta(std::move(delta), answer);
      }
    };
    engine_.SetPieceSink([&](const AnswerPiece& piece) { take(stream->Push(piece.token_ids, piece.text)); });
    SamplingParams sampling = sampling_;
    sampling.seed = RequestSeed(sampling.seed, num_answers_++);  // another answer each time
    absl::StatusOr<RequestId> id = engine_.Submit({.prompt_ids = std::move(prompt), .sampling = std::move(sampling)});
    if (!id.ok()) return GiveUp(id.status());
    Interrupts::SetBusy(true);
    absl::Status failed;
    while (!engine_.idle() && written.ok()) {
      if (Interrupts::Came()) engine_.Cancel(*id);
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Completion> finished, engine_.Step());
      for (const Completion& completion : finished) failed.Update(completion.status);
    }
    Interrupts::SetBusy(false);
    PENSTOCK_RETURN_IF_ERROR(written);
    take(stream->Finish());
    engine_.SetPieceSink({});
    PENSTOCK_RETURN_IF_ERROR(display.End());
    if (!failed.ok()) return GiveUp(failed);
    Keep(answer);
    LogInfo("{}", StatsLine(before, engine_.stats()));
    return absl::OkStatus();
  }

  void Keep(const ChatAnswer& answer) {
    if (!answer.content.empty()) {
      history_.Add("assistant", answer.content);
      return;
    }
    unanswered_ = history_.RemoveLastTurn();
    LogInfo("there is no answer, so the message is not kept; /retry asks it again");
  }

  absl::Status Retry() {
    const std::optional<std::string> question = unanswered_.has_value() ? unanswered_ : history_.RemoveLastTurn();
    if (question.has_value()) return Ask(*question);
    LogWarning("there is no question to ask again");
    return absl::OkStatus();
  }

  absl::Status Set(const std::string& argument) {
    const size_t space = argument.find(' ');
    if (space == std::string::npos) return InputError("expected /set NAME VALUE, such as /set temperature 0.7");
    const std::string name = argument.substr(0, space);
    const std::string text = argument.substr(space + 1);
    const absl::StatusOr<json::value> parsed = ParseJson(text, Fault::kInput);
    const json::object field = {{name, parsed.ok() ? *parsed : json::value(text)}};
    if (!ToJson(SamplingOverrides()).contains(name)) {
      variables_[name] = field.at(name);
      LogInfo("the chat template sees {} = {}", Printable(name), Printable(text));
      return absl::OkStatus();
    }
    FieldReader fields(field, "");
    const SamplingOverrides overrides = ReadSamplingFields(fields);
    if (fields.error().has_value()) return InputError("{}", fields.error()->message);
    sampling_ = Overlay(sampling_, overrides);
    return absl::OkStatus();
  }

  // Carries out a command that changes or shows something.
  absl::Status Change(std::string_view name, const std::string& argument) {
    if (name == "/help") return WriteFully(STDERR_FILENO, kHelp, "stderr");
    if (name == "/set") return Set(argument);
    if (name == "/reset") {
      history_.Clear();
      unanswered_.reset();
    } else if (name == "/system") {
      if (!IsUtf8(argument)) return InputError("the text is not UTF-8");
      history_.SetSystem(argument);
    } else if (name == "/undo") {
      if (!history_.RemoveLastTurn().has_value()) return InputError("there is nothing to undo");
    } else if (name == "/stats") {
      LogInfo("{}", StatsLine({}, engine_.stats()));
    } else if (name == "/save" || name == "/load") {
      if (argument.empty()) return InputError("expected {} FILE", name);
      if (name == "/save") PENSTOCK_RETURN_IF_ERROR(CheckNoFileOfTheModel(std::string(name), argument, model_dir_));
      PENSTOCK_RETURN_IF_ERROR(name == "/save" ? history_.Save(argument) : history_.Load(argument));
      LogInfo("{} messages", history_.num_messages());
    } else {
      return InputError("unknown command {}; /help lists them", Printable(name));
    }
    return absl::OkStatus();
  }

  Engine& engine_;
  std::string model_dir_;
  SamplingParams sampling_;
  json::object variables_;  // of the chat template
  std::string date_;
  ChatHistory history_;
  std::optional<std::string> unanswered_;  // the last question, if it is not in the history
  int64_t num_answers_ = 0;
};

absl::Status Converse(Engine& engine, const ChatFlags& flags) {
  const Interrupts interrupts;
  ChatSession session(engine, flags);
  MessageReader reader;
  std::string message;
  bool was_interrupted = false;
  while (true) {
    was_interrupted |= Interrupts::Take();
    PENSTOCK_ASSIGN_OR_RETURN(const MessageReader::Outcome outcome, reader.Next(message));
    if (outcome == MessageReader::Outcome::kEnd) return absl::OkStatus();
    if (outcome == MessageReader::Outcome::kInterrupted) {
      if (std::exchange(was_interrupted, Interrupts::Take())) return absl::OkStatus();
      LogInfo("Ctrl-C again, Ctrl-D or /quit ends the chat");
      continue;
    }
    was_interrupted = false;
    if (outcome == MessageReader::Outcome::kCommand) {
      PENSTOCK_ASSIGN_OR_RETURN(const bool goes_on, session.Command(message));
      if (!goes_on) return absl::OkStatus();
    } else if (!WithoutLeadingSpace(message).empty()) {
      PENSTOCK_RETURN_IF_ERROR(session.Ask(message));
    }
  }
}

}  // namespace

absl::StatusOr<int> ChatCommand(const ChatFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(flags.model));
  if (options.batch_size == 0) options.batch_size = 1;
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Open(options));
  PENSTOCK_RETURN_IF_ERROR(engine->chat_status());
  LogInfo("{}: type a message, or /help", engine->model().name);
  PENSTOCK_RETURN_IF_ERROR(Converse(*engine, flags));
  PENSTOCK_RETURN_IF_ERROR(engine->CloseTraces());
  return 0;
}

}  // namespace penstock::cli
