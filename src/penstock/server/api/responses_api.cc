#include "penstock/server/api/responses_api.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/job/result_logprobs.h"
#include "penstock/server/api/answer_blocks.h"
#include "penstock/server/api/openai_writers.h"

namespace penstock::server {
namespace {

std::string_view FieldText(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? View(value->get_string()) : std::string_view();
}

json::string Copied(std::string_view text) { return json::string(text.data(), text.size()); }

// Converts the items of an input, and keeps the first error.
class InputConverter {
 public:
  explicit InputConverter(FieldReader& fields) : fields_(fields) {}

  void AddText(std::string_view role, std::string_view text) {
    messages_.push_back(json::object{{"role", Copied(role)}, {"content", Copied(text)}});
  }

  void AddInput(const json::value& input) {
    if (input.is_string()) return AddText("user", View(input.get_string()));
    if (!input.is_array()) return Fail("invalid_request", "expected a text or a list of items");
    for (const json::value& item : input.get_array()) {
      if (!item.is_object()) return Fail("invalid_request", "expected items that are objects");
      AddItem(item.get_object());
    }
  }

  json::array TakeMessages() { return std::move(messages_); }

 private:
  void Fail(std::string_view code, std::string message) { fields_.Fail(code, "input", std::move(message)); }

  void AddItem(const json::object& item) {
    const std::string_view type = FieldText(item, "type");
    if (type == "message" || (type.empty() && item.contains("role"))) return AddMessage(item);
    if (type == "function_call") return AddCall(item);
    if (type == "function_call_output") {
      const json::value* output = item.if_contains("output");
      messages_.push_back(json::object{{"role", "tool"},
                                       {"tool_call_id", Copied(FieldText(item, "call_id"))},
                                       {"content", output == nullptr ? "" : JoinedText(*output)}});
      return;
    }
    if (type == "reasoning") {
      if (const json::value* content = item.if_contains("content"); content != nullptr && !content->is_null()) {
        reasoning_ += JoinedText(*content);
      }
      return;
    }
    Fail("unsupported", fmt::format("items of type \"{}\" are not supported", Excerpt(type)));
  }

  std::string JoinedText(const json::value& content) {
    if (content.is_string()) return std::string(View(content.get_string()));
    std::string joined;
    if (!content.is_array()) Fail("invalid_request", "expected a text or a list of content parts");
    for (const json::value& part : content.is_array() ? content.get_array() : json::array()) {
      const json::object* object = part.if_object();
      const std::string_view type = object == nullptr ? std::string_view() : FieldText(*object, "type");
      if (type != "input_text" && type != "output_text" && type != "reasoning_text" && type != "text") {
        Fail("unsupported", fmt::format("content of type \"{}\" is not supported", Excerpt(type)));
        continue;
      }
      joined += FieldText(*object, "text");
    }
    return joined;
  }

  // Returns an assistant's message, to which calls may be added.
  json::object& Assistant(bool continues) {
    const bool is_last = !messages_.empty() && FieldText(messages_.back().get_object(), "role") == "assistant";
    if (!continues || !is_last) messages_.push_back(json::object{{"role", "assistant"}, {"content", ""}});
    json::object& message = messages_.back().get_object();
    if (!reasoning_.empty()) message["reasoning_content"] = std::exchange(reasoning_, {});
    return message;
  }

  void AddMessage(const json::object& item) {
    const std::string_view role = FieldText(item, "role");
    const json::value* content = item.if_contains("content");
    if (role.empty() || content == nullptr) return Fail("invalid_request", "a message needs a role and a content");
    const std::string text = JoinedText(*content);
    if (role != "assistant") return AddText(role, text);
    Assistant(/*continues=*/false)["content"] = text;
  }

  void AddCall(const json::object& item) {
    json::value& calls = Assistant(/*continues=*/true)["tool_calls"];
    if (!calls.is_array()) calls = json::array();
    calls.get_array().push_back(
        json::object{{"id", Copied(FieldText(item, "call_id"))},
                     {"type", "function"},
                     {"function", json::object{{"name", Copied(FieldText(item, "name"))},
                                               {"arguments", Copied(FieldText(item, "arguments"))}}}});
  }

