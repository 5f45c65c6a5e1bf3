// An HTTP/1.1 server: connections with limits on bytes, time and number, on one network thread, and workers that handle
// requests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/server/http/exchange.h"

namespace penstock::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: any free one
  int num_workers = 2;
  int max_connections = 4096;     // further ones are closed at once
  uint64_t max_body_bytes = 0;    // of a body in memory
  uint64_t max_bodies_bytes = 0;  // of all bodies in memory together; further requests get status 429
  // Long responses, and long pieces of streams, that clients have not read. Further ones get status 429, or end.
  uint64_t max_responses_bytes = 16 << 20;
  uint64_t max_header_bytes = 16384;  // of a request's head
  double idle_s = 75;                 // time that a connection may wait for a request, and a request may take to arrive
  double write_s = 60;                // time that a client may take to read a piece of a response
  // Time between two pieces of a stream, except that the first token goes out at once. A small model makes a token in a
  // millisecond, and each piece costs the server and its client some 60 us. So 10 streams and more share 500 pieces a
  // second, until a stream has only 10.
  double min_piece_s = 0.02, max_piece_s = 0.1;
  double ping_s = 15;            // between signs of life of a stream that has nothing to say
  std::string cors_origin = {};  // value of Access-Control-Allow-Origin; empty: no such header
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;

  // Binds and listens; connections are accepted from now on. The handler must outlive the server, and the server all
  // exchanges. kUsage for an address
  // that does not exist, kIo for one that is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpOptions& options, RequestHandler& handler);

  virtual int port() const = 0;
  virtual int64_t num_connections() const = 0;
  // Accepts no more connections, and returns when no response is under way, or after so many seconds.
  virtual void Drain(double max_seconds) = 0;
  // The same; then closes all connections.
  virtual void Stop(double max_seconds) = 0;
};

}  // namespace penstock::server
