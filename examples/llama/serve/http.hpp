#pragma once

#include "api.hpp"
#include "service.hpp"

#include <httplib.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace llama {

/// OpenAI's interface, metrics for Prometheus and a page that shows the pool, over HTTP.
class http_server {
 public:
  /// `model` and `with` outlive the server. Serves so many connections at once; others wait. Throws `std::system_error`
  /// where so many threads cannot be had.
  http_server(const served_model& model, service& with, std::size_t num_connections);

  /// Returns the port, a free one for 0; -1 if it cannot be had.
  [[nodiscard]] int bind(const std::string& host, int port);
  /// Serves until another thread calls `stop`, or returns at once if one has.
  void listen() { server_.listen_after_bind(); }
  void stop() {
    ends_ = true;
    server_.close_socket();
  }

 private:
  class listening_server : public httplib::Server {
   public:
    /// Lets more clients connect at once than the five that the library lets wait for a thread.
    void lengthen_queue();
    /// Ends `listen_after_bind`. The library's `stop` does nothing where that has not begun yet.
    void close_socket();
  };

  void complete(const httplib::Request& request, httplib::Response& response, const httplib::ContentReader& read,
                bool is_chat);
  /// Nothing where the connection broke, or the server stops.
  [[nodiscard]] std::optional<std::string> read_body(const httplib::Request& request,
                                                     const httplib::ContentReader& read) const;
  [[nodiscard]] std::string metrics() const;

  const served_model& model_;
  service& service_;
  std::unique_ptr<httplib::TaskQueue> threads_;  // none: the library has them
  listening_server server_;
  std::atomic<bool> ends_ = false;
  std::atomic<std::int64_t> num_completions_ = 0;
};

}  // namespace llama
