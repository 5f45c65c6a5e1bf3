#include "penstock/server/http/http_server.h"

#include <thread>

#include <boost/asio.hpp>

#include "absl/container/flat_hash_set.h"
#include "penstock/base/clock.h"
#include "penstock/base/status.h"
#include "penstock/server/http/session.h"

namespace penstock::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Tcp = asio::ip::tcp;

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
      shared_.early_timer.cancel();
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
    socket.non_blocking(true, ignored);
    const std::shared_ptr<Session> session(new Session(std::move(socket), shared_), [this](Session* ended) {
      sessions_.erase(ended);
      delete ended;
    });
    sessions_.insert(session.get());
    session->ReadHead();
  }

  absl::flat_hash_set<Session*> sessions_;
  SharedState shared_;
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
