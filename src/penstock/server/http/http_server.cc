#include "penstock/server/http/http_server.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "absl/container/flat_hash_set.h"
#include "penstock/base/clock.h"
#include "penstock/base/status.h"
#include "penstock/base/version.h"

namespace penstock::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Tcp = asio::ip::tcp;

constexpr size_t kUploadBufferBytes = 64 << 10;
constexpr size_t kMaxPipelinedBytes = 64 << 10;

std::chrono::steady_clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

// The state that all connections of a server share. The network's thread alone uses it, except what is atomic.
struct Shared {
  HttpOptions options;
  RequestHandler& handler;
  asio::thread_pool workers;
  bool is_stopping = false;
  std::atomic<int64_t> num_connections{0};
  std::atomic<int64_t> num_exchanges{0};
  std::atomic<uint64_t> body_bytes{0};  // of requests in memory that are not handled yet
  asio::io_context context{1};          // ends before the others: sessions end with it

  Shared(const HttpOptions& http_options, RequestHandler& request_handler)
      : options(http_options), handler(request_handler), workers(static_cast<size_t>(http_options.num_workers)) {}
};

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

// A connection: reads one request after the other, and writes their responses.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Tcp::socket socket, Shared& shared) : stream_(std::move(socket)), shared_(shared), ping_(shared.context) {
    ++shared_.num_connections;
  }
  ~Session() { --shared_.num_connections; }

  void ReadHead();
  void Close();
  // Closes the connection without a word to anybody.
  void End();
  bool is_idle() const { return exchange_ == nullptr; }

  // These serve the exchange under way, on the network's thread.
  void Respond(HttpResponse response);
  void RespondFile(const std::string& path, const std::string& content_type);
  void BeginStream(std::shared_ptr<StreamSource> source, const HttpHeaders& headers);
  void Pump();
  void SetGone(std::function<void()> gone);

  asio::io_context& context() { return shared_.context; }

 private:
  class SessionExchange;
  using HeadParser = http::request_parser<http::empty_body>;

  void OnHead(error_code error);
  void ReadBody();
  void ReadIntoSink();
  void Dispatch(std::string body);
  // Answers a request that no handler sees.
  void Refuse(HttpResponse response);
  void Watch();
  void OnWatched(error_code error, size_t num_bytes);
  void Write(HttpResponse response, bool keeps_alive);
  void WriteFilePart();
  void FinishExchange(bool keeps_alive);
  void LoseClient();
  void Linger();
  void Discard();
  void SetPing();
  template <typename Body>
  void SetCommonHeaders(http::response<Body>& response, const HttpHeaders& headers, bool keeps_alive) const;
  void ReleaseBody() { shared_.body_bytes -= std::exchange(reserved_bytes_, 0); }

  beast::tcp_stream stream_;
  Shared& shared_;
  beast::flat_buffer buffer_;
  std::optional<HeadParser> head_parser_;
  std::optional<http::request_parser<http::string_body>> body_parser_;
  std::optional<http::request_parser<http::buffer_body>> sink_parser_;
  std::vector<char> upload_;
  HttpHead head_;
  std::shared_ptr<BodySink> sink_;
  uint64_t reserved_bytes_ = 0;  // of shared_.body_bytes
  unsigned version_ = 11;
  bool is_head_ = false;  // the request wants only the head of the response to GET
  bool wants_keep_alive_ = true;
  bool is_watching_ = false;
  bool is_next_ = false;  // read the next request when the watch has ended
  bool is_closed_ = false;

  std::shared_ptr<SessionExchange> exchange_;
  std::function<void()> gone_;
  std::optional<http::response<http::string_body>> response_;
  std::optional<http::response<http::file_body>> file_;
  std::optional<http::response_serializer<http::file_body>> file_serializer_;
  std::optional<http::response<http::empty_body>> stream_head_;
  std::optional<http::response_serializer<http::empty_body>> serializer_;
  std::shared_ptr<StreamSource> source_;
  std::string piece_;
  bool is_writing_ = false;
  asio::steady_timer ping_;
};

