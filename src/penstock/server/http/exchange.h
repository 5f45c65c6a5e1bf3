// One HTTP request and its response.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace penstock::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// A request without its body.
struct HttpHead {
  std::string method = {};
  std::string path = {};   // without the query; percent-encoding is decoded
  std::string query = {};  // as it was sent, without "?"
  HttpHeaders headers = {};

  // Returns the value of the first header of this name, whatever its case; "" if there is none.
  std::string_view Header(std::string_view name) const;
  // Returns a part of the path between slashes, from 0; "" if there is none.
  std::string Segment(int index) const;
  // Returns a parameter of the query, decoded; "" if there is none.
  std::string Parameter(std::string_view name) const;
};

struct HttpRequest {
  HttpHead head;
  std::string body;  // empty if a BodySink took it
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  HttpHeaders headers = {};
};

// Takes the body of a request piece by piece, for bodies that are too large for memory. The network's thread calls it.
class BodySink {
 public:
  virtual ~BodySink() = default;
  // An error ends the request with status 400 or, if it is kIo, 507.
  virtual absl::Status Write(std::string_view bytes) = 0;
};

// Gives an event stream its text. The network's thread calls it.
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  // Appends what the client should get now, perhaps nothing. Returns whether the stream ends with it.
  virtual bool Take(std::string& out) = 0;
  // Returns what keeps an idle connection open.
  virtual std::string_view Ping() const { return ": ping\n\n"; }
};

// All functions may be called from any thread. A response is either a whole one or a stream.
class Exchange {
 public:
  Exchange(HttpRequest request, std::shared_ptr<BodySink> sink)
      : request_(std::move(request)), sink_(std::move(sink)) {}
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  HttpRequest& request() { return request_; }
  BodySink* sink() { return sink_.get(); }

  virtual void Respond(HttpResponse response) = 0;
  // Responds with a file, which may be larger than memory.
  virtual void RespondFile(std::string path, std::string content_type) = 0;
  // Begins an event stream with status 200.
  virtual void Stream(std::shared_ptr<StreamSource> source, HttpHeaders headers) = 0;
  // Says that the stream's source has more text.
  virtual void Wake() = 0;
  // Calls `gone` once, on the network's thread, if the client leaves before it has the whole response, or has left
  // already.
  virtual void OnGone(std::function<void()> gone) = 0;
  // Runs work on a worker's thread.
  virtual void Run(std::function<void()> work) = 0;

 private:
  HttpRequest request_;
  std::shared_ptr<BodySink> sink_;
};

// Answers requests.
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  // Network's thread, when the head of a request has arrived: a response refuses it before its body is read.
  virtual bool Refuses(const HttpHead& head, HttpResponse& response) = 0;
  // Network's thread: returns where the body goes; nullptr: into memory.
  virtual std::shared_ptr<BodySink> SinkFor(const HttpHead& head) = 0;
  // A worker's thread. Must respond, now or later. The body is there until it returns.
  virtual void Handle(const std::shared_ptr<Exchange>& exchange) = 0;
  // Returns the response for a fault of HTTP itself: a body too large, a request that is not HTTP.
  virtual HttpResponse ErrorResponse(int status, std::string_view message) = 0;
};

// Decodes percent-encoding; "+" stays. Invalid encodings stay as they are.
std::string DecodePercent(std::string_view text);

}  // namespace penstock::server
