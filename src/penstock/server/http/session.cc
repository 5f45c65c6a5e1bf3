#include "penstock/server/http/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <sstream>

#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/version.h"

namespace penstock::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;

constexpr size_t kBlockBytes = 16 << 10;          // of an upload or of a file; each connection may have one
constexpr size_t kMaxPipelinedBytes = 4 << 10;    // of requests behind the one under way
constexpr size_t kSmallResponseBytes = 16 << 10;  // is written in any case
constexpr double kRestOfRequestS = 1;  // to read a request whose bytes are all there: a second end of file never comes

std::chrono::steady_clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

HttpHead HeadOf(const http::request_header<>& header) {
  HttpHead head;
  head.method = std::string(header.method_string());
  const std::string_view target(header.target().data(), header.target().size());
  const size_t question = std::min(target.find('?'), target.size());
  head.path = DecodePercent(target.substr(0, question));
  head.query = target.substr(std::min(question + 1, target.size()));
  for (const auto& field : header) head.headers.emplace_back(field.name_string(), field.value());
  return head;
}

}  // namespace

Session::Session(Tcp::socket socket, SharedState& shared)
    : stream_(std::move(socket)), shared_(shared), ping_(shared.context) {
  ++shared_.num_connections;
}

// Hands calls from any thread to the network's thread.
class Session::SessionExchange : public Exchange, public std::enable_shared_from_this<SessionExchange> {
 public:
  SessionExchange(HttpRequest request, std::shared_ptr<BodySink> sink, std::shared_ptr<Session> session)
      : Exchange(std::move(request), std::move(sink)), session_(std::move(session)) {
    ++session_->shared_.num_exchanges;
  }
  // A session ends on the network's thread.
  ~SessionExchange() override {
    SharedState& shared = session_->shared_;
    asio::post(shared.context, [session = std::move(session_)] {});
    --shared.num_exchanges;
  }

  void Respond(HttpResponse response) override {
    Post([response = std::move(response)](Session& session) mutable { session.Respond(std::move(response)); });
  }
  void RespondFile(std::string path, std::string content_type) override {
    Post([path = std::move(path), type = std::move(content_type)](Session& session) {
      session.RespondFile(path, type);
    });
  }
  void Stream(std::shared_ptr<StreamSource> source, HttpHeaders headers) override {
    Post([source = std::move(source), headers = std::move(headers)](Session& session) mutable {
      session.BeginStream(std::move(source), headers);
    });
  }
  void Wake() override {
    if (has_more_.exchange(true)) return;
    Post([](Session& session) { session.PumpInTime(); });
  }
  void OnGone(std::function<void()> gone) override {
    Post([gone](Session& session) { session.SetGone(gone); }, gone);
  }
  void Run(std::function<void()> work) override { asio::post(session_->shared_.workers, std::move(work)); }

 private:
  // Runs `action` on the network's thread, or `otherwise` if the response is complete or the client has left.
  template <typename Action>
  void Post(Action action, std::function<void()> otherwise = {}) {
    asio::post(session_->context(),
               [self = shared_from_this(), action = std::move(action), otherwise = std::move(otherwise)]() mutable {
                 Session& session = *self->session_;
                 if (session.exchange_ == self) {
                   action(session);
                 } else if (otherwise && self->has_lost_client_) {
                   otherwise();
                 }
               });
  }

  friend class Session;
  std::shared_ptr<Session> session_;
  std::atomic<bool> has_more_{false};
  bool has_lost_client_ = false;
};

void Session::ReadHead() {
  if (is_closed_) return;
  if (shared_.is_stopping) return Close();
  head_parser_.emplace();
  head_parser_->header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
  head_parser_->body_limit(boost::none);
  stream_.expires_after(Seconds(is_half_closed_ ? kRestOfRequestS : shared_.options.idle_s));
  http::async_read_header(stream_, buffer_, *head_parser_,
                          [self = shared_from_this()](error_code error, size_t) { self->OnHead(error); });
}

