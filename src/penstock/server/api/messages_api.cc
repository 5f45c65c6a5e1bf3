#include "penstock/server/api/messages_api.h"

#include <algorithm>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/server/api/answer_blocks.h"
#include "penstock/server/api/openai_writers.h"

namespace penstock::server {
namespace {

std::string_view TypeOf(const json::object& block) {
  const json::value* type = block.if_contains("type");
  return type != nullptr && type->is_string() ? View(type->get_string()) : std::string_view();
}

// Returns a field that must be a text; "" with an error otherwise.
std::string TextOf(FieldReader& fields, std::string_view name) {
  std::optional<std::string> text = fields.Text(name);
  if (!text.has_value()) fields.Fail("invalid_request", name, "is missing");
  return text.value_or("");
}

// Converts messages, and keeps the first error.
class MessageConverter {
 public:
  explicit MessageConverter(FieldReader& fields) : fields_(fields) {}

  void AddSystem(const json::value& system) {
    const std::string text = JoinedText(system, "system");
    if (!text.empty()) messages_.push_back(json::object{{"role", "system"}, {"content", text}});
  }

  void AddMessages(const json::value& messages) {
    if (!messages.is_array()) return Fail("messages", "expected a list of messages");
    for (const json::value& message : messages.get_array()) {
      if (!message.is_object()) return Fail("messages", "expected objects");
      const json::object& object = message.get_object();
      FieldReader reader(object, "messages.");
      const std::string role = TextOf(reader, "role");
      if (reader.error().has_value()) return Fail("messages", reader.error()->message);
      const json::value* content = object.if_contains("content");
      if (content == nullptr) return Fail("messages", "a message has no content");
      if (role == "user") {
        AddUser(*content);
      } else if (role == "assistant") {
        AddAssistant(*content);
      } else if (role == "system") {
        AddSystem(*content);
      } else {
        return Fail("messages",
                    fmt::format("a message has the role \"{}\"; expected user or assistant", Excerpt(role)));
      }
    }
  }

  // Whether the last message is the beginning of the answer.
  bool EndsWithAnswer() const { return !messages_.empty() && messages_.back().at("role") == "assistant"; }

  json::array TakeMessages() { return std::move(messages_); }

 private:
  void Fail(std::string_view name, std::string message) { fields_.Fail("invalid_request", name, std::move(message)); }
  void FailBlock(std::string_view type) {
    fields_.Fail("unsupported", "messages", fmt::format("content of type \"{}\" is not supported", Excerpt(type)));
  }

  // Returns the texts of a content, which is a text or a list of texts.
  std::string JoinedText(const json::value& content, std::string_view name) {
    if (content.is_string()) return std::string(View(content.get_string()));
    std::string joined;
    ForEachBlock(content, name, [&](std::string_view type, const json::object& block) {
      if (type != "text") return FailBlock(type);
      FieldReader reader(block, "");
      joined += (joined.empty() ? "" : "\n") + TextOf(reader, "text");
    });
    return joined;
  }

  template <typename Visit>
  void ForEachBlock(const json::value& content, std::string_view name, const Visit& visit) {
    if (!content.is_array()) return Fail(name, "expected a text or a list of content blocks");
    for (const json::value& block : content.get_array()) {
      if (!block.is_object()) return Fail(name, "expected content blocks that are objects");
      visit(TypeOf(block.get_object()), block.get_object());
    }
  }

  void AddUser(const json::value& content) {
    if (content.is_string()) {
      messages_.push_back(json::object{{"role", "user"}, {"content", content}});
      return;
    }
    json::array texts;
    ForEachBlock(content, "messages", [&](std::string_view type, const json::object& block) {
      FieldReader reader(block, "");
      if (type == "text") {
        texts.push_back(json::object{{"type", "text"}, {"text", TextOf(reader, "text")}});
      } else if (type == "tool_result") {
        const json::value* result = block.if_contains("content");
        messages_.push_back(json::object{{"role", "tool"},
                                         {"tool_call_id", TextOf(reader, "tool_use_id")},
                                         {"content", result == nullptr ? "" : JoinedText(*result, "messages")}});
      } else {
        FailBlock(type);
      }
      if (reader.error().has_value()) Fail("messages", reader.error()->message);
    });
    if (!texts.empty()) messages_.push_back(json::object{{"role", "user"}, {"content", std::move(texts)}});
  }