  FieldReader& fields_;
  json::array messages_;
  std::string reasoning_;  // of the assistant's next message
};

json::array FunctionsOf(FieldReader& fields, const json::value& tools, std::string& ignored) {
  json::array converted;
  if (!tools.is_array()) fields.Fail("invalid_request", "tools", "expected a list of tools");
  for (const json::value& tool : tools.is_array() ? tools.get_array() : json::array()) {
    const json::object* object = tool.if_object();
    const std::string_view type = object == nullptr ? std::string_view() : FieldText(*object, "type");
    if (type.starts_with("web_search") || type == "image_generation") {
      AddIgnored(fmt::format("tools.{}", Printable(Excerpt(type))), ignored);
      continue;
    }
    if (type != "function") {
      fields.Fail("unsupported", "tools", fmt::format("tools of type \"{}\" are not supported", Excerpt(type)));
      continue;
    }
    json::object function;
    for (const std::string_view name : {"name", "description", "parameters", "strict"}) {
      const json::value* value = object->if_contains(name);
      if (value != nullptr && !value->is_null()) function[name] = *value;
    }
    converted.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  }
  return converted;
}

// The API of Responses names a function beside its type, and the other one inside an object.
json::value ToolChoiceOf(const json::value& choice) {
  const json::object* object = choice.if_object();
  if (object == nullptr || FieldText(*object, "type") != "function") return choice;
  return json::object{{"type", "function"}, {"function", json::object{{"name", Copied(FieldText(*object, "name"))}}}};
}

void AddTextFormat(FieldReader& fields, const json::value& text, json::object& chat, std::string& ignored) {
  if (!text.is_object()) return fields.Fail("invalid_request", "text", "expected an object");
  if (text.get_object().contains("verbosity")) AddIgnored("text.verbosity", ignored);
  const json::value* format = text.get_object().if_contains("format");
  if (format == nullptr || format->is_null()) return;
  const json::object* object = format->if_object();
  if (object == nullptr) return fields.Fail("invalid_request", "text", "expected an object as format");
  if (FieldText(*object, "type") != "json_schema") {
    chat["response_format"] = *format;
    return;
  }
  json::object schema;
  for (const auto& [key, value] : *object) {
    if (key != "type") schema[key] = value;
  }
  chat["response_format"] = json::object{{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

void AddReasoning(FieldReader& fields, json::object& chat) {
  const json::value* reasoning = fields.Find("reasoning");
  if (reasoning == nullptr) return;
  if (!reasoning->is_object()) return fields.Fail("invalid_request", "reasoning", "expected an object");
  FieldReader inner(reasoning->get_object(), "reasoning.");
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (const std::optional<std::string> effort = inner.Text("effort")) {
    chat["reasoning_effort"] = *effort;
    if (std::ranges::find(kEfforts, *effort) == std::end(kEfforts)) {
      inner.Fail("invalid_request", "effort", "expected none, minimal, low, medium, high, xhigh or max");
    }
  }
  if (inner.error().has_value()) fields.Fail("invalid_request", "reasoning", inner.error()->message);
}

// The fields that only stored or hosted responses have. A value that asks for what happens anyway is no error.
void RefuseFields(FieldReader& fields) {
  for (const std::string_view name : {"previous_response_id", "conversation", "prompt", "max_tool_calls"}) {
    if (fields.Find(name) != nullptr) fields.Fail("unsupported", name, "is not supported; leave it out");
  }
  for (const std::string_view name : {"store", "background"}) {
    if (fields.Bool(name).value_or(false))
      fields.Fail("unsupported", name, "responses are not stored; set it to false");
  }
  const json::value* metadata = fields.Find("metadata");
  if (metadata != nullptr && !metadata->is_object()) fields.Fail("invalid_request", "metadata", "expected an object");
  if (fields.Text("truncation").value_or("disabled") != "disabled") {
    fields.Fail("unsupported", "truncation", "only \"disabled\" is supported");
  }
}

class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(const json::object& request, BodyHead head, std::string model, int logprobs, TokenText token_text)
      : head_(head),
        logprobs_(logprobs),
        token_text_(std::move(token_text)),
        blocks_({.begin = [this](size_t index, const AnswerBlock& block) { BeginItem(index, block); },
                 .grow = [this](size_t index, const AnswerBlock& block,
                                const std::string& text) { GrowItem(index, block, text); },
                 .end = [this](size_t index, const AnswerBlock& block) { EndItem(index, block); }}) {
    response_ = {{"id", fmt::format("resp_{:016x}", head.number)},
                 {"object", "response"},
                 {"created_at", head.created},
                 {"status", "in_progress"},
                 {"background", false},
                 {"error", nullptr},
                 {"incomplete_details", nullptr},
                 {"model", ReplaceInvalidUtf8(model)},
                 {"output", json::array()},
                 {"previous_response_id", nullptr},
                 {"store", false},
                 {"usage", nullptr}};
    // These fields are those of the request, or what applied without them.
    static const json::object kUsual = {{"instructions", nullptr},
                                        {"max_output_tokens", nullptr},
                                        {"metadata", json::object()},
                                        {"parallel_tool_calls", true},
                                        {"temperature", 1.0},
                                        {"text", json::object{{"format", json::object{{"type", "text"}}}}},
                                        {"tool_choice", "auto"},
                                        {"tools", json::array()},
                                        {"top_p", 1.0},
                                        {"truncation", "disabled"}};
    for (const auto& [key, usual] : kUsual) {
      const json::value* value = request.if_contains(key);
      response_[key] = value == nullptr || value->is_null() ? usual : *value;
    }
    const json::value* reasoning = request.if_contains("reasoning");
    const json::value* effort =
        reasoning != nullptr && reasoning->is_object() ? reasoning->get_object().if_contains("effort") : nullptr;
    response_["reasoning"] =
        json::object{{"effort", effort == nullptr ? json::value(nullptr) : *effort}, {"summary", nullptr}};
    held_bytes_ = BytesToRead(json::serialize(response_));
  }

  uint64_t held_bytes() const override { return held_bytes_; }

  // Each list is made as text, and becomes JSON that takes about as much as two of them.
  int NumLogprobLists(bool) const override { return 3; }

  std::string Body(std::span<const RequestResult> results, int64_t num_shared_tokens) override {
    const ResultChoice& choice = results[0].choices[0];
    is_cut_ = FinishName(choice) == "length";
    Complete(results[0], num_shared_tokens, Output(BlocksOf(choice.answer), choice.completion.logprobs));
    return JsonText(response_);
  }

  void Begin(std::string& out) override {
    out_ = &out;
    Append("response.created", {{"response", response_}});
    Append("response.in_progress", {{"response", response_}});
  }
  void Add(size_t, const AnswerGain& gain, std::string& out) override {
    out_ = &out;
    if (logprobs_ >= 0) piece_logprobs_ = gain.logprobs;
    all_logprobs_.insert(all_logprobs_.end(), piece_logprobs_.begin(), piece_logprobs_.end());
    blocks_.Add(gain.deltas);
  }
  void EndChoice(size_t, const ResultChoice& choice, std::string& out) override {
    out_ = &out;
    is_cut_ = FinishName(choice) == "length";
    blocks_.Finish();
  }
  void End(std::span<const RequestResult> results, int64_t num_shared_tokens, std::string& out) override {
    out_ = &out;
    Complete(results[0], num_shared_tokens, Output(blocks_.blocks(), all_logprobs_));
    Append(is_cut_ ? "response.incomplete" : "response.completed", {{"response", response_}});
  }
  void Fail(const ApiError& error, std::string& out) override {
    out_ = &out;
    response_["status"] = "failed";
    response_["error"] = json::object{{"code", "server_error"}, {"message", error.message}};
    Append("response.failed", {{"response", response_}});
  }

 private:
  json::array Output(const std::vector<AnswerBlock>& blocks, std::span<const TokenLogprobs> logprobs) const {
    json::array output;
    for (const AnswerBlock& block : blocks) {
      const bool is_cut = is_cut_ && output.size() + 1 == blocks.size();
      output.push_back(Item(output.size(), block, is_cut ? "incomplete" : "completed", logprobs));
    }
    return output;
  }

  void Complete(const RequestResult& result, int64_t num_shared_tokens, json::array output) {
    response_["status"] = is_cut_ ? "incomplete" : "completed";
    if (is_cut_) response_["incomplete_details"] = json::object{{"reason", "max_output_tokens"}};
    response_["output"] = std::move(output);
    response_["usage"] = json::object{
        {"input_tokens", result.prompt_tokens},
        {"input_tokens_details", json::object{{"cached_tokens", num_shared_tokens}, {"cache_write_tokens", 0}}},
        {"output_tokens", result.completion_tokens},
        {"output_tokens_details", json::object{{"reasoning_tokens", result.reasoning_tokens}}},
        {"total_tokens", result.prompt_tokens + result.completion_tokens}};
  }

  std::string IdOf(size_t index, const AnswerBlock& block) const {
    const std::string_view prefix = block.kind == BlockKind::kReasoning ? "rs"
                                    : block.kind == BlockKind::kCall    ? "fc"
                                                                        : "msg";
    return fmt::format("{}_{:016x}{:02x}", prefix, head_.number, index);
  }

  json::value LogprobsOf(std::span<const TokenLogprobs> tokens) const {
    if (logprobs_ < 0) return json::array();
    std::string text;
    AppendChatLogprobs(tokens, false, token_text_, text);
    return json::parse(text).at("content");
  }

  json::object TextPart(const AnswerBlock& block, std::span<const TokenLogprobs> logprobs) const {
    const std::string text = ReplaceInvalidUtf8(block.text);
    if (block.kind == BlockKind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {
        {"type", "output_text"}, {"text", text}, {"annotations", json::array()}, {"logprobs", LogprobsOf(logprobs)}};
  }

  json::object Item(size_t index, const AnswerBlock& block, std::string_view status,
                    std::span<const TokenLogprobs> logprobs) const {
    json::object item = {{"id", IdOf(index, block)}};
    const bool is_begun = status == "in_progress";
    const json::array parts = is_begun ? json::array() : json::array{TextPart(block, logprobs)};
    switch (block.kind) {
      case BlockKind::kReasoning:
        item["type"] = "reasoning";
        item["summary"] = json::array();
        item["content"] = parts;
        break;
      case BlockKind::kText:
        item["type"] = "message";
        item["role"] = "assistant";
        item["content"] = parts;
        break;
      case BlockKind::kCall:
        item["type"] = "function_call";
        item["call_id"] = "call_" + CallId(head_.request_number, 0, static_cast<size_t>(block.call_idx));
        item["name"] = ReplaceInvalidUtf8(block.name);
        item["arguments"] = ReplaceInvalidUtf8(block.text);
        break;
    }
    item["status"] = Copied(status);
    return item;
  }

  void BeginItem(size_t index, const AnswerBlock& block) {
    Append("response.output_item.added", {{"output_index", index}, {"item", Item(index, block, "in_progress", {})}});
    if (block.kind == BlockKind::kCall) return;
    Append("response.content_part.added", Placed(index, block, {{"part", TextPart({.kind = block.kind}, {})}}));
  }

  void GrowItem(size_t index, const AnswerBlock& block, const std::string& piece) {
    json::object fields = {{"delta", ReplaceInvalidUtf8(piece)}};
    if (block.kind == BlockKind::kText) fields["logprobs"] = LogprobsOf(std::exchange(piece_logprobs_, {}));
    Append(fmt::format("{}.delta", EventOf(block)), Placed(index, block, std::move(fields)));
  }

  void EndItem(size_t index, const AnswerBlock& block) {
    const std::string text = ReplaceInvalidUtf8(block.text);
    if (block.kind == BlockKind::kCall) {
      Append(fmt::format("{}.done", EventOf(block)),
             Placed(index, block, {{"arguments", text}, {"name", ReplaceInvalidUtf8(block.name)}}));
    } else {
      json::object fields = {{"text", text}};
      if (block.kind == BlockKind::kText) fields["logprobs"] = LogprobsOf(all_logprobs_);
      Append(fmt::format("{}.done", EventOf(block)), Placed(index, block, std::move(fields)));
      Append("response.content_part.done", Placed(index, block, {{"part", TextPart(block, all_logprobs_)}}));
    }
    const bool is_cut = is_cut_ && index + 1 == blocks_.blocks().size();
    Append("response.output_item.done",
           {{"output_index", index}, {"item", Item(index, block, is_cut ? "incomplete" : "completed", all_logprobs_)}});
  }

  static std::string_view EventOf(const AnswerBlock& block) {
    return block.kind == BlockKind::kReasoning ? "response.reasoning_text"
           : block.kind == BlockKind::kCall    ? "response.function_call_arguments"
                                               : "response.output_text";
  }

  json::object Placed(size_t index, const AnswerBlock& block, json::object fields) const {
    fields["item_id"] = IdOf(index, block);
    fields["output_index"] = index;
    if (block.kind != BlockKind::kCall) fields["content_index"] = 0;
    return fields;
  }

  void Append(std::string_view type, json::object fields) {
    json::object event = {{"type", Copied(type)}, {"sequence_number", num_events_++}};
    for (auto& [key, value] : fields) event[key] = std::move(value);
    *out_ += fmt::format("event: {}\ndata: {}\n\n", type, JsonText(event));
  }

  BodyHead head_;
  int logprobs_;
  TokenText token_text_;
  json::object response_;
  uint64_t held_bytes_ = 0;  // of its fields that are those of the request
  int64_t num_events_ = 0;
  bool is_cut_ = false;  // the answer ended at its greatest length
  std::vector<TokenLogprobs> piece_logprobs_, all_logprobs_;
  std::string* out_ = nullptr;  // where the call under way appends
  BlockStream blocks_;
};

std::optional<ApiError> StartResponse(ApiServer& api, const std::shared_ptr<Exchange>& exchange) {
  const absl::StatusOr<json::object> body = ParseBody(exchange->request().body);
  if (!body.ok()) return ErrorOf(body.status());
  FieldReader fields(*body, "");
  const bool is_stream = fields.Bool("stream").value_or(false);
  std::optional<LineError> error = fields.error();
  std::string ignored;
  const json::object chat = ChatOfResponses(*body, error, ignored);
  if (error.has_value()) return ErrorOf(*error);
  Answering::Args args{.exchange = exchange, .model_name = api.model_name(), .is_stream = is_stream};
  args.headers = IgnoredHeader(ignored);
  constexpr std::pair<std::string_view, std::string_view> kOwnNames[] = {{"max_tokens", "max_output_tokens"},
                                                                         {"messages", "input"},
                                                                         {"reasoning_effort", "reasoning.effort"},
                                                                         {"response_format", "text.format"}};
  if (const auto failed = api.MakeWork(chat, RequestKind::kChat, args.prompts)) return WithNames(*failed, kOwnNames);
  args.writer = std::make_unique<ResponsesWriter>(*body, api.NewHead(), api.model_name(),
                                                  args.prompts[0].engine_request.sampling.logprobs, api.token_text());
  return api.Start(std::move(args));
}

}  // namespace

json::object ChatOfResponses(const json::object& body, std::optional<LineError>& error, std::string& ignored) {
  FieldReader fields(body, "");
  json::object chat;
  for (const auto& [name, chat_name] : {std::pair("model", "model"), std::pair("max_output_tokens", "max_tokens"),
                                        std::pair("temperature", "temperature"), std::pair("top_p", "top_p"),
                                        std::pair("seed", "seed"), std::pair("stop", "stop")}) {
    if (const json::value* value = fields.Find(name)) chat[chat_name] = *value;
  }
  const json::value* include = fields.Find("include");
  const json::array* included = include == nullptr ? nullptr : include->if_array();
  const bool includes_logprobs = included != nullptr && std::ranges::any_of(*included, [](const json::value& part) {
                                   return part == "message.output_text.logprobs";
                                 });
  const json::value* top = fields.Find("top_logprobs");
  if (includes_logprobs || (top != nullptr && *top != json::value(0))) {
    chat["logprobs"] = true;
    if (top != nullptr) chat["top_logprobs"] = *top;
  }
  InputConverter converter(fields);
  if (const std::optional<std::string> text = fields.Text("instructions")) converter.AddText("system", *text);
  const json::value* input = fields.Find("input");
  if (input == nullptr) fields.Fail("invalid_request", "input", "is missing");
  if (input != nullptr) converter.AddInput(*input);
  chat["messages"] = converter.TakeMessages();
  if (const json::value* tools = fields.Find("tools")) chat["tools"] = FunctionsOf(fields, *tools, ignored);
  if (const json::value* choice = fields.Find("tool_choice")) chat["tool_choice"] = ToolChoiceOf(*choice);
  if (const json::value* text = fields.Find("text")) AddTextFormat(fields, *text, chat, ignored);
  if (const std::optional<bool> parallel = fields.Bool("parallel_tool_calls")) chat["parallel_tool_calls"] = *parallel;
  AddReasoning(fields, chat);
  RefuseFields(fields);
  constexpr std::string_view kOwn[] = {"input",          "instructions", "max_output_tokens", "top_logprobs",
                                       "include",        "text",         "reasoning",         "stream",
                                       "stream_options", "prompt",       "max_tool_calls",    "store",
                                       "background",     "metadata",     "truncation"};
  constexpr std::string_view kRefused[] = {"n", "prompt_logprobs"};
  CopyOtherFields(fields, body, kOwn, kRefused, chat);
  if (!error.has_value()) error = fields.error();
  return chat;
}

void AddResponsesRoutes(ApiServer& api) {
  api.AddRoute({.method = "POST",
                .path = "/v1/responses",
                .handler =
                    [&api](const std::shared_ptr<Exchange>& exchange) {
                      if (const auto error = StartResponse(api, exchange)) api.RespondError(*exchange, *error);
                    },
                .generates = true});
}

}  // namespace penstock::server