void Session::OnHead(error_code error) {
  if (error == http::error::header_limit) {
    wants_keep_alive_ = false;
    return Refuse(shared_.handler.ErrorResponse(431, "the request's head is too long"));
  }
  if (error.category() == http::make_error_code(http::error::bad_version).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message) {
    wants_keep_alive_ = false;
    return Refuse(shared_.handler.ErrorResponse(400, "the request is not valid HTTP"));
  }
  if (error) return Close();
  const auto& header = head_parser_->get();
  head_ = HeadOf(header);
  is_head_ = head_.method == "HEAD";
  if (is_head_) head_.method = "GET";
  version_ = header.version();
  wants_keep_alive_ = head_parser_->keep_alive();
  const boost::optional<uint64_t> length = head_parser_->content_length();
  HttpResponse refusal;
  if (shared_.handler.Refuses(head_, refusal)) {
    // The connection can be used again only if no body follows.
    wants_keep_alive_ = wants_keep_alive_ && !head_parser_->chunked() && length.value_or(0) == 0;
    return Refuse(std::move(refusal));
  }
  sink_ = shared_.handler.SinkFor(head_);
  const uint64_t max_bytes = shared_.options.max_body_bytes;
  if (sink_ == nullptr && length.value_or(0) > max_bytes) {
    wants_keep_alive_ = false;
    return Refuse(shared_.handler.ErrorResponse(
        413, fmt::format("the body has {} bytes, more than the limit of {}", *length, max_bytes)));
  }
  const uint64_t needed = sink_ != nullptr ? 0 : head_parser_->chunked() ? max_bytes : length.value_or(0);
  if (shared_.body_bytes + needed > shared_.options.max_bodies_bytes) {
    wants_keep_alive_ = false;
    HttpResponse response = shared_.handler.ErrorResponse(429, "too many bytes of requests are under way; try again");
    response.headers.emplace_back("Retry-After", "1");
    return Refuse(std::move(response));
  }
  reserved_bytes_ = needed;
  shared_.body_bytes += needed;
  if (beast::iequals(header[http::field::expect], "100-continue")) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    return asio::async_write(stream_, asio::buffer(kContinue), [self = shared_from_this()](error_code failed, size_t) {
      failed ? self->Close() : self->ReadBody();
    });
  }
  ReadBody();
}

void Session::ReadBody() {
  stream_.expires_after(Seconds(is_half_closed_ ? kRestOfRequestS : shared_.options.idle_s));
  if (sink_ != nullptr) {
    sink_parser_.emplace(std::move(*head_parser_));
    sink_parser_->body_limit(boost::none);
    block_.resize(kBlockBytes);
    return ReadIntoSink();
  }
  body_parser_.emplace(std::move(*head_parser_));
  body_parser_->body_limit(shared_.options.max_body_bytes);
  http::async_read(stream_, buffer_, *body_parser_, [self = shared_from_this()](error_code error, size_t) {
    if (error == http::error::body_limit) {
      self->wants_keep_alive_ = false;
      return self->Refuse(self->shared_.handler.ErrorResponse(
          413, fmt::format("the body is longer than the limit of {} bytes", self->shared_.options.max_body_bytes)));
    }
    if (error.category() == http::make_error_code(http::error::bad_chunk).category() &&
        error != http::error::partial_message && error != http::error::end_of_stream) {
      self->wants_keep_alive_ = false;
      return self->Refuse(self->shared_.handler.ErrorResponse(400, "the request's body is not valid HTTP"));
    }
    if (error) return self->Close();
    self->Dispatch(std::move(self->body_parser_->get().body()));
  });
}

void Session::ReadIntoSink() {
  stream_.expires_after(Seconds(shared_.options.idle_s));
  sink_parser_->get().body().data = block_.data();
  sink_parser_->get().body().size = block_.size();
  sink_parser_->get().body().more = true;
  http::async_read_some(stream_, buffer_, *sink_parser_, [self = shared_from_this()](error_code error, size_t) {
    if (error && error != http::error::need_buffer) return self->Close();
    const size_t num_bytes = self->block_.size() - self->sink_parser_->get().body().size;
    if (const absl::Status status = self->sink_->Write({self->block_.data(), num_bytes}); !status.ok()) {
      self->wants_keep_alive_ = false;
      const bool is_io = FaultOf(status) == Fault::kIo;
      if (is_io) LogWarning("an upload failed: {}", Message(status));  // it names a file of the server
      return self->Refuse(is_io ? self->shared_.handler.ErrorResponse(507, "the disk cannot take the file")
                                : self->shared_.handler.ErrorResponse(400, Message(status)));
    }
    self->sink_parser_->is_done() ? self->Dispatch("") : self->ReadIntoSink();
  });
}

