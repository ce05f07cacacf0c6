#include "slower_tiers.hpp"
#include "../tier/temporary_folder.hpp"

#if defined(PAGEDKV_HAS_LIBURING)
  #include <pagedkv/tier/file_tier.hpp>
#else
  #include <pagedkv/tier/basic_file_tier.hpp>
  #include <pagedkv/tier/file_engine.hpp>
#endif

namespace pagedkv::test {

namespace {

#if !defined(PAGEDKV_HAS_LIBURING)
using file_tier = basic_file_tier<thread_files>;
#endif

/// A file in a folder of its own, which goes with it.
class file_in_folder final : public slower_tier {
 public:
  file_in_folder(std::int64_t num_bytes, const record_format& format)
      : tier_(file_tier::create({folder_.file("records")}, num_bytes, format).value()) {}

  [[nodiscard]] std::int64_t num_places() const noexcept { return tier_.num_places(); }

  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept override {
    tier_.write(batch, outcomes);
  }
  void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept override {
    tier_.read(batch, outcomes);
  }
  void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept override {
    tier_.erase(batch, outcomes);
  }
  void for_each_record(const std::function<void(std::int64_t, const record_identity&)>& visit) override {
    tier_.for_each_record(visit);
  }

 private:
  testing::temporary_folder folder_;
  file_tier tier_;
};

}  // namespace

any_tier_with_places make_tier_with_places(const drawn_tiers& drawn, const record_format& format) {
  if (drawn.wrong == fake_store::fault::none) {
    const auto num_records = static_cast<std::size_t>(drawn.num_slower_records);
    const auto num_bytes = format.header_bytes() + num_records * format.record_bytes();
    auto file = std::make_unique<file_in_folder>(static_cast<std::int64_t>(num_bytes), format);
    const auto num_places = file->num_places();
    return {std::move(file), num_places};
  }
  auto store = placed_tier{std::make_shared<fake_store>(drawn.wrong, drawn.seed), drawn.num_slower_records, format};
  return {std::make_unique<detail::slower_tier_of<placed_tier>>(std::move(store)), drawn.num_slower_records};
}

}  // namespace pagedkv::test
