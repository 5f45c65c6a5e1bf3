// Proves what the HTTP server does with requests that arrive in pieces, together, too long, or whose clients leave.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/server/http/http_server.h"

namespace penstock::server {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// A stream of the given pieces, each of them there when Give() is called.
class Pieces : public StreamSource {
 public:
  bool Take(std::string& out) override {
    const std::lock_guard lock(mutex_);
    out += std::exchange(text_, {});
    return is_end_;
  }
  void Give(std::string_view text, bool is_end) {
    const std::lock_guard lock(mutex_);
    text_ += text;
    is_end_ = is_end;
  }

 private:
  std::mutex mutex_;
  std::string text_;
  bool is_end_ = false;
};

// More than systems keep for a connection.
constexpr size_t kLongBytes = 64 << 20;

// Echoes bodies; keeps exchanges of /hold and /stream for the test; has a long response at /long.
class Handler : public RequestHandler {
 public:
  bool Refuses(const HttpHead& head, HttpResponse& response) override {
    if (head.path != "/refused") return false;
    response = ErrorResponse(401, "no");
    return true;
  }
  std::shared_ptr<BodySink> SinkFor(const HttpHead& head) override {
    return head.path == "/sink" ? std::make_shared<Sink>() : nullptr;
  }
  void Handle(const std::shared_ptr<Exchange>& exchange) override {
    const HttpRequest& request = exchange->request();
    if (request.head.path == "/hold" || request.head.path == "/stream") {
      exchange->OnGone([this] { ++num_gone; });
      if (request.head.path == "/stream") exchange->Stream(pieces, {});
      const std::lock_guard lock(mutex);
      held.push_back(exchange);
      return has_held.notify_all();
    }
    if (exchange->sink() != nullptr) {
      return exchange->Respond({.body = std::to_string(static_cast<Sink*>(exchange->sink())->num_bytes)});
    }
    if (request.head.path == "/long") return exchange->Respond({.body = std::string(kLongBytes, 'x')});
    exchange->Respond({.body = request.head.method + " " + request.head.path + " " + request.body});
  }
  HttpResponse ErrorResponse(int status, std::string_view message) override {
    return {.status = status, .body = std::string(message), .content_type = "text/plain"};
  }

  std::shared_ptr<Exchange> WaitHeld() {
    std::unique_lock lock(mutex);
    has_held.wait(lock, [&] { return !held.empty(); });
    const std::shared_ptr<Exchange> exchange = held.front();
    held.pop_front();
    return exchange;
  }

  struct Sink : BodySink {
    absl::Status Write(std::string_view bytes) override {
      num_bytes += bytes.size();
      return num_bytes > 1'000'000 ? InputError("too much") : absl::OkStatus();
    }
    size_t num_bytes = 0;
  };

