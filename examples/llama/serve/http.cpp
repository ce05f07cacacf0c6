#include "http.hpp"

#include "page.hpp"

#include <pagedkv/metrics/prometheus.hpp>

#include <nlohmann/json.hpp>

#include <netdb.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace llama {

namespace {

constexpr auto json_type = "application/json";
constexpr auto most_bytes = std::size_t{16} << 20;  // of a request
constexpr auto too_long = "the request is longer than 16 MiB";
constexpr auto not_understood = "the request is no HTTP that the server understands";
constexpr auto anywhere = ".*";  // a path

/// Between looks whether a client is still there.
constexpr auto patience = std::chrono::milliseconds(100);

void answer_with(httplib::Response& response, const refusal& reason) {
  response.status = reason.status;
  response.set_content(text_of(reason.body()), json_type);
  if (reason.status == 413) {  // some of it may not have been read
    response.set_header("Connection", "close");
  }
}

refusal unknown(const httplib::Request& request) {
  return refusal(404, "there is no " + request.method + " " + request.path);
}

/// The socket whose other end is the client's; -1 if none is. A handler learns only the addresses of its connection.
int socket_of(const httplib::Request& request) {
  auto ignored = std::error_code{};
  auto each = std::filesystem::directory_iterator("/dev/fd", ignored);
  for (; !ignored && each != std::filesystem::directory_iterator(); each.increment(ignored)) {
    const auto descriptor = std::atoi(each->path().filename().c_str());
    auto address = sockaddr_storage{};
    auto size = static_cast<socklen_t>(sizeof address);
    auto* const peer = reinterpret_cast<sockaddr*>(&address);
    auto host = std::array<char, NI_MAXHOST>{};
    auto port = std::array<char, NI_MAXSERV>{};
    if (::getpeername(descriptor, peer, &size) == 0 &&
        ::getnameinfo(peer, size, host.data(), host.size(), port.data(), port.size(),
                      NI_NUMERICHOST | NI_NUMERICSERV) == 0 &&
        request.remote_addr == host.data() && std::to_string(request.remote_port) == port.data()) {
      return descriptor;
    }
  }
  return -1;
}

/// Whether the other end is closed. Bytes that a client has sent ahead stay for the library to read.
bool is_closed(int socket) {
  auto byte = char{};
  const auto received = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return received == 0 || (received < 0 && (errno == ECONNRESET || errno == ETIMEDOUT));
}

/// Waits for all answers. Throws `refusal` where one fails, and where the client has gone.
std::string whole_answer(completion& made, service::ticket& of, int socket) {
  while (!made.is_complete()) {
    if (is_closed(socket)) {
      throw refusal(400, "the client has closed the connection");
    }
    static_cast<void>(made.add(of.take(patience), [&](std::size_t answer) { of.cancel(answer); }));
  }
  return made.body();
}

/// A stream under way: what a connection sends, from the engine's news. Gone with the connection, and the answers with
/// it.
class transmission {
 public:
  transmission(completion_request request, const served_model& by, std::int64_t number, service::ticket of)
      : made_(std::move(request), by, number, std::time(nullptr)), ticket_(std::move(of)) {}

  /// Sends what there is. Returns false when the client has gone. No caller would catch what is thrown.
  bool advance(httplib::DataSink& sink) {
    try {
      return send_news(sink);
    } catch (const std::exception& error) {
      const auto text = event_of(refusal(500, error.what()).body());
      const bool is_sent = sink.write(text.data(), text.size());
      sink.done();
      return is_sent;
    }
  }

 private:
  bool send_news(httplib::DataSink& sink) {
    if (!sink.is_writable()) {
      return false;
    }
    auto text = std::exchange(has_begun_, true) ? std::string{} : made_.begin();
    text += made_.add(ticket_.take(patience), [&](std::size_t answer) { ticket_.cancel(answer); });
    if (made_.is_complete()) {
      text += made_.end();
    }
    if (!text.empty() && !sink.write(text.data(), text.size())) {
      return false;
    }
    if (made_.is_complete()) {
      sink.done();
    }
    return true;
  }

  completion made_;
  service::ticket ticket_;
  bool has_begun_ = false;
};

/// `bool` in newer versions of the library, `void` in older ones.
using enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue(std::function<void()>()));

/// The library's own threads end the process where one of them cannot be had.
class connection_threads final : public httplib::TaskQueue {
 public:
  explicit connection_threads(std::size_t count) {
    try {
      while (threads_.size() < count) {
        threads_.emplace_back([this] { work(); });
      }
    } catch (const std::system_error& error) {
      shutdown();
      throw std::system_error(error.code(), std::to_string(count) + " threads for connections cannot be had");
    }
  }
  ~connection_threads() override { shutdown(); }

  enqueued enqueue(std::function<void()> serve) override {
    const auto lock = std::lock_guard(mutex_);
    accepted_.push(std::move(serve));
    came_.notify_one();
    return static_cast<enqueued>(true);
  }
  void shutdown() override {
    {
      const auto lock = std::lock_guard(mutex_);
      ends_ = true;
      came_.notify_all();
    }
    std::ranges::for_each(threads_, &std::thread::join);
    threads_.clear();
  }