void Session::Dispatch(std::string body) {
  exchange_ = std::make_shared<SessionExchange>(HttpRequest{std::move(head_), std::move(body)}, std::move(sink_),
                                                shared_from_this());
  buffer_.shrink_to_fit();  // it has grown with the body
  is_half_closed_ ? BeginProbing() : Watch();
  // The session may read its next request before the worker is done with this one.
  asio::post(shared_.workers, [exchange = exchange_, num_bytes = std::exchange(reserved_bytes_, 0)] {
    SharedState& shared = exchange->session_->shared_;
    shared.handler.Handle(exchange);
    exchange->request().body = {};  // the exchange lives until its response is written
    shared.body_bytes -= num_bytes;
  });
}

void Session::Refuse(HttpResponse response) {
  ReleaseBody();
  Write(std::move(response), wants_keep_alive_);
}

// Reads while a response is under way: only so a client that leaves is noticed.
void Session::Watch() {
  is_watching_ = true;
  stream_.socket().async_read_some(
      buffer_.prepare(4096),
      [self = shared_from_this()](error_code error, size_t num_bytes) { self->OnWatched(error, num_bytes); });
}

void Session::OnWatched(error_code error, size_t num_bytes) {
  is_watching_ = false;
  buffer_.commit(num_bytes);
  if (std::exchange(is_next_, false)) {
    is_half_closed_ = error == asio::error::eof;
    const bool goes_on = !error || error == asio::error::operation_aborted || (is_half_closed_ && buffer_.size() > 0);
    return goes_on ? ReadHead() : Close();
  }
  if (error == asio::error::eof) return BeginProbing();
  if (error) return LoseClient();
  if (buffer_.size() < kMaxPipelinedBytes) Watch();
}

void Session::BeginProbing() {
  is_half_closed_ = true;
  probe_s_ = 0;
  if (!is_writing_) SetPing();
}

// A system that has no reader for a byte says so, and the next send fails.
void Session::Probe() {
  const std::string_view begin = version_ >= 11 ? "HTTP/1.1 " : "HTTP/1.0 ";
  if (num_probed_ == begin.size()) return;  // the client is believed from now on
  error_code error;
  const size_t num_sent = stream_.socket().send(asio::buffer(&begin[num_probed_], 1), 0, error);
  if (error && error != asio::error::would_block) return LoseClient();
  num_probed_ += num_sent;
  SetPing();
}

void Session::LoseClient() {
  if (is_closed_) return;
  Close();
  if (exchange_ != nullptr) exchange_->has_lost_client_ = true;
  exchange_ = nullptr;
  source_ = nullptr;
  if (auto gone = std::exchange(gone_, {})) gone();
}

Session::Head Session::NewHead(unsigned status, const HttpHeaders& headers, bool keeps_alive) const {
  Head head(static_cast<http::status>(status), version_);
  head.set(http::field::server, fmt::format("penstock/{}", Version()));
  if (!shared_.options.cors_origin.empty()) {
    head.set(http::field::access_control_allow_origin, shared_.options.cors_origin);
  }
  for (const auto& [name, value] : headers) head.set(name, value);
  head.keep_alive(keeps_alive);
  return head;
}

void Session::WriteHead(const Head& head, std::function<void()> then) {
  std::ostringstream text;
  text << head.base();
  response_head_ = text.str().substr(std::exchange(num_probed_, 0));
  is_writing_ = true;
  stream_.expires_after(Seconds(shared_.options.write_s));
  const std::array<asio::const_buffer, 2> buffers = {asio::buffer(response_head_), asio::buffer(response_body_)};
  asio::async_write(stream_, buffers, [self = shared_from_this(), then = std::move(then)](error_code error, size_t) {
    self->is_writing_ = false;
    self->response_body_ = {};
    self->ReleaseResponse();
    error ? self->LoseClient() : then();
  });
}

void Session::Respond(HttpResponse response) { Write(std::move(response), wants_keep_alive_ && !shared_.is_stopping); }

bool Session::HoldResponse(size_t num_bytes) {
  if (num_bytes <= kSmallResponseBytes) return true;
  const uint64_t all = shared_.response_bytes + num_bytes;
  if (shared_.response_bytes > 0 && all > shared_.options.max_responses_bytes) return false;
  held_bytes_ = num_bytes;
  shared_.response_bytes = all;
  return true;
}

