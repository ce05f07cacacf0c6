#include "scene.hpp"

#include <pagedkv/policy/locking/parts/mutexes.hpp>

namespace pagedkv::model_check {

/// Two numbers that are equal while no writer is inside.
class twins {
 public:
  void write() {
    mutex_.lock();
    first_.write(first_.read() + 1);
    second_.write(second_.read() + 1);
    mutex_.unlock();
  }

  void read() {
    mutex_.lock_shared();
    expect(first_.read() == second_.read(), "a reader is inside with a writer");
    mutex_.unlock_shared();
  }

  void check(int num_writers) { expect(first_.read() == num_writers, "a write is lost"); }

 private:
  basic_fair_shared_mutex<atomic, no_contention_metrics, 1> mutex_;
  guarded_number first_;
  guarded_number second_;
};

void two_writers() {
  auto numbers = twins{};
  at_once([&] { numbers.write(); }, [&] { numbers.write(); });
  numbers.check(2);
}

/// Two of them may wait at once, at one place of the queue.
void three_writers() {
  auto numbers = twins{};
  at_once([&] { numbers.write(); }, [&] { numbers.write(); }, [&] { numbers.write(); });
  numbers.check(3);
}

void reader_and_writer() {
  auto numbers = twins{};
  at_once([&] { numbers.read(); }, [&] { numbers.write(); });
  numbers.check(1);
}

}  // namespace pagedkv::model_check

int main() { pagedkv::model_check::PAGEDKV_SCENE(); }