 private:
  void work() {
    for (auto lock = std::unique_lock(mutex_);;) {
      came_.wait(lock, [&] { return ends_ || !accepted_.empty(); });
      if (accepted_.empty()) {
        return;
      }
      const auto serve = std::move(accepted_.front());
      accepted_.pop();
      lock.unlock();
      serve();
      lock.lock();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable came_;
  std::queue<std::function<void()>> accepted_;
  bool ends_ = false;
};

}  // namespace

http_server::http_server(const served_model& model, service& with, std::size_t num_connections)
    : model_(model), service_(with), threads_(std::make_unique<connection_threads>(num_connections)) {
  server_.new_task_queue = [this] { return threads_.release(); };
  server_.set_payload_max_length(most_bytes);
  server_.set_tcp_nodelay(true);
  const auto get = [&](const char* path, auto make, const char* type) {
    server_.Get(path, [make, type](const httplib::Request&, httplib::Response& response) {
      response.set_content(make(), type);
    });
  };
  get("/", [] { return std::string(page); }, "text/html; charset=utf-8");
  get("/health", [] { return text_of({{"status", "ok"}}); }, json_type);
  get("/metrics", [this] { return metrics(); }, "text/plain; version=0.0.4");
  get("/v1/models", [this] { return list_models(model_); }, json_type);
  for (const bool is_chat : {false, true}) {
    server_.Post(is_chat ? "/v1/chat/completions" : "/v1/completions",
                 [this, is_chat](const httplib::Request& request, httplib::Response& response,
                                 const httplib::ContentReader& read) { complete(request, response, read, is_chat); });
  }
  // Without a reader, the library keeps a body in chunks however long it is, and refuses a form for its length.
  const auto drop = [this](const httplib::Request& request, httplib::Response&, const httplib::ContentReader& read) {
    if (read_body(request, read)) {
      throw unknown(request);
    }
  };
  server_.Post(anywhere, drop).Put(anywhere, drop).Patch(anywhere, drop);
  server_.set_error_handler(httplib::Server::Handler([](const httplib::Request& request, httplib::Response& response) {
    if (response.body.empty()) {
      const auto* const reason = response.status == 413 ? too_long : not_understood;
      answer_with(response, response.status == 404 ? unknown(request) : refusal(response.status, reason));
    }
  }));
  server_.set_exception_handler([](const httplib::Request&, httplib::Response& response, std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const refusal& reason) {
      answer_with(response, reason);
    } catch (const std::exception& error) {
      answer_with(response, refusal(500, error.what()));
    }
  });
}

void http_server::listening_server::lengthen_queue() { ::listen(svr_sock_, SOMAXCONN); }

void http_server::listening_server::close_socket() { ::shutdown(svr_sock_, SHUT_RDWR); }

int http_server::bind(const std::string& host, int port) {
  const auto bound = port == 0 ? server_.bind_to_any_port(host) : server_.bind_to_port(host, port) ? port : -1;
  if (bound >= 0) {
    server_.lengthen_queue();
  }
  return bound;
}

/// The library would read a body of the type that curl names with `-d` as a form, and refuse it above 8,192 bytes.
std::optional<std::string> http_server::read_body(const httplib::Request& request,
                                                  const httplib::ContentReader& read) const {
  const bool is_packed = request.has_header("Content-Encoding");
  auto body = std::string{};
  auto is_long = false;
  const auto add = [&](const char* data, std::size_t size) {
    is_long = is_long || size > most_bytes - body.size();
    if (!is_long) {
      body.append(data, size);
    }
    // A slow client holds no server that stops, and the rest of a packed body may be a thousand times as long.
    return !ends_ && !(is_long && is_packed);
  };
  if (request.is_multipart_form_data()) {
    if (!read([](const httplib::MultipartFormData& /*part*/) { return true; }, add)) {
      return {};
    }
    throw refusal(415, "the body is a form; JSON is read");
  }
  const bool is_read = read(add);
  if (is_long) {  // in chunks or packed, of which the library counts none
    throw refusal(413, too_long);
  }
  return is_read ? std::optional(std::move(body)) : std::nullopt;
}

void http_server::complete(const httplib::Request& request, httplib::Response& response,
                           const httplib::ContentReader& read, bool is_chat) {
  const auto body = read_body(request, read);
  if (!body) {
    return;  // the library has set a status
  }
  auto wanted = read_completion(*body, is_chat, model_, service_);
  auto ticket = service_.submit(wanted.wanted);
  if (!ticket) {
    throw refusal(400, ticket.error().message());
  }
  const auto number = ++num_completions_;
  response.status = 200;  // also where the client asks for a range, which the library does not cut out of chunks
  if (wanted.streams) {
    const auto sent = std::make_shared<transmission>(std::move(wanted), model_, number, std::move(*ticket));
    response.set_chunked_content_provider(
        "text/event-stream", [sent](std::size_t /*offset*/, httplib::DataSink& sink) { return sent->advance(sink); });
  } else {
    auto made = completion(std::move(wanted), model_, number, std::time(nullptr));
    const auto send = [text = whole_answer(made, *ticket, socket_of(request))](std::size_t, httplib::DataSink& sink) {
      const bool is_sent = sink.write(text.data(), text.size());
      sink.done();
      return is_sent;
    };
    response.set_chunked_content_provider(json_type, send);
  }
}

std::string http_server::metrics() const {
  const auto labels = std::array{pagedkv::metric_label{"model", model_.name}};
  const auto taken = service_.statistics();
  auto text = std::string{};
  pagedkv::append_prometheus(text, taken.cache, labels);
  pagedkv::append_prometheus(text, taken.memory, labels);
  pagedkv::append_prometheus(text, taken.requests, labels);
  pagedkv::append_prometheus(text, taken.engine, labels);
  auto names = std::vector<std::array<pagedkv::metric_label, 2>>{};
  for (const auto& tier : taken.tiers) {
    names.push_back({labels[0], {"tier", tier.name}});
  }
  auto tiers = std::vector<pagedkv::labelled_statistics<pagedkv::tier_statistics>>{};
  for (auto i = std::size_t{0}; i < names.size(); ++i) {
    tiers.push_back({names[i], taken.tiers[i].counts});
  }
  if (!tiers.empty()) {
    pagedkv::append_prometheus(text, tiers);
  }
  return text;
}

}  // namespace llama