void Session::Write(HttpResponse response, bool keeps_alive) {
  if (!HoldResponse(response.body.size())) {
    response = shared_.handler.ErrorResponse(429, "too many responses wait for their clients to read; try again");
    response.headers.emplace_back("Retry-After", "1");
  }
  Head head = NewHead(static_cast<unsigned>(response.status), response.headers, keeps_alive);
  if (!response.content_type.empty()) head.set(http::field::content_type, response.content_type);
  if (head.result() != http::status::no_content) head.content_length(response.body.size());
  if (!is_head_) response_body_ = std::move(response.body);
  WriteHead(head, [this, keeps_alive] { FinishExchange(keeps_alive); });
}

void Session::RespondFile(const std::string& path, const std::string& content_type) {
  error_code error;
  file_.open(path.c_str(), beast::file_mode::scan, error);
  const uint64_t num_bytes = error ? 0 : file_.size(error);
  if (error) return Respond(shared_.handler.ErrorResponse(404, "the file is gone"));
  const bool keeps_alive = wants_keep_alive_ && !shared_.is_stopping;
  Head head = NewHead(200, {}, keeps_alive);
  head.set(http::field::content_type, content_type);
  head.content_length(num_bytes);
  file_bytes_left_ = is_head_ ? 0 : num_bytes;
  WriteHead(head, [this, keeps_alive] { WriteFilePart(keeps_alive); });
}

// A client may take long for a file, but not for a part of it.
void Session::WriteFilePart(bool keeps_alive) {
  error_code error;
  if (file_bytes_left_ == 0) {
    file_.close(error);
    return FinishExchange(keeps_alive);
  }
  block_.resize(kBlockBytes);
  const size_t num_bytes = file_.read(block_.data(), std::min<uint64_t>(block_.size(), file_bytes_left_), error);
  if (error || num_bytes == 0) return LoseClient();  // the response cannot have the length that its head names
  file_bytes_left_ -= num_bytes;
  is_writing_ = true;
  stream_.expires_after(Seconds(shared_.options.write_s));
  asio::async_write(stream_, asio::buffer(block_.data(), num_bytes),
                    [self = shared_from_this(), keeps_alive](error_code failed, size_t) {
                      self->is_writing_ = false;
                      failed ? self->LoseClient() : self->WriteFilePart(keeps_alive);
                    });
}

void Session::BeginStream(std::shared_ptr<StreamSource> source, const HttpHeaders& headers) {
  source_ = std::move(source);
  next_piece_time_ = {};
  const bool is_chunked = version_ >= 11;
  wants_keep_alive_ = wants_keep_alive_ && is_chunked;
  Head head = NewHead(200, headers, wants_keep_alive_ && !shared_.is_stopping);
  head.set(http::field::content_type, "text/event-stream; charset=utf-8");
  head.set(http::field::cache_control, "no-cache");
  head.chunked(is_chunked);
  WriteHead(head, [this] { Pump(); });
}

void Session::PumpInTime() {
  const auto now = std::chrono::steady_clock::now();
  if (now >= next_piece_time_) {
    next_piece_time_ = now + Seconds(shared_.piece_s);
    return Pump();
  }
  shared_.early.push_back(weak_from_this());
  if (shared_.early.size() > 1) return;
  shared_.early_timer.expires_at(next_piece_time_);
  shared_.early_timer.async_wait([&shared = shared_](error_code) { PumpEarly(shared); });
}

void Session::PumpEarly(SharedState& shared) {
  constexpr double kMaxPiecesPerSecond = 500;
  const std::vector<std::weak_ptr<Session>> sessions = std::exchange(shared.early, {});
  shared.piece_s = std::clamp(static_cast<double>(sessions.size()) / kMaxPiecesPerSecond, shared.options.min_piece_s,
                              shared.options.max_piece_s);
  const auto next = std::chrono::steady_clock::now() + Seconds(shared.piece_s);
  for (const std::weak_ptr<Session>& early : sessions) {
    const auto session = early.lock();
    if (session == nullptr) continue;
    session->next_piece_time_ = next;
    session->Pump();
  }
}

