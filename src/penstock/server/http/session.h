// A connection of the HTTP server. The network's thread alone uses it, except where something else is said.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "penstock/server/http/exchange.h"
#include "penstock/server/http/http_server.h"

namespace penstock::server {

class Session;

// The state that all connections of a server share.
struct SharedState {
  HttpOptions options;
  RequestHandler& handler;
  boost::asio::thread_pool workers;
  bool is_stopping = false;
  std::atomic<int64_t> num_connections{0};
  std::atomic<int64_t> num_exchanges{0};
  std::atomic<uint64_t> body_bytes{0};  // of requests in memory that are not handled yet
  uint64_t response_bytes = 0;          // that long responses have left to write; of the network's thread
  boost::asio::io_context context{1};   // ends before the others: sessions end with it
  // Streams that have more to write before their time; the timer ends when the first one may. All three are of the
  // network's thread.
  double piece_s = options.min_piece_s;
  std::vector<std::weak_ptr<Session>> early;
  boost::asio::steady_timer early_timer{context};

  SharedState(const HttpOptions& http_options, RequestHandler& request_handler)
      : options(http_options), handler(request_handler), workers(static_cast<size_t>(http_options.num_workers)) {}
};

// Reads one request after the other, and writes their responses.
//
// A client that has sent its request may close its side of the connection, and still wants the response. A client that
// has left looks the same until something is sent to it: then its system answers that nobody is there. So a stream gets
// pings sooner. The first bytes of a whole response are sent ahead one by one: they are the same for all responses.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(boost::asio::ip::tcp::socket socket, SharedState& shared);
  ~Session() { --shared_.num_connections; }

  void ReadHead();
  void Close();
  // Closes the connection without a word to anybody.
  void End();
  bool is_idle() const { return exchange_ == nullptr; }

  // These serve the exchange under way.
  void Respond(HttpResponse response);
  void RespondFile(const std::string& path, const std::string& content_type);
  void BeginStream(std::shared_ptr<StreamSource> source, const HttpHeaders& headers);
  // Writes what the stream's source has, but not sooner than the shared `piece_s` after the last time.
  void PumpInTime();
  void SetGone(std::function<void()> gone) { gone_ = std::move(gone); }

  boost::asio::io_context& context() { return shared_.context; }

 private:
  class SessionExchange;
  using error_code = boost::system::error_code;
  template <typename Body>
  using Parser = boost::beast::http::request_parser<Body>;
  using Head = boost::beast::http::response<boost::beast::http::empty_body>;

  void OnHead(error_code error);
  void ReadBody();
  void ReadIntoSink();
  void Dispatch(std::string body);
  // Answers a request that no handler sees.
  void Refuse(HttpResponse response);
  void Watch();
  void OnWatched(error_code error, size_t num_bytes);
  // The client has closed its side: finds out from now on whether it is there.
  void BeginProbing();
  // Sends the next byte of a response's head.
  void Probe();
  void Write(HttpResponse response, bool keeps_alive);
  void WriteFilePart(bool keeps_alive);
  void FinishExchange(bool keeps_alive);
  void LoseClient();
  void Linger();
  void Discard();
  // Sets the time of the next Ping(), which keeps a stream open or finds out whether the client is there.
  void SetPing();
  // Starts the timer, which may end before a ping is due: a stream sets the time of its ping at each piece.
  void StartPingTimer();
  void CancelPing();
  void Ping();
  static void PumpEarly(SharedState& shared);
  void Pump();
  Head NewHead(unsigned status, const HttpHeaders& headers, bool keeps_alive) const;
  // Writes the head and, behind it, response_body_. Then calls `then`, unless the client has left.
  void WriteHead(const Head& head, std::function<void()> then);
  void ReleaseBody() { shared_.body_bytes -= std::exchange(reserved_bytes_, 0); }
  // Counts the bytes that are to be written now. Returns false if clients that do not read hold too many already.
  bool HoldResponse(size_t num_bytes);
  void ReleaseResponse() { shared_.response_bytes -= std::exchange(held_bytes_, 0); }

  boost::beast::tcp_stream stream_;
  SharedState& shared_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser<boost::beast::http::empty_body>> head_parser_;
  std::optional<Parser<boost::beast::http::string_body>> body_parser_;
  std::optional<Parser<boost::beast::http::buffer_body>> sink_parser_;
  std::vector<char> block_;  // of an upload or of a file
  HttpHead head_;
  std::shared_ptr<BodySink> sink_;
  uint64_t reserved_bytes_ = 0;  // of shared_.body_bytes
  uint64_t held_bytes_ = 0;      // of shared_.response_bytes
  unsigned version_ = 11;
  bool is_head_ = false;  // the request wants only the head of the response to GET
  bool wants_keep_alive_ = true;
  bool is_watching_ = false;
  bool is_next_ = false;  // read the next request when the watch has ended
  bool is_half_closed_ = false;
  bool is_closed_ = false;

  std::shared_ptr<SessionExchange> exchange_;
  std::function<void()> gone_;
  std::string response_head_, response_body_;
  boost::beast::file file_;
  uint64_t file_bytes_left_ = 0;
  std::shared_ptr<StreamSource> source_;
  std::string piece_;
  std::chrono::steady_clock::time_point next_piece_time_;
  bool is_writing_ = false;         // a response, or a piece of one
  size_t num_probed_ = 0;           // bytes of the response's head that were sent ahead
  double probe_s_ = 0;              // until the next one
  boost::asio::steady_timer ping_;  // ends at the next ping or probe, or before
  bool is_ping_set_ = false;
  std::chrono::steady_clock::time_point ping_time_;
};

}  // namespace penstock::server
