#include "penstock/job/input/request_line.h"

#include <algorithm>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/limits.h"
#include "penstock/base/text.h"
#include "penstock/chat/answer/answer_format.h"
#include "penstock/job/input/field_names.h"

namespace penstock {
namespace {

constexpr std::string_view kCompletionsUrl = "/v1/completions";
constexpr std::string_view kChatUrl = "/v1/chat/completions";

constexpr std::string_view kIdFields[] = {"custom_id", "id", "question_id"};

// Reads the id from the first of three fields that the line has. An error leaves the id absent, so that nobody relies
// on it.
void ReadId(const json::object& object, int64_t number, RequestLine& line) {
  FieldReader fields(object, "");
  for (const std::string_view name : kIdFields) {
    const json::value* value = fields.Find(name);
    if (value == nullptr) continue;
    if (value->is_string()) {
      const std::string_view text = View(value->get_string());
      if (text.empty() || text.size() > kMaxRequestIdBytes) {
        fields.Fail("invalid_id", name,
                    fmt::format("expected 1 to {} bytes, found {}", kMaxRequestIdBytes, text.size()));
        break;
      }
      line.id = std::string(text);
      return;
    }
    if (value->is_int64() || value->is_uint64()) {
      line.id = std::string(json::serialize(*value));
      return;
    }
    fields.Fail("invalid_id", name, fmt::format("expected a string or an integer, found {}", JsonTypeName(*value)));
    break;
  }
  if (fields.error().has_value()) {
    line.error = fields.error();
  } else {
    line.id = fmt::format("line-{}", number);
  }
}

void ReadPrompt(FieldReader& fields, JobRequest& request) {
  request.kind = RequestKind::kCompletion;
  const json::value* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Fail("invalid_request", "prompt", "is missing");
  if (prompt->is_string()) {
    request.prompt = std::string(View(prompt->get_string()));
    return;  // an empty text still has the BOS that many tokenizers add
  }
  if (!prompt->is_array()) {
    return fields.Fail("invalid_request", "prompt",
                       fmt::format("expected a string or a list of token ids, found {}", JsonTypeName(*prompt)));
  }
  const json::array& items = prompt->get_array();
  if (items.empty()) return fields.Fail("invalid_request", "prompt", "is empty; expected at least one token");
  if (items[0].is_string() || items[0].is_array()) {
    return fields.Fail("unsupported", "prompt", "a list of prompts is not supported; give each prompt its own line");
  }
  request.prompt_ids = fields.TokenIds("prompt", items.size()).value_or(std::vector<TokenId>());
}

// If there is a fault, makes it the error of the line.
void Refuse(FieldReader& fields, const std::optional<ChatFault>& fault) {
  if (fault.has_value()) fields.Fail("invalid_request", fault->place, fault->message);
}

void ReadMessages(FieldReader& fields, JobRequest& request) {
  request.kind = RequestKind::kChat;
  const json::value* messages = fields.Find("messages");
  if (messages == nullptr) return fields.Fail("invalid_request", "messages", "is missing");
  Refuse(fields, ReadChatMessages(*messages, request.chat.messages));
}

// Returns the name in a tool_choice, "" if it has none.
std::string NamedTool(const json::object& choice) {
  const json::value* function = choice.if_contains("function");
  if (function == nullptr || !function->is_object()) return {};
  return std::string(StringOf(function->get_object(), "name"));
}

void ReadTools(FieldReader& fields, JobRequest& request) {
  const json::value* choice = fields.Find("tool_choice");
  const std::string_view word = choice != nullptr && choice->is_string() ? View(choice->get_string()) : "";
  const bool is_free = choice == nullptr || word == "auto" || word == "none";
  const json::value* tools = fields.Find("tools");
  if (tools == nullptr || *tools == json::value(json::array())) {
    if (!is_free)
      fields.Fail("invalid_request", "tool_choice", "there are no tools to call; give tools or leave it out");
    return;
  }
  if (const std::optional<ChatFault> fault = CheckChatTools(*tools); fault.has_value()) return Refuse(fields, fault);
  const json::array& list = tools->get_array();
  for (const json::value& tool : list) {
    const std::string_view type = StringOf(tool.get_object(), "type");
    if (type.empty() || type == "function") continue;
    return fields.Fail("unsupported", "tools", fmt::format("tools of type \"{}\" are not supported", Excerpt(type)));
  }
  request.rule.has_one_call = !fields.Bool("parallel_tool_calls").value_or(true);
  if (word == "none") return;
  request.chat.tools = *tools;
  if (is_free) return;
  request.rule.must_call = true;
  if (word == "required") return;
  const std::string name = choice->is_object() ? NamedTool(choice->get_object()) : "";
  if (name.empty()) {
    return fields.Fail(
        "invalid_request", "tool_choice",
        "expected \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}");
  }
  const auto has_name = [&](const json::value& tool) {
    const json::object* function = FunctionOf(tool);
    return function != nullptr && StringOf(*function, "name") == name;
  };
  if (!std::ranges::any_of(list, has_name)) {
    return fields.Fail("invalid_request", "tool_choice", fmt::format("there is no tool {}", Excerpt(Printable(name))));
  }
  request.rule.tool = name;
  request.rule.has_one_call = true;
}

// Returns whether only Penstock may set this variable of a template.
bool IsReservedVariable(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "messages",      "tools",    "documents",   "add_generation_prompt", "continue_final_message",
      "chat_template", "tokenize", "current_time"};
  return name.ends_with("_token") || std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

void ReadTemplateVariables(FieldReader& fields, json::object& variables) {
  const json::value* extra = fields.Find("chat_template_kwargs");
  if (extra == nullptr) return;
  if (!extra->is_object()) {
    return fields.Fail("invalid_request", "chat_template_kwargs",
                       fmt::format("expected an object, found {}", JsonTypeName(*extra)));
  }
  for (const auto& [key, value] : extra->get_object()) {
    const std::string_view name(key.data(), key.size());
    if (IsReservedVariable(name)) {
      return fields.Fail("unsupported", "chat_template_kwargs", fmt::format("\"{}\" cannot be set here", name));
    }
    variables[key] = value;
  }
}

// Reads the template's variables besides the messages.
void ReadTemplateFields(FieldReader& fields, JobRequest& request) {
  json::object& variables = request.chat.variables;
  if (const std::optional<std::string> effort = fields.Text("reasoning_effort"); effort.has_value()) {
    variables["reasoning_effort"] = *effort;
  }
  ReadTemplateVariables(fields, variables);
  if (const json::value* documents = fields.Find("documents"); documents != nullptr) {
    Refuse(fields, CheckChatDocuments(*documents));
    variables["documents"] = *documents;
  }
}

// Reads whether the answer continues the last message.
void ReadContinuation(FieldReader& fields, JobRequest& request) {
  constexpr std::string_view kName = "continue_final_message";
  request.chat.continues_last = fields.Bool(kName).value_or(false);
  const bool begins = fields.Bool("add_generation_prompt").value_or(!request.chat.continues_last);
  if (begins == request.chat.continues_last) {
    return begins ? fields.Fail("invalid_request", kName, "add_generation_prompt begins a new message; leave it out")
                  : fields.Fail("unsupported", "add_generation_prompt", "every chat is answered; leave it out");
  }
  if (!request.chat.continues_last) return;
  if (request.kind != RequestKind::kChat) return fields.Fail("unsupported", kName, "turns have none; give messages");
  const json::object* last = request.chat.messages.empty() ? nullptr : request.chat.messages.back().if_object();
  if (last == nullptr || StringOf(*last, "role") != "assistant" || last->contains("tool_calls")) {
    fields.Fail("invalid_request", kName, "expected a last message of the assistant that calls no tools");
  }
  if (request.rule.must_call) {
    fields.Fail("unsupported", kName, "an answer that must call a tool has no text; leave tool_choice out");
  }
}

// Refuses fields of chats: a prompt that is plain text uses no template.
void RefuseChatFields(FieldReader& fields) {
  for (const std::string_view name :
       {"tools", "chat_template_kwargs", "reasoning_effort", "documents", "system", "continue_final_message"}) {
    const json::value* value = fields.Find(name);
    if (value == nullptr || *value == json::value(false) || (value->is_array() && value->get_array().empty())) continue;
    if (value->is_object() && value->get_object().empty()) continue;
    fields.Fail("unsupported", name, "only chats support it; give messages or leave it out");
  }
}

// Reads a system message that stands beside the messages or turns.
void ReadSystem(FieldReader& fields, JobRequest& request) {
  request.system = fields.Text("system");
  if (request.system.has_value() && HasSystemMessage(request.chat.messages)) {
    fields.Fail("invalid_request", "system", "the messages have a system message, too; leave one of the two out");
  }
}

void ReadTurns(FieldReader& fields, JobRequest& request) {
  request.kind = RequestKind::kTurns;
  const json::value* turns = fields.Find("turns");
  if (!turns->is_array() || turns->get_array().empty()) {
    return fields.Fail("invalid_request", "turns", "expected a list of at least one question");
  }
  for (const json::value& turn : turns->get_array()) {
    if (!turn.is_string() || turn.get_string().empty()) {
      return fields.Fail("invalid_request", "turns", "expected questions that are strings and not empty");
    }
    request.turns.emplace_back(View(turn.get_string()));
  }
}

void ReadNumAnswers(FieldReader& fields, JobRequest& request) {
  request.num_answers = fields.Integer("n", 1, kMaxAnswers).value_or(1);
  if (fields.Integer("best_of", 1, kMaxAnswers).value_or(request.num_answers) != request.num_answers) {
    fields.Fail("unsupported", "best_of", "only the value of n is supported; leave it out");
  }
  if (request.num_answers > 1 && request.kind == RequestKind::kTurns) {
    fields.Fail("unsupported", "n", "turns have one answer each; leave it out, or give each conversation its own line");
  }
  if (request.num_answers > 1 && fields.Find("prompt_logprobs") != nullptr) {
    fields.Fail("unsupported", "n", "several answers have no prompt_logprobs; leave one of the two out");
  }
  if (fields.Bool("stream").value_or(false))
    fields.Fail("unsupported", "stream", "a batch has no streams; leave it out");
}

// Reads the fields that show the prompt with the answer. REQUIRES: the sampling fields have been read.
void ReadPromptFields(FieldReader& fields, JobRequest& request) {
  SamplingOverrides& sampling = request.sampling;
  request.shown_prompt_logprobs = sampling.prompt_logprobs.value_or(-1);
  if (request.shown_prompt_logprobs >= 0 && request.kind == RequestKind::kTurns) {
    fields.Fail("unsupported", "prompt_logprobs", "turns have several prompts; leave it out");
  }
  request.echoes_prompt = fields.Bool("echo").value_or(false);
  if (!request.echoes_prompt) return;
  if (request.kind != RequestKind::kCompletion) {
    fields.Fail("unsupported", "echo", "only completions support it; leave it out");
  }
  if (request.num_answers > 1 && sampling.max_tokens == 0) {
    fields.Fail("unsupported", "n", "a prompt that is only scored has no answers; leave it out");
  }
  // The log-probabilities of an echo are those of the prompt and of the answer.
  const int logprobs = sampling.logprobs.value_or(-1);
  if (logprobs >= 0 || sampling.max_tokens == 0) {
    sampling.prompt_logprobs = std::max({sampling.prompt_logprobs.value_or(0), logprobs, 0});
  }
}

// Reads the choice that is right: its index, or its text with or without the spaces around it.
void ReadLabel(FieldReader& fields, JobRequest& request) {
  const json::value* label = fields.Find("label");
  if (label == nullptr) return;
  const auto num_choices = std::ssize(request.choices);
  if (!label->is_string()) {
    request.label = fields.Integer("label", 0, num_choices - 1);
    return;
  }
  const std::string_view text = View(label->get_string());
  const auto find = [&](const auto& is_same) {
    for (int64_t i = 0; i < num_choices && !request.label.has_value(); ++i) {
      if (!request.choices[i].text.empty() && is_same(request.choices[i].text)) request.label = i;
    }
  };
  find([&](std::string_view choice) { return choice == text; });
  const auto trimmed = [](std::string_view any) { return WithoutLeadingSpace(WithoutTrailingSpace(any)); };
  find([&](std::string_view choice) { return trimmed(choice) == trimmed(text); });
  if (!request.label.has_value()) {
    fields.Fail("invalid_request", "label", "expected one of the choices, or its index from 0");
  }
}

// Reads the texts that are scored.
void ReadChoices(FieldReader& fields, JobRequest& request) {
  const json::value* choices = fields.Find("choices");
  if (choices == nullptr) return;
  const json::array* list = choices->if_array();
  if (list == nullptr || list->empty() || list->size() > kMaxChoices) {
    return fields.Fail("invalid_request", "choices",
                       fmt::format("expected a list of 1 to {} texts or lists of token ids", kMaxChoices));
  }
  for (const json::value& choice : *list) {
    ScoredText scored;
    if (choice.is_string()) {
      scored.text = View(choice.get_string());
    } else {
      scored.ids = fields.TokenIds("choices", choice, kMaxContext).value_or(std::vector<TokenId>());
    }
    if (scored.text.empty() && scored.ids.empty()) {
      return fields.Fail("invalid_request", "choices", "expected texts or lists of token ids, none of them empty");
    }
    request.choices.push_back(std::move(scored));
  }
  if (request.kind == RequestKind::kTurns) {
    fields.Fail("unsupported", "choices", "turns have none; give messages");
  }
  const auto refuse = [&](std::string_view name, bool is_given) {
    if (is_given) fields.Fail("unsupported", name, "a prompt with choices is only scored; leave one of the two out");
  };
  refuse("n", fields.Integer("n", 1, kMaxAnswers).value_or(1) > 1);
  refuse("echo", fields.Bool("echo").value_or(false));
  refuse("prompt_logprobs", fields.Find("prompt_logprobs") != nullptr);
  ReadLabel(fields, request);
}

// Reads the texts that an answer must not contain.
void ReadBadWords(FieldReader& fields, JobRequest& request) {
  const json::value* words = fields.Find("bad_words");
  if (words == nullptr) return;
  const json::array* list = words->if_array();
  if (list == nullptr || list->size() > kMaxBadWords) {
    return fields.Fail("invalid_request", "bad_words",
                       fmt::format("expected a list of at most {} texts", kMaxBadWords));
  }
  for (const json::value& word : *list) {
    if (!word.is_string() || !IsStopText(View(word.get_string()))) {
      return fields.Fail("invalid_request", "bad_words",
                         fmt::format("expected texts of 1 to {} bytes, found {}", kMaxStopTextBytes,
                                     word.is_string() ? "another" : JsonTypeName(word)));
    }
    request.bad_words.emplace_back(View(word.get_string()));
  }
}

// Names the fields that nothing has read. ReadId() has read ids.
void AddIgnored(const FieldReader& fields, RequestLine& line) {
  for (std::string& name : fields.Unread()) {
    if (std::ranges::find(kIdFields, name) == std::end(kIdFields)) line.ignored.push_back(std::move(name));
  }
}

// Reads a request's own fields, which are the same in a batch line's body and in a plain line.
std::optional<LineError> ReadRequest(FieldReader& fields, RequestKind kind, RequestLine& line) {
  if (kind == RequestKind::kCompletion) {
    ReadPrompt(fields, line.request);
    RefuseChatFields(fields);
  } else {
    kind == RequestKind::kTurns ? ReadTurns(fields, line.request) : ReadMessages(fields, line.request);
    ReadSystem(fields, line.request);
    ReadTools(fields, line.request);
    ReadTemplateFields(fields, line.request);
    ReadContinuation(fields, line.request);
  }
  ReadChoices(fields, line.request);
  line.request.format = ReadFormatFields(fields);
  if (line.request.format.has_value() && line.request.chat.continues_last) {
    fields.Fail("unsupported", line.request.format->field,
                "a format is that of a whole message; leave it or continue_final_message out");
  }
  if (line.request.format.has_value() && !line.request.choices.empty()) {
    fields.Fail("unsupported", line.request.format->field,
                "a prompt with choices is only scored; leave one of the two out");
  }
  ReadNumAnswers(fields, line.request);
  ReadBadWords(fields, line.request);
  RefuseUnsupported(fields);
  line.request.sampling = ReadSamplingFields(fields);
  ReadPromptFields(fields, line.request);
  AddIgnored(fields, line);
  return fields.error();
}

std::optional<LineError> ReadBatchLine(const json::object& object, RequestLine& line) {
  FieldReader outer(object, "");
  const std::string method = outer.Text("method").value_or("POST");
  const std::string url = outer.Text("url").value_or("");
  if (method != "POST") outer.Fail("invalid_request", "method", fmt::format("expected \"POST\", found \"{}\"", method));
  if (url != kChatUrl && url != kCompletionsUrl) {
    const std::string found = outer.Find("url") == nullptr ? "none" : fmt::format("\"{}\"", url);
    outer.Fail("invalid_request", "url", fmt::format("expected {} or {}, found {}", kChatUrl, kCompletionsUrl, found));
  }
  const json::value* body = outer.Find("body");
  if (body == nullptr || !body->is_object()) outer.Fail("invalid_request", "body", "expected an object");
  for (const std::string& name : outer.Unread()) {
    const bool is_id = std::ranges::find(kIdFields, name) != std::end(kIdFields);
    if (!is_id && IsRequestField(name)) outer.Fail("unsupported", name, "stands beside \"body\"; put it there");
  }
  if (outer.error().has_value()) return outer.error();

  RequestLine inner =
      ParseRequestBody(body->get_object(), url == kChatUrl ? RequestKind::kChat : RequestKind::kCompletion, "body.");
  line.model = std::move(inner.model);
  line.request = std::move(inner.request);
  line.ignored = std::move(inner.ignored);
  AddIgnored(outer, line);
  return std::move(inner.error);
}

// The fields of which a plain line has one.
constexpr std::string_view kForms[] = {"prompt", "messages", "turns"};

// Returns "none", with the field that is nearly one of kForms.
std::string NoForm(const json::object& object) {
  for (const auto& [key, value] : object) {
    const std::string_view name(key.data(), key.size());
    constexpr size_t kMaxBytes = 64;
    if (name.size() > kMaxBytes) continue;
    for (const std::string_view form : kForms) {
      if (EditDistance(name, form) == 1) return fmt::format("none; did you mean {} for {}?", form, Printable(name));
    }
  }
  return "none";
}

std::optional<LineError> ReadPlainLine(const json::object& object, RequestLine& line) {
  FieldReader fields(object, "");
  const int64_t num_forms =
      std::ranges::count_if(kForms, [&fields](std::string_view name) { return fields.Find(name) != nullptr; });
  if (num_forms != 1) {
    return LineError{
        "invalid_request",
        fmt::format("expected one of \"prompt\", \"messages\", \"turns\" (or \"url\" and \"body\"), found {}",
                    num_forms == 0 ? NoForm(object) : "several"),
        ""};
  }
  if (fields.Find("prompt") != nullptr) return ReadRequest(fields, RequestKind::kCompletion, line);
  const bool has_turns = fields.Find("turns") != nullptr;
  return ReadRequest(fields, has_turns ? RequestKind::kTurns : RequestKind::kChat, line);
}

}  // namespace

std::span<const JobTaskTraits> JobTasks() {
  static constexpr JobTaskTraits kTasks[] = {
      {JobTask::kAnswer, "answer", "generates answers, and scores the choices of requests that have some"},
      {JobTask::kClassify, "classify", "scores the choices of all requests, and writes the best one"},
  };
  return kTasks;
}

RequestLine ParseRequestBody(const json::object& body, RequestKind kind, std::string_view prefix) {
  RequestLine line;
  FieldReader fields(body, prefix);
  line.model = fields.Text("model").value_or("");
  line.error = ReadRequest(fields, kind, line);
  return line;
}

bool HasSystemMessage(const json::array& messages) {
  return std::ranges::any_of(messages, [](const json::value& message) {
    const json::value* role = message.is_object() ? message.get_object().if_contains("role") : nullptr;
    return role != nullptr && role->is_string() &&
           (role->get_string() == "system" || role->get_string() == "developer");
  });
}

RequestLine ParseRequestLine(std::string_view text, int64_t number) {
  RequestLine line;
  const absl::StatusOr<json::value> value = ParseJson(text, Fault::kInput);
  if (!value.ok()) {
    std::string message = Message(value.status());
    if (const size_t at = FindInvalidUtf8(text); at != std::string_view::npos) {
      message = fmt::format("column {}: not UTF-8 (byte {:#04x}); iconv -t UTF-8 -f ENCODING converts files", at + 1,
                            static_cast<unsigned char>(text[at]));
    }
    const size_t first = text.find_first_not_of(" \t");
    const bool is_cut = message.find("incomplete JSON") != std::string::npos;
    if (number == 1 && is_cut && first != std::string_view::npos && (text[first] == '[' || text[first] == '{')) {
      message += fmt::format("; each line holds a whole request (jq -c {} FILE writes such lines)",
                             text[first] == '[' ? "'.[]'" : ".");
    }
    // A request is one line, so only the column is useful.
    if (constexpr std::string_view kPlace = "line 1, "; message.starts_with(kPlace)) message.erase(0, kPlace.size());
    line.error = LineError{"invalid_json", std::move(message), ""};
    return line;
  }
  if (!value->is_object()) {
    line.error = LineError{"invalid_request",
                           fmt::format("expected a JSON object, found {}{}", JsonTypeName(*value),
                                       value->is_array() ? "; jq -c '.[]' FILE writes one line for each request" : ""),
                           ""};
    return line;
  }
  const json::object& object = value->get_object();
  ReadId(object, number, line);
  if (line.error.has_value()) return line;
  const bool batch = object.contains("body") || object.contains("url");
  line.error = batch ? ReadBatchLine(object, line) : ReadPlainLine(object, line);
  return line;
}

RequestLine TooLongLine(uint64_t num_bytes) {
  RequestLine line;
  line.error = LineError{"line_too_long",
                         fmt::format("the line has {}, more than the limit of {}", FormatBytes(num_bytes),
                                     FormatBytes(kMaxRequestLineBytes)),
                         ""};
  return line;
}

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace penstock