// Hands calls from any thread to the network's thread.
class Session::SessionExchange : public Exchange, public std::enable_shared_from_this<SessionExchange> {
 public:
  SessionExchange(HttpRequest request, std::shared_ptr<BodySink> sink, std::shared_ptr<Session> session)
      : Exchange(std::move(request), std::move(sink)), session_(std::move(session)) {
    ++session_->shared_.num_exchanges;
  }
  // A session ends on the network's thread.
  ~SessionExchange() override {
    Shared& shared = session_->shared_;
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
    if (is_awake_.exchange(true)) return;
    Post([this](Session& session) {
      is_awake_ = false;
      session.Pump();
    });
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
  std::atomic<bool> is_awake_{false};
  bool has_lost_client_ = false;
};

void Session::ReadHead() {
  if (is_closed_) return;
  if (shared_.is_stopping) return Close();
  head_parser_.emplace();
  head_parser_->header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
  head_parser_->body_limit(boost::none);
  stream_.expires_after(Seconds(shared_.options.idle_s));
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
  stream_.expires_after(Seconds(shared_.options.idle_s));
  if (sink_ != nullptr) {
    sink_parser_.emplace(std::move(*head_parser_));
    sink_parser_->body_limit(boost::none);
    upload_.resize(kUploadBufferBytes);
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
  sink_parser_->get().body().data = upload_.data();
  sink_parser_->get().body().size = upload_.size();
  sink_parser_->get().body().more = true;
  http::async_read_some(stream_, buffer_, *sink_parser_, [self = shared_from_this()](error_code error, size_t) {
    if (error && error != http::error::need_buffer) return self->Close();
    const size_t num_bytes = self->upload_.size() - self->sink_parser_->get().body().size;
    if (const absl::Status status = self->sink_->Write({self->upload_.data(), num_bytes}); !status.ok()) {
      self->wants_keep_alive_ = false;
      return self->Refuse(
          self->shared_.handler.ErrorResponse(FaultOf(status) == Fault::kIo ? 507 : 400, Message(status)));
    }
    self->sink_parser_->is_done() ? self->Dispatch("") : self->ReadIntoSink();
  });
}

void Session::Dispatch(std::string body) {
  exchange_ = std::make_shared<SessionExchange>(HttpRequest{std::move(head_), std::move(body)}, std::move(sink_),
                                                shared_from_this());
  Watch();
  // The session may read its next request before the worker is done with this one.
  asio::post(shared_.workers, [exchange = exchange_, num_bytes = std::exchange(reserved_bytes_, 0)] {
    Shared& shared = exchange->session_->shared_;
    shared.handler.Handle(exchange);
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
  if (std::exchange(is_next_, false)) return error && error != asio::error::operation_aborted ? Close() : ReadHead();
  if (error) return LoseClient();
  if (buffer_.size() < kMaxPipelinedBytes) Watch();
}

void Session::LoseClient() {
  if (is_closed_) return;
  Close();
  if (exchange_ != nullptr) exchange_->has_lost_client_ = true;
  exchange_ = nullptr;
  source_ = nullptr;
  if (auto gone = std::exchange(gone_, {})) gone();
}

void Session::SetGone(std::function<void()> gone) { gone_ = std::move(gone); }

template <typename Body>
void Session::SetCommonHeaders(http::response<Body>& response, const HttpHeaders& headers, bool keeps_alive) const {
  response.set(http::field::server, fmt::format("penstock/{}", Version()));
  if (!shared_.options.cors_origin.empty()) {
    response.set(http::field::access_control_allow_origin, shared_.options.cors_origin);
  }
  for (const auto& [name, value] : headers) response.set(name, value);
  response.keep_alive(keeps_alive);
}

void Session::Respond(HttpResponse response) { Write(std::move(response), wants_keep_alive_ && !shared_.is_stopping); }

void Session::Write(HttpResponse response, bool keeps_alive) {
  response_.emplace(static_cast<http::status>(response.status), version_);
  SetCommonHeaders(*response_, response.headers, keeps_alive);
  if (!response.content_type.empty()) response_->set(http::field::content_type, response.content_type);
  response_->body() = std::move(response.body);
  if (!response_->has_content_length()) response_->prepare_payload();
  if (is_head_) response_->body().clear();  // its length stays in the head
  stream_.expires_after(Seconds(shared_.options.write_s));
  http::async_write(stream_, *response_, [self = shared_from_this(), keeps_alive](error_code error, size_t) {
    self->response_.reset();
    error ? self->LoseClient() : self->FinishExchange(keeps_alive);
  });
}

void Session::RespondFile(const std::string& path, const std::string& content_type) {
  file_.emplace(http::status::ok, version_);
  error_code error;
  file_->body().open(path.c_str(), beast::file_mode::scan, error);
  if (error) return Respond(shared_.handler.ErrorResponse(404, "the file is gone"));
  if (is_head_) {
    HttpResponse head{.content_type = content_type};
    head.headers.emplace_back("Content-Length", std::to_string(file_->body().size()));
    return Respond(std::move(head));
  }
  SetCommonHeaders(*file_, {}, wants_keep_alive_ && !shared_.is_stopping);
  file_->set(http::field::content_type, content_type);
  file_->prepare_payload();
  file_serializer_.emplace(*file_);
  WriteFilePart();
}

// A client may take long for a file, but not for a part of it.
void Session::WriteFilePart() {
  stream_.expires_after(Seconds(shared_.options.write_s));
  http::async_write_some(stream_, *file_serializer_, [self = shared_from_this()](error_code error, size_t) {
    if (error) return self->LoseClient();
    if (!self->file_serializer_->is_done()) return self->WriteFilePart();
    const bool keeps_alive = self->file_->keep_alive();
    self->file_serializer_.reset();
    self->file_.reset();
    self->FinishExchange(keeps_alive);
  });
}

void Session::BeginStream(std::shared_ptr<StreamSource> source, const HttpHeaders& headers) {
  source_ = std::move(source);
  stream_head_.emplace(http::status::ok, version_);
  const bool is_chunked = version_ >= 11;
  wants_keep_alive_ = wants_keep_alive_ && is_chunked;
  SetCommonHeaders(*stream_head_, headers, wants_keep_alive_ && !shared_.is_stopping);
  stream_head_->set(http::field::content_type, "text/event-stream; charset=utf-8");
  stream_head_->set(http::field::cache_control, "no-cache");
  stream_head_->chunked(is_chunked);
  serializer_.emplace(*stream_head_);
  is_writing_ = true;
  stream_.expires_after(Seconds(shared_.options.write_s));
  http::async_write_header(stream_, *serializer_, [self = shared_from_this()](error_code error, size_t) {
    self->is_writing_ = false;
    error ? self->LoseClient() : self->Pump();
  });
}

void Session::Pump() {
  if (is_writing_ || source_ == nullptr) return;
  piece_.clear();
  const bool is_end = source_->Take(piece_);
  if (piece_.empty() && !is_end) return SetPing();
  ping_.cancel();
  is_writing_ = true;
  if (version_ >= 11) {
    const std::string size = piece_.empty() ? "" : fmt::format("{:x}\r\n", piece_.size());
    piece_.insert(0, size);
    if (!size.empty()) piece_ += "\r\n";
    if (is_end) piece_ += "0\r\n\r\n";
  }
  stream_.expires_after(Seconds(shared_.options.write_s));
  asio::async_write(stream_, asio::buffer(piece_), [self = shared_from_this(), is_end](error_code error, size_t) {
    self->is_writing_ = false;
    if (error) return self->LoseClient();
    is_end ? self->FinishExchange(self->wants_keep_alive_) : self->Pump();
  });
}

void Session::SetPing() {
  ping_.expires_after(Seconds(shared_.options.ping_s));
  ping_.async_wait([self = shared_from_this()](error_code error) {
    if (error || self->is_writing_ || self->source_ == nullptr) return;
    self->is_writing_ = true;
    self->piece_ = self->source_->Ping();
    if (self->version_ >= 11) self->piece_ = fmt::format("{:x}\r\n{}\r\n", self->piece_.size(), self->piece_);
    self->stream_.expires_after(Seconds(self->shared_.options.write_s));
    asio::async_write(self->stream_, asio::buffer(self->piece_), [self](error_code failed, size_t) {
      self->is_writing_ = false;
      failed ? self->LoseClient() : self->Pump();
    });
  });
}

void Session::FinishExchange(bool keeps_alive) {
  exchange_ = nullptr;
  source_ = nullptr;
  gone_ = nullptr;
  ping_.cancel();
  if (!keeps_alive) return Linger();
  if (!is_watching_) return ReadHead();
  is_next_ = true;
  error_code ignored;
  stream_.socket().cancel(ignored);
}

// A client that still sends would lose the response if the connection closed at once.
void Session::Linger() {
  error_code ignored;
  stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
  if (is_watching_) return Close();  // it had sent everything
  constexpr double kMaxSeconds = 2;
  stream_.expires_after(Seconds(kMaxSeconds));
  Discard();
}

void Session::Discard() {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(kUploadBufferBytes), [self = shared_from_this()](error_code error, size_t) {
    error || self->is_closed_ ? self->Close() : self->Discard();
  });
}

void Session::Close() {
  if (std::exchange(is_closed_, true)) return;
  ReleaseBody();
  ping_.cancel();
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

class HttpServerImpl : public HttpServer {
 public:
  HttpServerImpl(const HttpOptions& options, RequestHandler& handler)
      : shared_(options, handler),
        has_work_(shared_.context.get_executor()),
        acceptor_(shared_.context),
        retry_(shared_.context) {}
  ~HttpServerImpl() override { Stop(0); }

  absl::Status Listen() {
    const HttpOptions& options = shared_.options;
    error_code error;
    const asio::ip::address address =
        asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
    if (error) return UsageError("--host {}: expected an IP address of this machine", options.host);
    const Tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return IoError("cannot listen on {}:{}: {}", options.host, options.port, error.message());
    port_ = acceptor_.local_endpoint().port();
    Accept();
    network_ = std::thread([this] { shared_.context.run(); });
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  int64_t num_connections() const override { return shared_.num_connections; }

  void Drain(double max_seconds) override {
    asio::post(shared_.context, [this] {
      shared_.is_stopping = true;
      error_code ignored;
      acceptor_.close(ignored);
      for (Session* session : sessions_) {
        if (session->is_idle()) session->Close();
      }
    });
    const auto start = Clock::now();
    while (shared_.num_exchanges > 0 && SecondsSince(start) < max_seconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  void Stop(double max_seconds) override {
    if (!network_.joinable()) return;
    Drain(max_seconds);
    shared_.workers.join();
    // The network's thread ends when all that was under way has ended, so that nothing holds a session afterwards.
    asio::post(shared_.context, [this] {
      for (Session* session : std::vector<Session*>(sessions_.begin(), sessions_.end())) session->End();
      retry_.cancel();
      has_work_.reset();
    });
    network_.join();
  }

 private:
  void Accept() {
    acceptor_.async_accept([this](error_code error, Tcp::socket socket) {
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
      if (error) {  // no file descriptors are left, for example
        retry_.expires_after(std::chrono::milliseconds(50));
        return retry_.async_wait([this](error_code failed) {
          if (!failed) Accept();
        });
      }
      if (shared_.num_connections < shared_.options.max_connections) Open(std::move(socket));
      Accept();
    });
  }

  void Open(Tcp::socket socket) {
    error_code ignored;
    socket.set_option(Tcp::no_delay(true), ignored);
    const std::shared_ptr<Session> session(new Session(std::move(socket), shared_), [this](Session* ended) {
      sessions_.erase(ended);
      delete ended;
    });
    sessions_.insert(session.get());
    session->ReadHead();
  }

  absl::flat_hash_set<Session*> sessions_;
  Shared shared_;
  asio::executor_work_guard<asio::io_context::executor_type> has_work_;
  Tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::thread network_;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options, RequestHandler& handler) {
  auto server = std::make_unique<HttpServerImpl>(options, handler);
  PENSTOCK_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace penstock::server
