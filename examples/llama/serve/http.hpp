#pragma once

#include "api.hpp"
#include "service.hpp"

#include <httplib.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace llama {

/// OpenAI's interface, metrics for Prometheus and a page that shows the pool, over HTTP.
class http_server {
 public:
  /// `model` and `with` outlive the server. Serves so many connections at once; others wait.
  http_server(const served_model& model, service& with, std::size_t num_connections);

  /// Returns the port, a free one for 0; -1 if it cannot be had.
  [[nodiscard]] int bind(const std::string& host, int port);
  /// Serves until another thread calls `stop`, or returns at once if one has.
  void listen() { server_.listen_after_bind(); }
  void stop() { server_.close_socket(); }

 private:
  class listening_server : public httplib::Server {
   public:
    /// Lets more clients connect at once than the five that the library lets wait for a thread.
    void lengthen_queue();
    /// Ends `listen_after_bind`. The library's `stop` does nothing where that has not begun yet.
    void close_socket();
  };

  void complete(const httplib::Request& request, httplib::Response& response, bool is_chat);
  [[nodiscard]] std::string metrics() const;

  const served_model& model_;
  service& service_;
  listening_server server_;
  std::atomic<std::int64_t> num_completions_ = 0;
};

}  // namespace llama