  void AddAssistant(const json::value& content) {
    json::object message = {{"role", "assistant"}, {"content", ""}};
    if (content.is_string()) {
      message["content"] = content;
      messages_.push_back(std::move(message));
      return;
    }
    std::string text, thinking;
    json::array calls;
    ForEachBlock(content, "messages", [&](std::string_view type, const json::object& block) {
      FieldReader reader(block, "");
      if (type == "text") {
        text += TextOf(reader, "text");
      } else if (type == "thinking") {
        thinking += TextOf(reader, "thinking");
      } else if (type == "tool_use") {
        const json::value* input = block.if_contains("input");
        calls.push_back(json::object{
            {"id", TextOf(reader, "id")},
            {"type", "function"},
            {"function", json::object{{"name", TextOf(reader, "name")},
                                      {"arguments", input == nullptr ? "{}" : std::string(json::serialize(*input))}}}});
      } else if (type != "redacted_thinking") {
        FailBlock(type);
      }
      if (reader.error().has_value()) Fail("messages", reader.error()->message);
    });
    message["content"] = text;
    if (!thinking.empty()) message["reasoning_content"] = thinking;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    messages_.push_back(std::move(message));
  }

  FieldReader& fields_;
  json::array messages_;
};

json::array ToolsOf(FieldReader& fields, const json::value& tools, std::string& ignored) {
  json::array converted;
  if (!tools.is_array()) {
    fields.Fail("invalid_request", "tools", "expected a list of tools");
    return converted;
  }
  for (const json::value& tool : tools.get_array()) {
    const json::object* object = tool.if_object();
    if (object == nullptr) {
      fields.Fail("invalid_request", "tools", "expected objects");
      continue;
    }
    const std::string_view type = TypeOf(*object);
    if (type.starts_with("web_search_") || type.starts_with("web_fetch_")) {
      AddIgnored(fmt::format("tools.{}", Printable(Excerpt(type))), ignored);
      continue;
    }
    if (!type.empty() && type != "custom") {
      fields.Fail("unsupported", "tools", fmt::format("tools of type \"{}\" are not supported", Excerpt(type)));
      continue;
    }
    FieldReader reader(*object, "");
    json::object function = {{"name", TextOf(reader, "name")}};
    if (reader.error().has_value()) fields.Fail("invalid_request", "tools", reader.error()->message);
    if (const json::value* text = reader.Find("description")) function["description"] = *text;
    if (const json::value* strict = reader.Find("strict")) function["strict"] = *strict;
    const json::value* schema = reader.Find("input_schema");
    function["parameters"] = schema == nullptr ? json::value(json::object{{"type", "object"}}) : *schema;
    converted.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  }
  return converted;
}

void AddToolChoice(FieldReader& fields, const json::value& choice, json::object& chat) {
  const json::object* object = choice.if_object();
  const std::string_view type = object == nullptr ? std::string_view() : TypeOf(*object);
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = json::string(type);
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool") {
    FieldReader reader(*object, "");
    chat["tool_choice"] =
        json::object{{"type", "function"}, {"function", json::object{{"name", TextOf(reader, "name")}}}};
  } else {
    return fields.Fail("invalid_request", "tool_choice", "expected an object with type auto, any, tool or none");
  }
  FieldReader reader(*object, "tool_choice.");
  if (reader.Bool("disable_parallel_tool_use").value_or(false)) chat["parallel_tool_calls"] = false;
}

void AddThinking(FieldReader& fields, const json::value& thinking, json::object& chat, std::string& ignored) {
  const std::string_view type = thinking.is_object() ? TypeOf(thinking.get_object()) : std::string_view();
  if (type == "adaptive") return;
  if (type != "enabled" && type != "disabled") {
    return fields.Fail("invalid_request", "thinking", "expected an object with type enabled, disabled or adaptive");
  }
  if (thinking.get_object().contains("budget_tokens")) AddIgnored("thinking.budget_tokens", ignored);
  chat["chat_template_kwargs"] = json::object{{"enable_thinking", type == "enabled"}};
}

void AddFormat(FieldReader& fields, std::string_view name, const json::value& format, json::object& chat) {
  const json::object* object = format.if_object();
  const json::value* schema = object == nullptr ? nullptr : object->if_contains("schema");
  if (schema == nullptr || TypeOf(*object) != "json_schema") {
    return fields.Fail("invalid_request", name, "expected an object with type json_schema and a schema");
  }
  chat["response_format"] = json::object{{"type", "json_schema"}, {"json_schema", json::object{{"schema", *schema}}}};
}

void AddOutputConfig(FieldReader& fields, const json::value& config, json::object& chat, std::string& ignored) {
  if (!config.is_object()) return fields.Fail("invalid_request", "output_config", "expected an object");
  FieldReader inner(config.get_object(), "output_config.");
  if (const json::value* format = inner.Find("format")) AddFormat(fields, "output_config", *format, chat);
  if (const std::optional<std::string> effort = inner.Text("effort")) chat["reasoning_effort"] = *effort;
  if (inner.error().has_value()) fields.Fail("invalid_request", "output_config", inner.error()->message);
  for (const std::string& name : inner.Unread()) AddIgnored("output_config." + Printable(Excerpt(name)), ignored);
}

// The fields of /v1/messages that mean the same under another or the same name.
constexpr std::pair<std::string_view, std::string_view> kSameFields[] = {
    {"model", "model"}, {"max_tokens", "max_tokens"}, {"temperature", "temperature"},
    {"top_p", "top_p"}, {"top_k", "top_k"},           {"stop_sequences", "stop"},
    {"seed", "seed"}};

class MessagesWriter : public AnswerWriter {
 public:
  MessagesWriter(std::string id, std::string model, int64_t request_number, int64_t num_prompt_tokens)
      : id_(std::move(id)),
        model_(std::move(model)),
        request_number_(request_number),
        num_prompt_tokens_(num_prompt_tokens),
        blocks_({.begin = [this](size_t index, const AnswerBlock& block) { BeginBlock(index, block); },
                 .grow = [this](size_t index, const AnswerBlock& block,
                                const std::string& text) { GrowBlock(index, block, text); },
                 .end =
                     [this](size_t index, const AnswerBlock&) {
                       Append("content_block_stop", {{"index", index}});
                     }}) {}

