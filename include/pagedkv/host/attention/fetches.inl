// Prefetching into the second-level cache, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

inline constexpr auto cache_line = 64;  // in bytes; an upper bound
inline constexpr auto strip_tokens = 16;

/// Rows of keys, or values, of neighbouring tokens: those of a block, if possible.
struct strip {
  const std::byte* rows = nullptr;  // plus the offset of a row
  const std::int64_t* offsets = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t num_rows = 0;
};

/// Prefetches rows of a strip, in order, into the second-level cache.
PAGEDKV_INLINE void fetch_rows(const strip& s, std::int64_t first, std::int64_t end) {
  for (auto i = first; i < std::min<std::int64_t>(end, s.num_rows); ++i) {
    for (auto line = std::int64_t{0}; line < s.row_bytes; line += cache_line) {
      __builtin_prefetch(s.rows + s.offsets[i] + line, 0, 2);
    }
  }
}

/// Reads every line of a strip, in order, so that the processor's own prefetching follows.
PAGEDKV_INLINE void read_rows(const strip& s) {
  constexpr auto together = 4 * cache_line;
  const auto read_byte = [](const std::byte* from) {
    static_cast<void>(*reinterpret_cast<const volatile unsigned char*>(from));
  };
  for (auto i = std::int64_t{0}; i < s.num_rows; ++i) {
    const auto* at = s.rows + s.offsets[i];
    const auto* const end = at + s.row_bytes;
    for (; at + together <= end; at += together) {
      PAGEDKV_UNROLL for (auto line = 0; line < together; line += cache_line) { read_byte(at + line); }
    }
    for (; at < end; at += cache_line) {
      read_byte(at);
    }
  }
}

/// Prefetches what is due when rows of the current strip are processed. The start of the strip after the next one
/// makes the processor's own prefetching follow it.
PAGEDKV_INLINE void fetch_ahead(const strip& next, const strip& later, std::int64_t first, std::int64_t end) {
  constexpr auto start_bytes = std::int64_t{512};
  fetch_rows(next, first, end);
  if (first * later.row_bytes < start_bytes) {
    fetch_rows(later, first, end);
  }
}

/// Rows of neighbouring tokens, each of one KV head or several.
struct row_run {
  const std::byte* first = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t stride = 0;  // in bytes
  std::int64_t num_rows = 0;
};

/// Memory to prefetch, in order. The processor's own prefetching ends at each page, so the start of a page is requested
/// one page ahead. Requests are due at even distances: a core has few of them under way, and its loads wait for the
/// same places.
class fetch_queue {
 public:
  PAGEDKV_INLINE void clear() { num_parts_ = current_ = 0; }

  PAGEDKV_NOINLINE void append(const row_run& rows) {
    if (rows.stride == rows.row_bytes) {
      append(rows.first, rows.num_rows * rows.row_bytes);
      return;
    }
    for (auto i = std::int64_t{0}; i < rows.num_rows; ++i) {
      append(rows.first + i * rows.stride, rows.row_bytes);
    }
  }

  /// Begins with what was appended.
  PAGEDKV_INLINE void start() {
    current_ = -1;
    begin_part();
  }

  /// Takes some of the memory, which the caller prefetches. If it is not contiguous, prefetches it at once and returns
  /// null.
  PAGEDKV_INLINE const std::byte* take(std::int64_t size) {
    if (end_ - at_ < size) {
      fetch(size);
      return nullptr;
    }
    const auto* const taken = at_;
    at_ += size;
    if (at_ == end_) {
      begin_part();
    }
    return taken;
  }

  /// Prefetches some of the memory.
  PAGEDKV_INLINE void fetch(std::int64_t size) {
    for (; size > 0 && at_ != end_; size -= cache_line) {
      __builtin_prefetch(at_, 0, 2);
      at_ += std::min<std::int64_t>(cache_line, end_ - at_);
      if (at_ == end_) {
        begin_part();
      }
    }
  }

  PAGEDKV_NOINLINE void fetch_rest() {
    while (at_ != end_) {
      fetch(page_bytes);
    }
  }

 private:
  static constexpr auto page_bytes = std::int64_t{4096};
  static constexpr auto start_bytes = std::int64_t{512};
  static constexpr auto most_parts = 4 * tile_tokens;

  /// Appends the parts in each page. Parts beyond the capacity are not prefetched.
  PAGEDKV_INLINE void append(const std::byte* begin, std::int64_t size) {
    while (size > 0 && num_parts_ < most_parts) {
      const auto left = page_bytes - static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin) % page_bytes);
      const auto part = std::min(size, left);
      if (num_parts_ != 0 && ends_[num_parts_ - 1] == begin && left != page_bytes) {
        ends_[num_parts_ - 1] += part;
      } else {
        begins_[num_parts_] = begin;
        ends_[num_parts_] = begin + part;
        ++num_parts_;
      }
      begin += part;
      size -= part;
    }
  }

  PAGEDKV_INLINE void begin_part() {
    ++current_;
    if (current_ >= num_parts_) {
      at_ = end_;
      return;
    }
    at_ = begins_[current_];
    end_ = ends_[current_];
    if (current_ + 1 < num_parts_) {
      PAGEDKV_UNROLL for (auto i = std::int64_t{0}; i < start_bytes; i += cache_line) {
        __builtin_prefetch(begins_[current_ + 1] + i, 0, 2);
      }
    }
  }

  const std::byte* begins_[most_parts];
  const std::byte* ends_[most_parts];
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;
  std::int32_t num_parts_ = 0;
  std::int32_t current_ = 0;
};

/// Prefetches so many bytes, and returns their end. Null: nothing.
template <std::int64_t Size>
PAGEDKV_INLINE const std::byte* fetch_lines(const std::byte* from) {
  if (from == nullptr) {
    return nullptr;
  }
  PAGEDKV_UNROLL for (auto i = std::int64_t{0}; i < Size; i += cache_line) { __builtin_prefetch(from + i, 0, 2); }
  return from + Size;
}

/// Prefetches the end of a row behind `fetch_lines`: each line that ends there, because the next row requests the last
/// one if they share it.
PAGEDKV_NOINLINE void fetch_row_end(const std::byte* from, std::int64_t size) {
  for (; from != nullptr && size > 0; from += cache_line, size -= cache_line) {
    if (static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(from) % cache_line) + size >= cache_line) {
      __builtin_prefetch(from, 0, 2);
    }
  }
}

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
