#pragma once

#include <pagedkv/core/result.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace pagedkv {

/// Where a store listens.
struct redis_endpoint {
  std::string host = "127.0.0.1";  // with port 0: the path of a socket in the file system
  std::uint16_t port = 6'379;

  friend bool operator==(const redis_endpoint&, const redis_endpoint&) = default;
};

/// How to reach a store and how long to try. `parse_redis_url` makes one of a URL.
struct redis_config {
  std::vector<redis_endpoint> endpoints{redis_endpoint{}};  // of one store, or of some nodes of one cluster
  std::string user = {};                                    // the store's default user when empty
  std::string password = {};                                // none when empty
  std::int32_t database = 0;                                // a cluster has only this one
  std::chrono::milliseconds connect_timeout{1'000};         // of a connection with its handshake
  std::chrono::milliseconds shortest_pause{10};             // between attempts to connect; doubles up to the longest
  std::chrono::milliseconds longest_pause{1'000};
  std::chrono::milliseconds time_to_live{0};                 // of values; 0: until the store makes room
  std::size_t max_in_flight_bytes = std::size_t{768} << 10;  // per node; two values may exceed it
};

namespace detail {

[[nodiscard]] inline std::optional<std::string> without_percents(std::string_view text) {
  auto plain = std::string{};
  for (auto i = std::size_t{0}; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain.push_back(text[i]);
      continue;
    }
    const auto digits = text.substr(i + 1, 2);
    auto value = 0U;
    if (digits.size() != 2 || std::from_chars(digits.data(), digits.data() + 2, value, 16).ptr != digits.data() + 2) {
      return {};
    }
    plain.push_back(static_cast<char>(value));
    i += 2;
  }
  return plain;
}

[[nodiscard]] inline std::optional<std::uint16_t> small_number(std::string_view text) noexcept {
  auto number = std::uint16_t{0};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc{} && end == text.data() + text.size() ? std::optional{number} : std::nullopt;
}

/// `host`, `host:port` or `[address]:port`.
[[nodiscard]] inline std::optional<redis_endpoint> parse_redis_endpoint(std::string_view text) {
  auto endpoint = redis_endpoint{};
  auto port = std::string_view{};
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == text.npos || (close + 1 < text.size() && text[close + 1] != ':')) {
      return {};
    }
    endpoint.host = text.substr(1, close - 1);
    port = text.substr(std::min(close + 2, text.size()));
  } else {
    const auto colon = text.rfind(':');
    endpoint.host = text.substr(0, colon);
    port = colon == text.npos ? std::string_view{} : text.substr(colon + 1);
  }
  if (!port.empty()) {
    const auto number = small_number(port);
    if (!number || *number == 0) {
      return {};
    }
    endpoint.port = *number;
  }
  return endpoint.host.empty() ? std::nullopt : std::optional{std::move(endpoint)};
}

}  // namespace detail

/// `redis://[[user]:password@]host[:port][,host[:port]…][/database]`, where several hosts are nodes of one cluster, or
/// `unix://[[user]:password@]/path`. Percent signs in user and password escape bytes. `rediss://` is refused: there is
/// no TLS. Errors: `invalid_argument`, whose value is the byte of the URL. Throws `std::bad_alloc`.
[[nodiscard]] inline result<redis_config> parse_redis_url(std::string_view url) {
  const auto whole = url;
  const auto refuse = [&](const char* what) {
    return error{error_code::invalid_argument, what, std::ssize(whole) - std::ssize(url)};
  };
  const auto tcp = url.starts_with("redis://");
  if (!tcp && !url.starts_with("unix://")) {
    return refuse(url.starts_with("rediss://") ? "byte of a URL that asks for TLS, which there is not,"
                                                 : "byte of a URL where redis:// or unix:// is missing");
  }
  url.remove_prefix(url.find("//") + 2);
  auto config = redis_config{};
  if (const auto at = url.rfind('@'); at != url.npos) {
    const auto login = url.substr(0, at);
    const auto colon = login.find(':');
    auto user = detail::without_percents(login.substr(0, colon));
    auto password = detail::without_percents(colon == login.npos ? std::string_view{} : login.substr(colon + 1));
    if (!user || !password) {
      return refuse("byte of a URL after which digits do not follow a percent sign");
    }
    config.user = *std::move(user);
    config.password = *std::move(password);
    url.remove_prefix(at + 1);
  }
  config.endpoints.clear();
  if (!tcp) {
    config.endpoints.push_back({std::string{url}, 0});
    return url.starts_with('/') ? result<redis_config>{std::move(config)}
                                : refuse("byte of a URL where a path is missing");
  }
  if (const auto slash = url.find('/'); slash != url.npos) {
    const auto database = url.substr(slash + 1);
    const auto number = detail::small_number(database.empty() ? "0" : database);
    if (!number) {
      return refuse("byte of a URL after which the database is no number");
    }
    config.database = *number;
    url = url.substr(0, slash);
  }
  for (auto more = true; more;) {
    const auto comma = url.find(',');
    auto endpoint = detail::parse_redis_endpoint(url.substr(0, comma));
    if (!endpoint) {
      return refuse("byte of a URL where host or port is wrong");
    }
    config.endpoints.push_back(*std::move(endpoint));
    more = comma != url.npos;
    url.remove_prefix(more ? comma + 1 : url.size());
  }
  return config;
}

}  // namespace pagedkv