  ApiStyle style() const override { return ApiStyle::kAnthropic; }
  std::string_view Ping() const override { return "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }

  std::string Body(std::span<const RequestResult> results, int64_t num_shared_tokens) override {
    const ResultChoice& choice = results[0].choices[0];
    json::array content;
    for (const AnswerBlock& block : BlocksOf(choice.answer)) content.push_back(WholeBlock(block));
    json::object message = Message();
    message["content"] = std::move(content);
    AddStop(choice, message);
    message["usage"] = Usage(num_shared_tokens, results[0].completion_tokens);
    return JsonText(message);
  }

  void Begin(std::string& out) override {
    out_ = &out;
    json::object message = Message();
    message["content"] = json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = Usage(0, 0);
    Append("message_start", {{"message", std::move(message)}});
  }
  void Add(size_t, const AnswerGain& gain, std::string& out) override {
    out_ = &out;
    blocks_.Add(gain.deltas);
  }
  void EndChoice(size_t, const ResultChoice& choice, std::string& out) override {
    out_ = &out;
    blocks_.Finish();
    AddStop(choice, stop_);
  }
  void End(std::span<const RequestResult> results, int64_t num_shared_tokens, std::string& out) override {
    out_ = &out;
    Append("message_delta", {{"delta", stop_}, {"usage", Usage(num_shared_tokens, results[0].completion_tokens)}});
    Append("message_stop", {});
  }
  void Fail(const ApiError& error, std::string& out) override {
    out += "event: error\ndata: " + JsonText(ErrorBody(error, style())) + "\n\n";
  }

 private:
  json::object Message() const {
    return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", ReplaceInvalidUtf8(model_)}};
  }
  json::object Usage(int64_t num_shared_tokens, int64_t num_output_tokens) const {
    return {{"input_tokens", num_prompt_tokens_ - num_shared_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", num_shared_tokens},
            {"output_tokens", num_output_tokens}};
  }
  static void AddStop(const ResultChoice& choice, json::object& message) {
    const std::string_view finish = FinishName(choice);
    const bool by_text = finish == "stop" && !choice.completion.stop_text.empty();
    message["stop_reason"] = finish == "length"       ? "max_tokens"
                             : finish == "tool_calls" ? "tool_use"
                             : by_text                ? "stop_sequence"
                                                      : "end_turn";
    message["stop_sequence"] = by_text ? json::value(ReplaceInvalidUtf8(choice.completion.stop_text)) : nullptr;
  }
  std::string IdOf(const AnswerBlock& block) const {
    return "toolu_" + CallId(request_number_, 0, static_cast<size_t>(block.call_idx));
  }

  json::object EmptyBlock(const AnswerBlock& block) const {
    switch (block.kind) {
      case BlockKind::kReasoning: return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
      case BlockKind::kCall:
        return {{"type", "tool_use"},
                {"id", IdOf(block)},
                {"name", ReplaceInvalidUtf8(block.name)},
                {"input", json::object()}};
      case BlockKind::kText: break;
    }
    return {{"type", "text"}, {"text", ""}};
  }
  json::object WholeBlock(const AnswerBlock& block) const {
    json::object whole = EmptyBlock(block);
    const std::string text = ReplaceInvalidUtf8(block.text);
    if (block.kind == BlockKind::kReasoning) whole["thinking"] = text;
    if (block.kind == BlockKind::kText) whole["text"] = text;
    if (block.kind != BlockKind::kCall) return whole;
    const absl::StatusOr<json::value> input = ParseJson(text, Fault::kModel);
    whole["input"] = input.ok() && input->is_object() ? *input : json::object{{"text", text}};
    return whole;
  }
  void BeginBlock(size_t index, const AnswerBlock& block) {
    Append("content_block_start", {{"index", index}, {"content_block", EmptyBlock(block)}});
  }
  void GrowBlock(size_t index, const AnswerBlock& block, const std::string& piece) {
    const std::string text = ReplaceInvalidUtf8(piece);
    const json::object delta =
        block.kind == BlockKind::kReasoning ? json::object{{"type", "thinking_delta"}, {"thinking", text}}
        : block.kind == BlockKind::kCall    ? json::object{{"type", "input_json_delta"}, {"partial_json", text}}
                                            : json::object{{"type", "text_delta"}, {"text", text}};
    Append("content_block_delta", {{"index", index}, {"delta", delta}});
  }
  void Append(std::string_view type, json::object fields) {
    json::object event = {{"type", json::string(type)}};
    for (auto& [key, value] : fields) event[key] = std::move(value);
    *out_ += fmt::format("event: {}\ndata: {}\n\n", type, JsonText(event));
  }

  std::string id_, model_;
  int64_t request_number_, num_prompt_tokens_;
  json::object stop_;
  std::string* out_ = nullptr;  // where the call under way appends
  BlockStream blocks_;
};

std::optional<ApiError> StartMessages(ApiServer& api, const std::shared_ptr<Exchange>& exchange) {
  const absl::StatusOr<json::object> body = ParseBody(exchange->request().body);
  if (!body.ok()) return ErrorOf(body.status());
  FieldReader fields(*body, "");
  if (fields.Find("max_tokens") == nullptr) fields.Fail("invalid_request", "max_tokens", "is missing");
  const bool is_stream = fields.Bool("stream").value_or(false);
  std::optional<LineError> error = fields.error();
  std::string ignored;
  const json::object chat = ChatOfMessages(*body, error, ignored);
  if (error.has_value()) return ErrorOf(*error);
  Answering::Args args{.exchange = exchange, .model_name = api.model_name(), .is_stream = is_stream};
  args.headers = IgnoredHeader(ignored);
  constexpr std::pair<std::string_view, std::string_view> kOwnNames[] = {{"stop", "stop_sequences"},
                                                                         {"reasoning_effort", "output_config.effort"},
                                                                         {"response_format", "output_config.format"}};
  if (const auto failed = api.MakeWork(chat, RequestKind::kChat, args.prompts)) return WithNames(*failed, kOwnNames);
  const int64_t num_prompt_tokens = std::ssize(args.prompts[0].engine_request.prompt_ids);
  const BodyHead head = api.NewHead();
  args.writer = std::make_unique<MessagesWriter>(fmt::format("msg_{:016x}", head.number), api.model_name(),
                                                 head.request_number, num_prompt_tokens);
  return api.Start(std::move(args));
}

std::optional<ApiError> CountTokens(ApiServer& api, Exchange& exchange) {
  const absl::StatusOr<json::object> body = ParseBody(exchange.request().body);
  if (!body.ok()) return ErrorOf(body.status());
  std::optional<LineError> error;
  std::string ignored;
  const json::object chat = ChatOfMessages(*body, error, ignored);
  if (error.has_value()) return ErrorOf(*error);
  std::vector<PromptWork> work;
  if (const auto failed = api.MakeWork(chat, RequestKind::kChat, work)) return failed;
  exchange.Respond({.body = JsonText(json::object{{"input_tokens", work[0].engine_request.prompt_ids.size()}})});
  return std::nullopt;
}

}  // namespace

json::object ChatOfMessages(const json::object& body, std::optional<LineError>& error, std::string& ignored) {
  FieldReader fields(body, "");
  json::object chat;
  for (const auto& [name, chat_name] : kSameFields) {
    if (const json::value* value = fields.Find(name)) chat[chat_name] = *value;
  }
  MessageConverter converter(fields);
  if (const json::value* system = fields.Find("system")) converter.AddSystem(*system);
  const json::value* messages = fields.Find("messages");
  if (messages == nullptr) fields.Fail("invalid_request", "messages", "is missing");
  if (messages != nullptr) converter.AddMessages(*messages);
  if (converter.EndsWithAnswer()) chat["continue_final_message"] = true;
  chat["messages"] = converter.TakeMessages();
  if (const json::value* tools = fields.Find("tools")) chat["tools"] = ToolsOf(fields, *tools, ignored);
  if (const json::value* choice = fields.Find("tool_choice")) AddToolChoice(fields, *choice, chat);
  if (const json::value* thinking = fields.Find("thinking")) AddThinking(fields, *thinking, chat, ignored);
  if (const json::value* format = fields.Find("output_format")) AddFormat(fields, "output_format", *format, chat);
  if (const json::value* config = fields.Find("output_config")) AddOutputConfig(fields, *config, chat, ignored);
  for (const std::string_view name : {"container", "mcp_servers"}) {
    if (fields.Find(name) != nullptr) fields.Fail("unsupported", name, "is not supported; leave it out");
  }
  if (fields.Find("context_management") != nullptr) AddIgnored("context_management", ignored);
  constexpr std::string_view kOwn[] = {"system",        "tools",          "tool_choice", "thinking",
                                       "output_format", "output_config",  "container",   "context_management",
                                       "metadata",      "stop_sequences", "stream",      "mcp_servers"};
  constexpr std::string_view kRefused[] = {"n", "logprobs", "top_logprobs", "prompt_logprobs"};
  CopyOtherFields(fields, body, kOwn, kRefused, chat);
  if (!error.has_value()) error = fields.error();
  return chat;
}

void AddMessagesRoutes(ApiServer& api) {
  api.AddRoute({.method = "POST",
                .path = "/v1/messages",
                .handler =
                    [&api](const std::shared_ptr<Exchange>& exchange) {
                      if (const auto error = StartMessages(api, exchange)) api.RespondError(*exchange, *error);
                    },
                .generates = true});
  api.AddRoute({.method = "POST",
                .path = "/v1/messages/count_tokens",
                .handler = [&api](const std::shared_ptr<Exchange>& exchange) {
                  if (const auto error = CountTokens(api, *exchange)) api.RespondError(*exchange, *error);
                }});
}

}  // namespace penstock::server