void Session::Pump() {
  if (is_writing_ || source_ == nullptr) return;
  exchange_->has_more_ = false;
  piece_.clear();
  const bool is_end = source_->Take(piece_);
  if (piece_.empty() && !is_end) return SetPing();
  if (version_ >= 11) {
    const std::string size = piece_.empty() ? "" : fmt::format("{:x}\r\n", piece_.size());
    piece_.insert(0, size);
    if (!size.empty()) piece_ += "\r\n";
    if (is_end) piece_ += "0\r\n\r\n";
  }
  // The system takes nearly every piece at once. Then there is nothing to wait for, and no timer to set.
  error_code error;
  const size_t num_sent = stream_.socket().send(asio::buffer(piece_), 0, error);
  if (error && error != asio::error::would_block) return LoseClient();
  if (num_sent == piece_.size()) return is_end ? FinishExchange(wants_keep_alive_) : SetPing();
  CancelPing();
  if (!HoldResponse(piece_.size())) return LoseClient();
  is_writing_ = true;
  stream_.expires_after(Seconds(shared_.options.write_s));
  asio::async_write(stream_, asio::buffer(piece_) + num_sent,
                    [self = shared_from_this(), is_end](error_code failed, size_t) {
                      self->is_writing_ = false;
                      self->ReleaseResponse();
                      if (failed) return self->LoseClient();
                      is_end ? self->FinishExchange(self->wants_keep_alive_) : self->Pump();
                    });
}

void Session::SetPing() {
  double wait_s = shared_.options.ping_s;
  if (is_half_closed_) {
    constexpr double kFirstProbes = 0.25;
    wait_s = std::min(wait_s, probe_s_);
    probe_s_ = std::max(2 * probe_s_, kFirstProbes);
  }
  ping_time_ = std::chrono::steady_clock::now() + Seconds(wait_s);
  if (!is_ping_set_ || ping_time_ < ping_.expiry()) StartPingTimer();
}

void Session::StartPingTimer() {
  is_ping_set_ = true;
  ping_.expires_at(ping_time_);
  ping_.async_wait([self = shared_from_this()](error_code error) {
    if (error) return;
    self->is_ping_set_ = false;
    std::chrono::steady_clock::now() < self->ping_time_ ? self->StartPingTimer() : self->Ping();
  });
}

void Session::CancelPing() {
  is_ping_set_ = false;
  ping_.cancel();
}

void Session::Ping() {
  if (is_writing_ || exchange_ == nullptr) return;
  if (source_ == nullptr) return Probe();
  is_writing_ = true;
  piece_ = source_->Ping();
  if (version_ >= 11) piece_ = fmt::format("{:x}\r\n{}\r\n", piece_.size(), piece_);
  stream_.expires_after(Seconds(shared_.options.write_s));
  asio::async_write(stream_, asio::buffer(piece_), [self = shared_from_this()](error_code error, size_t) {
    self->is_writing_ = false;
    error ? self->LoseClient() : self->Pump();
  });
}

void Session::FinishExchange(bool keeps_alive) {
  exchange_ = nullptr;
  source_ = nullptr;
  gone_ = nullptr;
  CancelPing();
  if (!keeps_alive || (is_half_closed_ && buffer_.size() == 0)) return Linger();
  if (!is_watching_) return ReadHead();
  is_next_ = true;
  error_code ignored;
  stream_.socket().cancel(ignored);
}

// A client that still sends would lose the response if the connection closed at once.
void Session::Linger() {
  error_code ignored;
  stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
  if (is_watching_ || is_half_closed_) return Close();  // it had sent everything
  constexpr double kMaxSeconds = 2;
  stream_.expires_after(Seconds(kMaxSeconds));
  Discard();
}

void Session::Discard() {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(kBlockBytes), [self = shared_from_this()](error_code error, size_t) {
    error || self->is_closed_ ? self->Close() : self->Discard();
  });
}

void Session::Close() {
  if (std::exchange(is_closed_, true)) return;
  ReleaseBody();
  CancelPing();
  error_code ignored;
  stream_.socket().shutdown(Tcp::socket::shutdown_both, ignored);
  stream_.close();
}

void Session::End() {
  const std::shared_ptr<Session> self = shared_from_this();  // the exchange may be the last that holds it
  Close();
  exchange_ = nullptr;
  source_ = nullptr;
  gone_ = nullptr;
}

}  // namespace penstock::server
