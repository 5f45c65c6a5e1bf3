#include "penstock/job/prompt.h"

#include <utility>

#include "penstock/base/status.h"

namespace penstock {
namespace {

json::object Message(std::string_view role, std::string_view content) {
  return {{"role", json::string_view(role.data(), role.size())},
          {"content", json::string_view(content.data(), content.size())}};
}

// Returns the chat so far: every question with its answer, then the next question.
json::array ConversationSoFar(const std::vector<std::string>& turns, const std::vector<std::string>& answers) {
  json::array messages;
  for (size_t i = 0; i < answers.size(); ++i) {
    messages.push_back(Message("user", turns[i]));
    messages.push_back(Message("assistant", answers[i]));
  }
  messages.push_back(Message("user", turns[answers.size()]));
  return messages;
}

// Tokenizing takes many times a text's bytes of memory, so a prompt that cannot fit is refused first.
absl::Status CheckPromptBytes(const ModelInfo& model, uint64_t num_bytes) {
  if (model.max_prompt_bytes == 0 || num_bytes <= model.max_prompt_bytes) return absl::OkStatus();
  return InputError("the prompt has {} bytes, which cannot fit the context length of {} tokens (--context-length)",
                    num_bytes, model.context_length);
}

// Puts the system message that the request, or else the job, has before the messages.
void AddSystem(const PromptMaker& maker, const JobRequest& request, json::array& messages) {
  const std::optional<std::string>& system = request.system.has_value() ? request.system : maker.system;
  if (!system.has_value() || HasSystemMessage(messages)) return;
  messages.insert(messages.begin(), Message("system", *system));
}

}  // namespace

PromptMaker MakerOf(const Engine& engine, const std::optional<std::string>& system, const std::string& date) {
  return {.model = engine.model(),
          .tokenize = [&engine](std::string_view text) { return engine.Tokenize(text); },
          .tokenize_piece = [&engine](std::string_view text) { return engine.TokenizePiece(text); },
          .tokenize_chat = [&engine](const Chat& chat) { return engine.TokenizeChat(chat); },
          .system = system,
          .date = date};
}

absl::StatusOr<std::vector<TokenId>> PromptOf(const PromptMaker& maker, JobRequest& request,
                                              const std::vector<std::string>& answers, std::optional<Chat>* chat) {
  const auto tokenize = [&](ChatParts parts) {
    Chat made(std::move(parts));
    absl::StatusOr<std::vector<TokenId>> ids = maker.tokenize_chat(made);
    if (chat != nullptr) *chat = std::move(made);
    return ids;
  };
  switch (request.kind) {
    case RequestKind::kCompletion: {
      if (!request.prompt_ids.empty()) return request.prompt_ids;
      PENSTOCK_RETURN_IF_ERROR(CheckPromptBytes(maker.model, request.prompt.size()));
      return maker.tokenize(request.prompt);
    }
    case RequestKind::kChat: {
      AddSystem(maker, request, request.chat.messages);
      PENSTOCK_RETURN_IF_ERROR(CheckPromptBytes(maker.model, JsonBytes(request.chat.messages)));
      request.chat.date = maker.date;
      return tokenize(std::move(request.chat));
    }
    case RequestKind::kTurns: {
      // All turns are held until they are asked, so all of them must fit.
      uint64_t num_bytes = 0;
      for (const std::string& turn : request.turns) num_bytes += turn.size();
      PENSTOCK_RETURN_IF_ERROR(CheckPromptBytes(maker.model, num_bytes));
      ChatParts parts = request.chat;
      parts.messages = ConversationSoFar(request.turns, answers);
      parts.date = maker.date;
      AddSystem(maker, request, parts.messages);
      PENSTOCK_RETURN_IF_ERROR(CheckPromptBytes(maker.model, JsonBytes(parts.messages)));
      return tokenize(std::move(parts));
    }
  }
  return InputError("unknown kind of request");
}

absl::StatusOr<std::vector<std::vector<TokenId>>> BadWordsOf(const PromptMaker& maker,
                                                             const std::vector<std::string>& words) {
  std::vector<std::vector<TokenId>> all;
  for (const std::string& word : words) {
    // The word may begin a text, or follow a space.
    for (const std::string& text : {word, " " + word}) {
      PENSTOCK_ASSIGN_OR_RETURN(std::vector<TokenId> ids, maker.tokenize_piece(text));
      if (!ids.empty()) all.push_back(std::move(ids));
    }
  }
  return all;
}

}  // namespace penstock