  std::atomic<int> num_gone{0};
  std::shared_ptr<Pieces> pieces = std::make_shared<Pieces>();
  std::mutex mutex;
  std::condition_variable has_held;
  std::deque<std::shared_ptr<Exchange>> held;
};

class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  void Send(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // the server has closed
      text.remove_prefix(static_cast<size_t>(sent));
    }
  }
  // Reads until the text has come, or until the connection ends.
  std::string Until(std::string_view text) {
    char buffer[4096];
    while (text.empty() || read_.find(text) == std::string::npos) {
      const ssize_t num_bytes = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (num_bytes <= 0) break;
      read_.append(buffer, static_cast<size_t>(num_bytes));
    }
    return std::exchange(read_, {});
  }
  std::string UntilEnd() { return Until(""); }
  std::string WhatIsThere() const {
    char buffer[4096];
    const ssize_t num_bytes = ::recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    return {buffer, num_bytes > 0 ? static_cast<size_t>(num_bytes) : 0};
  }
  void Leave() { fd_ = UniqueFd(); }
  void EndSending() const { EXPECT_EQ(::shutdown(fd_.get(), SHUT_WR), 0); }

 private:
  UniqueFd fd_;
  std::string read_;
};

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    options_.port = 0;
    options_.max_body_bytes = 1000;
    options_.max_bodies_bytes = 2000;
  }
  ~HttpServerTest() override {
    if (server_ != nullptr) server_->Stop(0);  // no worker holds another exchange from now on
    handler_.held.clear();                     // the server outlives all exchanges
  }
  void Start() { server_ = *HttpServer::Start(options_, handler_); }
  Client Connect() const { return Client(server_->port()); }
  static std::string Post(std::string_view path, std::string_view body) {
    return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", path, body.size(), body);
  }
  // Waits for what another thread does.
  template <typename Condition>
  static bool Eventually(const Condition& condition) {
    for (int i = 0; i < 20'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
  }

  HttpOptions options_;
  Handler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AConnectionServesManyRequests) {
  Start();
  Client client = Connect();
  for (int i = 0; i < 3; ++i) {
    client.Send(Post("/a%20b?q", std::to_string(i)));
    const std::string response = client.Until(fmt::format("POST /a b {}", i));
    EXPECT_THAT(response, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(response, HasSubstr("Content-Type: application/json\r\n"));
  }
}

TEST_F(HttpServerTest, RequestsMayArriveByteByByteOrTogether) {
  Start();
  Client slow = Connect();
  for (const char c : Post("/slow", "body")) slow.Send({&c, 1});
  EXPECT_THAT(slow.Until("/slow body"), HasSubstr("200 OK"));
  Client fast = Connect();
  fast.Send(Post("/1", "a") + Post("/2", "b") + Post("/3", "c"));
  const std::string all = fast.Until("/3 c");
  EXPECT_LT(all.find("/1 a"), all.find("/2 b"));
  EXPECT_LT(all.find("/2 b"), all.find("/3 c"));
}

TEST_F(HttpServerTest, ChunkedBodiesAndContinue) {
  Start();
  Client client = Connect();
  client.Send("POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(client.Until("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue"));
  client.Send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_THAT(client.Until("/c abcde"), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, TooLongIsRefused) {
  Start();
  Client client = Connect();
  client.Send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'x'));
  EXPECT_THAT(client.UntilEnd(), StartsWith("HTTP/1.1 413 "));
  Client chunked = Connect();
  chunked.Send("POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n500\r\n" + std::string(0x500, 'x'));
  EXPECT_THAT(chunked.UntilEnd(), StartsWith("HTTP/1.1 413 "));
  Client head = Connect();
  head.Send("GET /x HTTP/1.1\r\nA: " + std::string(20'000, 'x'));
  EXPECT_THAT(head.UntilEnd(), StartsWith("HTTP/1.1 431 "));
  Client garbage = Connect();
  garbage.Send("\x16\x03\x01 hello\r\n\r\n");
  EXPECT_THAT(garbage.UntilEnd(), StartsWith("HTTP/1.1 400 "));
}

TEST_F(HttpServerTest, AllBodiesTogetherHaveALimit) {
  options_.num_workers = 1;
  Start();
  // Bodies that are still arriving count.
  std::vector<Client> arriving;
  for (int i = 0; i < 2; ++i) {
    arriving.push_back(Connect());
    arriving.back().Send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\nExpect: 100-continue\r\n\r\n");
    EXPECT_THAT(arriving.back().Until("\r\n\r\n"), HasSubstr("100 Continue"));
  }
  Client full = Connect();
  full.Send(Post("/x", std::string(900, 'x')));
  const std::string response = full.UntilEnd();
  EXPECT_THAT(response, StartsWith("HTTP/1.1 429 "));
  EXPECT_THAT(response, HasSubstr("Retry-After: 1\r\n"));
  arriving.clear();
  EXPECT_TRUE(Eventually([&] {
    Client next = Connect();
    next.Send(Post("/x", std::string(900, 'x')));
    return next.Until("\r\n\r\n").starts_with("HTTP/1.1 200");
  }));
}

TEST_F(HttpServerTest, LongResponsesThatNobodyReadsHaveALimit) {
  Start();
  Client slow = Connect();
  slow.Send(Post("/long", ""));
  EXPECT_THAT(slow.Until("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  Client next = Connect();
  next.Send(Post("/long", ""));
  const std::string response = next.Until("try again");
  EXPECT_THAT(response, StartsWith("HTTP/1.1 429 "));
  EXPECT_THAT(response, HasSubstr("Retry-After: 1\r\n"));
  next.Send(Post("/x", "short"));
  EXPECT_THAT(next.Until("/x short"), StartsWith("HTTP/1.1 200 "));
  Client stream = Connect();
  stream.Send(Post("/stream", ""));
  const std::shared_ptr<Exchange> exchange = handler_.WaitHeld();
  handler_.pieces->Give(std::string(kLongBytes, 'x'), false);
  exchange->Wake();
  EXPECT_TRUE(Eventually([&] { return handler_.num_gone == 1; }));
  slow.Leave();
  EXPECT_TRUE(Eventually([&] {
    Client again = Connect();
    again.Send(Post("/long", ""));
    return again.Until("\r\n\r\n").starts_with("HTTP/1.1 200");
  }));
}

TEST_F(HttpServerTest, RefusalsKeepTheConnectionIfNoBodyFollows) {
  Start();
  Client client = Connect();
  client.Send("GET /refused HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.Until("no"), StartsWith("HTTP/1.1 401 "));
  client.Send(Post("/next", ""));
  EXPECT_THAT(client.Until("/next"), StartsWith("HTTP/1.1 200 "));
  client.Send(Post("/refused", "body"));
  EXPECT_THAT(client.UntilEnd(), HasSubstr("Connection: close\r\n"));
}

TEST_F(HttpServerTest, StreamsComeInPiecesAndEnd) {
  Start();
  Client client = Connect();
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = handler_.WaitHeld();
  handler_.pieces->Give("data: 1\n\n", false);
  exchange->Wake();
  EXPECT_THAT(client.Until("9\r\ndata: 1\n\n\r\n"), HasSubstr("Content-Type: text/event-stream"));
  handler_.pieces->Give("data: 2\n\n", true);
  exchange->Wake();
  EXPECT_THAT(client.Until("0\r\n\r\n"), HasSubstr("9\r\ndata: 2\n\n\r\n"));
  client.Send(Post("/next", ""));
  EXPECT_THAT(client.Until("/next"), HasSubstr("200 OK"));
  EXPECT_EQ(handler_.num_gone, 0);
}

TEST_F(HttpServerTest, TheFirstPieceGoesOutAtOnceAndOthersInTime) {
  options_.min_piece_s = options_.max_piece_s = 3600;
  Start();
  Client client = Connect();
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = handler_.WaitHeld();
  handler_.pieces->Give("data: 1\n\n", false);
  exchange->Wake();
  EXPECT_THAT(client.Until("data: 1\n\n\r\n"), HasSubstr("9\r\ndata: 1\n\n\r\n"));
  // After a response to another client, the network's thread has done what Wake() asked for before.
  Client other = Connect();
  other.Send(Post("/x", ""));
  EXPECT_THAT(other.Until("/x"), HasSubstr("200 OK"));
  handler_.pieces->Give("data: 2\n\n", false);
  exchange->Wake();
  other.Send(Post("/y", ""));
  EXPECT_THAT(other.Until("/y"), HasSubstr("200 OK"));
  EXPECT_EQ(client.WhatIsThere(), "");
  client.Leave();
  EXPECT_TRUE(Eventually([&] { return handler_.num_gone == 1; }));
}

TEST_F(HttpServerTest, ManyPiecesArriveWholeAndInOrder) {
  options_.min_piece_s = options_.max_piece_s = 0.001;
  Start();
  Client client = Connect();
  client.Send("GET /stream HTTP/1.0\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = handler_.WaitHeld();
  std::string all = "\r\n\r\n";
  for (int i = 0; i < 2000; ++i) {
    const std::string piece = fmt::format("data: {}\n\n", i);
    all += piece;
    handler_.pieces->Give(piece, i == 1999);
    exchange->Wake();
  }
  EXPECT_THAT(client.UntilEnd(), EndsWith(all));
}

TEST_F(HttpServerTest, StreamsOfOldClientsEndWithTheConnection) {
  Start();
  Client client = Connect();
  client.Send("GET /stream HTTP/1.0\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = handler_.WaitHeld();
  handler_.pieces->Give("data: 1\n\n", true);
  exchange->Wake();
  EXPECT_THAT(client.UntilEnd(), EndsWith("\r\n\r\ndata: 1\n\n"));
}

TEST_F(HttpServerTest, SilentStreamsArePinged) {
  options_.ping_s = 0.01;
  Start();
  Client client = Connect();
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.Until(": ping\n\n"), HasSubstr("8\r\n: ping\n\n"));
}

TEST_F(HttpServerTest, ClientsThatLeaveAreNoticed) {
  Start();
  for (const std::string path : {"/hold", "/stream"}) {
    Client client = Connect();
    client.Send(Post(path, ""));
    const std::shared_ptr<Exchange> exchange = handler_.WaitHeld();
    const int num_gone = handler_.num_gone;
    client.Leave();
    EXPECT_TRUE(Eventually([&] { return handler_.num_gone == num_gone + 1; })) << path;
    std::atomic<bool> at_once{false};
    exchange->OnGone([&] { at_once = true; });
    EXPECT_TRUE(Eventually([&] { return at_once.load(); }));
    exchange->Respond({.body = "too late"});
  }
  EXPECT_TRUE(Eventually([&] { return server_->num_connections() == 0; }));
}

TEST_F(HttpServerTest, ClientsMayEndSendingBeforeTheResponse) {
  Start();
  for (const std::string version : {"1.1", "1.0"}) {
    Client client = Connect();
    client.Send("GET /hold HTTP/" + version + "\r\nHost: x\r\n\r\n");
    client.EndSending();
    const std::shared_ptr<Exchange> exchange = handler_.WaitHeld();
    std::string response = client.Until("HT");  // sent ahead, to find out whether the client is there
    exchange->Respond({.body = "held"});
    response += client.UntilEnd();
    EXPECT_THAT(response, AllOf(StartsWith("HTTP/" + version + " 200 OK\r\n"), EndsWith("\r\n\r\nheld")));
  }
  Client client = Connect();
  client.Send(Post("/1", "a") + "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  client.EndSending();
  const std::shared_ptr<Exchange> exchange = handler_.WaitHeld();
  EXPECT_THAT(client.Until(": ping\n\n"), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("POST /1 a")));
  handler_.pieces->Give("data: 1\n\n", true);
  exchange->Wake();
  EXPECT_THAT(client.UntilEnd(), EndsWith("9\r\ndata: 1\n\n\r\n0\r\n\r\n"));
  EXPECT_EQ(handler_.num_gone, 0);
}

TEST_F(HttpServerTest, ClientsThatEndSendingMayLeaveLater) {
  Start();
  for (const std::string path : {"/hold", "/stream"}) {
    Client client = Connect();
    client.Send(Post(path, ""));
    client.EndSending();
    const std::shared_ptr<Exchange> exchange = handler_.WaitHeld();
    EXPECT_NE(client.Until(path == "/hold" ? "H" : "ping"), "");
    const int num_gone = handler_.num_gone;
    client.Leave();
    EXPECT_TRUE(Eventually([&] { return handler_.num_gone == num_gone + 1; })) << path;
  }
}

TEST_F(HttpServerTest, LargeBodiesGoToSinks) {
  Start();
  Client client = Connect();
  client.Send(Post("/sink", std::string(500'000, 'x')));
  EXPECT_THAT(client.Until("500000"), HasSubstr("200 OK"));
  Client large = Connect();
  large.Send(Post("/sink", std::string(3'000'000, 'x')));
  EXPECT_THAT(large.UntilEnd(), AllOf(StartsWith("HTTP/1.1 400 "), EndsWith("too much")));
}

TEST_F(HttpServerTest, ResponsesUnderWayEndBeforeTheServer) {
  Start();
  Client client = Connect();
  client.Send(Post("/hold", ""));
  std::shared_ptr<Exchange> exchange = handler_.WaitHeld();
  Client idle = Connect();
  std::thread stopper([&] { server_->Stop(60); });
  exchange->Respond({.body = "held"});
  exchange.reset();
  EXPECT_THAT(client.UntilEnd(), HasSubstr("held"));
  stopper.join();
  EXPECT_EQ(idle.UntilEnd(), "");
}

TEST_F(HttpServerTest, AddressesAreChecked) {
  options_.host = "no address";
  EXPECT_EQ(FaultOf(HttpServer::Start(options_, handler_).status()), Fault::kUsage);
  options_.host = "127.0.0.1";
  Start();
  options_.port = server_->port();
  EXPECT_EQ(FaultOf(HttpServer::Start(options_, handler_).status()), Fault::kIo);
}

}  // namespace
}  // namespace penstock::server
